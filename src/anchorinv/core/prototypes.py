"""Prototypes of new classes, and the selection of anchors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.heads import (
    Cosine,
    DotRegression,
    Head,
    Mlp,
    PrototypeHead,
    StatisticalHead,
    class_means,
    prototype_head,
    uniform_rows,
)
from anchorinv.core.networks import encode
from anchorinv.core.types import Batch, State, columns, stream

#: (features (n, dim) of one class, how many, rng) -> anchors (at most that many, dim).
Selection = Callable[[Tensor, int, torch.Generator], Tensor]

#: Features (n, dim) of one class -> how far each is from their mean, the prototype (n,).
Measure = Callable[[Tensor], Tensor]


def cosine_distance(features: Tensor) -> Tensor:
    """Return minus the cosine to the prototype (n,): the classifier's own distance."""
    return -torch.cosine_similarity(features, features.mean(0, keepdim=True))


def euclidean_distance(features: Tensor) -> Tensor:
    """Return the Euclidean distance from the prototype (n,), as the authors' runs measure it."""
    distances: Tensor = (features - features.mean(0)).norm(dim=1)
    return distances


MEASURES: dict[str, Measure] = {"cosine": cosine_distance, "euclidean": euclidean_distance}


def random_indices(n: int, quota: int, rng: torch.Generator) -> Tensor:
    """Draw ``quota`` of ``n`` indices without replacement, or all if there are fewer; sorted."""
    return torch.randperm(n, generator=rng)[:quota].sort().values


def random_anchors(features: Tensor, quota: int, rng: torch.Generator) -> Tensor:
    """Keep features drawn at random without replacement."""
    return features[random_indices(len(features), quota, rng)]


@dataclass(frozen=True, slots=True)
class Closest:
    """Keep the features closest to the class's prototype, the nearest first."""

    measure: Measure = cosine_distance

    def __call__(self, features: Tensor, quota: int, rng: torch.Generator) -> Tensor:
        """Return the anchors of one class."""
        return features[self.measure(features).argsort(stable=True)[:quota]]


@dataclass(frozen=True, slots=True)
class RandomClosest:
    """Keep features drawn at random from the ``share`` of them, rounded down, closest to the prototype."""

    share: float
    measure: Measure = cosine_distance

    def __call__(self, features: Tensor, quota: int, rng: torch.Generator) -> Tensor:
        """Return the anchors of one class."""
        near = Closest(self.measure)(features, max(1, int(self.share * len(features))), rng)
        return random_anchors(near, quota, rng)


@dataclass(frozen=True, slots=True)
class KMeans:
    """Keep the centroids of ``n_clusters`` clusters, repeated in turn until the quota is filled."""

    n_clusters: int = 5

    def __call__(self, features: Tensor, quota: int, rng: torch.Generator) -> Tensor:
        """Return the anchors of one class."""
        # Imported here, as it takes half a second.
        from sklearn.cluster import KMeans as Clustering

        n_clusters = min(self.n_clusters, len(features), quota)
        seed = int(torch.randint(2**31, (1,), generator=rng))
        clusters = Clustering(n_clusters, n_init=10, random_state=seed).fit(features.double().numpy())
        centroids = torch.from_numpy(clusters.cluster_centers_).to(features)
        return centroids[torch.arange(min(quota, len(features))) % n_clusters]


SELECTIONS: dict[str, Selection] = {
    "random": random_anchors,
    "closest": Closest(),
    "kmeans": KMeans(),
    **{f"random-closest-{percent}": RandomClosest(percent / 100) for percent in (30, 50, 70)},
}


def selection(name: str, measure: str = "cosine") -> Selection:
    """Return one of ``SELECTIONS``, with one of ``MEASURES`` where it uses a distance."""
    rule = SELECTIONS[name]
    return replace(rule, measure=MEASURES[measure]) if isinstance(rule, Closest | RandomClosest) else rule


def selection_title(name: str) -> str:
    """Return a selection's name as the paper's Table 3 writes it; an unknown one keeps its name."""
    titles = {"random": "Random sample", "closest": "Closest", "kmeans": "5 k-means clusters"}
    if name.startswith("random-closest-"):
        return f"Random closest {name.rpartition('-')[2]} %"
    return titles.get(name, name)


#: (state before the session, features of the shots) -> head with a column more per new class.
Placement = Callable[[State, Batch], Head]


