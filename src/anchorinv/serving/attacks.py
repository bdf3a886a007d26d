"""Privacy attacks on a model file, as functions of arrays; every figure has a confidence interval."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import normalize

from anchorinv.core.blocks import VIEWS
from anchorinv.core.metrics import auroc

#: Normal quantile of a 95 % confidence interval.
_Z = 1.959964
#: False positive rates at which true positives are counted: an attack on few people has to be right.
FALSE_POSITIVES = (0.01, 0.001)
#: Bootstrap samples behind the interval of true positives.
RESAMPLES = 300


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % confidence interval.

    Parameters
    ----------
    value, low, high : float
    n : int
        Number of windows, people or other units.

    Examples
    --------
    >>> str(Estimate.share(9, 10))
    '0.900 (0.596 to 0.982)'
    """

    value: float
    low: float
    high: float
    n: int

    @classmethod
    def share(cls, count: float, n: int, effective: float | None = None) -> "Estimate":
        """Return the share of a count in n, with Wilson's interval; ``effective`` of them are independent."""
        if not n:
            return cls(math.nan, 0.0, 1.0, 0)
        p, z2, m = count / n, _Z**2, n if effective is None else max(effective, 1e-9)
        middle = (p + z2 / (2 * m)) / (1 + z2 / m)
        half = _Z * math.sqrt(max(p * (1 - p), 0.0) / m + z2 / (4 * m**2)) / (1 + z2 / m)
        return cls(p, max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half)), n)

    @classmethod
    def clustered(cls, values: ArrayLike, groups: ArrayLike | None = None) -> "Estimate":
        """Return the mean of values (n,) in [0, 1], with Wilson's interval at their effective number.

        That is the number of independent values whose mean would vary as much as that of groups (n,) that are
        drawn as a whole; see Korn & Graubard, Confidence Intervals for Proportions With Small Expected
        Number of Positive Counts Estimated From Survey Data, Survey Methodology 1998.

        Examples
        --------
        >>> str(Estimate.clustered([1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 2, 2, 3, 3, 4, 4]))
        '0.750 (0.131 to 0.984)'
        """
        numbers = np.asarray(values, dtype=np.float64)
        places = np.unique(np.arange(len(numbers)) if groups is None else groups, return_inverse=True)[1]
        if not len(numbers):
            return cls.share(0, 0)
        n_groups, mean = int(places.max()) + 1, float(numbers.mean())
        if 0 < mean < 1 and np.ptp(numbers) < 1e-9:  # the same share of everything: nothing to estimate
            return cls(mean, mean, mean, len(numbers))
        sums = np.bincount(places, numbers - mean)
        variance = n_groups / max(n_groups - 1, 1) * float((sums**2).sum()) / len(numbers) ** 2
        return cls.share(numbers.sum(), len(numbers), effective_number(mean, variance, n_groups))

    @classmethod
    def mean(cls, values: ArrayLike) -> "Estimate":
        """Return the mean of values (n,), with Student's interval of their standard error."""
        from scipy.stats import t

        numbers = np.asarray(values, dtype=np.float64)
        mean, n = float(numbers.mean()), len(numbers)
        half = float(t.ppf(0.975, n - 1) * numbers.std(ddof=1) / math.sqrt(n)) if n > 1 else math.inf
        return cls(mean, mean - half, mean + half, n)

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of an audit.

    Parameters
    ----------
    attack : str
        "membership", "re-identification", "attribute", "reconstruction" or "forgetting".
    target : str
        What was attacked, or by which score.
    measure : str
    estimate : Estimate or None
        None if there are too few windows.
    chance : float or None
        Chance level; None if there is none.

    Examples
    --------
    >>> Figure("membership", "window, by loss", "AUROC", None, 0.5).facts()["chance"]
    0.5
    """

    attack: str
    target: str
    measure: str
    estimate: Estimate | None
    chance: float | None = None

    def facts(self) -> dict[str, Any]:
        """Return plain JSON values."""
        facts = dict.fromkeys(("value", "low", "high", "n"))
        if self.estimate is not None:
            facts |= {name: number for name, number in asdict(self.estimate).items() if math.isfinite(number)}
        named = {"attack": self.attack, "target": self.target, "measure": self.measure, "chance": self.chance}
        return named | facts


@dataclass(frozen=True, slots=True)
class Membership:
    """How well scores separate members of the training data from others."""

    auroc: Estimate  # 0.5 is guessing
    #: True positive rate at each of :data:`FALSE_POSITIVES`; None if there are too few others.
    true_positives: Mapping[float, Estimate | None]

    @classmethod
    def of(
        cls, members: ArrayLike, others: ArrayLike, groups: tuple[ArrayLike, ArrayLike] | None = None
    ) -> "Membership":
        """Measure scores (n,) and (m,), larger for members; windows of a group are not independent."""
        inside, outside = (np.asarray(scores, dtype=np.float64) for scores in (members, others))
        numbers = _group_numbers(len(inside), len(outside), groups)
        area, error = clustered_auroc(inside, outside, groups)
        low, high = max(0.0, area - _Z * error), min(1.0, area + _Z * error)
        if not error > 0:  # all right or all wrong: no variance, but with few groups that may be chance
            n_groups = min(len(set(part)) for part in numbers)
            share = Estimate.share(area * n_groups, n_groups)
            low, high = share.low, share.high
        true_positives = {rate: _true_positives(inside, outside, rate, numbers) for rate in FALSE_POSITIVES}
        return cls(Estimate(area, low, high, len(inside) + len(outside)), true_positives)

    def figures(self, target: str) -> list[Figure]:
        """Return the lines of an audit."""
        shares = [
            Figure("membership", target, f"TPR at {100 * rate:g} % FPR", share, rate)
            for rate, share in self.true_positives.items()
        ]
        return [Figure("membership", target, "AUROC", self.auroc, 0.5), *shares]


def effective_number(share: float, variance: float, n_groups: int) -> float:
    """Return the effective sample size: the number of independent windows with the same variance of a share.

    The variance over few groups is uncertain itself, hence Student's t. If it is 0, as for a share of 0 or 1,
    each group counts once.
    """
    from scipy.stats import t

    if n_groups < 2:
        return 1.0
    if not (0 < share < 1 and variance > 0):
        return float(n_groups)
    return float(share * (1 - share) / variance * (_Z / t.ppf(0.975, n_groups - 1)) ** 2)


def _group_numbers(
    n: int, m: int, groups: tuple[ArrayLike, ArrayLike] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the group number of each member (n,) and other (m,); without groups, each is its own."""
    both = np.arange(n + m) if groups is None else np.concatenate([np.asarray(part) for part in groups])
    numbers = np.unique(both.astype(str), return_inverse=True)[1]
    return numbers[:n], numbers[n:]


