"""Where new classes start: a new head from the old one and the features of the shots."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.heads import (
    Cosine,
    DotRegression,
    Head,
    Mlp,
    StatisticalHead,
    class_means,
    uniform_rows,
)
from anchorinv.core.networks import mapped
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch, State, columns

#: (state before the session, features of the shots) -> head with a column more per new class.
Placement = Callable[[State, Batch], Head]


def mean_of_shots(state: State, shots: Batch) -> Cosine:
    """Start new prototypes at the mean feature of their shots (Eq. 4)."""
    means = class_means(shots.values, columns(shots.labels, shots.classes))
    return _cosine(state).extended(means)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Start new prototypes at their shots' mean, drawn towards base prototypes they resemble (TEEN).

    Parameters
    ----------
    tau : sharpness of the weighting; large means the nearest only.
    alpha : how far to move; 0 leaves the mean in place, up to its length.
    """

    tau: float = 32.0
    alpha: float = 0.5

    def __call__(self, state: State, shots: Batch) -> Cosine:
        """Return the head with the calibrated prototypes."""
        head = _cosine(state)
        base = head.prototypes[: state.n_base]
        means = class_means(shots.values, columns(shots.labels, shots.classes))
        return head.extended(calibrated(means, base, tau=self.tau, alpha=self.alpha))


def calibrated(new: Tensor, base: Tensor, *, tau: float, alpha: float) -> Tensor:
    """Shift new prototypes (n_new, dim) towards the base prototypes (n_base, dim) they resemble.

    Returns
    -------
    (n_new, dim), (1 - α) · own + α · Σ_b softmax_b(τ cos(own, b)) · b, all of length 1 before they are mixed.
    """
    own, base = F.normalize(new), F.normalize(base)
    resembled = F.normalize(torch.softmax(tau * own @ base.T, dim=1) @ base)
    return (1 - alpha) * own + alpha * resembled


def random_rows(state: State, shots: Batch) -> Cosine:
    """Start new prototypes as a linear layer starts, drawn once per class and so alike in all trials."""
    rows = [
        uniform_rows(1, shots.values.shape[1], rng=stream(state.seed, "prototype", label))
        for label in shots.classes
    ]
    return _cosine(state).extended(torch.cat(rows).to(shots.values))


def new_outputs(state: State, shots: Batch) -> Mlp:
    """Append an output row per new class to a classifier that has no prototypes."""
    head = state.head
    if not isinstance(head, Mlp):
        raise TypeError(f"output rows belong to a Mlp head, not to a {type(head).__name__}")
    width = head.last.in_features
    drawn = [
        uniform_rows(1, width + 1, rng=stream(state.seed, "output", label)).to(shots.values)
        for label in shots.classes
    ]
    rows = torch.cat(drawn)
    return head.extended(rows[:, :-1], rows[:, -1])


def next_vertices(state: State, shots: Batch) -> DotRegression:
    """Give new classes the next vertices of a simplex that was fixed in the base session."""
    if not isinstance(state.head, DotRegression):
        raise TypeError(f"vertices belong to a DotRegression head, not to a {type(state.head).__name__}")
    return state.head.extended(len(shots.classes))


def add_statistics(state: State, shots: Batch) -> StatisticalHead:
    """Take the statistics of new classes into a head that follows from them."""
    head = state.head
    if not isinstance(head, StatisticalHead):
        raise TypeError(f"statistics belong to a StatisticalHead, not to a {type(head).__name__}")
    return head.learned(shots.values, columns(shots.labels, (*state.classes, *shots.classes)))


def reinforced(state: State, features: Batch, counts: Sequence[int], *, exact: bool = False) -> Cosine:
    """Move prototypes of known classes by more examples: each becomes the mean over old and new ones.

    A trained prototype has a length of its own, which says nothing, so it is brought to the new mean's
    before both are weighed; not so where distances are measured, and lengths matter (``exact``).

    Parameters
    ----------
    features : of the examples (n, dim), labelled by known classes.
    counts : examples behind each prototype so far, in the order of the classes.
    """
    head = _cosine(state)
    prototypes = head.prototypes.clone()
    for label in features.classes:
        column, examples = state.classes.index(label), features.of(label).values
        mean = examples.mean(0)
        old = prototypes[column] if exact else F.normalize(prototypes[column], dim=0) * mean.norm()
        prototypes[column] = (counts[column] * old + examples.sum(0)) / (counts[column] + len(examples))
    return head.with_prototypes(prototypes)


def refreshed(head: Head, replay: Batch, before: nn.Module, after: nn.Module) -> Cosine:
    """Move the prototypes of replayed classes as far as their replay has moved from one tail to the next.

    They are means over more samples than are replayed, so they are shifted and not replaced (after Yu et al.,
    Semantic Drift Compensation, CVPR 2020).

    Parameters
    ----------
    replay : latents (n, ...), labelled by the head's columns.
    """
    if not isinstance(head, Cosine):
        raise TypeError(f"prototypes belong to a Cosine head, not to a {type(head).__name__}")
    moved = mapped(after, replay.values) - mapped(before, replay.values)
    prototypes = head.prototypes.detach().clone()
    prototypes[list(replay.classes)] += class_means(moved, columns(replay.labels, replay.classes))
    return head.with_prototypes(prototypes)


def _cosine(state: State) -> Cosine:
    if not isinstance(state.head, Cosine):
        raise TypeError(f"prototypes belong to a Cosine head, not to a {type(state.head).__name__}")
    return state.head
