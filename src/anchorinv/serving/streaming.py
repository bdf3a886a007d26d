"""Predict windows as they arrive, from a live source or a long file, smoothed over time; monitor drift.

Smoothing is causal: it uses past windows only. The *outcome* of a window is one of the model's classes, or
"unknown" if the window was rejected. Each window passes the enabled steps, in this order:

1. *averaging* of the shares of all outcomes: the probabilities of a window, or 1 for unknown if it was
   rejected, so that the average of unknown is the proportion of rejected windows;
2. a *majority vote* among the outcomes with the largest shares; shares are then those of the votes;
3. *hysteresis*: another outcome must exceed the share of the current one by a margin;
4. *dwell*: it must do so for some time without interruption.

A step that is off changes nothing. The first window decides at once.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from torch import from_numpy

from anchorinv.errors import raise_if_any
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.signal.drift import MIN_WINDOWS, Drift, Statistics, drift
from anchorinv.signal.pipeline import Pipeline, Window, Windows
from anchorinv.signal.preprocessing import UNITS, Preprocessing, conversion, pick_channels, renamed, unit_of
from anchorinv.validation import warn_drift

#: Windows classified at once.
BATCH = 64
#: The label of rejected windows, unless the model has another one.
UNKNOWN = "unknown"
#: Gaps of up to this many seconds never reset the smoothing.
SHORT_GAP = 1.0


@dataclass(frozen=True, slots=True)
class Smoothing:
    """How predictions of successive windows are smoothed; a setting is off if it is None.

    Parameters
    ----------
    vote : float or None, default=None
        Majority vote [1]_ over the windows of the last ``vote`` seconds, this one included. A tie goes to the
        current outcome, otherwise to the latest.
    time_constant : float or None, default=None
        Time constant in seconds of an exponential moving average of the probabilities. Not of their
        logarithms: overlapping windows are not independent evidence, and a single one must not veto a class.
    hysteresis : float or None, default=None
        Margin in [0, 1): another outcome takes over if its share exceeds that of the current one by more than
        this, as in a Schmitt trigger [2]_.
    dwell : float or None, default=None
        Seconds for which another outcome has to win without interruption until it takes over [3]_
        (debouncing).

    See Also
    --------
    Smoother : Applies them, window by window.

    References
    ----------
    .. [1] K. Englehart, B. Hudgins (2003). A robust, real-time control scheme for multifunction myoelectric
       control. IEEE Transactions on Biomedical Engineering 50(7), 848-854.
    .. [2] O. H. Schmitt (1938). A thermionic trigger. Journal of Scientific Instruments 15(1), 24-26.
    .. [3] G. Townsend, B. Graimann, G. Pfurtscheller (2004). Continuous EEG classification during motor
       imagery: simulation of an asynchronous BCI. IEEE Transactions on Neural Systems and Rehabilitation
       Engineering 12(2), 258-265.

    Examples
    --------
    >>> Smoothing(time_constant=0.2, dwell=0.1)
    Smoothing(vote=None, time_constant=0.2, hysteresis=None, dwell=0.1)
    >>> Smoothing(hysteresis=2)
    Traceback (most recent call last):
    ...
    anchorinv.errors.Problems: steady: hysteresis (=2) must be a margin from 0 to below 1
    """

    vote: float | None = None
    time_constant: float | None = None
    hysteresis: float | None = None
    dwell: float | None = None

    def __post_init__(self) -> None:
        problems = []
        for name, value in asdict(self).items():
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if name == "hysteresis":
                expected, valid = "a margin from 0 to below 1", number and 0 <= value < 1
            else:
                expected, valid = "a number of seconds above 0", number and 0 < value < math.inf
            if value is not None and not valid:
                problems.append(f"{name} (={value!r}) must be {expected}")
        raise_if_any("steady", problems)

    @property
    def memory(self) -> float:
        """Seconds after which a window has little influence; a longer gap resets the smoothing."""
        return max(SHORT_GAP, self.vote or 0, 3 * (self.time_constant or 0), self.dwell or 0)


#: Presets by name: the settings in windows of the model, that is in seconds for windows of one second.
PRESETS = {"balanced": Smoothing(time_constant=0.375, hysteresis=0.2)}


def preset(name: str, window: float) -> Smoothing:
    """Return a preset for windows of a length in seconds: its times are multiples of that length.

    Chosen on forearm EMG in windows of 0.4 s (docs/predictions.md).
    """
    if name not in PRESETS:
        raise ValueError(
            f"steady (={name!r}) is none of the presets; choose {', '.join(map(repr, PRESETS))}, or give "
            f"Smoothing(...)"
        )
    settings = asdict(PRESETS[name])
    times = {key: settings[key] for key in ("vote", "time_constant", "dwell")}
    scaled = {key: round(time * window, 6) for key, time in times.items() if time is not None}
    return replace(PRESETS[name], **scaled)


@dataclass(frozen=True, slots=True, eq=False)
class SmoothedWindow:
    """Output of a :class:`Smoother` for a window; label and probabilities are None if samples are missing."""

    label: Any
    probabilities: np.ndarray | None  # (n_classes,): averaged if there is averaging, the window's otherwise
    unknown: float  # the share of unknown, averaged if there is averaging


class Smoother:
    """Smooth predictions, window by window, in chronological order.

    The result depends on the windows alone, not on the chunks they came in. Times are rounded to samples.

    - *Gaps*: a window with missing samples has no class and interrupts a dwell. Averaging and votes go by
      time, so that windows before a gap weigh less after it; a gap longer than :attr:`Smoothing.memory`
      resets the smoother.
    - *Changing classes* are matched by name. A new class starts with a share of 0; shares and votes of a
      forgotten class are distributed over the others in proportion, and if it was the current outcome, the
      next window decides at once.
    - *Rejected windows* have an outcome of their own, "unknown".

    Parameters
    ----------
    settings : Smoothing
    sfreq : float
        Rate in Hz of the samples that windows are counted in.
    unknown : object, default="unknown"
        Label of the outcome "unknown".

    Examples
    --------
    >>> smoother = Smoother(Smoothing(dwell=1.0), sfreq=1.0)
    >>> rows = [[0.9, 0.1], [0.2, 0.8], [0.9, 0.1], [0.2, 0.8], [0.2, 0.8]]
    >>> [smoother(i, np.array(row), classes=["rest", "fist"]).label for i, row in enumerate(rows)]
    ['rest', 'rest', 'rest', 'rest', 'fist']
    """

    def __init__(self, settings: Smoothing, sfreq: float, *, unknown: Any = UNKNOWN) -> None:
        self.settings, self.unknown = settings, unknown
        self._n_vote, self._n_dwell, self._n_memory = (
            round((seconds or 0.0) * sfreq) for seconds in (settings.vote, settings.dwell, settings.memory)
        )
        self._n_constant = (settings.time_constant or 0.0) * sfreq
        self._names: list[Any] = []  # of the classes
        self.reset()

    def reset(self) -> None:
        """Forget all windows so far."""
        self._last: int | None = None  # start of the last window without a gap
        self._gap: int | None = None  # start of the first window of a gap that has not ended
        # (n_classes + 1,), averaged; the last is unknown. A list, which is faster than numpy for so few.
        self._shares: list[float] | None = None
        self._votes: deque[tuple[int, int]] = deque()  # start and outcome
        self._current: int | None = None  # the current outcome
        self._rival: tuple[int, int] | None = None  # start of the dwell of another outcome, and which

    def __call__(
        self, start: int, probabilities: np.ndarray | None, *, classes: Any, rejected: bool = False
    ) -> SmoothedWindow:
        """Take the next window and return its smoothed class.

        Parameters
        ----------
        start : int
            First sample of the window.
        probabilities : ndarray, shape (n_classes,), or None
            None if samples of the window are missing.
        classes : array-like, shape (n_classes,)
            The class of each probability.
        rejected : bool, default=False
            Whether the window is none of the classes.

        Returns
        -------
        SmoothedWindow
        """
        if self._last is not None and start <= self._last:
            raise ValueError(
                f"a window at {start} came after one at {self._last}; pass windows in the order of time, and "
                f"call reset() between recordings"
            )
        if probabilities is None:
            self._gap, self._rival = start if self._gap is None else self._gap, None
            return SmoothedWindow(None, None, 0.0)
        if self._gap is not None and start - self._gap > self._n_memory:
            self.reset()
        self._follow(np.asarray(classes).tolist())
        mean = self._average(start, probabilities, rejected)
        self._last, self._gap = start, None
        best, shares = self._elect(start, mean) if self._n_vote else (_largest(mean), mean)
        self._current = self._decide(start, best, shares)
        label = self.unknown if self._current == len(classes) else classes[self._current]
        *averaged, unknown = mean
        if self._n_constant and (known := sum(averaged)) > 0:
            probabilities = np.array([share / known for share in averaged], probabilities.dtype)
        return SmoothedWindow(label, probabilities, unknown)

    def _follow(self, names: list[Any]) -> None:
        """Match shares and votes to the model's classes, which may have changed."""
        if names == self._names:
            return
        places = {name: place for place, name in enumerate(names)}
        # The new index of each outcome; unknown stays the last, a forgotten class has none.
        moved = [*(places.get(name) for name in self._names), len(names)]
        if self._shares is not None:
            shares = [0.0] * (len(names) + 1)
            for share, place in zip(self._shares, moved, strict=True):
                if place is not None:
                    shares[place] = share
            total = sum(shares)
            self._shares = [share / total for share in shares] if total > 0 else None
        self._votes = deque((at, place) for at, vote in self._votes if (place := moved[vote]) is not None)
        if self._current is not None:
            self._current = moved[self._current]
        if self._rival is not None:
            since, rival = self._rival[0], moved[self._rival[1]]
            self._rival = None if rival is None else (since, rival)
        self._names = names

    def _average(self, start: int, probabilities: np.ndarray, rejected: bool) -> list[float]:
        """Return the shares of all outcomes (n_classes + 1,), averaged if averaging is on."""
        shares = [*([0.0] * len(probabilities) if rejected else probabilities.tolist()), float(rejected)]
        if self._n_constant:
            if self._shares is not None and self._last is not None:
                fade = math.exp((self._last - start) / self._n_constant)
                pairs = zip(self._shares, shares, strict=True)
                shares = [fade * old + (1 - fade) * new for old, new in pairs]
            self._shares = shares
        return shares

    def _elect(self, start: int, shares: list[float]) -> tuple[int, list[float]]:
        """Return the outcome that most of the latest windows vote for, and the shares of votes."""
        self._votes.append((start, _largest(shares)))
        while self._votes[0][0] <= start - self._n_vote:
            self._votes.popleft()
        counts = Counter(vote for _, vote in self._votes)
        most = max(counts.values())
        tied = [vote for vote, n in counts.items() if n == most]
        best = (
            self._current if self._current in tied else next(v for _, v in reversed(self._votes) if v in tied)
        )
        assert best is not None
        return best, [counts[outcome] / len(self._votes) for outcome in range(len(shares))]

    def _decide(self, start: int, best: int, shares: list[float]) -> int:
        """Return the current outcome from this window on."""
        current, margin, rival = self._current, self.settings.hysteresis, self._rival
        self._rival = None
        if current is None or best == current:
            return best
        if margin is not None and shares[best] - shares[current] <= margin:
            return current
        since = start if rival is None or rival[1] != best else rival[0]
        if start - since >= self._n_dwell:
            return best
        self._rival = since, best
        return current


