"""Events of a recording, from its file or its BIDS table, and the segments that they label."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.errors import import_extra, listed
from anchorinv.files import missing
from anchorinv.signal import headers
from anchorinv.signal.arrays import Table, read_table
from anchorinv.signal.preprocessing import UNITS, unit_of
from anchorinv.signal.readers import PIECE, open_mne, original_unit

MAX_SECONDS = 1e9  # thirty years
_ROUNDING = 1e-6  # seconds: times in files are decimal, and the end of a recording is a quotient
_CHARACTER = re.compile(r"\\?.", re.DOTALL)  # a backslash escapes the next one
#: Suffixes of recordings that names of BIDS tables do not have.
_DATATYPES = frozenset(("eeg", "emg", "ieeg", "meg", "ecg", "physio", "raw"))
_MISSING = ("", "n/a")
_COLUMNS = ("onset", "duration", "trial_type", "value")
_MAX_WFDB_BYTES = 2 << 20  # of annotations, which wfdb reads in Python, a beat at a time
#: Annotations whose only content is a text: a change of rhythm, a comment.
_TEXTS = frozenset(("+", '"'))
_STIMULUS = re.compile(r"(sti|stim|stimulus|status|trig|trigger)[ _-]*\d*", re.IGNORECASE)
#: Channels that hold the codes of all the others, as mne prefers them.
_COMPOSITE = ("STI101", "STI 101", "STI 014", "STI014")
_CODE_BITS = 0xFFFF  # bits of a BDF status channel; higher ones describe the amplifier


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened during a recording.

    Parameters
    ----------
    onset : float
        Seconds from the first sample; below 0 where it came before.
    duration : float
        Seconds; 0 where it has none, or it is unknown.
    label : str
        As in the file, without surrounding spaces.

    Examples
    --------
    >>> Event(onset=4.2, duration=4.1, label="T2").label
    'T2'
    """

    onset: float
    duration: float
    label: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a recording, in seconds from its first sample, that belongs to a class."""

    start: float
    stop: float
    label: str


def sort_events(path: Path, events: Iterable[Event], *, most: int) -> list[Event]:
    """Sort events by onset; invalid times, and more events than ``most``, are refused."""
    checked: list[Event] = []
    for event in events:
        if not (abs(event.onset) < MAX_SECONDS and 0 <= event.duration < MAX_SECONDS):
            when = f"at {event.onset} s for {event.duration} s, which is impossible"
            raise ValueError(f"{path} has an event {event.label[:80]!r} {when}; is it damaged?")
        if len(checked) == most:
            raise ValueError(f"{path} has more than {most} events; is it damaged?")
        checked.append(event)
    return sorted(checked, key=lambda event: (event.onset, event.label))


def parse_events(text: str) -> dict[str, str]:
    r"""Parse EVENT=CLASS pairs; a backslash escapes ``,``, ``=`` and itself.

    Parameters
    ----------
    text : str
        Such as "T1=left,T2=right", or "T1,T2" where classes have the events' names. Several events may have
        the same class.

    Returns
    -------
    dict of str to str
        The class by the label of the event.

    Examples
    --------
    >>> parse_events("T1=left, T2=right, rest")
    {'T1': 'left', 'T2': 'right', 'rest': 'rest'}
    >>> parse_events(r"go\=1=go")
    {'go=1': 'go'}
    """
    classes: dict[str, str] = {}
    for item in _split(text, ","):
        pair = [_unescape(part) for part in _split(item, "=")]
        if len(pair) > 2:
            raise ValueError(f"--events takes EVENT=CLASS, got {item.strip()!r}; part of a name is \\=")
        if not all(pair):
            form = "EVENT=CLASS, or EVENT alone, with commas between"
            raise ValueError(f"--events takes {form}, got {text!r}; no name may be empty")
        if pair[0] in classes:
            raise ValueError(f"--events names {pair[0]!r} twice; give each event one class")
        classes[pair[0]] = pair[-1]
    return classes


def _split(text: str, at: str) -> list[str]:
    """Split at characters that are not escaped."""
    parts = [""]
    for character in _CHARACTER.findall(text):
        if character == at:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _unescape(text: str) -> str:
    return re.sub(r"\\([\\,=])", r"\1", text.strip())


def check_wanted(events: Sequence[Event], wanted: Mapping[str, str], *, name: str) -> None:
    """Refuse events that do not occur; the message lists those that do, most frequent first."""
    present = {event.label for event in events}
    if not present:
        raise ValueError(f"{name} has no events; {listed(list(wanted))} asked")
    if missing := [label for label in wanted if label not in present]:
        folded = {label.casefold(): label for label in present}
        matches = [get_close_matches(label.casefold(), folded, n=1, cutoff=0.5) for label in missing]
        similar = dict.fromkeys(folded[match] for (match,) in filter(None, matches))
        hint = f" (did you mean {listed(list(similar))}?)" if similar else ""
        counts = Counter(event.label for event in events).most_common()
        occurring = listed([f"{label[:80]} ({n})" for label, n in counts])
        raise ValueError(f"{name} has no event {listed(missing)}{hint}; it has {occurring}")


def labelled_parts(
    events: Sequence[Event],
    wanted: Mapping[str, str],
    start: float = 0.0,
    stop: float | None = None,
    *,
    name: str,
    length: float,
) -> tuple[list[Segment], int]:
    """Return a segment for each wanted event, and how many were left out.

    Parameters
    ----------
    events : sequence of Event
        Of one recording.
    wanted : mapping of str to str
        The class of each event by its label, as from :func:`parse_events`; all must occur.
    start : float, default=0.0
        Where a segment starts, in seconds from the event's onset.
    stop : float or None, default=None
        Where it ends; None is where the event ends by itself.
    name : str
        Of the recording, for messages.
    length : float
        Of the recording in seconds; segments that reach beyond it, or before its start, are left out.

    Returns
    -------
    parts : list of Segment
    n_outside : int

    Examples
    --------
    >>> trials = [Event(1.0, 4.0, "T1"), Event(8.0, 4.0, "T2")]
    >>> labelled_parts(trials, {"T1": "left", "T2": "right"}, 0, 3, name="a.edf", length=10)
    ([Segment(start=1.0, stop=4.0, label='left')], 1)
    """
    check_wanted(events, wanted, name=name)
    parts, n_outside = segments_of(events, wanted, start, stop, name=name, length=length)
    if not parts:
        interval = f"{start:g} s to {'its end' if stop is None else f'{stop:g} s'} of an event"
        beyond = f"all {n_outside} segments from {interval} reach beyond it"
        raise ValueError(f"{name} is {length:g} s long, and {beyond}; choose others with --from and --to")
    return parts, n_outside


def segments_of(
    events: Sequence[Event],
    wanted: Mapping[str, str],
    start: float,
    stop: float | None,
    *,
    name: str,
    length: float,
) -> tuple[list[Segment], int]:
    """As :func:`labelled_parts`, for one file of many: events need not occur in it."""
    check_interval(start, stop)
    parts, n_outside = [], 0
    for event in events:
        if event.label not in wanted:
            continue
        end = event.duration if stop is None else stop
        if end <= start:
            lasts = f"lasts {event.duration:g} s" if event.duration else "has no duration"
            starts = f"segments start {start:g} s after its onset; say with --to where they end"
            raise ValueError(f"{name}: event {event.label!r} at {event.onset:g} s {lasts}, and {starts}")
        first, last = event.onset + start, event.onset + end
        if first < -_ROUNDING or last > length + _ROUNDING:
            n_outside += 1
        else:
            parts.append(Segment(max(0.0, first), min(last, length), wanted[event.label]))
    return parts, n_outside


def check_interval(start: float, stop: float | None) -> None:
    """Refuse a segment that does not start before it stops."""
    if not math.isfinite(start) or (stop is not None and not start < stop < math.inf):
        raise ValueError(f"a segment is from --from to --to, the later, in seconds, got {start:g} to {stop}")


def events_beside(path: Path) -> Path | None:
    """Return the table beside a recording: ``s1_events.tsv`` of ``s1_eeg.edf``, or of ``s1.csv``; or None."""
    name = without_suffix(path)
    start, _, datatype = name.rpartition("_")
    stems = (start, name) if datatype in _DATATYPES else (name,)
    return next(filter(Path.is_file, (path.parent / f"{stem}_events.tsv" for stem in stems)), None)


def without_suffix(path: Path) -> str:
    """Return a file's name without its suffix."""
    return Path(re.sub(r"\.(gz|xz)$", "", path.name, flags=re.IGNORECASE)).stem


