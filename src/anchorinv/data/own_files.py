"""A user's file with its labelled parts, before and after filtering."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.data.dataset import SPLITS
from anchorinv.data.manifest import Entry
from anchorinv.signal.channels import find_channel, pick_channels, renamed
from anchorinv.signal.filters import Filter
from anchorinv.signal.limits import ROWS, check_claim, check_reach, check_size
from anchorinv.signal.npzfiles import StoredArray, load_array, stored_arrays, told_rate
from anchorinv.signal.preprocessing import Preprocessing
from anchorinv.signal.readers import open_recording
from anchorinv.signal.recordings import inputs_of
from anchorinv.signal.stages import resampled_length


@dataclass(frozen=True, slots=True)
class Options:
    """What to do with own recordings.

    Parameters
    ----------
    channels : names to keep, in this order; None keeps all.
    band : filter; None for none.
    resample, sfreq : rate to bring all to, and the rate of files that do not say theirs, in Hz.
    window : seconds; None takes each row of the table as one window.
    overlap : share of a window that the next one repeats.
    at_least : training windows that a class needs.
    allow : kinds of problems to let pass.
    seed : of the split where the table gives none.
    reference : as in `Preprocessing`.
    rename : names of channels in files, and what they are to be called.
    """

    channels: tuple[str, ...] | None = None
    band: Filter | None = None
    resample: float | None = None
    sfreq: float | None = None
    window: float | None = None
    overlap: float = 0.0
    at_least: int = 10
    allow: frozenset[str] = frozenset()
    seed: int | None = None
    reference: str | None = None
    rename: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("resample", "sfreq", "window"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ValueError(f"--{name} is a number above 0, got {value:g}")
        if not 0 <= self.overlap < 1:
            raise ValueError(f"--overlap is a share from 0 to below 1, got {self.overlap:g}")
        if self.overlap and self.window is None:
            raise ValueError("--overlap is of windows that --window cuts; say how long they are")

    def preprocessing(self, ch_names: Sequence[str], *, volts: bool, sfreq: float) -> Preprocessing:
        """Return what is done to files with these channels; voltages are prepared in µV."""
        apart = find_channel(self.reference, ch_names) if self.reference else None
        names = self.channels or tuple(name for i, name in enumerate(ch_names) if i != apart)
        unit = "µV" if volts else None
        return Preprocessing(names, unit, self.band, reference=self.reference, sfreq=self.resample or sfreq)


@dataclass(frozen=True, slots=True)
class Part:
    """A labelled stretch of a file, in samples of the rate it will have."""

    first: int
    length: int
    label: str
    subject: str
    session: str
    split: str


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """A file as it is, and the parts of it that are to be used.

    Parameters
    ----------
    signals : (n_inputs, n_samples) as the preprocessing takes them, missing samples as NaN.
    names, units : of its rows.
    how : what is to be done to it.
    sfreq : samples per second that it has.
    trial : samples of a trial, where the file holds separate trials one after the other; 0 where it is one
        continuous recording.
    wrong : what is wrong with its parts.
    """

    signals: npt.NDArray[np.float64]
    names: tuple[str, ...]
    units: tuple[str, ...]
    how: Preprocessing
    sfreq: float
    trial: int
    parts: Sequence[Part]
    wrong: Sequence[str] = ()

    @property
    def rate(self) -> float:
        """Samples per second that it will have."""
        return self.how.sfreq or self.sfreq


def open_material(entries: Sequence[Entry], options: Options) -> Material:
    """Read the file that some rows of a table speak of."""
    path = entries[0].path
    if path.suffix.lower() == ".npz":
        return _open_trials(entries, options)
    recording = open_recording(path).renamed(options.rename)
    sfreq = _rate(recording.sfreq, path, options)
    how = options.preprocessing(recording.ch_names, volts="V" in recording.units, sfreq=sfreq)
    taken = inputs_of(recording, how)
    rate = how.sfreq or sfreq
    available = resampled_length(recording.n_times, sfreq, rate)
    check_size(path, len(taken.channels), available)
    parts, wrong = [], []
    for entry in entries:
        start = entry.start or 0.0
        first = round(start * rate)
        stop = available if entry.stop is None else first + round((entry.stop - start) * rate)
        if stop > available or stop <= first:
            wrong.append(
                f"line {entry.line}: {entry.name} is {recording.n_times / sfreq:g} s long, "
                f"{start:g} to {'its end' if entry.stop is None else f'{entry.stop:g} s'} asked"
            )
        else:
            parts.append(Part(first, stop - first, entry.label, entry.subject, entry.session, entry.split))
    signals = recording.load(taken.channels)
    signals *= taken.factors
    names = tuple(recording.ch_names[i] for i in taken.channels)
    units = tuple("µV" if recording.units[i] == "V" else recording.units[i] for i in taken.channels)
    return Material(signals, names, units, how, sfreq, 0, parts, wrong)


def _rate(told: float | None, path: Path, options: Options) -> float:
    """Return the rate of a file, its own before the user's."""
    if told is not None and options.sfreq is not None and told != options.sfreq:
        raise ValueError(f"{path} says {told:g} Hz, --sfreq {options.sfreq:g} Hz; leave the option out")
    sfreq = options.sfreq if told is None else told
    if sfreq is None:
        raise ValueError(f"{path} does not say its rate; give it with --sfreq")
    if options.band is not None:
        try:
            options.band.sections(sfreq)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return sfreq


