"""The jobs of a run and their results on disk: one JSON line per method, trial and session."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anchorinv.core.metrics import SplitReliability
from anchorinv.core.registry import METHODS
from anchorinv.files import append_whole, check_regular
from anchorinv.study.config import Study
from anchorinv.study.runner import SessionResult

#: More jobs could neither be listed in half a gigabyte nor computed.
_MOST_JOBS = 2_000_000

#: Maximum length of a line: the confusion matrix of a thousand classes fits, and memory is bounded.
MOST_BYTES = 1 << 22
_MOST_PROBLEMS = 3  # damaged lines whose damage is described, and letters of a description
_LETTERS = 100

Whole = Annotated[int, Field(ge=0, lt=1 << 63)]
Count = Annotated[int, Field(ge=0, le=1 << 40)]  # sums of a matrix of counts stay below 2⁶³
Amount = Annotated[float, Field(ge=0)]
_FIRST = Field(fail_fast=True)  # not a million errors for a million wrong values


@dataclass(frozen=True, slots=True)
class Job:
    """The unit of work of a run: one trial of one method, or its base session (None).

    ``variant`` and ``person`` are empty where there is only one; ``seed`` is the base model's.

    Examples
    --------
    >>> print(Job("", "", 5, "protonet", 0))
    protonet, trial 0, seed 5
    """

    variant: str
    person: str
    seed: int
    method: str
    trial: int | None

    def __str__(self) -> str:
        where = ", ".join(str(part) for part in (self.variant, self.person) if part)
        what = "base session" if self.trial is None else f"trial {self.trial}"
        return f"{self.method}, {what}, seed {self.seed}" + (f" ({where})" if where else "")

    @classmethod
    def of(cls, result: SessionResult) -> "Job":
        """Return the job that a result belongs to."""
        return cls(result.variant, result.person, result.base_seed, result.method, result.trial)


def check_number(study: Study, people: Mapping[str, Sequence[str]], own: Sequence[str]) -> None:
    """Refuse a study with too many jobs."""
    n = sum(
        len(experiment.protocol.seeds)
        * len(people[variant])
        * (len(experiment.methods) + len(own))
        * (experiment.protocol.trials + 1)
        for variant, experiment in study.variants.items()
    )
    if n > _MOST_JOBS:
        raise ValueError(f"the study has {n} jobs, {_MOST_JOBS} at most; lower trials, or divide it")


def all_jobs(study: Study, about: Mapping[str, Any]) -> list[Job]:
    """Return all jobs of a run, by variants, base seeds, people, methods and trials.

    ``about`` is what ``config.json`` holds.
    """
    return [
        Job(variant, person, seed, method, trial)
        for variant, experiment in study.variants.items()
        for seed in experiment.protocol.seeds
        for person in about["people"][variant]
        for method in (*experiment.methods, *about["own"])
        for trial in (None, *range(experiment.protocol.trials))
    ]


class ExpectedResults:
    """Which results a run can have: those of its jobs, with the classes known after each session.

    ``about`` is what ``config.json`` holds, checked.
    """

    def __init__(self, study: Study, about: Mapping[str, Any]) -> None:
        self._jobs = frozenset(all_jobs(study, about))
        #: Classes of the base session, then of each session; their order within one is up to the method.
        self._classes: dict[str, list[set[int]]] = {}
        for variant, experiment in study.variants.items():
            names, protocol = about["data"][experiment.data.name]["classes"], experiment.protocol
            new, ways = protocol.sessions, protocol.ways
            sessions = [new[i : i + ways] for i in range(0, len(new), ways)]
            self._classes[variant] = [
                {c if isinstance(c, int) else names.index(c) for c in classes}
                for classes in (protocol.base_classes, *sessions)
            ]

    def n_sessions(self, job: Job) -> int:
        """Return how many results a job has."""
        return 1 if job.trial is None else len(self._classes[job.variant]) - 1

    def named(self, result: SessionResult) -> SessionResult:
        """Rename a result's method from a former name, unless a method of the run has that name."""
        if Job.of(result) in self._jobs:
            return result
        return replace(result, method=METHODS.name_of(result.method))

    def check(self, result: SessionResult) -> None:
        """Refuse a result that cannot belong to the run; the error says why."""
        job = Job.of(result)
        if job not in self._jobs:
            raise ValueError(f"of {str(job)!r}, which is not a job of this run")
        first = 0 if job.trial is None else 1
        last = first + self.n_sessions(job) - 1
        if not first <= result.session <= last:
            raise ValueError(f"of session {result.session}, where there are {first} to {last}")
        expected, rest = self._classes[job.variant][: result.session + 1], list(result.classes)
        n_base = len(expected[0])
        for classes in expected:
            if classes != set(rest[: len(classes)]):
                raise ValueError(f"its classes are not {list(map(sorted, expected))}, session by session")
            del rest[: len(classes)]
        if rest or result.n_base != n_base:
            raise ValueError(f"it has {len(rest)} classes too many, or not {n_base} of the base")


class _Reliability(BaseModel):
    """Bins and sums; ``Reliability`` checks that they fit each other."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    counts: Annotated[list[Count], _FIRST]
    correct: Annotated[list[Count], _FIRST]
    confidence: Annotated[list[Amount], _FIRST]
    brier: Amount
    nll: Amount


class _SplitReliability(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    base: _Reliability
    new: _Reliability


class _Line(BaseModel):
    """A line of a results file; ``facts`` may be NaN, if a training diverged."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    method: str
    variant: str = ""
    person: str = ""
    base_seed: Whole
    trial: Whole | None
    session: Whole
    classes: Annotated[tuple[Whole, ...], _FIRST]
    n_base: Whole
    confusion: Annotated[list[Annotated[list[Count], _FIRST]], _FIRST]
    facts: dict[str, Annotated[float, Field(allow_inf_nan=True)]] = Field(default_factory=dict)
    seconds: Amount
    peak_mb: Amount | None = None
    reliability: _SplitReliability | None = None


