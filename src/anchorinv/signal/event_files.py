"""Read the events of a recording, from wherever its format keeps them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.problems import listed, needed
from anchorinv.signal.event_tables import bare_name, events_beside, read_event_table
from anchorinv.signal.events import Event, in_order
from anchorinv.signal.kinds import ANNOTATORS
from anchorinv.signal.limits import EVENTS, check_rate, reading
from anchorinv.signal.readers import open_mne
from anchorinv.signal.textheaders import check_wfdb

#: Heartbeats of two days; such files are read in Python, a beat at a time.
BEATS = 250_000
_BEAT_BYTES = 2 << 20
_WFDB = frozenset((".hea", ".dat"))
_ARRAYS = (".csv", ".csv.xz", ".csv.gz", ".npy", ".npz")
#: Annotations whose only content is a text: a change of rhythm, a comment.
_TEXTS = frozenset(("+", '"'))
_STIMULUS = re.compile(r"(sti|stim|stimulus|status|trig|trigger)[ _-]*\d*", re.IGNORECASE)
#: Channels that hold the codes of all the others, as mne prefers them.
_COMPOSITE = ("STI101", "STI 101", "STI 014", "STI014")
#: Physical units of a channel that mne took for a voltage: what makes its codes whole again.
_UNITS = {"mv": 1e3, "uv": 1e6, "µv": 1e6, "μv": 1e6, "nv": 1e9}
_CODE_BITS = 0xFFFF  # of a BDF status channel; those above tell of the amplifier
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a recording, by their onset.

    Parameters
    ----------
    source : where they were read from, in words; "" where there are none.
    """

    source: str
    events: tuple[Event, ...]


def read_events(path: Path) -> list[Event]:
    """Return the events of a recording, by their onset; none where it has none."""
    return list(find_events(path).events)


def find_events(path: Path) -> Events:
    """Read the events of a recording, and tell where they stand.

    The first of these that has any: a BIDS table ``*_events.tsv`` beside it, annotations of the file or, for
    WFDB, of an annotator beside it, a stimulus channel.

    Parameters
    ----------
    path : EDF, BDF, GDF, FIF or BrainVision; a WFDB record, or one of its annotators (``100.atr``).
    """
    suffix = path.suffix.lower()
    asked = suffix[1:] in ANNOTATORS
    wfdb = asked or suffix in _WFDB or not suffix
    if not path.is_file() and not (wfdb and not asked and path.with_suffix(".hea").is_file()):
        raise FileNotFoundError(f"there is no recording {path}")
    table = None if asked else events_beside(path)
    if table is not None and (found := read_event_table(table)):
        return Events(table.name, tuple(found))
    if path.name.lower().endswith(_ARRAYS):
        raise ValueError(
            f"{path} is of a format without events; list them in {bare_name(path)}_events.tsv beside it, "
            "with the columns onset, duration and trial_type"
        )
    path = path if suffix else path.with_suffix(".hea")
    with reading(path):
        return _of_wfdb(path) if wfdb else _of_mne(path)


def _of_mne(path: Path) -> Events:
    raw = open_mne(path)
    notes = raw.annotations
    if len(notes):
        if len(notes) > EVENTS:
            raise ValueError(f"{path} has more than {EVENTS} annotations; is it damaged?")
        # mne counts from where the amplifier was started, which a FIF file can be later than.
        onsets = np.asarray(notes.onset, dtype=float) - float(raw.first_time)
        # A marker of one sample is how GDF and BrainVision say that an event has no duration.
        lasting = np.where(notes.duration * raw.info["sfreq"] < 1.5, 0.0, notes.duration)
        times = zip(onsets.tolist(), lasting.tolist(), notes.description, strict=True)
        named = ((onset, duration, str(label).strip(" \t\r\n\0")) for onset, duration, label in times)
        found = in_order(path, (Event(*event) for event in named if event[2]), most=EVENTS)
        if found:
            return Events("annotations", tuple(found))
    channels = _stimulus_channels(raw)
    codes = in_order(path, (event for i in channels for event in _changes(path, raw, i)), most=EVENTS)
    names = listed([raw.ch_names[i] for i in channels])
    return Events(f"stimulus channel {names}" if codes else "", tuple(codes))


