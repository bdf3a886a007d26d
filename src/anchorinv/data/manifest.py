"""The table of a user's own recordings: a row per recording or part of one."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from anchorinv.data.dataset import SPLITS
from anchorinv.problems import listed
from anchorinv.signal.kinds import FILES
from anchorinv.signal.readers import FORMATS
from anchorinv.signal.tables import read_table

COLUMNS = ("path", "label", "subject", "session", "split", "start", "stop")
_LATEST = 1e9  # seconds: thirty years


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


def read_manifest(path: Path, *, labelled: bool = True) -> tuple[list[Entry], list[str]]:
    """Return the rows that can be used, and a sentence for each that cannot.

    Parameters
    ----------
    labelled : whether each row must have a label; otherwise events of its file will.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not there; a manifest is a table with the columns {', '.join(COLUMNS)}")
    table = read_table(path, COLUMNS, delimiters=",;\t")
    needed = ("path", "label") if labelled else ("path",)
    if absent := [name for name in needed if name not in table.columns]:
        raise ValueError(f"{path} has no column {listed(absent)}; its first line names {listed(table.names)}")
    problems = []
    for name in sorted(set(table.names) - set(COLUMNS)):
        if near := get_close_matches(name[:40], set(COLUMNS) - set(table.names), n=1):
            problems.append(f"column {name!r} is unknown; did you mean {near[0]!r}?")
    entries = []
    for line, *row in zip(table.lines, *table.columns.values(), strict=True):
        cells = {name: cell.strip() for name, cell in zip(table.columns, row, strict=True)}
        if any(cells.values()):
            entry, wrong = _entry(cells, line, path.parent, labelled=labelled)
            problems += [f"line {line}: {sentence}" for sentence in wrong]
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


def _entry(cells: dict[str, str], line: int, folder: Path, *, labelled: bool) -> tuple[Entry, list[str]]:
    wrong = []
    name = cells["path"]
    path = folder / name
    if not name:
        wrong.append("path is empty; name a file")
    elif not _known(path):
        wrong.append(f"{name} is of no known format; known are {FILES}")
    elif not _is_file(path):
        wrong.append(f"{name} is not there (looked for {path})")
    label = cells.get("label", "")
    if labelled and not label and path.suffix.lower() != ".npz":
        wrong.append(f"{name} has no label; give one, or name its events with --events")
    if not labelled and label:
        wrong.append(f"{name} has a label, and --events takes labels from its events; leave one out")
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
    if not 0 <= start < _LATEST or (stop is not None and not start < stop < _LATEST):
        wrong.append(f"start lies at 0 or later and before stop, got {start:g} to {stop} s")
    entry = Entry(
        line,
        name,
        path,
        label=label,
        subject=cells.get("subject", ""),
        session=cells.get("session", ""),
        split=split,
        start=times["start"],
        stop=times["stop"],
    )
    return entry, wrong


def _known(path: Path) -> bool:
    return bool({path.suffix.lower(), "".join(path.suffixes[-2:]).lower()} & FORMATS)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for one
        return False
