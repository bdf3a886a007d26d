"""Read windows for a model, from files of windows, recordings, or events of recordings, and predict them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.datasets.dataset import open_windows
from anchorinv.datasets.own import Labelling, rows_of_events
from anchorinv.datasets.own_files import ManifestRow
from anchorinv.errors import raise_if_any
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.files import replacing
from anchorinv.serving.streaming import Smoothing, classify, smoother_of
from anchorinv.signal.pipeline import Pipeline, Window, Windows, resampled_length
from anchorinv.signal.preprocessing import conversion
from anchorinv.signal.readers import Recording, channels_for, is_windowed, open_recording, select_inputs
from anchorinv.validation import read_signals, shape_mismatch

#: Called with the windows (n, n_chans, n_times) passed to a model.
Observer = Callable[[np.ndarray], None]


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


@dataclass(frozen=True, slots=True, eq=False)
class PredictedWindow:
    """A window of a file and its predicted class; neither class nor probabilities if samples are missing."""

    window: int  # its number in the file, from 0
    time: float | None  # its start in seconds; None in files of windows
    label: Any
    probabilities: np.ndarray | None  # (n_classes,), in the order of ``classes_``
    raw_label: Any = None  # its class before smoothing
    novelty: float | None = None  # p-value of novelty, if the model has it


@dataclass(frozen=True, slots=True)
class WindowPlace:
    """The source of a window."""

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
) -> Iterator[PredictedWindow]:
    """Predict each window of a file, in bounded memory; ``note`` is called with those without gaps.

    The file holds windows (``.npz``, ``.npy``, a prepared folder) or is a continuous recording, whose
    predictions can be made ``steady`` as those of a live source.
    """
    sfreq = None if is_windowed(path) else model.sfreq_
    windows = read_windows(model, path, reading)
    with errors_naming(path):
        if steady is not None:
            _check_sequence(path)
        smoother = smoother_of(steady, model)
        for number, prediction in enumerate(classify(model, observed(windows, note), smoother)):
            time = prediction.start / sfreq if sfreq else None
            yield PredictedWindow(
                number,
                time,
                prediction.label,
                prediction.probabilities,
                prediction.raw_label,
                prediction.novelty,
            )


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
    windows = list(read_windows(model, path, reading, task="reading"))
    labels = open_windows(path).labels if is_windowed(path) else None
    return _without_gaps(windows, path)[0], labels


def read_unlabelled(
    model: AnchorInvClassifier, paths: Sequence[Path], reading: ReadOptions = DEFAULTS
) -> tuple[np.ndarray, list[WindowPlace]]:
    """Return the windows of files without gaps (n, n_chans, n_times), and where each of them is."""
    signals: list[np.ndarray] = []
    places: list[WindowPlace] = []
    for path in paths:
        sfreq = None if is_windowed(path) else model.sfreq_
        with errors_naming(path):
            for number, window in enumerate(read_windows(model, path, reading, task="reading")):
                if window.whole:
                    signals.append(window.values)
                    places.append(WindowPlace(path, number, window.start / sfreq if sfreq else None))
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
        if window.whole:
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
    if file.shape[1:] == shape[::-1] != shape:
        raise ValueError(f"{file.name}: {shape_mismatch(file.shape[1:], shape)}")
    channels = channels_for(file, model.n_chans_, model.ch_names_, model.sfreq_, reading.rename)
    if file.shape[2] != model.n_times_:
        raise ValueError(
            f"{file.name} has windows of {file.shape[2]} samples, the model takes {model.n_times_}; "
            f"cut them to the same length"
        )
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
    model: AnchorInvClassifier, path: Path, reading: ReadOptions = DEFAULTS, *, task: str = "predicting"
) -> Iterator[Window]:
    """Yield the windows of a recording, preprocessed as by ``prepare``."""
    recording = open_recording(path).renamed(reading.rename)
    _refuse_single_window(model, recording, reading)
    select_inputs(recording, model.preprocessing_, n_chans=model.n_chans_)  # before their length is checked
    rate, n_step = _rates(model, recording, reading)
    yield from _windows(model, recording, rate, n_step, scale=reading.scale, task=task)


def _refuse_single_window(model: AnchorInvClassifier, recording: Recording, reading: ReadOptions) -> None:
    """Refuse an ``.npy`` file of two axes and the length of a window, unless its rate is given."""
    shape = (len(recording.ch_names), recording.n_times)
    is_array = recording.path.suffix.lower() == ".npy"
    if is_array and reading.sfreq is None and shape == (model.n_chans_, model.n_times_):
        raise ValueError(
            f"{recording.path.name}: {shape} is read as one recording of {shape[0]} channels; a single "
            f"window is {(1, *shape)}, save X[None]"
        )


def from_events(
    model: AnchorInvClassifier,
    paths: Sequence[Path],
    labelling: Labelling,
    reading: ReadOptions = DEFAULTS,
    *,
    task: str = "reading",
) -> Iterator[tuple[Path, np.ndarray, np.ndarray]]:
    """Yield each recording with its windows (n, n_chans, n_times), cut around its events, and labels (n,).

    A trial longer than a window gives several, a step apart; windows with gaps are left out. Recordings are
    preprocessed before windows are cut, as by ``prepare``. An event must occur in at least one recording.
    """
    entries = [ManifestRow(i, path.name, path) for i, path in enumerate(paths)]
    rows, problems = rows_of_events(entries, labelling, sfreq=reading.sfreq)
    raise_if_any(", ".join(path.name for path in paths), problems)
    for path in paths:
        here = [row for row in rows if row.path == path]
        if here:
            yield path, *_from_rows(model, path, here, reading, task=task)


def _from_rows(
    model: AnchorInvClassifier, path: Path, rows: Sequence[ManifestRow], reading: ReadOptions, *, task: str
) -> tuple[np.ndarray, np.ndarray]:
    recording = open_recording(path).renamed(reading.rename)
    sfreq, n_step = _rates(model, recording, reading)
    rate = model.sfreq_ or sfreq
    labels: dict[int, str] = {}
    for row in rows:
        start, stop = row.start or 0.0, row.stop or 0.0
        first = round(start * rate)
        last = first + round((stop - start) * rate) - model.n_times_
        for at in range(first, last + 1, n_step):
            if labels.setdefault(at, row.label) != row.label:
                raise ValueError(
                    f"{path.name} is {labels[at]!r} and {row.label!r} at {at / rate:g} s; events of two "
                    f"classes may not coincide"
                )
    if not labels:
        raise ValueError(
            f"{path.name}: no segment is as long as a window of the model, {model.n_times_ / rate:g} s; "
            f"choose a later --to"
        )
    cut = _windows(model, recording, sfreq, sorted(labels), scale=reading.scale, task=task)
    signals, starts = _without_gaps(cut, path)
    return signals, np.array([labels[start] for start in starts])


def _without_gaps(windows: Iterable[Window], path: Path) -> tuple[np.ndarray, list[int]]:
    """Return the windows without missing samples (n, n_chans, n_times), and where they start."""
    whole = [window for window in windows if window.whole]
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
    preprocessing = model.preprocessing_
    taken = select_inputs(recording, preprocessing, n_chans=model.n_chans_, scale=scale)
    windows = Windows(Pipeline(preprocessing, sfreq), model.n_times_, starts)
    for piece in recording.pieces(taken.channels, task=task):
        yield from windows.push(taken.factors * piece)
    yield from windows.finish()
