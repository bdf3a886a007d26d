"""Results on disk: one JSON line per method, trial and session, from which every number is derived."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.core.runner import SessionResult


def to_line(result: SessionResult) -> str:
    """Return a result as one line of JSON, without the line's end."""
    record: dict[str, Any] = {
        "method": result.method,
        "base_seed": result.base_seed,
        "trial": result.trial,
        "session": result.session,
        "classes": list(result.classes),
        "n_base": result.n_base,
        "confusion": result.confusion.tolist(),
        "seconds": round(result.seconds, 3),
    }
    return json.dumps(record)


def from_line(line: str) -> SessionResult:
    """Return the result that a line holds."""
    record = json.loads(line)
    record["classes"] = tuple(record["classes"])
    record["confusion"] = np.array(record["confusion"], dtype=np.int64)
    return SessionResult(**record)


def append(path: Path, result: SessionResult) -> None:
    """Add a result to a file, as one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(to_line(result) + "\n")


def read(path: Path) -> list[SessionResult]:
    """Return all results of a file."""
    return [from_line(line) for line in path.read_text(encoding="utf-8").splitlines()]


def select(
    results: Iterable[SessionResult], *, method: str | None = None, session: int | None = None
) -> list[SessionResult]:
    """Return the results of a method, a session, or both, in their order."""
    return [
        result for result in results if method in (None, result.method) and session in (None, result.session)
    ]