def _true_positives(
    inside: np.ndarray, outside: np.ndarray, rate: float, groups: tuple[np.ndarray, np.ndarray]
) -> Estimate | None:
    """Return the share of members above a threshold that at most ``rate`` of the others pass.

    Groups are resampled for its interval: the threshold is as uncertain as the share.
    """
    n, n_groups = len(inside), int(max(part.max() for part in groups)) + 1
    if rate * len(outside) < 1 - 1e-9:
        return None
    order = np.argsort(-outside, kind="stable")

    def share(times: np.ndarray) -> float:
        members, others = times[groups[0]], times[groups[1][order]]
        if not (members.any() and others.any()):
            return math.nan
        above = np.cumsum(others)
        first = (above > math.floor(rate * above[-1] + 1e-9)).argmax()  # the first that must not pass
        return float(members[inside > outside[order[first]]].sum() / members.sum())

    value, rng = share(np.ones(n_groups)), np.random.default_rng(0)
    drawn = [
        share(np.bincount(rng.integers(0, n_groups, n_groups), minlength=n_groups)) for _ in range(RESAMPLES)
    ]
    number = effective_number(value, float(np.nanvar(drawn)), len(set(groups[0])))
    return Estimate.share(value * n, n, min(number, n))


def clustered_auroc(
    inside: np.ndarray, outside: np.ndarray, groups: tuple[ArrayLike, ArrayLike] | None = None
) -> tuple[float, float]:
    """Return the AUROC of scores (n,) and (m,), and its standard error.

    By DeLong, DeLong & Clarke-Pearson (Biometrics 1988); where windows come in groups, as people or
    sessions, by its extension to clusters (Obuchowski, Biometrics 1997).

    Examples
    --------
    >>> clustered_auroc(np.array([3.0, 2.0, 0.5]), np.array([1.0, 0.0, 0.2]))
    (0.888..., 0.157...)
    """
    n, m = len(inside), len(outside)
    area = auroc(inside, outside)
    if n < 2 or m < 2:
        return area, math.nan
    own, other = _group_numbers(n, m, groups)
    n_groups = int(max(own.max(), other.max())) + 1
    rows = np.bincount(own, _placements(inside, outside) - area, n_groups)
    cols = np.bincount(other, 1 - _placements(outside, inside) - area, n_groups)
    n_rows, n_cols = len(set(own)), len(set(other))
    if n_rows < 2 or n_cols < 2:  # a single group has no variance between groups
        return clustered_auroc(inside, outside)
    variance = n_rows / (n_rows - 1) * (rows**2).sum() / n**2 + n_cols / (n_cols - 1) * (cols**2).sum() / m**2
    variance += 2 * n_groups / (n_groups - 1) * (rows * cols).sum() / (n * m)
    return area, math.sqrt(max(variance, 0.0))


