"""The walk in docs/architecture.md is the way that a recording really goes, from its file to the report."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tests.recording_files import write_edf

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
STUDY = """title = "A walk"
methods = ["discriminant", "mdm"]
reference = "discriminant"
threads = 1
[data]
name = "own"
[protocol]
base_classes = [0, 1, 2]
sessions = [3]
shots = 5
trials = 2
"""


def walk() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").split("## A walk")[1].split("\n## ")[0]
    return re.findall(r"`(anchorinv\.[\w.]+)`", section)


def recordings(folder: Path) -> None:
    """Write two days in EDF, with four classes of ten seconds each, and a table of them."""
    rng = np.random.default_rng(0)
    rows = ["path,label,subject,session,start,stop,split"]
    for day, split in enumerate(("train", "test")):
        signals = 1e-5 * rng.normal(size=(4, 8000))
        for c in range(4):
            signals[c, 2000 * c : 2000 * (c + 1)] *= 6
            rows.append(f"day{day}.edf,class{c},somebody,{day},{20 * c},{20 * c + 20},{split}")
        write_edf(folder / f"day{day}.edf", signals, ["C1", "C2", "C3", "C4"], 100)
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    (folder / "study.toml").write_text(STUDY)


def followed(commands: list[list[str]], wanted: set[str]) -> list[str]:
    """Run commands and return which functions were called, in the order of their first calls."""
    from anchorinv.cli import main

    calls: dict[str, None] = {}
    short = {name.rpartition(".")[2] for name in wanted}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_name in short:
            name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
            if name in wanted:
                calls.setdefault(name)
        if len(calls) == len(wanted):
            sys.settrace(None)  # only first calls count, and figures are drawn faster unseen

    run: Callable[[], None] = main
    for arguments in commands:
        sys.argv = ["anchorinv", *arguments]
        sys.settrace(note)  # without a local function: calls alone, of Python
        try:
            with pytest.raises(SystemExit) as end:
                run()
        finally:
            sys.settrace(None)
        assert end.value.code == 0
    return list(calls)


def test_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mne")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr("anchorinv.report.formats.FORMATS", {"svg": {"Date": None}})  # no other is shown
    recordings(tmp_path)
    prepare = ["prepare", "own", "--manifest", "table.csv", "--out", "data", "--window", "1"]
    commands = [
        [*prepare, "--allow", "shared-subjects"],
        ["run", "study.toml", "--data", "data", "--out", "run"],
        ["report", "run"],
    ]
    names = walk()
    assert len(names) > 20
    assert followed(commands, set(names)) == list(dict.fromkeys(names))
