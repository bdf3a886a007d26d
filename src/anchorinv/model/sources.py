"""Windows for a model, from files of windows, from recordings, and from the events of recordings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorinv.data.labelling import Labelling, rows_of_events
from anchorinv.data.manifest import Entry
from anchorinv.data.windowed import WindowFile, channels_for, is_windowed, open_windows
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.inputs import read_signals
from anchorinv.mistaken import other_shape
from anchorinv.problems import raise_if_any
from anchorinv.signal.pipeline import Pipeline, Window, Windows
from anchorinv.signal.readers import open_recording
from anchorinv.signal.recordings import Recording, inputs_of
from anchorinv.signal.stages import resampled_length


@dataclass(frozen=True, slots=True)
class Reading:
    """What a user says of files beyond what they say themselves.

    Parameters
    ----------
    step : seconds between windows of a recording; None for one after the other.
    scale : what the signals are multiplied by, those of a recording beyond its own unit.
    rename : names that channels have in the file, and those that the model knows them by.
    sfreq : in Hz, of recordings that do not say their rate; None for the model's.
    """

    step: float | None = None
    scale: float = 1.0
    rename: Mapping[str, str] | None = None
    sfreq: float | None = None


AS_IT_IS = Reading()


def windows_in(
    model: AnchorInvClassifier, path: Path, reading: Reading = AS_IT_IS, *, task: str = "predicting"
) -> Iterator[Window]:
    """Yield the windows of a file, whether it holds windows or a continuous recording."""
    read = from_windows if is_windowed(path) else from_recording
    return read(model, path, reading, task=task)


def from_windows(
    model: AnchorInvClassifier,
    path: Path,
    reading: Reading = AS_IT_IS,
    *,
    split: str | None = None,
    task: str = "predicting",
) -> Iterator[Window]:
    """Yield the windows of a file, channels in the model's order."""
    scale = reading.scale
    file = open_windows(path, split=split)
    shape = (model.n_chans_, model.n_times_)
    if file.shape[1:] == shape[::-1] != shape:
        raise ValueError(f"{file.name}: {other_shape(file.shape[1:], shape)}")
    channels = channels_for(file, model.n_chans_, model.ch_names_, model.sfreq_, reading.rename)
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
    model: AnchorInvClassifier, path: Path, reading: Reading = AS_IT_IS, *, task: str = "predicting"
) -> Iterator[Window]:
    """Yield the windows of a recording, brought to what the model was trained on as ``prepare`` does."""
    recording = open_recording(path).renamed(reading.rename)
    rate, n_step = _rates(model, recording, reading)
    yield from _windows(model, recording, rate, n_step, scale=reading.scale, task=task)


def from_events(
    model: AnchorInvClassifier,
    path: Path,
    labelling: Labelling,
    reading: Reading = AS_IT_IS,
    *,
    task: str = "reading",
) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows (n, n_chans, n_times) of a recording's events and their classes (n,), without gaps.

    A stretch longer than a window gives several, a step apart. The recording is processed as a
    whole before windows are cut, as ``prepare`` does.
    """
    recording = open_recording(path).renamed(reading.rename)
    sfreq, n_step = _rates(model, recording, reading)
    rate = model.sfreq_ or sfreq
    rows, problems = rows_of_events([Entry(1, path.name, path)], labelling)
    raise_if_any(path.name, problems)
    labels: dict[int, str] = {}
    for row in rows:
        first, length = (
            round((row.start or 0.0) * rate),
            round(((row.stop or 0.0) - (row.start or 0.0)) * rate),
        )
        starts = range(first, first + length - model.n_times_ + 1, n_step)
        labels |= dict.fromkeys(starts, row.label)
    if not labels:
        raise ValueError(
            f"{path.name}: no stretch is as long as a window of the model, {model.n_times_ / rate:g} s; "
            f"choose a later --to"
        )
    cut = _windows(model, recording, sfreq, sorted(labels), scale=reading.scale, task=task)
    whole = [window for window in cut if window.whole]
    if not whole:
        raise ValueError(f"{path} has gaps (NaN) in every window; nothing can be learned from it")
    return np.stack([window.values for window in whole]), np.array([labels[window.start] for window in whole])


def _rates(model: AnchorInvClassifier, recording: Recording, reading: Reading) -> tuple[float, int]:
    """Return the rate of a recording and the samples between windows, if the model can take it."""
    how, name = model.preprocessing_, recording.path.name
    rate = how.sfreq
    if rate is None:
        raise ValueError(
            "the model does not know its rate; train it with sfreq (--sfreq), or predict windows (.npz, .npy)"
        )
    if how.not_repeatable:
        raise ValueError(
            f"the model was trained on {how.not_repeatable}; do the same to the recording and predict its "
            f"windows (.npz or .npy), or train on continuous recordings (anchorinv prepare own)"
        )
    n_step = model.n_times_ if reading.step is None else round(reading.step * rate)
    if n_step < 1:
        raise ValueError(f"a step of {reading.step} s is less than a sample at {rate:g} Hz")
    sfreq = recording.sfreq or reading.sfreq or rate  # a file's own comes first
    fourier = how.resampling == "fourier"
    if resampled_length(recording.n_times, sfreq, rate, fourier=fourier) < model.n_times_:
        raise ValueError(
            f"{name} lasts {recording.n_times / sfreq:.3g} s, a window of the model "
            f"{model.n_times_ / rate:.3g} s; a longer recording is needed"
        )
    return sfreq, n_step


def _windows(
    model: AnchorInvClassifier,
    recording: Recording,
    sfreq: float,
    starts: int | list[int],
    *,
    scale: float,
    task: str,
) -> Iterator[Window]:
    how = model.preprocessing_
    taken = inputs_of(recording, how, n_chans=model.n_chans_, scale=scale)
    windows = Windows(Pipeline(how, sfreq), model.n_times_, starts)
    for piece in recording.pieces(taken.channels, task=task):
        yield from windows.push(taken.factors * piece)
    yield from windows.finish()


def _check_length(model: AnchorInvClassifier, file: WindowFile) -> None:
    if file.shape[2] != model.n_times_:
        raise ValueError(
            f"{file.name} has windows of {file.shape[2]} samples, the model takes {model.n_times_}; "
            f"cut them to the same length"
        )
