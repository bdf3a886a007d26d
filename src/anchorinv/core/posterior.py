"""The posterior of class means and the densities that follow from it: probabilistic discriminant analysis.

Class means are Gaussian around the grand mean, with a between-class covariance that the base classes show.
The posterior of a mean known from few examples is shrunk towards the grand mean, and what is left uncertain
of it widens the class (Ioffe, Probabilistic Linear Discriminant Analysis, ECCV 2006). The covariance is an
estimate, too: densities are Student's t with the degrees of freedom that examples leave (Geisser, Posterior
Odds for Multivariate Normal Classifications, J. R. Stat. Soc. B 1964), so that a window far from everything
is not drawn to the widest class.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

#: New classes lie further apart than base classes do: the between-class variance is multiplied by this.
BETWEEN = 4.0
#: Directions of largest within-class variance that have a novelty statistic of their own: artefacts, such as
#: a signal ten times as large, are far off in these, which the distance in all directions hardly shows.
LEADING = 8
#: The first of them, which mostly measure amplitude, have another.
FIRST = 2
#: Share of all directions, those of smallest within-class variance, with a statistic of their own: white
#: noise and disconnected channels violate what holds among the features of every real window.
TRAILING = 1 / 6
#: Weight of the log-determinant, relative to equal margins (see ``_determinant_weights``), and its maximum:
#: with all of it new classes are predicted too rarely, with none of it too often.
DETERMINANT = 0.75
MOST_DETERMINANT = 0.6
#: The weight for Gaussian densities, which model files of former versions have.
_GAUSSIAN_DETERMINANT = 0.5
_LEAST = 1e-6
_ROUNDS = 8
_FEWER_ROUNDS = 2  # to the least variance: no gap to wait for
#: Up to this share of as many windows as features, the scatter is solved for by its eigenvectors.
FEW = 0.5
_NEGLIGIBLE = 1e-12
_CHUNK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Eigenvectors:
    """A scatter matrix of low rank.

    Parameters
    ----------
    vectors : Tensor, shape (dim, rank)
        Orthonormal.
    values : Tensor, shape (rank,)
        Positive.
    """

    vectors: Tensor
    values: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> "Eigenvectors":
        """Return those of ``rows.T @ rows``, by the smaller matrix ``rows @ rows.T``."""
        values, vectors = torch.linalg.eigh(rows @ rows.T)
        kept = values > _NEGLIGIBLE * values.abs().max()
        return cls(rows.T @ (vectors[:, kept] / values[kept].sqrt()), values[kept])


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Sufficient statistics of classes.

    Parameters
    ----------
    counts : Tensor, shape (n_classes,)
    means : Tensor, shape (n_classes, dim)
    scatter : Tensor, shape (dim, dim), or Eigenvectors
        Sums of squares and products around the means, over all classes.
    n_base : int
        Base classes, which come first.
    """

    counts: Tensor
    means: Tensor
    scatter: "Tensor | Eigenvectors"
    n_base: int

    @classmethod
    def of(cls, features: Tensor, targets: Tensor, n_base: int) -> "Statistics":
        """Compute them from windows (n, dim) of columns (n,)."""
        counts = targets.bincount()
        means = torch.zeros(len(counts), features.shape[1]).double().index_add_(0, targets, features.double())
        means /= counts[:, None]
        rows = features.double() - means[targets]
        few = len(rows) <= FEW * rows.shape[1]
        return cls(counts, means.to(features), Eigenvectors.of(rows) if few else rows.T @ rows, n_base)

    @property
    def middle(self) -> Tensor:
        """The mean of all base windows (dim,)."""
        weights = self.counts[: self.n_base].double()
        return (weights @ self.means[: self.n_base].double() / weights.sum()).to(self.means)