def mean_of_shots(state: State, shots: Batch) -> Cosine:
    """Start new prototypes at the mean feature of their shots (Eq. 4).

    Parameters
    ----------
    state : State
        Before the session.
    shots : Batch
        Features (n, dim) of the new classes.
    """
    means = class_means(shots.values, columns(shots.labels, shots.classes))
    return prototype_head(state.head).add_classes(means)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Start new prototypes at their shots' mean, shifted towards similar base prototypes (TEEN).

    Parameters
    ----------
    tau : float, default=32.0
        Sharpness of the weighting; large means the nearest only.
    alpha : float, default=0.5
        How far to move; 0 keeps the direction of the mean.
    """

    tau: float = 32.0
    alpha: float = 0.5

    def __call__(self, state: State, shots: Batch) -> Cosine:
        """Return the head with the calibrated prototypes."""
        head = prototype_head(state.head)
        base = head.prototypes[: state.n_base]
        means = class_means(shots.values, columns(shots.labels, shots.classes))
        return head.add_classes(calibrated(means, base, tau=self.tau, alpha=self.alpha))


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
    """Initialise new prototypes like a linear layer, drawn once per class: the same in all trials."""
    return prototype_head(state.head).add_classes(_rows(state, shots, "prototype", shots.values.shape[1]))


def _rows(state: State, shots: Batch, purpose: str, dim: int) -> Tensor:
    rows = [uniform_rows(1, dim, rng=stream(state.seed, purpose, label)) for label in shots.classes]
    return torch.cat(rows).to(shots.values)


def new_outputs(state: State, shots: Batch) -> Mlp:
    """Append an output row per new class to a classifier that has no prototypes."""
    head = state.head
    if not isinstance(head, Mlp):
        raise TypeError(f"output rows belong to a Mlp head, not to a {type(head).__name__}")
    rows = _rows(state, shots, "output", head.last.in_features + 1)
    return head.add_classes(rows[:, :-1], rows[:, -1])


def next_vertices(state: State, shots: Batch) -> DotRegression:
    """Assign the next vertices of the base session's simplex to new classes."""
    if not isinstance(state.head, DotRegression):
        raise TypeError(f"vertices belong to a DotRegression head, not to a {type(state.head).__name__}")
    return state.head.add_classes(len(shots.classes))


def add_statistics(state: State, shots: Batch) -> StatisticalHead:
    """Add new classes to a head computed from statistics."""
    head = state.head
    if not isinstance(head, StatisticalHead):
        raise TypeError(f"statistics belong to a StatisticalHead, not to a {type(head).__name__}")
    return head.after(shots, columns(shots.labels, (*state.classes, *shots.classes)))


def aggregated(samples: Batch, size: int, *, rng: torch.Generator | None) -> Tensor:
    """Return means (n // size, dim) of ``size`` samples (n, dim) each, mixed over groups where known.

    In random order with a generator. Fewer than ``size`` samples are refused; a remainder joins the last
    mean. A size of 1 returns the samples.
    """
    if size == 1:
        return samples.values
    order, cells = mixed_cells(samples, size, rng=rng)
    sums = samples.values.new_zeros(int(cells[-1]) + 1, samples.values.shape[1])
    sums = sums.index_add_(0, cells, samples.values[order])
    return sums / torch.bincount(cells)[:, None].to(sums)


def mixed_cells(samples: Batch, size: int, *, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return an order (n,) of samples, mixed over groups where known, and the cell of each in it (n,).

    Cells have ``size`` samples, the last one also a remainder. What the samples are plays no part.
    """
    n = len(samples)
    if n < size:
        raise ValueError(
            f"a class with {n} windows has too few for a mean of {size}; record {size} or more, or "
            f"leave out privacy"
        )
    order = torch.arange(n) if rng is None else torch.randperm(n, generator=rng)
    if samples.groups is not None:
        # The first window of each person, then the second: neighbours are of different people.
        groups = samples.groups[order]
        rank = torch.stack([(groups[:i] == groups[i]).sum() for i in range(n)])
        order = order[torch.argsort(rank, stable=True)]
    return order, (torch.arange(n) // size).clamp(max=n // size - 1)


def update_prototypes(
    state: State, features: Batch, counts: Sequence[int], *, exact: bool = False
) -> PrototypeHead:
    """Move prototypes of known classes by more examples: each becomes the mean over old and new ones.

    The length of a trained prototype is arbitrary, so it is scaled to the new mean's first, unless the head
    measures distances (``exact``).

    ``counts`` are the examples behind each prototype so far, in the order of the classes.
    """
    head = prototype_head(state.head)
    prototypes = head.prototypes.clone()
    for label in features.classes:
        column, examples = state.classes.index(label), features.of(label).values
        mean = examples.mean(0)
        old = prototypes[column] if exact else F.normalize(prototypes[column], dim=0) * mean.norm()
        prototypes[column] = (counts[column] * old + examples.sum(0)) / (counts[column] + len(examples))
    return head.with_prototypes(prototypes)


def follow_replay(head: Head, replay: Batch, before: nn.Module, after: nn.Module) -> Cosine:
    """Move the prototypes of replayed classes as far as their replay has moved from one tail to the next.

    Prototypes are means over more samples than are replayed, so they are shifted, not replaced (after Yu et
    al., Semantic Drift Compensation, CVPR 2020). Replay is labelled by the head's columns.
    """
    if not isinstance(head, Cosine):
        raise TypeError(f"prototypes belong to a Cosine head, not to a {type(head).__name__}")
    moved = encode(after, replay.values) - encode(before, replay.values)
    prototypes = head.prototypes.detach().clone()
    shifts = class_means(moved, columns(replay.labels, replay.classes))
    # While it is finetuned, a head is on the device.
    prototypes[list(replay.classes)] += shifts.to(prototypes)
    return head.with_prototypes(prototypes)
