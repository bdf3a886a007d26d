"""What a file may ask for: no more than it holds, times a stated factor; docs/data.md has it as a table."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorinv.problems import MissingExtra

#: A recording is held in memory as a whole; so many values (480 MB) leave room to work in.
LARGEST = 60_000_000
#: A channel is filtered as a whole, which takes several copies of it.
LONGEST = 15_000_000
#: Bytes that a byte of a file may unpack to, and values that it may stand for: signals stay far below.
EXPANSION = 200
#: So much needs no such proportion: a short file of zeros is no attack.
SMALL = 16 << 20
CHANNELS = 10_000
#: Rows of a table, labels, windows.
ROWS = 1_000_000
#: Bytes of a header or a table in text.
TEXT = 64 << 20
#: Events of a recording.
EVENTS = 20_000
SLOWEST, FASTEST = 0.01, 1e7
#: Values beyond cannot be computed with.
REACH = 1e30


def room(n_bytes: int) -> int:
    """Return what so many bytes of a file may unpack to."""
    return SMALL + EXPANSION * n_bytes


@contextmanager
def reading(path: Path, *, anew: str | None = None) -> Iterator[None]:
    """Turn whatever a reader trips over into an error that names the file; its warnings are not ours.

    Parameters
    ----------
    anew : how such a file is made again, where that is known; a library's own words then help nobody.
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


def damaged(what: object, why: str, anew: str) -> str:
    """Return the sentence about a file that is not whole, and how it is made again, if that is known."""
    return f"{what} is cut short or damaged{f': {why}' if why else ''}{f'; {anew}' if anew else ''}"


def check_size(path: Path, n_chans: int, n_samples: int, *, in_one: bool = True) -> None:
    """Refuse what does not fit into memory with room to work in; ``in_one``: samples are one recording."""
    if in_one and n_samples > LONGEST:
        raise ValueError(
            f"{path} has {n_samples} samples in each channel, and at most {LONGEST // 10**6} million are "
            "filtered at once; cut it into several files"
        )
    if n_chans * n_samples > LARGEST:
        raise ValueError(
            f"{path} holds {n_chans * n_samples} values, and at most {LARGEST // 10**6} "
            "million are read at once; choose fewer channels, or cut it into several files"
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
    """Return a rate that a recording can have."""
    if not SLOWEST <= sfreq <= FASTEST or not math.isfinite(sfreq):
        raise ValueError(
            f"{path} says a rate of {sfreq} Hz, from {SLOWEST:g} to {FASTEST:g} are taken; "
            "is its header damaged?"
        )
    return float(sfreq)


def check_reach(path: Path, signals: npt.NDArray[np.float64]) -> None:
    """Refuse signals (n_chans, n_samples), gaps and all, that reach beyond what can be computed with."""
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
