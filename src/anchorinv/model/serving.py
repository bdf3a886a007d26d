"""Files through a model: windows or continuous recordings in, a prediction for each window out."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorinv.estimator import AnchorInvClassifier
from anchorinv.inputs import read_signals
from anchorinv.mistaken import other_shape
from anchorinv.model.drift import Drift, Moments, drift
from anchorinv.model.lesson import Lesson, lesson_of
from anchorinv.model.limits import HIGHEST_RATIO, LOWEST_RATIO
from anchorinv.model.streaming import classified, refuse_unrepeatable
from anchorinv.streams.cutting import Window, Windows
from anchorinv.streams.preprocessing import UNITS, Preprocessing
from anchorinv.streams.recordings import matched, open_recording
from anchorinv.streams.stages import stages_of
from anchorinv.streams.windowed import WindowFile, channels_for, is_windowed, open_windows

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
    model: AnchorInvClassifier, path: Path, *, step: float | None = None, scale: float = 1.0, note: Note
) -> Iterator[Row]:
    """Yield a row for each window of a file, in bounded memory.

    Parameters
    ----------
    path : windows (``.npz``, ``.npy``, a prepared folder) or a continuous recording.
    step : seconds between windows of a recording; None for one after the other.
    scale : what a recording is multiplied by, beyond its own unit.
    note : is shown all windows without gaps.
    """
    timed = model.sfreq_ if not is_windowed(path) else None
    windows = windows_of(model, path, step=step, scale=scale)
    with about(path):
        for number, found in enumerate(classified(model, _noted(windows, note))):
            time = found.start / timed if timed else None
            yield Row(number, time, found.label, found.probabilities)


def check_inputs(
    model: AnchorInvClassifier, paths: Iterable[Path], *, step: float | None = None, scale: float = 1.0
) -> None:
    """Look at the beginning of each file: one that cannot be predicted is noticed before any other is."""
    for path in paths:
        with about(path):
            next(windows_of(model, path, step=step, scale=scale, task="looking"), None)


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Have every error name the file that it is about."""
    try:
        yield
    except ValueError as error:
        if path.name in str(error):
            raise
        raise ValueError(f"{path}: {error}") from None


def shots(
    model: AnchorInvClassifier, path: Path, *, step: float | None = None, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a file's windows without gaps (n, n_chans, n_times), and their labels (n,) if it has them."""
    windows = list(windows_of(model, path, step=step, scale=scale, task="reading"))
    labels = open_windows(path).labels if is_windowed(path) else None
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


def windows_of(
    model: AnchorInvClassifier,
    path: Path,
    *,
    step: float | None = None,
    scale: float = 1.0,
    task: str = "predicting",
) -> Iterator[Window]:
    """Yield the windows of a file of either kind, as the model takes them."""
    if is_windowed(path):
        return from_windows(model, path, task=task)
    return from_recording(model, path, step=step, scale=scale, task=task)


def from_windows(
    model: AnchorInvClassifier, path: Path, *, split: str | None = None, task: str = "predicting"
) -> Iterator[Window]:
    """Yield the windows of a file, channels in the model's order."""
    file = open_windows(path, split=split)
    if file.shape[1:] == (model.n_times_, model.n_chans_) != (model.n_chans_, model.n_times_):
        raise ValueError(f"{file.name}: {other_shape(file.shape[1:], (model.n_chans_, model.n_times_))}")
    channels = channels_for(file, model.n_chans_, model.ch_names_, model.sfreq_)
    _check_length(model, file)
    number = 0
    for piece in file.pieces(channels, task=task):
        if piece.dtype.kind == "f" and not (whole := np.isfinite(piece).all(axis=(1, 2))).all():
            raise ValueError(
                f"{file.name} has NaN or infinite values in window {number + int(whole.argmin())}; drop or "
                f"repair such windows"
            )
        for values in read_signals(piece).values:
            yield Window(number, values, True)
            number += 1


def from_recording(
    model: AnchorInvClassifier,
    path: Path,
    *,
    step: float | None = None,
    scale: float = 1.0,
    task: str = "predicting",
) -> Iterator[Window]:
    """Yield the windows of a recording, its channels, unit, filter and rate brought to the model's."""
    recording = open_recording(path)
    rate = model.sfreq_
    if rate is None:
        raise ValueError(
            "the model does not know its rate; train it with sfreq (--sfreq), or predict windows (.npz, .npy)"
        )
    refuse_unrepeatable(model)
    if not LOWEST_RATIO <= rate / recording.sfreq <= HIGHEST_RATIO:
        raise ValueError(
            f"{path.name} is sampled at {recording.sfreq:g} Hz, the model at {rate:g} Hz: too far "
            f"apart to bring one to the other; is either rate wrong?"
        )
    n_step = model.n_times_ if step is None else round(step * rate)
    if n_step < 1:
        raise ValueError(f"a step of {step} s is less than a sample at {rate:g} Hz")
    if recording.n_times / recording.sfreq * rate < model.n_times_ - 0.5:
        raise ValueError(
            f"{path.name} lasts {recording.n_times / recording.sfreq:.3g} s, a window of the model "
            f"{model.n_times_ / rate:.3g} s; a longer recording is needed"
        )
    how = model.preprocessing or Preprocessing()
    channels = matched(model.ch_names_, recording.ch_names, model.n_chans_, name=path.name)
    factor = scale * (UNITS[how.unit] if how.unit else 1.0)
    stages = stages_of(how.filter, source=recording.sfreq, target=rate)
    cutter = Windows(stages, model.n_times_, n_step, ratio=rate / recording.sfreq)
    for piece in recording.pieces(channels, task=task):
        yield from cutter.push(factor * piece)
    yield from cutter.finish()


def _noted(windows: Iterator[Window], note: Note) -> Iterator[Window]:
    for window in windows:
        if window.whole:
            note(window.values[None])
        yield window


def _check_length(model: AnchorInvClassifier, file: WindowFile) -> None:
    if file.shape[2] != model.n_times_:
        raise ValueError(
            f"{file.name} has windows of {file.shape[2]} samples, the model takes {model.n_times_}; "
            f"cut them to the same length"
        )
