"""The pipeline from samples to windows, for files and live sources alike, chunk by chunk.

A stage's ``push`` takes the next samples (n_chans, n) and returns those that are done; ``finish`` returns the
rest. The output does not depend on the chunks, and memory is bounded. Samples before a channel's first value
are NaN throughout: a stage proceeds as if that value had always been there.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, count
from typing import Protocol

import numpy as np
import numpy.typing as npt

from anchorinv.signal.headers import MAX_VALUES
from anchorinv.signal.preprocessing import AVERAGE, BIPOLAR, Filter, Preprocessing

#: Block length of non-causal stages, in samples.
BLOCK = 1 << 14
#: Smallest and largest ratio of resampling.
_MIN_RATIO, _MAX_RATIO = 1 / 5000, 64
_NEVER = 2**62
_Transform = Callable[[np.ndarray], np.ndarray]


class Stage(Protocol):
    """A stage of the pipeline, as described above."""

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Take the next samples (n_chans, n); return those that are done."""

    def finish(self) -> np.ndarray | None:
        """Return what was held back at the end of the recording, if anything."""
        return None


class _Pointwise(Stage):
    """A stage that works sample by sample, such as a limit or a reference."""

    def __init__(self, transform: _Transform) -> None:
        self._transform = transform

    def push(self, samples: np.ndarray) -> np.ndarray:
        return self._transform(samples)


class CausalFilter(Stage):
    """A causal filter of second-order sections, shape (n_sections, 6).

    It starts as if the first sample had always been there; ``from_rest`` as if there had been zeros before.
    """

    def __init__(self, sections: np.ndarray, *, from_rest: bool = False) -> None:
        from scipy.signal import sosfilt_zi

        self._sections = sections
        self._steady = np.zeros((len(sections), 2)) if from_rest else sosfilt_zi(sections)
        self._memory: np.ndarray | None = None  # (n_sections, n_chans, 2)
        self._waiting: np.ndarray | None = None  # (n_chans,), whether without a value; None if none is

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Return as many samples (n_chans, n) as came."""
        from scipy.signal import sosfilt

        if samples.shape[1] == 0:
            return samples
        if self._memory is None:
            self._memory = np.zeros((len(self._sections), len(samples), 2))
            self._waiting = np.ones(len(samples), dtype=bool)
        missing = None
        if self._waiting is not None:
            missing = np.isnan(samples)
            first = np.argmin(missing, axis=1)
            starting = np.flatnonzero(self._waiting & ~missing.all(axis=1))
            samples = np.where(missing, 0.0, samples)
            start = np.take_along_axis(samples, first[:, None], axis=1)[starting]
            # A constant input does not change the state of a steady start.
            constant = missing[starting] & bool(self._steady.any())
            samples[starting] = np.where(constant, start, samples[starting])
            self._memory[:, starting] = self._steady[:, None, :] * start[None]
            self._waiting[starting] = False
            self._waiting = self._waiting if self._waiting.any() else None
        filtered, self._memory = sosfilt(self._sections, samples, axis=1, zi=self._memory)
        if missing is not None:
            filtered[missing] = np.nan
        return np.asarray(filtered)


class _Overlapping(Stage):
    """A transform (n_chans, n) -> (n_chans, n · ratio) by blocks, with ``margin`` samples to both sides.

    At least ``least`` samples are done at once: more delay, less work. With ``hold_ends`` the first and the
    last sample are repeated as far as the transform looks; otherwise it has ends of its own.
    """

    def __init__(
        self, transform: _Transform, margin: int, ratio: Fraction, *, least: int, hold_ends: bool = False
    ) -> None:
        self._transform, self._ratio, self._hold_ends = transform, ratio, hold_ends
        # A whole number of output samples, so that blocks join without a gap.
        self._step = ratio.denominator
        self._margin = -(-margin // self._step) * self._step
        self._least = -(-least // self._step) * self._step
        self._most = max(self._least, -(-max(BLOCK, 2 * margin) // self._step) * self._step)
        self._held: np.ndarray | None = None
        self._n_returned = 0  # held samples that were already returned
        self._n_in = self._n_out = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        if samples.shape[1] == 0:
            return samples
        self._n_in += samples.shape[1]
        if self._held is None and self._hold_ends:
            self._held, self._n_returned = np.repeat(samples[:, :1], self._margin, axis=1), self._margin
        held = samples if self._held is None else np.concatenate([self._held, samples], axis=1)
        outputs = []
        while (n := self._ready(held.shape[1])) >= self._least:
            last = self._n_returned + n
            outputs.append(self._part(held[:, : last + self._margin], last))
            drop = max(0, last - self._margin)
            held, self._n_returned = held[:, drop:], last - drop
        self._held = held.copy()  # a copy: a view would keep the whole recording in memory
        return np.concatenate(outputs, axis=1) if outputs else samples[:, :0]

    def finish(self) -> np.ndarray | None:
        rest = math.ceil(self._n_in * self._ratio) - self._n_out
        if self._held is None or not rest:
            return None
        if self._hold_ends:
            end = np.repeat(self._held[:, -1:], self._margin, axis=1)
            self._held = np.concatenate([self._held, end], axis=1)
        return self._part(self._held, None)[:, :rest]

    def _ready(self, n_held: int) -> int:
        ready = (n_held - self._n_returned - self._margin) // self._step * self._step
        return min(ready, self._most)

    def _part(self, samples: np.ndarray, last: int | None) -> np.ndarray:
        stop = None if last is None else int(last * self._ratio)
        part = self._transform(_backfill(samples))[:, int(self._n_returned * self._ratio) : stop]
        self._n_out += part.shape[1]
        return part


class _WholeRecording(Stage):
    """A transform of the whole recording; impossible for live sources."""

    def __init__(self, transform: _Transform) -> None:
        self._transform = transform
        self._held: list[np.ndarray] = []

    def push(self, samples: np.ndarray) -> np.ndarray:
        self._held.append(samples)
        if sum(piece.size for piece in self._held) > MAX_VALUES:
            what = f"a recording of more than {MAX_VALUES // 10**6} million values"
            raise ValueError(f"{what} cannot be resampled by its spectrum at once; cut it into several files")
        return samples[:, :0]

    def finish(self) -> np.ndarray | None:
        return self._transform(_backfill(np.concatenate(self._held, axis=1))) if self._held else None


def _backfill(samples: np.ndarray) -> np.ndarray:
    """Fill what is missing before each channel's first value with that value, or with 0 if it has none."""
    missing = np.isnan(samples)
    if not missing.any():
        return samples
    first = np.take_along_axis(samples, np.argmin(missing, axis=1)[:, None], axis=1)
    return np.where(missing, np.nan_to_num(first), samples)


