"""Signals on their way from a recording to windows: stages that take chunks of any length, and forget.

A stage's ``push`` takes the next samples (n_chans, n) and returns those that are done; ``finish`` returns the
rest. What comes out does not depend on how the samples were cut into chunks, and little is held at any time.
Samples before a channel's first value are NaN all the way: a stage goes on as if that value had always been.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

import numpy as np

from anchorinv.signal.filters import Filter
from anchorinv.signal.limits import LARGEST

#: Samples that a stage with a view to both sides takes at once.
BLOCK = 1 << 14
#: What a change of rate can make of a sample, and still be a signal.
_LEAST_RATIO, _MOST_RATIO = 1 / 5000, 64


class Stage(Protocol):
    """One step of the way."""

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Take the next samples (n_chans, n); return those that are done."""
        ...

    def finish(self) -> np.ndarray | None:
        """Return what was held back, at the end of the recording; None if nothing was."""
        ...


class Pointwise:
    """A stage that looks at no sample's neighbours: a limit, a reference.

    Parameters
    ----------
    transform : (n_inputs, n) -> (n_chans, n)
    """

    def __init__(self, transform: Callable[[np.ndarray], np.ndarray]) -> None:
        self.push = transform

    def finish(self) -> None:
        """Return nothing: all samples are out."""


class Limit:
    """Clip to both sides of 0; ``n_beyond`` counts what was."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.n_beyond = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Return as many samples as came."""
        self.n_beyond += int(np.count_nonzero(np.abs(samples) > self._limit))
        return np.asarray(np.clip(samples, -self._limit, self._limit))

    def finish(self) -> None:
        """Return nothing: all samples are out."""


class CausalFilter:
    """A filter that runs forwards, by default as if the first sample had always been there."""

    def __init__(self, sections: np.ndarray, *, from_rest: bool = False) -> None:
        from scipy.signal import sosfilt_zi

        self._sections = sections
        self._steady = np.zeros((len(sections), 2)) if from_rest else sosfilt_zi(sections)
        self._memory: np.ndarray | None = None  # (n_sections, n_chans, 2)
        self._waiting: np.ndarray | None = None  # (n_chans,) without a value so far; None once all have one

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Return as many samples as came."""
        from scipy.signal import sosfilt

        if samples.shape[1] == 0:
            return samples
        if self._memory is None:
            self._memory = np.zeros((len(self._sections), len(samples), 2))
            self._waiting = np.ones(len(samples), dtype=bool)
        before = None
        if self._waiting is not None:
            before = np.isnan(samples)
            first = np.argmin(before, axis=1)
            here = np.flatnonzero(self._waiting & ~before.all(axis=1))
            samples = np.where(before, 0.0, samples)
            start = np.take_along_axis(samples, first[:, None], axis=1)[here]
            # A constant leaves the memory of a steady start as it is.
            samples[here] = np.where(before[here] & bool(self._steady.any()), start, samples[here])
            self._memory[:, here] = self._steady[:, None, :] * start[None]
            self._waiting[here] = False
            self._waiting = self._waiting if self._waiting.any() else None
        filtered, self._memory = sosfilt(self._sections, samples, axis=1, zi=self._memory)
        found = np.asarray(filtered)
        if before is not None:
            found[before] = np.nan
        return found

    def finish(self) -> None:
        """Return nothing: all samples are out."""


class Overlapping:
    """A transform that looks to both sides, applied to blocks that overlap.

    Before the first sample and after the last one stand as many of its like as the transform looks at.

    Parameters
    ----------
    transform : (n_chans, n) -> (n_chans, n · ratio), rounded up.
    margin : samples to each side that a result depends on.
    ratio : samples out per sample in.
    least : samples that are done at once, at the least; more delay, less work.
    hold_ends : whether the ends are held so; otherwise the transform has ends of its own.
    """

    def __init__(
        self,
        transform: Callable[[np.ndarray], np.ndarray],
        margin: int,
        ratio: Fraction = Fraction(1),
        *,
        least: int = BLOCK,
        hold_ends: bool = False,
    ) -> None:
        self._transform, self._ratio, self._hold_ends = transform, ratio, hold_ends
        # Whole numbers of output samples, so that blocks join without a gap.
        self._step = ratio.denominator
        self._margin = -(-margin // self._step) * self._step
        self._least = -(-least // self._step) * self._step
        self._most = max(self._least, -(-max(BLOCK, 2 * margin) // self._step) * self._step)
        self._held: np.ndarray | None = None
        self._left = 0  # samples held that are out already
        self._n_in = self._n_out = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Return the samples whose neighbours are known."""
        if samples.shape[1] == 0:
            return samples
        self._n_in += samples.shape[1]
        if self._held is None and self._hold_ends:
            self._held, self._left = np.repeat(samples[:, :1], self._margin, axis=1), self._margin
        held = samples if self._held is None else np.concatenate([self._held, samples], axis=1)
        done = []
        while (n := self._ready(held.shape[1])) >= self._least:
            last = self._left + n
            done.append(self._part(held[:, : last + self._margin], last))
            drop = max(0, last - self._margin)
            held, self._left = held[:, drop:], last - drop
        self._held = held.copy()  # not a view: that would keep all of a long recording
        return np.concatenate(done, axis=1) if done else samples[:, :0]

    def finish(self) -> np.ndarray | None:
        """Return the rest."""
        rest = math.ceil(self._n_in * self._ratio) - self._n_out
        if self._held is None or not rest:
            return None
        if self._hold_ends:
            self._held = np.concatenate(
                [self._held, np.repeat(self._held[:, -1:], self._margin, axis=1)], axis=1
            )
        return self._part(self._held, None)[:, :rest]

    def _ready(self, n_held: int) -> int:
        whole = (n_held - self._left - self._margin) // self._step * self._step
        return self._least if self._least == self._most and whole >= self._least else min(whole, self._most)

    def _part(self, samples: np.ndarray, last: int | None) -> np.ndarray:
        stop = None if last is None else int(last * self._ratio)
        found = self._transform(held_back(samples))[:, int(self._left * self._ratio) : stop]
        self._n_out += found.shape[1]
        return found


