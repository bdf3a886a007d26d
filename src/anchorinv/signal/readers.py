"""Readers of recordings, which stay in their files, for all formats; and of files of windows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anchorinv.errors import import_extra, listed
from anchorinv.files import missing
from anchorinv.progress import tick
from anchorinv.signal import headers
from anchorinv.signal.arrays import (
    StoredArray,
    load_array,
    open_array,
    open_arrays,
    read_sample_table,
    read_sfreq,
)
from anchorinv.signal.preprocessing import AS_GIVEN, UNITS, Preprocessing, pick_channels, renamed, unit_of

#: Values read at once, over all channels.
PIECE = 1 << 22
#: Bytes of a table below which it is read to see whether it is empty.
_SMALL_TABLE = 1 << 16
#: Suffixes of recordings with a separate header.
_APART = frozenset((*headers.WFDB, ".vhdr", ".vmrk", ".eeg"))


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A recording of ``n_times`` samples that stays in its file.

    ``read(start, stop, channel numbers)`` returns an array (n, stop - start), voltages in volts, missing
    samples as NaN.
    """

    path: Path
    ch_names: tuple[str, ...]  # of its signals; without trigger channels
    units: tuple[str, ...]  # "V" for voltages, which are read in volts; others as in the file, or ""
    sfreq: float | None  # in Hz; None where the file does not say
    n_times: int
    read: Callable[[int, int, list[int]], npt.NDArray[np.float64]]

    def renamed(self, rename: Mapping[str, str] | None) -> "Recording":
        """Return the recording with some channels renamed."""
        return replace(self, ch_names=renamed(self.ch_names, rename, source=self.path.name))

    def pieces(self, channels: Sequence[int], *, task: str | None = None) -> Iterator[np.ndarray]:
        """Yield the channels, shape (n, ...), piece by piece; ``task`` names what progress is reported of."""
        size = max(1, PIECE // max(1, len(self.ch_names)))
        for start in range(0, self.n_times, size):
            stop = min(start + size, self.n_times)
            with headers.reading(self.path):
                piece = self.read(start, stop, list(channels))
                headers.check_range(self.path, piece)
            yield piece
            if task is not None:
                tick(task, stop, self.n_times)

    def load(self, channels: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the channels, shape (n, n_times), if they fit in memory."""
        headers.check_size(self.path, len(channels), self.n_times)
        signals, at = np.empty((len(channels), self.n_times)), 0
        for piece in self.pieces(channels):
            signals[:, at : at + piece.shape[1]] = piece
            at += piece.shape[1]
        return signals


def open_recording(path: Path) -> Recording:
    """Open a recording by its suffix; usually only the header is read.

    A WFDB record may be named without a suffix, or by a file of its annotations.
    """
    suffixes = "".join(path.suffixes[-2:]).lower()
    opener = _OPENERS.get(suffixes) or _OPENERS.get(path.suffix.lower())
    if opener is None and (header := headers.header_of(path)) is not None:
        path, opener = header, _wfdb
    if opener is None:
        raise headers.unknown_format(path)
    if not path.is_file():
        raise missing(path)
    with headers.reading(path):
        recording = opener(path)
    if recording.sfreq is not None:
        headers.check_rate(path, recording.sfreq)
    if not recording.n_times or not recording.ch_names:
        raise ValueError(f"{path} holds no samples")
    return recording


def companions(path: Path) -> tuple[Path, ...]:
    """Return all files of a recording: formats with a separate header have several."""
    if path.suffix.lower() not in _APART:
        return (path,)
    return tuple(sorted(p for p in path.parent.glob(f"{path.stem}.*") if p.suffix.lower() in _APART))


def open_mne(path: Path) -> Any:
    """Open EDF, BDF, GDF, FIF or BrainVision as ``mne.io.Raw``; samples are not read yet."""
    mne = import_extra("mne", extra="recordings")
    readers = {
        ".edf": mne.io.read_raw_edf,
        ".bdf": mne.io.read_raw_bdf,
        ".gdf": mne.io.read_raw_gdf,
        ".fif": mne.io.read_raw_fif,
        ".gz": mne.io.read_raw_fif,
        ".vhdr": mne.io.read_raw_brainvision,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise headers.unknown_format(path)
    headers.check_header(path)
    raw = reader(path, preload=False, verbose="ERROR")
    files = [Path(file) for file in raw.filenames if file is not None]
    if any(file.parent.resolve() != path.parent.resolve() for file in files):
        raise ValueError(f"{path} names samples outside its folder; files elsewhere are not read")
    headers.check_claim(path, len(raw.ch_names), int(raw.n_times), *files)
    headers.check_rate(path, raw.info["sfreq"])
    return raw


def original_unit(raw: Any, channel: int) -> str | None:
    """Return a channel's unit in an EDF or BDF file; mne treats unknown ones as volts."""
    unit = (getattr(raw, "_orig_units", None) or {}).get(raw.ch_names[channel])
    return None if unit is None else str(unit)


def _mne(path: Path) -> Recording:
    raw = open_mne(path)
    kinds = raw.get_channel_types()
    signals = [i for i, kind in enumerate(kinds) if kind != "stim"]

    def unit(i: int) -> str:
        original = original_unit(raw, i)
        if original is None or unit_of(original):
            return "V" if kinds[i] in headers.VOLTAGES else ""
        return "" if original == "n/a" else original

    def read(start: int, stop: int, channels: list[int]) -> npt.NDArray[np.float64]:
        picks = [signals[i] for i in channels]
        return np.asarray(raw.get_data(picks, start, stop, verbose="error"), dtype=np.float64)

    names, units = tuple(raw.ch_names[i] for i in signals), tuple(map(unit, signals))
    return Recording(path, names, units, float(raw.info["sfreq"]), int(raw.n_times), read)


def _wfdb(path: Path) -> Recording:
    wfdb = import_extra("wfdb", extra="recordings")
    headers.check_wfdb(path)
    record = str(path.with_suffix(""))
    header = wfdb.rdheader(record)
    volts = [unit_of(unit) for unit in header.units]
    factors = np.array([1 / UNITS[unit] if unit else 1.0 for unit in volts])[:, None]
    sums = _Checksums(path, header)

    def read(start: int, stop: int, channels: list[int]) -> npt.NDArray[np.float64]:
        part = wfdb.rdrecord(record, sampfrom=start, sampto=stop, channels=channels, physical=False)
        sums.add(start, stop, channels, part.d_signal)
        # In physical units; missing samples are NaN.
        return np.asarray(part.dac().T * factors[channels], dtype=np.float64)

    units = tuple("V" if volt else unit for volt, unit in zip(volts, header.units, strict=True))
    # Descriptions are optional in WFDB; without one a channel is named by its number.
    names = tuple(name or f"ch{i}" for i, name in enumerate(header.sig_name, 1))
    return Recording(path, names, units, float(header.fs), int(header.sig_len or 0), read)


class _Checksums:
    """PhysioNet's checksum: the sum of a signal's samples, in 16 bits; checked at its end."""

    def __init__(self, path: Path, header: Any) -> None:
        self._path, self._header = path, header
        self._at, self._sums = 0, np.zeros(len(header.sig_name), dtype=np.int64)

    def add(self, start: int, stop: int, channels: list[int], samples: npt.NDArray[Any]) -> None:
        """Take in samples (stop - start, n) that follow those before, or start over."""
        if start == 0:
            self._at, self._sums[:] = 0, 0
        if start != self._at:
            return
        self._at = stop
        self._sums[channels] += samples.sum(axis=0, dtype=np.int64)
        if stop < int(self._header.sig_len):
            return
        for i in channels:
            checksum = self._header.checksum[i]
            if checksum is not None and checksum % 65536 != int(self._sums[i]) % 65536:
                what = f"the samples of {self._header.sig_name[i]} do not fit the checksum in the header"
                raise ValueError(f"{self._path}: {what}; download it again")


def _npy(path: Path) -> Recording:
    values = open_array(path)
    if len(values.shape) != 2 or values.dtype.kind not in "fiu":
        raise ValueError(f"{path} holds {values.dtype} {values.shape}; expected numbers (channels, times)")
    headers.check_claim(path, *values.shape)
    names = tuple(f"ch{i}" for i in range(1, values.shape[0] + 1))
    return _in_memory(path, names, values.memmap())


def _in_memory(
    path: Path, names: tuple[str, ...], values: npt.NDArray[Any], sfreq: float | None = None
) -> Recording:
    """Return a recording of an array (n_chans, n_times), of unknown unit."""

    def read(start: int, stop: int, channels: list[int]) -> npt.NDArray[np.float64]:
        return np.asarray(values[channels, start:stop], dtype=np.float64)

    return Recording(path, names, ("",) * len(names), sfreq, values.shape[1], read)


_OPENERS: dict[str, Callable[[Path], Recording]] = {
    **dict.fromkeys((".edf", ".bdf", ".gdf", ".fif", ".fif.gz", ".vhdr"), _mne),
    **dict.fromkeys(headers.WFDB, _wfdb),
    **dict.fromkeys(headers.TABLES, lambda path: _in_memory(path, *read_sample_table(path))),
    ".npy": _npy,
}
FORMATS = frozenset(_OPENERS) | {".npz"}


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The channels of a recording to read, by index, and their factors (n, 1)."""

    channels: list[int]
    factors: npt.NDArray[np.float64]


def select_inputs(
    recording: Recording, preprocessing: Preprocessing, *, n_chans: int | None = None, scale: float = 1.0
) -> Inputs:
    """Find the channels of a preprocessing, and the factors to its unit, times ``scale``.

    Without names, ``n_chans`` channels are expected, or any number, in the right order.
    """
    name = recording.path.name
    if preprocessing.inputs is not None:
        channels = pick_channels(preprocessing.inputs, recording.ch_names, source=name)
    elif n_chans is not None and len(recording.ch_names) != n_chans:
        counts = f"{name} has {len(recording.ch_names)} channels, the model takes {n_chans}"
        remedy = "choose these channels, or train it with names (ch_names in its .npz)"
        raise ValueError(f"{counts} and does not know their names; {remedy}")
    else:
        channels = list(range(len(recording.ch_names)))
    factors = [preprocessing.factor if recording.units[i] == "V" else 1.0 for i in channels]
    return Inputs(channels, scale * np.array(factors)[:, None])


@dataclass(frozen=True, slots=True, eq=False)
class WindowFile:
    """Windows that stay in their file until they are read."""

    name: str
    shape: tuple[int, int, int]  # (n, n_chans, n_times)
    blocks: Callable[[int], Iterator[np.ndarray]]  # blocks(size) yields the windows, ``size`` at a time
    labels: np.ndarray | None = None  # (n,)
    sfreq: float | None = None
    preprocessing: Preprocessing = AS_GIVEN
    groups: np.ndarray | None = None  # (n,): subjects, or subjects with sessions where subjects are few
    people: np.ndarray | None = None  # (n,): subjects alone
    sessions: np.ndarray | None = None  # (n,): days, runs, trials, as recorded

    def pieces(self, channels: list[int], *, task: str) -> Iterator[np.ndarray]:
        """Yield windows (some, n_chans, n_times) of bounded size, and report progress on ``task``."""
        done = 0
        for block in self.blocks(max(1, PIECE // max(1, self.shape[1] * self.shape[2]))):
            yield block[:, channels]
            done += len(block)
            tick(task, done, self.shape[0])

    def all(self) -> np.ndarray:
        """Return all windows (n, n_chans, n_times)."""
        return np.concatenate(list(self.blocks(max(1, self.shape[0]))))


def is_windowed(path: Path) -> bool:
    """Return whether a path holds windows rather than a continuous recording.

    An ``.npy`` file is a recording if it has two axes (channels, times), and windows if it has three.
    """
    if headers.has_suffix(path, ".npy") and path.is_file():
        return len(open_array(path).shape) != 2
    return path.is_dir() or headers.has_suffix(path, *headers.WINDOWS)


def channels_for(
    file: WindowFile,
    n_chans: int,
    ch_names: tuple[str, ...] | None,
    sfreq: float | None,
    rename: Mapping[str, str] | None = None,
) -> list[int]:
    """Return the indices of a model's channels in a file, in its order; windows at another rate are refused.

    ``n_chans``, ``ch_names`` and ``sfreq`` are the model's; ``rename`` maps names in the file to the model's.
    """
    if sfreq is not None and file.sfreq is not None and file.sfreq != sfreq:
        rates = f"{file.name} is sampled at {file.sfreq:g} Hz, the model at {sfreq:g} Hz"
        remedy = "resample the windows, or use the continuous recording, which is resampled as it is read"
        raise ValueError(f"{rates}; {remedy}")
    present = file.preprocessing.ch_names
    if present is not None and ch_names is not None:
        return pick_channels(ch_names, renamed(present, rename, source=file.name), source=file.name)
    if rename:
        raise ValueError(f"{file.name} or the model has no names of channels; --channels maps names")
    if file.shape[1] != n_chans:
        whose = "the model" if ch_names is None else file.name
        counts = f"{file.name} has {file.shape[1]} channels, the model takes {n_chans}"
        these = f"these {n_chans}" if ch_names is None else listed(ch_names, most=40)
        unnamed = (
            f"{whose} has no names to choose them by; save a file of {these} alone, in the model's order"
        )
        raise ValueError(f"{counts}, and {unnamed}")
    return list(range(n_chans))


def open_window_file(path: Path) -> WindowFile:
    """Open windows in an ``.npz`` or ``.npy`` file."""
    if not path.exists() and not (headers.is_recording(path) and path.with_suffix(".hea").exists()):
        raise missing(path)
    if not is_windowed(path):
        if headers.has_suffix(path, *headers.TABLES) and path.stat().st_size < _SMALL_TABLE:
            open_recording(path)  # refuses an empty table, for which labels would be the wrong remedy
        known = headers.is_recording(path) or headers.has_suffix(path, ".npy")
        raise headers.missing_labels(path) if known else headers.unknown_format(path)
    if headers.has_suffix(path, ".npz"):
        return _open_npz(path)
    windows = open_array(path)
    return WindowFile(path.name, _shape(windows), windows.blocks)


def _open_npz(path: Path) -> WindowFile:
    fields = {"y": "labels", "groups": "groups", "subject": "people", "session": "sessions"}
    trials = open_trials(path, fields)
    shape = _shape(trials.windows)
    columns = {fields[name]: np.atleast_1d(values) for name, values in trials.columns.items()}
    for name, field in fields.items():
        if field in columns and (got := columns[field].shape) != shape[:1]:
            counts = f"{shape[0]} windows in X and {'labels' if name == 'y' else name} of shape {got}"
            remedy = f"{name} needs one value for each window, shape {shape[:1]}"
            raise ValueError(f"{path} has {counts}; {remedy}")
    if "groups" in columns:
        columns.setdefault("people", columns["groups"])
    preprocessing, blocks = Preprocessing(trials.ch_names), trials.windows.blocks
    return WindowFile(path.name, shape, blocks, sfreq=trials.sfreq, preprocessing=preprocessing, **columns)


class TrialArrays(NamedTuple):
    """The arrays of an ``.npz`` file of windows; the windows stay in the file."""

    windows: StoredArray  # (n, n_chans, n_times)
    ch_names: tuple[str, ...] | None  # None where missing or empty
    sfreq: float | None
    columns: dict[str, np.ndarray]  # further arrays by name


def open_trials(path: Path, columns: Iterable[str]) -> TrialArrays:
    """Open ``X``, ``ch_names``, ``sfreq`` and those of ``columns`` that an ``.npz`` file has."""
    stored = open_arrays(path, ("X", "sfreq", "ch_names", *columns))
    if "X" not in stored:
        raise ValueError(f"{path} needs an array X (n, channels, times); save the windows under this name")
    windows = stored.pop("X")
    _check_axes(windows)
    arrays = {name: load_array(array) for name, array in stored.items()}
    names = tuple(map(str, np.ravel(arrays.pop("ch_names", ())).tolist()))
    if names and len(names) != windows.shape[1]:
        raise ValueError(f"{path} has {windows.shape[1]} channels in X and {len(names)} names in ch_names")
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: ch_names are not distinct: {', '.join(names)}; name each channel once")
    return TrialArrays(windows, names or None, read_sfreq(path, arrays.pop("sfreq", None)), arrays)


def _shape(windows: StoredArray) -> tuple[int, int, int]:
    _check_axes(windows)
    n, n_chans, n_times = windows.shape
    headers.check_size(windows.path, 1, n_chans * n_times)
    return n, n_chans, n_times


def _check_axes(windows: StoredArray) -> None:
    path, shape = windows.path, windows.shape
    if len(shape) != 3 or 0 in shape:
        hint = "; for one window use X[None]" if len(shape) == 2 else ""
        raise ValueError(f"{path} must hold windows (n, channels, times), got shape {tuple(shape)}{hint}")
    headers.check_claim(path, shape[1], 0)