def _open_trials(entries: Sequence[Entry], options: Options) -> Material:
    """Read ``X`` (n, channels, times), ``y`` and whatever else an .npz file says about its trials."""
    entry, path = entries[0], entries[0].path
    if len(entries) > 1 or entry.start is not None or entry.stop is not None:
        raise ValueError(f"{path} holds trials already cut: list it once, without start and stop")
    arrays = stored_arrays(path, _KEYS)
    signals = _signals(path, arrays)
    inside = {name: load_array(array) for name, array in arrays.items() if name != "X"}
    n, n_chans, n_times = signals.shape
    present = renamed(_names(path, inside, n_chans), options.rename, source=str(path))
    sfreq = _rate(told_rate(path, inside.get("sfreq")), path, options)
    how = options.preprocessing(present, volts=False, sfreq=sfreq)
    assert how.inputs is not None
    picks = pick_channels(how.inputs, present, source=str(path))
    rate = how.sfreq or sfreq
    told = {"label": entry.label, "subject": entry.subject, "session": entry.session, "split": entry.split}
    columns = {name: _column(path, inside, key, n, told[name]) for name, key in _COLUMNS.items()}
    if not all(columns["label"]):
        raise ValueError(f"{path} has no y, one label per trial; add it, or give a label in the table")
    if unknown := sorted(set(columns["split"]) - {*SPLITS, ""}):
        raise ValueError(f"{path}: split {unknown[0]!r} is neither 'train' nor 'test'")
    length = resampled_length(n_times, sfreq, rate)
    check_size(path, len(picks), n * length, in_one=False)
    flat = _flat(signals, picks)
    check_reach(path, flat)
    parts = [
        Part(i * length, length, *(columns[key][i] for key in ("label", "subject", "session", "split")))
        for i in range(n)
    ]
    how = replace(how, by_trial=how.filter is not None or rate != sfreq)
    return Material(flat, tuple(present[i] for i in picks), ("",) * len(picks), how, sfreq, n_times, parts)


_COLUMNS = {"label": "y", "subject": "subject", "session": "session", "split": "split"}
_KEYS = {"X", "sfreq", "ch_names", *_COLUMNS.values()}


def _signals(path: Path, arrays: dict[str, StoredArray]) -> StoredArray:
    if "X" not in arrays:
        raise ValueError(f"{path} has no X, the signals (n, channels, times); save them under this name")
    found = arrays["X"]
    if 0 in found.shape:
        raise ValueError(f"{path}: X has no values, its shape is {found.shape}")
    if len(found.shape) != 3 or found.dtype.kind not in "fiu":
        raise ValueError(f"{path}: X is {found.dtype} {found.shape}; numbers (n, channels, times) are wanted")
    check_claim(path, found.shape[1], 0)
    check_size(path, 1, math.prod(found.shape), in_one=False)
    if found.shape[0] > ROWS:
        raise ValueError(f"{path}: X has {found.shape[0]} trials, and at most a million are read")
    return found


def _flat(signals: StoredArray, picks: list[int]) -> npt.NDArray[np.float64]:
    """Return all trials one after the other (channels, n · times), without a second copy on the way."""
    n, _, n_times = signals.shape
    flat, at = np.empty((len(picks), n * n_times)), 0
    for block in signals.blocks(max(1, (1 << 22) // math.prod(signals.shape[1:]))):
        stop = at + len(block) * n_times
        flat[:, at:stop] = block[:, picks].transpose(1, 0, 2).reshape(len(picks), -1)
        at = stop
    return flat


def _names(path: Path, inside: dict[str, npt.NDArray[Any]], n_chans: int) -> tuple[str, ...]:
    names = tuple(map(str, np.ravel(inside["ch_names"]))) if "ch_names" in inside else ()
    if names and len(names) != n_chans:
        raise ValueError(f"{path}: X has {n_chans} channels but ch_names {len(names)} names")
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: ch_names are not distinct: {', '.join(names)}; name each channel once")
    return names or tuple(f"ch{i}" for i in range(1, n_chans + 1))


def _column(path: Path, inside: dict[str, npt.NDArray[Any]], key: str, n: int, told: str) -> list[str]:
    """Return what the table says for all trials, or what the file says for each."""
    if told or key not in inside:
        return [told] * n
    values = np.ravel(inside[key])
    if len(values) == 1:
        values = np.repeat(values, n)
    if len(values) != n:
        raise ValueError(f"{path}: X has {n} trials but {key} {len(values)} values; one per trial is wanted")
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise ValueError(f"{path}: {key} has NaN; one value per trial is wanted")
    if values.dtype.kind == "f" and (values == np.round(values)).all():
        values = values.astype(np.int64)
    return [str(value) for value in values.tolist()]


def with_splits(parts: Sequence[Part], splits: Sequence[str]) -> list[Part]:
    """Return the parts with the side that each was given."""
    return [replace(part, split=str(side)) for part, side in zip(parts, splits, strict=True)]