def read_event_table(path: Path) -> list[Event]:
    """Return the events of a table by their onset; rows that name none are left out.

    An event is named by ``trial_type``, or by ``value`` where that column is missing or empty.
    """
    with headers.reading(path):
        table = read_table(path, _COLUMNS, delimiters="\t")
        if "onset" not in table.columns:
            raise ValueError(f"{path} has no column onset; its first line names {listed(table.names)}")
        labels = _labels(path, table)
        durations = table.columns.get("duration", ["n/a"] * len(labels))
        rows = zip(table.lines, table.columns["onset"], durations, labels, strict=True)
        events = []
        for line, onset, duration, label in rows:
            if not _missing(label):
                start = _seconds(path, line, "onset", onset)
                lasts = 0.0 if _missing(duration) else _seconds(path, line, "duration", duration)
                events.append(Event(start, lasts, label))
        return sort_events(path, events, most=headers.MAX_BEATS)


def _labels(path: Path, table: Table) -> list[str]:
    for name in ("trial_type", "value"):
        labels = [label.strip() for label in table.columns.get(name, ())]
        if not all(map(_missing, labels)):
            return labels
    if table.lines and not {"trial_type", "value"} & table.columns.keys():
        columns = f"its first line names {listed(table.names)}"
        raise ValueError(f"{path} has neither a column trial_type nor value to name its events; {columns}")
    return ["n/a"] * len(table.lines)


