"""Mahalanobis distance to prototypes, by a shrunk within-class covariance of what is kept of each class.

The anchors that are kept to be inverted also tell how features of one class scatter around their mean. One
covariance, shared by all classes and drawn towards a sphere, turns cosine into Mahalanobis distance, at no
price in memory (after Goswami et al., FeCAM, NeurIPS 2023, who keep a covariance per class of all samples).
Where the features are several views side by side, each is measured by itself and has the same vote.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.heads import Cosine, class_means
from anchorinv.core.types import Batch, State, columns
from anchorinv.core.views import sizes_of

#: How strongly the covariance is drawn towards a sphere: as if so many more samples had been seen on one. Few
#: samples are thus trusted little, and many much; results hardly change between 50 and 200.
PRIOR = 100.0


class Scatter(nn.Module):
    """How samples of a class differ from their mean in one view.

    Parameters
    ----------
    directions : (n_directions, dim) orthonormal, along which samples of a class differ.
    shares : (n_directions,) what is left of a difference along each; all others are left as they are.
    unit : the typical distance of a sample from its mean, which counts as 1. Thousands of dimensions are far
        from independent, and -½ · distance² itself would be sure of everything.
    """

    def __init__(self, directions: Tensor, shares: Tensor, unit: Tensor) -> None:
        super().__init__()
        self.directions: Tensor
        self.shares: Tensor
        self.unit: Tensor
        self.register_buffer("directions", directions)
        self.register_buffer("shares", shares)
        self.register_buffer("unit", unit)

    @classmethod
    def of(cls, apart: Tensor, *, prior: float) -> "Scatter":
        """Measure by differences (n, dim) of samples from the mean of their class.

        The covariance is (1 - a) · C + a · t · I, where C is that of the differences, t its mean variance and
        a = prior / (prior + n).
        """
        drawn = prior / (prior + len(apart))
        # Of more dimensions than samples, only those that samples span have a variance of their own.
        _, lengths, directions = torch.linalg.svd(apart / len(apart) ** 0.5, full_matrices=False)
        variances = lengths.square()
        sphere = drawn * variances.sum() / apart.shape[1]
        shares = torch.sqrt(sphere / ((1 - drawn) * variances + sphere))
        # In the directions themselves, where a difference has the length that its variance says.
        unit = (shares * lengths).square().sum().sqrt()
        return cls(directions.contiguous(), shares, unit)

    @classmethod
    def unknown(cls, prototypes: Tensor) -> "Scatter":
        """Return a sphere as large as prototypes (n, dim) are apart: of single samples nothing is known."""
        apart = (prototypes - prototypes.mean(0)).square().sum(1).mean().sqrt()
        unit = torch.where(apart > 0, apart, torch.ones_like(apart))
        return cls(prototypes[:0].clone(), prototypes.new_zeros(0), unit)

    def forward(self, values: Tensor) -> Tensor:
        """Return values (n, dim) in a space where every class is about as wide in all directions."""
        along = values @ self.directions.T
        evened: Tensor = (values - (along * (1 - self.shares)) @ self.directions) / self.unit
        return evened


class MahalanobisHead(Cosine):
    """Prototypes, compared by Mahalanobis distance: logits are -½ · ``scale`` · squared distance.

    New prototypes are placed, and trained, by cosine of the features; the covariance is found anew after it.

    Parameters
    ----------
    prototypes : (n_classes, dim)
    scatters : of the features, and of each view beside them, side by side.
    trust : (n_classes,) of each prototype. The mean of n shots has 1 / n of the covariance itself, and a
        class looks further away than it is: its squared distances count n / (n + 1).
    """

    def __init__(
        self, prototypes: Tensor, scatters: Sequence[Scatter], trust: Tensor, *, scale: float = 16.0
    ) -> None:
        width = scatters[0].directions.shape[1]
        super().__init__(prototypes[:0].clone(), prototypes, scale=scale, width=width)
        self.scatters = nn.ModuleList(scatters)
        self.trust: Tensor
        self.register_buffer("trust", trust)

    @property
    def sizes(self) -> list[int]:
        """Columns of the features, and of each view."""
        return [int(scatter.get_buffer("directions").shape[1]) for scatter in self.scatters]

    @property
    def measured(self) -> list[Scatter]:
        """The scatters, as a list."""
        return [scatter for scatter in self.scatters if isinstance(scatter, Scatter)]

    def likeness(self, some: Tensor, others: Tensor) -> Tensor:
        """Return minus the squared distance of features (n, dim) and others (m, dim), averaged over views."""
        # Products instead of differences; that features far from zero lose digits does not matter for ranks.
        centre = self.prototypes.mean(0)
        parts = [torch.split(values - centre, self.sizes, dim=1) for values in (some, others)]
        total = some.new_zeros(len(some), len(others))
        for scatter, mine, theirs in zip(self.scatters, *parts, strict=True):
            mine, theirs = scatter(mine), scatter(theirs)
            squares = mine.square().sum(1, keepdim=True) + theirs.square().sum(1)
            total = total + (2 * mine @ theirs.T - squares)
        return total / len(self.scatters)

    def forward(self, features: Tensor) -> Tensor:
        """Return -½ · ``scale`` · squared distance to each prototype (n, n_classes)."""
        return 0.5 * self.scale * self.trust * self.likeness(features, self.prototypes)

    def with_prototypes(self, prototypes: Tensor, *, width: int | None = None) -> "MahalanobisHead":
        """Return these prototypes (n_classes, dim) with the same covariance."""
        return MahalanobisHead(prototypes.detach().clone(), self.measured, self.trust, scale=self.scale)


class Whitened(MahalanobisHead):
    """The same space, compared by cosine from the middle of all prototypes: a nearest mean, whitened."""

    def likeness(self, some: Tensor, others: Tensor) -> Tensor:
        """Return the cosine of features (n, dim) and others (m, dim), averaged over views (n, m)."""
        centre = self.prototypes.mean(0)
        parts = [torch.split(values - centre, self.sizes, dim=1) for values in (some, others)]
        cosines = [
            F.normalize(scatter(mine)) @ F.normalize(scatter(theirs)).T
            for scatter, mine, theirs in zip(self.scatters, *parts, strict=True)
        ]
        return torch.stack(cosines).mean(0)

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · cosine (n, n_classes)."""
        return self.scale * self.likeness(features, self.prototypes)

    def with_prototypes(self, prototypes: Tensor, *, width: int | None = None) -> "Whitened":
        """Return these prototypes (n_classes, dim) with the same covariance."""
        return Whitened(prototypes.detach().clone(), self.measured, self.trust, scale=self.scale)


