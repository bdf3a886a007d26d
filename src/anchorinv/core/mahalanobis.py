"""Mahalanobis distance to prototypes, by a shrunk pooled within-class covariance of the anchors.

Anchors also show how the features of a class vary around their mean. One covariance, pooled over classes and
shrunk towards a sphere, replaces the cosine by the Mahalanobis distance without additional memory (after
Goswami et al., FeCAM, NeurIPS 2023, who keep a covariance per class of all samples). Several views of a
signal are compared separately, with equal weight.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from anchorinv.core.blocks import view_sizes
from anchorinv.core.heads import (
    Expected,
    PrototypeHead,
    ScaleFacts,
    class_means,
    prototype_head,
    register_head,
    without_row,
)
from anchorinv.core.types import Batch, State, columns

#: Shrinkage towards a sphere, as a number of pseudo-samples. Results hardly change between 50 and 200.
SHRINKAGE = 100.0


class ShrunkCovariance(nn.Module):
    """A shrunk within-class covariance of one view, stored as a whitening transform.

    Parameters
    ----------
    eigenvectors : Tensor, shape (n_eigenvectors, dim)
        Orthonormal, of the covariance before it was shrunk.
    gains : Tensor, shape (n_eigenvectors,)
        Factor of a difference along each; other directions are unchanged.
    scale : Tensor, shape ()
        The typical distance of a sample from its mean, which becomes 1: thousands of dependent dimensions
        would otherwise make every prediction overconfident.

    Examples
    --------
    >>> residuals = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> ShrunkCovariance.fit(residuals, shrinkage=4.0).gains
    tensor([0.5976, 0.9129])
    """

    eigenvectors: Tensor
    gains: Tensor
    scale: Tensor

    def __init__(self, eigenvectors: Tensor, gains: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("eigenvectors", eigenvectors)
        self.register_buffer("gains", gains)
        self.register_buffer("scale", scale)

    @classmethod
    def fit(cls, residuals: Tensor, *, shrinkage: float) -> "ShrunkCovariance":
        """Return (1 - a) · C + a · t · I, where C is the covariance of the residuals, t its mean variance.

        Residuals (n, dim) are differences of samples from the mean of their class; the shrinkage is in
        samples: a = shrinkage / (shrinkage + n).
        """
        weight = shrinkage / (shrinkage + len(residuals))
        # With more dimensions than samples, only the span of the samples has its own variance.
        _, deviations, eigenvectors = torch.linalg.svd(residuals / len(residuals) ** 0.5, full_matrices=False)
        variances = deviations.square()
        sphere = weight * variances.sum() / residuals.shape[1]
        gains = torch.sqrt(sphere / ((1 - weight) * variances + sphere))
        # Gains along the eigenvectors, by their variances.
        scale = (gains * deviations).square().sum().sqrt()
        return cls(eigenvectors.contiguous(), gains, scale)

    @classmethod
    def unknown(cls, prototypes: Tensor) -> "ShrunkCovariance":
        """Return a sphere scaled by the distances of prototypes (n, dim): single samples have no spread."""
        spread = (prototypes - prototypes.mean(0)).square().sum(1).mean().sqrt()
        scale = torch.where(spread > 0, spread, torch.ones_like(spread))
        return cls(prototypes[:0].clone(), prototypes.new_zeros(0), scale)

    def forward(self, values: Tensor) -> Tensor:
        """Return whitened values (n, dim)."""
        along = values @ self.eigenvectors.T
        whitened: Tensor = (values - (along * (1 - self.gains)) @ self.eigenvectors) / self.scale
        return whitened

    def fits(self, dim: int, n_samples: int) -> bool:
        """Return whether it is valid for features of a size and a number of samples."""
        n, shape = len(self.gains), self.eigenvectors.shape
        sizes = shape == (n, dim) and n <= min(dim, n_samples)
        return sizes and self.gains.ndim == 1 and not self.scale.ndim and bool(self.scale > 0)


class CovarianceHead(PrototypeHead):
    """Prototypes compared in a whitened space, with a covariance for each view.

    Parameters
    ----------
    prototypes : Tensor, shape (n_classes, dim)
        Means of the classes.
    covariances : sequence of ShrunkCovariance
        Of the features, and of each view.
    shot_correction : Tensor, shape (n_classes,)
        Factor of squared distances. The mean of n shots has 1 / n of the covariance itself, which inflates
        distances: n / (n + 1).
    scale : float, default=16.0
        Factor of distances or cosines before the softmax.
    shrinkage : float or None, default=None
        Shrinkage of the covariances, in samples; None for the default of 100.
    """

    names_in_files: ClassVar = {
        "covariances": "scatters",
        "eigenvectors": "directions",
        "gains": "shares",
        "scale": "unit",
        "shot_correction": "trust",
    }

    class Facts(ScaleFacts):
        """Scale, and the shrinkage if it is not the default."""

        shrinkage: Annotated[float, Field(gt=0, le=1e30)] | None = None

    def __init__(
        self,
        prototypes: Tensor,
        covariances: Sequence[ShrunkCovariance],
        shot_correction: Tensor,
        *,
        scale: float = 16.0,
        shrinkage: float | None = None,
    ) -> None:
        width = covariances[0].eigenvectors.shape[1]
        super().__init__(prototypes[:0].clone(), prototypes, scale=scale, width=width)
        self.covariances = nn.ModuleList(covariances)
        self.shot_correction: Tensor
        self.register_buffer("shot_correction", shot_correction)
        self.shrinkage = None if shrinkage == SHRINKAGE else shrinkage

    @classmethod
    def blank(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Return a head of the packed sizes, with as many covariances as there are."""
        covariances: list[ShrunkCovariance] = []
        while (name := f"covariances.{len(covariances)}") and cls._in_files(f"{name}.scale") in tensors:
            shells = cls.shells(tensors, f"{name}.eigenvectors", f"{name}.gains", f"{name}.scale")
            covariances.append(ShrunkCovariance(*shells))
        prototypes, shot_correction = cls.shells(tensors, "fixed", "shot_correction")
        return cls(prototypes, covariances, shot_correction, **settings)

    @property
    def each_covariance(self) -> list[ShrunkCovariance]:
        """The covariances of features and views, as a list."""
        return [each for each in self.covariances if isinstance(each, ShrunkCovariance)]

    @property
    def sizes(self) -> list[int]:
        """Columns of the features, and of each view."""
        return [covariance.eigenvectors.shape[1] for covariance in self.each_covariance]

    def with_prototypes(self, prototypes: Tensor) -> Self:
        """Return these prototypes (n_classes, dim) with the same covariance."""
        return type(self)(
            prototypes.detach().clone(),
            self.each_covariance,
            self.shot_correction,
            scale=self.scale,
            shrinkage=self.shrinkage,
        )

    def without(self, column: int, anchors: Batch | None = None) -> "CovarianceHead":
        """Return the head without a class, refitted, as the covariance contains samples of the class."""
        if anchors is None:
            raise ValueError("the covariance of the other classes needs their anchors, and there are none")
        return fit_covariance_head(
            without_row(self.prototypes, column),
            anchors,
            shot_correction=without_row(self.shot_correction, column),
            views=self.sizes[1:],
            shrinkage=self.shrinkage or SHRINKAGE,
            scale=self.scale,
            kind=type(self),
        )

    def fits(self, expected: Expected) -> bool:
        """Return whether each view has a valid covariance for the number of anchors."""
        if not super().fits(expected) or self.shot_correction.shape != (expected.n_classes,):
            return False
        pairs = zip(self.each_covariance, expected.sizes, strict=False)
        return len(self.covariances) == len(expected.sizes) and all(
            covariance.fits(size, expected.n_anchors) for covariance, size in pairs
        )

    @classmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return those of a prototype per class and an eigenvector per anchor."""
        return (n_classes + n_anchors) * dim

    @abstractmethod
    def compared(self, some: Tensor, others: Tensor) -> Tensor:
        """Return how similar whitened values (n, size) and others (m, size) of one view are (n, m)."""

    def similarity(self, some: Tensor, others: Tensor) -> Tensor:
        """Return how similar features (n, dim) and others (m, dim) are, averaged over views (n, m)."""
        centre = self.prototypes.mean(0)
        views = (torch.split(features - centre, self.sizes, dim=1) for features in (some, others))
        total = some.new_zeros(some.shape[0], others.shape[0])
        for covariance, mine, theirs in zip(self.covariances, *views, strict=True):
            total = total + self.compared(covariance(mine), covariance(theirs))
        return total / len(self.covariances)


@register_head
class MahalanobisHead(CovarianceHead):
    """Logits are -½ · ``scale`` · squared Mahalanobis distance to the prototypes.

    The parameters are those of :class:`CovarianceHead`.

    Examples
    --------
    >>> sphere = ShrunkCovariance.unknown(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    >>> head = MahalanobisHead(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), [sphere], torch.ones(2), scale=1.0)
    >>> head(torch.tensor([[1.0, 0.0]])).tolist()
    [[-2.0, 0.0]]
    """

    kind = "mahalanobis"
    former_kinds = ("spread",)

    def compared(self, some: Tensor, others: Tensor) -> Tensor:
        """Return minus the squared distances (n, m)."""
        # Products instead of differences; the loss of digits far from zero does not affect ranks.
        squares = some.square().sum(1, keepdim=True) + others.square().sum(1)
        return 2 * some @ others.T - squares

    def forward(self, features: Tensor) -> Tensor:
        """Return -½ · ``scale`` · squared distance to each prototype (n, n_classes)."""
        return 0.5 * self.scale * self.shot_correction * self.similarity(features, self.prototypes)


@register_head
class WhitenedHead(CovarianceHead):
    """Logits are ``scale`` · cosine in the whitened space, centred on the mean of all prototypes.

    The parameters are those of :class:`CovarianceHead`.

    Examples
    --------
    >>> sphere = ShrunkCovariance.unknown(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    >>> head = WhitenedHead(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), [sphere], torch.ones(2), scale=1.0)
    >>> head(torch.tensor([[5.0, 0.0]])).tolist()
    [[-1.0, 1.0]]
    """

    kind = "whitened"

    def compared(self, some: Tensor, others: Tensor) -> Tensor:
        """Return the cosines (n, m)."""
        return F.normalize(some) @ F.normalize(others).T

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · cosine (n, n_classes)."""
        return self.scale * self.similarity(features, self.prototypes)


