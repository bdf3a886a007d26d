"""The table of a user's own recordings: a row per recording or part of one."""

import csv
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from anchorinv.data.dataset import SPLITS
from anchorinv.data.problems import listed
from anchorinv.data.readers import FORMATS

COLUMNS = ("path", "label", "subject", "session", "split", "start", "stop")


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table; text is "" and times are None where it does not say.

    Parameters
    ----------
    name : the path as the table writes it.
    start, stop : in seconds.
    """

    line: int
    name: str
    path: Path
    label: str = ""
    subject: str = ""
    session: str = ""
    split: str = ""
    start: float | None = None
    stop: float | None = None


def read_manifest(path: Path) -> tuple[list[Entry], list[str]]:
    """Return the rows that can be used, and a sentence for each that cannot."""
    if not path.is_file():
        raise ValueError(f"{path} is not there; a manifest is a table with the columns {', '.join(COLUMNS)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8; save the table as CSV (UTF-8)") from None
    first = text.partition("\n")[0]
    table = csv.DictReader(text.splitlines(), delimiter=max(",;\t", key=first.count), restval="")
    columns = {(name or "").strip().casefold(): name for name in table.fieldnames or []}
    if absent := [name for name in ("path", "label") if name not in columns]:
        raise ValueError(
            f"{path} has no column {listed(absent)}; its first line names {listed(list(columns))}"
        )
    problems = []
    for name in set(columns) - set(COLUMNS):
        if near := get_close_matches(name, set(COLUMNS) - set(columns), n=1):
            problems.append(f"column {name!r} is unknown; did you mean {near[0]!r}?")
    entries = []
    for row in table:
        cells = {name: (row[column] or "").strip() for name, column in columns.items() if name in COLUMNS}
        if any(cells.values()):
            entry, wrong = _entry(cells, table.line_num, path.parent)
            problems += [f"line {table.line_num}: {sentence}" for sentence in wrong]
            entries += [entry] if not wrong else []
    if not entries and not problems:
        problems.append("the table has no rows; list a recording in each")
    split = [entry for entry in entries if entry.split]
    if split and len(split) < len(entries):
        away = [entry.line for entry in entries if not entry.split]
        problems.append(
            f"split is given in some rows and not in lines {listed(away)}; give it in all or none"
        )
    return entries, problems


def _entry(cells: dict[str, str], line: int, folder: Path) -> tuple[Entry, list[str]]:
    wrong = []
    name = cells["path"]
    path = folder / name
    if not name:
        wrong.append("path is empty; name a file")
    elif not _known(path):
        wrong.append(f"{name} is of no known format; known are {', '.join(sorted(FORMATS))}")
    elif not path.is_file():
        wrong.append(f"{name} is not there (looked for {path})")
    if not cells["label"] and path.suffix.lower() != ".npz":
        wrong.append(f"{name} has no label; give one")
    split = cells.get("split", "").casefold()
    if split and split not in SPLITS:
        wrong.append(f"split is train or test, got {cells['split']!r}")
    times: dict[str, float | None] = {"start": None, "stop": None}
    for key in times:
        if text := cells.get(key, ""):
            try:
                times[key] = float(text)
            except ValueError:
                wrong.append(f"{key} is a number of seconds, got {text!r}")
    start, stop = times["start"] or 0.0, times["stop"]
    if not start >= 0 or (stop is not None and not stop > start):
        wrong.append(f"start lies at 0 or later and before stop, got {start:g} to {stop} s")
    entry = Entry(
        line,
        name,
        path,
        label=cells["label"],
        subject=cells.get("subject", ""),
        session=cells.get("session", ""),
        split=split,
        start=times["start"],
        stop=times["stop"],
    )
    return entry, wrong


def _known(path: Path) -> bool:
    return bool({path.suffix.lower(), "".join(path.suffixes[-2:]).lower()} & FORMATS)
