"""Read windows for a model, from files of windows, recordings, or events of recordings, and predict them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from anchorinv.datasets.dataset import open_windows
from anchorinv.datasets.own import Labelling, rows_of_events
from anchorinv.datasets.own_files import ManifestRow
from anchorinv.errors import raise_if_any
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.files import replacing
from anchorinv.serving.streaming import Prediction, Smoothing, classify, smoother_of
from anchorinv.signal.pipeline import Pipeline, Window, Windows, resampled_length
from anchorinv.signal.preprocessing import conversion
from anchorinv.signal.readers import Recording, channels_for, is_windowed, open_recording, select_inputs
from anchorinv.validation import read_signals, shape_mismatch

#: Called with the windows (n, n_chans, n_times) passed to a model.
Observer = Callable[[np.ndarray], None]
AnyWindow = TypeVar("AnyWindow", Window, Prediction)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are read, as far as they do not specify it.

    Parameters
    ----------
    step : float or None, default=None
        Seconds between windows of a recording; None for windows without overlap.
    scale : float, default=1.0
        Factor for the signals; for those of a recording, beyond its own unit.
    rename : mapping of str to str or None, default=None
        Maps channel names in the file to the model's.
    sfreq : float or None, default=None
        Sampling rate in Hz of recordings that do not state it.

    Examples
    --------
    >>> ReadOptions(scale=float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: scale (=nan) must be a number other than 0
    """

    step: float | None = None
    scale: float = 1.0
    rename: Mapping[str, str] | None = None
    sfreq: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale) or self.scale == 0:
            raise ValueError(f"scale (={self.scale:g}) must be a number other than 0")
        for name in ("step", "sfreq"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} (={value:g}) must be a number above 0")


DEFAULTS = ReadOptions()


@dataclass(frozen=True, slots=True)
class WindowPlace:
    """Where a window is."""

    path: Path
    window: int  # its number in the file, from 0
    time: float | None  # its start in seconds; None in files of windows


def predict_file(
    model: AnchorInvClassifier,
    path: Path,
    reading: ReadOptions = DEFAULTS,
    *,
    note: Observer,
    steady: Smoothing | str | None = None,
) -> Iterator[tuple[WindowPlace, Prediction]]:
    """Predict each window of a file, in bounded memory; ``note`` is called with those without gaps.

    The file holds windows (``.npz``, ``.npy``, a prepared folder) or is a continuous recording, whose
    predictions can be smoothed (``steady``) like those of a live source.
    """
    windows = read_windows(model, path, reading)
    with errors_naming(path):
        if steady is not None:
            _check_sequence(path)
        predictions = classify(model, observed(windows, note), smoother_of(steady, model))
        yield from _with_places(model, path, predictions)


def _with_places(
    model: AnchorInvClassifier, path: Path, windows: Iterable[AnyWindow]
) -> Iterator[tuple[WindowPlace, AnyWindow]]:
    """Yield consecutive windows of a file, or their predictions, each with its place."""
    sfreq = None if is_windowed(path) else model.sfreq_
    for number, window in enumerate(windows):
        yield WindowPlace(path, number, window.start / sfreq if sfreq else None), window


def check_inputs(
    model: AnchorInvClassifier,
    paths: Iterable[Path],
    reading: ReadOptions = DEFAULTS,
    *,
    steady: Smoothing | str | None = None,
) -> None:
    """Read the beginning of each file, to find unusable ones before predicting any."""
    for path in paths:
        with errors_naming(path):
            if steady is not None:
                _check_sequence(path)
            next(read_windows(model, path, reading, task="looking"), None)


def _check_sequence(path: Path) -> None:
    """Refuse to smooth predictions of separate windows."""
    if is_windowed(path):
        raise ValueError(
            f"{path.name} contains separate windows, not a sequence in time: their predictions cannot be "
            f"smoothed; predict the continuous recording, or leave out --steady and its settings"
        )


@contextmanager
def errors_naming(path: Path) -> Iterator[None]:
    """Prefix errors with the name of the file."""
    try:
        yield
    except ValueError as error:
        if path.name in str(error):
            raise
        raise ValueError(f"{path}: {error}") from None


