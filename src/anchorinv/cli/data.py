"""``anchorinv download``, ``data``, ``events``: public sets, and what is in folders and recordings."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from anchorinv.cli.options import Json, interruptible
from anchorinv.terminal import Terminal, progress_bars, say

if TYPE_CHECKING:
    from anchorinv.datasets.dataset import Dataset
    from anchorinv.signal.events import Events

_KINDS_SHOWN = 200  # kinds of events in a table; --json has all
_WIDEST = 60  # characters of an event's name


def download(
    name: Annotated[str, typer.Argument(metavar="SET", help="bci2a, nhie or grabmyo.")],
    to: Annotated[Path, typer.Option(help="Folder for the files.")],
    only: Annotated[str, typer.Option(help='Only files of this pattern, such as "Session1/*".')] = "*",
    jobs: Annotated[int, typer.Option(min=1, max=4, help="Files at a time; be kind to the server.")] = 2,
    mirror: Annotated[
        str | None,
        typer.Option("--from", help="Another address with the same files.", envvar="ANCHORINV_MIRROR"),
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="Attempts per file.")] = 5,
    timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds without a byte that count as a break.")
    ] = 30.0,
    pause: Annotated[float, typer.Option(min=0.0, help="Seconds before the second attempt.")] = 1.0,
) -> None:
    """Fetch a public data set; a broken download goes on where it stopped."""
    import anchorinv.datasets.download as remote

    client = remote.HttpClient(remote.RetryPolicy(jobs=jobs, tries=tries, timeout=timeout, pause=pause))
    files = remote.remote_files(name, client.text, client.size, mirror=mirror, only=only)
    n_files, n_bytes, unknown = remote.still_to_come(files, to)
    size = f"{n_bytes / 1e9:.2f} GB" if n_bytes > 1e8 else f"{n_bytes / 1e6:.2f} MB"
    more = f", and {unknown} files of unknown size" if unknown else ""
    terms = remote.REMOTES[name].licence
    say(f"{name}: {n_files} of {len(files)} files to fetch, about {size}{more}; terms: {terms}")
    remote.check_space(to, n_bytes)
    with interruptible("run the same command again to go on from here"), progress_bars():
        notes = remote.download(files, to, client)
    say(
        *notes,
        f"All {len(files)} files are in {to}. Next: anchorinv prepare {name} --raw {to} --out PREPARED",
    )


def data(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Prepared folder.")],
    picture: Annotated[
        Path | None, typer.Option(help="Where to draw (.png, .pdf, .svg); trials.png in DIR if not given.")
    ] = None,
    by_subject: Annotated[
        bool, typer.Option("--by-subject", help="Windows of each class of each subject.")
    ] = False,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Numbers alone.")] = False,
) -> None:
    """Show what is in a prepared folder, and draw a few trials of each class."""
    from anchorinv.datasets.dataset import Dataset
    from anchorinv.datasets.window_files import draw_trials

    opened = Dataset.open(folder)
    show(opened, folder)
    if by_subject:
        _show_subjects(opened)
    if not no_picture:
        path = picture or folder / "trials.png"
        try:
            draw_trials(opened, path)
        except OSError as error:
            raise OSError(f"cannot draw to {path}: {error.strerror}; choose a file with --picture") from None
        say(f"Picture: {path}")


def events(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Recordings: EDF, BDF, GDF, FIF, BrainVision (.vhdr), WFDB (.hea), or an annotator (.atr).",
        ),
    ],
    as_json: Json = False,
) -> None:
    """List the events of recordings: annotations, a BIDS events.tsv beside them, a stimulus channel.

    These are the names that --events takes, such as T1=left,T2=right.
    """
    from anchorinv.errors import as_json as to_json
    from anchorinv.signal.events import find_events

    recorded = [(path, find_events(path)) for path in files]
    if as_json:
        say(*to_json([_event_facts(*each) for each in recorded]).split("\n"))
        return
    for path, each in recorded:
        _show_events(path, each)


def show(data: "Dataset", folder: Path) -> None:
    """Print classes by split and subjects, and what was done to the signals."""
    console = Terminal()
    console.print(_classes(data))
    meta = data.meta
    missing = meta.get("missing", [])
    counts = [f"{count} {name}" for name, count in meta.get("counts", {}).items() if count]
    facts = {
        "set": f"{meta.get('name', '')} ({meta.get('form', 'arrays')})",
        "windows": f"{data.n_times / data.sfreq:g} s, {data.n_times} samples at {data.sfreq:g} Hz",
        "channels": f"{data.n_chans}: {', '.join(data.ch_names[:8])}{' ...' if data.n_chans > 8 else ''}",
        "unit": meta.get("unit", ""),
        "done to it": "; ".join(meta.get("steps", [])),
        "split": meta.get("split", ""),
        "met": ", ".join(counts),
        "from": ", ".join(filter(None, (meta.get("origin"), meta.get("licence")))),
        "accepted": "; ".join(meta.get("accepted", [])),
        "notes": "; ".join(meta.get("notes", [])),
        "missing": "; ".join(missing[:10]) + (f" (and {len(missing) - 10} more)" if missing[10:] else ""),
        "folder": f"{folder} ({data.samples.nbytes / 1e6:.1f} MB)",
    }
    for name, fact in facts.items():
        if fact:
            console.say(f"{name}: {fact}")


def _classes(data: "Dataset") -> Table:
    import numpy as np

    table = Table("class", "train", "test", "subjects", "recordings", title=f"{len(data)} windows")
    for column in table.columns[1:]:
        column.justify = "right"
    for label, name in [*enumerate(data.class_names), (None, "all")]:
        here = np.ones(len(data), dtype=bool) if label is None else data.labels == label
        parts = [here & (data.split == split) for split in ("train", "test")]
        windows = (str(np.count_nonzero(part)) for part in parts)
        people = " + ".join(str(len(np.unique(data.subjects[part]))) for part in parts)
        recordings = "" if data.recordings is None else str(len(np.unique(data.recordings[here])))
        table.add_row(name, *windows, people, recordings)
    return table


def _show_subjects(data: "Dataset") -> None:

    counts = Counter(zip(data.subjects.tolist(), data.labels.tolist(), data.split.tolist(), strict=True))
    table = Table("subject", "class", "train", "test")
    for subject, label in sorted({(subject, label) for subject, label, _ in counts}):
        sides = (str(counts[subject, label, split]) for split in ("train", "test"))
        table.add_row(subject, data.class_names[label], *sides)
    Terminal().print(table)


def _event_facts(path: Path, recorded: "Events") -> dict[str, Any]:
    """Return plain JSON values: a row for each kind of event, by when it first occurs."""
    rows: dict[str, dict[str, Any]] = {}
    for event in recorded.events:
        first = {"count": 0, "first": event.onset, "shortest": event.duration, "longest": 0.0}
        row = rows.setdefault(event.label, {"event": event.label, **first})
        row["count"] += 1
        row["shortest"] = min(row["shortest"], event.duration)
        row["longest"] = max(row["longest"], event.duration)
    counts = {"count": len(recorded.events), "events": list(rows.values())}
    return {"file": str(path), "from": recorded.source, **counts}


def _show_events(path: Path, recorded: "Events") -> None:

    console = Terminal()
    if not recorded.events:
        console.say(
            f"{path} has no events: no annotations, no events.tsv beside it, nothing in a stimulus channel"
        )
        return
    facts = _event_facts(path, recorded)
    console.say(f"{path}: {facts['count']} events, from {recorded.source}")
    table = Table("event", "count", "first at s", "lasts s")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in facts["events"][:_KINDS_SHOWN]:
        label = row["event"] if len(row["event"]) <= _WIDEST else f"{row['event'][: _WIDEST - 4]} ..."
        duration = f"{row['shortest']:g}"
        if row["longest"] != row["shortest"]:
            duration += f"-{row['longest']:g}"
        table.add_row(label, str(row["count"]), f"{row['first']:g}", duration)
    console.print(table)
    if (more := len(facts["events"]) - _KINDS_SHOWN) > 0:
        console.say(f"and {more} other events; --json lists them all")
