"""Files through a model: windows or continuous recordings in, a prediction for each window out."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorinv.data.windowed import is_windowed, open_windows
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.model.lesson import Lesson, lesson_of
from anchorinv.model.sources import AS_IT_IS, Reading, windows_in
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


def predicted(
    model: AnchorInvClassifier,
    path: Path,
    reading: Reading = AS_IT_IS,
    *,
    note: Note,
) -> Iterator[Row]:
    """Yield a row for each window of a file, in bounded memory.

    Parameters
    ----------
    path : windows (``.npz``, ``.npy``, a prepared folder) or a continuous recording.
    reading : what a user says of it.
    note : is shown all windows without gaps.
    """
    timed = model.sfreq_ if not is_windowed(path) else None
    windows = windows_in(model, path, reading)
    with about(path):
        for number, found in enumerate(classified(model, noted(windows, note))):
            time = found.start / timed if timed else None
            yield Row(number, time, found.label, found.probabilities)


def check_inputs(model: AnchorInvClassifier, paths: Iterable[Path], reading: Reading = AS_IT_IS) -> None:
    """Look at the beginning of each file: one that cannot be predicted is noticed before any other is."""
    for path in paths:
        with about(path):
            next(windows_in(model, path, reading, task="looking"), None)


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
    model: AnchorInvClassifier, path: Path, reading: Reading = AS_IT_IS
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a file's windows without gaps (n, n_chans, n_times), and their labels (n,) if it has them."""
    windows = list(windows_in(model, path, reading, task="reading"))
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


def noted(windows: Iterable[Window], note: Note) -> Iterator[Window]:
    """Yield windows, and show those without gaps to ``note``."""
    for window in windows:
        if window.whole:
            note(window.values[None])
        yield window
