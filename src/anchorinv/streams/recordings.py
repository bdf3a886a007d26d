"""Continuous recordings in files, read piece by piece: EDF, BDF, GDF, FIF … by mne, WFDB by wfdb."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorinv.core.progress import tick
from anchorinv.data.kinds import is_recording, is_table, to_prepare, unknown
from anchorinv.data.limits import check_rate, reading
from anchorinv.data.problems import needed
from anchorinv.data.readers import open_mne
from anchorinv.data.textheaders import check_wfdb
from anchorinv.streams.preprocessing import UNITS

#: Values read at once, over all channels.
PIECE = 1 << 22
_WFDB = (".hea", ".dat")


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A recording that stays in its file.

    Parameters
    ----------
    ch_names, sfreq, n_times : as the file says.
    read : (start, stop, channel numbers) -> (n, stop - start), in volts where the file has a voltage.
    """

    name: str
    ch_names: tuple[str, ...]
    sfreq: float
    n_times: int
    read: Callable[[int, int, list[int]], np.ndarray]

    def pieces(self, channels: Sequence[int], *, task: str) -> Iterator[np.ndarray]:
        """Yield the channels (n, ...) piece by piece, and tell how far it is."""
        size = max(1, PIECE // max(1, len(self.ch_names)))
        for start in range(0, self.n_times, size):
            stop = min(start + size, self.n_times)
            with reading(Path(self.name)):
                piece = self.read(start, stop, list(channels))
            yield piece
            tick(task, stop, self.n_times)


def open_recording(path: Path) -> Recording:
    """Open a recording by what its name ends in; nothing but the header is read."""
    if not path.exists() and not path.with_suffix(".hea").exists():
        raise FileNotFoundError(f"there is no recording {path}")
    if not is_recording(path):
        raise unknown(path)
    if is_table(path):
        raise to_prepare(path)
    with reading(path):
        found = _open_wfdb(path) if path.suffix in _WFDB or not path.suffix else _open_mne(path)
    if not found.n_times or not found.ch_names:
        raise ValueError(f"{path} holds no samples")
    return found


def _open_mne(path: Path) -> Recording:
    raw = open_mne(path)

    def read(start: int, stop: int, channels: list[int]) -> np.ndarray:
        return np.asarray(raw.get_data(channels, start, stop, verbose="error"))

    return Recording(path.name, tuple(raw.ch_names), float(raw.info["sfreq"]), int(raw.n_times), read)


def _open_wfdb(path: Path) -> Recording:
    wfdb = needed("wfdb", extra="recordings")
    record = str(path.with_suffix("")) if path.suffix else str(path)
    check_wfdb(path)
    header = wfdb.rdheader(record)
    check_rate(path, header.fs)
    volts = np.array([1 / UNITS.get(unit, 1.0) for unit in header.units])

    def read(start: int, stop: int, channels: list[int]) -> np.ndarray:
        signals = wfdb.rdrecord(record, sampfrom=start, sampto=stop, channels=channels).p_signal
        return np.asarray(signals.T * volts[channels, None])

    return Recording(path.name, tuple(header.sig_name), float(header.fs), int(header.sig_len), read)


def matched(wanted: Sequence[str] | None, present: Sequence[str], n_chans: int, *, name: str) -> list[int]:
    """Return which of the channels present are the wanted ones, in their order.

    Names are compared as they are, then without case, spaces, a kind in front or a reference behind. Without
    wanted names the channels must be as many as the model takes, and their order is trusted.

    Examples
    --------
    >>> matched(["C3", "Cz"], ["EEG CZ-REF", "EOG", "EEG C3-REF"], 2, name="day2.edf")
    [2, 0]
    """
    if wanted is None:
        if len(present) == n_chans:
            return list(range(n_chans))
        raise ValueError(
            f"{name} has {len(present)} channels, the model takes {n_chans} and does not know their names; "
            f"choose these channels, or train it with names (ch_names in its .npz)"
        )
    exact = {label: i for i, label in enumerate(present)}
    loose: dict[str, list[int]] = {}
    for i, label in enumerate(present):
        loose.setdefault(_core_name(label), []).append(i)
    found = [exact.get(label, _only(loose.get(_core_name(label), []))) for label in wanted]
    if missing := [label for label, i in zip(wanted, found, strict=True) if i is None]:
        raise ValueError(
            f"{name} lacks {len(missing)} of the model's {len(wanted)} channels: {_some(missing)}; "
            f"it has {_some(present)}"
        )
    return [i for i in found if i is not None]


def _core_name(label: str) -> str:
    bare = re.sub(r"^(eeg|emg|ecg|eog)[ _]+|[-_ ]*(ref|le|avg)$", "", label.strip().lower())
    return re.sub(r"[\s.]", "", bare)


def _only(places: list[int]) -> int | None:
    return places[0] if len(places) == 1 else None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
