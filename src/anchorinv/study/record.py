"""A run as one small file, fit to be published: what was asked for, what it ran on, and every result."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anchorinv.core.runner import SessionResult
from anchorinv.files import replacing
from anchorinv.study.config import Study
from anchorinv.study.folder import RunFolder, checked
from anchorinv.study.parts import Part, all_parts
from anchorinv.study.results import WholeLines, read_whole, to_line

#: What is told of a start; whose machine it was, and which process, is nobody's business.
_TOLD = (
    "started", "anchorinv", "python", "torch", "numpy", "scipy", "scikit-learn", "pydantic", "safetensors",
    "system", "cores",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """Such a file: the first line tells of the run, each other line is a result."""

    path: Path

    @property
    def results(self) -> Path:
        """Return where the results are: in the file itself."""
        return self.path

    @property
    def name(self) -> str:
        """Return what the file is called, without its ending."""
        return self.path.stem

    @property
    def heads(self) -> int:
        """Return how many lines stand before the first result."""
        return 1

    def study(self) -> Study:
        """Return the study that was run."""
        return checked(self.about(), self.path)

    def about(self) -> dict[str, Any]:
        """Return what the run was asked for, and its starts."""
        try:
            with self.path.open(encoding="utf-8") as file:
                about = json.loads(file.readline())
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read: {error.strerror}") from None
        except ValueError:
            about = None
        if not isinstance(about, dict) or "study" not in about:
            raise ValueError(
                f"{self.path} is no record of a run: its first line does not tell of one; "
                f"make one by anchorinv report RUN --export {self.path.name}"
            )
        return about

    def starts(self) -> list[dict[str, Any]]:
        """Return the versions at each start."""
        return list(self.about().get("starts", []))

    def parts(self) -> list[Part]:
        """Return all that the run consists of, in order."""
        return all_parts(self.study(), self.about())

    def read(self) -> WholeLines:
        """Return the results."""
        return read_whole(self.path, heads=self.heads)


def write_record(run: RunFolder, path: Path) -> Record:
    """Write a run, finished or not, as one file."""
    found, about = run.read(), run.about()
    if found.damaged_from is not None:
        raise ValueError(
            f"{run.results} is damaged from line {found.damaged_from} on; the same run command mends it"
        )
    starts = [{key: start[key] for key in _TOLD if key in start} for start in run.starts()]
    lines = [_short({**about, "starts": starts}), *(_short(_rounded(result)) for result in found.results)]
    with replacing(path) as beside:
        beside.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return Record(path)


def _rounded(result: SessionResult) -> dict[str, Any]:
    """Return a result's line as values, floats to four digits: nothing is derived from them but means."""
    facts = {name: float(f"{value:.4g}") for name, value in result.facts.items()}
    record: dict[str, Any] = json.loads(to_line(replace(result, facts=facts)))
    return record


def _short(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
