"""Results on disk: one JSON line per method, trial and session, from which every number is derived."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anchorinv.core.runner import SessionResult
from anchorinv.files import append_whole, check_regular
from anchorinv.study.parts import Outline, Part

#: A line is not longer: the confusion matrix of a thousand classes fits, and no line fills the memory.
MOST_BYTES = 1 << 22
_TOLD = 3  # damaged lines whose damage is described, and letters of a description
_LETTERS = 100

Whole = Annotated[int, Field(ge=0, lt=1 << 63)]
Count = Annotated[int, Field(ge=0, le=1 << 40)]  # sums of a matrix of counts stay below 2⁶³
Amount = Annotated[float, Field(ge=0)]
_FIRST = Field(fail_fast=True)  # a million wrong values are not a million errors, in a gigabyte


class _Line(BaseModel):
    """A line as it may stand in a file; ``facts`` may be NaN, where a descent ended so."""

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


def to_line(result: SessionResult) -> str:
    """Return a result as one line of JSON, without the line's end."""
    record: dict[str, Any] = {
        "method": result.method,
        "variant": result.variant,
        "person": result.person,
        "base_seed": result.base_seed,
        "trial": result.trial,
        "session": result.session,
        "classes": list(result.classes),
        "n_base": result.n_base,
        "confusion": result.confusion.tolist(),
        "facts": result.facts,
        "seconds": round(result.seconds, 3),
        "peak_mb": None if result.peak_mb is None else round(result.peak_mb, 1),
    }
    return json.dumps(record, ensure_ascii=False)


def from_line(line: str | bytes) -> SessionResult:
    """Return the result that a line holds; what cannot be one is an error that says why."""
    try:
        found = _Line.model_validate_json(line)
    except ValidationError as error:
        broken = error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid"
        raise ValueError("no JSON" if broken else first_problem(error)) from None
    k = len(found.classes)
    if (
        not 0 < found.n_base <= k
        or len(found.confusion) != k
        or any(len(row) != k for row in found.confusion)
    ):
        raise ValueError(f"its confusion matrix is not that of {k} classes, {found.n_base} of the base")
    counts = np.array(found.confusion, dtype=np.int64)  # (k, k)
    return SessionResult(**{**found.__dict__, "confusion": counts})


def first_problem(error: ValidationError) -> str:
    """Return what is wrong with values, in a phrase; names from a file are quoted."""
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    said = problem["msg"].removeprefix("Value error, ")
    return f"{where!r}: {said}" if where else said


def append(path: Path, *results: SessionResult) -> None:
    """Add results to a file, a line each, and have the disk hold them: all of them, or none."""
    append_whole(path, ["".join(to_line(result) + "\n" for result in results).encode()])


@dataclass(frozen=True, slots=True)
class Lines:
    """What a file of results holds.

    Parameters
    ----------
    results : of parts that are whole, in the order of the file.
    places : first and last byte, exclusive, of each of their lines.
    n_damaged : lines that are no results of the run.
    problems : what is wrong with the first of them.
    n_loose : sound lines of parts that lack another.
    """

    results: list[SessionResult]
    places: list[tuple[int, int]]
    n_damaged: int = 0
    problems: tuple[str, ...] = ()
    n_loose: int = 0

    @property
    def damage(self) -> str:
        """Say what is not as a run left it; empty where all is."""
        more = "; ..." if self.n_damaged > len(self.problems) else ""
        told = []
        if self.n_damaged:
            told.append(f"{_counted(self.n_damaged, 'damaged line')} ({'; '.join(self.problems)}{more})")
        if self.n_loose:
            told.append(f"{_counted(self.n_loose, 'line')} of parts that are not whole")
        return " and ".join(told)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def read_lines(path: Path, outline: Outline, *, heads: int = 0) -> Lines:
    """Return the results of whole parts that a file holds, wherever other lines are damaged.

    Parameters
    ----------
    outline : of the run, which lines are held against.
    heads : lines before the first result, which are passed over.
    """
    found: dict[tuple[Part, int], tuple[SessionResult, tuple[int, int]]] = {}
    contested: set[tuple[Part, int]] = set()
    n_damaged = 0
    problems: list[str] = []
    for number, place, line in _lines(path):
        if number <= heads:
            continue
        try:
            if not line.endswith(b"\n"):
                raise ValueError("cut off" if len(line) < MOST_BYTES else f"over {MOST_BYTES} bytes")
            result = outline.named(from_line(line))
            outline.check(result)
            key = Part.of(result), result.session
            if key not in found:
                found[key] = result, place
                continue
            if to_line(result) != to_line(found[key][0]):
                contested.add(key)  # nobody knows which is right
            raise ValueError("there twice")
        except ValueError as error:
            n_damaged += 1
            if len(problems) < _TOLD:
                problems.append(f"line {number}: {str(error)[:_LETTERS]}")
    n_damaged += len(contested)
    for key in contested:
        del found[key]
    counts = Counter(part for part, _ in found)
    whole = [each for (part, _), each in found.items() if counts[part] == outline.n_sessions(part)]
    results, places = [result for result, _ in whole], [place for _, place in whole]
    return Lines(results, places, n_damaged, tuple(problems), len(found) - len(whole))


def _lines(path: Path) -> Iterator[tuple[int, tuple[int, int], bytes]]:
    """Yield each line's number, place and content, of which no more is held than a line may have."""
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


def put_aside(path: Path, kept: Sequence[tuple[int, int]], aside: Path) -> None:
    """Add all of a file but the kept places to another file, byte by byte as it is, in lines."""
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


def select(
    results: Iterable[SessionResult], *, method: str | None = None, session: int | None = None
) -> list[SessionResult]:
    """Return the results of a method, a session, or both, in their order."""
    return [
        result for result in results if method in (None, result.method) and session in (None, result.session)
    ]
