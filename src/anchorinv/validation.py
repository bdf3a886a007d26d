"""Input validation: signals, labels, groups and weights, with warnings about likely mistakes."""

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.exceptions import DataConversionWarning
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from anchorinv.core.registry import METHODS
from anchorinv.errors import check_name, check_names, looks_like
from anchorinv.signal.drift import Drift
from anchorinv.signal.headers import VOLTAGES
from anchorinv.signal.preprocessing import UNITS, Preprocessing, conversion, pick_channels, renamed, unit_of

#: With this many times more channels than samples, axes were probably swapped.
_WIDE = 4
SWAP = "X.transpose(0, 2, 1) swaps them"


#: Squares of values between this and its inverse keep full precision.
LARGEST = 1e30
_UNEVEN = "signals differ in shape; an array (n, channels, times) is needed: cut all to the same length"


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """Signals with the names of their channels: a model picks those it knows, in any order.

    Accepted wherever an array is: ``model.predict(Signals(X, ch_names=["C4", "C3"]))``.

    Parameters
    ----------
    values : array, mne.Epochs or torch Dataset
        Windows (n, n_chans, n_times).
    sfreq : float or None, default=None
        Sampling rate in Hz, compared with the model's.
    ch_names : sequence of str or None, default=None
        One name for each channel.
    rename : mapping or None, default=None
        Maps channel names here to those that the model knows.
    unit : str or None, default=None
        V, mV, µV or nV; converted to the model's where that is known. ``mne.Epochs`` are in volts.
    labels : sequence or None, default=None
        One label per signal; used where no ``y`` is passed.
    columns : mapping or None, default=None
        Further values per signal by name, such as the subject; see ``group_by`` of the estimator.

    Examples
    --------
    >>> Signals(np.zeros((2, 2, 16)), ch_names=["C4", "C3"], unit="uV").ch_names
    ['C4', 'C3']
    """

    values: Any
    sfreq: float | None = None
    ch_names: Sequence[str] | None = None
    rename: Mapping[str, str] | None = None
    unit: str | None = None
    labels: Any = None
    columns: Mapping[str, Any] | None = None


def read_signals(X: Any) -> Signals:
    """Read signals (n, n_chans, n_times) from arrays, torch data sets, ``mne.Epochs`` or `Signals`."""
    if isinstance(X, Signals):
        return _from_signals(X)
    if isinstance(X, Dataset | DataLoader):
        windows = read_windows(X)
        return replace(windows, values=_check_values(windows.values))
    if hasattr(X, "get_data") and hasattr(X, "info"):
        return _from_mne(X)
    if issparse(X):
        raise ValueError("sparse signals are not supported; pass a dense array (n, channels, times)")
    if np.ma.is_masked(X):
        raise ValueError("signals are masked in places; fill or drop these samples first")
    try:
        values = np.asarray(_on_host(X))
    except ValueError:
        raise ValueError(_UNEVEN) from None
    return Signals(_check_values(_numbers(values) if values.dtype.kind == "O" else values))


def _from_mne(epochs: Any) -> Signals:
    # Trigger channels are no signals; all other channels were chosen by the user.
    kinds = epochs.get_channel_types()
    picks = [i for i, kind in enumerate(kinds) if kind != "stim"]
    table, events = getattr(epochs, "metadata", None), getattr(epochs, "events", None)
    names = {number: name for name, number in getattr(epochs, "event_id", {}).items()}
    return Signals(
        _check_values(epochs.get_data(picks=picks)),
        float(epochs.info["sfreq"]),
        tuple(epochs.ch_names[i] for i in picks),
        unit="V" if all(kinds[i] in VOLTAGES for i in picks) else None,
        labels=None if events is None else [names.get(number) for number in events[:, 2].tolist()],
        columns=None if table is None else {str(name): table[name].to_numpy() for name in table},
    )


