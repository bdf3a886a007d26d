"""Calibration of probabilities, and detection of unknown classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anchorinv.core.metrics import auroc, finite_scores

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
        p, true = _checked(probabilities, columns)
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
            "confidence": [round(each, _DIGITS) if each else 0 for each in self.confidence.tolist()],
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
        p, true = _checked(probabilities, columns)
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
    >>> found = Detection.of([0.9, 0.5, 0.04], [0.01, 0.2])
    >>> round(found.auroc, 2), round(found.false_rejections, 2), found.false_acceptances
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


def _checked(probabilities: ArrayLike, columns: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
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