#: Features (n, dim) and squared distances (n, n_classes + 1): what :meth:`Posterior.distances` returns.
Distances = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior of the classes' means, in a space where the within-class covariance is the identity.

    Parameters
    ----------
    freedom : float
        Degrees of freedom of Student's t; infinite for a Gaussian.
    centre : Tensor, shape (dim,)
        The grand mean: the mean of the base classes' means.
    root : Triangular or LowRank
        An inverse root of the within-class covariance.
    axes : Tensor, shape (n_axes, dim)
        Orthonormal principal axes of the base classes' means, after whitening.
    means : Tensor, shape (n_classes, dim)
        Posterior means, centred and whitened.
    along, across : Tensor, shape (n_classes, n_axes) and (n_classes,)
        Predictive variance of a window of each class along each axis, and in all other directions.
    offsets : Tensor, shape (n_classes,)
        Added to distances: what of the log-determinants counts.
    determinants : Tensor, shape (n_classes,)
        All of the log-determinants.
    between, elsewhere : Tensor, shape (n_axes,) and ()
        Variance of the means of classes along each axis, and in all other directions, as base classes show.
    volume : Tensor, shape ()
        The log-determinant of a window of a class that is not known; 0 where that may be anywhere.
    directions : Tensor, shape (n_leading + n_trailing, dim)
        Where windows of one class differ most, before whitening, the first ones most of all; then those where
        they differ least. Both are orthonormal. Without any, there is no :meth:`novelty`.
    """

    freedom: float
    centre: Tensor
    root: "Triangular | LowRank"
    axes: Tensor
    means: Tensor
    along: Tensor
    across: Tensor
    offsets: Tensor
    determinants: Tensor
    between: Tensor
    elsewhere: Tensor
    volume: Tensor
    directions: Tensor

    @property
    def whitening(self) -> Tensor:
        """The inverse root as a matrix (dim, dim)."""
        return self.root.matrix

    def distances(self, features: Tensor) -> Distances:
        """Return whitened features (n, dim) and squared distances (n, n_classes + 1).

        The last is that to a class that is not known, which may be wherever classes are, with its
        log-determinant.
        """
        whitened = self.root.whiten(features - self.centre)  # (n, dim)
        rows, weights, precisions, constant = self._expanded
        products = whitened @ rows.T
        on_axes, on_means = products[:, : len(self.axes)], products[:, len(self.axes) :]
        beside = (whitened.square().sum(1, keepdim=True) - 2 * on_means) * precisions + constant
        return whitened, torch.addmm(beside, torch.cat([on_axes.square(), on_axes], dim=1), weights)

    @cached_property
    def _expanded(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Coefficients of the squared distances, expanded: saves a dozen products for a live window."""
        means = F.pad(self.means, (0, 0, 0, 1))
        means_on_axes, precisions = (
            means @ self.axes.T,
            1 / torch.cat([self.across, 1 + self.elsewhere[None]]),
        )
        # Along the axes, beside that in all directions.
        more = 1 / torch.cat([self.along, 1 + self.between[None]]) - precisions[:, None]
        constant = precisions * means.square().sum(1) + (more * means_on_axes.square()).sum(1)
        constant[-1] += self.volume
        weights = torch.cat([more, -2 * more * means_on_axes], dim=1).T
        return torch.cat([self.axes, means]), weights, precisions, constant

    def logits(self, features: Tensor) -> Tensor:
        """Return log-densities of the classes (n, n_classes) at features (n, dim), up to a constant."""
        parts = torch.split(features, _CHUNK)
        return torch.cat([self.log_densities(self.distances(part)) for part in parts])

    def log_densities(self, distances: Distances) -> Tensor:
        """Return log-densities of the classes (n, n_classes), up to a constant."""
        whitened, squared = distances[0], distances[1][:, :-1]
        if math.isfinite(self.freedom):
            # At a mean itself, rounding may leave less than nothing.
            squared = (self.freedom + whitened.shape[1]) * (squared.clamp(min=0) / self.freedom).log1p()
        return -0.5 * (squared + self.offsets)

    def novelty(self, distances: Distances) -> tuple[Tensor, Tensor]:
        """Return what :meth:`Discriminant.novelty` returns."""
        if not self.directions.numel():
            raise ValueError("novelty needs directions; solve with directions=True")
        whitened, squared, anywhere = distances[0], distances[1][:, :-1], distances[1][:, -1]
        nearest = (squared + self.determinants).argmin(1)
        distance = squared.gather(1, nearest[:, None]).squeeze(1)
        ratio = 0.5 * (distance + self.determinants[nearest] - anywhere)
        along = ((whitened - self.means[nearest]) @ self.directions.T).square()
        along, n_leading = along / self.across[nearest, None], min(LEADING, whitened.shape[1])
        alone = (each.sum(1) for each in (along[:, :n_leading], along[:, :FIRST], along[:, n_leading:]))
        logs = torch.stack([distance, *alone], dim=1).clamp(min=1e-12).log()
        return torch.cat([ratio[:, None], logs], dim=1), nearest

    def novelty_of_one(self, distances: Distances) -> tuple[list[float], int]:
        """Return :meth:`novelty` of one window, as of a live source, for a fifth of the time."""
        ((*squared, anywhere),) = distances[1].tolist()
        if not math.isfinite(sum(squared)):  # of what is too large numpy warns, torch does not
            statistics, column = self.novelty(distances)
            return statistics[0].tolist(), int(column)
        determinants, across, directions, means, parts = self._of_one
        densities = [each + more for each, more in zip(squared, determinants, strict=True)]
        smallest = min(densities)
        nearest = densities.index(smallest)
        along = np.dot(directions, distances[0].numpy()[0]) - means[nearest]
        alone = [each / across[nearest] for each in np.dot(parts, along * along).tolist()]
        logs = [math.log(max(each, 1e-12)) for each in (squared[nearest], *alone)]
        return [0.5 * (smallest - anywhere), *logs], nearest

    @cached_property
    def _of_one(self) -> tuple[list[float], list[float], np.ndarray, np.ndarray, np.ndarray]:
        """Values for the novelty of one window; means are projected on the directions, masks come last."""
        number, n_leading = np.arange(len(self.directions)), min(LEADING, self.directions.shape[1])
        parts = np.stack([number < n_leading, number < FIRST, number >= n_leading])
        directions, means = self.directions.numpy(), (self.means @ self.directions.T).numpy()
        scalars = self.determinants.tolist(), self.across.tolist()
        return *scalars, directions, means, parts.astype(directions.dtype)