def _placements(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the share of others (m,) below each score (n,), ties counted half."""
    ordered = np.sort(others)
    below: np.ndarray = np.searchsorted(ordered, scores) + np.searchsorted(ordered, scores, side="right")
    return below / (2 * len(others))


def confidence_of(logits: Tensor, columns: Tensor) -> np.ndarray:
    """Return the log odds of the true class (n,), close to normal (LiRA), from logits (n, n_classes)."""
    own = logits.gather(1, columns[:, None]).squeeze(1)
    rest = logits.scatter(1, columns[:, None], -torch.inf)
    return (own - rest.logsumexp(1)).double().numpy()


def likelihood_ratios(target: np.ndarray, shadows: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return log-likelihood ratios (n,) of a model's confidences (n,): window in the training data, or not.

    Estimated from the confidences of shadow models (n_shadows, n), which had a window ``inside`` their
    training data or not (n_shadows, n): Carlini et al., Membership Inference Attacks From First Principles,
    IEEE S&P 2022. The variance is pooled over windows, as advised there for few shadow models.
    """
    n_in, n_out = inside.sum(0), (~inside).sum(0)
    if not (n_in.min() and n_out.min()):
        raise ValueError("each window must be in the training data of at least one shadow model, not of all")
    ratio = np.zeros(len(target))
    for sign, chosen, count in ((1, inside, n_in), (-1, ~inside, n_out)):
        mean = np.where(chosen, shadows, 0.0).sum(0) / count
        variance = max(float(((shadows - mean)[chosen] ** 2).mean()), 1e-12)
        ratio -= sign * 0.5 * ((target - mean) ** 2 / variance + math.log(variance))
    return ratio


def whitening_of(features: np.ndarray, cells: np.ndarray, *, noise: float = 0.0) -> np.ndarray:
    """Return the whitening (dim, dim) by the Ledoit-Wolf covariance of features (n, dim) within cells (n,).

    If every cell has one window, it is the covariance of all windows. ``noise`` is a variance in every
    direction besides: where a mean has noise, directions of less variance tell nothing.
    """
    from sklearn.covariance import ledoit_wolf

    places = np.unique(cells, return_inverse=True)[1]
    residuals = features - class_means(features, places, int(places.max()) + 1)[places]
    if not np.abs(residuals).max() > 0:
        residuals = features - features.mean(0)
    covariance, _ = ledoit_wolf(residuals, assume_centered=True)
    levels, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors / np.sqrt(np.maximum(levels, 1e-9 * levels.max()) + noise))


