"""Drift: how much new recordings differ from the base data of a model, in numbers and in a sentence.

Compared are mean and standard deviation of each channel and, independent of scale, its spectrum and its
correlations with the others. A model stores those of its base windows, all averages over windows: nothing of
a single window is stored, and of few windows only what standardisation needs.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, Self

import numpy as np

from anchorinv.errors import listed

#: Statistics independent of scale, by their names in files.
SHAPES = ("spectra", "pairs", "shared")
#: Minimum number of base windows to store spectra and correlations: those of fewer would reveal single ones.
MIN_BASE_WINDOWS = 10
#: Minimum number of windows to compare spectra and correlations: a single one may be an artefact.
MIN_WINDOWS = 5
#: Maximum number of channels for correlations of all pairs.
MAX_CORRELATED = 128
_MAX_BANDS = 8  # of equal width up to half the sampling rate
_AT_ONCE = 1 << 18  # values, to bound memory
_MIN_POWER = 1e-3  # share of power: below it, bands differ by the last bit of a converter
_MAX_CORRELATION = 0.999  # so that Fisher's transform is finite
_MIN_SQUARED = 0.01  # squared correlation, about that of independent channels in a short window
_ROUNDING = 1e-12  # share of the mean: by rounding, a constant may have so small a spread
#: Ratio of standard deviations, or offset in standard deviations: odd, and extreme. A smaller spread is
#: extreme at the third ratio: resting muscles are thirty times quieter than active ones.
_ODD, _EXTREME, _EXTREMELY_QUIET = 3.0, 30.0, 100.0
#: Distance of a spectrum or correlations, in standard deviations between base windows: odd, and far.
#: Chosen on four sets of EMG, ECG and EEG, where unseen days and people stay below 4.2 and white
#: noise exceeds 5; not confirmed on further data.
_UNLIKE, _FAR = 2.0, 4.5
#: Median ratio over channels that indicates another gain. Untaught motions exceed it on some channels, but
#: their median over channels was 2.4 at most.
_LOUD = 4.0
#: Smallest standard deviations used: of log shares of power, transformed correlations, log shared variance.
_MIN_STD_BAND, _MIN_STD_PAIR, _MIN_STD_SHARED = 0.3, 0.1, 0.35
#: Two channels are considered shorted if their transformed correlation newly exceeds this (0.9985).
_SHORTED, _NEWLY = 3.6, 3.0
#: A swap is reported if it explains this share of the distance, of at least this many windows, with at least
#: this mean squared distance.
_SWAP_SHARE, _SWAP_WINDOWS, _SWAP_DISTANCE = 0.5, 10, 0.05
_MAINS = (50.0, 60.0)  # Hz


def n_bands(n_times: int) -> int:
    """Return how many bands the spectrum of a window has; 0 where it is too short for any."""
    return min(_MAX_BANDS, n_times // 2) if n_times >= 4 else 0


def band_edges(n_times: int) -> np.ndarray:
    """Return where bands begin and end, shape (n_bands + 1,), as frequency bins above the mean."""
    return np.round(np.linspace(0, n_times // 2, n_bands(n_times) + 1)).astype(np.int64)


def standardise(signals: np.ndarray) -> np.ndarray:
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
    bands = np.add.reduceat(power, band_edges(n_times)[:-1], axis=2, dtype=np.float64)
    total = bands.sum(axis=2, keepdims=True)
    return np.asarray(np.log(bands / np.where(total > 0, total, 1) + _MIN_POWER))


def correlations(unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Fisher's transform of each pair's correlation, and each channel's shared variance.

    For standardised windows: pairs (n, n_chans * (n_chans - 1) / 2) in the order of ``np.triu_indices``, and
    the logarithm of each channel's mean squared correlation with the others (n, n_chans).
    """
    n_chans = unit.shape[1]
    matrices = (unit @ unit.transpose(0, 2, 1)).astype(np.float64) / unit.shape[2]
    pairs = matrices[(slice(None), *np.triu_indices(n_chans, 1))]
    diagonal = np.einsum("ncc->nc", matrices)
    squares = np.einsum("nij,nij->ni", matrices, matrices) - diagonal**2
    shared = np.log(np.maximum(squares, 0) / (n_chans - 1) + _MIN_SQUARED)
    return np.arctanh(np.clip(pairs, -_MAX_CORRELATION, _MAX_CORRELATION)), shared


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Mean and variance of ``n`` values of any shape; those of two parts of the data can be added."""

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
        share, difference = other.n / n, other.mean - self.mean
        variance = (
            self.variance + share * (other.variance - self.variance) + share * (1 - share) * difference**2
        )
        return Moments(n, self.mean + share * difference, variance)


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Statistics of ``n`` windows that are compared with the base data; those of two parts can be added.

    ``samples`` are those of each channel, ``shapes`` those over windows, by the ``SHAPES`` that they have;
    None where not computed.
    """

    n: int
    samples: Moments
    shapes: dict[str, Moments] | None

    @classmethod
    def of(cls, signals: np.ndarray, *, shapes: bool = True) -> "Statistics":
        """Return those of signals, shape (n, n_chans, n_times), with or without spectra and correlations."""
        size = max(1, _AT_ONCE // (signals.shape[1] * max(signals.shape[1:])))
        blocks = (signals[i : i + size] for i in range(0, len(signals), size))
        parts = (cls(len(b), Moments.of(b), _shape_moments(b) if shapes else None) for b in blocks)
        return reduce(operator.add, parts)

    def __add__(self, other: "Statistics") -> "Statistics":
        shapes = None
        if self.shapes is not None and other.shapes is not None:
            shapes = {name: moments + other.shapes[name] for name, moments in self.shapes.items()}
        return Statistics(self.n + other.n, self.samples + other.samples, shapes)


def _shape_moments(signals: np.ndarray) -> dict[str, Moments]:
    unit, features = standardise(signals), {}
    known = shapes_of(*signals.shape[1:])
    if "spectra" in known:
        features["spectra"] = spectra(unit)
    if "pairs" in known:
        features["pairs"], features["shared"] = correlations(unit)
    return {name: Moments.over(values) for name, values in features.items()}


class MeanStd(NamedTuple):
    """Mean and standard deviation of a feature over windows."""

    mean: np.ndarray
    std: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class BaseStatistics:
    """Statistics of the base data, kept with a model: ``mean`` and ``std`` of each channel (n_chans, 1).

    Those of :func:`spectra` and :func:`correlations` over windows are None where they were not kept: of few
    base windows, of a shape that has none, and in files from earlier versions.
    """

    mean: np.ndarray
    std: np.ndarray
    spectra: MeanStd | None = None
    pairs: MeanStd | None = None
    shared: MeanStd | None = None

    @classmethod
    def of(cls, signals: np.ndarray) -> "BaseStatistics":
        """Return those of base windows, shape (n, n_chans, n_times)."""
        windows = Statistics.of(signals, shapes=len(signals) >= MIN_BASE_WINDOWS)
        shapes = {name: MeanStd(part.mean, part.std) for name, part in (windows.shapes or {}).items()}
        return cls(windows.samples.mean[:, None], windows.samples.std[:, None], **shapes)

    @property
    def has_shapes(self) -> bool:
        """Whether there are spectra or correlations to compare with."""
        return any(getattr(self, name) is not None for name in SHAPES)


def shapes_of(n_chans: int, n_times: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of ``SHAPES`` that windows (n_chans, n_times) have."""
    shapes: dict[str, tuple[int, ...]] = {}
    if bands := n_bands(n_times):
        shapes["spectra"] = (n_chans, bands)
    if 2 <= n_chans <= MAX_CORRELATED:
        shapes |= {"pairs": (n_chans * (n_chans - 1) // 2,), "shared": (n_chans,)}
    return shapes


@dataclass(frozen=True, slots=True, eq=False)
class SpectrumDrift:
    """Distance of spectra from the base data's, in standard deviations between base windows."""

    distance: np.ndarray  # (n_chans,), root mean square over bands; 0 for a channel that is flat, or was
    bands: np.ndarray  # (n_chans, n_bands), positive where there is more power
    white: np.ndarray  # (n_chans,), whether the spectrum is that of white noise


@dataclass(frozen=True, slots=True, eq=False)
class CovarianceDrift:
    """Distance of correlations between channels, in standard deviations between base windows."""

    distance: np.ndarray  # (n_chans,), of each channel with the others; 0 for one that is flat, or was
    isolation: np.ndarray  # (n_chans,), how much less a channel shares with all others
    shorted: tuple[tuple[int, int], ...] = ()  # pairs of channels that carry one signal, and did not
    swapped: tuple[int, int] | None = None  # two channels whose exchange explains most of the distance


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """Differences between recordings and the base data.

    Parameters
    ----------
    channels : tuple of str
        Their names; without names "channel 0" etc., numbered as the axis of arrays, as in all messages.
    scale : array, shape (n_chans,)
        Standard deviation, in those of the base data; 0 for a channel that went flat.
    shift : array, shape (n_chans,)
        Distance of the means, in standard deviations of the base data.
    silent : array of bool, shape (n_chans,)
        Whether a channel was flat in the base data.
    spectrum : SpectrumDrift or None, default=None
    covariance : CovarianceDrift or None, default=None
    missing : str or None, default=None
        Why spectra and covariances were not compared, if so.
    n_times : int, default=0
    sfreq : float or None, default=None
        Of windows, to name frequencies.
    scaled : float, default=1.0
        Factor already applied to the signals (--scale), to suggest the right one.

    Examples
    --------
    >>> windows = np.random.default_rng(0).normal(size=(40, 3, 64))
    >>> base = BaseStatistics.of(windows)
    >>> drift(Statistics.of(windows), base, ("C3", "Cz", "C4")).level
    'like'
    >>> print(drift(Statistics.of(1000 * windows), base, None).units)
    every channel: far from the base data, about 1000 times its spread; is the recording in another unit? \
multiply it by 0.001 (--scale 0.001)
    """

    channels: tuple[str, ...]
    scale: np.ndarray
    shift: np.ndarray
    silent: np.ndarray
    spectrum: SpectrumDrift | None = None
    covariance: CovarianceDrift | None = None
    missing: str | None = None
    n_times: int = 0
    sfreq: float | None = None
    scaled: float = 1.0

    @property
    def distance(self) -> np.ndarray:
        """For each channel, the larger of the shift and the ratio of spreads; 1 is no difference."""
        with np.errstate(divide="ignore"):
            factor = np.maximum(self.scale, np.where(self.scale > 0, 1 / self.scale, np.inf))
        return np.asarray(np.maximum(factor, self.shift))

    @property
    def beyond(self) -> np.ndarray:
        """Whether the scale or offset of each channel is extreme."""
        return np.asarray(
            (self.scale > _EXTREME) | (self.shift > _EXTREME) | (self.scale < 1 / _EXTREMELY_QUIET)
        )

    @property
    def extreme(self) -> bool:
        """Whether scale or offset differ too much to learn from these signals."""
        return bool(self.beyond.any())

    @property
    def shape_distance(self) -> float:
        """The largest distance of any channel's spectrum or covariance; 0 where they were not compared."""
        parts = (part for part in (self.spectrum, self.covariance) if part is not None)
        return max((float(part.distance.max()) for part in parts), default=0.0)

    @property
    def far(self) -> bool:
        """Whether predictions should not be trusted."""
        return self.extreme or self.shape_distance > _FAR

    @property
    def artefact(self) -> bool:
        """Whether this is probably an artefact rather than signals of another class.

        A class has its own correlations, and is loud or quiet on some channels. Noise, mains hum, a flat
        channel or another gain show as a distant spectrum, an extreme scale, or most channels being loud.
        """
        alive = self.scale[~self.silent]
        loud = bool(len(alive)) and float(np.median(alive)) > _LOUD
        odd = self.spectrum is not None and bool((self.spectrum.distance > _FAR).any())
        return self.extreme or loud or odd

    @property
    def level(self) -> str:
        """``"like"`` the base data, ``"somewhat unlike"``, or ``"far"``."""
        if self.far:
            return "far"
        faults = self.covariance is not None and (self.covariance.shorted or self.covariance.swapped)
        odd = (self.distance > _ODD).any() or self.shape_distance > _UNLIKE
        return "somewhat unlike" if odd or faults else "like"

    @property
    def factor(self) -> float | None:
        """Common ratio of the spreads of (nearly) all channels, as with a wrong unit; None if they vary."""
        alive = ~self.silent & (self.scale > 0)
        if not alive.any() or alive.sum() < 0.9 * (~self.silent).sum():
            return None
        logs = np.log10(self.scale[alive])
        middle = float(np.median(logs))
        if (np.abs(logs - middle) < 0.7).mean() < 0.8 or 10 ** abs(middle) <= _EXTREME:
            return None
        return 10**middle

    @property
    def unit_factor(self) -> float | None:
        """The power of ten nearest to the factor, as of another unit; None if there is none."""
        if self.factor is None:
            return None
        exponent = np.log10(self.factor)
        thousands, tens = 3 * round(exponent / 3), round(exponent)
        # Units differ by thousands, so that a signal four times as strong is not ambiguous.
        if thousands and abs(exponent - thousands) < 0.65:
            return float(10.0**thousands)
        return float(10.0**tens) if abs(exponent - tens) < 0.3 else None

    @property
    def verdict(self) -> str:
        """One sentence: like the base data, or what differs in which channels, and a likely cause."""
        parts = [*_scale_words(self), *_spectrum_words(self), *_covariance_words(self)]
        parts = parts or ["the recordings are like the base data in every channel"]
        return "; ".join(parts + ([self.missing] if self.missing else []))

    @property
    def units(self) -> str:
        """The sentence on scale and offset; empty if they do not differ."""
        return "; ".join(_scale_words(self))


def drift(
    new: Statistics,
    base: BaseStatistics,
    ch_names: tuple[str, ...] | None,
    *,
    n_times: int = 0,
    sfreq: float | None = None,
) -> Drift:
    """Compare statistics with those of the base data; a channel that is flat in both does not count.

    ``n_times`` and ``sfreq`` are those of windows, to name frequencies.
    """
    mean, spread = base.mean[:, 0], base.std[:, 0]
    std = np.where(new.samples.std > _ROUNDING * np.abs(new.samples.mean), new.samples.std, 0.0)
    was_flat = spread == 0
    unit = np.where(was_flat, 1.0, spread)
    scale = np.where(was_flat & (std == 0), 1.0, std / unit)
    shift = np.abs(new.samples.mean - mean) / unit
    names = ch_names or tuple(f"channel {i}" for i in range(len(mean)))
    alive = ~was_flat & (std > 0)
    spectrum, covariance, missing = None, None, None
    if not base.has_shapes:
        missing = "the model has no spectra and covariances of its base data"
    elif new.n < MIN_WINDOWS or new.shapes is None:
        missing = f"spectra and covariances are not compared with fewer than {MIN_WINDOWS} windows"
    else:
        if base.spectra and "spectra" in new.shapes:
            spectrum = _spectrum_drift(new.shapes["spectra"].mean, base.spectra, new.n, alive)
        if base.pairs and base.shared and "pairs" in new.shapes:
            covariance = _covariance_drift(new.shapes, base.pairs, base.shared, new.n, alive)
    return Drift(names, scale, shift, was_flat, spectrum, covariance, missing, n_times, sfreq)


def _spectrum_drift(mean: np.ndarray, base: MeanStd, n: int, alive: np.ndarray) -> SpectrumDrift:
    away = (mean - base.mean) / np.maximum(base.std, _MIN_STD_BAND)
    # Minus the expectation by chance, for n windows.
    distance = np.sqrt(np.maximum(0, (away**2).mean(axis=1) - 1 / n))
    return SpectrumDrift(np.where(alive, distance, 0.0), away, white=np.ptp(mean, axis=1) < 0.5)


def _covariance_drift(
    new: Mapping[str, Moments], pairs: MeanStd, shared: MeanStd, n: int, alive: np.ndarray
) -> CovarianceDrift:
    """Compare the correlations of n windows; ``alive`` channels (n_chans,) vary in both."""
    from scipy.spatial.distance import squareform  # pairs as a symmetric matrix

    mean = new["pairs"].mean
    rows, cols = np.triu_indices(len(alive), 1)
    both = alive[rows] & alive[cols]
    std = np.maximum(pairs.std, _MIN_STD_PAIR)
    away = np.where(both, (mean - pairs.mean) / std, 0.0)
    n_others = np.maximum(squareform(both.astype(float)).sum(axis=1), 1)
    # Minus the expectation by chance, for n windows.
    distance = np.sqrt(np.maximum(0, squareform(away**2).sum(axis=1) / n_others - 1 / n))
    isolation = np.zeros(len(alive))
    if alive.all():  # without one channel, all others share less
        less = shared.mean - new["shared"].mean
        isolation = np.maximum(0, less / np.maximum(shared.std, _MIN_STD_SHARED))
    (places,) = ((mean > _SHORTED) & (away > _NEWLY)).nonzero()
    shorted = tuple((int(rows[i]), int(cols[i])) for i in places)
    distant = (away**2).mean() - 1 / n > _SWAP_DISTANCE
    swapped = None
    if n >= _SWAP_WINDOWS and len(alive) > 2 and distant and not shorted:
        weights = np.where(both, 1 / std**2, 0.0)
        swapped = _find_swap(*(squareform(part) for part in (mean, pairs.mean, weights)))
    return CovarianceDrift(np.where(alive, np.maximum(distance, isolation), 0.0), isolation, shorted, swapped)


def _find_swap(new: np.ndarray, base: np.ndarray, weights: np.ndarray) -> tuple[int, int] | None:
    """Return the two channels whose swap explains the difference of matrices (n_chans, n_chans), if any."""
    # (i, j): the distance of channel j's correlations from those that channel i should have.
    cost = weights @ new.T**2 - 2 * (weights * base) @ new.T + (weights * base**2).sum(axis=1)[:, None]
    cost -= weights * base**2  # without the correlation of j with itself
    unswapped = np.diag(cost)
    mutual = weights * (new - base) ** 2  # that of the two with each other stays
    gain = unswapped[:, None] + unswapped[None, :] - 2 * mutual - cost - cost.T
    np.fill_diagonal(gain, 0)
    i, j = np.unravel_index(int(np.argmax(gain)), gain.shape)
    explained = gain[i, j] / max(float(unswapped.sum()) / 2, 1e-12)
    return (int(min(i, j)), int(max(i, j))) if explained > _SWAP_SHARE else None


def _scale_words(drift: Drift) -> list[str]:
    far = drift.beyond if drift.extreme else drift.distance > _ODD
    if not far.any():
        return []
    if drift.extreme and drift.factor is not None:
        return [_unit_words(drift)]
    flat = far & (drift.scale == 0)
    words = [_flat_words(drift, flat)] if flat.any() else []
    if not (rest := far & ~flat).any():
        return words
    worst = int(np.argmax(np.where(rest, drift.distance, 0)))
    values = {
        f"a spread of {drift.scale[worst]:.2g}": not 1 / _ODD <= drift.scale[worst] <= _ODD,
        f"a shift of {drift.shift[worst]:.2g} spreads": drift.shift[worst] > _ODD,
    }
    which = "the worst has " if rest.sum() > 1 else ""
    how = f"{which}{' and '.join(value for value, is_odd in values.items() if is_odd)}"
    word = "far from" if drift.extreme else "somewhat unlike"
    return [*words, f"{_names_of(drift, rest)}: {word} the base data ({how}); {_guess(drift, rest)}"]


def _flat_words(drift: Drift, flat: np.ndarray) -> str:
    now, before = ("is", "was") if flat.sum() == 1 or flat.all() else ("are", "were")
    return f"{_names_of(drift, flat)} {now} flat and {before} not in the base data; is an electrode off?"


def _unit_words(drift: Drift) -> str:
    unit = drift.unit_factor
    where = "every channel" if len(drift.channels) > 1 else drift.channels[0]
    times = f"{drift.factor:.2g}" if unit is None else f"{unit:g}"
    remedy = ", or at another gain? bring it to that of the base data (--scale)"
    if unit is not None:
        remedy = f"? multiply it by {1 / unit:g} (--scale {drift.scaled / unit:g})"
    far = f"{where}: far from the base data, about {times} times its spread"
    return f"{far}; is the recording in another unit{remedy}"


def _guess(drift: Drift, far: np.ndarray) -> str:
    if not drift.extreme:
        return "predictions may suffer"
    if (drift.shift[far] > _EXTREME).all() and (drift.scale[far] < _ODD).all():
        return "is there an offset that the base data had not? subtract it, or filter as they were"
    if far.all():
        return "are the units those of fit?"
    return "is an electrode off or loose, or are the units those of fit?"


def _spectrum_words(drift: Drift) -> list[str]:
    spectrum = drift.spectrum
    if spectrum is None or not (spectrum.distance > _UNLIKE).any():
        return []
    unlike, word = _worst(spectrum.distance)
    away = spectrum.bands[unlike].mean(axis=0)
    # Gained power is more informative than the shares it reduced.
    band = int(np.argmax(np.where(away > 0, 2 * away, -away)))
    more = "more" if away[band] > 0 else "less"
    words = f"the spectrum of {_names_of(drift, unlike)} is {word} the base data's: {more} of its power"
    edges = band_edges(drift.n_times)[[band, band + 1]] / (drift.n_times // 2) / 2  # of the rate
    low, high = edges * (drift.sfreq or 0.0)
    if drift.sfreq is None:
        words += f" at {100 * edges[0]:.3g}-{100 * edges[1]:.3g}% of the sampling rate"
    else:
        words += f" at {low:.0f}-{high:.0f} Hz" if drift.sfreq >= 100 else f" at {low:.3g}-{high:.3g} Hz"
    if spectrum.white[unlike].all():
        return [f"{words}, and as even as noise: is an electrode off?"]
    if more == "more" and any(low <= mains <= high for mains in _MAINS):
        return [f"{words}: is it mains hum, or another filter?"]
    return [f"{words}: is it filtered as the base data were?"]


def _covariance_words(drift: Drift) -> list[str]:
    covariance = drift.covariance
    if covariance is None:
        return []
    names, words = drift.channels, []
    if covariance.shorted:
        first, second = covariance.shorted[0]
        more = f" (and {len(covariance.shorted) - 1} pairs more)" if len(covariance.shorted) > 1 else ""
        words.append(f"{names[first]} and {names[second]}{more} carry one signal: are they shorted?")
    if covariance.swapped:
        first, second = covariance.swapped
        words.append(f"{names[first]} and {names[second]} correlate with the others as if they were swapped")
    if not (covariance.distance > _UNLIKE).any():
        return words
    unlike, away = _worst(covariance.distance)
    channels = _names_of(drift, unlike)
    if (covariance.isolation[unlike] > _UNLIKE).all():
        less = f"{away.split()[0]} less in common with the other channels than in the base data"
        words.append(f"{channels}: {less}: is an electrode off?")
    elif not words or away == "far from":
        words.append(
            f"the correlations of {channels} with the others are {away} the base data's: are channels "
            f"swapped, shorted or referenced in another way?"
        )
    return words


def _worst(distance: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the channels that are far from the base data, or else those unlike it, and the words for it."""
    far = distance > _FAR
    return (far, "far from") if far.any() else (distance > _UNLIKE, "somewhat unlike")


def _names_of(drift: Drift, which: np.ndarray) -> str:
    names = [name for name, is_one in zip(drift.channels, which, strict=True) if is_one]
    return "every channel" if which.all() and len(names) > 1 else listed(names, most=5)
