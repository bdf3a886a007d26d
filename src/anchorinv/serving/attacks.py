"""Attacks on what a model file reveals, as functions of arrays; every figure comes with its interval."""

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

#: Of an interval of 95 %.
_Z = 1.959964
#: False positives at which true ones are counted: an attacker who accuses few wants to be right.
FALSE_POSITIVES = (0.01, 0.001)
#: Bootstrap samples behind the interval of true positives.
RESAMPLES = 300


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval of 95 %.

    Parameters
    ----------
    value, low, high : float
    n : int
        Windows, people or whatever else it was counted over.

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
        given = np.asarray(values, dtype=np.float64)
        places = np.unique(np.arange(len(given)) if groups is None else groups, return_inverse=True)[1]
        if not len(given):
            return cls.share(0, 0)
        n_groups, mean = int(places.max()) + 1, float(given.mean())
        if 0 < mean < 1 and np.ptp(given) < 1e-9:  # the same share of everything: nothing to estimate
            return cls(mean, mean, mean, len(given))
        sums = np.bincount(places, given - mean)
        variance = n_groups / max(n_groups - 1, 1) * float((sums**2).sum()) / len(given) ** 2
        return cls.share(given.sum(), len(given), effective_number(mean, variance, n_groups))

    @classmethod
    def mean(cls, values: ArrayLike) -> "Estimate":
        """Return the mean of values (n,), with Student's interval of their standard error."""
        from scipy.stats import t

        given = np.asarray(values, dtype=np.float64)
        mean, n = float(given.mean()), len(given)
        half = float(t.ppf(0.975, n - 1) * given.std(ddof=1) / math.sqrt(n)) if n > 1 else math.inf
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
        What it was made on, or by.
    measure : str
    estimate : Estimate or None
        None where there are too few windows to tell.
    chance : float or None
        What guessing would reach; None where there is no such thing.

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
    """How well scores tell members of the training data from others.

    Parameters
    ----------
    auroc : Estimate
        0.5 is guessing.
    found : mapping of float to Estimate or None
        True positives at each of :data:`FALSE_POSITIVES`; None where there are too few others to tell.
    """

    auroc: Estimate
    found: Mapping[float, Estimate | None]

    @classmethod
    def of(
        cls,
        members: ArrayLike,
        others: ArrayLike,
        groups: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> "Membership":
        """Measure scores (n,) and (m,), larger for members; windows of a group are not independent."""
        inside, outside = (np.asarray(scores, dtype=np.float64) for scores in (members, others))
        places = _places(len(inside), len(outside), groups)
        area, error = clustered_auroc(inside, outside, groups)
        low, high = max(0.0, area - _Z * error), min(1.0, area + _Z * error)
        if not error > 0:  # all right or all wrong: no spread to judge by, but few may be lucky
            n_groups = min(len(set(each)) for each in places)
            share = Estimate.share(area * n_groups, n_groups)
            low, high = share.low, share.high
        found = {rate: _true_positives(inside, outside, rate, places) for rate in FALSE_POSITIVES}
        return cls(Estimate(area, low, high, len(inside) + len(outside)), found)

    def figures(self, target: str) -> list[Figure]:
        """Return them as lines of an audit."""
        shares = [
            Figure("membership", target, f"TPR at {100 * rate:g} % FPR", share, rate)
            for rate, share in self.found.items()
        ]
        return [Figure("membership", target, "AUROC", self.auroc, 0.5), *shares]


def effective_number(share: float, variance: float, n_groups: int) -> float:
    """Return how many independent windows would leave a share as uncertain as it is.

    Of few groups a variance is uncertain itself: Student's t is taken into account. Where nothing varies, as
    with 0 or 1, each group counts once.
    """
    from scipy.stats import t

    if n_groups < 2:
        return 1.0
    if not (0 < share < 1 and variance > 0):
        return float(n_groups)
    return float(share * (1 - share) / variance * (_Z / t.ppf(0.975, n_groups - 1)) ** 2)


def _places(n: int, m: int, groups: tuple[ArrayLike, ArrayLike] | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the group of each member (n,) and other (m,) by its number; each its own if none are known."""
    both = np.arange(n + m) if groups is None else np.concatenate([np.asarray(part) for part in groups])
    places = np.unique(both.astype(str), return_inverse=True)[1]
    return places[:n], places[n:]


def _true_positives(
    inside: np.ndarray, outside: np.ndarray, rate: float, places: tuple[np.ndarray, np.ndarray]
) -> Estimate | None:
    """Return the share of members above a threshold that at most ``rate`` of the others pass.

    Groups are resampled for its interval: the threshold is as uncertain as the share.
    """
    n, n_groups = len(inside), int(max(each.max() for each in places)) + 1
    if rate * len(outside) < 1 - 1e-9:
        return None
    order = np.argsort(-outside, kind="stable")

    def share(times: np.ndarray) -> float:
        members, others = times[places[0]], times[places[1][order]]
        if not (members.any() and others.any()):
            return math.nan
        above = np.cumsum(others)
        first = (above > math.floor(rate * above[-1] + 1e-9)).argmax()  # the first that must not pass
        return float(members[inside > outside[order[first]]].sum() / members.sum())

    value, rng = share(np.ones(n_groups)), np.random.default_rng(0)
    drawn = [
        share(np.bincount(rng.integers(0, n_groups, n_groups), minlength=n_groups)) for _ in range(RESAMPLES)
    ]
    number = effective_number(value, float(np.nanvar(drawn)), len(set(places[0])))
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
    places = _places(n, m, groups)
    n_groups = int(max(each.max() for each in places)) + 1
    parts = _placements(inside, outside) - area, 1 - _placements(outside, inside) - area
    rows, cols = (np.bincount(own, part, n_groups) for own, part in zip(places, parts, strict=True))
    n_rows, n_cols = (len(set(each)) for each in places)
    if n_rows < 2 or n_cols < 2:  # of one group nothing is known but its windows
        return clustered_auroc(inside, outside)
    variance = n_rows / (n_rows - 1) * (rows**2).sum() / n**2 + n_cols / (n_cols - 1) * (cols**2).sum() / m**2
    variance += 2 * n_groups / (n_groups - 1) * (rows * cols).sum() / (n * m)
    return area, math.sqrt(max(variance, 0.0))


def _placements(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the share of others (m,) below each score (n,), ties counted half."""
    ordered = np.sort(others)
    placed: np.ndarray = np.searchsorted(ordered, scores) + np.searchsorted(ordered, scores, side="right")
    return placed / (2 * len(others))


def confidence_of(logits: Tensor, columns: Tensor) -> np.ndarray:
    """Return log p / (1 - p) of the true class (n,), of logits (n, n_classes): near normal (LiRA)."""
    own = logits.gather(1, columns[:, None]).squeeze(1)
    rest = logits.scatter(1, columns[:, None], -torch.inf)
    return (own - rest.logsumexp(1)).double().numpy()


def likelihood_ratios(target: np.ndarray, shadows: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return how much likelier a model's confidences (n,) are if it learned each window than if it did not.

    By those of shadow models (n_shadows, n), of which some have each window inside (n_shadows, n); see
    Carlini et al., Membership Inference Attacks From First Principles, IEEE S&P 2022. The spread is that of
    all windows together, as is advised where shadow models are few.
    """
    n_in, n_out = inside.sum(0), (~inside).sum(0)
    if not (n_in.min() and n_out.min()):
        raise ValueError("each window must be inside of one shadow model at least, and outside of another")
    ratio = np.zeros(len(target))
    for sign, chosen, count in ((1, inside, n_in), (-1, ~inside, n_out)):
        mean = np.where(chosen, shadows, 0.0).sum(0) / count
        variance = max(float(((shadows - mean)[chosen] ** 2).mean()), 1e-12)
        ratio -= sign * 0.5 * ((target - mean) ** 2 / variance + math.log(variance))
    return ratio


def whitening_of(features: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Return the inverse root (dim, dim) of the covariance of features (n, dim) within cells (n,), shrunk.

    By Ledoit and Wolf; of cells of one window each it is that of all windows.
    """
    from sklearn.covariance import ledoit_wolf

    places = np.unique(cells, return_inverse=True)[1]
    residuals = features - class_means(features, places, int(places.max()) + 1)[places]
    if not np.abs(residuals).max() > 0:
        residuals = features - features.mean(0)
    covariance, _ = ledoit_wolf(residuals, assume_centered=True)
    levels, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors / np.sqrt(np.maximum(levels, 1e-9 * levels.max())))


def class_means(values: np.ndarray, columns: np.ndarray, n_classes: int) -> np.ndarray:
    """Return the mean (n_classes, dim) of values (n, dim) by their columns (n,), 0 without any."""
    sums = np.zeros((n_classes, values.shape[1]))
    np.add.at(sums, columns, values)
    return np.asarray(sums / np.maximum(np.bincount(columns, minlength=n_classes), 1)[:, None])


def nearness(features: np.ndarray, columns: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return minus the squared distance (n,) of whitened features (n, dim) to the means of their columns."""
    return np.asarray(-((features - means[columns]) ** 2).sum(1))


@dataclass(frozen=True, eq=False)
class Gallery:
    """Recordings of people that an attacker has, and finds them again by.

    Parameters
    ----------
    features : Tensor, shape (n, dim)
    labels : ndarray, shape (n,)
        What they did.
    names : ndarray, shape (n,)
        Who they are, or whatever else is to be found out.
    """

    features: Tensor
    labels: np.ndarray
    names: np.ndarray

    @cached_property
    def _whitened(self) -> tuple[np.ndarray, np.ndarray]:
        """Whitened features (n, dim), by their covariance within names and labels, and what whitens."""
        values = self.features.double().numpy()
        cells = [f"{label}\n{name}" for label, name in zip(self.labels, self.names, strict=True)]
        whitening = whitening_of(values, np.array(cells))
        return values @ whitening, whitening

    def linked(self, features: Tensor, labels: np.ndarray) -> np.ndarray:
        """Return the likeliest name (n,) for features (n, dim) of known labels (n,).

        By the nearest mean among those of each name and label, in the metric of their pooled covariance,
        shrunk (Ledoit & Wolf): a discriminant of people. A name without a label is compared by all others.
        """
        known = np.unique(self.names)
        asked = features.double().numpy() @ self._whitened[1]
        found = np.empty(len(labels), dtype=known.dtype)
        for label in np.unique(labels):
            places = np.stack([self._place(label, name) for name in known])
            distances = ((asked[labels == label, None] - places) ** 2).sum(2)
            found[labels == label] = known[distances.argmin(1)]
        return found

    def _place(self, label: Any, name: Any) -> np.ndarray:
        """Return where somebody's windows of a label lie, or probably would."""
        values, own, same = self._whitened[0], self.names == name, self.labels == label
        if (own & same).any():
            return np.asarray(values[own & same].mean(0))
        middle = values[same if same.any() else slice(None)].mean(0)
        return np.asarray(middle + values[own].mean(0) - values.mean(0))


def linked_share(
    found: np.ndarray, shares: np.ndarray, names: np.ndarray, groups: np.ndarray | None = None
) -> Estimate:
    """Return how much of what was linked really belongs to the name found (n,), on average.

    ``shares`` (n, n_names) say how much of each item belongs to each name: a mean over people belongs a
    little to all of them, and guessing is right with 1 / n_names whatever the shares are. Items of one group
    (n,) are not independent.
    """
    columns = np.searchsorted(names, found)
    return Estimate.clustered(shares[np.arange(len(found)), columns], groups)


#: How two windows are compared: names, and whether more is closer.
MEASURES = {"correlation": True, "spectral distance": False, "covariance distance": False}


def compared(some: Tensor, others: Tensor) -> dict[str, np.ndarray]:
    """Return how close signals (n, n_chans, n_times) are to others (m, ...), by each of :data:`MEASURES`.

    Correlation at no lag, averaged over channels; root mean square difference of log band powers; distance of
    log covariances. Each (n, m).
    """
    a, b = (normalize(each - each.mean(2, keepdim=True), dim=2).flatten(1) for each in (some, others))
    result = {"correlation": (a @ b.T / some.shape[1]).numpy()}
    for name, view in (("spectral distance", "spectrum"), ("covariance distance", "covariance")):
        seen, known = (VIEWS[view].features(each).double() for each in (some, others))
        scale = seen.shape[1] ** 0.5 if view == "spectrum" else 1.0
        result[name] = (torch.cdist(seen, known) / scale).numpy()
    return result
