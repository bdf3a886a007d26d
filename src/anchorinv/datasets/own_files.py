"""Own recordings: reading a user's table, and the files in its rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from os.path import isfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.datasets.dataset import SPLITS
from anchorinv.errors import listed
from anchorinv.signal.arrays import StoredArray, load_array, open_arrays, read_sfreq, read_table
from anchorinv.signal.limits import FILES, ROWS, check_claim, check_reach, check_size
from anchorinv.signal.pipeline import resampled_length
from anchorinv.signal.preprocessing import Filter, Preprocessing
from anchorinv.signal.readers import (
    FORMATS,
    find_channel,
    open_recording,
    pick_channels,
    renamed,
    select_inputs,
)

COLUMNS = ("path", "label", "subject", "session", "split", "start", "stop")
_LATEST = 1e9  # seconds: thirty years
#: Arrays of an .npz file by the facts of its trials.
_TRIAL_ARRAYS = {"label": "y", "subject": "subject", "session": "session", "split": "split"}
_ARRAYS = {"X", "sfreq", "ch_names", *_TRIAL_ARRAYS.values()}


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """A recording, or a segment of one in seconds, as a table lists it or as an event marks it."""

    line: int
    name: str  # as the table writes it
    path: Path
    label: str = ""
    subject: str = ""
    session: str = ""
    split: str = ""
    start: float | None = None
    stop: float | None = None


def read_manifest(path: Path, *, labelled: bool = True) -> tuple[list[ManifestRow], list[str]]:
    """Return the valid rows of a table of recordings, and a message for each invalid one.

    Each row must have a label; if not ``labelled``, none, as the events of its file will be its labels.
    """
    if not path.is_file():
        raise ValueError(
            f"{path} does not exist; a manifest is a table with the columns {', '.join(COLUMNS)}"
        )
    table = read_table(path, COLUMNS, delimiters=",;\t")
    needed = ("path", "label") if labelled else ("path",)
    if absent := [name for name in needed if name not in table.columns]:
        raise ValueError(f"{path} has no column {listed(absent)}; its first line names {listed(table.names)}")
    problems = []
    for name in sorted(set(table.names) - set(COLUMNS)):
        if near := get_close_matches(name[:40], set(COLUMNS) - set(table.names), n=1):
            problems.append(f"column {name!r} is unknown; did you mean {near[0]!r}?")
    rows = []
    for line, *values in zip(table.lines, *table.columns.values(), strict=True):
        cells = {name: cell.strip() for name, cell in zip(table.columns, values, strict=True)}
        if any(cells.values()):
            row, faults = _parse_row(cells, line, path.parent, labelled=labelled)
            problems += [f"line {line}: {sentence}" for sentence in faults]
            rows += [row] if not faults else []
    if not rows and not problems:
        problems.append("the table has no rows; list a recording in each")
    without = [row.line for row in rows if not row.split]
    if without and len(without) < len(rows):
        problems.append(
            f"split is given in some rows and not in lines {listed(without)}; give it in all or none"
        )
    return rows, problems


def _parse_row(
    cells: dict[str, str], line: int, folder: Path, *, labelled: bool
) -> tuple[ManifestRow, list[str]]:
    """Return a row, and its problems."""
    faults = []
    name, label = cells["path"], cells.get("label", "")
    path = folder / name
    if not name:
        faults.append("path is empty; name a file")
    elif not {path.suffix.lower(), "".join(path.suffixes[-2:]).lower()} & FORMATS:
        faults.append(f"{name} has an unknown format; known formats: {FILES}")
    elif not isfile(path):  # noqa: PTH113 (Path.is_file fails on too long a name)
        faults.append(f"{name} does not exist (looked for {path})")
    if labelled and not label and path.suffix.lower() != ".npz":
        faults.append(f"{name} has no label; give one, or name its events with --events")
    if not labelled and label:
        faults.append(f"{name} has a label, and --events takes labels from events; leave one out")
    split = cells.get("split", "").casefold()
    if split and split not in SPLITS:
        faults.append(f"split must be train or test, got {cells['split']!r}")
    times: dict[str, float | None] = {"start": None, "stop": None}
    for key in times:
        if text := cells.get(key, ""):
            try:
                times[key] = float(text)
            except ValueError:
                faults.append(f"{key} must be a number of seconds, got {text!r}")
    start, stop = times["start"] or 0.0, times["stop"]
    if not 0 <= start < _LATEST or (stop is not None and not start < stop < _LATEST):
        faults.append(f"start must be at least 0 and before stop, got {start:g} to {stop} s")
    subject, session = cells.get("subject", ""), cells.get("session", "")
    return ManifestRow(line, name, path, label, subject, session, split, times["start"], stop), faults


@dataclass(frozen=True, slots=True)
class OwnOptions:
    """Options for preparing own recordings.

    Examples
    --------
    >>> OwnOptions(window=2.0, overlap=0.5, resample=128.0).preprocessing(["C3", "C4"], sfreq=250).sfreq
    128.0
    """

    channels: tuple[str, ...] | None = None  # to keep, in this order; None keeps all
    band: Filter | None = None
    resample: float | None = None  # to this rate in Hz; None keeps that of the files
    sfreq: float | None = None  # of files that do not state it
    window: float | None = None  # seconds; None takes each row of the table as one window
    overlap: float = 0.0  # overlap of consecutive windows, as a fraction
    at_least: int = 10  # minimum number of training windows per class
    allow: frozenset[str] = frozenset()  # kinds of problems to accept
    seed: int | None = None  # of the split where the table gives none
    reference: str | None = None  # as in `Preprocessing`
    rename: dict[str, str] = field(default_factory=dict)  # renamings of channels

    def __post_init__(self) -> None:
        for name in ("resample", "sfreq", "window"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ValueError(f"--{name} must be a number above 0, got {value:g}")
        if not 0 <= self.overlap < 1:
            raise ValueError(f"--overlap must be a share from 0 to below 1, got {self.overlap:g}")
        if self.overlap and self.window is None:
            raise ValueError("--overlap needs --window, the length of windows")

    def preprocessing(self, ch_names: Sequence[str], *, volts: bool = False, sfreq: float) -> Preprocessing:
        """Return the preprocessing of files with these channels; voltages are prepared in µV."""
        apart = find_channel(self.reference, ch_names) if self.reference else None
        names = self.channels or tuple(name for i, name in enumerate(ch_names) if i != apart)
        unit = "µV" if volts else None
        return Preprocessing(names, unit, self.band, reference=self.reference, sfreq=self.resample or sfreq)

    def rate_of(self, path: Path, own: float | None) -> float:
        """Return the sampling rate of a file: its own, or else the user's."""
        if own is not None and self.sfreq is not None and own != self.sfreq:
            raise ValueError(f"{path} says {own:g} Hz, --sfreq {self.sfreq:g} Hz; leave the option out")
        sfreq = self.sfreq if own is None else own
        if sfreq is None:
            raise ValueError(f"{path} has no sampling rate; pass it with --sfreq")
        if self.band is not None:
            try:
                self.band.sections(sfreq)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
        return sfreq