def filtering(design: Filter, rate: float) -> Stage:
    """Return a filter as a stage, at a rate in Hz; zero-phase ones ignore transients below 1e-7."""
    from scipy.signal import sos2zpk, sosfiltfilt

    sections = design.sections(rate)
    if design.causal:
        return CausalFilter(sections, from_rest=design.from_rest)
    padlen = design.padlen(rate)
    _, poles, _ = sos2zpk(sections)
    radius = min(float(np.abs(poles).max()), 1 - 1e-9)
    settle = math.ceil(math.log(1e-7) / math.log(radius)) + 1
    # Short recordings have less padding at their ends.
    return _Overlapping(
        lambda x: np.asarray(sosfiltfilt(sections, x, axis=1, padlen=min(padlen, x.shape[1] - 1))),
        settle,
        Fraction(1),
        least=max(BLOCK, 2 * settle),
    )


def resampled_length(n: int, source: float, target: float, *, fourier: bool = False) -> int:
    """Return the length of ``n`` samples after resampling.

    Examples
    --------
    >>> resampled_length(1001, 200, 50), resampled_length(1001, 200, 50, fourier=True)
    (251, 250)
    """
    return max(1, round(n * target / source)) if fourier else math.ceil(n * rate_ratio(source, target))


def rate_ratio(source: float, target: float) -> Fraction:
    """Return the resampling ratio from ``source`` to ``target`` Hz, with small enough terms for a filter."""
    return Fraction(target / source).limit_denominator(10_000)


def resampling(source: float, target: float, *, fourier: bool = False) -> Stage:
    """Return a change of rate from ``source`` to ``target`` Hz, by a polyphase filter or by the spectrum."""
    from scipy.signal import firwin, resample, resample_poly

    if not _MIN_RATIO <= target / source <= _MAX_RATIO:
        limits = f"at most {1 / _MIN_RATIO:g} samples become one, or one {_MAX_RATIO:g}"
        rates = f"a recording at {source:g} Hz cannot be brought to {target:g} Hz"
        raise ValueError(f"{rates}: {limits}; is either rate wrong?")
    if fourier:

        def by_spectrum(samples: np.ndarray) -> np.ndarray:
            n = resampled_length(samples.shape[1], source, target, fourier=True)
            return np.asarray(resample(samples, n, axis=1))

        return _WholeRecording(by_spectrum)
    ratio = rate_ratio(source, target)
    up, down = ratio.numerator, ratio.denominator
    half = 10 * max(up, down)
    taps = firwin(2 * half + 1, 1 / max(up, down), window=("kaiser", 5.0))  # resample_poly's own
    # As soon as possible: a live source waits for ten samples of the lower rate.
    return _Overlapping(
        lambda x: np.asarray(resample_poly(x, up, down, axis=1, window=taps.copy())),
        math.ceil(half / up) + 1,
        ratio,
        least=1,
        hold_ends=True,
    )


