"""Results on disk: one JSON line per method, trial and session, from which every number is derived."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.core.runner import SessionResult


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


def from_line(line: str) -> SessionResult:
    """Return the result that a line holds."""
    record = json.loads(line)
    record["classes"] = tuple(record["classes"])
    record["confusion"] = np.array(record["confusion"], dtype=np.int64)
    return SessionResult(**record)


def append(path: Path, *results: SessionResult) -> None:
    """Add results to a file, a line each, and have the disk hold them."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(to_line(result) + "\n" for result in results))
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[SessionResult]:
    """Return all results of a file; a damaged line is an error that names it."""
    found = read_whole(path)
    if found.damaged_from is not None:
        raise ValueError(f"{path} is damaged from line {found.damaged_from} on")
    return found.results


@dataclass(frozen=True, slots=True)
class WholeLines:
    """The lines of a file up to the first damaged one, and its number, if there is one."""

    results: list[SessionResult]
    damaged_from: int | None


def read_whole(path: Path, *, heads: int = 0) -> WholeLines:
    """Return the results of a file as far as it is whole; what was torn by a kill is at its end.

    Parameters
    ----------
    heads : lines before the first result, which are passed over.
    """
    results: list[SessionResult] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[heads:-1], start=heads + 1):
        try:
            results.append(from_line(line.decode("utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError):
            return WholeLines(results, number)
    return WholeLines(results, len(lines) if lines[-1] else None)


def select(
    results: Iterable[SessionResult], *, method: str | None = None, session: int | None = None
) -> list[SessionResult]:
    """Return the results of a method, a session, or both, in their order."""
    return [
        result for result in results if method in (None, result.method) and session in (None, result.session)
    ]
