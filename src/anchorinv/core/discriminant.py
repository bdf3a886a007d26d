"""A linear discriminant on sufficient statistics: of each class a count, a mean and a scatter, no sample.

Classes share one within-class covariance. Class means are Gaussian around the grand mean, with a
between-class covariance that the base classes show. The posterior of a mean known from few examples is
shrunk towards the grand mean, and what is left uncertain of it widens the class (probabilistic linear
discriminant analysis: Ioffe, ECCV 2006). The covariance is an estimate, too: densities are Student's t with
the degrees of freedom that examples leave (Geisser, Posterior Odds for Multivariate Normal Classifications,
J. R. Stat. Soc. B 1964), so that a window far from everything is not drawn to the widest class. Everything
follows from the statistics in closed form, so the order in which examples come does not matter, and a class
is forgotten exactly.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from anchorinv.core.head import Count, Expected, HeadFacts, Scale, StatisticalHead, register_head, without_row
from anchorinv.core.types import Batch

#: New classes lie further apart than base classes do: the between-class variance is multiplied by this.
BETWEEN = 4.0
#: How much of the log-determinant counts, as a share of what fairness asks for, and at the most: all of it
#: keeps new classes down, none of it lets them win too often.
DETERMINANT = 0.75
MOST_DETERMINANT = 0.6
#: ... and of a Gaussian, which model files of former versions have.
_GAUSSIAN_DETERMINANT = 0.5
_LEAST = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The posterior of the classes' means, in a space where the within-class covariance is the identity.

    Parameters
    ----------
    freedom : float
        Degrees of freedom of Student's t; infinite for a Gaussian.
    centre : Tensor, shape (dim,)
        The grand mean: the mean of the base classes' means.
    whitening : Tensor, shape (dim, dim)
        Inverse root of the within-class covariance.
    axes : Tensor, shape (n_axes, dim)
        Orthonormal principal axes of the base classes' means, after whitening.
    means : Tensor, shape (n_classes, dim)
        Posterior means, centred and whitened.
    along, across : Tensor, shape (n_classes, n_axes) and (n_classes,)
        Predictive variance of a window of each class along each axis, and in all other directions.
    offsets : Tensor, shape (n_classes,)
        Added to distances: what of the log-determinants counts.
    """

    freedom: float
    centre: Tensor
    whitening: Tensor
    axes: Tensor
    means: Tensor
    along: Tensor
    across: Tensor
    offsets: Tensor


