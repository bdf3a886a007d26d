"""Attacks on what a model file gives away, as functions of arrays; every figure comes with its interval."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from anchorinv.core.metrics import auroc
from anchorinv.core.views import VIEWS

#: Of an interval of 95 %.
_Z = 1.959964
#: False positives at which true ones are counted: an attacker who accuses few wants to be right.
FALSE_POSITIVES = (0.01, 0.001)


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
    def share(cls, count: float, n: int) -> "Estimate":
        """Return the share of a count in n, with Wilson's interval."""
        if not n:
            return cls(math.nan, 0.0, 1.0, 0)
        p, z2 = count / n, _Z**2
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = _Z * math.sqrt(max(p * (1 - p), 0.0) / n + z2 / (4 * n**2)) / (1 + z2 / n)
        return cls(p, max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half)), n)

    @classmethod
    def mean(cls, values: ArrayLike) -> "Estimate":
        """Return the mean of values (n,), with the normal interval of their standard error."""
        given = np.asarray(values, dtype=np.float64)
        half = _Z * given.std(ddof=1) / math.sqrt(len(given)) if len(given) > 1 else math.inf
        return cls(float(given.mean()), float(given.mean() - half), float(given.mean() + half), len(given))

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
        named = {"attack": self.attack, "target": self.target, "measure": self.measure, "chance": self.chance}
        numbers = (
            dict.fromkeys(("value", "low", "high", "n")) if self.estimate is None else asdict(self.estimate)
        )
        return named | {
            name: number if number is None or math.isfinite(number) else None
            for name, number in numbers.items()
        }


def _finite(number: float | None) -> float | None:
    return number if number is None or math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class Membership:
    """How well scores tell members of the training data from others.

    Parameters
    ----------
    auroc : Estimate
        0.5 is guessing.
    error : float
        Standard error of the AUROC.
    found : mapping of float to Estimate or None
        True positives at each of :data:`FALSE_POSITIVES`; None where there are too few others to tell.
    """

    auroc: Estimate
    error: float
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
        area, error = clustered_auroc(inside, outside, groups)
        low, high = max(0.0, area - _Z * error), min(1.0, area + _Z * error)
        if not error > 0:  # all right or all wrong: no spread to judge by, but few may be lucky
            low, high = (f := Estimate.share(area * min(len(inside), len(outside)),
                                             min(len(inside), len(outside)))).low, f.high  # fmt: skip
        found: dict[float, Estimate | None] = {}
        for rate in FALSE_POSITIVES:
            # The threshold lets through at most this share of the others.
            allowed = int(rate * len(outside) + 1e-9)
            if allowed < 1:
                found[rate] = None
                continue
            threshold = np.sort(outside)[len(outside) - 1 - allowed]
            found[rate] = Estimate.share(int((inside > threshold).sum()), len(inside))
        return cls(Estimate(area, low, high, len(inside) + len(outside)), error, found)


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
    both = np.arange(n + m) if groups is None else np.concatenate([np.asarray(part) for part in groups])
    names, places = np.unique(both.astype(str), return_inverse=True)
    parts = _placements(inside, outside) - area, 1 - _placements(outside, inside) - area
    rows, cols = (
        np.bincount(places[own], part, len(names))
        for own, part in zip((slice(0, n), slice(n, n + m)), parts, strict=True)
    )
    n_rows, n_cols = len(set(places[:n])), len(set(places[n:]))
    if n_rows < 2 or n_cols < 2:  # of one group nothing is known but its windows
        return clustered_auroc(inside, outside)
    variance = n_rows / (n_rows - 1) * (rows**2).sum() / n**2 + n_cols / (n_cols - 1) * (cols**2).sum() / m**2
    variance += 2 * len(names) / (len(names) - 1) * (rows * cols).sum() / (n * m)
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

    See Carlini et al., Membership Inference Attacks From First Principles, IEEE S&P 2022. The spread is that
    of all windows together, as is advised where shadow models are few.

    Parameters
    ----------
    target : ndarray, shape (n,)
        Confidences of the model, see :func:`confidence_of`.
    shadows : ndarray, shape (n_shadows, n)
        Those of shadow models.
    inside : ndarray of bool, shape (n_shadows, n)
        Which shadow model learned which window.
    """
    n_in, n_out = inside.sum(0), (~inside).sum(0)
    if not (n_in.min() and n_out.min()):
        raise ValueError("each window must be inside of one shadow model at least, and outside of another")
    ratio = np.zeros(len(target))
    for sign, chosen, count in ((1, inside, n_in), (-1, ~inside, n_out)):
        mean = np.where(chosen, shadows, 0.0).sum(0) / count
        spread = math.sqrt(
            max(float((np.where(chosen, shadows - mean, 0.0) ** 2).sum() / chosen.sum()), 1e-12)
        )
        ratio += sign * (-0.5 * ((target - mean) / spread) ** 2 - math.log(spread))
    return ratio


@dataclass(frozen=True, slots=True, eq=False)
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

    def linked(self, features: Tensor, labels: np.ndarray) -> np.ndarray:
        """Return the likeliest name (n,) for features (n, dim) of known labels (n,).

        By the nearest mean among those of each name and label, in the metric of their pooled covariance,
        shrunk (Ledoit & Wolf): a discriminant of people. A name without a label is compared by all others.
        """
        from sklearn.covariance import ledoit_wolf

        known = np.unique(self.names)
        cells = np.unique([f"{label}\n{name}" for label, name in zip(self.labels, self.names, strict=True)],
                          return_inverse=True)[1]  # fmt: skip
        values = self.features.double().numpy()
        means = np.stack([values[cells == cell].mean(0) for cell in range(cells.max() + 1)])
        residuals = values - means[cells]
        if not np.abs(residuals).max() > 0:
            residuals = values - values.mean(0)
        covariance, _ = ledoit_wolf(residuals, assume_centered=True)
        levels, vectors = np.linalg.eigh(covariance)
        whitening = vectors / np.sqrt(np.maximum(levels, 1e-9 * levels.max()))
        found = np.empty(len(labels), dtype=known.dtype)
        for label in np.unique(labels):
            places = np.stack([self._place(values, label, name) for name in known]) @ whitening
            asked = features[torch.from_numpy(labels == label)].double().numpy() @ whitening
            found[labels == label] = known[((asked[:, None] - places) ** 2).sum(2).argmin(1)]
        return found

    def _place(self, values: np.ndarray, label: Any, name: Any) -> np.ndarray:
        """Return where somebody's windows of a label lie, or probably would."""
        own = self.names == name
        here = own & (self.labels == label)
        if here.any():
            return np.asarray(values[here].mean(0))
        others = self.labels == label
        shift = values[own].mean(0) - values.mean(0)
        return np.asarray((values[others].mean(0) if others.any() else values.mean(0)) + shift)