class Whole:
    """A transform of the recording as a whole; no live source allows it.

    Parameters
    ----------
    transform : (n_chans, n) -> (n_chans, m)
    """

    def __init__(self, transform: Callable[[np.ndarray], np.ndarray]) -> None:
        self._transform = transform
        self._held: list[np.ndarray] = []

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Return nothing yet."""
        self._held.append(samples)
        if sum(piece.size for piece in self._held) > LARGEST:
            raise ValueError(
                f"a recording of more than {LARGEST // 10**6} million values cannot be resampled by its "
                f"spectrum, which takes it as a whole; cut it into several files"
            )
        return samples[:, :0]

    def finish(self) -> np.ndarray | None:
        """Return all of it."""
        if not self._held:
            return None
        return self._transform(held_back(np.concatenate(self._held, axis=1)))


def held_back(samples: np.ndarray) -> np.ndarray:
    """Return samples (n_chans, n) with each channel's first value before it, 0 if it has none."""
    missing = np.isnan(samples)
    if not missing.any():
        return samples
    first = np.take_along_axis(samples, np.argmin(missing, axis=1)[:, None], axis=1)
    return np.where(missing, np.nan_to_num(first), samples)


def filtering(how: Filter, rate: float) -> Stage:
    """Return a filter for signals at a rate; of zero phase, a past of less than 1e-7 is forgotten."""
    from scipy.signal import sos2zpk, sosfiltfilt

    sections = how.sections(rate)
    if how.causal:
        return CausalFilter(sections, from_rest=how.from_rest)
    reach = how.reach(rate)
    _, poles, _ = sos2zpk(sections)
    radius = min(float(np.abs(poles).max()), 1 - 1e-9)
    settle = math.ceil(math.log(1e-7) / math.log(radius)) + 1
    # Short recordings leave less room for the usual extension at their ends.
    return Overlapping(
        lambda x: np.asarray(sosfiltfilt(sections, x, axis=1, padlen=min(reach, x.shape[1] - 1))),
        settle,
        least=max(BLOCK, 2 * settle),
    )


def resampled_length(n: int, source: float, target: float, *, fourier: bool = False) -> int:
    """Return how many samples ``n`` of them become by a change of rate.

    Examples
    --------
    >>> resampled_length(1001, 200, 50), resampled_length(1001, 200, 50, fourier=True)
    (251, 250)
    """
    return max(1, round(n * target / source)) if fourier else math.ceil(n * rate_ratio(source, target))


def rate_ratio(source: float, target: float) -> Fraction:
    """Return the samples at the rate ``target`` for each at ``source``, in numbers small enough to filter by.

    Examples
    --------
    >>> rate_ratio(250, 128)
    Fraction(64, 125)
    """
    return Fraction(target / source).limit_denominator(10_000)


def resampling(source: float, target: float, *, fourier: bool = False) -> Stage:
    """Return a change of rate from ``source`` to ``target`` Hz, by a polyphase filter or by the spectrum."""
    from scipy.signal import firwin, resample, resample_poly

    if not _LEAST_RATIO <= target / source <= _MOST_RATIO:
        raise ValueError(
            f"a recording at {source:g} Hz cannot be brought to {target:g} Hz: at most {1 / _LEAST_RATIO:g} "
            f"samples become one, or one {_MOST_RATIO:g}; is either rate wrong?"
        )
    if fourier:
        return Whole(
            lambda x: np.asarray(
                resample(x, resampled_length(x.shape[1], source, target, fourier=True), axis=1)
            )
        )
    ratio = rate_ratio(source, target)
    up, down = ratio.numerator, ratio.denominator
    half = 10 * max(up, down)
    taps = firwin(2 * half + 1, 1 / max(up, down), window=("kaiser", 5.0))  # resample_poly's own
    # As soon as they can be: a live source waits for ten samples of the lower rate, and no longer.
    return Overlapping(
        lambda x: np.asarray(resample_poly(x, up, down, axis=1, window=taps.copy())),
        math.ceil(half / up) + 1,
        ratio,
        least=1,
        hold_ends=True,
    )