@register_head
class Discriminant(StatisticalHead):
    """Log-densities of classes, each with its own mean and the within-class covariance of all.

    Parameters
    ----------
    counts : Tensor, shape (n_classes,), int64
        Examples of each class.
    means : Tensor, shape (n_classes, dim)
        Of the examples of each class.
    scatters : Tensor, shape (n_classes, dim (dim + 1) / 2)
        Upper triangles of the scatter matrices: sums of squares and products around the mean.
    n_base : int
        The first so many classes show how class means vary.
    shrinkage : float
        In [0, 1]: of the within-class covariance towards a sphere.
    prior : bool, default=True
        Whether means have a prior. False takes them as they are, with squared distances n / (n + 1): the
        textbook's discriminant.
    student : bool, default=True
        Whether densities are Student's t where means have a prior; False is a Gaussian, as in model files of
        former versions.
    scale : float, default=1.0
        What log-densities are multiplied by before the softmax: features are not independent.
    centring : float, default=nan
        What rehearsal says that centring an unseen person's windows brings; nan where it is not known.

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
        missing = self.n_unknown(targets)
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

    def without(self, column: int, anchors: Batch | None = None) -> "Discriminant":
        """Return the discriminant as if a class had never been learned."""
        counts, means = without_row(self.counts, column), without_row(self.means, column)
        n_base = self.n_base - (column < self.n_base)
        return self._with(counts, means, without_row(self.scatters, column), n_base)

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
    def solution(self) -> Solution:
        """What follows from the statistics; computed when it is first asked for."""
        if self._solution is None:
            self._solution = self._solved()
        return self._solution

    def prepare(self) -> None:
        """Solve for the posterior of the means, or say that the statistics are no covariance."""
        _ = self.solution

    def _apply(self, fn: object, recurse: bool = True) -> Self:
        self._solution = None  # it belongs to the tensors as they were
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    @torch.no_grad()
    def _solved(self) -> Solution:
        counts, means = self.counts.double(), self.means.double()
        whitening = self._whitening(counts, means)
        base = means[: self.n_base] if self.n_base > 1 else means
        centre = base.mean(0)
        observed, base_means = (means - centre) @ whitening, (base - centre) @ whitening
        if not self.prior:
            axes, along = base_means[:0], observed[:, :0]
            across = 1 + 1 / counts
            expected, offsets = observed, torch.zeros_like(counts)
        else:
            axes, between, elsewhere, level = _between(base_means, counts[: len(base)])
            along, rest = (_predictive(each, counts) for each in (between, elsewhere[None]))
            across = rest[:, 0]
            on_axes = observed @ axes.T
            kept_on_axes, kept_elsewhere = (
                _posterior_weight(each, counts) for each in (between, elsewhere[None])
            )
            expected = kept_elsewhere * (observed - on_axes @ axes) + (kept_on_axes * on_axes) @ axes
            n_others = means.shape[1] - len(axes)
            weights = (
                _determinant_weights(level, elsewhere, counts) if self.student else _GAUSSIAN_DETERMINANT
            )
            offsets = weights * (along.log().sum(1) + n_others * across.log())
        solved = (centre, whitening, axes, expected, along, across, offsets)
        freedom = float(counts.sum() - len(counts) - means.shape[1] + 1) if self.student else math.inf
        return Solution(max(1.0, freedom), *(each.to(self.means) for each in solved))

    def _whitening(self, counts: Tensor, means: Tensor) -> Tensor:
        """Return the inverse root (dim, dim) of the shrunk within-class covariance."""
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
        root: Tensor = torch.linalg.solve_triangular(factor, torch.eye(dim).to(factor), upper=False)
        return root.T

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · log-densities up to a constant (n, n_classes)."""
        posterior = self.solution
        means, axes = posterior.means, posterior.axes
        whitened = (features - posterior.centre) @ posterior.whitening  # (n, dim)
        on_axes, means_on_axes = whitened @ axes.T, means @ axes.T
        squares = whitened.square().sum(1, keepdim=True) - 2 * whitened @ means.T + means.square().sum(1)
        on = (
            on_axes.square().sum(1, keepdim=True)
            - 2 * on_axes @ means_on_axes.T
            + means_on_axes.square().sum(1)
        )
        precisions = 1 / posterior.along
        along = (
            on_axes.square() @ precisions.T
            - 2 * on_axes @ (precisions * means_on_axes).T
            + (precisions * means_on_axes.square()).sum(1)
        )
        distances = along + (squares - on) / posterior.across
        if self.student:
            freedom = posterior.freedom
            # At a mean itself, rounding may leave less than nothing.
            distances = (freedom + whitened.shape[1]) * (distances.clamp(min=0) / freedom).log1p()
        return -0.5 * self.scale * (distances + posterior.offsets)

    def similarity(self, some: Tensor, others: Tensor) -> Tensor:
        """Return minus the squared Mahalanobis distance of features (n, dim) and others (m, dim)."""
        whitening = self.solution.whitening
        return -torch.cdist(some @ whitening, others @ whitening).square()


def _between(base_means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the principal axes of whitened base means, the prior's variance along these and elsewhere, and
    the variance that base means show.

    Of few classes the axes are mostly theirs: their variance is shrunk towards a sphere by 2 / n_classes.
    """
    n_classes, dim = base_means.shape
    _, deviations, axes = torch.linalg.svd(base_means / (n_classes - 1) ** 0.5, full_matrices=False)
    variances, axes = deviations[: n_classes - 1].square(), axes[: n_classes - 1]
    # Without what the means vary by because they are means of a few windows.
    level = (variances.sum() / dim - (1 / counts).mean()).clamp(min=1e-3)
    shrinkage = min(1.0, 2 / n_classes)
    elsewhere: Tensor = BETWEEN * shrinkage * level
    return axes, BETWEEN * (1 - shrinkage) * variances + elsewhere, elsewhere, level


def _determinant_weights(level: Tensor, prior: Tensor, counts: Tensor) -> Tensor:
    """Return how much of each class's log-determinant counts (n_classes,).

    All of it is fair where means vary by as much as the prior says. It says more (``BETWEEN``); with means
    that vary by ``level``, windows of a class known from n examples and of one known from very many are told
    apart by equal margins on average if (1 + n level) / (1 + n prior) of it counts.
    """
    fair = (1 + counts * level) / (1 + counts * prior)
    return (DETERMINANT * fair).clamp(max=MOST_DETERMINANT)


def _posterior_weight(between: Tensor, counts: Tensor) -> Tensor:
    """Return the weight (n_classes, n_axes) of an observed mean against the grand mean, in its posterior."""
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