@dataclass(frozen=True, slots=True)
class LabelledSegment:
    """A labelled segment of a file, in samples after resampling."""

    first: int
    length: int
    label: str
    subject: str
    session: str
    split: str


@dataclass(frozen=True, slots=True, eq=False)
class LabelledFile:
    """The raw signals of a file, their preprocessing, and the labelled segments."""

    signals: npt.NDArray[np.float64]  # (n_inputs, n_samples), missing ones NaN
    names: tuple[str, ...]
    units: tuple[str, ...]
    preprocessing: Preprocessing
    sfreq: float  # of the signals, in Hz
    trial: int  # samples per trial, where it holds separate trials; 0 for one continuous recording
    segments: Sequence[LabelledSegment]
    problems: Sequence[str] = ()  # problems of its rows


def open_labelled_file(rows: Sequence[ManifestRow], options: OwnOptions) -> LabelledFile:
    """Read the file of some rows of a table."""
    path = rows[0].path
    if path.suffix.lower() == ".npz":
        return _open_trials(rows, options)
    recording = open_recording(path).renamed(options.rename)
    sfreq = options.rate_of(path, recording.sfreq)
    how = options.preprocessing(recording.ch_names, volts="V" in recording.units, sfreq=sfreq)
    inputs = select_inputs(recording, how)
    rate = how.sfreq or sfreq
    available = resampled_length(recording.n_times, sfreq, rate)
    check_size(path, len(inputs.channels), available)
    segments, problems = [], []
    for row in rows:
        start = row.start or 0.0
        first = round(start * rate)
        stop = available if row.stop is None else first + round((row.stop - start) * rate)
        if stop > available or stop <= first:
            problems.append(
                f"line {row.line}: {row.name} is {recording.n_times / sfreq:g} s long, "
                f"{start:g} to {'its end' if row.stop is None else f'{row.stop:g} s'} asked"
            )
        else:
            facts = (row.label, row.subject, row.session, row.split)
            segments.append(LabelledSegment(first, stop - first, *facts))
    signals = recording.load(inputs.channels)
    signals *= inputs.factors
    names = tuple(recording.ch_names[i] for i in inputs.channels)
    units = tuple("µV" if recording.units[i] == "V" else recording.units[i] for i in inputs.channels)
    return LabelledFile(signals, names, units, how, sfreq, 0, segments, problems)