@dataclass(frozen=True, slots=True)
class FitMahalanobis:
    """Fit a head to the covariance of what is kept of each class."""

    shrinkage: float = SHRINKAGE
    #: Compare by cosine in the whitened space, independent of the number of shots.
    by_angle: bool = False

    def __call__(self, state: State, features: Batch) -> CovarianceHead:
        """Return the head of a state whose prototypes are compared in the whitened space."""
        head = prototype_head(state.head)
        counts = state.columns(features.labels).bincount(minlength=len(state.classes))
        return fit_covariance_head(
            head.prototypes,
            features,
            shot_correction=shot_correction(counts, state.n_base),
            views=view_sizes(state),
            shrinkage=self.shrinkage,
            scale=head.scale,
            kind=WhitenedHead if self.by_angle else MahalanobisHead,
        )


def shot_correction(counts: Tensor, n_base: int) -> Tensor:
    """Return n / (n + 1) for new classes of n shots; 1 for base classes."""
    correction = counts / (counts + 1)
    correction[:n_base] = 1.0
    return correction


def fit_covariance_head(
    prototypes: Tensor,
    samples: Batch,
    *,
    shot_correction: Tensor,
    views: Sequence[int] = (),
    shrinkage: float = SHRINKAGE,
    scale: float = 16.0,
    kind: type[CovarianceHead] = MahalanobisHead,
) -> CovarianceHead:
    """Return a head by the covariance of samples (n, dim) around the mean of their class.

    ``views`` says how many of the last columns each view takes; the features are before them. The other
    parameters are those of :class:`CovarianceHead`.
    """
    if not shrinkage > 0:
        raise ValueError(f"shrinkage (={shrinkage}) must be above 0")
    places = columns(samples.labels, samples.classes)
    residuals = samples.values - class_means(samples.values, places)[places]
    sizes = [residuals.shape[1] - sum(views), *views]
    parts = zip(
        torch.split(residuals, sizes, dim=1), torch.split(prototypes.detach(), sizes, dim=1), strict=True
    )
    covariances = [
        ShrunkCovariance.fit(part, shrinkage=shrinkage)
        if part.abs().max() > 0
        else ShrunkCovariance.unknown(means)
        for part, means in parts
    ]
    correction = shot_correction.to(prototypes)
    return kind(prototypes.detach().clone(), covariances, correction, scale=scale, shrinkage=shrinkage)
