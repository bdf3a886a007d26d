"""Rows of a table from events: a file whose label nobody gave has those of its own events."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anchorinv.core.progress import tick
from anchorinv.data.manifest import Entry
from anchorinv.data.windowed import is_windowed
from anchorinv.signal.event_files import read_events
from anchorinv.signal.events import Event, Stretch, check_stretch, check_wanted, parse_events, stretches
from anchorinv.signal.readers import open_recording


@dataclass(frozen=True, slots=True)
class Labelling:
    """Which events stand for which class, and where a stretch lies.

    Parameters
    ----------
    wanted : the class of each event by its name in the file.
    start, stop : in seconds from the event's onset; ``stop`` None is where the event ends by itself.
    """

    wanted: dict[str, str]
    start: float = 0.0
    stop: float | None = None

    def __post_init__(self) -> None:
        check_stretch(self.start, self.stop)

    @classmethod
    def parse(cls, texts: Sequence[str], start: float, stop: float | None) -> "Labelling":
        """Read "T1=left,T2=right", once or several times."""
        return cls(parse_events(",".join(texts)), start, stop)


def rows_of_events(
    entries: Sequence[Entry], how: Labelling, *, sfreq: float | None = None
) -> tuple[list[Entry], list[str]]:
    """Return a row for each wanted event of some files, and a sentence for each file that fails.

    A row that says start and stop takes the events whose stretches lie between. An event must occur in one of
    the files, not in each. ``sfreq`` is the rate of files that do not say theirs.
    """
    rows: list[Entry] = []
    every: list[Event] = []
    problems: list[str] = []
    n_outside = 0
    for i, entry in enumerate(entries):
        tick("looking at events", i, len(entries))
        try:
            if is_windowed(entry.path):
                raise ValueError(
                    f"{entry.path} holds windows, and --events are of recordings; leave them out"
                )
            recording = open_recording(entry.path)
            rate = recording.sfreq or sfreq
            if rate is None:
                raise ValueError(f"{entry.path} does not say its rate; give it with --sfreq")
            seconds = recording.n_times / rate
            events = read_events(entry.path)
            found, beyond = stretches(
                events, how.wanted, how.start, how.stop, name=entry.name, length=seconds
            )
        except (ValueError, OSError) as error:
            problems.append(str(error))
            continue
        every, n_outside = every + events, n_outside + beyond
        rows += [
            replace(entry, label=each.label, start=each.start, stop=each.stop)
            for each in found
            if _within(each, entry)
        ]
    tick("looking at events", len(entries), len(entries))
    if not problems:
        check_wanted(every, how.wanted, name=entries[0].name if len(entries) == 1 else "the recordings")
        if not rows:
            problems.append("no stretch of a wanted event lies within its recording; choose --from and --to")
    if n_outside and rows:
        warnings.warn(
            f"{n_outside} of {len(rows) + n_outside} stretches reach beyond their recording and are left out",
            UserWarning,
            stacklevel=2,
        )
    return rows, problems


def _within(stretch: Stretch, entry: Entry) -> bool:
    return (entry.start or 0.0) <= stretch.start and (entry.stop is None or stretch.stop <= entry.stop)
