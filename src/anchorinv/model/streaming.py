"""Predictions while signals come in: from a live source, or from a file that does not fit into memory."""

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import from_numpy

from anchorinv.answers import logits_of
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.streams.cutting import Window, Windows
from anchorinv.streams.stages import stages_of

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
    window and a chunk is held.

    Parameters
    ----------
    model : fitted; its filter, if it has one, must be causal.
    step : samples from one window's start to the next.
    sfreq : of the source in Hz, to be compared with the model's.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(8, 2, 64)), [0, 1] * 4
    >>> model = AnchorInvClassifier(epochs=1, inversion_steps=1, random_state=0).fit(X, y)
    >>> live = StreamingPredictor(model, step=32)
    >>> [len(live.feed(chunk)) for chunk in np.split(rng.normal(size=(2, 160)), 4, axis=1)]
    [0, 1, 1, 2]
    """

    def __init__(self, model: AnchorInvClassifier, *, step: int, sfreq: float | None = None) -> None:
        model._check_fitted()
        if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 1:
            raise ValueError(f"step (={step!r}) must be a whole number of samples, 1 or more")
        if sfreq is not None and model.sfreq_ is not None and sfreq != model.sfreq_:
            raise ValueError(
                f"the source is sampled at {sfreq:g} Hz, the model at {model.sfreq_:g} Hz; set it to that"
            )
        how = model.preprocessing.filter if model.preprocessing else None
        if how is not None and not how.causal:
            raise ValueError(
                f"the model was trained on signals filtered with a look ahead ({how}), which no live source "
                f"allows; train it on causally filtered signals, or predict whole files"
            )
        refuse_unrepeatable(model)
        if how is not None and model.sfreq_ is None:
            raise ValueError("the model has a filter but no rate; train it with sfreq (--sfreq)")
        rate = model.sfreq_ or 1.0
        self.model = model
        self._windows = Windows(stages_of(how, source=rate, target=rate), model.n_times_, int(step))

    def feed(self, chunk: Any) -> list[Prediction]:
        """Take the next samples (n_chans, n), missing ones as NaN; return the windows that are complete.

        Samples are in the unit of the signals that the model was trained on, unfiltered.
        """
        samples = np.asarray(chunk, dtype=np.float64)
        if samples.ndim != 2 or len(samples) != self.model.n_chans_:
            raise ValueError(
                f"a chunk must have shape ({self.model.n_chans_}, n), channels first, got {samples.shape}"
            )
        return list(classified(self.model, self._windows.push(samples)))


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


def refuse_unrepeatable(model: AnchorInvClassifier) -> None:
    """Refuse recordings for a model whose signals were filtered in a way that we cannot repeat."""
    how = model.preprocessing
    if how is not None and how.unrepeatable:
        raise ValueError(
            f"the model was trained on signals filtered by {how.unrepeatable}, which we cannot repeat; "
            f"filter the recording so, cut it into windows, and predict those (.npz or .npy)"
        )
