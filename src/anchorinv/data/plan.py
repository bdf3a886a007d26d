"""What is to be prepared: recordings, how to read each, and everything that decides the result."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv._version import __version__
from anchorinv.data.dataset import FORMAT
from anchorinv.signal.facts import facts_of
from anchorinv.signal.preprocessing import Preprocessing


@dataclass(frozen=True, slots=True)
class Row:
    """A window of a recording: where it starts there, and what is known about it."""

    start: int
    label: str
    subject: str
    session: str
    split: str
    rejected: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What one recording adds to a data set.

    Parameters
    ----------
    samples : (n_samples, n_chans) in the unit of the set.
    rows : its windows.
    counts : what was met on the way, such as missing samples; summed over the set.
    notes : sentences for whoever prepares.
    """

    samples: npt.NDArray[np.floating[Any]]
    rows: Sequence[Row]
    counts: dict[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A recording to come: its name, the files it depends on, and how to read it."""

    name: str
    files: tuple[Path, ...]
    read: Callable[[], Piece]


@dataclass(frozen=True, slots=True)
class Plan:
    """A data set to be prepared.

    Parameters
    ----------
    root : folder that files are named from.
    sources : in the order of the set.
    how : what was done to the signals; channels, rate and windows are those of the set.
    class_names : in order.
    recipe : everything that decides the result, as plain JSON values; kept in ``meta.json``.
    """

    root: Path
    sources: Sequence[Source]
    how: Preprocessing
    class_names: tuple[str, ...]
    recipe: dict[str, Any]

    def __post_init__(self) -> None:
        if self.how.ch_names is None or self.how.sfreq is None or self.how.n_times is None:
            raise ValueError("a prepared set needs names of channels, a rate and the length of its windows")

    @property
    def ch_names(self) -> tuple[str, ...]:
        """The channels in order."""
        return self.how.ch_names or ()

    def identity(self) -> dict[str, Any]:
        """What must be the same for a half-made folder to be continued."""
        facts = [FORMAT, __version__, facts_of(self.how), self.class_names, self.recipe]
        names = [source.name for source in self.sources]
        return {"plan": blake2b(json.dumps([facts, names]).encode(), digest_size=16).hexdigest()}
