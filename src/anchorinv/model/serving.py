"""Files through a model: windows or continuous recordings in, a prediction for each window out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorinv.data.windowed import is_windowed, open_windows
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.model.drift import Drift, Moments, drift
from anchorinv.model.lesson import Lesson, lesson_of
from anchorinv.model.sources import from_recording, from_windows
from anchorinv.model.streaming import classified
from anchorinv.signal.pipeline import Window

Note = Callable[[np.ndarray], None]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A window's prediction; ``time`` in seconds is known for recordings alone, ``label`` without gaps."""

    window: int
    time: float | None
    label: Any
    probabilities: np.ndarray | None


class Watch:
    """Look at windows on their way to a model, to tell at the end how far they were from its base data."""

    def __init__(self, model: AnchorInvClassifier) -> None:
        self._model = model
        self._moments: Moments | None = None

    def __call__(self, signals: np.ndarray) -> None:
        """Take in windows (n, n_chans, n_times)."""
        found = Moments.of(signals)
        self._moments = found if self._moments is None else self._moments + found

    @property
    def drift(self) -> Drift | None:
        """How far all of them are; None if there was none."""
        model = self._model
        return drift(self._moments, model.statistics_, model.ch_names_) if self._moments else None


def predicted(
    model: AnchorInvClassifier,
    path: Path,
    *,
    step: float | None = None,
    scale: float = 1.0,
    sfreq: float | None = None,
    note: Note,
) -> Iterator[Row]:
    """Yield a row for each window of a file, in bounded memory.

    Parameters
    ----------
    path : windows (``.npz``, ``.npy``, a prepared folder) or a continuous recording.
    step : seconds between windows of a recording; None for one after the other.
    scale : what a recording is multiplied by, beyond its own unit.
    sfreq : in Hz, of a recording whose file does not say its rate; None for the model's.
    note : is shown all windows without gaps.
    """
    windowed = is_windowed(path)
    if windowed:
        windows = from_windows(model, path)
    else:
        windows = from_recording(model, path, step=step, scale=scale, sfreq=sfreq)
    for number, found in enumerate(classified(model, _noted(windows, note))):
        time = None if windowed or not model.sfreq_ else found.start / model.sfreq_
        yield Row(number, time, found.label, found.probabilities)


def shots(
    model: AnchorInvClassifier, path: Path, *, step: float | None = None, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a file's windows without gaps (n, n_chans, n_times), and their labels (n,) if it has them."""
    if is_windowed(path):
        windows, labels = list(from_windows(model, path, task="reading")), open_windows(path).labels
    else:
        windows, labels = list(from_recording(model, path, step=step, scale=scale, task="reading")), None
    whole = [window.values for window in windows if window.whole]
    if not whole:
        raise ValueError(f"{path} has gaps (NaN) in every window; nothing can be learned from it")
    return np.stack(whole), labels


def taught(model: AnchorInvClassifier, signals: np.ndarray, labels: list[Any]) -> Lesson:
    """Teach a model new classes and return what that did; a model that cannot learn them stays as it was."""
    before = model.state_
    model.partial_fit(signals, labels)
    names = model.classes_.tolist()
    columns = torch.tensor([names.index(label) for label in labels])
    standardised = torch.from_numpy(model.standardisation_(signals))
    return lesson_of(before, model.state_, standardised, columns, names)


def _noted(windows: Iterator[Window], note: Note) -> Iterator[Window]:
    for window in windows:
        if window.whole:
            note(window.values[None])
        yield window
