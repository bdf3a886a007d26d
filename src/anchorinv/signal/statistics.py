"""Statistics of the base windows, stored with a model and compared with new recordings.

Mean and standard deviation of each channel and, independent of scale, its spectrum and its correlations with
the others. All are averages over windows. Nothing of a single window is stored, and of few windows only what
standardisation needs.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Self

import numpy as np

#: Statistics independent of scale, by their names in files.
SHAPES = ("spectra", "pairs", "shared")
#: Minimum number of base windows to store spectra and correlations, which would reveal single windows.
FEWEST_BASE = 10
#: Values processed at once, to bound memory.
_AT_ONCE = 1 << 18
#: Bands of equal width up to half the sampling rate; fewer where a window has fewer frequencies.
BANDS = 8
#: Maximum number of channels for correlations of all pairs.
MOST_CORRELATED = 128
#: Smallest share of power: below it, bands differ by the last bit of a converter.
_QUIET = 1e-3
#: Correlations are clipped to this, so that Fisher's transform is finite.
_CLOSEST = 0.999
#: Smallest squared correlation, about that of independent channels in a short window.
_CHANCE = 0.01


def n_bands(n_times: int) -> int:
    """Return how many bands the spectrum of a window has; 0 where it is too short for any."""
    return min(BANDS, n_times // 2) if n_times >= 4 else 0


def band_edges(n_times: int) -> np.ndarray:
    """Return where bands begin and end, shape (n_bands + 1,), as shares of half the sampling rate."""
    return _edges(n_times) / (n_times // 2)


def has_pairs(n_chans: int) -> bool:
    """Return whether correlations are computed: for two channels or more, up to a maximum."""
    return 2 <= n_chans <= MOST_CORRELATED


def standardised(signals: np.ndarray) -> np.ndarray:
    """Return each channel of each window with mean 0 and standard deviation 1, float32; a flat one is 0."""
    centred = signals - signals.mean(axis=2, keepdims=True)
    # By the peak first: squares could overflow.
    peak = np.abs(centred).max(axis=2, keepdims=True)
    centred = (centred / np.where(peak > 0, peak, 1)).astype(np.float32)
    power = np.einsum("nct,nct->nc", centred, centred)[:, :, None] / signals.shape[2]
    return np.asarray(centred / np.sqrt(np.where(power > 0, power, 1)))


def spectra(unit: np.ndarray) -> np.ndarray:
    """Return the log share of power in each band, (n, n_chans, n_bands), of standardised windows."""
    n_times = unit.shape[2]
    taper = np.hanning(n_times + 2)[1:-1].astype(np.float32)
    waves = np.fft.rfft(unit * taper, axis=2)[:, :, 1:]  # without the mean
    power = waves.real**2 + waves.imag**2
    bands = np.add.reduceat(power, _edges(n_times)[:-1], axis=2, dtype=np.float64)
    whole = bands.sum(axis=2, keepdims=True)
    return np.asarray(np.log(bands / np.where(whole > 0, whole, 1) + _QUIET))


def correlations(unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Fisher's transform of each pair's correlation, and each channel's shared variance.

    For standardised windows: pairs (n, n_chans * (n_chans - 1) / 2) in the order of ``np.triu_indices``, and
    the logarithm of each channel's mean squared correlation with the others (n, n_chans).
    """
    n_chans = unit.shape[1]
    matrices = (unit @ unit.transpose(0, 2, 1)).astype(np.float64) / unit.shape[2]
    pairs = matrices[(slice(None), *np.triu_indices(n_chans, 1))]
    itself = np.einsum("ncc->nc", matrices)
    squares = np.einsum("nij,nij->ni", matrices, matrices) - itself**2
    shared = np.log(np.maximum(squares, 0) / (n_chans - 1) + _CHANCE)
    return np.arctanh(np.clip(pairs, -_CLOSEST, _CLOSEST)), shared


