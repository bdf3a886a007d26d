"""Which points of the feature space to keep: the μ of the paper's Eq. 7, and the choices of its Table 3."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

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
    """Draw ``quota`` of ``n`` indices without repetition, or all where there are fewer; sorted."""
    return torch.randperm(n, generator=rng)[:quota].sort().values


def random_anchors(features: Tensor, quota: int, rng: torch.Generator) -> Tensor:
    """Keep features drawn at random without repetition."""
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
        # Imported here: it takes half a second that the other selections need not pay.
        from sklearn.cluster import KMeans as Clustering

        n_clusters = min(self.n_clusters, len(features), quota)
        seed = int(torch.randint(2**31, (1,), generator=rng))
        found = Clustering(n_clusters, n_init=10, random_state=seed).fit(features.double().numpy())
        centroids = torch.from_numpy(found.cluster_centers_).to(features)
        return centroids[torch.arange(min(quota, len(features))) % n_clusters]


SELECTIONS: dict[str, Selection] = {
    "random": random_anchors,
    "closest": Closest(),
    "kmeans": KMeans(),
    "random-closest-30": RandomClosest(0.3),
    "random-closest-50": RandomClosest(0.5),
    "random-closest-70": RandomClosest(0.7),
}


def selection(name: str, measure: str = "cosine") -> Selection:
    """Return one of ``SELECTIONS``, by one of ``MEASURES`` where it asks for what is close.

    Examples
    --------
    >>> selection("random-closest-30", "euclidean").share
    0.3
    """
    found = SELECTIONS[name]
    return replace(found, measure=MEASURES[measure]) if isinstance(found, Closest | RandomClosest) else found
