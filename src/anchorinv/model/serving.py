"""Files through a model: windows or continuous recordings in, a prediction for each window out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorinv.estimator import AnchorInvClassifier
from anchorinv.inputs import read_signals
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


def predicted(
    model: AnchorInvClassifier, path: Path, *, step: float | None = None, scale: float = 1.0, note: Note
) -> Iterator[Row]:
    """Yield a row for each window of a file, in bounded memory.

    Parameters
    ----------
    path : windows (``.npz``, ``.npy``, a prepared folder) or a continuous recording.
    step : seconds between windows of a recording; None for one after the other.
    scale : what the signals are multiplied by, those of a recording beyond its own unit.
    note : is shown all windows without gaps.
    """
    windowed = is_windowed(path)
    windows = windows_in(model, path, step=step, scale=scale)
    for number, found in enumerate(classified(model, _noted(windows, note))):
        time = None if windowed or not model.sfreq_ else found.start / model.sfreq_
        yield Row(number, time, found.label, found.probabilities)


def shots(
    model: AnchorInvClassifier, path: Path, *, step: float | None = None, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a file's windows without gaps (n, n_chans, n_times), and their labels (n,) if it has them."""
    windows = list(windows_in(model, path, step=step, scale=scale, task="reading"))
    labels = open_windows(path).labels if is_windowed(path) else None
    whole = [window.values for window in windows if window.whole]
    if not whole:
        raise ValueError(f"{path} has gaps (NaN) in every window; nothing can be learned from it")
    return np.stack(whole), labels


def taught(
    model: AnchorInvClassifier, signals: np.ndarray, labels: list[Any], *, force: bool = False
) -> Lesson:
    """Teach a model new classes and return what that did; a model that cannot learn them stays as it was."""
    before = model.state_
    model.partial_fit(signals, labels, force=force)
    names = model.classes_.tolist()
    columns = torch.tensor([names.index(label) for label in labels])
    standardised = torch.from_numpy(model.standardisation_(signals))
    return lesson_of(before, model.state_, standardised, columns, names)


def windows_in(
    model: AnchorInvClassifier,
    path: Path,
    *,
    step: float | None = None,
    scale: float = 1.0,
    task: str = "predicting",
) -> Iterator[Window]:
    """Yield the windows of a file, whether it holds windows or a continuous recording."""
    if is_windowed(path):
        return from_windows(model, path, scale=scale, task=task)
    return from_recording(model, path, step=step, scale=scale, task=task)


def from_windows(
    model: AnchorInvClassifier,
    path: Path,
    *,
    split: str | None = None,
    scale: float = 1.0,
    task: str = "predicting",
) -> Iterator[Window]:
    """Yield the windows of a file, channels in the model's order."""
    file = open_windows(path, split=split)
    channels = channels_for(file, model.n_chans_, model.ch_names_, model.sfreq_)
    _check_length(model, file)
    number = 0
    for piece in file.pieces(channels, task=task):
        if piece.dtype.kind == "f" and not (whole := np.isfinite(piece).all(axis=(1, 2))).all():
            raise ValueError(
                f"{file.name} has NaN or infinite values in window {number + int(whole.argmin())}; drop or "
                f"repair such windows"
            )
        for values in read_signals(piece if scale == 1 else scale * piece).values:
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
            "the model does not know its rate; train it with sfreq, or predict windows (.npz, .npy)"
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