def _missing(cell: str) -> bool:
    return cell.strip().casefold() in _MISSING


def _seconds(path: Path, line: int, name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{path}, line {line}: {name} is a number of seconds, got {text[:80]!r}") from None


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a recording by onset, and a description of their source; "" if there is none."""

    source: str
    events: tuple[Event, ...]


def read_events(path: Path) -> list[Event]:
    """Return the events of a recording, by onset.

    Parameters
    ----------
    path : Path
        EDF, BDF, GDF, FIF or BrainVision; a WFDB record, or one of its annotators (``100.atr``).
    """
    return list(find_events(path).events)


def find_events(path: Path) -> Events:
    """Read the events of a recording from the first of these places that has any.

    A BIDS table ``*_events.tsv`` beside it; annotations of the file or, for WFDB, of an annotator beside it;
    a stimulus channel.
    """
    suffix = path.suffix.lower()
    is_annotator = suffix[1:] in headers.ANNOTATORS
    is_wfdb = is_annotator or suffix in headers.WFDB or not suffix
    if not path.is_file() and not (is_wfdb and not is_annotator and path.with_suffix(".hea").is_file()):
        raise missing(path, "recording")
    table = None if is_annotator else events_beside(path)
    if table is not None and (events := read_event_table(table)):
        return Events(table.name, tuple(events))
    if headers.has_suffix(path, *headers.TABLES, *headers.WINDOWS):
        table_of = f"{without_suffix(path)}_events.tsv beside it (onset, duration, trial_type)"
        raise ValueError(f"{path} is of a format without events; list them in {table_of}")
    path = path if suffix else path.with_suffix(".hea")
    with headers.reading(path):
        return _wfdb_events(path) if is_wfdb else _mne_events(path)


def _mne_events(path: Path) -> Events:
    raw = open_mne(path)
    notes = raw.annotations
    if len(notes):
        if len(notes) > headers.MAX_EVENTS:
            raise ValueError(f"{path} has more than {headers.MAX_EVENTS} annotations; is it damaged?")
        # mne counts from the start of the amplifier, which may precede a FIF file.
        onsets = np.asarray(notes.onset, dtype=float) - float(raw.first_time)
        # In GDF and BrainVision, a marker of one sample is an event without duration.
        durations = np.where(notes.duration * raw.info["sfreq"] < 1.5, 0.0, notes.duration)
        labels = [str(label).strip(" \t\r\n\0") for label in notes.description]
        rows = zip(onsets.tolist(), durations.tolist(), labels, strict=True)
        if events := sort_events(path, (Event(*row) for row in rows if row[2]), most=headers.MAX_EVENTS):
            return Events("annotations", tuple(events))
    channels = _stimulus_channels(raw)
    changes = (event for i in channels for event in _changes(path, raw, i))
    events = sort_events(path, changes, most=headers.MAX_EVENTS)
    names = listed([raw.ch_names[i] for i in channels])
    return Events(f"stimulus channel {names}" if events else "", tuple(events))


def _stimulus_channels(raw: Any) -> list[int]:
    """Return the indices of stimulus channels: by type, or else by name."""
    by_type = [i for i, kind in enumerate(raw.get_channel_types()) if kind == "stim"]
    composite = [i for name in _COMPOSITE for i in by_type if raw.ch_names[i] == name]
    by_name = [i for i, name in enumerate(raw.ch_names) if _STIMULUS.fullmatch(name.strip())]
    return composite[:1] or by_type or by_name


def _changes(path: Path, raw: Any, channel: int) -> Iterator[Event]:
    """Yield an event wherever a channel changes to a value other than 0; its initial value is ignored.

    As ``mne.find_events`` with ``consecutive=True``, but chunk by chunk.
    """
    stim = raw.get_channel_types([channel])[0] == "stim"
    # mne may have scaled the channel like a voltage: restore whole codes.
    factor = 1.0 if stim else UNITS[unit_of(original_unit(raw, channel) or "") or "V"]
    bits = _CODE_BITS if path.suffix.lower() == ".bdf" else -1
    sfreq, last = float(raw.info["sfreq"]), None
    size = max(1, PIECE // len(raw.ch_names))
    for start in range(0, int(raw.n_times), size):
        values = raw.get_data([channel], start, min(start + size, int(raw.n_times)), verbose="error")[0]
        rounded = np.rint(np.clip(np.nan_to_num(values) * factor, -(2.0**40), 2.0**40))
        codes = np.abs(rounded.astype(np.int64)) & bits
        changed = np.diff(codes, prepend=codes[0] if last is None else last) != 0
        for i in np.flatnonzero(changed & (codes != 0)).tolist():
            yield Event((start + i) / sfreq, 0.0, str(codes[i]))
        last = codes[-1]


def _wfdb_events(path: Path) -> Events:
    wfdb = import_extra("wfdb", extra="recordings")
    headers.check_wfdb(path)
    annotator = _annotator(path)
    if annotator is None:
        return Events("", ())
    if (size := annotator.stat().st_size) > _MAX_WFDB_BYTES:
        raise ValueError(f"{path}: {annotator.name} has {size} bytes, and at most {_MAX_WFDB_BYTES} are read")
    record, elements = str(path.with_suffix("")), ["symbol", "label_store"]
    notes = wfdb.rdann(record, annotator.suffix[1:], return_label_elements=elements)
    sfreq = headers.check_rate(path, float(notes.fs or 0.0))  # that of the annotator, or of the header
    rows = zip(notes.sample.tolist(), notes.symbol, notes.label_store.tolist(), notes.aux_note, strict=True)
    events = (Event(sample / sfreq, 0.0, _annotation(*label)) for sample, *label in rows)
    return Events(annotator.name, tuple(sort_events(path, events, most=headers.MAX_BEATS)))


def _annotation(symbol: object, code: int, note: str | None) -> str:
    """Return the text of an annotation if more informative than its symbol; the code if it has none."""
    label = symbol.strip() if isinstance(symbol, str) else ""
    text = (note or "").strip(" \t\r\n\0")
    return (text if label in _TEXTS else "") or label or str(code)


def _annotator(path: Path) -> Path | None:
    """Return the file of annotations: the path itself, the reference, or the only one."""
    if path.suffix[1:].lower() in headers.ANNOTATORS:
        return path
    candidates = (path.with_suffix(f".{name}") for name in headers.ANNOTATORS)
    files = [file for file in candidates if file.is_file()]
    if len(files) > 1 and files[0].suffix != ".atr":
        names = listed([file.name for file in files])
        raise ValueError(f"{path} has several files of annotations, {names}; name one of them instead")
    return files[0] if files else None