def _largest(shares: list[float]) -> int:
    return shares.index(max(shares))


def smoother_of(steady: Smoothing | str | None, model: AnchorInvClassifier) -> Smoother | None:
    """Return the smoother of a model's predictions, by settings or the name of a preset; None for none."""
    if steady is not None and not isinstance(steady, Smoothing | str):
        raise ValueError(f"steady (={steady!r}) must be None, 'balanced' or Smoothing(...)")
    if steady is None or steady == Smoothing():
        return None
    if model.sfreq_ is None:
        raise ValueError(
            "predictions are smoothed over seconds, and the model has no sampling rate; train it with "
            "sfreq (--sfreq)"
        )
    settings = preset(steady, model.n_times_ / model.sfreq_) if isinstance(steady, str) else steady
    return Smoother(settings, model.sfreq_, unknown=UNKNOWN if model.reject is None else model.reject_label_)


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The predicted class of a window.

    Parameters
    ----------
    start : int
        First sample of the window, at the model's rate, counted from the beginning of the source.
    label : object
        Its class, after smoothing if there is any; None if samples are missing.
    probabilities : ndarray, shape (n_classes,), or None
        In the order of ``classes_``; None if samples are missing. Averaged if smoothing does so; the largest
        need not be that of the smoothed class.
    raw_label : object, default=None
        Its class before smoothing; equal to ``label`` without smoothing.
    novelty : float or None, default=None
        p-value of novelty; None if samples are missing, or the model has no novelty.

    Examples
    --------
    >>> Prediction(128, "left", np.array([0.9, 0.1])).label
    'left'
    """

    start: int
    label: Any
    probabilities: np.ndarray | None
    raw_label: Any = None
    novelty: float | None = None


class StreamingPredictor:
    """Predict each window of a live source as soon as it is complete, from chunks of any length.

    Predictions do not depend on the chunks; memory is bounded by one window and one chunk. One warning is
    issued if the windows are far from the base data, as in another unit.

    Parameters
    ----------
    model : AnchorInvClassifier
        Fitted; its filter, if it has one, must be causal.
    step : int
        Samples from the start of one window to the next, at the model's rate.
    sfreq : float or None, default=None
        Rate of the source in Hz; it is resampled to the model's. None if it is the model's.
    ch_names : sequence of str or None, default=None
        Channels of the source, which may be more than the model's, in any order. None if they are the
        model's, in its order.
    unit : str or None, default=None
        Unit of the source (V, mV, µV, nV); None if it is the model's.
    rename : mapping of str to str or None, default=None
        Maps channel names of the source to the model's.
    steady : Smoothing, "balanced" or None, default=None
        Smoothing of predictions over time; None for none.
    on_drift : callable, default=warn_drift
        Called with the :class:`~anchorinv.signal.drift.Drift` of windows that are far from the base data; the
        default issues a warning.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(8, 2, 64)), [0, 1] * 4
    >>> model = AnchorInvClassifier(epochs=1, inversion_steps=1, random_state=0).fit(X, y)
    >>> live = StreamingPredictor(model, step=32)
    >>> [len(live.feed(chunk)) for chunk in np.split(rng.normal(size=(2, 160)), 4, axis=1)]
    [0, 1, 1, 2]
    """

    def __init__(
        self,
        model: AnchorInvClassifier,
        *,
        step: int,
        sfreq: float | None = None,
        ch_names: Sequence[str] | None = None,
        unit: str | None = None,
        rename: Mapping[str, str] | None = None,
        steady: Smoothing | str | None = None,
        on_drift: Callable[[Drift], None] = warn_drift,
    ) -> None:
        model._check_fitted()
        if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 1:
            raise ValueError(f"step (={step!r}) must be a whole number of samples, 1 or more")
        preprocessing = model.preprocessing_
        if preprocessing.not_live:
            files = "windows" if preprocessing.not_repeatable else "whole files"
            raise ValueError(
                f"the model was trained on {preprocessing.not_live}, which is impossible live; train it on "
                f"recordings filtered causally (anchorinv prepare own --filter), or predict {files}"
            )
        if sfreq is not None and not (isinstance(sfreq, int | float | np.number) and 0 < sfreq < np.inf):
            raise ValueError(f"sfreq (={sfreq!r}) must be a rate in Hz above 0")
        self.model, self._smoother = model, smoother_of(steady, model)
        self._n_chans = len(preprocessing.inputs or ()) or model.n_chans_
        self._picks = None if ch_names is None else _picks(preprocessing, ch_names, rename, self._n_chans)
        if ch_names is not None:
            self._n_chans = len(ch_names)
        elif rename:
            raise ValueError("channels without names cannot be renamed; give ch_names")
        self._factor = 1.0 if unit is None else _factor(preprocessing, unit)
        self._step, self._sfreq, self._on_drift = int(step), sfreq, on_drift
        self.reset()

    def reset(self) -> None:
        """Start again with a new source: samples, windows and warnings are forgotten."""
        pipeline = Pipeline(self.model.preprocessing_, self._sfreq)
        self._windows = Windows(pipeline, self.model.n_times_, self._step)
        self._alarm = DriftAlarm(self.model, self._on_drift)
        if self._smoother is not None:
            self._smoother.reset()

    def feed(self, chunk: Any) -> list[Prediction]:
        """Take the next samples and return predictions of the windows that they complete.

        Parameters
        ----------
        chunk : array-like, shape (n_chans, n)
            As recorded: filter, reference and rate are applied here. Missing samples are NaN.

        Returns
        -------
        list of Prediction
        """
        return self.predict(self.cut(chunk))

    def cut(self, chunk: Any) -> list[Window]:
        """Take the next samples and return the windows that they complete, as the model sees them.

        Followed by :meth:`predict` it is equivalent to :meth:`feed`, for callers who need the windows.
        """
        samples = np.asarray(chunk, dtype=np.float64)
        if samples.ndim != 2 or len(samples) != self._n_chans:
            raise ValueError(
                f"a chunk must have shape ({self._n_chans}, n), channels first, got {samples.shape}"
            )
        if self._picks is not None:
            samples = samples[self._picks]
        if self._factor != 1:
            samples = self._factor * samples
        return self._monitored(self._windows.push(samples))

    def predict(self, windows: Sequence[Window]) -> list[Prediction]:
        """Return the predictions of windows that :meth:`cut` returned, in their order."""
        return list(classify(self.model, windows, self._smoother))

    def finish(self) -> list[Prediction]:
        """Return predictions of the windows that the end of a source completes, if it is resampled."""
        return self.predict(self._monitored(self._windows.finish()))

    def _monitored(self, windows: Iterator[Window]) -> list[Window]:
        complete = list(windows)
        for window in complete:
            self._alarm(window)
        return complete


def _picks(
    preprocessing: Preprocessing, ch_names: Sequence[str], rename: Mapping[str, str] | None, n_chans: int
) -> list[int] | None:
    """Return which channels of a source are the model's; None if the model has no names for them."""
    names = renamed(ch_names, rename, source="the source")
    if preprocessing.inputs is not None:
        return pick_channels(preprocessing.inputs, names, source="the source")
    if len(names) != n_chans:
        raise ValueError(
            f"the source has {len(names)} channels, the model takes {n_chans} and has no names for "
            f"them; pass those"
        )
    return None