def _numbers(values: np.ndarray) -> np.ndarray:
    """Convert an object array of numbers, as from pandas or a list of arrays."""
    if values.ndim == 1 and all(isinstance(part, np.ndarray) for part in values):
        if len({part.shape for part in values}) > 1:
            raise ValueError(_UNEVEN)
        return _numbers(stacked) if (stacked := np.stack(list(values))).dtype.kind == "O" else stacked
    flat = values.ravel().tolist()
    if missing := sum(part is None for part in flat):
        raise ValueError(f"signals hold {missing} missing values (None); drop or repair these samples")
    # numpy would silently turn text such as "1" into a number.
    if types := sorted({type(part).__name__ for part in flat if not isinstance(part, Real)}):
        names = [{"str": "text"}.get(name, name) for name in types]
        raise ValueError(f"signals must be real numbers, got {', '.join(names[:3])}; convert them first")
    return values.astype(np.float64)


def _from_signals(described: Signals) -> Signals:
    signals = read_signals(described.values)
    names = signals.ch_names if described.ch_names is None else tuple(map(str, described.ch_names))
    n_chans = signals.values.shape[1]
    if names is not None and len(names) != n_chans:
        raise ValueError(f"ch_names has {len(names)} names, signals have {n_chans} channels; name each once")
    if described.rename and names is None:
        raise ValueError("channels without names cannot be renamed; give ch_names")
    if described.unit is not None and unit_of(described.unit) is None:
        raise ValueError(f"unit (={described.unit!r}) must be one of {', '.join(UNITS)}")
    stated = {
        "sfreq": described.sfreq,
        "ch_names": names and renamed(names, described.rename, source="the signals"),
        "unit": described.unit and unit_of(described.unit),
        "labels": described.labels,
        "columns": described.columns,
    }
    return replace(signals, **{name: value for name, value in stated.items() if value is not None})


def read_as(X: Any, preprocessing: Preprocessing, sfreq: float | None) -> Signals:
    """Read signals at a model's rate, with its channels, in its order and unit, where both are known."""
    signals = read_signals(X)
    if sfreq is not None and signals.sfreq is not None and signals.sfreq != sfreq:
        raise ValueError(
            f"epochs are sampled at {signals.sfreq:g} Hz, the model at {sfreq:g} Hz; resample them"
        )
    ch_names, model_names = signals.ch_names, preprocessing.ch_names
    if model_names is not None and ch_names is not None and tuple(ch_names) != tuple(model_names):
        picks = pick_channels(model_names, ch_names, source="the recording")
        signals = replace(signals, values=signals.values[:, picks], ch_names=tuple(model_names))
    factor = conversion(signals.unit, preprocessing.unit)
    if factor == 1:
        return signals
    return replace(signals, values=signals.values * factor, unit=preprocessing.unit)


