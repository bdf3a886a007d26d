"""Open a recording: one function per family of formats, one value for all of them."""

import gzip
import lzma
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from anchorinv.problems import needed
from anchorinv.signal import limits
from anchorinv.signal.headers import check_header
from anchorinv.signal.kinds import VOLTAGES, header_of, unknown
from anchorinv.signal.limits import check_claim, check_rate, check_size, reading, room
from anchorinv.signal.npzfiles import stored_array
from anchorinv.signal.preprocessing import UNITS, unit_of
from anchorinv.signal.recordings import Recording
from anchorinv.signal.textheaders import check_wfdb

_LINE = 1 << 20  # characters of a line in a table
_SKIPPED = 1000  # so many more lines without values than with


def open_recording(path: Path) -> Recording:
    """Open a recording by what its name ends in; as a rule nothing but the header is read.

    A WFDB record may be named without an ending, or by a file of its annotations.
    """
    endings = "".join(path.suffixes[-2:]).lower()
    opener = _OPENERS.get(endings) or _OPENERS.get(path.suffix.lower())
    if opener is None and (header := header_of(path)) is not None:
        path, opener = header, _wfdb
    if opener is None:
        raise unknown(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}")
    with reading(path):
        found = opener(path)
    if found.sfreq is not None:
        check_rate(path, found.sfreq)
    if not found.n_times or not found.ch_names:
        raise ValueError(f"{path} holds no samples")
    return found


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


def _mne(path: Path) -> Recording:
    raw = open_mne(path)
    kinds = raw.get_channel_types()
    ours = [i for i, kind in enumerate(kinds) if kind != "stim"]
    # What an EDF or BDF file says of units: mne takes any other for volts.
    told = {name: str(unit) for name, unit in (getattr(raw, "_orig_units", None) or {}).items()}
    units = tuple(_unit(kinds[i], told.get(raw.ch_names[i], "V")) for i in ours)

    def read(start: int, stop: int, channels: list[int]) -> npt.NDArray[np.float64]:
        picks = [ours[i] for i in channels]
        return np.asarray(raw.get_data(picks, start, stop, verbose="error"), dtype=np.float64)

    names = tuple(raw.ch_names[i] for i in ours)
    return Recording(path, names, units, float(raw.info["sfreq"]), int(raw.n_times), read)


def _unit(kind: str, told: str) -> str:
    if unit_of(told):
        return "V" if kind in VOLTAGES else ""
    return "" if told == "n/a" else told


def _wfdb(path: Path) -> Recording:
    wfdb = needed("wfdb", extra="recordings")
    check_wfdb(path)
    record = str(path.with_suffix(""))
    header = wfdb.rdheader(record)
    volts = [unit_of(unit) for unit in header.units]
    factors = np.array([1 / UNITS[unit] if unit else 1.0 for unit in volts])[:, None]
    sums = _Checksums(path, header)

    def read(start: int, stop: int, channels: list[int]) -> npt.NDArray[np.float64]:
        part = wfdb.rdrecord(record, sampfrom=start, sampto=stop, channels=channels, physical=False)
        sums.add(start, stop, channels, part.d_signal)
        # With each channel's gain and baseline; missing is NaN.
        return np.asarray(part.dac().T * factors[channels], dtype=np.float64)

    units = tuple("V" if unit else told for unit, told in zip(volts, header.units, strict=True))
    # A description is optional in WFDB; without one a channel goes by its number, as in an array.
    names = tuple(name or f"ch{i}" for i, name in enumerate(header.sig_name, 1))
    return Recording(path, names, units, float(header.fs), int(header.sig_len or 0), read)


class _Checksums:
    """PhysioNet's checksum: the sum of a signal's samples, in 16 bits; known once it was read to its end."""

    def __init__(self, path: Path, header: Any) -> None:
        self._path, self._header = path, header
        self._at, self._sums = 0, np.zeros(len(header.sig_name), dtype=np.int64)

    def add(self, start: int, stop: int, channels: list[int], samples: npt.NDArray[Any]) -> None:
        """Take in samples (stop - start, n) that follow those before, or begin anew."""
        if start == 0:
            self._at, self._sums[:] = 0, 0
        if start != self._at:
            return
        self._at = stop
        self._sums[channels] += samples.sum(axis=0, dtype=np.int64)
        if stop < int(self._header.sig_len):
            return
        for i in channels:
            told = self._header.checksum[i]
            if told is not None and told % 65536 != int(self._sums[i]) % 65536:
                raise ValueError(
                    f"{self._path}: the samples of {self._header.sig_name[i]} do not fit the checksum in the "
                    "header; download it again"
                )


def _csv(path: Path) -> Recording:
    """Read a table with a column per channel and its name on top; a column ``time`` (s) gives the rate."""
    openers: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open}
    opener = openers.get(path.suffix.lower(), open)
    with opener(path, "rt", encoding="utf-8-sig") as file:
        lines = _lines(path, file)
        names = [name.strip().strip('"') for name in next(lines, "").rstrip("\r\n").split(",")]
        check_claim(path, len(names), 0)
        if names and all(_is_number(name) for name in names):
            raise ValueError(f"{path} begins with numbers; a first line that names its channels is needed")
        times = next((i for i, name in enumerate(names) if name.casefold() in ("time", "time_s")), None)
        ours = [i for i in range(len(names)) if i != times]
        # One row more than will be taken; numpy would ask for the room of all of them at once.
        most = min(limits.LONGEST, limits.LARGEST // len(names)) + 1
        form: dict[str, Any] = {"delimiter": ",", "ndmin": 2, "usecols": range(len(names))}
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
    check_size(path, len(names), len(values))
    sfreq = _rate(path, values[:, times]) if times is not None and len(values) > 1 else None
    return _held(path, values.T, ours, tuple(names[i] for i in ours), sfreq)


def _held(
    path: Path, values: npt.NDArray[Any], rows: list[int], names: tuple[str, ...], sfreq: float | None
) -> Recording:
    """Return a recording of rows of an array; what unit they have, nobody knows."""

    def read(start: int, stop: int, channels: list[int]) -> npt.NDArray[np.float64]:
        return np.asarray(values[[rows[i] for i in channels], start:stop], dtype=np.float64)

    return Recording(path, names, ("",) * len(names), sfreq, values.shape[1], read)


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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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


def _npy(path: Path) -> Recording:
    values = stored_array(path)
    if len(values.shape) != 2 or values.dtype.kind not in "fiu":
        raise ValueError(
            f"{path} holds {values.dtype} of shape {values.shape}; numbers (channels, times) are wanted"
        )
    check_claim(path, *values.shape)
    names = tuple(f"ch{i}" for i in range(1, values.shape[0] + 1))
    return _held(path, values.mapped(), list(range(len(names))), names, None)


_OPENERS: dict[str, Callable[[Path], Recording]] = {
    **dict.fromkeys((".edf", ".bdf", ".gdf", ".fif", ".fif.gz", ".vhdr"), _mne),
    **dict.fromkeys((".hea", ".dat"), _wfdb),
    **dict.fromkeys((".csv", ".csv.xz", ".csv.gz"), _csv),
    ".npy": _npy,
}
FORMATS = frozenset(_OPENERS) | {".npz"}


def companions(path: Path) -> tuple[Path, ...]:
    """Return all files of a recording: formats with a header apart have several of one name."""
    apart = {".hea", ".dat", ".vhdr", ".vmrk", ".eeg"}
    if path.suffix.lower() not in apart:
        return (path,)
    beside = (other for other in path.parent.glob(f"{path.stem}.*") if other.suffix.lower() in apart)
    return tuple(sorted(beside))
