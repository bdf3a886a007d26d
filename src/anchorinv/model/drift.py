"""How far new recordings are from those a model was trained on, compared and told in a sentence."""

from dataclasses import dataclass

import numpy as np

from anchorinv.model.covariances import covariance_drift
from anchorinv.model.distances import FEWEST, Distances, SpectrumDrift
from anchorinv.model.statistics import BaseStatistics, Statistics, Typical
from anchorinv.model.verdict import scale_words, verdict_of

#: Of log shares of power: differences below it are of no interest, however steady the base data are.
_STEADY = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class Drift(Distances):
    """How far recordings are from the base data, with a sentence about it."""

    @property
    def verdict(self) -> str:
        """One sentence: as the base data, or what differs, in which channels, with a guess at the cause."""
        return verdict_of(self)

    @property
    def units(self) -> str:
        """What there is to say of scale and offset alone; empty if nothing."""
        return "; ".join(scale_words(self))


def drift(
    new: Statistics,
    base: BaseStatistics,
    ch_names: tuple[str, ...] | None,
    *,
    n_times: int = 0,
    sfreq: float | None = None,
) -> Drift:
    """Compare statistics with those of the base data; a channel flat in both is no drift."""
    mean, spread = base.mean[:, 0], base.std[:, 0]
    was_flat, std = spread == 0, np.sqrt(new.samples.variance)
    unit = np.where(was_flat, 1.0, spread)
    scale = np.where(was_flat & (std == 0), 1.0, std / unit)
    names = ch_names or tuple(f"channel {i}" for i in range(len(mean)))
    alive = ~was_flat & (std > 0)
    spectrum, covariance, missing = None, None, None
    if not base.has_shapes:
        missing = "the model holds no spectra and covariances of its base data"
    elif new.n < FEWEST or new.shapes is None:
        missing = f"of fewer than {FEWEST} windows spectra and covariances are not compared"
    else:
        if base.spectra and new.shapes.spectra:
            spectrum = _spectrum_drift(new.shapes.spectra.mean, base.spectra, new.n, alive)
        if base.pairs and base.shared and new.shapes.pairs and new.shapes.shared:
            covariance = covariance_drift(
                (new.shapes.pairs.mean, new.shapes.shared.mean), base.pairs, base.shared, new.n, alive
            )
    shift = np.abs(new.samples.mean - mean) / unit
    return Drift(names, scale, shift, was_flat, spectrum, covariance, missing, n_times, sfreq)


def _spectrum_drift(mean: np.ndarray, base: Typical, n: int, alive: np.ndarray) -> SpectrumDrift:
    away = (mean - base.mean) / np.maximum(base.std, _STEADY)
    # Less what so few windows differ by chance.
    distance = np.sqrt(np.maximum(0, (away**2).mean(axis=1) - 1 / n))
    even = np.ptp(mean, axis=1) < 0.5
    return SpectrumDrift(np.where(alive, distance, 0.0), away, even)
