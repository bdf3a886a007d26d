"""Predict windows as they arrive, from a live source or a long file, and monitor drift."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from torch import from_numpy

from anchorinv.estimator import AnchorInvClassifier
from anchorinv.serving.smoothing import Smoother, Smoothing, smoother_of
from anchorinv.signal.drift import FEWEST, Drift, Statistics, drift
from anchorinv.signal.pipeline import Pipeline, Window, Windows
from anchorinv.signal.preprocessing import UNITS, Preprocessing, pick_channels, renamed, unit_of
from anchorinv.validation import warn_drift

#: Windows classified at once.
BATCH = 64


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

    Predictions do not depend on the chunks; memory is bounded by one window and one chunk. A single warning
    is issued if the windows are far from the base data, as in another unit.

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
        Names of channels in the source, and those that the model knows them by.
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
        how = model.preprocessing_
        if how.not_live:
            files = "windows" if how.not_repeatable else "whole files"
            raise ValueError(
                f"the model was trained on {how.not_live}, which is impossible live; train it on "
                f"recordings filtered causally (anchorinv prepare own --filter), or predict {files}"
            )
        if sfreq is not None and not (isinstance(sfreq, int | float | np.number) and 0 < sfreq < np.inf):
            raise ValueError(f"sfreq (={sfreq!r}) must be a rate in Hz above 0")
        self.model, self._smoother = model, smoother_of(steady, model)
        self._n_chans = len(how.inputs or ()) or model.n_chans_
        self._picks = None if ch_names is None else _picks(how, ch_names, rename, self._n_chans)
        if ch_names is not None:
            self._n_chans = len(ch_names)
        elif rename:
            raise ValueError("channels without names cannot be renamed; give ch_names")
        self._factor = 1.0 if unit is None else _factor(how, unit)
        self._step, self._sfreq, self._on_drift = int(step), sfreq, on_drift
        self.reset()

    def reset(self) -> None:
        """Reset to a new source: samples, windows and warnings are forgotten."""
        self._windows = Windows(
            Pipeline(self.model.preprocessing_, self._sfreq), self.model.n_times_, self._step
        )
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
        return list(self._watched(self._windows.push(samples)))

    def predict(self, windows: Sequence[Window]) -> list[Prediction]:
        """Return the predictions of windows that :meth:`cut` returned, in their order."""
        return list(classify(self.model, windows, self._smoother))

    def finish(self) -> list[Prediction]:
        """Return the windows that the end of a source completes, if its rate is not the model's."""
        return list(classify(self.model, self._watched(self._windows.finish()), self._smoother))

    def _watched(self, windows: Iterator[Window]) -> Iterator[Window]:
        for window in windows:
            self._alarm(window)
            yield window


def _picks(
    how: Preprocessing, ch_names: Sequence[str], rename: Mapping[str, str] | None, n_chans: int
) -> list[int] | None:
    """Return which channels of a source are the model's; None if the model has no names for them."""
    present = renamed(ch_names, rename, source="the source")
    if how.inputs is not None:
        return pick_channels(how.inputs, present, source="the source")
    if len(present) != n_chans:
        raise ValueError(
            f"the source has {len(present)} channels, the model takes {n_chans} and has no names for "
            f"them; pass those"
        )
    return None


def _factor(how: Preprocessing, unit: str) -> float:
    """Return the factor from a source's unit to the model's."""
    if (spelled := unit_of(unit)) is None:
        raise ValueError(f"unit (={unit!r}) must be one of {', '.join(UNITS)}")
    if how.unit is None:
        raise ValueError(f"the source is in {spelled}, and the model has no unit; train it with one (--unit)")
    return UNITS[how.unit] / UNITS[spelled]


def classify(
    model: AnchorInvClassifier, windows: Iterable[Window], smoother: Smoother | None = None
) -> Iterator[Prediction]:
    """Predict windows as they come, a batch at a time; windows with gaps get no class."""
    rest = iter(windows)
    while batch := list(islice(rest, BATCH)):
        now = copy(model)  # a snapshot: another thread may be teaching it
        whole = [window.values for window in batch if window.whole]
        answers = iter(_answers(now, np.stack(whole)) if whole else ())
        for window in batch:
            label, row, p_value = next(answers) if window.whole else (None, None, None)
            raw = Prediction(window.start, label, row, label, p_value)
            yield raw if smoother is None else _steadied(raw, now, smoother)


def _steadied(raw: Prediction, model: AnchorInvClassifier, smoother: Smoother) -> Prediction:
    rejected = model.reject is not None and raw.novelty is not None and raw.novelty <= model.reject
    if rejected:
        smoother.unknown = model.reject_label_  # which may have been set since the stream began
    steady = smoother(raw.start, raw.probabilities, classes=model.classes_, rejected=rejected)
    return Prediction(raw.start, steady.label, steady.probabilities, raw.raw_label, raw.novelty)


def _answers(
    model: AnchorInvClassifier, signals: np.ndarray
) -> Iterator[tuple[Any, np.ndarray, float | None]]:
    """Yield label, probabilities (n_classes,) and p-value of signals (n, n_chans, n_times)."""
    rows, p_values = probabilities(model, signals)
    labels = model._decided(rows.argmax(1), p_values)
    known = [None] * len(rows) if p_values is None else p_values.tolist()
    yield from zip(labels, rows, known, strict=True)


def probabilities(model: AnchorInvClassifier, signals: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return probabilities (n, n_classes) of signals that have been checked, and p-values (n,) if there are.

    Columns follow ``classes_``.
    """
    tells = model.state_.confidence is not None or model.reject is not None
    logits, p_values = model._answers(from_numpy(model.standardisation_(signals)), novelty=tells)
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

    def __call__(self, signals: np.ndarray) -> None:
        """Add windows (n, n_chans, n_times)."""
        self._pending.append(signals)
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

    @property
    def n_seen(self) -> int:
        """Windows so far."""
        return (self._statistics.n if self._statistics else 0) + sum(map(len, self._pending))

    def _update(self) -> None:
        if self._pending:
            signals = self._pending[0] if len(self._pending) == 1 else np.concatenate(self._pending)
            self._pending = []
            new = Statistics.of(signals, shapes=self._model.statistics_.has_shapes)
            self._statistics = new if self._statistics is None else self._statistics + new


class DriftAlarm:
    """Warn once when the windows of a live source are far from the base data.

    After the first window only if every channel is extreme, as it may contain an artefact. After that, all
    windows so far are compared when there are :data:`~anchorinv.signal.drift.FEWEST`, and whenever
    their number has doubled. Of overlapping windows only those that do not overlap are used.
    """

    def __init__(self, model: AnchorInvClassifier, warn: Callable[[Drift], None] = warn_drift) -> None:
        self._monitor: DriftMonitor | None = DriftMonitor(model, batch=1)
        self._warn = warn
        self._n_times = model.n_times_
        self._due, self._start = 1, 0  # windows until the next comparison; where the next one may begin

    def __call__(self, window: Window) -> None:
        """Add a window; warn if necessary."""
        if self._monitor is None or not window.whole or window.start < self._start:
            return
        self._start = window.start + self._n_times
        self._monitor(window.values[None])
        if self._monitor.n_seen < self._due:
            return
        distance, few = self._monitor.drift, self._monitor.n_seen < FEWEST
        self._due = FEWEST if few else 2 * self._monitor.n_seen
        if distance is not None and distance.far and (not few or bool(distance.beyond.all())):
            self._monitor = None
            self._warn(distance)
