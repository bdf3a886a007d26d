"""Tables of events as BIDS has them: ``*_events.tsv``, with onset, duration and trial_type."""

import re
from pathlib import Path

from anchorinv.problems import listed
from anchorinv.signal.events import Event, in_order
from anchorinv.signal.limits import reading
from anchorinv.signal.tables import Table, read_table

#: Rows of a table: heartbeats of two days.
MOST = 250_000
#: What the name of a recording ends in, and that of its table does not.
_KINDS = frozenset(("eeg", "emg", "ieeg", "meg", "ecg", "physio", "raw"))
_MISSING = ("", "n/a")
_COLUMNS = ("onset", "duration", "trial_type", "value")


def events_beside(path: Path) -> Path | None:
    """Return the table of events that belongs to a recording by its name and lies beside it, if there is one.

    That of ``sub-01_task-rest_eeg.edf`` is ``sub-01_task-rest_events.tsv``, that of ``anna.csv``
    ``anna_events.tsv``.
    """
    name = bare_name(path)
    start, _, kind = name.rpartition("_")
    tables = [path.parent / f"{bare}_events.tsv" for bare in ((start, name) if kind in _KINDS else (name,))]
    return next(filter(Path.is_file, tables), None)


def bare_name(path: Path) -> str:
    """Return a file's name without what tells its format.

    Examples
    --------
    >>> bare_name(Path("anna.2_raw.fif.gz"))
    'anna.2_raw'
    """
    return Path(re.sub(r"\.(gz|xz)$", "", path.name, flags=re.IGNORECASE)).stem


def read_event_table(path: Path) -> list[Event]:
    """Return the events of a table by their onset; rows that name none are left out.

    An event is named by ``trial_type``, or by ``value`` where that column is missing or says nothing.
    """
    with reading(path):
        table = read_table(path, _COLUMNS, delimiters="\t")
        if "onset" not in table.columns:
            raise ValueError(
                f"{path} has no column onset; its first line names {listed(table.names)}, with tabs between"
            )
        labels = _labels(path, table)
        durations = table.columns.get("duration", ["n/a"] * len(labels))
        rows = zip(table.lines, table.columns["onset"], durations, labels, strict=True)
        events = (
            Event(
                _seconds(path, line, "onset", onset),
                0.0 if _missing(duration) else _seconds(path, line, "duration", duration),
                label,
            )
            for line, onset, duration, label in rows
            if not _missing(label)
        )
        return in_order(path, events, most=MOST)


def _labels(path: Path, table: Table) -> list[str]:
    for name in ("trial_type", "value"):
        labels = [label.strip() for label in table.columns.get(name, ())]
        if not all(map(_missing, labels)):
            return labels
    if table.lines and not {"trial_type", "value"} & table.columns.keys():
        raise ValueError(
            f"{path} has neither a column trial_type nor value to name its events; its first line names "
            f"{listed(table.names)}"
        )
    return ["n/a"] * len(table.lines)


def _missing(cell: str) -> bool:
    return cell.strip().casefold() in _MISSING


def _seconds(path: Path, line: int, name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{path}, line {line}: {name} is a number of seconds, got {text[:80]!r}") from None
