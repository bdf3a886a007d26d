"""Zero mean and unit spread, by statistics that were fitted once and are kept."""

from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Standardisation:
    """x -> (x - mean) / std.

    Parameters
    ----------
    mean, std : (n_chans, 1), or (1, 1) for one number over all channels.
    """

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, signals: np.ndarray, *, per_channel: bool = True) -> Self:
        """Fit to signals (n, n_chans, n_times). A channel without any spread is only shifted."""
        axes = (0, 2) if per_channel else (0, 1, 2)
        mean = signals.mean(axis=axes, dtype=np.float64, keepdims=True)[0]
        std = signals.std(axis=axes, dtype=np.float64, keepdims=True)[0]
        return cls(mean, np.where(std > 0, std, 1.0))

    def __call__(self, signals: np.ndarray) -> np.ndarray:
        """Return standardised signals (n, n_chans, n_times), float32."""
        # Subtract before the cast: a large offset would eat a float32's digits.
        shifted: np.ndarray = np.subtract(signals, self.mean, dtype=np.float64)
        shifted /= self.std
        return shifted.astype(np.float32)
