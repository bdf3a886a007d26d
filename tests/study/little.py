"""A study that takes a second, in variations, and what its results say, times aside."""

import json
from pathlib import Path
from typing import Any

from anchorinv.study.config import Study
from anchorinv.study.loading import load, merge, scaled

METHODS = ("finetune", "protonet", "anchorinv")


def little(config: str = "grabmyo-4base", **tables: Any) -> Study:
    """A shipped config at the smallest scale, with fewer sessions and with tables laid over it."""
    study = scaled(load(config, methods=list(METHODS)), "smoke")
    fewer = (
        {"protocol": {"sessions": [10, 11], "base_classes": [0, 1, 2], "trials": 3}}
        if "grab" in config
        else {}
    )
    plain = json.loads(study.model_dump_json())
    for name, variant in plain["variants"].items():
        plain["variants"][name] = merge(merge(variant, fewer), tables)
    return Study.model_validate(plain)


def lines(run: Path) -> list[dict[str, Any]]:
    """The results of a run folder, without the times and the memory, which differ from run to run."""
    found = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "peak_mb")} for line in found]
