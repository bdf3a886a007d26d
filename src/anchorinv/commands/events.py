"""``anchorinv events``: what a recording says happened, and when."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from anchorinv.signal.event_files import Events

_SHOWN = 200  # kinds of events in a table; --json has all
_WIDEST = 60


def events(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Recordings: EDF, BDF, GDF, FIF, BrainVision (.vhdr), WFDB (.hea), or an annotator (.atr).",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the events of recordings: annotations, a BIDS events.tsv beside them, a stimulus channel.

    These are the names that --events takes, such as T1=left,T2=right.
    """
    from anchorinv.quoting import as_json as written
    from anchorinv.signal.event_files import find_events
    from anchorinv.terminal import say

    found = [(path, find_events(path)) for path in files]
    if as_json:
        say(*written([_facts(path, told) for path, told in found]).split("\n"))
        return
    for path, told in found:
        _show(path, told)


def _facts(path: Path, found: "Events") -> dict[str, Any]:
    """Return what is told of a file, a row for each kind of event, by when it first occurs."""
    rows: dict[str, dict[str, Any]] = {}
    for event in found.events:
        first = {
            "event": event.label,
            "count": 0,
            "first": event.onset,
            "shortest": event.duration,
            "longest": 0.0,
        }
        row = rows.setdefault(event.label, first)
        row["count"] += 1
        row["shortest"] = min(row["shortest"], event.duration)
        row["longest"] = max(row["longest"], event.duration)
    return {
        "file": str(path),
        "from": found.source,
        "count": len(found.events),
        "events": list(rows.values()),
    }


def _show(path: Path, found: "Events") -> None:
    from rich.table import Table

    from anchorinv.terminal import Terminal

    console = Terminal()
    if not found.events:
        console.say(
            f"{path} has no events: no annotations, no events.tsv beside it, nothing in a stimulus channel"
        )
        return
    facts = _facts(path, found)
    console.say(f"{path}: {facts['count']} events, from {found.source}")
    table = Table("event", "count", "first at s", "lasts s")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in facts["events"][:_SHOWN]:
        label = row["event"] if len(row["event"]) <= _WIDEST else f"{row['event'][: _WIDEST - 4]} ..."
        table.add_row(
            label, str(row["count"]), f"{row['first']:g}", _lasting(row["shortest"], row["longest"])
        )
    console.print(table)
    if (more := len(facts["events"]) - _SHOWN) > 0:
        console.say(f"and {more} other events; --json lists them all")


def _lasting(shortest: float, longest: float) -> str:
    return f"{shortest:g}" if shortest == longest else f"{shortest:g}-{longest:g}"