@dataclass(frozen=True, slots=True)
class FitMahalanobis:
    """Judge by Mahalanobis distance, the covariance being that of what is kept of each class.

    Parameters
    ----------
    prior : how strongly it is drawn towards a sphere.
    by_angle : compare by cosine in the same space instead; trust in prototypes then plays no part.
    """

    prior: float = PRIOR
    by_angle: bool = False

    def __call__(self, state: State, features: Batch) -> MahalanobisHead:
        """Return the head of a state whose prototypes are compared by Mahalanobis distance."""
        head = state.head
        if not isinstance(head, Cosine):
            raise TypeError(f"prototypes belong to a Cosine head, not to a {type(head).__name__}")
        counts = state.columns(features.labels).bincount(minlength=len(state.classes))
        return mahalanobis_head(
            head.prototypes,
            features,
            trust=trust_in(counts, state.n_base),
            views=sizes_of(state),
            prior=self.prior,
            scale=head.scale,
            kind=Whitened if self.by_angle else MahalanobisHead,
        )


def trust_in(counts: Tensor, n_base: int) -> Tensor:
    """Return n / (n + 1) for new classes of n shots; of base classes all samples were averaged, not a few."""
    trust = counts / (counts + 1)
    trust[:n_base] = 1.0
    return trust


def mahalanobis_head(
    prototypes: Tensor,
    samples: Batch,
    *,
    trust: Tensor,
    views: Sequence[int] = (),
    prior: float = PRIOR,
    scale: float = 16.0,
    kind: type[MahalanobisHead] = MahalanobisHead,
) -> MahalanobisHead:
    """Return a head by how samples (n, dim) scatter around the mean of their class.

    Parameters
    ----------
    trust : (n_classes,) in each prototype.
    views : how many of the last columns each view takes; the features are before them.
    """
    if not prior > 0:
        raise ValueError(f"prior (={prior}) must be above 0")
    places = columns(samples.labels, samples.classes)
    apart = samples.values - class_means(samples.values, places)[places]
    sizes = [apart.shape[1] - sum(views), *views]
    parts = zip(torch.split(apart, sizes, dim=1), torch.split(prototypes.detach(), sizes, dim=1), strict=True)
    scatters = [
        Scatter.of(part, prior=prior) if part.abs().max() > 0 else Scatter.unknown(means)
        for part, means in parts
    ]
    return kind(prototypes.detach().clone(), scatters, trust.to(prototypes), scale=scale)
