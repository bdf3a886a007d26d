"""A head that knows the spread: distance to prototypes in units of what samples of one class differ by.

The anchors that are kept to be inverted also tell how features of one class scatter around their mean. One
covariance, shared by all classes and shrunk towards a sphere, turns cosine into Mahalanobis distance, at no
price in memory (after Goswami et al., FeCAM, NeurIPS 2023, who keep a covariance per class of all samples).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorinv.core.heads import Cosine, class_means
from anchorinv.core.types import Batch, State, columns

#: How far the covariance is drawn towards a sphere. Results hardly change between 0.02 and 0.5.
SHRINKAGE = 0.1


class Spread(Cosine):
    """Prototypes, compared by Mahalanobis distance: logits are -½ · ``scale`` · squared distance.

    New prototypes are placed, and trained, by cosine; the spread is measured anew afterwards.

    Parameters
    ----------
    prototypes : (n_classes, dim)
    directions : (n_directions, dim) orthonormal, along which samples of a class differ.
    shares : (n_directions,) what is left of a difference along each; all others are left as they are.
    unit : the typical distance of a sample from its prototype, which counts as 1. Thousands of dimensions
        are far from independent, and -½ · distance² itself would be sure of everything.
    """

    def __init__(
        self, prototypes: Tensor, directions: Tensor, shares: Tensor, unit: Tensor, *, scale: float = 16.0
    ) -> None:
        super().__init__(prototypes[:0].clone(), prototypes, scale=scale)
        self.directions: Tensor
        self.shares: Tensor
        self.unit: Tensor
        self.register_buffer("directions", directions)
        self.register_buffer("shares", shares)
        self.register_buffer("unit", unit)

    def evened(self, features: Tensor) -> Tensor:
        """Return features (n, dim) in a space where every class is about as wide in all directions."""
        along = features @ self.directions.T
        evened: Tensor = (features - (along * (1 - self.shares)) @ self.directions) / self.unit
        return evened

    def forward(self, features: Tensor) -> Tensor:
        """Return -½ · ``scale`` · squared distance to each prototype (n, n_classes)."""
        # Products instead of differences; that features far from zero lose digits does not matter for ranks.
        centre = self.prototypes.mean(0)
        own, prototypes = self.evened(features - centre), self.evened(self.prototypes - centre)
        logits: Tensor = own @ prototypes.T - 0.5 * prototypes.square().sum(1)
        return self.scale * (logits - 0.5 * own.square().sum(1, keepdim=True))

    def with_prototypes(self, prototypes: Tensor) -> "Spread":
        """Return these prototypes (n_classes, dim) with the same spread."""
        return Spread(prototypes.detach().clone(), self.directions, self.shares, self.unit, scale=self.scale)


@dataclass(frozen=True, slots=True)
class BySpread:
    """Judge by Mahalanobis distance, the spread measured on what is kept of each class."""

    shrinkage: float = SHRINKAGE

    def __call__(self, state: State, features: Batch) -> Spread:
        """Return the head of a state whose prototypes are compared in units of the spread."""
        if not isinstance(state.head, Cosine):
            raise TypeError(f"prototypes belong to a Cosine head, not to a {type(state.head).__name__}")
        return spread_of(state.head.prototypes, features, shrinkage=self.shrinkage, scale=state.head.scale)


def spread_of(
    prototypes: Tensor, samples: Batch, *, shrinkage: float = SHRINKAGE, scale: float = 16.0
) -> Spread:
    """Return a head by how samples (n, dim) scatter around the mean of their class.

    The covariance is (1 - a) · C + a · t · I, where C is that of the differences, t its mean variance and a
    the shrinkage.
    """
    if not 0 < shrinkage <= 1:
        raise ValueError(f"shrinkage (={shrinkage}) must be above 0 and at most 1")
    places = columns(samples.labels, samples.classes)
    apart = samples.values - class_means(samples.values, places)[places]
    if not apart.abs().max() > 0:
        raise ValueError(
            "the samples of each class are all alike, so their spread is unknown; keep more anchors"
        )
    # Of more dimensions than samples, only those that samples span have a variance of their own.
    _, lengths, directions = torch.linalg.svd(apart / len(apart) ** 0.5, full_matrices=False)
    variances = lengths.square()
    sphere = shrinkage * variances.sum() / apart.shape[1]
    shares = torch.sqrt(sphere / ((1 - shrinkage) * variances + sphere))
    # In the directions themselves, where a difference has the length that its variance says.
    unit = (shares * lengths).square().sum().sqrt()
    return Spread(prototypes.detach().clone(), directions.contiguous(), shares, unit, scale=scale)
