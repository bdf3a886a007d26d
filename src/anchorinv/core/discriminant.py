"""A linear discriminant on sufficient statistics: of each class a count, a mean and a scatter, no sample.

Classes share one within-class covariance. Class means are Gaussian around the grand mean, with a
between-class covariance that the base classes show. The posterior of a mean known from few examples is
shrunk towards the grand mean, and what is left uncertain of it widens the class (probabilistic linear
discriminant analysis: Ioffe, ECCV 2006). Everything follows from the statistics in closed form, so the
order in which examples come does not matter, and a class is forgotten exactly.
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
#: Directions of most variance within classes in which a window is looked at by themselves: what is no such
#: signal at all, as one ten times as large, is far off in these, and lost among hundreds of others.
LEADING = 8
#: How much of the log-determinant counts. Features are less Gaussian than their covariance says; all of it
#: keeps new classes down, none of it lets them win too often.
DETERMINANT = 0.5
_LEAST = 1e-6
_ROUNDS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The posterior of the classes' means, in a space where the within-class covariance is the identity.

    Parameters
    ----------
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
    between, elsewhere : Tensor, shape (n_axes,) and ()
        Variance of the means of classes along each axis, and in all other directions, as base classes show it.
    leading : Tensor, shape (n_leading, dim)
        Orthonormal; where windows of one class differ most, before whitening.
    """

    centre: Tensor
    whitening: Tensor
    axes: Tensor
    means: Tensor
    along: Tensor
    across: Tensor
    between: Tensor
    elsewhere: Tensor
    leading: Tensor


@register_head
class Discriminant(StatisticalHead):
    """Log-densities of classes, each a Gaussian with its own mean and the within-class covariance of all.

    Parameters
    ----------
    counts : Tensor, shape (n_classes,), int64
        Examples of each class; float64, the sums of their weights, where examples had some.
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
        """Return the discriminant of some of its classes, in this order, the first ``n_base`` as base classes."""
        return self._with(self.counts[columns], self.means[columns], self.scatters[columns], n_base)

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
        covariance, factor = self._covariance(counts, means)
        whitening = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False).T
        base = means[: self.n_base] if self.n_base > 1 else means
        centre = base.mean(0)
        observed, base_means = (means - centre) @ whitening, (base - centre) @ whitening
        if not self.prior:
            axes, along = base_means[:0], observed[:, :0]
            across = 1 + 1 / counts
            expected = observed
            # Without a prior nothing is known of other classes: they may be anywhere.
            between, elsewhere = along[0], torch.tensor(torch.inf).to(along)
        else:
            axes, between, elsewhere = _between(base_means, counts[: len(base)])
            along, rest = (_predictive(each, counts) for each in (between, elsewhere[None]))
            across = rest[:, 0]
            on_axes = observed @ axes.T
            kept_on_axes, kept_elsewhere = (
                _posterior_weight(each, counts) for each in (between, elsewhere[None])
            )
            expected = kept_elsewhere * (observed - on_axes @ axes) + (kept_on_axes * on_axes) @ axes
        like = self.means
        parts = (centre, whitening, axes, expected, along, across, between / BETWEEN, elsewhere / BETWEEN)
        return Solution(*(each.to(like) for each in (*parts, _leading(covariance, factor))))

    def _covariance(self, counts: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shrunk within-class covariance and its Cholesky factor, both (dim, dim)."""
        dim = means.shape[1]
        pooled = square_of(self.scatters.double().sum(0), dim) / (counts.sum() - len(counts)).clamp(min=1)
        level = pooled.diagonal().mean()
        if not level > 0:  # of single windows: nothing is known but how far classes are apart
            level = (means - means.mean(0)).square().mean().clamp(min=_LEAST)
        sphere = (self.shrinkage + _LEAST) * level * torch.eye(dim).to(pooled)
        covariance = (1 - self.shrinkage) * pooled + sphere
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if failed or not factor.isfinite().all():
            raise ValueError(
                "the statistics of the classes are no covariance: they are damaged, or features are far too "
                "large; use an earlier copy of the model, or train it anew"
            )
        return covariance, factor

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · log-densities up to a constant (n, n_classes)."""
        _, distances, determinants = self._distances(features)
        return -0.5 * self.scale * (distances + DETERMINANT * determinants)

    def novelty(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return three statistics of each window (n, 3), large for new ones, and the nearest class (n,).

        The log-likelihood ratio of a class that is not known, anywhere around the base classes, and the
        nearest one; the log of the squared distance to that; and the same in the leading directions alone.
        """
        posterior = self.solution
        whitened, distances, determinants = self._distances(features)
        nearest = (distances + determinants).argmin(1)
        on_axes = whitened @ posterior.axes.T
        others = whitened.square().sum(1) - on_axes.square().sum(1)
        anywhere = (on_axes.square() / (1 + posterior.between)).sum(1) + others / (1 + posterior.elsewhere)
        if self.prior:
            n_others = whitened.shape[1] - len(posterior.axes)
            anywhere = anywhere + posterior.between.log1p().sum() + n_others * posterior.elsewhere.log1p()
        distance = distances.gather(1, nearest[:, None]).squeeze(1)
        ratio = 0.5 * (distance + determinants[nearest] - anywhere)
        along = (whitened - posterior.means[nearest]) @ posterior.leading.T
        leading = along.square().sum(1) / posterior.across[nearest]
        return torch.stack(
            [ratio, *(each.clamp(min=1e-12).log() for each in (distance, leading))], 1
        ), nearest

    def _distances(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return whitened features (n, dim), squared distances (n, n_classes), log-determinants (n_classes,)."""
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
        if not self.prior:
            return whitened, distances, torch.zeros_like(posterior.across)
        n_others = whitened.shape[1] - len(axes)
        return whitened, distances, posterior.along.log().sum(1) + n_others * posterior.across.log()

    def similarity(self, some: Tensor, others: Tensor) -> Tensor:
        """Return minus the squared Mahalanobis distance of features (n, dim) and others (m, dim)."""
        whitening = self.solution.whitening
        return -torch.cdist(some @ whitening, others @ whitening).square()


def _between(base_means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the principal axes of whitened base means, and the variance of means along these and elsewhere.

    Of few classes the axes are mostly theirs: their variance is shrunk towards a sphere by 2 / n_classes.
    """
    n_classes, dim = base_means.shape
    _, deviations, axes = torch.linalg.svd(base_means / (n_classes - 1) ** 0.5, full_matrices=False)
    variances, axes = deviations[: n_classes - 1].square(), axes[: n_classes - 1]
    # Without what the means vary by because they are means of a few windows.
    level = (variances.sum() / dim - (1 / counts).mean()).clamp(min=1e-3)
    shrinkage = min(1.0, 2 / n_classes)
    elsewhere: Tensor = BETWEEN * shrinkage * level
    return axes, BETWEEN * (1 - shrinkage) * variances + elsewhere, elsewhere


def _leading(covariance: Tensor, factor: Tensor) -> Tensor:
    """Return directions (n_leading, dim) of most variance, whitened, by a few steps of subspace iteration."""
    # The same start everywhere: those coordinates that vary most.
    first = covariance.diagonal().argsort(descending=True, stable=True)[:LEADING]
    matrix = covariance.float()
    basis = matrix[:, first].contiguous()
    for _ in range(_ROUNDS):
        basis, _ = torch.linalg.qr(matrix @ basis)
    # Whitened by the inverse factor, an eigenvector keeps its direction among those of factor.T @ factor.
    leading: Tensor = torch.linalg.qr(factor.T @ basis.to(factor))[0].T
    return leading


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