class _Gaps:
    """Fill missing samples with the last value or 0, to avoid transients; remember where they were."""

    def __init__(self, *, hold: bool) -> None:
        self._hold = hold
        self._n_samples = 0  # so far, as the next
        self.n_missing = 0  # values
        self._last: np.ndarray | None = None
        self.runs: list[tuple[int, int]] = []  # of missing samples: the first of each, and the one after it

    def push(self, samples: np.ndarray) -> np.ndarray:
        # A channel that has had no value yet stays NaN.
        known = np.isfinite(samples)
        if not known.all():
            missing = ~known
            self.n_missing += int(np.count_nonzero(missing))
            self.runs += missing_runs(missing.any(axis=0), first=self._n_samples)
            samples = self._held(samples, missing) if self._hold else np.where(missing, 0.0, samples)
        self._n_samples += samples.shape[1]
        if samples.shape[1]:
            self._last = samples[:, -1].copy()
        return samples

    def _held(self, samples: np.ndarray, missing: np.ndarray) -> np.ndarray:
        before = np.full(len(samples), np.nan) if self._last is None else self._last
        samples = np.concatenate([before[:, None], np.where(missing, np.nan, samples)], axis=1)
        known = np.where(np.isnan(samples), 0, np.arange(samples.shape[1]))
        latest = np.maximum.accumulate(known, axis=1)[:, 1:]
        return np.take_along_axis(samples, latest, axis=1)

    def between(self, first: Fraction, last: Fraction) -> bool:
        return any(start < last and stop > first for start, stop in self.runs)

    def forget(self, before: Fraction | float) -> None:
        self.runs = [run for run in self.runs if run[1] > before]


