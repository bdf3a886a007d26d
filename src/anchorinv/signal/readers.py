"""Readers of recordings, which stay in their files, for all formats; channels by name, in any spelling."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.errors import import_extra, listed
from anchorinv.progress import tick
from anchorinv.signal.arrays import open_array, read_sample_table
from anchorinv.signal.headers import check_header, check_wfdb
from anchorinv.signal.limits import (
    TABLES,
    VOLTAGES,
    WFDB,
    check_claim,
    check_rate,
    check_reach,
    check_size,
    header_of,
    reading,
    unknown_format,
)
from anchorinv.signal.preprocessing import UNITS, Preprocessing, unit_of

#: Values read at once, over all channels.
PIECE = 1 << 22
#: Suffixes of recordings with a separate header.
_APART = frozenset((*WFDB, ".vhdr", ".vmrk", ".eeg"))
_KIND = re.compile(r"(eeg|emg|ecg|eog)[\s_]+", re.IGNORECASE)
_REFERENCE = re.compile(r"[-_ ]+(ref|le|avg)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A recording of ``n_times`` samples that stays in its file.

    ``read(start, stop, channel numbers)`` returns an array (n, stop - start), voltages in volts, missing
    samples as NaN.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=(2, 1000))
    >>> def read(start, stop, channels):
    ...     return noise[channels, start:stop]
    >>> recording = Recording(Path("anna.edf"), ("C3", "C4"), ("V", "V"), 250.0, 1000, read)
    >>> recording.load([1]).shape
    (1, 1000)
    """

    path: Path
    ch_names: tuple[str, ...]  # of its signals; without trigger channels
    units: tuple[str, ...]  # "V" for voltages, whatever the unit in the file; else as in the file, or ""
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
            with reading(self.path):
                piece = self.read(start, stop, list(channels))
                check_reach(self.path, piece)
            yield piece
            if task is not None:
                tick(task, stop, self.n_times)

    def load(self, channels: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the channels, shape (n, n_times), if they fit in memory."""
        check_size(self.path, len(channels), self.n_times)
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
    if opener is None and (header := header_of(path)) is not None:
        path, opener = header, _wfdb
    if opener is None:
        raise unknown_format(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}")
    with reading(path):
        recording = opener(path)
    if recording.sfreq is not None:
        check_rate(path, recording.sfreq)
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
        raise unknown_format(path)
    check_header(path)
    raw = reader(path, preload=False, verbose="ERROR")
    files = [Path(file) for file in raw.filenames if file is not None]
    if any(file.parent.resolve() != path.parent.resolve() for file in files):
        raise ValueError(f"{path} names samples outside its folder; files elsewhere are not read")
    check_claim(path, len(raw.ch_names), int(raw.n_times), *files)
    check_rate(path, raw.info["sfreq"])
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
            return "V" if kinds[i] in VOLTAGES else ""
        return "" if original == "n/a" else original

    def read(start: int, stop: int, channels: list[int]) -> npt.NDArray[np.float64]:
        picks = [signals[i] for i in channels]
        return np.asarray(raw.get_data(picks, start, stop, verbose="error"), dtype=np.float64)

    names, units = tuple(raw.ch_names[i] for i in signals), tuple(map(unit, signals))
    return Recording(path, names, units, float(raw.info["sfreq"]), int(raw.n_times), read)


def _wfdb(path: Path) -> Recording:
    wfdb = import_extra("wfdb", extra="recordings")
    check_wfdb(path)
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
                raise ValueError(
                    f"{self._path}: the samples of {self._header.sig_name[i]} do not fit the checksum in the "
                    "header; download it again"
                )


def _npy(path: Path) -> Recording:
    values = open_array(path)
    if len(values.shape) != 2 or values.dtype.kind not in "fiu":
        raise ValueError(
            f"{path} holds {values.dtype} of shape {values.shape}; expected numbers (channels, times)"
        )
    check_claim(path, *values.shape)
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
    **dict.fromkeys(WFDB, _wfdb),
    **dict.fromkeys(TABLES, lambda path: _in_memory(path, *read_sample_table(path))),
    ".npy": _npy,
}
FORMATS = frozenset(_OPENERS) | {".npz"}


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The channels of a recording to read, by index, and their factors (n, 1)."""

    channels: list[int]
    factors: npt.NDArray[np.float64]


def select_inputs(
    recording: Recording, how: Preprocessing, *, n_chans: int | None = None, scale: float = 1.0
) -> Inputs:
    """Find the channels of a preprocessing, and the factors to its unit, times ``scale``.

    Without names, ``n_chans`` channels are expected, or any number, in the right order.

    Examples
    --------
    >>> recording = Recording(Path("a.edf"), ("C3", "C4"), ("V", ""), 250.0, 1000, lambda *_: np.empty(0))
    >>> select_inputs(recording, Preprocessing(("C4", "C3"), "µV"))
    Inputs(channels=[1, 0], factors=array([[1.e+00],
           [1.e+06]]))
    """
    name = recording.path.name
    if how.inputs is not None:
        channels = pick_channels(how.inputs, recording.ch_names, source=name)
    elif n_chans is not None and len(recording.ch_names) != n_chans:
        raise ValueError(
            f"{name} has {len(recording.ch_names)} channels, the model takes {n_chans} and does not know "
            f"their names; choose these channels, or train it with names (ch_names in its .npz)"
        )
    else:
        channels = list(range(len(recording.ch_names)))
    factors = [how.factor if recording.units[i] == "V" else 1.0 for i in channels]
    return Inputs(channels, scale * np.array(factors)[:, None])


def renamed(names: Sequence[str], rename: Mapping[str, str] | None, *, source: str) -> tuple[str, ...]:
    """Return names after ``rename`` (old name: new name).

    An old name that is not there is an error, unless the new one is there already, as in one file of many.
    ``source`` is the recording, for messages.

    Examples
    --------
    >>> renamed(["EEG 1", "EEG 2"], {"EEG 1": "C3"}, source="day2.edf")
    ('C3', 'EEG 2')
    """
    if not rename:
        return tuple(names)
    new_names = list(names)
    for old, new in rename.items():
        if (place := find_channel(old, names)) is not None:
            new_names[place] = new
        elif new not in names:
            raise ValueError(
                f"{source}: there is no channel {old!r} to be called {new!r}; there is "
                f"{listed(names, most=40)}"
            )
    if len(set(new_names)) < len(new_names):
        twice = max(new_names, key=new_names.count)
        raise ValueError(f"{source}: two channels would be called {twice!r}; rename the other one, too")
    return tuple(new_names)


def pick_channels(wanted: Sequence[str], present: Sequence[str], *, source: str) -> list[int]:
    """Return the indices of the wanted channels among those present, in the order wanted.

    Names are compared exactly, then without case, spaces and dots, then without a type prefix ("EEG ") and a
    reference suffix ("-REF"); different types never match. Ambiguous names are refused. ``source`` is the
    recording, for messages.

    Examples
    --------
    >>> pick_channels(["C3", "Cz"], ["EEG CZ-REF", "EOG", "EEG C3-REF"], source="day2.edf")
    [2, 0]
    """
    known = _places(present)
    matches = [_place(name, present, known) for name in wanted]
    if missing := [name for name, place in zip(wanted, matches, strict=True) if place is None]:
        raise ValueError(
            f"{source} lacks {len(missing)} of {len(wanted)} channels: {listed(missing, most=8)}; it has "
            f"{listed(present, most=40)}; if they are there under other names, map them with "
            f"--channels OLD=NEW (in Python rename={{OLD: NEW}})"
        )
    places = [place for place in matches if place is not None]
    if len(set(places)) < len(places):
        twice = max(places, key=places.count)
        same = [name for name, place in zip(wanted, places, strict=True) if place == twice]
        raise ValueError(
            f"{source}: {listed(same)} would all be its channel {present[twice]!r}; name each channel once"
        )
    return places


def find_channel(name: str, present: Sequence[str]) -> int | None:
    """Return the index of the channel that a name matches; None if there is none, or several."""
    return _place(name, present, _places(present))


def _place(name: str, present: Sequence[str], places: Sequence[Mapping[str, list[int]]]) -> int | None:
    # By normalised names, the most exact normalisation first.
    for view, known in zip(_VIEWS, places, strict=True):
        alike = known.get(view(name), [])
        if view is _bare and (kind := _kind(name)):
            alike = [i for i in alike if _kind(present[i]) in ("", kind)]
        if alike:
            return alike[0] if len(alike) == 1 else None
    return None


def _places(present: Sequence[str]) -> list[dict[str, list[int]]]:
    places: list[dict[str, list[int]]] = [{} for _ in _VIEWS]
    for i, name in enumerate(present):
        for view, known in zip(_VIEWS, places, strict=True):
            known.setdefault(view(name), []).append(i)
    return places


def parse_channels(texts: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Read "C3,EEG 4=Cz", once or several times: the names to keep, in order, and the renamings.

    Examples
    --------
    >>> parse_channels(["C3, EEG 4=Cz", "C4"])
    (('C3', 'Cz', 'C4'), {'EEG 4': 'Cz'})
    """
    names, rename = [], {}
    for item in (part.strip() for text in texts for part in text.split(",")):
        old, equals, new = (part.strip() for part in item.partition("="))
        if not old or (equals and not new):
            raise ValueError(f"channels are written C3,C4 or OLD=NEW, got {item!r} between commas")
        names.append(new or old)
        if equals:
            if old in rename:
                raise ValueError(f"channel {old!r} is renamed twice; give it one name")
            rename[old] = new
    if len(set(names)) < len(names):
        raise ValueError(f"channel {max(names, key=names.count)!r} is wanted twice; name each once")
    return tuple(names), rename


def _loose(name: str) -> str:
    return re.sub(r"[\s.]", "", name.casefold())


def _bare(name: str) -> str:
    return _loose(_REFERENCE.sub("", _KIND.sub("", name.strip(), count=1)))


def _kind(name: str) -> str:
    kind = _KIND.match(name.strip())
    return kind[1].casefold() if kind else ""


_VIEWS: tuple[Callable[[str], str], ...] = (str, _loose, _bare)