@torch.no_grad()
def posterior_of(
    known: Statistics, *, shrinkage: float, prior: bool, student: bool, directions: bool = True
) -> Posterior:
    """Return what follows from statistics; ``directions`` are needed for novelty only."""
    like, counts, means, n_base = known.means, known.counts.double(), known.means.double(), known.n_base
    covariance = _covariance(counts, means, known.scatter, shrinkage)
    base = means[:n_base] if n_base > 1 else means
    centre = base.mean(0)
    observed, base_means = covariance.whiten(means - centre), covariance.whiten(base - centre)
    if not prior:
        axes, along = base_means[:0], observed[:, :0]
        across = 1 + 1 / counts
        expected = observed
        offsets = determinants = torch.zeros_like(counts)
        # Without a prior nothing is known of other classes: they may be anywhere.
        between, elsewhere = along[0], torch.tensor(torch.inf).to(along)
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
        weights = _determinant_weights(level, elsewhere, counts) if student else _GAUSSIAN_DETERMINANT
        determinants = along.log().sum(1) + n_others * across.log()
        offsets = weights * determinants
    solved = (axes, expected, along, across, offsets, determinants)
    between, elsewhere = between / BETWEEN, elsewhere / BETWEEN
    volume = between.log1p().sum() + (means.shape[1] - len(axes)) * elsewhere.log1p()
    volume = torch.where(elsewhere.isfinite(), volume, torch.zeros_like(volume))
    looked_at = [covariance.leading(), covariance.trailing()] if directions else [axes[:0]]
    shown = (between, elsewhere, volume, torch.cat(looked_at))
    freedom = float(counts.sum() - len(counts) - means.shape[1] + 1) if student else math.inf
    root = covariance.root(like)
    return Posterior(max(1.0, freedom), centre.to(like), root, *(each.to(like) for each in (*solved, *shown)))


def _covariance(
    counts: Tensor, means: Tensor, scatter: Tensor | Eigenvectors, shrinkage: float
) -> "_Dense | LowRank":
    """Return the within-class covariance, shrunk towards a sphere."""
    dim, freedom = means.shape[1], (counts.sum() - len(counts)).clamp(min=1)
    total = scatter.diagonal().sum() if isinstance(scatter, Tensor) else scatter.values.sum()
    level = total / freedom / dim
    if not level > 0:  # of single windows: nothing is known but how far classes are apart
        level = (means - means.mean(0)).square().mean().clamp(min=_LEAST)
    sphere = (shrinkage + _LEAST) * level
    if isinstance(scatter, Eigenvectors):
        values = (1 - shrinkage) / freedom * scatter.values + sphere
        return LowRank(scatter.vectors, values, sphere)
    matrix = (1 - shrinkage) / freedom * scatter
    matrix.diagonal().add_(sphere)
    return _Dense.of(matrix)


@dataclass(frozen=True, slots=True, eq=False)
class Triangular:
    """The transposed inverse of a Cholesky factor, (dim, dim)."""

    matrix: Tensor

    def whiten(self, values: Tensor) -> Tensor:
        """Return values (n, dim) multiplied by it."""
        return values @ self.matrix


