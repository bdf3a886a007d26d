"""Scores derived from the confusion matrix; AUROC of novelty detection."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Counts = NDArray[np.int64]
Labels = Sequence[Hashable] | NDArray[Any]


@dataclass(frozen=True)
class Scores:
    """The scores of one session; fractions, not percentages. Without new classes two of them are nan.

    Parameters
    ----------
    f1 : tuple of float
        F1 of each class, in the order of the confusion matrix.
    f1_all, f1_base, f1_new : float
        Macro-F1 over all classes, the first ``n_base``, and the others.
    harmonic : float
        Harmonic mean of ``f1_base`` and ``f1_new``; 0 when either is 0.
    accuracy : float
        Share of samples predicted correctly.
    balanced_accuracy : float
        Mean recall of the classes that occur in the truth.
    kappa : float
        Cohen's κ; nan when chance alone would always agree (one class in truth and prediction alike).

    Examples
    --------
    >>> round(scores(np.array([[8, 2], [0, 10]]), n_base=1).f1_all, 3)
    0.899
    """

    f1: tuple[float, ...]
    f1_all: float
    f1_base: float
    f1_new: float
    harmonic: float
    accuracy: float
    balanced_accuracy: float
    kappa: float


def confusion(true: Labels, predicted: Labels, classes: Labels) -> Counts:
    """Count how often each true class was predicted as each class.

    Parameters
    ----------
    true, predicted : Labels
        (n,) labels, lists or one-dimensional arrays.
    classes : Labels
        (k,) distinct labels; their order is the order of rows and columns.

    Returns
    -------
    (k, k) int64, rows true, columns predicted.

    Examples
    --------
    >>> confusion(["feet", "left", "feet"], ["feet", "feet", "feet"], ["left", "feet"])
    array([[0, 1],
           [0, 2]])
    """
    if len(true) != len(predicted):
        raise ValueError(f"{len(true)} true labels but {len(predicted)} predicted ones; give one per sample")
    names = _plain(classes)
    index = {label: i for i, label in enumerate(names)}
    if len(index) != len(names):
        raise ValueError(f"classes are not distinct: {names}; name each class once")
    counts = np.zeros((len(index), len(index)), dtype=np.int64)
    rows = _positions(_plain(true), index, name="true")
    columns = _positions(_plain(predicted), index, name="predicted")
    np.add.at(counts, (rows, columns), 1)
    return counts


def per_class_f1(confusion: ArrayLike) -> NDArray[np.float64]:
    """Compute 2·TP / (2·TP + FP + FN) for each class; (k,) in [0, 1].

    0 for a class that is never predicted, also for one that neither occurs nor is predicted (0/0).

    Examples
    --------
    >>> per_class_f1([[3, 1, 0], [1, 3, 0], [2, 0, 0]]).round(2)
    array([0.6 , 0.75, 0.  ])
    """
    counts = _checked(confusion)
    margins = counts.sum(axis=0) + counts.sum(axis=1)  # (k,) 2·TP + FP + FN
    # A zero margin has a zero numerator, so any positive divisor gives the 0 we want.
    f1: NDArray[np.float64] = 2 * counts.diagonal() / np.maximum(margins, 1)
    return f1


def macro_f1(confusion: ArrayLike, subset: slice | Sequence[int] | None = None) -> float:
    """Average the F1 of the classes in ``subset`` (default: all); nan if it holds none.

    The F1 of each class still counts its confusions with classes outside the subset.
    """
    f1 = per_class_f1(confusion)
    if subset is not None:
        f1 = f1[subset] if isinstance(subset, slice) else f1[np.asarray(subset, dtype=np.intp)]
    return float(f1.mean()) if f1.size else float("nan")


def scores(confusion: ArrayLike, n_base: int) -> Scores:
    """Derive all scores of a session from its confusion matrix.

    Parameters
    ----------
    confusion : ArrayLike
        (k, k) counts, rows true, columns predicted; at least one sample.
    n_base : int
        How many of the classes, counted from the first, are base classes; 1 to k.

    Examples
    --------
    >>> result = scores([[3, 1, 0], [1, 3, 0], [2, 0, 2]], n_base=2)
    >>> round(result.f1_base, 3), round(result.f1_new, 3), round(result.accuracy, 3)
    (0.675, 0.667, 0.667)
    """
    counts = _checked(confusion)
    _check_n_base(n_base, counts)
    total = int(counts.sum())
    if total == 0:
        raise ValueError("the confusion matrix counts no sample; score at least one prediction")
    support = counts.sum(axis=1)  # (k,) samples of each true class
    recall = counts.diagonal()[support > 0] / support[support > 0]
    f1_base, f1_new = macro_f1(counts, slice(n_base)), macro_f1(counts, slice(n_base, None))
    return Scores(
        f1=tuple(per_class_f1(counts).tolist()),
        f1_all=macro_f1(counts),
        f1_base=f1_base,
        f1_new=f1_new,
        harmonic=_harmonic(f1_base, f1_new),
        accuracy=int(counts.trace()) / total,
        balanced_accuracy=float(recall.mean()),
        kappa=_kappa(counts),
    )


def forgetting(base_session: ArrayLike, now: ArrayLike, n_base: int) -> float:
    """Return how far the base macro-F1 has dropped since the base session.

    Parameters
    ----------
    base_session : ArrayLike
        (k, k) confusion after the base session, k at least ``n_base``.
    now : ArrayLike
        (m, m) confusion after a later session, the same base classes first.
    n_base : int
        Number of base classes.

    Returns
    -------
    In [-1, 1]; positive means forgotten, negative that the base classes have become better.
    """
    before, after = _checked(base_session), _checked(now)
    for counts in (before, after):
        _check_n_base(n_base, counts)
    return macro_f1(before, slice(n_base)) - macro_f1(after, slice(n_base))


def _plain(labels: Labels) -> list[Hashable]:
    # So that messages show 3 and 'left', not np.int64(3) and np.str_('left').
    return labels.tolist() if isinstance(labels, np.ndarray) else list(labels)


def _positions(labels: list[Hashable], index: dict[Hashable, int], *, name: str) -> NDArray[np.intp]:
    unknown = {label: None for label in labels if label not in index}
    if unknown:
        listed = ", ".join(map(repr, unknown))
        raise ValueError(f"{name} label {listed} is not among the classes {list(index)}")
    return np.array([index[label] for label in labels], dtype=np.intp)


def _checked(confusion: ArrayLike) -> Counts:
    counts = np.asarray(confusion)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.size == 0:
        raise ValueError(f"a confusion matrix is (k, k) with k at least 1, got shape {counts.shape}")
    if not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
        raise ValueError(f"a confusion matrix holds counts (integers from 0), got {counts.tolist()}")
    return counts.astype(np.int64)


def _check_n_base(n_base: int, counts: Counts) -> None:
    if not 1 <= n_base <= len(counts):
        raise ValueError(f"n_base (={n_base}) must lie between 1 and the number of classes (={len(counts)})")


def _harmonic(base: float, new: float) -> float:
    if base + new == 0:
        return 0.0
    return 2 * base * new / (base + new)  # nan without new classes, as ``new`` is nan then


def _kappa(counts: Counts) -> float:
    total = int(counts.sum())
    # Whole numbers times total², so "always agrees by chance" is an exact comparison.
    observed = total * int(counts.trace())
    chance = int(counts.sum(axis=0) @ counts.sum(axis=1))
    return (observed - chance) / (total**2 - chance) if chance != total**2 else float("nan")


def auroc(known: ArrayLike, unknown: ArrayLike) -> float:
    """Return the AUROC of known against unknown windows, ties counted half; nan without both.

    Parameters
    ----------
    known, unknown : array-like, shape (n_known,) and (n_unknown,)
        Scores, larger for windows of known classes.

    Examples
    --------
    >>> auroc([0.9, 0.5], [0.5, 0.1])
    0.875
    """
    inside, outside = finite_scores(known), np.sort(finite_scores(unknown))
    if not len(inside) or not len(outside):
        return float("nan")
    below, up_to = np.searchsorted(outside, inside), np.searchsorted(outside, inside, side="right")
    return int((below + up_to).sum()) / (2 * len(inside) * len(outside))


def finite_scores(values: ArrayLike) -> NDArray[np.float64]:
    """Return scores (n,) as an array; nan is refused."""
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or np.isnan(scores).any():
        raise ValueError(f"scores are numbers (n,), got shape {scores.shape}, or nan among them")
    return scores