def _open_trials(rows: Sequence[ManifestRow], options: OwnOptions) -> LabelledFile:
    """Read ``X`` (n, channels, times), ``y`` and further arrays of an .npz file."""
    row, path = rows[0], rows[0].path
    if len(rows) > 1 or row.start is not None or row.stop is not None:
        raise ValueError(f"{path} contains trials: list it once, without start and stop")
    stored = open_arrays(path, _ARRAYS)
    signals = _checked_signals(path, stored)
    arrays = {name: load_array(array) for name, array in stored.items() if name != "X"}
    n, n_chans, n_times = signals.shape
    present = renamed(_ch_names(path, arrays, n_chans), options.rename, source=str(path))
    sfreq = options.rate_of(path, read_sfreq(path, arrays.get("sfreq")))
    how = options.preprocessing(present, sfreq=sfreq)
    assert how.inputs is not None
    picks = pick_channels(how.inputs, present, source=str(path))
    rate = how.sfreq or sfreq
    facts = {name: _column(path, arrays, key, n, getattr(row, name)) for name, key in _TRIAL_ARRAYS.items()}
    if not all(facts["label"]):
        raise ValueError(f"{path} has no y, one label per trial; add it, or give a label in the table")
    if unknown := sorted(set(facts["split"]) - {*SPLITS, ""}):
        raise ValueError(f"{path}: split {unknown[0]!r} is neither 'train' nor 'test'")
    length = resampled_length(n_times, sfreq, rate)
    check_size(path, len(picks), n * length, in_one=False)
    flat = _concatenated(signals, picks)
    check_reach(path, flat)
    segments = [
        LabelledSegment(i * length, length, *values)
        for i, values in enumerate(zip(*facts.values(), strict=True))
    ]
    how = replace(how, by_trial=how.filter is not None or rate != sfreq)
    names = tuple(present[i] for i in picks)
    return LabelledFile(flat, names, ("",) * len(picks), how, sfreq, n_times, segments)


def _checked_signals(path: Path, arrays: dict[str, StoredArray]) -> StoredArray:
    if "X" not in arrays:
        raise ValueError(f"{path} has no X, the signals (n, channels, times); save them under this name")
    signals = arrays["X"]
    shape = signals.shape
    if 0 in shape:
        raise ValueError(f"{path}: X has no values, its shape is {shape}")
    if len(shape) != 3 or signals.dtype.kind not in "fiu":
        raise ValueError(f"{path}: X is {signals.dtype} {shape}; expected numbers (n, channels, times)")
    check_claim(path, shape[1], 0)
    check_size(path, 1, math.prod(shape), in_one=False)
    if shape[0] > ROWS:
        raise ValueError(f"{path}: X has {shape[0]} trials, and at most a million are read")
    return signals


def _concatenated(signals: StoredArray, picks: list[int]) -> npt.NDArray[np.float64]:
    """Concatenate all trials (channels, n · times), without a second copy in memory."""
    n, _, n_times = signals.shape
    flat, at = np.empty((len(picks), n * n_times)), 0
    for block in signals.blocks(max(1, (1 << 22) // math.prod(signals.shape[1:]))):
        stop = at + len(block) * n_times
        flat[:, at:stop] = block[:, picks].transpose(1, 0, 2).reshape(len(picks), -1)
        at = stop
    return flat


def _ch_names(path: Path, arrays: dict[str, npt.NDArray[Any]], n_chans: int) -> tuple[str, ...]:
    names = tuple(map(str, np.ravel(arrays["ch_names"]))) if "ch_names" in arrays else ()
    if names and len(names) != n_chans:
        raise ValueError(f"{path}: X has {n_chans} channels but ch_names {len(names)} names")
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: ch_names are not distinct: {', '.join(names)}; name each channel once")
    return names or tuple(f"ch{i}" for i in range(1, n_chans + 1))


def _column(path: Path, arrays: dict[str, npt.NDArray[Any]], key: str, n: int, given: str) -> list[str]:
    """Return the value of the table for all trials, or of the file for each."""
    if given or key not in arrays:
        return [given] * n
    values = np.ravel(arrays[key])
    if len(values) == 1:
        values = np.repeat(values, n)
    if len(values) != n:
        raise ValueError(f"{path}: X has {n} trials but {key} {len(values)} values; expected one per trial")
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise ValueError(f"{path}: {key} has NaN; expected one value per trial")
    if values.dtype.kind == "f" and (values == np.round(values)).all():
        values = values.astype(np.int64)
    return [str(value) for value in values.tolist()]
