"""Statistics of many windows: what a model keeps of its base data, and what new recordings are held against.

All are averages over windows. Nothing of a single window is kept, and of few windows only what each channel
needs to be standardised.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from anchorinv.model.shapes import correlations, has_pairs, n_bands, spectra, standardised

#: Base windows below which spectra and correlations are not kept: they would be those of single windows.
FEWEST_BASE = 10
#: Values looked at together, so that memory is bounded.
_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Count, mean and mean square deviation of something, to which more can be added.

    Parameters
    ----------
    n : how many values went into each mean.
    mean, variance : of any shape, such as (n_chans,).
    """

    n: int
    mean: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, signals: np.ndarray) -> Self:
        """Return those of each channel of signals (n, n_chans, n_times)."""
        values = np.asarray(signals, dtype=np.float64)
        return cls(values.shape[0] * values.shape[2], values.mean(axis=(0, 2)), values.var(axis=(0, 2)))

    @classmethod
    def over(cls, features: np.ndarray) -> Self:
        """Return those over windows of features (n, ...)."""
        return cls(len(features), features.mean(axis=0), features.var(axis=0))

    def __add__(self, other: "Moments") -> "Moments":
        n = self.n + other.n
        share, apart = other.n / n, other.mean - self.mean
        variance = self.variance + share * (other.variance - self.variance) + share * (1 - share) * apart**2
        return Moments(n, self.mean + share * apart, variance)


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """How windows look whatever their scale: moments over windows.

    Parameters
    ----------
    spectra : (n_chans, n_bands), see :func:`~anchorinv.model.shapes.spectra`; None of very short windows.
    pairs, shared : see :func:`~anchorinv.model.shapes.correlations`; None of one channel, or very many.
    """

    spectra: Moments | None
    pairs: Moments | None
    shared: Moments | None

    @classmethod
    def of(cls, signals: np.ndarray) -> "Shapes":
        """Return those of signals (n, n_chans, n_times)."""
        first, *more = (cls._of_some(some) for some in _some_at_a_time(signals))
        for each in more:
            first = first + each
        return first

    @classmethod
    def _of_some(cls, signals: np.ndarray) -> "Shapes":
        unit = standardised(signals)
        bands = Moments.over(spectra(unit)) if n_bands(signals.shape[2]) else None
        if not has_pairs(signals.shape[1]):
            return cls(bands, None, None)
        pairs, shared = correlations(unit)
        return cls(bands, Moments.over(pairs), Moments.over(shared))

    def __add__(self, other: "Shapes") -> "Shapes":
        def both(name: str) -> Moments | None:
            mine, theirs = getattr(self, name), getattr(other, name)
            return None if mine is None or theirs is None else mine + theirs

        return Shapes(both("spectra"), both("pairs"), both("shared"))


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Of windows that are held against the base data.

    Parameters
    ----------
    n : windows.
    samples : moments of each channel.
    shapes : None where nobody looked.
    """

    n: int
    samples: Moments
    shapes: Shapes | None

    @classmethod
    def of(cls, signals: np.ndarray, *, shapes: bool = True) -> "Statistics":
        """Return those of signals (n, n_chans, n_times), with or without a look at spectra and pairs."""
        return cls(len(signals), Moments.of(signals), Shapes.of(signals) if shapes else None)

    def __add__(self, other: "Statistics") -> "Statistics":
        shapes = self.shapes + other.shapes if self.shapes and other.shapes else None
        return Statistics(self.n + other.n, self.samples + other.samples, shapes)


@dataclass(frozen=True, slots=True, eq=False)
class Typical:
    """Mean and standard deviation between windows of a feature."""

    mean: np.ndarray
    std: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class BaseStatistics:
    """Of the base data, kept with a model.

    Parameters
    ----------
    mean, std : (n_chans, 1) of each channel over all windows; 0 is the spread of a flat one.
    spectra, pairs, shared : as in :class:`Shapes`; None where they were not kept: of few base windows, of a
        shape that has none, and in files of former versions.
    """

    mean: np.ndarray
    std: np.ndarray
    spectra: Typical | None = None
    pairs: Typical | None = None
    shared: Typical | None = None

    @classmethod
    def of(cls, signals: np.ndarray) -> "BaseStatistics":
        """Return those of base windows (n, n_chans, n_times)."""
        found = Statistics.of(signals, shapes=len(signals) >= FEWEST_BASE)
        parts = [getattr(found.shapes, name) if found.shapes else None for name in SHAPES]
        typical = [Typical(each.mean, np.sqrt(each.variance)) if each else None for each in parts]
        samples = found.samples
        return cls(samples.mean[:, None], np.sqrt(samples.variance)[:, None], *typical)

    @property
    def has_shapes(self) -> bool:
        """Whether there is anything beside means and spreads to compare with."""
        return any(getattr(self, name) is not None for name in SHAPES)


#: What is known of windows' shapes, by the names under which files know it.
SHAPES = ("spectra", "pairs", "shared")


def shapes_of(n_chans: int, n_times: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each part that windows (n_chans, n_times) have."""
    found: dict[str, tuple[int, ...]] = {}
    if bands := n_bands(n_times):
        found["spectra"] = (n_chans, bands)
    if has_pairs(n_chans):
        found |= {"pairs": (n_chans * (n_chans - 1) // 2,), "shared": (n_chans,)}
    return found


def _some_at_a_time(signals: np.ndarray) -> Iterator[np.ndarray]:
    n_chans, n_times = signals.shape[1:]
    size = max(1, _AT_ONCE // (n_chans * max(n_chans, n_times)))
    for start in range(0, len(signals), size):
        yield signals[start : start + size]
