"""A linear discriminant on sufficient statistics: of each class a count, a mean and a scatter, no sample.

Classes share one within-class covariance. A class mean is known as well as its examples are many: the mean of
ten is drawn towards the middle of the classes as far as base classes say that classes lie there, and what is
left uncertain widens the class (probabilistic linear discriminant analysis: Ioffe, ECCV 2006). Everything
follows from the statistics in closed form, so the order in which examples come does not matter, and a class
is forgotten exactly.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.heads import StatisticalHead

#: New classes lie further apart than base classes do: the variance between means is taken so many times.
BETWEEN = 4.0
#: How much of the log-determinant counts. Features are less Gaussian than their covariance says; all of it
#: keeps new classes down, none of it lets them win too often.
DETERMINANT = 0.5
_LEAST = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """What the statistics amount to, as matrices that features are multiplied by.

    Parameters
    ----------
    centre : Tensor, shape (dim,)
        The mean of the base classes' means.
    whitening : Tensor, shape (dim, dim)
        Makes the within-class covariance the identity.
    axes : Tensor, shape (n_axes, dim)
        Orthonormal directions, after whitening, in which base classes differ.
    means : Tensor, shape (n_classes, dim)
        Expected, after centring and whitening.
    along, across : Tensor, shape (n_classes, n_axes) and (n_classes,)
        Variance of a window of each class along each axis, and in all other directions.
    """

    centre: Tensor
    whitening: Tensor
    axes: Tensor
    means: Tensor
    along: Tensor
    across: Tensor


class Discriminant(StatisticalHead):
    """Log-densities of classes, each a Gaussian with its own mean and the covariance of all.

    Parameters
    ----------
    counts : Tensor, shape (n_classes,), int64
    means : Tensor, shape (n_classes, dim)
    scatters : Tensor, shape (n_classes, dim (dim + 1) / 2)
        Upper triangles of the sums of squares and products around the mean.
    n_base : int
        The first so many classes say how classes differ.
    shrinkage : float
        In [0, 1]: how far the within-class covariance is drawn to a sphere.
    prior : bool
        False takes means as they are, with squared distances n / (n + 1): the textbook's discriminant.
    scale : float
        What log-densities are multiplied by before the softmax: features are not independent.
    centring : float
        What rehearsal says that centring an unseen person's windows brings; nan where it is not known.
    """

    def __init__(
        self,
        counts: Tensor,
        means: Tensor,
        scatters: Tensor,
        *,
        n_base: int,
        shrinkage: float,
        prior: bool = True,
        scale: float = 1.0,
        centring: float = math.nan,
    ) -> None:
        super().__init__()
        self.counts: Tensor
        self.means: Tensor
        self.scatters: Tensor
        self.register_buffer("counts", counts)
        self.register_buffer("means", means)
        self.register_buffer("scatters", scatters)
        self.n_base, self.shrinkage, self.prior = n_base, shrinkage, prior
        self.scale, self.centring = scale, centring
        self._solution: Solution | None = None

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
        weights = self.counts[: self.n_base].double()
        return (weights @ self.means[: self.n_base].double() / weights.sum()).to(self.means)

    def learned(self, features: Tensor, targets: Tensor) -> "Discriminant":
        """Return the discriminant after more examples, whatever their order and grouping.

        Parameters
        ----------
        features : Tensor, shape (n, dim)
        targets : Tensor, shape (n,)
            Columns of known classes, or of new ones behind them.
        """
        n_classes = max(len(self.counts), int(targets.max()) + 1 if len(targets) else 0)
        missing = n_classes - len(self.counts)
        counts = F.pad(self.counts, (0, missing))
        means, scatters = (F.pad(each, (0, 0, 0, missing)).clone() for each in (self.means, self.scatters))
        for target in sorted(set(targets.tolist())):
            own = features[targets == target].double()
            mean = own.mean(0)
            n, m = int(counts[target]), len(own)
            step = mean - means[target].double()
            centred = own - mean
            scatter = triangle_of(centred.T @ centred + (n * m / (n + m)) * torch.outer(step, step))
            means[target] = (means[target].double() + step * (m / (n + m))).to(means)
            scatters[target] = (scatters[target].double() + scatter).to(scatters)
            counts[target] = n + m
        return self._with(counts, means, scatters, self.n_base)

    def without(self, column: int) -> "Discriminant":
        """Return the discriminant as if a class had never been learned."""
        kept = [i for i in range(len(self.counts)) if i != column]
        n_base = self.n_base - (column < self.n_base)
        return self._with(self.counts[kept], self.means[kept], self.scatters[kept], n_base)

    def _with(self, counts: Tensor, means: Tensor, scatters: Tensor, n_base: int) -> "Discriminant":
        return Discriminant(
            counts,
            means,
            scatters,
            n_base=n_base,
            shrinkage=self.shrinkage,
            prior=self.prior,
            scale=self.scale,
            centring=self.centring,
        )

    @property
    def solution(self) -> Solution:
        """What the statistics amount to; found when it is first asked for."""
        if self._solution is None:
            self._solution = self._solved()
        return self._solution

    def _apply(self, fn: object, recurse: bool = True) -> Self:
        self._solution = None  # it belongs to the tensors as they were
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    @torch.no_grad()
    def _solved(self) -> Solution:
        counts, means = self.counts.double(), self.means.double()
        dim = means.shape[1]
        pooled = square_of(self.scatters.double().sum(0), dim) / (counts.sum() - len(counts)).clamp(min=1)
        level = pooled.diagonal().mean()
        if not level > 0:  # of single windows: nothing is known but how far classes are apart
            level = (means - means.mean(0)).square().mean().clamp(min=_LEAST)
        sphere = (self.shrinkage + _LEAST) * level * torch.eye(dim).to(pooled)
        factor, failed = torch.linalg.cholesky_ex((1 - self.shrinkage) * pooled + sphere)
        if failed or not factor.isfinite().all():
            raise ValueError(
                "the statistics of the classes are no covariance: they are damaged, or features are far too "
                "large; use an earlier copy of the model, or train it anew"
            )
        whitening = torch.linalg.solve_triangular(factor, torch.eye(dim).to(factor), upper=False).T
        base = means[: self.n_base] if self.n_base > 1 else means
        n_base = counts[: len(base)]
        centre = base.mean(0)
        placed, differing = (means - centre) @ whitening, (base - centre) @ whitening
        if not self.prior:
            axes = differing[:0]
            spread = 1 + 1 / counts
            along, expected = placed[:, :0], placed
        else:
            axes, along_axes, elsewhere = _between(differing, n_base)
            along, across = (_predictive(each, counts) for each in (along_axes, elsewhere[None]))
            spread = across[:, 0]
            on_axes = placed @ axes.T
            drawn, rest = (_drawn(each, counts) for each in (along_axes, elsewhere[None]))
            expected = rest * (placed - on_axes @ axes) + (drawn * on_axes) @ axes
        like = self.means
        return Solution(*(each.to(like) for each in (centre, whitening, axes, expected, along, spread)))

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · log-densities up to a constant (n, n_classes)."""
        found = self.solution
        placed = (features - found.centre) @ found.whitening  # (n, dim)
        on_axes = placed @ found.axes.T
        means_on_axes = found.means @ found.axes.T
        squares = (
            placed.square().sum(1, keepdim=True) - 2 * placed @ found.means.T + found.means.square().sum(1)
        )
        on = (
            on_axes.square().sum(1, keepdim=True)
            - 2 * on_axes @ means_on_axes.T
            + means_on_axes.square().sum(1)
        )
        weights = 1 / found.along
        along = (
            on_axes.square() @ weights.T
            - 2 * on_axes @ (weights * means_on_axes).T
            + (weights * means_on_axes.square()).sum(1)
        )
        distances = along + (squares - on) / found.across
        if self.prior:
            n_others = placed.shape[1] - len(found.axes)
            distances = distances + DETERMINANT * (found.along.log().sum(1) + n_others * found.across.log())
        return -0.5 * self.scale * distances

    def likeness(self, some: Tensor, others: Tensor) -> Tensor:
        """Return minus the squared Mahalanobis distance of features (n, dim) and others (m, dim)."""
        whitening = self.solution.whitening
        return -torch.cdist(some @ whitening, others @ whitening).square()


def _between(differing: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the axes in which whitened base means differ, the variance along them, and in all others.

    Of few classes the axes are mostly theirs: their variance is drawn to a sphere by 2 / n_classes.
    """
    n_classes, dim = differing.shape
    _, lengths, axes = torch.linalg.svd(differing / (n_classes - 1) ** 0.5, full_matrices=False)
    variances, axes = lengths[: n_classes - 1].square(), axes[: n_classes - 1]
    # Without what the means vary by because they are means of a few windows.
    level = (variances.sum() / dim - (1 / counts).mean()).clamp(min=1e-3)
    drawn = min(1.0, 2 / n_classes)
    elsewhere: Tensor = BETWEEN * drawn * level
    return axes, BETWEEN * (1 - drawn) * variances + elsewhere, elsewhere


def _drawn(between: Tensor, counts: Tensor) -> Tensor:
    """Return what is left of a mean's place (n_classes, n_axes) where means vary by ``between``."""
    return between / (between + 1 / counts[:, None])


def _predictive(between: Tensor, counts: Tensor) -> Tensor:
    """Return the variance of a window of each class (n_classes, n_axes), its mean being uncertain."""
    return 1 + between / (1 + counts[:, None] * between)


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