class Pipeline:
    """All stages: from samples of a recording, in the model's unit, to preprocessed samples.

    ``sfreq`` is the rate of the recording in Hz; None for that of ``preprocessing``.

    Examples
    --------
    >>> pipeline = Pipeline(Preprocessing(sfreq=100.0), sfreq=200.0)
    >>> sum(piece.shape[1] for piece in (*pipeline.push(np.ones((2, 400))), *pipeline.finish()))
    200
    """

    def __init__(self, preprocessing: Preprocessing, sfreq: float | None = None) -> None:
        source = sfreq or preprocessing.sfreq
        target = preprocessing.sfreq or source
        if source is None and preprocessing.filter is not None:
            raise ValueError("a filter needs a rate, and neither recording nor model has one; give sfreq")
        # A fraction, not a float: a gap that begins where a window ends is not part of it.
        self.ratio = rate_ratio(source, target) if source and target else Fraction(1)
        self.gaps = _Gaps(hold=preprocessing.gaps == "hold")
        self.n_clipped = 0  # samples beyond the limit so far
        self._limit = preprocessing.limit
        self._stages: list[Stage] = []
        if preprocessing.filter is not None and source is not None:
            self._stages.append(filtering(preprocessing.filter, source))
        if preprocessing.limit is not None:
            self._stages.append(_Pointwise(self._clip))
        if preprocessing.reference is not None:
            self._stages.append(_referencing(preprocessing))
        if source != target and source and target:
            self._stages.append(resampling(source, target, fourier=preprocessing.resampling == "fourier"))

    def _clip(self, samples: np.ndarray) -> np.ndarray:
        assert self._limit is not None
        self.n_clipped += int(np.count_nonzero(np.abs(samples) > self._limit))
        return np.asarray(np.clip(samples, -self._limit, self._limit))

    def push(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """Take the next samples (n_inputs, n), missing ones as NaN; yield finished samples (n_chans, m)."""
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
        # Without gaps there is nothing to check in each chunk of a live source.
        has_nan = self.gaps.n_missing and np.isnan(samples).any()
        return np.nan_to_num(samples, copy=False) if has_nan else samples


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A window of signals (n_chans, n_times)."""

    start: int  # in samples after the preprocessing
    values: np.ndarray
    complete: bool  # whether no sample is missing


def window_starts(n_samples: int, n_times: int, *, overlap: float = 0.0) -> npt.NDArray[np.int64]:
    """Return the first sample of each window of ``n_times`` samples in a recording of ``n_samples``.

    ``overlap`` is the share of a window that the next one repeats.
    """
    if n_times < 1:
        raise ValueError(f"a window must have at least one sample, got {n_times}; choose a longer window")
    if not 0 <= overlap < 1:
        raise ValueError(f"overlap is a share from 0 to below 1, got {overlap}; 0.5 is half a window")
    step = max(1, round(n_times * (1 - overlap)))
    return np.arange(0, n_samples - n_times + 1, step, dtype=np.int64)


def missing_runs(missing: npt.NDArray[np.bool_], *, first: int = 0) -> list[tuple[int, int]]:
    """Return where samples (n,) are missing: the first of each run and the one after it, from ``first``.

    Examples
    --------
    >>> missing_runs(np.array([True, False, True, True]), first=10)
    [(10, 11), (12, 14)]
    """
    edges = np.flatnonzero(np.diff(missing, prepend=False, append=False)) + first
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


class Windows:
    """Cut chunks into windows of ``n_times`` samples, after the pipeline.

    ``starts`` is the step between windows, or the start of each, rising.
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
            gap = gaps.runs and gaps.between(self._next / ratio, (self._next + self._n_times) / ratio)
            yield Window(self._next, held[:, at : at + self._n_times].copy(), not gap)
            self._next = next(self._starts, _NEVER)
        keep = min(max(self._next - self._first, 0), held.shape[1])
        rest = held[:, keep:]
        # A view keeps its whole base in memory: only used where that is little more.
        light = held is not samples and 2 * rest.shape[1] > held.shape[1]
        self._held = rest if light else rest.copy()
        self._first += keep
        if gaps.runs:
            gaps.forget(self._first / ratio)


@dataclass(frozen=True, slots=True, eq=False)
class Processed:
    """A preprocessed recording, as in prepared folders."""

    samples: npt.NDArray[np.float32]  # (n_samples, n_chans)
    n_missing: int  # missing values
    n_clipped: int  # clipped values


def process(preprocessing: Preprocessing, signals: npt.ArrayLike, sfreq: float | None = None) -> Processed:
    """Preprocess a whole recording (n_inputs, n), with NaN for missing samples.

    ``sfreq`` is the rate of the recording in Hz; None for that of ``preprocessing``.

    Examples
    --------
    >>> process(Preprocessing(reference="average"), [[1.0, 3.0], [3.0, 5.0]]).samples.tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """
    values = np.asarray(signals)
    pipeline = Pipeline(preprocessing, sfreq)
    pieces = []
    for piece in chain(pipeline.push(values), pipeline.finish()):
        # In pieces, so that a long recording is not in memory twice in float64.
        pieces.append(piece.T.astype(np.float32))
        pipeline.gaps.forget(np.inf)
    n_chans = len(preprocessing.ch_names) if preprocessing.ch_names else len(values)
    samples = np.concatenate(pieces) if pieces else np.empty((0, n_chans), dtype=np.float32)
    return Processed(samples, pipeline.gaps.n_missing, pipeline.n_clipped)


def process_trials(
    preprocessing: Preprocessing, trials: Iterable[npt.ArrayLike], sfreq: float | None = None
) -> Processed:
    """Preprocess trials (n_inputs, n) separately; their samples are concatenated."""
    parts = [process(preprocessing, trial, sfreq) for trial in trials]
    samples = np.concatenate([part.samples for part in parts])
    return Processed(samples, sum(part.n_missing for part in parts), sum(part.n_clipped for part in parts))


def _referencing(preprocessing: Preprocessing) -> _Pointwise:
    if preprocessing.reference == AVERAGE:
        return _Pointwise(lambda x: x - x.mean(axis=0))
    names, inputs = preprocessing.ch_names, preprocessing.inputs
    assert names is not None and inputs is not None and preprocessing.reference is not None
    if preprocessing.reference == BIPOLAR:
        first, second = ([inputs.index(name.partition("-")[i]) for name in names] for i in (0, 2))
        return _Pointwise(lambda x: x[first] - x[second])
    place = inputs.index(preprocessing.reference)
    return _Pointwise(lambda x: x[: len(names)] - x[place])
