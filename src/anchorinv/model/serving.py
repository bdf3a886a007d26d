"""Files through a model: windows or continuous recordings in, a prediction for each window out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorinv.data.windowed import WindowFile, channels_for, is_windowed, open_windows
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.inputs import read_signals
from anchorinv.model.drift import Drift, Moments, drift
from anchorinv.model.lesson import Lesson, lesson_of
from anchorinv.model.streaming import classified
from anchorinv.signal.pipeline import Pipeline, Window, Windows
from anchorinv.signal.readers import open_recording
from anchorinv.signal.recordings import inputs_of
from anchorinv.signal.stages import resampled_length

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
    windowed = is_windowed(path)
    windows = from_windows(model, path) if windowed else from_recording(model, path, step=step, scale=scale)
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


def from_windows(
    model: AnchorInvClassifier,
    path: Path,
    *,
    split: str | None = None,
    rename: Mapping[str, str] | None = None,
    task: str = "predicting",
) -> Iterator[Window]:
    """Yield the windows of a file, channels in the model's order."""
    file = open_windows(path, split=split)
    channels = channels_for(file, model.n_chans_, model.ch_names_, model.sfreq_, rename)
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
    rename: Mapping[str, str] | None = None,
    task: str = "predicting",
) -> Iterator[Window]:
    """Yield the windows of a recording, brought to what the model was trained on as ``prepare`` does."""
    recording = open_recording(path).renamed(rename)
    how = model.preprocessing_
    rate = how.sfreq
    if rate is None:
        raise ValueError(
            "the model does not know its rate; train it with sfreq, or predict windows (.npz, .npy)"
        )
    if how.not_repeatable:
        raise ValueError(
            f"the model was trained on {how.not_repeatable}; do the same to the recording and predict its "
            f"windows (.npz or .npy), or train on continuous recordings (anchorinv prepare own)"
        )
    sfreq = recording.sfreq or rate  # of a file that says none, the model's is taken
    n_step = model.n_times_ if step is None else round(step * rate)
    if n_step < 1:
        raise ValueError(f"a step of {step} s is less than a sample at {rate:g} Hz")
    fourier = how.resampling == "fourier"
    if resampled_length(recording.n_times, sfreq, rate, fourier=fourier) < model.n_times_:
        raise ValueError(
            f"{path.name} lasts {recording.n_times / sfreq:.3g} s, a window of the model "
            f"{model.n_times_ / rate:.3g} s; a longer recording is needed"
        )
    taken = inputs_of(recording, how, n_chans=model.n_chans_, scale=scale)
    windows = Windows(Pipeline(how, sfreq), model.n_times_, n_step)
    for piece in recording.pieces(taken.channels, task=task):
        yield from windows.push(taken.factors * piece)
    yield from windows.finish()


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
