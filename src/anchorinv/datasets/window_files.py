"""Read windows from files (``.npz``, ``.npy``, prepared folders) in blocks; draw a figure of some trials."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorinv.datasets.dataset import Dataset
from anchorinv.errors import literal_text
from anchorinv.files import replacing
from anchorinv.progress import tick
from anchorinv.signal.arrays import StoredArray, load_array, open_array, open_arrays, read_sfreq
from anchorinv.signal.limits import (
    WINDOWS,
    check_claim,
    check_size,
    has_suffix,
    is_recording,
    missing_labels,
    unknown_format,
)
from anchorinv.signal.preprocessing import AS_GIVEN, Preprocessing
from anchorinv.signal.readers import pick_channels, renamed

#: Values read at once.
_BLOCK = 1 << 22
#: Limits of a figure.
_TRIALS, _CLASSES, _CHANNELS = 3, 8, 8

#: With fewer subjects, sessions are groups too: base training holds out one of at least this many.
LEAST_GROUPS = 5


@dataclass(frozen=True, slots=True, eq=False)
class WindowFile:
    """Windows that stay in their file until they are read.

    Examples
    --------
    >>> windows = np.zeros((4, 2, 100), dtype=np.float32)
    >>> data = Dataset.from_arrays(windows, [0, 1, 0, 1], sfreq=100, split=["train"] * 3 + ["test"])
    >>> file = as_window_file(data, "mine", split="train")
    >>> file.shape, file.labels.tolist()
    ((3, 2, 100), ['0', '1', '0'])
    """

    name: str
    shape: tuple[int, int, int]  # (n, n_chans, n_times)
    blocks: Callable[[int], Iterator[np.ndarray]]  # blocks(size) yields the windows, ``size`` at a time
    labels: np.ndarray | None = None  # (n,)
    sfreq: float | None = None
    preprocessing: Preprocessing = AS_GIVEN
    groups: np.ndarray | None = None  # (n,): subjects, or subjects with sessions where subjects are few
    people: np.ndarray | None = None  # (n,): subjects alone
    sessions: np.ndarray | None = None  # (n,): days, runs, trials, as recorded

    def pieces(self, channels: list[int], *, task: str) -> Iterator[np.ndarray]:
        """Yield windows (some, n_chans, n_times) of bounded size, and report progress on ``task``."""
        done = 0
        for block in self.blocks(max(1, _BLOCK // max(1, self.shape[1] * self.shape[2]))):
            yield block[:, channels]
            done += len(block)
            tick(task, done, self.shape[0])

    def all(self) -> np.ndarray:
        """Return all windows (n, n_chans, n_times)."""
        return np.concatenate(list(self.blocks(max(1, self.shape[0]))))


def is_windowed(path: Path) -> bool:
    """Return whether a path holds windows rather than a continuous recording.

    An ``.npy`` file is a recording if it has two axes (channels, times), and windows if it has three.
    """
    if has_suffix(path, ".npy") and path.is_file():
        return len(open_array(path).shape) != 2
    return path.is_dir() or has_suffix(path, *WINDOWS)


def open_windows(path: Path, *, split: str | None = None) -> WindowFile:
    """Open windows; those of a prepared folder are limited to ``split``, if it has any there."""
    if not path.exists() and not (is_recording(path) and path.with_suffix(".hea").exists()):
        raise FileNotFoundError(f"there is no {path}")
    if path.is_dir():
        return as_window_file(Dataset.open(path), path.name, split)
    if not is_windowed(path):
        raise missing_labels(path) if is_recording(path) or has_suffix(path, ".npy") else unknown_format(path)
    if has_suffix(path, ".npz"):
        return _open_npz(path)
    windows = open_array(path)
    return WindowFile(path.name, _shape(windows), windows.blocks)


def channels_for(
    file: WindowFile,
    n_chans: int,
    ch_names: tuple[str, ...] | None,
    sfreq: float | None,
    rename: Mapping[str, str] | None = None,
) -> list[int]:
    """Return the indices of a model's channels in a file, in the model's order.

    ``n_chans``, ``ch_names`` and ``sfreq`` are the model's; windows at another rate are refused. ``rename``
    maps names in the file to the model's.
    """
    if sfreq is not None and file.sfreq is not None and file.sfreq != sfreq:
        raise ValueError(
            f"{file.name} is sampled at {file.sfreq:g} Hz, the model at {sfreq:g} Hz; resample the windows, "
            f"or use the continuous recording, which is resampled as it is read"
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
            f"their names; pass those channels, in the model's order"
        )
    return list(range(n_chans))


def as_window_file(data: Dataset, name: str, split: str | None = None) -> WindowFile:
    """Return the windows of a data set, limited to ``split`` if it has any there."""
    chosen = np.arange(len(data))
    if split is not None and (data.split == split).any():
        chosen = np.flatnonzero(data.split == split)

    def blocks(size: int) -> Iterator[np.ndarray]:
        for start in range(0, len(chosen), size):
            yield data.signals(chosen[start : start + size])

    labels = np.array(data.class_names)[data.labels[chosen]]
    shape = (len(chosen), data.n_chans, data.n_times)
    subjects, sessions = data.subjects[chosen], data.sessions[chosen]
    few = len(set(subjects.tolist())) < LEAST_GROUPS
    groups = np.array(list(map(" ".join, zip(subjects, sessions, strict=True)))) if few else subjects
    return WindowFile(name, shape, blocks, labels, data.sfreq, data.preprocessing, groups, subjects, sessions)


def _open_npz(path: Path) -> WindowFile:
    beside = {"groups": "groups", "people": "subject", "sessions": "session"}
    arrays = open_arrays(path, ("X", "y", "sfreq", "ch_names", *beside.values()))
    if "X" not in arrays:
        raise ValueError(f"{path} needs an array X (n, channels, times); save the windows under this name")
    windows = arrays.pop("X")
    shape = _shape(windows)
    others = {name: load_array(array) for name, array in arrays.items()}
    labels = np.atleast_1d(others["y"]) if "y" in others else None
    if labels is not None and labels.shape != shape[:1]:
        raise ValueError(f"{path} has {shape[0]} windows in X and labels of shape {labels.shape} in y")
    columns = {own: np.atleast_1d(others[name]) for own, name in beside.items() if name in others}
    for own, values in columns.items():
        if values.shape != shape[:1]:
            raise ValueError(f"{path} has {shape[0]} windows in X and {beside[own]} of shape {values.shape}")
    if "groups" in columns:
        columns.setdefault("people", columns["groups"])
    names = tuple(map(str, np.ravel(others["ch_names"]).tolist())) if "ch_names" in others else None
    if names is not None and len(names) != shape[1]:
        raise ValueError(f"{path} has {shape[1]} channels in X and {len(names)} names in ch_names")
    rate = read_sfreq(path, others.get("sfreq"))
    return WindowFile(path.name, shape, windows.blocks, labels, rate, Preprocessing(names), **columns)


def _shape(windows: StoredArray) -> tuple[int, int, int]:
    path, shape = windows.path, windows.shape
    if len(shape) != 3 or 0 in shape:
        hint = "; for one window use X[None]" if len(shape) == 2 else ""
        raise ValueError(f"{path} must hold windows (n, channels, times), got shape {tuple(shape)}{hint}")
    check_claim(path, shape[1], 0)
    check_size(path, 1, shape[1] * shape[2])
    return shape[0], shape[1], shape[2]


def draw_trials(data: Dataset, path: Path) -> None:
    """Draw a figure of three trials of each of the first classes, all channels to one scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"a picture is a .png, .pdf or .svg file, got {path.name!r}")
    present = [label for label in range(len(data.class_names)) if (data.labels == label).any()][:_CLASSES]
    if not present:
        raise ValueError("there are no windows to draw")
    channels = np.unique(np.linspace(0, data.n_chans - 1, min(_CHANNELS, data.n_chans)).astype(int))
    chosen = [_evenly(np.flatnonzero(data.labels == label)) for label in present]
    shown = {int(i): data.signals([i])[0][channels] for row in chosen for i in row}
    centred = {i: trial - np.median(trial, axis=1, keepdims=True) for i, trial in shown.items()}
    # Most of the signal, not its largest artefact, sets the distance between channels.
    step = 2 * float(np.quantile(np.abs(np.concatenate(list(centred.values()), axis=1)), 0.97)) or 1.0
    seconds = np.arange(data.n_times) / data.sfreq
    height = 0.9 + len(present) * max(1.2, 0.16 * len(channels) + 0.4)
    figure = Figure(figsize=(10.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(present), max(map(len, chosen)), sharex=True, sharey=True, squeeze=False)
    offsets = -step * np.arange(len(channels))
    for row, label, windows in zip(axes, present, chosen, strict=True):
        for axis in row:
            axis.spines[["top", "right", "left"]].set_visible(False)
            axis.spines["bottom"].set_color("#bbbbbb")
            axis.tick_params(length=0, labelsize=7)
            axis.set_yticks(offsets, [data.ch_names[i] for i in channels])
            axis.set_ylim(offsets[-1] - 0.75 * step, 0.75 * step)
        for axis, i in zip(row, windows, strict=False):
            axis.plot(seconds, (centred[int(i)] + offsets[:, None]).T, color="#27506f", linewidth=0.5)
            axis.set_title(_title(data, int(i)), fontsize=7, color="#666666", loc="right", pad=2)
        for axis in row[len(windows) :]:
            axis.set_visible(False)
        row[0].set_ylabel(data.class_names[label], fontsize=9, fontweight="bold")
    for axis in axes[-1]:
        axis.set_xlabel("time (s)", fontsize=8)
        axis.set_xlim(seconds[0], seconds[-1])
    unit = data.meta.get("unit", "")
    scale = f"channels {step:.3g}{f' {unit}' if unit == 'µV' else ''} apart"
    n, n_classes = len(present), len(data.class_names)
    left = f", {n} of {n_classes} classes" if n < n_classes else ""
    thinned = f", {len(channels)} of {data.n_chans} channels" if len(channels) < data.n_chans else ""
    name = data.meta.get("name", "data")
    figure.suptitle(f"{name}: trials of each class ({scale}{left}{thinned})", fontsize=10)
    literal_text(figure)
    with replacing(path) as beside:
        figure.savefig(beside, dpi=130, format=path.suffix[1:].lower())


def _evenly(indices: np.ndarray) -> np.ndarray:
    """Return a few evenly spaced indices, from the first to the last."""
    return np.asarray(indices[np.unique(np.linspace(0, len(indices) - 1, _TRIALS).astype(int))])


def _title(data: Dataset, i: int) -> str:
    rejected = data.rejected is not None and data.rejected[i]
    words = [f"subject {data.subjects[i]}", f"session {data.sessions[i]}", str(data.split[i])]
    return " · ".join([*words, "rejected"] if rejected else words)