def read_shots(
    model: AnchorInvClassifier, path: Path, reading: ReadOptions = DEFAULTS
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a file's windows without gaps (n, n_chans, n_times), and their labels (n,) if it has them."""
    signals, _ = _without_gaps(read_windows(model, path, reading, task="reading"), path)
    return signals, open_windows(path).labels if is_windowed(path) else None


def read_unlabelled(
    model: AnchorInvClassifier, paths: Sequence[Path], reading: ReadOptions = DEFAULTS
) -> tuple[np.ndarray, list[WindowPlace]]:
    """Return the windows of files without gaps (n, n_chans, n_times), and where each of them is."""
    signals: list[np.ndarray] = []
    places: list[WindowPlace] = []
    for path in paths:
        with errors_naming(path):
            windows = read_windows(model, path, reading, task="reading")
            for place, window in _with_places(model, path, windows):
                if window.complete:
                    signals.append(window.values)
                    places.append(place)
    if not signals:
        raise ValueError(f"{', '.join(map(str, paths))}: every window has gaps (NaN); nothing to predict")
    return np.stack(signals), places


def write_shots(path: Path, signals: np.ndarray, *, model: AnchorInvClassifier) -> None:
    """Write windows as a model takes them (n, n_chans, n_times) to an ``.npz`` file, for teaching."""
    about: dict[str, Any] = {} if model.sfreq_ is None else {"sfreq": model.sfreq_}
    if model.ch_names_ is not None:
        about["ch_names"] = np.array(model.ch_names_)
    with replacing(path) as beside, beside.open("wb") as file:
        np.savez(file, X=signals, **about)


def observed(windows: Iterable[Window], note: Observer) -> Iterator[Window]:
    """Yield windows, and call ``note`` with those without gaps."""
    for window in windows:
        if window.complete:
            note(window.values[None])
        yield window


def read_windows(
    model: AnchorInvClassifier, path: Path, reading: ReadOptions = DEFAULTS, *, task: str = "predicting"
) -> Iterator[Window]:
    """Yield the windows of a file, whether it holds windows or a continuous recording."""
    read = from_windows if is_windowed(path) else from_recording
    return read(model, path, reading, task=task)


def from_windows(
    model: AnchorInvClassifier,
    path: Path,
    reading: ReadOptions = DEFAULTS,
    *,
    split: str | None = None,
    task: str = "predicting",
) -> Iterator[Window]:
    """Yield the windows of a file, channels in the model's order."""
    file = open_windows(path, split=split)
    scale = reading.scale * conversion(file.preprocessing.unit, model.preprocessing_.unit)
    shape = (model.n_chans_, model.n_times_)
    if file.shape[1:] == shape[::-1] != shape:  # times first
        raise ValueError(f"{file.name}: {shape_mismatch(file.shape[1:], shape)}")
    channels = channels_for(file, model.n_chans_, model.ch_names_, model.sfreq_, reading.rename)
    if file.shape[2] != model.n_times_:
        raise ValueError(
            f"{file.name} has windows of {file.shape[2]} samples, the model takes {model.n_times_}; "
            f"cut them to the same length"
        )
    number = 0
    for piece in file.pieces(channels, task=task):
        if piece.dtype.kind == "f" and not (finite := np.isfinite(piece).all(axis=(1, 2))).all():
            raise ValueError(
                f"{file.name} has NaN or infinite values in window {number + int(finite.argmin())}; drop or "
                f"repair such windows"
            )
        for values in read_signals(piece if scale == 1 else scale * piece).values:
            yield Window(number, values, True)
            number += 1


def from_recording(
    model: AnchorInvClassifier, path: Path, reading: ReadOptions = DEFAULTS, *, task: str = "predicting"
) -> Iterator[Window]:
    """Yield the windows of a recording, preprocessed as by ``prepare``."""
    recording = open_recording(path).renamed(reading.rename)
    shape = (len(recording.ch_names), recording.n_times)
    is_array = path.suffix.lower() == ".npy"
    if is_array and reading.sfreq is None and shape == (model.n_chans_, model.n_times_):
        raise ValueError(
            f"{path.name}: {shape} is read as one recording of {shape[0]} channels; a single window is "
            f"{(1, *shape)}, save X[None]"
        )
    select_inputs(recording, model.preprocessing_, n_chans=model.n_chans_)  # before their length is checked
    sfreq, n_step = _rates(model, recording, reading)
    yield from _windows(model, recording, sfreq, n_step, scale=reading.scale, task=task)


def from_events(
    model: AnchorInvClassifier,
    paths: Sequence[Path],
    labelling: Labelling,
    reading: ReadOptions = DEFAULTS,
) -> Iterator[tuple[Path, np.ndarray, np.ndarray]]:
    """Yield each recording with its windows (n, n_chans, n_times), cut around its events, and labels (n,).

    A trial longer than a window gives several, a step apart; windows with gaps are left out. Recordings are
    preprocessed before windows are cut, as by ``prepare``. An event must occur in at least one recording.
    """
    entries = [ManifestRow(i, path.name, path) for i, path in enumerate(paths)]
    rows, problems = rows_of_events(entries, labelling, sfreq=reading.sfreq)
    raise_if_any(", ".join(path.name for path in paths), problems)
    for path in paths:
        if trials := [row for row in rows if row.path == path]:
            yield path, *_from_trials(model, path, trials, reading)


def _from_trials(
    model: AnchorInvClassifier, path: Path, trials: Sequence[ManifestRow], reading: ReadOptions
) -> tuple[np.ndarray, np.ndarray]:
    recording = open_recording(path).renamed(reading.rename)
    sfreq, n_step = _rates(model, recording, reading)
    rate = model.sfreq_ or sfreq
    labels: dict[int, str] = {}  # of windows, by their first samples
    for trial in trials:
        start, stop = trial.start or 0.0, trial.stop or 0.0
        first = round(start * rate)
        last = first + round((stop - start) * rate) - model.n_times_
        for at in range(first, last + 1, n_step):
            if labels.setdefault(at, trial.label) != trial.label:
                raise ValueError(
                    f"{path.name} is {labels[at]!r} and {trial.label!r} at {at / rate:g} s; events of two "
                    f"classes may not coincide"
                )
    if not labels:
        raise ValueError(
            f"{path.name}: no segment is as long as a window of the model, {model.n_times_ / rate:g} s; "
            f"choose a later --to"
        )
    windows = _windows(model, recording, sfreq, sorted(labels), scale=reading.scale, task="reading")
    signals, starts = _without_gaps(windows, path)
    return signals, np.array([labels[start] for start in starts])


def _without_gaps(windows: Iterable[Window], path: Path) -> tuple[np.ndarray, list[int]]:
    """Return the windows without missing samples (n, n_chans, n_times), and where they start."""
    whole = [window for window in windows if window.complete]
    if not whole:
        raise ValueError(f"{path} has gaps (NaN) in every window; nothing can be learned from it")
    return np.stack([window.values for window in whole]), [window.start for window in whole]


def _rates(model: AnchorInvClassifier, recording: Recording, reading: ReadOptions) -> tuple[float, int]:
    """Return the rate of a recording and the samples between windows, if the model can process it."""
    preprocessing, name = model.preprocessing_, recording.path.name
    rate = preprocessing.sfreq
    if rate is None:
        raise ValueError(
            "the model has no sampling rate; train it with sfreq (--sfreq), or predict windows (.npz, .npy)"
        )
    if preprocessing.not_repeatable:
        raise ValueError(
            f"the model was trained on {preprocessing.not_repeatable}; do the same to the recording and "
            f"predict its windows (.npz or .npy), or train on continuous recordings (anchorinv prepare own)"
        )
    n_step = model.n_times_ if reading.step is None else round(reading.step * rate)
    if n_step < 1:
        raise ValueError(f"a step of {reading.step} s is less than a sample at {rate:g} Hz")
    sfreq = recording.sfreq or reading.sfreq  # that of the file has priority
    if sfreq is None:
        raise ValueError(f"{name} has no sampling rate; pass it with --sfreq (the model's is {rate:g} Hz)")
    fourier = preprocessing.resampling == "fourier"
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
    inputs = select_inputs(recording, model.preprocessing_, n_chans=model.n_chans_, scale=scale)
    windows = Windows(Pipeline(model.preprocessing_, sfreq), model.n_times_, starts)
    for piece in recording.pieces(inputs.channels, task=task):
        yield from windows.push(inputs.factors * piece)
    yield from windows.finish()
