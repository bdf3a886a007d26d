"""Distances of new recordings from the base data in numbers: scale and offset, spectra, covariances."""

from dataclasses import dataclass

import numpy as np

from anchorinv.model.covariances import CovarianceDrift

#: A spread that many times larger or smaller, or an offset of that many spreads: odd, and extreme.
ODD, EXTREME = 3.0, 30.0
#: A spread that many times smaller is extreme: muscles at rest are thirty times quieter than at work.
QUIET = 100.0
#: A spectrum or covariance that many standard deviations between base windows away: odd, and far.
#: Chosen on four sets of EMG, ECG and EEG, where days and people who were not seen stay below 4.2 and white
#: noise exceeds 5; nothing was set aside to confirm it.
UNLIKE, FAR = 2.0, 4.5
#: Windows below which spectra and covariances are not judged: one of them may be an artefact.
FEWEST = 5


@dataclass(frozen=True, slots=True, eq=False)
class SpectrumDrift:
    """How far spectra are from those of the base data, in standard deviations between its windows.

    Parameters
    ----------
    distance : (n_chans,) root mean square over bands; 0 for a channel that is flat, or was.
    bands : (n_chans, n_bands), positive where there is more power.
    even : (n_chans,) whether all bands hold about the same power, as of white noise.
    """

    distance: np.ndarray
    bands: np.ndarray
    even: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Distances:
    """How far recordings are from the base data.

    Parameters
    ----------
    channels : their names, or numbers as text.
    scale : (n_chans,) spread, in spreads of the base data; 0 for a channel that went flat.
    shift : (n_chans,) distance of the means, in spreads of the base data.
    silent : (n_chans,) whether a channel was flat in the base data.
    spectrum, covariance : None where they were not compared.
    missing : why they were not, if so.
    n_times, sfreq : of windows, to name frequencies.
    scaled : what the signals had been multiplied by (--scale), to name the number that is right.
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
        """(n_chans,) the larger of the shift and the factor between the spreads; 1 is none."""
        with np.errstate(divide="ignore"):
            factor = np.maximum(self.scale, np.where(self.scale > 0, 1 / self.scale, np.inf))
        worst: np.ndarray = np.maximum(factor, self.shift)
        return worst

    @property
    def beyond(self) -> np.ndarray:
        """(n_chans,) whether the scale or the offset of a channel is extreme."""
        loud: np.ndarray = (self.scale > EXTREME) | (self.shift > EXTREME)
        return loud | (self.scale < 1 / QUIET)

    @property
    def extreme(self) -> bool:
        """Whether scale or offset are such that nothing should be learned from these signals."""
        return bool(self.beyond.any())

    @property
    def shape_distance(self) -> float:
        """The largest distance of any channel's spectrum or covariance; 0 where they were not compared."""
        parts = [part.distance for part in (self.spectrum, self.covariance) if part is not None]
        return float(max((part.max() for part in parts), default=0.0))

    @property
    def far(self) -> bool:
        """Whether predictions should not be trusted."""
        return self.extreme or self.shape_distance > FAR

    @property
    def level(self) -> str:
        """``"like"`` the base data, ``"somewhat unlike"``, or ``"far"``."""
        if self.far:
            return "far"
        faults = self.covariance is not None and (self.covariance.same or self.covariance.swapped)
        odd = (self.distance > ODD).any() or self.shape_distance > UNLIKE
        return "somewhat unlike" if odd or faults else "like"

    @property
    def factor(self) -> float | None:
        """By which the spread of (nearly) all channels differs, as by a wrong unit; None if they vary."""
        alive = ~self.silent & (self.scale > 0)
        if not alive.any() or alive.sum() < 0.9 * (~self.silent).sum():
            return None
        logs = np.log10(self.scale[alive])
        middle = float(np.median(logs))
        if (np.abs(logs - middle) < 0.7).mean() < 0.8 or 10 ** abs(middle) <= EXTREME:
            return None
        return 10**middle

    @property
    def unit_factor(self) -> float | None:
        """The power of ten that the factor stands for; None if it stands for none."""
        if self.factor is None:
            return None
        found = np.log10(self.factor)
        thousands, tens = 3 * round(found / 3), round(found)
        # Units are thousands apart, so that a person four times as strong is no doubt about them.
        if thousands and abs(found - thousands) < 0.65:
            return float(10.0**thousands)
        return float(10.0**tens) if abs(found - tens) < 0.3 else None