@dataclass(frozen=True, slots=True, eq=False)
class _Dense:
    """A covariance (dim, dim), its Cholesky factor, and the inverse of that, transposed."""

    matrix: Tensor
    factor: Tensor
    whitening: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> "_Dense":
        # Imported here, as it takes a while.
        from scipy.linalg.lapack import dtrtri

        factor, failed = torch.linalg.cholesky_ex(matrix)
        if failed or not factor.diagonal().isfinite().all():
            raise ValueError(
                "the statistics of the classes are no covariance: they are damaged, or features are far too "
                "large; use an earlier copy of the model, or train it anew"
            )
        # A quarter of the time that solving for the identity takes.
        whitening, _ = dtrtri(factor.T.numpy())
        return cls(matrix, factor, torch.from_numpy(whitening))

    def whiten(self, values: Tensor) -> Tensor:
        return values @ self.whitening

    def root(self, like: Tensor) -> Triangular:
        return Triangular(self.whitening.to(like).contiguous())

    def leading(self) -> Tensor:
        """Return directions (n_leading, dim) of most variance, whitened, by subspace iteration."""
        # The same start everywhere: those coordinates that vary most.
        first = _largest(self.matrix.diagonal(), LEADING)
        matrix = self.matrix.float()
        basis = matrix[:, first].contiguous()
        for _ in range(_ROUNDS):
            basis, _ = torch.linalg.qr(matrix @ basis)
        # Whitened by the inverse factor, an eigenvector keeps its direction among those of factor.T @ factor.
        return _orthonormal(self.factor.T @ basis.to(self.factor))

    def trailing(self) -> Tensor:
        """Return directions (n_trailing, dim) of little variance, whitened, by inverse iteration."""
        precisions = self.whitening.square().sum(1)
        # Of float32, which is precise enough for any directions of little variance, but not wide enough.
        root = (self.whitening / precisions.max().sqrt()).float()
        factor = (self.factor / self.matrix.diagonal().max().sqrt()).float()
        first = _largest(precisions, _n_trailing(len(root)))
        basis = root @ root[first].T  # of the inverse covariance, where its diagonal is largest
        for _ in range(_FEWER_ROUNDS):
            basis, _ = torch.linalg.qr(root @ (root.T @ basis))
        return _orthonormal(factor.T @ basis)


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """A covariance of low rank plus a sphere; its powers cost little where the rank is low.

    Its root and directions are those of ``_Dense``, turned alike: distances are the same.

    Parameters
    ----------
    vectors : Tensor, shape (dim, rank)
        Orthonormal.
    values : Tensor, shape (rank,)
        Variances along them.
    sphere : Tensor, shape ()
        The variance in all other directions.
    """

    vectors: Tensor
    values: Tensor
    sphere: Tensor

    def times(self, values: Tensor, power: float) -> Tensor:
        """Return values (n, dim) multiplied by a power of the covariance."""
        beside = self.sphere**power
        along = (values @ self.vectors) * (self.values**power - beside)
        return beside * values + along @ self.vectors.T

    def whiten(self, values: Tensor) -> Tensor:
        """Return values (n, dim) multiplied by the inverse root."""
        return self.times(values, -0.5)

    @property
    def matrix(self) -> Tensor:
        """The inverse root as a matrix (dim, dim)."""
        return self.whiten(torch.eye(len(self.vectors)).to(self.vectors))

    def root(self, like: Tensor) -> "LowRank":
        """Return the same in the type of another tensor."""
        return LowRank(*(each.to(like) for each in (self.vectors, self.values, self.sphere)))

    def _diagonal(self, power: float) -> Tensor:
        beside = self.sphere**power
        return beside + self.vectors.square() @ (self.values**power - beside)

    def _coordinates(self, columns: Tensor) -> Tensor:
        chosen = torch.zeros(len(columns), len(self.vectors)).to(self.vectors)
        chosen[torch.arange(len(columns)), columns] = 1
        return chosen

    def leading(self) -> Tensor:
        """Return directions (n_leading, dim) of most variance, whitened."""
        basis = self._coordinates(_largest(self._diagonal(1), LEADING))
        for _ in range(_ROUNDS + 1):
            basis = _orthonormal(self.times(basis, 1).T)
        return _orthonormal(self.times(basis, 0.5).T)

    def trailing(self) -> Tensor:
        """Return directions (n_trailing, dim) of little variance, whitened."""
        first = _largest(self._diagonal(-1), _n_trailing(len(self.vectors)))
        relative = LowRank(self.vectors, self.values / self.sphere, torch.ones_like(self.sphere))
        # All steps in one, which in float64 needs no basis in between.
        return _orthonormal(relative.times(self._coordinates(first), -_FEWER_ROUNDS - 0.5).T)


def _largest(values: Tensor, n: int) -> Tensor:
    return values.argsort(descending=True, stable=True)[:n]


def _n_trailing(dim: int) -> int:
    return max(1, round(TRAILING * dim))


def _orthonormal(columns: Tensor) -> Tensor:
    """Return an orthonormal basis of columns (dim, n), row by row (n, dim)."""
    basis: Tensor = torch.linalg.qr(columns)[0].T
    return basis


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