def to_line(result: SessionResult) -> str:
    """Return a result as one line of JSON, without the line's end."""
    record = {name: getattr(result, name) for name in _Line.model_fields}
    record["confusion"], record["seconds"] = result.confusion.tolist(), round(result.seconds, 3)
    record["peak_mb"] = None if result.peak_mb is None else round(result.peak_mb, 1)
    if (reliability := record.pop("reliability")) is not None:  # lines from earlier versions stay as they are
        record["reliability"] = reliability.to_dict()
    return json.dumps(record, ensure_ascii=False)


def from_line(line: str | bytes) -> SessionResult:
    """Parse a line; the error says why it is not a result."""
    try:
        record = _Line.model_validate_json(line)
    except ValidationError as error:
        broken = error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid"
        raise ValueError("no JSON" if broken else first_problem(error)) from None
    k = len(record.classes)
    if not 0 < record.n_base <= k or {len(record.confusion), *map(len, record.confusion)} != {k}:
        raise ValueError(f"its confusion matrix is not that of {k} classes, {record.n_base} of the base")
    counts = np.array(record.confusion, dtype=np.int64)  # (k, k)
    reliability = None
    if record.reliability is not None:
        reliability = SplitReliability.from_dict(record.reliability.model_dump())
        n_base = int(counts[: record.n_base].sum())
        if (reliability.base.n, reliability.all.n) != (n_base, int(counts.sum())):
            raise ValueError("its reliability is of other samples than its confusion matrix")
    return SessionResult(**{**record.__dict__, "confusion": counts, "reliability": reliability})


def first_problem(error: ValidationError) -> str:
    """Describe the first problem of values; names from a file are escaped."""
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where!r}: {message}" if where else message


def append(path: Path, *results: SessionResult) -> None:
    """Append results to a file, one line each, and sync it to disk: all of them, or none."""
    append_whole(path, ["".join(to_line(result) + "\n" for result in results).encode()])


@dataclass(frozen=True, slots=True)
class StoredResults:
    """The content of a results file: results of complete jobs, and other lines.

    ``places`` are first byte and end of the results' lines, ``problems`` describe the first damaged lines,
    and ``n_loose`` counts valid lines of incomplete jobs.
    """

    results: list[SessionResult]
    places: list[tuple[int, int]]
    n_damaged: int = 0
    problems: tuple[str, ...] = ()
    n_loose: int = 0

    @property
    def damage(self) -> str:
        """Describe the damage of the file; empty if there is none."""
        more = "; ..." if self.n_damaged > len(self.problems) else ""
        problems = []
        if self.n_damaged:
            problems.append(f"{_counted(self.n_damaged, 'damaged line')} ({'; '.join(self.problems)}{more})")
        if self.n_loose:
            problems.append(f"{_counted(self.n_loose, 'line')} of incomplete jobs")
        return " and ".join(problems)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def read_lines(path: Path, expected: ExpectedResults, *, heads: int = 0) -> StoredResults:
    """Read the results of complete jobs in a file, after ``heads`` lines; damaged lines are skipped."""
    lines: dict[tuple[Job, int], tuple[SessionResult, tuple[int, int]]] = {}
    contested: set[tuple[Job, int]] = set()
    n_damaged = 0
    problems: list[str] = []
    for number, place, line in _lines(path):
        if number <= heads:
            continue
        try:
            if not line.endswith(b"\n"):
                raise ValueError("cut off" if len(line) < MOST_BYTES else f"over {MOST_BYTES} bytes")
            result = expected.named(from_line(line))
            expected.check(result)
            key = Job.of(result), result.session
            if key not in lines:
                lines[key] = result, place
                continue
            if to_line(result) != to_line(lines[key][0]):
                contested.add(key)  # contradictory: neither is used
            raise ValueError("there twice")
        except ValueError as error:
            n_damaged += 1
            if len(problems) < _MOST_PROBLEMS:
                problems.append(f"line {number}: {str(error)[:_LETTERS]}")
    n_damaged += len(contested)
    for key in contested:
        del lines[key]
    counts = Counter(job for job, _ in lines)
    complete = [entry for (job, _), entry in lines.items() if counts[job] == expected.n_sessions(job)]
    results, places = [result for result, _ in complete], [place for _, place in complete]
    return StoredResults(results, places, n_damaged, tuple(problems), len(lines) - len(complete))


def _lines(path: Path) -> Iterator[tuple[int, tuple[int, int], bytes]]:
    """Yield each line's number, place and content, in bounded memory."""
    check_regular(path)
    with path.open("rb") as file:
        number, start = 0, 0
        while line := file.readline(MOST_BYTES):
            end = line
            while end and not end.endswith(b"\n"):
                end = file.readline(MOST_BYTES)
            number, stop = number + 1, file.tell()
            yield number, (start, stop), line
            start = stop


def move_damaged(path: Path, kept: Sequence[tuple[int, int]], aside: Path) -> None:
    """Append all of a file but the kept places to another file, unchanged."""
    with path.open("rb") as source:
        append_whole(aside, _pieces(source, kept, path.stat().st_size))


def _pieces(source: IO[bytes], kept: Sequence[tuple[int, int]], size: int) -> Iterator[bytes]:
    at, piece = 0, b"\n"
    for start, stop in [*sorted(kept), (size, size)]:
        source.seek(at)
        while at < start:
            piece = source.read(min(start - at, MOST_BYTES))
            yield piece
            at += len(piece)
        at = stop
    if not piece.endswith(b"\n"):
        yield b"\n"
