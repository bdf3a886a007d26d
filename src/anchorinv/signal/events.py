"""Events of a recording as labels: which of them are wanted, and the stretches that they stand for."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from anchorinv.problems import listed

_LATEST = 1e9  # seconds: thirty years
_ROUNDING = 1e-6  # seconds: times in files are decimal, and the end of a recording is a quotient
_SIGN = re.compile(r"\\?.", re.DOTALL)  # a backslash belongs to what follows it


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened during a recording.

    Parameters
    ----------
    onset : seconds from the first sample; below 0 where it came before.
    duration : seconds; 0 where it has none, or nobody says.
    label : as the file writes it, without blanks around.
    """

    onset: float
    duration: float
    label: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a recording that belongs to a class, in seconds from the first sample."""

    start: float
    stop: float
    label: str


def in_order(path: Path, events: Iterable[Event], *, most: int) -> list[Event]:
    """Return events by their onset; times that are none, and more events than ``most``, are refused."""
    found: list[Event] = []
    for event in events:
        if not (abs(event.onset) < _LATEST and 0 <= event.duration < _LATEST):
            raise ValueError(
                f"{path} has an event {event.label[:80]!r} at {event.onset} s for {event.duration} s, which "
                "no recording can have; is it damaged?"
            )
        if len(found) == most:
            raise ValueError(f"{path} has more than {most} events; is it damaged?")
        found.append(event)
    return sorted(found, key=lambda event: (event.onset, event.label))


def parse_events(text: str) -> dict[str, str]:
    r"""Return the class of each wanted event; a backslash takes the meaning from ``,``, ``=`` and itself.

    Parameters
    ----------
    text : such as "T1=left,T2=right", or "T1,T2" where events are named as classes should be. Several
        events may be of one class.

    Examples
    --------
    >>> parse_events("T1=left, T2=right, rest")
    {'T1': 'left', 'T2': 'right', 'rest': 'rest'}
    >>> parse_events(r"go\=1=go")
    {'go=1': 'go'}
    """
    wanted: dict[str, str] = {}
    for item in _split(text, ","):
        pair = [_plain(part) for part in _split(item, "=")]
        if len(pair) > 2:
            raise ValueError(
                f"--events takes EVENT=CLASS, got {item.strip()!r}; a sign that is part of a name is \\="
            )
        if not all(pair):
            raise ValueError(
                f"--events takes EVENT=CLASS, or EVENT alone, with commas between, got {text!r}; no name may "
                "be empty"
            )
        if pair[0] in wanted:
            raise ValueError(f"--events names {pair[0]!r} twice; give each event one class")
        wanted[pair[0]] = pair[-1]
    return wanted


def _split(text: str, at: str) -> list[str]:
    """Return what stands between signs that no backslash stands before."""
    parts = [""]
    for sign in _SIGN.findall(text):
        if sign == at:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _plain(text: str) -> str:
    return re.sub(r"\\([\\,=])", r"\1", text.strip())


def told_counts(events: Iterable[Event]) -> str:
    """Name the events that there are, the most frequent first.

    Examples
    --------
    >>> told_counts([Event(0, 0, "a"), Event(1, 0, "b"), Event(2, 0, "b")])
    'b (2), a (1)'
    """
    counts = Counter(event.label for event in events)
    return listed([f"{label[:80]} ({n})" for label, n in counts.most_common()])


def check_wanted(events: Sequence[Event], wanted: Mapping[str, str], *, name: str) -> None:
    """Refuse events that do not occur, and tell which do."""
    present = {event.label for event in events}
    if not present:
        raise ValueError(f"{name} has no events; {listed(list(wanted))} asked")
    if missing := [label for label in wanted if label not in present]:
        spelled = {label.casefold(): label for label in present}
        near = [
            spelled[match]
            for label in missing
            for match in get_close_matches(label.casefold(), spelled, n=1, cutoff=0.5)
        ]
        hint = f" (did you mean {listed(list(dict.fromkeys(near)))}?)" if near else ""
        raise ValueError(f"{name} has no event {listed(missing)}{hint}; it has {told_counts(events)}")


def labelled_parts(
    events: Sequence[Event],
    wanted: Mapping[str, str],
    start: float = 0.0,
    stop: float | None = None,
    *,
    name: str,
    length: float,
) -> tuple[list[Stretch], int]:
    """Return a stretch for each wanted event, and how many were left out.

    Parameters
    ----------
    events : of one recording.
    wanted : the class of each event by its label, as from :func:`parse_events`; all must occur.
    start, stop : where a stretch lies, in seconds from the event's onset; ``stop`` None is where the event
        ends by itself.
    name : of the recording, for sentences.
    length : of the recording in seconds; stretches that reach beyond it, or before its start, are left out.

    Examples
    --------
    >>> trials = [Event(1.0, 4.0, "T1"), Event(8.0, 4.0, "T2")]
    >>> labelled_parts(trials, {"T1": "left", "T2": "right"}, 0, 3, name="a.edf", length=10)
    ([Stretch(start=1.0, stop=4.0, label='left')], 1)
    """
    check_wanted(events, wanted, name=name)
    parts, n_outside = stretches(events, wanted, start, stop, name=name, length=length)
    if not parts:
        raise ValueError(
            f"{name} is {length:g} s long, and all {n_outside} stretches {_told(start, stop)} reach beyond "
            "it; choose others with --from and --to"
        )
    return parts, n_outside


def stretches(
    events: Sequence[Event],
    wanted: Mapping[str, str],
    start: float = 0.0,
    stop: float | None = None,
    *,
    name: str,
    length: float,
) -> tuple[list[Stretch], int]:
    """Return what :func:`labelled_parts` does; here, wanted events need not occur: one file of many."""
    check_stretch(start, stop)
    parts, n_outside = [], 0
    for event in events:
        if (label := wanted.get(event.label)) is None:
            continue
        end = event.duration if stop is None else stop
        if end <= start:
            lasts = f"lasts {event.duration:g} s" if event.duration else "has no duration"
            raise ValueError(
                f"{name}: event {event.label!r} at {event.onset:g} s {lasts}, and stretches start {start:g} "
                "s after its onset; say with --to where they end"
            )
        first, last = event.onset + start, event.onset + end
        if first < -_ROUNDING or last > length + _ROUNDING:
            n_outside += 1
        else:
            parts.append(Stretch(max(0.0, first), min(last, length), label))
    return parts, n_outside


def check_stretch(start: float, stop: float | None) -> None:
    """Refuse a stretch that is none."""
    if not math.isfinite(start) or (stop is not None and not start < stop < math.inf):
        raise ValueError(
            f"a stretch lies from --from to --to, in seconds, got {start:g} to {stop}; --to is the later one"
        )


def _told(start: float, stop: float | None) -> str:
    return f"from {start:g} s to {'its end' if stop is None else f'{stop:g} s'} of an event"
