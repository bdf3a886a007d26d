"""Read windows, labels and metadata from torch ``Dataset``s, including braindecode's."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset


class WindowSet(NamedTuple):
    """All windows of a data set."""

    values: np.ndarray  # (n, n_chans, n_times)
    labels: list[Any] | None  # None if items have none
    sfreq: float | None
    ch_names: tuple[str, ...] | None
    columns: Mapping[str, np.ndarray]  # metadata of the windows, (n,) each


class _Known(NamedTuple):
    """Metadata of a data set."""

    sfreq: float | None
    ch_names: tuple[str, ...] | None
    columns: Mapping[str, np.ndarray]


_NOTHING = _Known(None, None, {})


def is_torch_data(X: Any) -> bool:
    """Return whether :func:`read_windows` can read X."""
    return isinstance(X, Dataset | DataLoader)


def read_windows(data: Any) -> WindowSet:
    """Read a data set whose items are signals, or tuples (signal, label, ...).

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> windows = read_windows(TensorDataset(torch.zeros(4, 2, 16), torch.tensor([0, 1, 0, 1])))
    >>> windows.values.shape, windows.labels
    ((4, 2, 16), [0, 1, 0, 1])
    """
    if isinstance(data, DataLoader):
        raise ValueError("a DataLoader yields batches and may drop or shuffle windows; pass its .dataset")
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise ValueError("a data set without a length cannot be read; pass one with len() and indexing")
    if not (n := len(data)):
        raise ValueError("the data set is empty; pass one with items (signal, label)")
    values, labels = np.empty((0, 0, 0)), list[Any]()
    for i in range(n):
        signal, *rest = _item(data[i], i)
        window = _array(signal, i)
        if i == 0:
            values = np.empty((n, *window.shape), dtype=window.dtype)
        elif window.shape != values.shape[1:]:
            raise ValueError(
                f"item {i} of the data set has shape {window.shape}, the first has {values.shape[1:]}; cut "
                f"all windows to the same length"
            )
        if window.dtype != values.dtype:  # or NumPy would round windows of floats to the integers of others
            values = values.astype(np.result_type(values, window), copy=False)
        values[i] = window
        labels += [_plain(rest[0])] if rest else []
    known = _known(data)
    names = known.ch_names if known.ch_names and len(known.ch_names) == values.shape[1] else None
    columns = {name: column for name, column in known.columns.items() if len(column) == n}
    return WindowSet(values, labels if len(labels) == n else None, known.sfreq, names, columns)


def _item(item: Any, i: int) -> tuple[Any, ...]:
    if isinstance(item, Mapping):
        raise ValueError(
            f"item {i} of the data set is a dict; items must be signals, or tuples (signal, label, ...)"
        )
    return tuple(item) if isinstance(item, tuple | list) and len(item) else (item,)


def _array(signal: Any, i: int) -> np.ndarray:
    if hasattr(signal, "detach"):
        signal = signal.detach().cpu()
        signal = signal.float() if signal.is_floating_point() and signal.element_size() < 4 else signal
    array = np.asarray(signal)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise ValueError(
            f"item {i} of the data set has type {array.dtype} and shape {array.shape}; items must be signals "
            f"(channels, times), or tuples (signal, label, ...)"
        )
    if array.shape[1] == 1:
        raise ValueError(
            "items of the data set are single samples, not windows; cut it into windows first (braindecode: "
            "create_windows_from_events)"
        )
    return array


def _plain(label: Any) -> Any:
    """Convert a label in a tensor or array of one value; several values are refused later."""
    if hasattr(label, "detach"):
        label = label.detach().cpu().numpy()
    return label.item() if isinstance(label, np.ndarray | np.generic) and label.size == 1 else label


def _known(data: Any) -> _Known:
    """Return the metadata of a data set in braindecode's attributes, through subsets and concatenations."""
    if isinstance(data, Subset):
        known, rows = _known(data.dataset), list(data.indices)
        return known._replace(columns={name: column[rows] for name, column in known.columns.items()})
    if isinstance(data, ConcatDataset):
        return _joined([_known(part) for part in data.datasets])
    recorded: list[Any] = [getattr(data, name, None) for name in ("windows", "raw")]  # mne.Epochs, mne.io.Raw
    info = next((each.info for each in recorded if hasattr(each, "info")), None)
    described = getattr(data, "description", None)  # a Series or a dict
    described = {} if described is None or isinstance(described, str) else dict(described)
    columns = {str(name): np.full(len(data), str(value)) for name, value in described.items()}
    if info is None:
        return _NOTHING._replace(columns=columns)
    return _Known(float(info["sfreq"]), tuple(info["ch_names"]), columns)


def _joined(parts: Sequence[_Known]) -> _Known:
    """Join the metadata of parts; refuse different channels or rates."""
    if not parts:
        return _NOTHING
    first = parts[0]
    for part in parts[1:]:
        if (part.sfreq, part.ch_names) != (first.sfreq, first.ch_names):
            raise ValueError(
                f"parts of the data set differ: channels {part.ch_names} at {part.sfreq} Hz beside "
                f"{first.ch_names} at {first.sfreq} Hz; convert them to the same channels and rate"
            )
    shared = set.intersection(*(set(part.columns) for part in parts))
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in sorted(shared)}
    return first._replace(columns=columns)
