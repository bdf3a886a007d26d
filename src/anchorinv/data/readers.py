"""Read a recording: one function per family of formats, one value for all of them."""

import gzip
import lzma
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from anchorinv.data import limits
from anchorinv.data.headers import check_header
from anchorinv.data.kinds import unknown
from anchorinv.data.limits import check_claim, check_rate, check_reach, check_size, reading, room
from anchorinv.data.npzfiles import stored_array
from anchorinv.data.problems import listed, needed
from anchorinv.data.textheaders import check_wfdb

_SECONDS_AT_A_TIME = 600
_VALUES_AT_A_TIME = 1 << 24
_LINE = 1 << 20  # characters of a line in a table
_SKIPPED = 1000  # so many more lines without values than with
_VOLTAGES = frozenset(("eeg", "eog", "emg", "ecg", "seeg", "ecog", "dbs", "bio", "resp"))
_VOLTS = {"v": 1e6, "mv": 1e3, "uv": 1.0, "µv": 1.0, "μv": 1.0, "nv": 1e-3}


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A continuous recording.

    Parameters
    ----------
    signals : (n_chans, n_samples) float64, voltages in µV.
    sfreq : samples per second; None where the file does not say.
    ch_names, units : one for each channel; a unit is "" where the file does not say.
    """

    signals: npt.NDArray[np.float64]
    sfreq: float | None
    ch_names: tuple[str, ...]
    units: tuple[str, ...]


def in_microvolts(kind: str) -> tuple[float, str]:
    """Return the factor from mne's unit to ours, and ours, for one of mne's kinds of channels."""
    return (1e6, "µV") if kind in _VOLTAGES else (1.0, "")


def read_recording(path: Path, *, channels: Sequence[str] | None = None) -> Recording:
    """Read a file by its ending; whatever is wrong with it is an error that names it.

    Parameters
    ----------
    channels : names to keep, in this order; None keeps all but triggers.
    """
    endings = "".join(path.suffixes[-2:]).lower()
    reader = _READERS.get(endings) or _READERS.get(path.suffix.lower())
    if reader is None:
        raise unknown(path)
    if not path.is_file():
        raise ValueError(f"{path} is not there")
    with reading(path):
        found = reader(path, channels)
        check_reach(path, found.signals)
    if found.sfreq is not None:
        check_rate(path, found.sfreq)
    if found.signals.size == 0:
        raise ValueError(f"{path} holds no samples")
    return found


def _picked(
    path: Path, names: Sequence[str], channels: Sequence[str] | None, ours: Sequence[int]
) -> list[int]:
    """Return the places of the wanted channels; names count without regard to case."""
    if channels is None:
        return list(ours)
    places = {names[i].casefold(): i for i in reversed(ours)}
    if missing := [name for name in channels if name.casefold() not in places]:
        raise ValueError(
            f"{path} has no channel {listed(missing)}; it has {listed([names[i] for i in ours], most=40)}"
        )
    return [places[name.casefold()] for name in channels]


def open_mne(path: Path) -> Any:
    """Open EDF, BDF, GDF, FIF or BrainVision with mne; samples are not read yet."""
    mne = needed("mne", extra="recordings")
    check_header(path)
    readers = {
        ".edf": mne.io.read_raw_edf,
        ".bdf": mne.io.read_raw_bdf,
        ".gdf": mne.io.read_raw_gdf,
        ".fif": mne.io.read_raw_fif,
        ".vhdr": mne.io.read_raw_brainvision,
    }
    suffix = path.suffix.lower()
    reader = readers.get(".fif" if suffix == ".gz" else suffix)  # a fif file may be compressed
    if reader is None:
        raise unknown(path)
    raw = reader(path, preload=False, verbose="ERROR")
    files = [Path(file) for file in raw.filenames if file is not None]
    if any(file.parent.resolve() != path.parent.resolve() for file in files):
        raise ValueError(f"{path} names samples that do not lie beside it; files elsewhere are not read")
    check_claim(path, len(raw.ch_names), int(raw.n_times), *files)
    check_rate(path, raw.info["sfreq"])
    return raw


def _mne(path: Path, channels: Sequence[str] | None) -> Recording:
    raw = open_mne(path)
    kinds = raw.get_channel_types()
    ours = [i for i, kind in enumerate(kinds) if kind != "stim"]
    picks = _picked(path, raw.ch_names, channels, ours)
    n_samples = int(raw.n_times)
    check_size(path, len(picks), n_samples)
    signals = np.empty((len(picks), n_samples))
    most = _VALUES_AT_A_TIME // len(kinds)
    step = max(1, min(most, int(_SECONDS_AT_A_TIME * raw.info["sfreq"])))
    for start in range(0, n_samples, step):  # a stretch at a time: mne holds copies of what it reads
        stop = min(start + step, n_samples)
        signals[:, start:stop] = raw.get_data(picks=picks, start=start, stop=stop)
    # What an EDF or BDF file says of units: mne takes any other for volts.
    told = {name: str(unit) for name, unit in (getattr(raw, "_orig_units", None) or {}).items()}
    scaled = [_scaled(kinds[i], told.get(raw.ch_names[i], "V")) for i in picks]
    signals *= np.array([factor for factor, _ in scaled])[:, None]
    names = tuple(raw.ch_names[i] for i in picks)
    return Recording(signals, float(raw.info["sfreq"]), names, tuple(unit for _, unit in scaled))


def _scaled(kind: str, told: str) -> tuple[float, str]:
    return in_microvolts(kind) if told.casefold() in _VOLTS else (1.0, "" if told == "n/a" else told)


def _wfdb(path: Path, channels: Sequence[str] | None) -> Recording:
    wfdb = needed("wfdb", extra="recordings")
    check_wfdb(path)
    stem = str(path.with_suffix(""))
    head = wfdb.rdheader(stem)
    n_samples = int(head.sig_len or 0)
    picks = _picked(path, head.sig_name, channels, range(head.n_sig))
    check_size(path, len(picks), n_samples)
    record = wfdb.rdrecord(stem, channels=picks, physical=False)
    for i, name in enumerate(record.sig_name):
        # PhysioNet's checksum: the sum of a signal's samples, in 16 bits.
        told, found = record.checksum[i], int(record.d_signal[:, i].sum()) % 65536
        if told is not None and told % 65536 != found:
            raise ValueError(
                f"{path}: the samples of {name} do not fit the checksum in the header; download it again"
            )
    check_size(path, *record.d_signal.shape[::-1])
    signals = record.dac()  # (n_samples, n_chans), with each channel's gain and baseline; missing is NaN
    record.d_signal = None
    factors = [_VOLTS.get(unit.casefold()) for unit in record.units]
    signals *= [1.0 if factor is None else factor for factor in factors]
    units = tuple("µV" if factor else unit for factor, unit in zip(factors, record.units, strict=True))
    return Recording(signals.T, float(record.fs), tuple(record.sig_name), units)


def _csv(path: Path, channels: Sequence[str] | None) -> Recording:
    """Read a table with a column per channel and its name on top; a column ``time`` (s) gives the rate."""
    openers: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open}
    opener = openers.get(path.suffix.lower(), open)
    with opener(path, "rt", encoding="utf-8-sig") as file:
        lines = _lines(path, file)
        names = [name.strip().strip('"') for name in next(lines, "").rstrip("\r\n").split(",")]
        check_claim(path, len(names), 0)
        times = next((i for i, name in enumerate(names) if name.casefold() in ("time", "time_s")), None)
        ours = [i for i in range(len(names)) if i != times]
        picks = _picked(path, names, channels, ours)
        columns = picks if times is None else [*picks, times]
        # One row more than will be taken; numpy would ask for the room of all of them at once.
        most = min(limits.LONGEST, limits.LARGEST // max(1, len(picks))) + 1
        form: dict[str, Any] = {"delimiter": ",", "ndmin": 2, "usecols": columns}
        try:
            values = np.loadtxt(islice(lines, most), **form)
        except ValueError as error:
            if str(error).startswith(str(path)):
                raise
            # An empty cell is a missing sample; looking at each cell is slow.
            file.seek(0)
            lines = _lines(path, file)
            next(lines)
            values = np.loadtxt(islice(lines, most), converters=_number, **form)
    sfreq = None
    if times is not None:
        sfreq = _rate(path, values[:, -1]) if len(values) > 1 else None
        values = values[:, :-1]
    check_size(path, len(picks), len(values))
    found = tuple(names[i] for i in picks)
    return Recording(values.T, sfreq, found, ("",) * len(found))


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    """Yield the lines of a table; one without end, or more than the file can well hold, is refused."""
    left, skipped = room(path.stat().st_size), -_SKIPPED
    while line := file.readline(_LINE + 1):
        left -= len(line)
        skipped += 1 if line.lstrip()[:1] in ("", "#") else -1
        if len(line) > _LINE:
            raise ValueError(f"{path} has a line of more than a million characters; is it a table?")
        if left < 0:
            raise ValueError(f"{path} unpacks to more than 200 times its size; is it damaged?")
        if skipped > 0:
            raise ValueError(f"{path} has {_SKIPPED} more lines without values than with; is it damaged?")
        yield line


def _number(text: str) -> float:
    return float(text) if text.strip() else float("nan")


def _rate(path: Path, times: npt.NDArray[np.float64]) -> float:
    """Return the rate of evenly spaced times in seconds; a whole number where it is one but for rounding."""
    steps = np.diff(times)
    rate = (len(times) - 1) / (times[-1] - times[0])
    if not np.isfinite(rate) or np.abs(steps * rate - 1).max() > 0.5:
        raise ValueError(
            f"{path}: the column time is not evenly spaced seconds; samples are missing or out of order"
        )
    return float(round(rate)) if abs(rate - round(rate)) < 1e-3 * rate else float(rate)


def _npy(path: Path, channels: Sequence[str] | None) -> Recording:
    values = stored_array(path)
    if len(values.shape) != 2 or values.dtype.kind not in "fiu":
        raise ValueError(
            f"{path} holds {values.dtype} of shape {values.shape}; numbers (channels, times) are wanted"
        )
    check_claim(path, *values.shape)
    names = tuple(f"ch{i}" for i in range(1, values.shape[0] + 1))
    picks = _picked(path, names, channels, range(len(names)))
    check_size(path, len(picks), values.shape[1])
    signals = np.asarray(values.mapped()[picks], dtype=np.float64)
    return Recording(signals, None, tuple(names[i] for i in picks), ("",) * len(picks))


_READERS: dict[str, Callable[[Path, Sequence[str] | None], Recording]] = {
    **dict.fromkeys((".edf", ".bdf", ".gdf", ".fif", ".fif.gz", ".vhdr"), _mne),
    **dict.fromkeys((".hea", ".dat"), _wfdb),
    **dict.fromkeys((".csv", ".csv.xz", ".csv.gz"), _csv),
    ".npy": _npy,
}
FORMATS = frozenset(_READERS) | {".npz"}


def companions(path: Path) -> tuple[Path, ...]:
    """Return all files of a recording: formats with a header apart have several of one name."""
    apart = {".hea", ".dat", ".vhdr", ".vmrk", ".eeg"}
    if path.suffix.lower() not in apart:
        return (path,)
    beside = (other for other in path.parent.glob(f"{path.stem}.*") if other.suffix.lower() in apart)
    return tuple(sorted(beside))
