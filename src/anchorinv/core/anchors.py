"""Which points of the feature space to keep: the μ of the paper's Eq. 7, and the choices of its Table 3."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

#: (features (n, dim) of one class, how many, rng) -> anchors (at most that many, dim).
Selection = Callable[[Tensor, int, torch.Generator], Tensor]


def random_indices(n: int, quota: int, rng: torch.Generator) -> Tensor:
    """Draw ``quota`` of ``n`` indices without repetition, or all where there are fewer; sorted."""
    return torch.randperm(n, generator=rng)[:quota].sort().values


def random_anchors(features: Tensor, quota: int, rng: torch.Generator) -> Tensor:
    """Keep features drawn at random without repetition."""
    return features[random_indices(len(features), quota, rng)]


def closest_anchors(features: Tensor, quota: int, rng: torch.Generator) -> Tensor:
    """Keep the features closest to the class's prototype, the nearest first."""
    return features[_by_distance(features)[:quota]]


@dataclass(frozen=True, slots=True)
class RandomClosest:
    """Keep features drawn at random from the ``share`` of them that lies closest to the prototype."""

    share: float

    def __call__(self, features: Tensor, quota: int, rng: torch.Generator) -> Tensor:
        """Return the anchors of one class."""
        near = features[_by_distance(features)[: max(1, round(self.share * len(features)))]]
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
    "closest": closest_anchors,
    "kmeans": KMeans(),
    "random-closest-30": RandomClosest(0.3),
    "random-closest-50": RandomClosest(0.5),
    "random-closest-70": RandomClosest(0.7),
}


def _by_distance(features: Tensor) -> Tensor:
    """Return the order of features by cosine to their mean, the classifier's own distance."""
    prototype = features.mean(0, keepdim=True)
    return torch.cosine_similarity(features, prototype).argsort(descending=True, stable=True)