def class_means(values: np.ndarray, columns: np.ndarray, n_classes: int) -> np.ndarray:
    """Return the class means (n_classes, dim) of values (n, dim) with columns (n,); 0 for empty classes."""
    sums = np.zeros((n_classes, values.shape[1]))
    np.add.at(sums, columns, values)
    return np.asarray(sums / np.maximum(np.bincount(columns, minlength=n_classes), 1)[:, None])


def nearness(features: np.ndarray, columns: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return minus the squared distance (n,) of whitened features (n, dim) to the means of their columns."""
    return np.asarray(-((features - means[columns]) ** 2).sum(1))


@dataclass(frozen=True, eq=False)
class Gallery:
    """Labelled recordings of people that an attacker compares others with."""

    features: Tensor  # (n, dim)
    labels: np.ndarray  # (n,) classes
    names: np.ndarray  # (n,) the people, or another attribute to be identified

    @cached_property
    def _whitened(self) -> tuple[np.ndarray, np.ndarray]:
        """Features (n, dim) whitened by their covariance within names and labels, and the whitening."""
        values = self.features.double().numpy()
        cells = [f"{label}\n{name}" for label, name in zip(self.labels, self.names, strict=True)]
        whitening = whitening_of(values, np.array(cells))
        return values @ whitening, whitening

    def identify(self, features: Tensor, labels: np.ndarray) -> np.ndarray:
        """Return the most likely name (n,) for features (n, dim) of known labels (n,).

        The nearest mean of a name and label, by Mahalanobis distance with the Ledoit-Wolf pooled covariance:
        a linear discriminant of people. For a label that a name lacks, its mean is extrapolated.
        """
        candidates = np.unique(self.names)
        queries = features.double().numpy() @ self._whitened[1]
        matches = np.empty(len(labels), dtype=candidates.dtype)
        for label in np.unique(labels):
            centres = np.stack([self._mean(label, name) for name in candidates])
            distances = ((queries[labels == label, None] - centres) ** 2).sum(2)
            matches[labels == label] = candidates[distances.argmin(1)]
        return matches

    def _mean(self, label: Any, name: Any) -> np.ndarray:
        """Return the mean of a name's windows of a label, extrapolated if there are none."""
        values, own, same = self._whitened[0], self.names == name, self.labels == label
        if (own & same).any():
            return np.asarray(values[own & same].mean(0))
        mean = values[same if same.any() else slice(None)].mean(0)
        return np.asarray(mean + values[own].mean(0) - values.mean(0))


def identification_rate(
    matches: np.ndarray, shares: np.ndarray, names: np.ndarray, groups: np.ndarray | None = None
) -> Estimate:
    """Return the rate of correct matches (n,), weighted by how much of an item belongs to the matched name.

    ``shares`` (n, n_names) are the proportions of each item that belong to each name: a mean over people
    belongs to all of them in part. Chance is 1 / n_names for any shares. Items of one group (n,) are not
    independent.
    """
    columns = np.searchsorted(names, matches)
    return Estimate.clustered(shares[np.arange(len(matches)), columns], groups)


#: Measures of similarity of two windows, and whether larger is closer.
MEASURES = {"correlation": True, "spectral distance": False, "covariance distance": False}


def similarities(some: Tensor, others: Tensor) -> dict[str, np.ndarray]:
    """Return the similarity (n, m) of signals (n, n_chans, n_times) to others, by each of :data:`MEASURES`.

    Correlation at lag 0, averaged over channels; root mean square difference of log band powers; distance of
    log covariances.
    """
    units = [normalize(x - x.mean(2, keepdim=True), dim=2).flatten(1) for x in (some, others)]
    spectra, covariances = (
        [VIEWS[view].features(x).double() for x in (some, others)] for view in ("spectrum", "covariance")
    )
    return {
        "correlation": (units[0] @ units[1].T / some.shape[1]).numpy(),
        "spectral distance": (torch.cdist(spectra[0], spectra[1]) / spectra[0].shape[1] ** 0.5).numpy(),
        "covariance distance": torch.cdist(covariances[0], covariances[1]).numpy(),
    }
