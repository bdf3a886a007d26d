"""Scores derived from the confusion matrix, calibration of probabilities, detection of unknown classes."""

from collections.abc import Hashable, Mapping, Sequence
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
    """
    counts = _check_confusion(confusion)
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
    counts = _check_confusion(confusion)
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
    before, after = _check_confusion(base_session), _check_confusion(now)
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


def _check_confusion(confusion: ArrayLike) -> Counts:
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


#: Bins of equal width for the largest probability, as in Guo et al. (2017).
N_BINS = 15
#: Default level of rejection: one known window in twenty is rejected.
REJECT = 0.05

_DIGITS = 4  # digits of sums in files: an error below 0.00001 in the calibration error of a hundred windows
_SLACK = 1e-3  # tolerance of rounded sums, or of single precision
_EPSILON = float(np.finfo(np.float64).eps)  # smallest probability, as in scikit-learn's log_loss


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """Counts and sums over windows from which calibration is computed; those of several parts add up.

    Parameters
    ----------
    counts, correct : ndarray of int64, shape (15,)
        Windows by their largest probability, in bins of equal width that hold their upper limit; and how many
        of them were predicted correctly.
    confidence : ndarray of float64, shape (15,)
        Sum of the largest probabilities in each bin.
    sum_brier, sum_nll : float
        Sums of the multi-class Brier score and of the negative log-likelihood (natural logarithm).

    Examples
    --------
    >>> some = Reliability.of([[0.8, 0.2], [0.6, 0.4]], [0, 1])
    >>> more = Reliability.of([[0.1, 0.9]], [1])
    >>> (some + more).n, round((some + more).ece, 3), round((some + more).brier, 3)
    (3, 0.3, 0.273)
    """

    counts: NDArray[np.int64]
    correct: NDArray[np.int64]
    confidence: NDArray[np.float64]
    sum_brier: float
    sum_nll: float

    def __post_init__(self) -> None:
        parts = (self.counts, self.correct, self.confidence)
        if any(part.shape != (N_BINS,) for part in parts):
            raise ValueError(f"a reliability has {N_BINS} bins, got {[part.shape for part in parts]}")
        above = self.confidence > self.counts + _SLACK
        if any((part < 0).any() for part in parts) or (self.correct > self.counts).any() or above.any():
            raise ValueError("in a bin, correct windows and their confidence are between 0 and its count")
        if not (0 <= self.sum_brier <= 2 * self.n + _SLACK and 0 <= self.sum_nll < np.inf):
            raise ValueError(
                f"sums of scores are from 0, got {self.sum_brier} (Brier), {self.sum_nll} (likelihood)"
            )

    @classmethod
    def of(cls, probabilities: ArrayLike, columns: ArrayLike) -> "Reliability":
        """Measure predictions.

        Parameters
        ----------
        probabilities : array-like, shape (n, n_classes)
            Of each class; a row adds up to 1.
        columns : array-like of int, shape (n,)
            The column of each window's true class.
        """
        p, true = _check_probabilities(probabilities, columns)
        own, confidence, correct = p[np.arange(len(p)), true], p.max(axis=1), p.argmax(axis=1) == true
        # A limit belongs to the bin below it, as in Guo et al. and in scikit-learn's calibration_curve.
        bins = np.searchsorted(np.linspace(0, 1, N_BINS + 1)[1:-1], confidence)
        sums = np.zeros(N_BINS)
        np.add.at(sums, bins, confidence)
        return cls(
            np.bincount(bins, minlength=N_BINS),
            np.bincount(bins[correct], minlength=N_BINS),
            sums,
            float(((p - np.eye(p.shape[1])[true]) ** 2).sum()),
            float(-np.log(np.clip(own, _EPSILON, 1)).sum()) + 0.0,  # not -0.0
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Reliability":
        """Return the value from :meth:`to_dict`, up to rounding."""
        counts, correct = (np.asarray(values[key], dtype=np.int64) for key in ("counts", "correct"))
        confidence = np.asarray(values["confidence"], dtype=np.float64)
        return cls(counts, correct, confidence, float(values["brier"]), float(values["nll"]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, sums to four digits behind the point."""
        return {
            "counts": self.counts.tolist(),
            "correct": self.correct.tolist(),
            "confidence": [round(total, _DIGITS) if total else 0 for total in self.confidence.tolist()],
            "brier": round(self.sum_brier, _DIGITS),
            "nll": round(self.sum_nll, _DIGITS),
        }

    def __add__(self, other: "Reliability") -> "Reliability":
        return Reliability(
            self.counts + other.counts,
            self.correct + other.correct,
            self.confidence + other.confidence,
            self.sum_brier + other.sum_brier,
            self.sum_nll + other.sum_nll,
        )

    @property
    def n(self) -> int:
        """Number of windows; without any, all measures are nan."""
        return int(self.counts.sum())

    @property
    def ece(self) -> float:
        """Expected calibration error: mean difference of accuracy and confidence over bins."""
        return self._mean(float(np.abs(self.correct - self.confidence).sum()))

    @property
    def brier(self) -> float:
        """Multi-class Brier score, from 0 to 2."""
        return self._mean(self.sum_brier)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood."""
        return self._mean(self.sum_nll)

    @property
    def accuracy(self) -> float:
        """Share of windows predicted correctly."""
        return self._mean(int(self.correct.sum()))

    @property
    def mean_confidence(self) -> float:
        """Mean of the largest probability."""
        return self._mean(float(self.confidence.sum()))

    def _mean(self, total: float) -> float:
        return total / self.n if self.n else float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class SplitReliability:
    """Reliability on windows of base classes and of new ones, by their true class.

    Parameters
    ----------
    base, new : Reliability

    Examples
    --------
    >>> both = SplitReliability.of([[0.8, 0.2], [0.6, 0.4]], [0, 1], [True, False])
    >>> both.base.accuracy, both.new.accuracy, both.all.n
    (1.0, 0.0, 2)
    """

    base: Reliability
    new: Reliability

    @classmethod
    def of(cls, probabilities: ArrayLike, columns: ArrayLike, is_base: ArrayLike) -> "SplitReliability":
        """Measure predictions as :meth:`Reliability.of`; ``is_base`` (n_classes,) says which classes are."""
        p, true = _check_probabilities(probabilities, columns)
        base = np.asarray(is_base, dtype=bool)[true]
        return cls(*(Reliability.of(p[part], true[part]) for part in (base, ~base)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SplitReliability":
        """Return the value from :meth:`to_dict`, up to rounding."""
        return cls(*(Reliability.from_dict(values[part]) for part in ("base", "new")))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"base": self.base.to_dict(), "new": self.new.to_dict()}

    def __add__(self, other: "SplitReliability") -> "SplitReliability":
        return SplitReliability(self.base + other.base, self.new + other.new)

    @property
    def all(self) -> Reliability:
        """All windows together."""
        return self.base + self.new


@dataclass(frozen=True, slots=True)
class Detection:
    """How well windows of unknown classes are detected among those of known ones.

    Parameters
    ----------
    auroc : float
        Area under the curve of the receiver operating characteristic; nan without windows of both.
    threshold : float
        Windows whose score is not above it are rejected.
    n_known, n_unknown : int
        Windows of known and of unknown classes.
    n_rejected, n_accepted : int
        Known ones that are rejected, and unknown ones that are not.

    Examples
    --------
    >>> detection = Detection.of([0.9, 0.5, 0.04], [0.01, 0.2])
    >>> round(detection.auroc, 2), round(detection.false_rejections, 2), detection.false_acceptances
    (0.83, 0.33, 0.5)
    """

    auroc: float
    threshold: float
    n_known: int
    n_unknown: int
    n_rejected: int
    n_accepted: int

    @classmethod
    def of(cls, known: ArrayLike, unknown: ArrayLike, threshold: float = REJECT) -> "Detection":
        """Measure scores (n,) that are larger for known classes, such as p-values."""
        inside, outside = finite_scores(known), finite_scores(unknown)
        rejected, accepted = int((inside <= threshold).sum()), int((outside > threshold).sum())
        area = auroc(inside, outside)
        return cls(area, float(threshold), len(inside), len(outside), rejected, accepted)

    @property
    def false_rejections(self) -> float:
        """Share of known windows that are rejected; nan without any."""
        return self.n_rejected / self.n_known if self.n_known else float("nan")

    @property
    def false_acceptances(self) -> float:
        """Share of unknown windows that are not rejected; nan without any."""
        return self.n_accepted / self.n_unknown if self.n_unknown else float("nan")


def _check_probabilities(
    probabilities: ArrayLike, columns: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    p, true = np.asarray(probabilities, dtype=np.float64), np.asarray(columns)
    if p.ndim != 2 or not p.shape[1] or true.shape != p.shape[:1]:
        raise ValueError(
            f"probabilities are (n, n_classes) and columns (n,), got shapes {p.shape} and {true.shape}"
        )
    if not ((p >= 0).all() and (np.abs(p.sum(axis=1) - 1) < _SLACK).all()):
        raise ValueError("probabilities of a window are from 0 to 1 and add up to 1; take the softmax")
    if len(true) and not (true.dtype.kind in "iu" and true.min() >= 0 and true.max() < p.shape[1]):
        raise ValueError(f"columns are whole numbers from 0 to {p.shape[1] - 1}")
    return p, true.astype(np.intp)
