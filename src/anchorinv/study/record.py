"""A run as one small file, fit to be published: what was asked for, what it ran on, and every result."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anchorinv.core.runner import SessionResult
from anchorinv.files import MOST_JSON, check_regular, parsed_json, replacing
from anchorinv.study.about import Start, checked
from anchorinv.study.config import Study
from anchorinv.study.folder import RunFolder
from anchorinv.study.parts import Outline, Part, all_parts
from anchorinv.study.results import Lines, read_lines, to_line

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

    def study(self) -> Study:
        """Return the study that was run."""
        return self._head()[0]

    def about(self) -> dict[str, Any]:
        """Return what the run was asked for, and its starts."""
        return self._head()[1]

    def starts(self) -> list[Start]:
        """Return the versions at each start."""
        return list(self.about().get("starts", []))

    def parts(self) -> list[Part]:
        """Return all that the run consists of, in order."""
        return all_parts(*self._head())

    def read(self) -> Lines:
        """Return the results."""
        return read_lines(self.path, Outline(*self._head()), heads=1)

    def _head(self) -> tuple[Study, dict[str, Any]]:
        check_regular(self.path)
        try:
            with self.path.open("rb") as file:
                about = parsed_json(file.readline(MOST_JSON + 1), self.path)
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read: {error.strerror}") from None
        except ValueError:
            about = None
        if not isinstance(about, dict) or "study" not in about:
            raise ValueError(
                f"{self.path} is no record of a run: its first line does not tell of one; "
                f"make one by anchorinv report RUN --export {self.path.name}"
            )
        return checked(about, self.path), about


def write_record(run: RunFolder, path: Path) -> Record:
    """Write a run, finished or not, as one file."""
    found, about = run.read(), run.about()
    if found.damage:
        raise ValueError(f"{run.results} has {found.damage}; the same run command mends it")
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
