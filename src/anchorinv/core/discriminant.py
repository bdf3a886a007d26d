"""A linear discriminant on sufficient statistics: count, mean and scatter of each class, no samples.

Classes share one within-class covariance, and their means have a prior estimated from the base classes, see
``posterior.py``. Everything follows from the statistics in closed form, so the order of examples does not
matter, and a class is forgotten exactly.
"""

import math
from typing import Annotated, Any, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from anchorinv.core.heads import (
    Count,
    Expected,
    HeadFacts,
    Scale,
    StatisticalHead,
    register_head,
    without_row,
)
from anchorinv.core.posterior import Posterior, Statistics, posterior_of
from anchorinv.core.types import Batch


@register_head
class Discriminant(StatisticalHead):
    """Log-densities of classes, each with its own mean and the within-class covariance of all.

    Parameters
    ----------
    counts : Tensor, shape (n_classes,), int64
        Examples of each class; float64, the sums of their weights, where examples had some.
    means : Tensor, shape (n_classes, dim)
        Of the examples of each class.
    scatters : Tensor, shape (n_classes, dim (dim + 1) / 2)
        Upper triangles of the scatter matrices: sums of squares and products around the mean.
    n_base : int
        Number of base classes, which come first; their means determine the prior.
    shrinkage : float
        In [0, 1]: shrinkage of the within-class covariance towards a sphere.
    prior : bool, default=True
        Whether means have a prior. False is the textbook discriminant, with squared distances scaled by
        n / (n + 1).
    student : bool, default=True
        Whether densities are Student's t where means have a prior; False is a Gaussian, as in model files of
        earlier versions.
    scale : float, default=1.0
        Factor of the log-densities before the softmax, as features are not independent.
    centring : float, default=nan
        Gain from centring an unseen person's windows, in rehearsal; nan where unknown.

    Examples
    --------
    >>> head = Discriminant.empty(2, n_base=2, shrinkage=0.1)
    >>> features = torch.tensor([[0.0, 0.0], [0.0, 1.0], [5.0, 0.0], [5.0, 1.0]])
    >>> head = head.learned(features, torch.tensor([0, 0, 1, 1]))
    >>> head(torch.tensor([[4.0, 0.5]])).argmax(1).tolist(), head.counts.tolist()
    ([1], [2, 2])
    """

    kind = "discriminant"
    parts = ("counts", "means", "scatters")
    n_statistics = 5

    class Facts(HeadFacts):
        """All settings, centring where it is known."""

        n_base: Count
        shrinkage: Annotated[float, Field(ge=0, le=1)]
        prior: bool
        student: bool = False
        scale: Scale
        centring: Annotated[float, Field(ge=-1, le=1)] | None = None

    def __init__(
        self,
        counts: Tensor,
        means: Tensor,
        scatters: Tensor,
        *,
        n_base: int,
        shrinkage: float,
        prior: bool = True,
        student: bool = True,
        scale: float = 1.0,
        centring: float = math.nan,
    ) -> None:
        super().__init__()
        self.means: Tensor
        self.scatters: Tensor
        self.register_buffer("counts", counts)
        self.register_buffer("means", means)
        self.register_buffer("scatters", scatters)
        self.n_base, self.shrinkage, self.prior = n_base, shrinkage, prior
        self.student, self.scale, self.centring = prior and student, scale, centring
        self._posterior: Posterior | None = None

    @classmethod
    def empty(cls, dim: int, *, n_base: int, shrinkage: float, **settings: Any) -> Self:
        """Return a discriminant that knows no class yet; settings are those of the class."""
        counts = torch.zeros(0, dtype=torch.int64)
        means, scatters = torch.zeros(0, dim), torch.zeros(0, dim * (dim + 1) // 2)
        return cls(counts, means, scatters, n_base=n_base, shrinkage=shrinkage, **settings)

    @property
    def prototypes(self) -> Tensor:
        """The means (n_classes, dim)."""
        return self.means

    @property
    def middle(self) -> Tensor:
        """The mean of all base windows (dim,)."""
        return self.statistics.middle

    @property
    def statistics(self) -> Statistics:
        """Those of all classes; the scatter is a matrix."""
        scatter = square_of(self.scatters.double().sum(0), self.means.shape[1])
        return Statistics(self.counts, self.means, scatter, self.n_base)

    def learned(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> "Discriminant":
        """Return the discriminant after more examples, whatever their order and grouping.

        Parameters
        ----------
        features : Tensor, shape (n, dim)
        targets : Tensor, shape (n,)
            Columns of known classes, or of new ones behind them.
        weights : Tensor, shape (n,), or None, default=None
            An example with a weight of 2 counts as two; None counts each as one.
        """
        missing = self.n_unknown(targets)
        counts = F.pad(self.counts, (0, missing))
        counts = counts if weights is None else counts.double()
        means, scatters = (F.pad(each, (0, 0, 0, missing)).clone() for each in (self.means, self.scatters))
        for target in sorted(set(targets.tolist())):
            own = features[targets == target].double()
            n, m, mean = counts[target].item(), float(len(own)), own.mean(0)
            scaled = centred = own - mean
            if weights is not None:
                shares = weights[targets == target].double()
                m, mean = float(shares.sum()), shares @ own / shares.sum()
                centred = own - mean
                scaled = shares[:, None] * centred
            step = mean - means[target].double()
            scatter = triangle_of(scaled.T @ centred + (n * m / (n + m)) * torch.outer(step, step))
            means[target] = (means[target].double() + step * (m / (n + m))).to(means)
            scatters[target] = (scatters[target].double() + scatter).to(scatters)
            counts[target] = n + m
        return self._with(counts, means, scatters, self.n_base)

    def without(self, column: int, anchors: Batch | None = None) -> "Discriminant":
        """Return the discriminant as if a class had never been learned."""
        counts, means = without_row(self.counts, column), without_row(self.means, column)
        n_base = self.n_base - (column < self.n_base)
        return self._with(counts, means, without_row(self.scatters, column), n_base)

    def of(self, columns: list[int], n_base: int) -> "Discriminant":
        """Return the discriminant of some classes, in this order, the first ``n_base`` as base classes."""
        return self._with(self.counts[columns], self.means[columns], self.scatters[columns], n_base)

    def _with(self, counts: Tensor, means: Tensor, scatters: Tensor, n_base: int) -> "Discriminant":
        return Discriminant(
            counts,
            means,
            scatters,
            n_base=n_base,
            shrinkage=self.shrinkage,
            prior=self.prior,
            student=self.student,
            scale=self.scale,
            centring=self.centring,
        )

    def fits(self, expected: Expected) -> bool:
        """Return whether every class has a count, a mean and a scatter matrix."""
        n_classes, dim = expected.n_classes, expected.dim
        return (
            self.has_examples(n_classes)
            and self.means.shape == (n_classes, dim)
            and self.scatters.shape == (n_classes, dim * (dim + 1) // 2)
            and self.n_base == expected.n_base
        )

    @classmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return those of a mean and a scatter matrix per class."""
        return n_classes * (dim + dim * (dim + 1) // 2)

    @property
    def posterior(self) -> Posterior:
        """What follows from the statistics; computed when it is first asked for."""
        if self._posterior is None:
            self._posterior = posterior_of(
                self.statistics, shrinkage=self.shrinkage, prior=self.prior, student=self.student
            )
        return self._posterior

    def prepare(self) -> None:
        """Solve for the posterior of the means; an error if the statistics are not a covariance."""
        _ = self.posterior

    def _apply(self, fn: object, recurse: bool = True) -> Self:
        self._posterior = None  # it belongs to the old tensors
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · log-densities up to a constant (n, n_classes)."""
        posterior = self.posterior
        return self.scale * posterior.log_densities(posterior.distances(features))

    def novelty(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return five statistics of each window (n, 5), large for new ones, and the nearest class (n,).

        The log-likelihood ratio of an unknown class, distributed like the base classes, and the nearest
        known one; the log of the squared distance to that; and the same in those directions alone in which
        windows of a class differ most, in the first two of these, and in those where they differ least.
        """
        return self.posterior.novelty(self.posterior.distances(features))

    def answers(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (n, n_classes) and what :meth:`novelty` returns, by the same distances."""
        posterior = self.posterior
        distances = posterior.distances(features)
        return self.scale * posterior.log_densities(distances), *posterior.novelty(distances)

    def answers_of_one(self, features: Tensor) -> tuple[Tensor, list[float], int]:
        """Return :meth:`answers` to one window, as of a live source: logits (1, n_classes), plain numbers."""
        posterior = self.posterior
        distances = posterior.distances(features)
        return self.scale * posterior.log_densities(distances), *posterior.novelty_of_one(distances)

    def similarity(self, some: Tensor, others: Tensor) -> Tensor:
        """Return minus the squared Mahalanobis distance of features (n, dim) and others (m, dim)."""
        whitening = self.posterior.whitening
        return -torch.cdist(some @ whitening, others @ whitening).square()


def triangle_of(matrix: Tensor) -> Tensor:
    """Return the upper triangle (dim (dim + 1) / 2,) of a symmetric matrix (dim, dim)."""
    rows, cols = torch.triu_indices(len(matrix), len(matrix), device=matrix.device)
    return matrix[rows, cols]


def square_of(triangle: Tensor, dim: int) -> Tensor:
    """Return the symmetric matrix (dim, dim) that has an upper triangle."""
    rows, cols = torch.triu_indices(dim, dim, device=triangle.device)
    matrix = triangle.new_zeros(dim, dim)
    matrix[rows, cols] = triangle
    matrix[cols, rows] = triangle
    return matrix