def _stimulus_channels(raw: Any) -> list[int]:
    """Return the places of channels that hold codes of events: by their kind, or else by their name."""
    kinds = raw.get_channel_types()
    typed = [i for i, kind in enumerate(kinds) if kind == "stim"]
    whole = [i for name in _COMPOSITE for i in typed if raw.ch_names[i] == name]
    named = [i for i, name in enumerate(raw.ch_names) if _STIMULUS.fullmatch(name.strip())]
    return whole[:1] or typed or named


def _changes(path: Path, raw: Any, channel: int) -> Iterator[Event]:
    """Yield an event wherever a channel takes another value than 0; what it starts with is none.

    As ``mne.find_events`` with ``consecutive=True``, but with a piece of the recording in memory at a time.
    """
    told = str((getattr(raw, "_orig_units", None) or {}).get(raw.ch_names[channel], ""))
    stim = raw.get_channel_types([channel])[0] == "stim"
    factor = 1.0 if stim else _UNITS.get(told.casefold(), 1.0)
    bits = _CODE_BITS if path.suffix.lower() == ".bdf" else -1
    sfreq, before = float(raw.info["sfreq"]), None
    size = max(1, _PIECE // len(raw.ch_names))
    for start in range(0, int(raw.n_times), size):
        values = raw.get_data([channel], start, min(start + size, int(raw.n_times)), verbose="error")[0]
        whole = np.rint(np.clip(np.nan_to_num(values) * factor, -(2.0**40), 2.0**40))
        codes = np.abs(whole.astype(np.int64)) & bits
        changed = np.diff(codes, prepend=codes[0] if before is None else before) != 0
        for i in np.flatnonzero(changed & (codes != 0)).tolist():
            yield Event((start + i) / sfreq, 0.0, str(codes[i]))
        before = codes[-1]


def _of_wfdb(path: Path) -> Events:
    wfdb = needed("wfdb", extra="recordings")
    check_wfdb(path)
    record = path.with_suffix("")
    annotator = _annotator(path)
    if annotator is None:
        return Events("", ())
    if (size := annotator.stat().st_size) > _BEAT_BYTES:
        raise ValueError(f"{path}: {annotator.name} has {size} bytes, and at most {_BEAT_BYTES} are read")
    notes = wfdb.rdann(str(record), annotator.suffix[1:], return_label_elements=["symbol", "label_store"])
    sfreq = check_rate(path, float(notes.fs or 0.0))  # that of the annotator, or of the header
    rows = zip(notes.sample.tolist(), notes.symbol, notes.label_store.tolist(), notes.aux_note, strict=True)
    events = (Event(sample / sfreq, 0.0, _beat(*what)) for sample, *what in rows)
    return Events(annotator.name, tuple(in_order(path, events, most=BEATS)))


def _beat(symbol: object, code: int, note: str | None) -> str:
    """Return the symbol of an annotation, its text where that says more, its code where it has no symbol."""
    sign = symbol.strip() if isinstance(symbol, str) else ""
    words = (note or "").strip(" \t\r\n\0")
    return (words if sign in _TEXTS else "") or sign or str(code)


def _annotator(path: Path) -> Path | None:
    """Return the file of annotations: the one that was asked for, the reference, or the only one."""
    if path.suffix[1:].lower() in ANNOTATORS:
        return path
    beside = (path.with_suffix(f".{name}") for name in ANNOTATORS)
    found = [file for file in beside if file.is_file()]
    if len(found) > 1 and found[0].suffix != ".atr":
        raise ValueError(
            f"{path} has several files of annotations, {listed([file.name for file in found])}; hand in one "
            "of them instead"
        )
    return found[0] if found else None
