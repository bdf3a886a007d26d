"""From run folders and records to what a report is made of; what is missing or damaged is said."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorinv.core.runner import SessionResult
from anchorinv.study.about import Start
from anchorinv.study.config import Experiment, Study
from anchorinv.study.folder import RunFolder
from anchorinv.study.parts import Part
from anchorinv.study.record import Record


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run folder or record, read.

    Parameters
    ----------
    label : the study's name; with the folder's or file's, where two runs would be called the same.
    name : what the folder or the file is called.
    file : where the results are.
    about : all of ``config.json``.
    starts : versions and machine at each start.
    missing : the parts that are not finished.
    damage : what ``results.jsonl`` holds beside results of whole parts; empty as a rule.
    """

    label: str
    name: str
    path: Path
    file: Path
    study: Study
    about: dict[str, Any]
    starts: list[Start]
    results: list[SessionResult]
    missing: list[Part]
    n_parts: int
    damage: str

    @property
    def slug(self) -> str:
        """Return the label as part of a file name or a link."""
        return slugged(self.label)

    @property
    def synthetic(self) -> bool:
        """Say whether any of it comes from synthetic recordings."""
        return any(experiment.synthetic for experiment in self.study.variants.values())

    @property
    def results_hash(self) -> str:
        """Return the SHA-256 of the file that holds the results."""
        if not self.file.exists():
            return "–"
        with self.file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

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


def slugged(name: str) -> str:
    """Return a name as part of a file name or a link."""
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")


def source_at(path: Path) -> RunFolder | Record:
    """Return the run at a path: a folder, or a record of one."""
    return Record(path) if path.is_file() else RunFolder(path)


def gather(paths: Sequence[Path]) -> list[Run]:
    """Read runs; one that is no run, or damaged beyond its results, is an error that names it."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError("the same run folder is named twice; name each once")
    sources = [source_at(path) for path in paths]
    names = [source.study().name for source in sources]
    return [
        _read(source, name if names.count(name) == 1 else f"{name} ({source.name})")
        for source, name in zip(sources, names, strict=True)
    ]


def _read(source: RunFolder | Record, label: str) -> Run:
    study, everything, found = source.study(), source.parts(), source.read()
    done = {Part.of(result) for result in found.results}
    return Run(
        label,
        source.name,
        source.path,
        source.results,
        study,
        source.about(),
        source.starts(),
        found.results,
        [part for part in everything if part not in done],
        len(everything),
        found.damage,
    )
