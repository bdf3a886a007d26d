"""How far new recordings are from those a model was trained on, channel by channel."""

from dataclasses import dataclass

import numpy as np

from anchorinv.core.standardise import Standardisation

#: A spread that many times larger or smaller, or an offset of that many spreads: odd, and extreme.
ODD, EXTREME = 3.0, 30.0


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Count, mean and mean square deviation of each channel, to which more can be added.

    Parameters
    ----------
    n : samples per channel.
    mean, variance : (n_chans,)
    """

    n: int
    mean: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, signals: np.ndarray) -> "Moments":
        """Return those of signals (n, n_chans, n_times)."""
        values = np.asarray(signals, dtype=np.float64)
        return cls(values.shape[0] * values.shape[2], values.mean(axis=(0, 2)), values.var(axis=(0, 2)))

    def __add__(self, other: "Moments") -> "Moments":
        n = self.n + other.n
        share, apart = other.n / n, other.mean - self.mean
        variance = self.variance + share * (other.variance - self.variance) + share * (1 - share) * apart**2
        return Moments(n, self.mean + share * apart, variance)


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """How far recordings are from the base data.

    Parameters
    ----------
    channels : their names, or numbers as text.
    scale : (n_chans,) spread, in spreads of the base data; 0 for a channel that went flat.
    shift : (n_chans,) distance of the means, in spreads of the base data.
    """

    channels: tuple[str, ...]
    scale: np.ndarray
    shift: np.ndarray

    @property
    def distance(self) -> np.ndarray:
        """(n_chans,) the larger of the shift and the factor between the spreads; 1 is none."""
        with np.errstate(divide="ignore"):
            factor = np.maximum(self.scale, np.where(self.scale > 0, 1 / self.scale, np.inf))
        worst: np.ndarray = np.maximum(factor, self.shift)
        return worst

    @property
    def extreme(self) -> bool:
        """Whether predictions should not be trusted."""
        return bool((self.distance > EXTREME).any())

    @property
    def verdict(self) -> str:
        """One sentence: as the base data, odd, or extreme, with the channels and a guess at the cause."""
        far = self.distance > ODD
        if not far.any():
            return "the recordings are like the base data in every channel"
        if self.extreme:
            far = self.distance > EXTREME
        names = [name for name, is_far in zip(self.channels, far, strict=True) if is_far]
        named = "every channel" if far.all() and len(names) > 1 else ", ".join(names[:5])
        named += f" and {len(names) - 5} more" if len(names) > 5 and not far.all() else ""
        worst = int(np.argmax(self.distance))
        spread = f"a spread of {self.scale[worst]:.2g} and a shift of {self.shift[worst]:.2g} spreads"
        word = "far" if self.extreme else "somewhat"
        return f"{named}: {word} from the base data (the worst has {spread}); {self._guess(far)}"

    def _guess(self, far: np.ndarray) -> str:
        if not self.extreme:
            return "predictions may suffer"
        if (self.scale[far] == 0).all():
            return "flat channels: is an electrode off?"
        if far.all():
            return "are the units those of fit?"
        return "is an electrode off or loose, or are the units those of fit?"


def drift(new: Moments, base: Standardisation, ch_names: tuple[str, ...] | None) -> Drift:
    """Compare moments with those of the base data, (n_chans, 1) each; a channel flat in both is no drift."""
    mean, spread = base.mean[:, 0], base.std[:, 0]
    was_flat, std = spread == 0, np.sqrt(new.variance)
    unit = np.where(was_flat, 1.0, spread)
    scale = np.where(was_flat & (std == 0), 1.0, std / unit)
    names = ch_names or tuple(f"channel {i}" for i in range(len(mean)))
    return Drift(names, scale, np.abs(new.mean - mean) / unit)


def base_moments(signals: np.ndarray) -> Standardisation:
    """Return mean and spread (n_chans, 1) of signals (n, n_chans, n_times); a flat channel's spread is 0."""
    found = Moments.of(signals)
    return Standardisation(found.mean[:, None], np.sqrt(found.variance)[:, None])
