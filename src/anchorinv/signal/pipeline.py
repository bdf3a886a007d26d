"""The one way from samples to windows, for files and live sources: gaps, stages, windows, chunk by chunk."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import count

import numpy as np
import numpy.typing as npt

from anchorinv.signal.preprocessing import AVERAGE, BIPOLAR, Preprocessing
from anchorinv.signal.stages import BLOCK, Limit, Pointwise, Stage, filtering, rate_ratio, resampling

_NEVER = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A window (n_chans, n_times), where it starts in samples, and whether all of it was recorded."""

    start: int
    values: np.ndarray
    whole: bool


def missing_stretches(missing: npt.NDArray[np.bool_], *, first: int = 0) -> list[tuple[int, int]]:
    """Return where samples (n,) are missing: the first of each stretch and the one after, from ``first``.

    Examples
    --------
    >>> missing_stretches(np.array([True, False, True, True]), first=10)
    [(10, 11), (12, 14)]
    """
    edges = np.flatnonzero(np.diff(missing, prepend=False, append=False)) + first
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


class Gaps:
    """Missing samples: something stands for them, which keeps filters calm; their places are remembered."""

    def __init__(self, *, hold: bool) -> None:
        self._hold = hold
        self._seen = 0
        self._last: np.ndarray | None = None
        self._stretches: list[tuple[int, int]] = []
        self.n_missing = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Return the samples (n_chans, n) without gaps; a channel that has had no value yet stays NaN."""
        known = np.isfinite(samples)
        if not known.all():
            missing = ~known
            self.n_missing += int(np.count_nonzero(missing))
            self._stretches += missing_stretches(missing.any(axis=0), first=self._seen)
            samples = self._held(samples, missing) if self._hold else np.where(missing, 0.0, samples)
        self._seen += samples.shape[1]
        if samples.shape[1]:
            self._last = samples[:, -1].copy()
        return samples

    def _held(self, samples: np.ndarray, missing: np.ndarray) -> np.ndarray:
        before = np.full(len(samples), np.nan) if self._last is None else self._last
        samples = np.concatenate([before[:, None], np.where(missing, np.nan, samples)], axis=1)
        known = np.where(np.isnan(samples), 0, np.arange(samples.shape[1]))
        latest = np.maximum.accumulate(known, axis=1)[:, 1:]
        return np.take_along_axis(samples, latest, axis=1)

    @property
    def any(self) -> bool:
        """Whether there is a gap that a window may still touch."""
        return bool(self._stretches)

    def between(self, first: Fraction, last: Fraction) -> bool:
        """Say whether a sample from ``first`` to before ``last`` is missing."""
        return any(start < last and stop > first for start, stop in self._stretches)

    def forget(self, before: Fraction | float) -> None:
        """Forget gaps that nobody will ask for."""
        self._stretches = [gap for gap in self._stretches if gap[1] > before]


class Pipeline:
    """Samples of a recording in, in the model's unit; samples as the model sees them out.

    Parameters
    ----------
    how : what to do.
    sfreq : of the recording; None for the rate of ``how``.
    """

    def __init__(self, how: Preprocessing, sfreq: float | None = None) -> None:
        source = sfreq or how.sfreq
        target = how.sfreq or source
        if source is None and how.filter is not None:
            raise ValueError("a filter needs a rate, and neither recording nor model has one; give sfreq")
        # A fraction, not a float: a gap that begins where a window ends is none of its samples.
        self.ratio = rate_ratio(source, target) if source and target else Fraction(1)
        self.gaps = Gaps(hold=how.gaps == "hold")
        self._limit = Limit(how.limit) if how.limit is not None else None
        self._stages: list[Stage] = []
        if how.filter is not None and source is not None:
            self._stages.append(filtering(how.filter, source))
        if self._limit is not None:
            self._stages.append(self._limit)
        if how.reference is not None:
            self._stages.append(_referencing(how))
        if source != target and source and target:
            self._stages.append(resampling(source, target, fourier=how.resampling == "fourier"))

    @property
    def n_clipped(self) -> int:
        """Samples so far that lay beyond the limit."""
        return self._limit.n_beyond if self._limit is not None else 0

    def push(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """Take the next samples (n_inputs, n), missing ones as NaN; yield what is done (n_chans, m)."""
        for start in range(0, samples.shape[1], BLOCK):
            yield self._through(self.gaps.push(samples[:, start : start + BLOCK]), 0)

    def finish(self) -> Iterator[np.ndarray]:
        """Yield the rest of a recording."""
        for i, stage in enumerate(self._stages):
            if (rest := stage.finish()) is not None:
                yield self._through(rest, i + 1)

    def _through(self, samples: np.ndarray, first: int) -> np.ndarray:
        for stage in self._stages[first:]:
            samples = stage.push(samples)
        # Without a gap there was no channel to wait for: nothing to look for in each chunk of a live source.
        waited = self.gaps.n_missing and np.isnan(samples).any()
        return np.nan_to_num(samples, copy=False) if waited else samples


class Windows:
    """Chunks in, windows out.

    Parameters
    ----------
    pipeline : what samples go through first.
    n_times : of the windows, in samples after it.
    starts : where windows start, in samples after it, rising; a step between them, or each by itself.
    """

    def __init__(self, pipeline: Pipeline, n_times: int, starts: int | Iterable[int]) -> None:
        self._pipeline, self._n_times = pipeline, n_times
        self._starts = count(0, starts) if isinstance(starts, int) else iter(starts)
        self._held: np.ndarray | None = None
        self._first = 0  # sample with which `held` starts
        self._next = next(self._starts, _NEVER)  # where the next window starts

    def push(self, samples: np.ndarray) -> Iterator[Window]:
        """Take the next samples (n_inputs, n), missing ones as NaN; yield the windows that are complete."""
        for piece in self._pipeline.push(samples):
            yield from self._cut(piece)

    def finish(self) -> Iterator[Window]:
        """Yield the last windows of a recording."""
        for piece in self._pipeline.finish():
            yield from self._cut(piece)

    def _cut(self, samples: np.ndarray) -> Iterator[Window]:
        if samples.shape[1] == 0:
            return
        gaps, ratio = self._pipeline.gaps, self._pipeline.ratio
        held = samples if self._held is None else np.concatenate([self._held, samples], axis=1)
        end = self._first + held.shape[1]
        while self._next + self._n_times <= end:
            at = self._next - self._first
            gap = gaps.any and gaps.between(self._next / ratio, (self._next + self._n_times) / ratio)
            yield Window(self._next, held[:, at : at + self._n_times].copy(), not gap)
            self._next = next(self._starts, _NEVER)
        keep = min(max(self._next - self._first, 0), held.shape[1])
        rest = held[:, keep:]
        # A view keeps all of its base: taken where that is ours and little more than the rest.
        light = held is not samples and 2 * rest.shape[1] > held.shape[1]
        self._held = rest if light else rest.copy()
        self._first += keep
        if gaps.any:
            gaps.forget(self._first / ratio)


@dataclass(frozen=True, slots=True, eq=False)
class Processed:
    """A recording as the model sees it.

    Parameters
    ----------
    samples : (n_samples, n_chans) float32, as prepared folders hold them.
    n_missing, n_clipped : samples that were not recorded, and that lay beyond the limit.
    """

    samples: npt.NDArray[np.float32]
    n_missing: int
    n_clipped: int


def process(how: Preprocessing, signals: npt.ArrayLike, sfreq: float | None = None) -> Processed:
    """Return a recording (n_inputs, n) as the model sees it."""
    values = np.asarray(signals)
    pipeline = Pipeline(how, sfreq)
    pieces = []
    for done in (pipeline.push(values), pipeline.finish()):
        for piece in done:
            # Little by little into what is kept: a long recording is not there twice in float64.
            pieces.append(piece.T.astype(np.float32))
            pipeline.gaps.forget(np.inf)
    n_chans = len(how.ch_names) if how.ch_names else len(values)
    samples = np.concatenate(pieces) if pieces else np.empty((0, n_chans), dtype=np.float32)
    return Processed(samples, pipeline.gaps.n_missing, pipeline.n_clipped)


def process_trials(
    how: Preprocessing, trials: npt.ArrayLike, sfreq: float | None = None
) -> npt.NDArray[np.float32]:
    """Return trials (n, n_inputs, n_times), each processed by itself, as (n, n_chans, m)."""
    done = [process(how, trial, sfreq).samples.T for trial in np.asarray(trials)]
    return np.stack(done) if done else np.empty((0, 0, 0), dtype=np.float32)


def _referencing(how: Preprocessing) -> Pointwise:
    if how.reference == AVERAGE:
        return Pointwise(lambda x: x - x.mean(axis=0))
    names, inputs = how.ch_names, how.inputs
    assert names is not None and inputs is not None and how.reference is not None
    if how.reference == BIPOLAR:
        first, second = ([inputs.index(name.partition("-")[i]) for name in names] for i in (0, 2))
        return Pointwise(lambda x: x[first] - x[second])
    place = inputs.index(how.reference)
    return Pointwise(lambda x: x[: len(names)] - x[place])
