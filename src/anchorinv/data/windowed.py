"""Windows in files: ``.npz``, ``.npy`` and prepared folders, read some at a time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorinv.core.progress import tick
from anchorinv.data.dataset import Dataset
from anchorinv.signal.channels import pick_channels, renamed
from anchorinv.signal.kinds import WINDOWS, has_ending, is_recording, unknown, unlabelled
from anchorinv.signal.limits import check_claim, check_size
from anchorinv.signal.npzfiles import StoredArray, load_array, stored_array, stored_arrays, told_rate
from anchorinv.signal.preprocessing import AS_GIVEN, Preprocessing

#: Values read at once.
PIECE = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class WindowFile:
    """Windows that stay in their file.

    Parameters
    ----------
    name : of the file.
    shape : (n, n_chans, n_times)
    blocks : size -> the windows, so many at a time.
    labels : (n,) where the file has them.
    sfreq : in Hz, where the file says so.
    preprocessing : what the file tells of its recordings.
    groups : (n,) the person of each window, or person and session where people are few; None where unknown.
    """

    name: str
    shape: tuple[int, int, int]
    blocks: Callable[[int], Iterator[np.ndarray]]
    labels: np.ndarray | None = None
    sfreq: float | None = None
    preprocessing: Preprocessing = AS_GIVEN
    groups: np.ndarray | None = None

    def pieces(self, channels: list[int], *, task: str) -> Iterator[np.ndarray]:
        """Yield windows (some, n_chans, n_times) of bounded size, and tell how far it is."""
        done = 0
        for block in self.blocks(max(1, PIECE // max(1, self.shape[1] * self.shape[2]))):
            yield block[:, channels]
            done += len(block)
            tick(task, done, self.shape[0])

    def all(self) -> np.ndarray:
        """Return all windows (n, n_chans, n_times)."""
        return np.concatenate(list(self.blocks(max(1, self.shape[0]))))


def is_windowed(path: Path) -> bool:
    """Say whether a path holds windows rather than a continuous recording.

    An ``.npy`` file is a recording if it has two axes (channels, times), and windows if it has three.
    """
    if has_ending(path, ".npy") and path.is_file():
        return len(stored_array(path).shape) != 2
    return path.is_dir() or has_ending(path, *WINDOWS)


def open_windows(path: Path, *, split: str | None = None) -> WindowFile:
    """Open windows; of a prepared folder only the ``split`` asked for, if it has windows there."""
    if not path.exists() and not (is_recording(path) and path.with_suffix(".hea").exists()):
        raise FileNotFoundError(f"there is no {path}")
    if path.is_dir():
        return of_dataset(Dataset.open(path), path.name, split)
    if not is_windowed(path):
        raise unlabelled(path) if is_recording(path) or has_ending(path, ".npy") else unknown(path)
    return _open_npz(path) if has_ending(path, ".npz") else _open_npy(path)


def channels_for(
    file: WindowFile,
    n_chans: int,
    ch_names: tuple[str, ...] | None,
    sfreq: float | None,
    rename: Mapping[str, str] | None = None,
) -> list[int]:
    """Return which channels of a file a model takes, in its order; refuse windows at another rate."""
    if sfreq is not None and file.sfreq is not None and file.sfreq != sfreq:
        raise ValueError(
            f"{file.name} is sampled at {file.sfreq:g} Hz, the model at {sfreq:g} Hz; resample the windows, "
            f"or hand in the continuous recording, which is resampled as it is read"
        )
    present = file.preprocessing.ch_names
    if present is not None and ch_names is not None:
        return pick_channels(ch_names, renamed(present, rename, source=file.name), source=file.name)
    if rename:
        raise ValueError(
            f"{file.name} has no names of channels, or the model has none; --channels maps names"
        )
    if file.shape[1] != n_chans:
        whose = "the model" if ch_names is None else file.name
        raise ValueError(
            f"{file.name} has {file.shape[1]} channels, the model takes {n_chans}, and {whose} does not know "
            f"their names; hand in those channels, in the model's order"
        )
    return list(range(n_chans))


def of_dataset(data: Dataset, name: str, split: str | None = None) -> WindowFile:
    """Return the windows of a data set, of a ``split`` alone if it has windows there."""
    from anchorinv.core.aside import LEAST_GROUPS  # here, because it brings torch

    chosen = np.arange(len(data))
    if split is not None and (data.split == split).any():
        chosen = np.flatnonzero(data.split == split)

    def blocks(size: int) -> Iterator[np.ndarray]:
        for start in range(0, len(chosen), size):
            yield data.signals(chosen[start : start + size])

    labels = np.array(data.class_names)[data.labels[chosen]]
    shape = (len(chosen), data.n_chans, data.n_times)
    people, sessions = data.subjects[chosen], data.sessions[chosen]
    few = len(set(people.tolist())) < LEAST_GROUPS
    groups = np.array(list(map(" ".join, zip(people, sessions, strict=True)))) if few else people
    return WindowFile(name, shape, blocks, labels, data.sfreq, data.preprocessing, groups)


def _open_npy(path: Path) -> WindowFile:
    windows = stored_array(path)
    return WindowFile(path.name, _shape(windows), windows.blocks)


def _open_npz(path: Path) -> WindowFile:
    arrays = stored_arrays(path, ("X", "y", "sfreq", "ch_names", "groups"))
    if "X" not in arrays:
        raise ValueError(f"{path} needs an array X (n, channels, times); save the windows under this name")
    windows = arrays.pop("X")
    shape = _shape(windows)
    others = {name: load_array(array) for name, array in arrays.items()}
    labels = np.atleast_1d(others["y"]) if "y" in others else None
    if labels is not None and labels.shape != shape[:1]:
        raise ValueError(f"{path} has {shape[0]} windows in X and labels of shape {labels.shape} in y")
    groups = np.atleast_1d(others["groups"]) if "groups" in others else None
    if groups is not None and groups.shape != shape[:1]:
        raise ValueError(f"{path} has {shape[0]} windows in X and groups of shape {groups.shape}")
    names = tuple(map(str, np.ravel(others["ch_names"]).tolist())) if "ch_names" in others else None
    if names is not None and len(names) != shape[1]:
        raise ValueError(f"{path} has {shape[1]} channels in X and {len(names)} names in ch_names")
    rate = told_rate(path, others.get("sfreq"))
    return WindowFile(path.name, shape, windows.blocks, labels, rate, Preprocessing(names), groups)


def _shape(windows: StoredArray) -> tuple[int, int, int]:
    path, shape = windows.path, windows.shape
    if len(shape) != 3 or 0 in shape:
        hint = "; for one window use X[None]" if len(shape) == 2 else ""
        raise ValueError(f"{path} must hold windows (n, channels, times), got shape {tuple(shape)}{hint}")
    check_claim(path, shape[1], 0)
    check_size(path, 1, shape[1] * shape[2])
    return shape[0], shape[1], shape[2]
