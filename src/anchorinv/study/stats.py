"""Say whether a method is better than another, by how much, and how sure that is.

All tests are paired: in one trial all methods had the same shots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

ASSUMPTION = (
    "Trials share one base model and one test set: a small p says that the order of the methods would hold "
    "for other draws of the shots, not for other base models, people or recordings."
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A method against a reference, over paired values.

    Parameters
    ----------
    difference : mean of method minus reference.
    low, high : its 95 % confidence interval, by Student's t over the pairs.
    p : two-sided Wilcoxon signed-rank test; 1 where all differences are zero.
    p_holm : the same, corrected for the comparisons made together.
    effect : matched-pairs rank-biserial correlation, from -1 (always worse) to 1 (always better).
    n : pairs.
    """

    method: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    effect: float
    n: int


def compare(values: Mapping[str, Sequence[float]], reference: str) -> list[Comparison]:
    """Compare every method with one of them.

    Parameters
    ----------
    values : a value per trial for each method, in the same order of trials.
    reference : the method that the others are compared with.

    Examples
    --------
    >>> found = compare({"a": [1, 2, 3, 4, 5, 6], "b": [2, 4, 4, 6, 6, 8]}, "a")
    >>> found[0].method, found[0].difference, found[0].effect
    ('b', 1.5, 1.0)
    """
    if reference not in values:
        raise ValueError(f"no results of {reference!r} to compare with; there are {', '.join(values)}")
    lengths = {method: len(column) for method, column in values.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"paired tests need the same trials of all methods, got {lengths}")
    others = [method for method in values if method != reference]
    base = np.asarray(values[reference], dtype=float)
    differences = [np.asarray(values[method], dtype=float) - base for method in others]
    raw = [wilcoxon_p(difference) for difference in differences]
    return [
        Comparison(method, float(d.mean()), *confidence_interval(d), p, p_holm, rank_biserial(d), len(d))
        for method, d, p, p_holm in zip(others, differences, raw, holm(raw), strict=True)
    ]


def wilcoxon_p(differences: np.ndarray) -> float:
    """Return the two-sided p of the Wilcoxon signed-rank test; 1 where all differences are zero."""
    if not np.any(differences):
        return 1.0
    return float(stats.wilcoxon(differences).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for being looked at together, by Holm's step-down rule; in the order given.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(p) for p in corrected]


def rank_biserial(differences: np.ndarray) -> float:
    """Return (sum of ranks above zero - sum below) / sum of all; 0 where all differences are zero."""
    moved = differences[differences != 0]
    if not len(moved):
        return 0.0
    ranks = stats.rankdata(np.abs(moved))
    return float((ranks * np.sign(moved)).sum() / ranks.sum())


def confidence_interval(differences: np.ndarray, *, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean difference by Student's t; infinite for a single pair."""
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return -np.inf, np.inf
    half = float(stats.t.ppf((1 + level) / 2, n - 1) * differences.std(ddof=1) / np.sqrt(n))
    return mean - half, mean + half