def _factor(preprocessing: Preprocessing, unit: str) -> float:
    """Return the factor from a source's unit to the model's."""
    if (source_unit := unit_of(unit)) is None:
        raise ValueError(f"unit (={unit!r}) must be one of {', '.join(UNITS)}")
    if preprocessing.unit is None:
        raise ValueError(
            f"the source is in {source_unit}, and the model has no unit; train it with one (--unit)"
        )
    return conversion(source_unit, preprocessing.unit)


def classify(
    model: AnchorInvClassifier, windows: Iterable[Window], smoother: Smoother | None = None
) -> Iterator[Prediction]:
    """Predict windows as they come, a batch at a time; windows with gaps get no class."""
    rest = iter(windows)
    while batch := list(islice(rest, BATCH)):
        snapshot = copy(model)  # another thread may be teaching it
        signals = [window.values for window in batch if window.complete]
        outputs = iter(_outputs(snapshot, np.stack(signals)) if signals else ())
        for window in batch:
            label, row, p_value = next(outputs) if window.complete else (None, None, None)
            raw = Prediction(window.start, label, row, label, p_value)
            yield raw if smoother is None else _smooth(raw, snapshot, smoother)


def _smooth(raw: Prediction, model: AnchorInvClassifier, smoother: Smoother) -> Prediction:
    rejected = model.reject is not None and raw.novelty is not None and raw.novelty <= model.reject
    if rejected:
        smoother.unknown = model.reject_label_  # which may have been set since the stream began
    smoothed = smoother(raw.start, raw.probabilities, classes=model.classes_, rejected=rejected)
    return Prediction(raw.start, smoothed.label, smoothed.probabilities, raw.raw_label, raw.novelty)


