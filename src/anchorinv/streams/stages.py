"""Signals on their way from a recording to a model: stages that take chunks of any length, and forget.

A stage's ``push`` takes the next samples (n_chans, n) and returns those that are done; ``finish`` returns the
rest. What comes out does not depend on how the samples were cut into chunks, and little is held at any time.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

import numpy as np

from anchorinv.data.filters import Filter

#: Samples that a stage with a view to both sides takes at once.
BLOCK = 1 << 14
#: What a change of rate can make of a sample, and still be a signal.
_LEAST_RATIO, _MOST_RATIO = 1 / 5000, 64


class Stage(Protocol):
    """One step of the way."""

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Take the next samples (n_chans, n); return those that are done."""
        ...

    def finish(self) -> np.ndarray:
        """Return what was held back, at the end of the recording."""
        ...


class CausalFilter:
    """A filter that runs forwards, as if the first sample had always been there."""

    def __init__(self, sections: np.ndarray) -> None:
        self._sections = sections
        self._memory: np.ndarray | None = None  # (n_sections, n_chans, 2)
        self._n_chans = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Return as many samples as came."""
        from scipy.signal import sosfilt, sosfilt_zi

        self._n_chans = len(samples)
        if samples.shape[1] == 0:
            return samples
        if self._memory is None:
            self._memory = sosfilt_zi(self._sections)[:, None, :] * samples[None, :, :1]
        filtered, self._memory = sosfilt(self._sections, samples, axis=1, zi=self._memory)
        return np.asarray(filtered)

    def finish(self) -> np.ndarray:
        """Return nothing: all samples are out."""
        return np.empty((self._n_chans, 0))


class Overlapping:
    """A transform that looks to both sides, applied to blocks that overlap.

    Parameters
    ----------
    transform : (n_chans, n) -> (n_chans, n · ratio), rounded up.
    margin : samples to each side that a result depends on.
    ratio : samples out per sample in.
    """

    def __init__(
        self, transform: Callable[[np.ndarray], np.ndarray], margin: int, ratio: Fraction = Fraction(1)
    ) -> None:
        self._transform, self._ratio = transform, ratio
        # Whole numbers of output samples, so that blocks join without a gap.
        step = ratio.denominator
        self._margin = -(-margin // step) * step
        self._block = -(-max(BLOCK, 2 * margin) // step) * step
        self._held: np.ndarray | None = None
        self._left = 0  # samples held that are out already

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Return the samples whose neighbours are known."""
        held = samples if self._held is None else np.concatenate([self._held, samples], axis=1)
        done = []
        while held.shape[1] >= self._left + self._block + self._margin:
            last = self._left + self._block
            done.append(self._part(held[:, : last + self._margin], last))
            drop = max(0, last - self._margin)
            held, self._left = held[:, drop:], last - drop
        self._held = held.copy()  # not a view: that would keep all of a long recording
        return np.concatenate(done, axis=1) if done else samples[:, :0]

    def finish(self) -> np.ndarray:
        """Return the rest."""
        if self._held is None or self._held.shape[1] == self._left:
            return np.empty((0 if self._held is None else len(self._held), 0))
        return self._part(self._held, None)

    def _part(self, samples: np.ndarray, last: int | None) -> np.ndarray:
        stop = None if last is None else int(last * self._ratio)
        return self._transform(samples)[:, int(self._left * self._ratio) : stop]


def zero_phase(how: Filter, rate: float) -> Overlapping:
    """Return a filter that runs forwards and backwards; a past of less than 1e-7 is forgotten."""
    from scipy.signal import sos2zpk, sosfiltfilt

    sections, reach = how.sections(rate), how.reach(rate)
    _, poles, _ = sos2zpk(sections)
    radius = min(float(np.abs(poles).max()), 1 - 1e-9)
    settle = math.ceil(math.log(1e-7) / math.log(radius)) + 1
    # Short recordings leave less room for the usual extension at their ends.
    return Overlapping(
        lambda x: np.asarray(sosfiltfilt(sections, x, axis=1, padlen=min(reach, x.shape[1] - 1))), settle
    )


def resampled(source: float, target: float) -> Overlapping:
    """Return a change of rate from ``source`` to ``target`` Hz."""
    from scipy.signal import resample_poly

    if not _LEAST_RATIO <= target / source <= _MOST_RATIO:
        raise ValueError(
            f"a recording at {source:g} Hz cannot be brought to {target:g} Hz; at most {1 / _LEAST_RATIO:g} "
            f"samples become one, or one {_MOST_RATIO:g}"
        )
    ratio = Fraction(target / source).limit_denominator(10_000)
    up, down = ratio.numerator, ratio.denominator
    reach = math.ceil(10 * max(up, down) / up) + 1  # scipy's own filter
    return Overlapping(lambda x: np.asarray(resample_poly(x, up, down, axis=1)), reach, ratio)


def stages_of(how: Filter | None, *, source: float, target: float) -> list[Stage]:
    """Return the filter, then the change of rate where there is one."""
    found: list[Stage] = []
    if how is not None:
        found.append(CausalFilter(how.sections(source)) if how.causal else zero_phase(how, source))
    if source != target:
        found.append(resampled(source, target))
    return found