def _edges(n_times: int) -> np.ndarray:
    return np.asarray(np.round(np.linspace(0, n_times // 2, n_bands(n_times) + 1)), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Running mean and variance of ``n`` values, of any shape.

    Examples
    --------
    >>> first, second = (Moments.over(np.array(values)) for values in ([1.0, 2.0], [3.0]))
    >>> float((first + second).mean)
    2.0
    """

    n: int
    mean: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, signals: np.ndarray) -> Self:
        """Return those of each channel of signals, shape (n, n_chans, n_times)."""
        values = np.asarray(signals, dtype=np.float64)
        return cls(values.shape[0] * values.shape[2], values.mean(axis=(0, 2)), values.var(axis=(0, 2)))

    @classmethod
    def over(cls, features: np.ndarray) -> Self:
        """Return those of features, shape (n, ...), over the first axis."""
        return cls(len(features), features.mean(axis=0), features.var(axis=0))

    @property
    def std(self) -> np.ndarray:
        """Standard deviation."""
        return np.asarray(np.sqrt(self.variance))

    def __add__(self, other: "Moments") -> "Moments":
        n = self.n + other.n
        share, apart = other.n / n, other.mean - self.mean
        variance = self.variance + share * (other.variance - self.variance) + share * (1 - share) * apart**2
        return Moments(n, self.mean + share * apart, variance)


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Statistics of ``n`` windows that are compared with the base data.

    ``samples`` are those of each channel, ``shapes`` those over windows, of the ``SHAPES`` that they have;
    None where not computed.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=(20, 3, 64))
    >>> statistics = Statistics.of(noise) + Statistics.of(noise)
    >>> statistics.n, statistics.shapes["spectra"].mean.shape
    (40, (3, 8))
    """

    n: int
    samples: Moments
    shapes: dict[str, Moments] | None

    @classmethod
    def of(cls, signals: np.ndarray, *, shapes: bool = True) -> "Statistics":
        """Return those of signals, shape (n, n_chans, n_times), with or without spectra and correlations."""
        return reduce(
            operator.add,
            (
                cls(len(block), Moments.of(block), _shape_moments(block) if shapes else None)
                for block in _blocks(signals)
            ),
        )

    def __add__(self, other: "Statistics") -> "Statistics":
        known = self.shapes is not None and other.shapes is not None
        shapes = _added(self.shapes or {}, other.shapes or {}) if known else None
        return Statistics(self.n + other.n, self.samples + other.samples, shapes)


def _shape_moments(signals: np.ndarray) -> dict[str, Moments]:
    unit, features = standardised(signals), {}
    if n_bands(signals.shape[2]):
        features["spectra"] = spectra(unit)
    if has_pairs(signals.shape[1]):
        features["pairs"], features["shared"] = correlations(unit)
    return {name: Moments.over(values) for name, values in features.items()}


def _added(one: dict[str, Moments], other: dict[str, Moments]) -> dict[str, Moments]:
    return {name: one[name] + other[name] for name in one}


@dataclass(frozen=True, slots=True, eq=False)
class MeanStd:
    """Mean and standard deviation of a feature over windows."""

    mean: np.ndarray
    std: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class BaseStatistics:
    """Statistics of the base data, kept with a model: ``mean`` and ``std`` of each channel (n_chans, 1).

    Those of :func:`spectra` and :func:`correlations` over windows are None where they were not kept: of few
    base windows, of a shape that has none, and in files from earlier versions.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=(20, 3, 64))
    >>> base = BaseStatistics.of(noise)
    >>> base.std.shape, base.has_shapes
    ((3, 1), True)
    """

    mean: np.ndarray
    std: np.ndarray
    spectra: MeanStd | None = None
    pairs: MeanStd | None = None
    shared: MeanStd | None = None

    @classmethod
    def of(cls, signals: np.ndarray) -> "BaseStatistics":
        """Return those of base windows, shape (n, n_chans, n_times)."""
        windows = Statistics.of(signals, shapes=len(signals) >= FEWEST_BASE)
        shapes = {name: MeanStd(part.mean, part.std) for name, part in (windows.shapes or {}).items()}
        return cls(windows.samples.mean[:, None], windows.samples.std[:, None], **shapes)

    @property
    def has_shapes(self) -> bool:
        """Whether there are spectra or correlations to compare with."""
        return any(getattr(self, name) is not None for name in SHAPES)


def shapes_of(n_chans: int, n_times: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of ``SHAPES`` that windows (n_chans, n_times) have.

    Examples
    --------
    >>> shapes_of(3, 64)
    {'spectra': (3, 8), 'pairs': (3,), 'shared': (3,)}
    """
    shapes: dict[str, tuple[int, ...]] = {}
    if bands := n_bands(n_times):
        shapes["spectra"] = (n_chans, bands)
    if has_pairs(n_chans):
        shapes |= {"pairs": (n_chans * (n_chans - 1) // 2,), "shared": (n_chans,)}
    return shapes


def _blocks(signals: np.ndarray) -> Iterator[np.ndarray]:
    n_chans, n_times = signals.shape[1:]
    size = max(1, _AT_ONCE // (n_chans * max(n_chans, n_times)))
    for start in range(0, len(signals), size):
        yield signals[start : start + size]
