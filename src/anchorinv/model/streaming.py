"""Predictions while signals come in: from a live source, or from a file that does not fit into memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import from_numpy

from anchorinv.answers import logits_of
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.model.watching import Alarm
from anchorinv.signal.channels import pick_channels, renamed
from anchorinv.signal.pipeline import Pipeline, Window, Windows
from anchorinv.signal.preprocessing import UNITS, Preprocessing, unit_of

#: Windows classified at once.
AT_ONCE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What a window was taken for.

    Parameters
    ----------
    start : of the window, in samples at the model's rate since the source began.
    label : its class, None where samples were missing.
    probabilities : (n_classes,), in the order of ``classes_``; None where samples were missing.
    """

    start: int
    label: Any
    probabilities: np.ndarray | None


class StreamingPredictor:
    """Take chunks of any length from a live source and predict each window as soon as it is complete.

    Predictions are those of the whole recording at once, however it was cut into chunks, and no more than a
    window and a chunk is held. If the windows are nothing like the base data, as in another unit, a warning
    says so once.

    Parameters
    ----------
    model : fitted; its filter, if it has one, must be causal.
    step : samples from one window's start to the next, at the model's rate.
    sfreq : of the source in Hz; at another rate than the model's it is resampled. None for the model's.
    ch_names : of the source, which may have more channels than the model, in any order; None where it has
        those of the model in its order.
    unit : of the source (V, mV, µV, nV); None for the model's.
    rename : names that channels have in the source, and those that the model knows them by.

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
    ) -> None:
        model._check_fitted()
        if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 1:
            raise ValueError(f"step (={step!r}) must be a whole number of samples, 1 or more")
        how = model.preprocessing_
        if how.not_live:
            files = "windows" if how.not_repeatable else "whole files"
            raise ValueError(
                f"the model was trained on {how.not_live}, which no live source allows; train it on "
                f"recordings filtered causally (anchorinv prepare own --filter), or predict {files}"
            )
        if sfreq is not None and not (isinstance(sfreq, int | float | np.number) and 0 < sfreq < np.inf):
            raise ValueError(f"sfreq (={sfreq!r}) must be a rate in Hz above 0")
        self.model, self._alarm = model, Alarm(model)
        self._n_chans = len(how.inputs or ()) or model.n_chans_
        self._places = None if ch_names is None else _places(how, ch_names, rename, self._n_chans)
        if ch_names is not None:
            self._n_chans = len(ch_names)
        elif rename:
            raise ValueError("channels without names cannot be renamed; give ch_names")
        self._factor = 1.0 if unit is None else _factor(how, unit)
        self._windows = Windows(Pipeline(how, sfreq), model.n_times_, int(step))

    def feed(self, chunk: Any) -> list[Prediction]:
        """Take the next samples (n_chans, n), missing ones as NaN; return the windows that are complete.

        Samples are as they were recorded: filter, reference and rate are the model's business.
        """
        samples = np.asarray(chunk, dtype=np.float64)
        if samples.ndim != 2 or len(samples) != self._n_chans:
            raise ValueError(
                f"a chunk must have shape ({self._n_chans}, n), channels first, got {samples.shape}"
            )
        if self._places is not None:
            samples = samples[self._places]
        if self._factor != 1:
            samples = self._factor * samples
        return list(classified(self.model, self._watched(self._windows.push(samples))))

    def finish(self) -> list[Prediction]:
        """Return the windows that the end of a source completes, where its rate is not the model's."""
        return list(classified(self.model, self._watched(self._windows.finish())))

    def _watched(self, windows: Iterator[Window]) -> Iterator[Window]:
        for window in windows:
            self._alarm(window)
            yield window


def _places(
    how: Preprocessing, ch_names: Sequence[str], rename: Mapping[str, str] | None, n_chans: int
) -> list[int] | None:
    """Return which channels of a source are the model's; None where it has no names for them."""
    present = renamed(ch_names, rename, source="the source")
    if how.inputs is not None:
        return pick_channels(how.inputs, present, source="the source")
    if len(present) != n_chans:
        raise ValueError(
            f"the source has {len(present)} channels, the model takes {n_chans} and does not know their "
            f"names; hand in those"
        )
    return None


def _factor(how: Preprocessing, unit: str) -> float:
    """Return what a source is multiplied by to be in the model's unit."""
    if (spelled := unit_of(unit)) is None:
        raise ValueError(f"unit (={unit!r}) must be one of {', '.join(UNITS)}")
    if how.unit is None:
        raise ValueError(
            f"the source is in {spelled}, and the model does not know its unit; train it with one (--unit)"
        )
    return UNITS[how.unit] / UNITS[spelled]


def classified(model: AnchorInvClassifier, windows: Iterable[Window]) -> Iterator[Prediction]:
    """Predict windows as they come, some at a time; those with gaps have no class."""
    rest = iter(windows)
    while some := list(islice(rest, AT_ONCE)):
        now = copy(model)  # as it is: another thread may be teaching it
        whole = [window.values for window in some if window.whole]
        found = iter(probabilities(now, np.stack(whole)) if whole else ())
        for window in some:
            chances = next(found) if window.whole else None
            label = None if chances is None else now.classes_[int(chances.argmax())]
            yield Prediction(window.start, label, chances)


def probabilities(model: AnchorInvClassifier, signals: np.ndarray) -> np.ndarray:
    """Return (n, n_classes) for signals (n, n_chans, n_times) that have been checked."""
    logits = logits_of(model.state_, from_numpy(model.standardisation_(signals)))
    return F.softmax(logits, dim=1).numpy()