def _check_values(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "fiub":
        # Begins with scikit-learn's words, here and below: its estimator checks look for them.
        prefix = "Complex data not supported: " if values.dtype.kind == "c" else ""
        raise ValueError(f"{prefix}signals must be real numbers, got an array of {values.dtype}")
    if values.ndim != 3:
        hint = "; for one signal pass X[None]" if values.ndim == 2 else ""
        raise ValueError(
            f"signals must have shape (n, channels, times), got {values.shape}. Reshape your data{hint}"
        )
    if 0 in values.shape:
        raise ValueError(f"signals are empty: shape (n, channels, times) is {values.shape}")
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64 if values.dtype.itemsize > 2 else np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        n, channel, time = np.argwhere(~finite)[0]
        raise ValueError(
            f"signals hold {np.count_nonzero(~finite)} NaN or infinite values, the first in sample {n}, "
            f"channel {channel}, time {time}; drop or repair these samples"
        )
    largest = float(np.abs(values).max())
    if largest > LARGEST or 0 < largest < 1 / LARGEST:
        raise ValueError(
            f"signals reach {largest:.1e}, beyond what can be computed with; use another unit, between "
            f"{1 / LARGEST:.0e} and {LARGEST:.0e}"
        )
    return values


def check_same_shape(signals: Signals, shape: tuple[int, int], *, model: str) -> None:
    """Refuse signals of another shape than a model was fitted to; ``model`` is its class name."""
    n_chans, n_times = signals.values.shape[1:]
    if n_chans != shape[0]:
        raise ValueError(
            f"X has {n_chans} features, but {model} is expecting {shape[0]} features as input: "
            f"{shape_mismatch((n_chans, n_times), shape)}"
        )
    if n_times != shape[1]:
        raise ValueError(shape_mismatch((n_chans, n_times), shape))


def read_windows(data: Any) -> Signals:
    """Read a data set whose items are signals, or tuples (signal, label, ...)."""
    if isinstance(data, DataLoader):
        raise ValueError("a DataLoader yields batches and may drop or shuffle windows; pass its .dataset")
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise ValueError("a data set without a length cannot be read; pass one with len() and indexing")
    if not (n := len(data)):
        raise ValueError("the data set is empty; pass one with items (signal, label)")
    values, labels = np.empty((0, 0, 0)), list[Any]()
    for i in range(n):
        item = data[i]
        signal, *rest = item if isinstance(item, tuple | list) and len(item) else (item,)
        window = _window(signal, i)
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
        labels += [_label_of(rest[0])] if rest else []
    metadata = _metadata_of(data)
    names = metadata.ch_names if metadata.ch_names and len(metadata.ch_names) == values.shape[1] else None
    columns = {name: column for name, column in (metadata.columns or {}).items() if len(column) == n}
    return Signals(
        values, metadata.sfreq, names, labels=labels if len(labels) == n else None, columns=columns
    )


def _window(signal: Any, i: int) -> np.ndarray:
    if isinstance(signal, Mapping):
        raise ValueError(
            f"item {i} of the data set is a dict; items must be signals, or tuples (signal, label, ...)"
        )
    array = np.asarray(_on_host(signal))
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


def _on_host(values: Any) -> Any:
    """Return a tensor as numpy can read it, anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    return values.float() if values.is_floating_point() and values.element_size() < 4 else values  # bfloat16


def _label_of(label: Any) -> Any:
    """Convert a label in a tensor or array of one value; several values are refused later."""
    label = np.asarray(_on_host(label)) if hasattr(label, "detach") else label
    return label.item() if isinstance(label, np.ndarray | np.generic) and label.size == 1 else label


def _metadata_of(data: Any) -> Signals:
    """Return the metadata of a data set in braindecode's attributes, through subsets and concatenations."""
    if isinstance(data, Subset):
        metadata, rows = _metadata_of(data.dataset), list(data.indices)
        return replace(
            metadata, columns={name: column[rows] for name, column in (metadata.columns or {}).items()}
        )
    if isinstance(data, ConcatDataset):
        return _concatenate_metadata([_metadata_of(part) for part in data.datasets])
    recorded: list[Any] = [getattr(data, name, None) for name in ("windows", "raw")]  # mne.Epochs, mne.io.Raw
    info = next((recording.info for recording in recorded if hasattr(recording, "info")), None)
    description = getattr(data, "description", None)  # a Series or a dict
    description = {} if description is None or isinstance(description, str) else dict(description)
    columns = {str(name): np.full(len(data), str(value)) for name, value in description.items()}
    if info is None:
        return Signals(None, columns=columns)
    return Signals(None, float(info["sfreq"]), tuple(info["ch_names"]), columns=columns)


def _concatenate_metadata(parts: Sequence[Signals]) -> Signals:
    """Join the metadata of parts; refuse different channels or rates."""
    first = parts[0]
    for part in parts[1:]:
        if (part.sfreq, part.ch_names) != (first.sfreq, first.ch_names):
            raise ValueError(
                f"parts of the data set differ: channels {part.ch_names} at {part.sfreq} Hz beside "
                f"{first.ch_names} at {first.sfreq} Hz; convert them to the same channels and rate"
            )
    tables = [part.columns or {} for part in parts]
    shared = sorted(set.intersection(*map(set, tables)))
    return replace(
        first, columns={name: np.concatenate([table[name] for table in tables]) for name in shared}
    )


def read_labels(y: Any, n_signals: int) -> np.ndarray:
    """Read one label per signal (n,): text, integers or booleans."""
    if y is None:
        raise ValueError(
            "labels are missing: fit requires y to be passed, but the target y is None; pass one label per "
            "signal"
        )
    if np.ma.is_masked(y):
        raise ValueError("labels are masked in places; drop these samples first")
    y = _on_host(y)
    if not hasattr(y, "__array__") and not isinstance(y, list | tuple):
        raise ValueError(f"labels must be an array or a list, got a {type(y).__name__}; use list(y)")
    # A list is read as objects first: numpy would silently turn ["left", 2] into text.
    labels = _objects(y) if isinstance(y, list | tuple) else np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        warn(
            "A column-vector y was passed when a 1d array was expected; y.ravel() is one",
            DataConversionWarning,
        )
        labels = labels.ravel()
    if labels.ndim != 1:
        raise ValueError(
            f"labels must have shape (n,), got {labels.shape}; pass one column, one label per signal"
        )
    if len(labels) != n_signals:
        raise ValueError(
            f"there are {n_signals} signals but {len(labels)} labels; one label per signal is needed"
        )
    return _plain(_from_objects(labels) if labels.dtype.kind in "OT" else labels)


def groups_by(column: str | None, signals: Signals) -> Any:
    """Return a column of the signals' metadata to be used as groups; None without a name."""
    if column is None:
        return None
    columns = signals.columns or {}
    if column not in columns:
        available = f"it has {', '.join(columns)}" if columns else "these signals have no metadata"
        raise ValueError(
            f"group_by (={column!r}) must be a column of the metadata of mne.Epochs or of a data set; "
            f"{available}; pass groups to fit, or epochs with metadata (MOABB: return_epochs=True)"
        )
    return columns[column]


def read_groups(groups: Any, n_signals: int) -> np.ndarray | None:
    """Return the number of each signal's group (n,) int64, or None where no groups are given."""
    if groups is None:
        return None
    names = np.asarray(_on_host(groups))
    if names.shape != (n_signals,):
        raise ValueError(
            f"groups must have shape ({n_signals},), got {names.shape}; one person or recording per signal"
        )
    _, numbers = np.unique(names.astype(str), return_inverse=True)
    return np.asarray(numbers, dtype=np.int64)


def read_weights(sample_weight: Any, n_signals: int) -> np.ndarray | None:
    """Return weights (n,) float64, or None where none are given or each signal counts as one.

    Examples
    --------
    >>> read_weights([2, 0.5], 2)
    array([2. , 0.5])
    """
    if sample_weight is None:
        return None
    try:
        weights = np.array(_on_host(sample_weight), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("sample_weight must be numbers; one weight per signal is needed") from None
    if weights.shape != (n_signals,):
        raise ValueError(
            f"sample_weight must have shape ({n_signals},), got {weights.shape}; one weight per signal is "
            f"needed"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("sample_weight holds weights below 0, or NaN or infinite ones; use 0 or more")
    if not weights.any():
        raise ValueError("sample_weight is zero for all signals; nothing is left to learn from")
    return None if (weights == 1).all() else weights


def apply_weights(
    signals: Signals, labels: np.ndarray, sample_weight: Any, method: str
) -> tuple[Signals, np.ndarray, np.ndarray | None, Any]:
    """Return signals, labels and weights where the weight is not 0, and their index among all."""
    weights = read_weights(sample_weight, len(labels))
    if weights is None:
        return signals, labels, None, slice(None)
    kept = weights > 0
    positive = read_weights(weights[kept], int(kept.sum()))
    if positive is not None and not METHODS[method].weighted:
        able = ", ".join(name for name, spec in METHODS.items() if spec.weighted)
        raise ValueError(
            f"method {method!r} only takes sample_weight of 0 and 1; leave it out, or use one of the "
            f"methods that take others: {able}"
        )
    return replace(signals, values=signals.values[kept]), labels[kept], positive, kept


def _objects(y: list[Any] | tuple[Any, ...]) -> np.ndarray:
    labels = np.empty(len(y), dtype=object)
    labels[:] = [label.item() if isinstance(label, np.generic) else label for label in y]
    return labels


def _from_objects(labels: np.ndarray) -> np.ndarray:
    for i, label in enumerate(labels.tolist()):
        if np.ndim(label):
            raise ValueError(f"the label of sample {i} holds several values; one label per signal is needed")
        if _missing(label):
            raise ValueError(f"the label of sample {i} is missing; drop the sample or name its class")
        if isinstance(label, str) and label:
            check_name(label)  # before it is in an array: numpy would silently drop a NUL at its end
    kinds = {label_kind(np.asarray(label)) for label in labels}
    if len(kinds - {"whole numbers", "numbers"}) and len(kinds) > 1:
        raise ValueError(f"labels mix {' and '.join(sorted(kinds))}; use one kind")
    return np.array(labels.tolist())


def _missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas' NA is neither equal to itself nor not
        return True


def _plain(labels: np.ndarray) -> np.ndarray:
    """Convert labels to text, int64 or booleans, without loss."""
    if labels.dtype.kind == "f":
        if np.isnan(labels).any():
            raise ValueError(
                f"the label of sample {np.isnan(labels).argmax()} is missing (NaN); drop the sample"
            )
        if not (np.abs(labels) < 2**53).all() or (labels != np.round(labels)).any():
            raise ValueError(
                "labels must be text, whole numbers or booleans, got continuous numbers or too large ones"
            )
    if labels.dtype.kind == "u" and (labels > np.iinfo(np.int64).max).any():
        raise ValueError(f"the label {labels.max()} is too large; number the classes from 0, or name them")
    if labels.dtype.kind in "fiu":
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "Uib":
        raise ValueError(
            f"labels must be text, whole numbers or booleans, got {labels.dtype}; convert them first"
        )
    if labels.dtype.kind == "U" and (labels == "").any():
        raise ValueError(
            f"the label of sample {np.flatnonzero(labels == '')[0]} is empty; give the class a name"
        )
    return labels


def as_label(classes: np.ndarray, text: str) -> Any:
    """Convert a class given as text to the type of a model's classes (n,).

    Examples
    --------
    >>> as_label(np.array([0, 1]), "7")
    7
    """
    if classes.dtype.kind == "U":
        return text
    boolean = classes.dtype.kind == "b"
    try:
        return {"True": True, "False": False}[text] if boolean else int(text)
    except (KeyError, ValueError):
        expected = "True or False" if boolean else "whole numbers"
        raise ValueError(f"the model's classes are {expected}, got {text!r}") from None


def check_several(labels: np.ndarray) -> np.ndarray:
    """Return the classes of labels (n,), of which base training needs two."""
    if len(classes := np.unique(labels)) < 2:
        raise ValueError(
            f"training needs at least two classes, got one class ({classes.tolist()[0]!r}); add the others, "
            f"or teach it with partial_fit (anchorinv learn) to a model that knows two"
        )
    return classes


def check_kind(labels: np.ndarray, classes: np.ndarray) -> None:
    """Refuse labels (n,) of another type than a model's classes."""
    if label_kind(labels) != label_kind(classes):
        raise ValueError(
            f"the model's classes are {label_kind(classes)}, these labels are {label_kind(labels)}; use one "
            f"kind"
        )


def column_of(label: Any, names: np.ndarray) -> int:
    """Return the index of a known class in names (n_classes,), to be forgotten."""
    columns = np.flatnonzero(names == label)
    if not len(columns) or isinstance(label, bool | np.bool_) != (names.dtype == np.bool_):
        known = np.sort(names).tolist()
        raise ValueError(
            f"class {label!r} is not known, so it cannot be forgotten; known are "
            f"{', '.join(map(repr, known))}{similar_names([label], known) or _meant(label, known)}"
        )
    return int(columns[0])


def _meant(label: Any, known: Sequence[Any]) -> str:
    near = get_close_matches(label, known, n=1) if isinstance(label, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def label_kind(labels: np.ndarray) -> str:
    """Return the kind of labels, in words for messages."""
    kinds = {"U": "text", "b": "booleans", "i": "whole numbers", "u": "whole numbers", "f": "numbers"}
    # Most kinds have a word, and numpy takes long to spell a type.
    return kinds.get(labels.dtype.kind) or str(labels.dtype)


def warn_mistakes(values: np.ndarray, labels: np.ndarray, ch_names: Sequence[str] | None) -> None:
    """Warn about likely mistakes in base data: axes swapped, flat channels, classes that look like one."""
    _, n_chans, n_times = values.shape
    if n_chans > _WIDE * n_times:
        warn(f"signals have {n_chans} channels of {n_times} samples; if channels come last, {SWAP}")
    classes = np.unique(labels).tolist()
    for i, name in enumerate(classes):
        if (other := looks_like(name, classes[i + 1 :])) is not None:
            warn(
                f"classes {name!r} and {other!r} differ in spaces or case alone; if they are one, give it "
                f"one name"
            )
    flat = np.flatnonzero(np.ptp(values, axis=2).max(axis=0) == 0)
    if len(flat):
        named = ", ".join(ch_names[i] if ch_names else str(i) for i in flat.tolist())
        which, verb = ("channel", "is") if len(flat) == 1 else ("channels", "are")
        warn(f"{which} {named} {verb} flat in every sample; is an electrode off?")
    warn_single_shots(labels)


def warn_single_shots(labels: np.ndarray) -> None:
    """Warn about classes with one example."""
    names, counts = np.unique(labels, return_counts=True)
    single = [repr(name) for name in names[counts == 1].tolist()]
    if len(single) == 1:
        warn(f"class {single[0]} has a single example; its prototype will be as noisy as that one signal")
    elif single:
        warn(
            f"{len(single)} classes have a single example each, such as {single[0]}; expect noisy prototypes"
        )


def warn_noise(predicted: np.ndarray, columns: np.ndarray, n_classes: int) -> None:
    """Warn if differential privacy leaves little of classes, by the windows (n,) that were just learned.

    Who trains has these windows; the warning is not stored.
    """
    right, chance = float((predicted == columns).mean()), 1 / n_classes
    if right < (1 + chance) / 2:
        warn(
            f"with this noise, {right:.0%} of the {len(columns)} windows just learned are classified "
            f"correctly (chance: {chance:.0%}); learn from more windows, or use a larger epsilon, or fewer "
            f"anchors or features"
        )


def refuse_drift(drift: Drift) -> None:
    """Refuse to learn from signals whose scale or offset is very different from the base data's."""
    if drift.extreme:
        raise ValueError(
            f"{drift.units}; nothing was learned: pass force=True (--force) if the signals are right"
        )


def check_drift(standardised: np.ndarray, drift: Drift, *, force: bool) -> None:
    """Warn about signals that drifted far; refuse absurd ones, and another unit unless forced."""
    largest = float(np.abs(standardised).max())
    if not largest < 1e6:
        reason = drift.units or "are the units those of fit?"
        raise ValueError(f"signals reach {largest:.1e} times the spread of the base data; {reason}")
    if not force:
        refuse_drift(drift)
    warn_drift(drift)


def warn_drift(drift: Drift) -> None:
    """Warn about signals that are very different from the base data."""
    if drift.far:
        warn(drift.verdict)


def warn(sentence: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line that called fit, partial_fit or predict."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("anchorinv."):
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, category, stacklevel=level)


def rejecting_label(label: Any, classes: np.ndarray) -> Any:
    """Return the label of rejected windows; it must not be one of the classes."""
    return _rejecting_label(label, label_kind(classes), tuple(classes.tolist()))


@lru_cache  # used for every live window
def _rejecting_label(chosen: Any, kind: str, classes: tuple[Any, ...]) -> Any:
    usual: dict[str, Any] = {"text": "unknown", "whole numbers": -1}
    label = usual.get(kind) if chosen is None else chosen
    if label is None:
        raise ValueError(
            f"classes that are {kind} leave no label for rejected windows; use text or whole numbers as "
            f"labels, or call novelty()"
        )
    if label_kind(np.asarray([label])) != kind:
        raise ValueError(f"reject_label (={label!r}) must be {kind}, as the classes are")
    if label in classes:
        raise ValueError(
            f"{label!r} is a class, so it cannot be the label of rejected windows; set another reject_label"
        )
    return label


def shape_mismatch(shape: tuple[int, int], expected: tuple[int, int]) -> str:
    """Return the message for signals whose (n_chans, n_times) does not match a model's.

    Examples
    --------
    >>> shape_mismatch((300, 8), (8, 300))
    'the model takes 8 channels of 300 samples, got 300 channels of 8; X.transpose(0, 2, 1) swaps them'
    """
    takes = "the model takes {} channels of {} samples, got {} channels of {}".format(*expected, *shape)
    if shape == expected[::-1]:
        return f"{takes}; {SWAP}"
    if shape[0] == expected[0]:
        return f"{takes} samples; cut or resample them to that length"
    return f"{takes} samples; pass the channels that it was trained on"


def similar_names(names: Iterable[Any], known: Sequence[Any]) -> str:
    """Return a hint for a message about unknown classes: which of them look like known ones.

    Examples
    --------
    >>> similar_names([" left", "tongue"], ["left", "right"])
    "; ' left' looks like 'left'"
    """
    alike = [(name, other) for name in names if (other := looks_like(name, known)) is not None]
    return "".join(f"; {name!r} looks like {other!r}" for name, other in alike[:3])


def check_new_classes(names: np.ndarray, known: np.ndarray) -> None:
    """Refuse new classes that are known already, or whose names look like a known one or like one another."""
    if (twice := np.isin(names, known)).any():
        raise ValueError(
            f"{_listed(names[twice])} {'are' if twice.sum() > 1 else 'is'} known already, so nothing was "
            f"learned; add_shots (anchorinv add) takes more examples of known classes, partial_fit "
            f"(anchorinv learn) new classes only"
        )
    new, old = names.tolist(), known.tolist()
    check_names([*old, *new])
    for i, name in enumerate(new):
        if (other := looks_like(name, old)) is not None:
            raise ValueError(
                f"class {name!r} looks like the known class {other!r}, so nothing was learned; use that name "
                f"with add_shots (anchorinv add) for more examples of it, or one that differs in more than "
                f"spaces or case"
            )
        if (other := looks_like(name, new[:i])) is not None:
            raise ValueError(
                f"the new class {name!r} looks like {other!r}, so nothing was learned; give them one name, "
                f"or names that differ in more than spaces or case"
            )


def refuse_unknown(names: np.ndarray, known: np.ndarray) -> None:
    """Refuse more examples of classes that were never learned."""
    if len(unknown := names[~np.isin(names, known)]):
        like = similar_names(unknown.tolist(), known.tolist())
        raise ValueError(
            f"{_listed(unknown)} {'is' if len(unknown) == 1 else 'are'} not among the known ones{like}; "
            f"teach new classes with partial_fit (anchorinv learn)"
        )


def _listed(names: np.ndarray) -> str:
    quoted = [repr(name) for name in names.tolist()]
    return ("class " if len(quoted) == 1 else "classes ") + " and ".join(quoted)