def linked_share(found: np.ndarray, shares: np.ndarray, names: np.ndarray) -> Estimate:
    """Return how much of what was linked is really of the name found (n,), on average.

    ``shares`` (n, n_names) say how much of each item is of each name: a mean over people is of all of them a
    little, and guessing is right with 1 / n_names whatever the shares are.
    """
    columns = np.searchsorted(names, found)
    return Estimate.share(float(shares[np.arange(len(found)), columns].sum()), len(found))


#: How two windows are compared: names, and whether more is closer.
MEASURES = {"correlation": True, "spectral distance": False, "covariance distance": False}


def compared(some: Tensor, others: Tensor) -> dict[str, np.ndarray]:
    """Return how close signals (n, n_chans, n_times) are to others (m, ...), by each of :data:`MEASURES`.

    Correlation at no lag, averaged over channels; root mean square difference of log band powers; distance of
    log covariances. Each (n, m).
    """

    def standard(signals: Tensor) -> Tensor:
        centred = signals - signals.mean(2, keepdim=True)
        scaled: Tensor = centred / centred.norm(dim=2, keepdim=True).clamp(min=1e-12)
        return scaled

    a, b = standard(some).flatten(1), standard(others).flatten(1)
    result = {"correlation": (a @ b.T / some.shape[1]).numpy()}
    for name, view in (("spectral distance", "spectrum"), ("covariance distance", "covariance")):
        module = VIEWS[view]()
        seen, known = module(some).double(), module(others).double()
        scale = seen.shape[1] ** 0.5 if view == "spectrum" else 1.0
        result[name] = (torch.cdist(seen, known) / scale).numpy()
    return result
