"""From run folders to what a report is made of; what is missing or damaged is said, not guessed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorinv.core.metrics import scores
from anchorinv.core.runner import SessionResult
from anchorinv.files import read_json
from anchorinv.study.config import Experiment, Study
from anchorinv.study.folder import RunFolder
from anchorinv.study.parts import Part


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run folder, read.

    Parameters
    ----------
    label : the study's name; with the folder's, where two runs would be called the same.
    about : all of ``config.json``.
    starts : versions and machine at each start.
    missing : the parts that are not finished.
    torn : the line of ``results.jsonl`` from which on it is damaged, if it is.
    """

    label: str
    path: Path
    study: Study
    about: dict[str, Any]
    starts: list[dict[str, Any]]
    results: list[SessionResult]
    missing: list[Part]
    n_parts: int
    torn: int | None

    @property
    def slug(self) -> str:
        """Return the label as part of a file name or a link."""
        return "".join(c if c.isalnum() else "-" for c in self.label.lower()).strip("-")

    @property
    def synthetic(self) -> bool:
        """Say whether any of it comes from synthetic recordings."""
        return any(experiment.synthetic for experiment in self.study.variants.values())

    @property
    def results_hash(self) -> str:
        """Return the SHA-256 of ``results.jsonl``."""
        path = self.path / "results.jsonl"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "–"

    def of(self, variant: str) -> list[SessionResult]:
        """Return the results of a variant."""
        return [result for result in self.results if result.variant == variant]

    def class_names(self, variant: str) -> list[str]:
        """Return the names of the classes by number."""
        known = self.about.get("data", {}).get(self.study.variants[variant].data.name, {})
        return [str(name) for name in known.get("classes", [])]

    def variants(self) -> dict[str, Experiment]:
        """Return the variants that have results."""
        there = {result.variant for result in self.results}
        return {name: each for name, each in self.study.variants.items() if name in there}


def gather(paths: Sequence[Path]) -> list[Run]:
    """Read run folders; one that is no run, or damaged beyond its results, is an error that names it."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError("the same run folder is named twice; name each once")
    folders = [RunFolder(path) for path in paths]
    names = [folder.study().name for folder in folders]
    return [
        _read(folder, name if names.count(name) == 1 else f"{name} ({folder.path.name})")
        for folder, name in zip(folders, names, strict=True)
    ]


def _read(folder: RunFolder, label: str) -> Run:
    study, everything, found = folder.study(), folder.parts(), folder.read()
    for number, result in enumerate(found.results, start=1):
        _check(folder.results, number, result, study)
    done = {Part.of(result) for result in found.results}
    environment = folder.path / "environment.json"
    return Run(
        label,
        folder.path,
        study,
        folder.about(),
        read_json(environment) if environment.exists() else [],
        found.results,
        [part for part in everything if part not in done],
        len(everything),
        found.damaged_from,
    )


def _check(path: Path, number: int, result: SessionResult, study: Study) -> None:
    """Refuse a line that is whole but cannot be a result of this study."""
    problem = ""
    if result.variant not in study.variants:
        problem = f"it is of variant {result.variant!r}, which config.json does not know"
    elif len(result.classes) != len(result.confusion):
        problem = f"{len(result.classes)} classes but a confusion matrix of {len(result.confusion)} rows"
    else:
        try:
            scores(result.confusion, result.n_base)
        except ValueError as error:
            problem = str(error)
    if problem:
        raise ValueError(f"{path} is damaged in line {number}: {problem}; run the study again elsewhere")
