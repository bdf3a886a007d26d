"""Known file formats, and limits on what files may allocate; docs/data.md has them as a table."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorinv.errors import MissingExtra

#: Suffixes of files: windows, tables of samples, WFDB, and all continuous recordings.
WINDOWS = (".npz", ".npy")
TABLES = (".csv", ".csv.gz", ".csv.xz")
WFDB = (".hea", ".dat")
RECORDINGS = (".edf", ".bdf", ".gdf", ".fif", ".fif.gz", ".vhdr", *WFDB, *TABLES)
FILES = ".npz, .npy, EDF, BDF, GDF, FIF, BrainVision (.vhdr), WFDB (.hea, .dat), CSV"
KNOWN = f"a prepared folder, {FILES}"

#: mne's channel types that are voltages.
VOLTAGES = frozenset(("eeg", "eog", "emg", "ecg", "seeg", "ecog", "dbs", "bio", "resp"))

#: PhysioNet's annotator names; the first is the reference.
ANNOTATORS = (
    "atr", "ann", "ari", "ecg", "qrs", "gqrs", "sqrs", "wqrs", "man", "pu", "pu0", "pu1", "q1c", "q2c", "qt1",
    "qt2", "q1t", "q2t", "st", "sta", "stb", "stc", "stf", "apn", "hyp", "pwave", "wabp", "xws",
)  # fmt: skip

#: Values of a recording in memory (480 MB).
LARGEST = 60_000_000
#: Samples of a channel that is filtered at once, which takes several copies.
LONGEST = 15_000_000
#: Bytes that a byte of a file may unpack to, and values that it may encode: signals stay far below.
EXPANSION = 200
#: Bytes always allowed: a short file of zeros is not an attack.
SMALL = 16 << 20
CHANNELS = 10_000
#: Rows of a table, labels, windows.
ROWS = 1_000_000
#: Bytes of a text header or table.
TEXT = 64 << 20
#: Events in a recording, and in a separate file: heartbeats of two days.
EVENTS, BEATS = 20_000, 250_000
#: Sampling rates in Hz.
SLOWEST, FASTEST = 0.01, 1e7
#: Largest absolute value.
REACH = 1e30


def has_suffix(path: Path, *suffixes: str) -> bool:
    """Return whether a name has one of these suffixes, in any case; ``.fif.gz`` is one suffix."""
    return path.name.lower().endswith(suffixes)


def is_recording(path: Path) -> bool:
    """Return whether a path is a continuous recording; a WFDB record may have no suffix."""
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
        return ValueError(f"{path} is a part of a BrainVision recording; name its header, {header}")
    return ValueError(f"{path} has an unknown format; known formats: {KNOWN}")


def missing_labels(path: Path) -> ValueError:
    """Return the error for windows, or a recording, without labels."""
    events = "name its events with --events, or " if is_recording(path) else ""
    return ValueError(
        f"{path} has no labels of its windows; {events}use a prepared folder (anchorinv prepare "
        f"own), or an .npz with X and y"
    )


def room(n_bytes: int) -> int:
    """Return the bytes that a file of this size may unpack to."""
    return SMALL + EXPANSION * n_bytes


@contextmanager
def reading(path: Path, *, anew: str | None = None) -> Iterator[None]:
    """Turn any error of a reader into one that names the file, and silence its warnings.

    ``anew`` is the remedy for a damaged file; with it, the library's own message is left out.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except MissingExtra:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):  # already a message
            raise
        if anew is not None and not isinstance(error, OSError | MemoryError):
            raise ValueError(damaged(path, "", anew)) from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{path} cannot be read ({reason}); is it damaged or cut short?") from error


def damaged(source: object, reason: str, anew: str) -> str:
    """Return the message for a damaged file, with the remedy if known."""
    return f"{source} is cut short or damaged{f': {reason}' if reason else ''}{f'; {anew}' if anew else ''}"


def check_size(path: Path, n_chans: int, n_samples: int, *, in_one: bool = True) -> None:
    """Refuse what does not fit into memory; with ``in_one`` the recording is filtered at once."""
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
    """Refuse a header that declares more values than the bytes of ``files`` (or ``path``) can encode."""
    n_bytes = sum(file.stat().st_size for file in files or (path,))
    if n_chans > CHANNELS:
        raise ValueError(f"{path} declares {n_chans} channels, and at most {CHANNELS} are read")
    if n_chans * n_samples > room(n_bytes):
        raise ValueError(
            f"{path} declares {n_samples} samples in {n_chans} channels, which {n_bytes} bytes cannot hold; "
            "is its header damaged?"
        )


def check_rate(path: Path, sfreq: float) -> float:
    """Return a sampling rate if it is plausible."""
    if not SLOWEST <= sfreq <= FASTEST:
        taken = f"{SLOWEST:g} to {FASTEST:g} are allowed"
        raise ValueError(f"{path} says a rate of {sfreq} Hz, {taken}; is its header damaged?")
    return float(sfreq)


def check_reach(path: Path, signals: npt.NDArray[np.float64]) -> None:
    """Refuse signals (n_chans, n_samples), which may have gaps, with too large values."""
    for channel in signals:
        if (largest := np.max(np.abs(channel), where=np.isfinite(channel), initial=0.0)) > REACH:
            raise ValueError(
                f"{path} reaches {largest:.1e}, beyond what can be computed with; is its header damaged, or "
                "its unit another?"
            )


def read_text(path: Path, *, encoding: str = "utf-8-sig") -> str:
    """Return the text of a header or a table; binary or too long files are refused."""
    if (size := path.stat().st_size) > TEXT:
        raise ValueError(
            f"{path} has {size} bytes, and at most {TEXT >> 20} MB are read as a table or header"
        )
    try:
        return path.read_bytes().decode(encoding)  # keep line ends: a quoted one is part of a name
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; save the table as CSV (UTF-8)") from None