def _outputs(
    model: AnchorInvClassifier, signals: np.ndarray
) -> Iterator[tuple[Any, np.ndarray, float | None]]:
    """Yield label, probabilities (n_classes,) and p-value of signals (n, n_chans, n_times)."""
    rows, p_values = probabilities(model, signals)
    labels = model._decided(rows.argmax(1), p_values)
    yield from zip(labels, rows, [None] * len(rows) if p_values is None else p_values.tolist(), strict=True)


def probabilities(model: AnchorInvClassifier, signals: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return probabilities (n, n_classes) of validated signals, and p-values (n,) if the model has novelty.

    Columns follow ``classes_``.
    """
    has_novelty = model.state_.confidence is not None or model.reject is not None
    logits, p_values = model._answers(from_numpy(model.standardisation_(signals)), novelty=has_novelty)
    return model._probabilities(logits), p_values


class DriftMonitor:
    """Accumulate statistics of windows, to compare them with a model's base data.

    Statistics are computed for ``batch`` windows at a time, which is faster.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(20, 2, 64))
    >>> monitor = DriftMonitor(AnchorInvClassifier(method="lda").fit(X, [0, 1] * 10))
    >>> monitor(1000 * X)
    >>> monitor.drift.far
    True
    """

    def __init__(self, model: AnchorInvClassifier, *, batch: int = 32) -> None:
        self._model, self._batch = model, batch
        self._pending: list[np.ndarray] = []
        self._statistics: Statistics | None = None
        self.n_seen = 0  # windows so far

    def __call__(self, signals: np.ndarray) -> None:
        """Add windows (n, n_chans, n_times)."""
        self._pending.append(signals)
        self.n_seen += len(signals)
        if sum(map(len, self._pending)) >= self._batch:
            self._update()

    @property
    def drift(self) -> Drift | None:
        """Drift of all windows so far from the base data; None if there were none."""
        self._update()
        if self._statistics is None:
            return None
        model = self._model
        return drift(
            self._statistics, model.statistics_, model.ch_names_, n_times=model.n_times_, sfreq=model.sfreq_
        )

    def _update(self) -> None:
        if self._pending:
            signals = self._pending[0] if len(self._pending) == 1 else np.concatenate(self._pending)
            self._pending = []
            new = Statistics.of(signals, shapes=self._model.statistics_.has_shapes)
            self._statistics = new if self._statistics is None else self._statistics + new


class DriftAlarm:
    """Warn once when the windows of a live source are far from the base data.

    After the first window only if every channel is extreme, as it may contain an artefact. After that, all
    windows so far are compared when there are :data:`~anchorinv.signal.drift.MIN_WINDOWS`, and whenever
    their number has doubled. Of overlapping windows only those that do not overlap are used.
    """

    def __init__(self, model: AnchorInvClassifier, warn: Callable[[Drift], None] = warn_drift) -> None:
        self._monitor: DriftMonitor | None = DriftMonitor(model, batch=1)
        self._warn = warn
        self._n_times = model.n_times_
        self._due, self._start = 1, 0  # windows until the next comparison; where the next one may begin

    def __call__(self, window: Window) -> None:
        """Add a window; warn if necessary."""
        if self._monitor is None or not window.complete or window.start < self._start:
            return
        self._start = window.start + self._n_times
        self._monitor(window.values[None])
        if self._monitor.n_seen < self._due:
            return
        distance, few = self._monitor.drift, self._monitor.n_seen < MIN_WINDOWS
        self._due = MIN_WINDOWS if few else 2 * self._monitor.n_seen
        if distance is not None and distance.far and (not few or bool(distance.beyond.all())):
            self._monitor = None
            self._warn(distance)
