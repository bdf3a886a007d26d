"""Which files are read, and what they may ask for: no more than they hold, times a stated factor.

docs/data.md has the limits as a table.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorinv.errors import MissingExtra

#: What the names of files end in: of windows, of tables of samples, of WFDB and of all continuous recordings.
WINDOWS = (".npz", ".npy")
TABLES = (".csv", ".csv.gz", ".csv.xz")
WFDB = (".hea", ".dat")
RECORDINGS = (".edf", ".bdf", ".gdf", ".fif", ".fif.gz", ".vhdr", *WFDB, *TABLES)
FILES = ".npz, .npy, EDF, BDF, GDF, FIF, BrainVision (.vhdr), WFDB (.hea, .dat), CSV"
KNOWN = f"a prepared folder, {FILES}"

#: Of mne's kinds of channels, those that are voltages.
VOLTAGES = frozenset(("eeg", "eog", "emg", "ecg", "seeg", "ecog", "dbs", "bio", "resp"))

#: What PhysioNet's annotators are called; the first is the reference of a set.
ANNOTATORS = (
    "atr", "ann", "ari", "ecg", "qrs", "gqrs", "sqrs", "wqrs", "man", "pu", "pu0", "pu1", "q1c", "q2c", "qt1",
    "qt2", "q1t", "q2t", "st", "sta", "stb", "stc", "stf", "apn", "hyp", "pwave", "wabp", "xws",
)  # fmt: skip

#: Values of a recording in memory: so many (480 MB) leave room to work in.
LARGEST = 60_000_000
#: Samples of a channel that is filtered as a whole, which takes several copies of it.
LONGEST = 15_000_000
#: Bytes that a byte of a file may unpack to, and values that it may stand for: signals stay far below.
EXPANSION = 200
#: So many bytes need no such proportion: a short file of zeros is no attack.
SMALL = 16 << 20
CHANNELS = 10_000
#: Rows of a table, labels, windows.
ROWS = 1_000_000
#: Bytes of a header or a table in text.
TEXT = 64 << 20
#: Events in the file of a recording, and in a file of their own: heartbeats of two days.
EVENTS, BEATS = 20_000, 250_000
#: Sampling rates in Hz.
SLOWEST, FASTEST = 0.01, 1e7
#: Values beyond cannot be computed with.
REACH = 1e30


def has_suffix(path: Path, *suffixes: str) -> bool:
    """Say whether a name ends in one of these, in any case; ``.fif.gz`` is one suffix."""
    return path.name.lower().endswith(suffixes)


def is_recording(path: Path) -> bool:
    """Say whether a path names a continuous recording; a WFDB record may have no suffix."""
    return has_suffix(path, *RECORDINGS) or header_of(path) is not None


def header_of(path: Path) -> Path | None:
    """Return the header of a WFDB record that is named without a suffix, or by one of its annotators."""
    header = path.with_suffix(".hea")
    is_record = not path.suffix or path.suffix[1:].lower() in ANNOTATORS
    return header if is_record and header.is_file() else None


def unknown_format(path: Path) -> ValueError:
    """Return the error for a file of a format that is not read."""
    header = path.with_suffix(".vhdr")
    if has_suffix(path, ".eeg", ".vmrk") and header.is_file():
        return ValueError(f"{path} is a part of a BrainVision recording; hand in its header, {header}")
    return ValueError(f"{path} is of no known format; known are {KNOWN}")


def missing_labels(path: Path) -> ValueError:
    """Return the error for windows, or a recording, whose classes are needed and not given."""
    events = "name its events with --events, or " if is_recording(path) else ""
    return ValueError(
        f"{path} has no labels of its windows; {events}hand in a folder prepared of it (anchorinv prepare "
        f"own), or an .npz with X and y"
    )


def room(n_bytes: int) -> int:
    """Return what so many bytes of a file may unpack to."""
    return SMALL + EXPANSION * n_bytes


@contextmanager
def reading(path: Path, *, anew: str | None = None) -> Iterator[None]:
    """Turn whatever a reader raises into an error that names the file; its warnings are silenced.

    Where ``anew`` says how such a file is made again, a library's own words are left out: they help nobody.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except MissingExtra:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):  # already in words
            raise
        if anew is not None and not isinstance(error, OSError | MemoryError):
            raise ValueError(damaged(path, "", anew)) from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{path} cannot be read ({reason}); is it damaged or cut short?") from error


def damaged(source: object, reason: str, anew: str) -> str:
    """Return the sentence about a file that is not whole, and how it is made again, if that is known."""
    return f"{source} is cut short or damaged{f': {reason}' if reason else ''}{f'; {anew}' if anew else ''}"


def check_size(path: Path, n_chans: int, n_samples: int, *, in_one: bool = True) -> None:
    """Refuse what does not fit into memory with room to work in; ``in_one`` recording is filtered at once."""
    if in_one and n_samples > LONGEST:
        raise ValueError(
            f"{path} has {n_samples} samples in each channel, and at most {LONGEST // 10**6} million are "
            "filtered at once; cut it into several files"
        )
    if n_chans * n_samples > LARGEST:
        raise ValueError(
            f"{path} holds {n_chans * n_samples} values, and at most {LARGEST // 10**6} million are read at "
            "once; choose fewer channels, or cut it into several files"
        )


def check_claim(path: Path, n_chans: int, n_samples: int, *files: Path) -> None:
    """Refuse a header that speaks of more values than the bytes of ``files`` (or ``path``) can stand for."""
    n_bytes = sum(file.stat().st_size for file in files or (path,))
    if n_chans > CHANNELS:
        raise ValueError(f"{path} speaks of {n_chans} channels, and at most {CHANNELS} are read")
    if n_chans * n_samples > room(n_bytes):
        raise ValueError(
            f"{path} speaks of {n_samples} samples in {n_chans} channels, which {n_bytes} bytes cannot hold; "
            "is its header damaged?"
        )


def check_rate(path: Path, sfreq: float) -> float:
    """Return a sampling rate that a recording can have."""
    if not SLOWEST <= sfreq <= FASTEST:
        taken = f"from {SLOWEST:g} to {FASTEST:g} are taken"
        raise ValueError(f"{path} says a rate of {sfreq} Hz, {taken}; is its header damaged?")
    return float(sfreq)


def check_reach(path: Path, signals: npt.NDArray[np.float64]) -> None:
    """Refuse signals (n_chans, n_samples), gaps and all, with values beyond what can be computed with."""
    for channel in signals:
        if (largest := np.max(np.abs(channel), where=np.isfinite(channel), initial=0.0)) > REACH:
            raise ValueError(
                f"{path} reaches {largest:.1e}, beyond what can be computed with; is its header damaged, or "
                "its unit another?"
            )


def read_text(path: Path, *, encoding: str = "utf-8-sig") -> str:
    """Return the text of a header or a table; what is no text, or too long for one, is refused."""
    if (size := path.stat().st_size) > TEXT:
        raise ValueError(
            f"{path} has {size} bytes, and at most {TEXT >> 20} MB are read as a table or header"
        )
    try:
        return path.read_bytes().decode(encoding)  # line ends as they are: a quoted one is part of a name
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8; save the table as CSV (UTF-8)") from None
