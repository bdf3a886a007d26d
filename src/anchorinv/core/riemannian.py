"""Minimum distance to Riemannian means: of each class the mean of its windows' covariances, and a count.

A class is as far away as the affine-invariant distance between the covariance of a window and the mean of the
class says (Barachant et al., Multiclass Brain-Computer Interface Classification by Riemannian Geometry, IEEE
TBME 2012). Matrices come and are kept as tangent vectors at one reference, so that whatever numbers a file
holds are positive definite; the distance does not depend on the reference.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.heads import StatisticalHead
from anchorinv.core.tangent import matrix_function, riemannian_mean, symmetric_matrices, tangent_vectors

#: Length of a mean's tangent vector, at the most: a window of silence is not half as far away.
LONGEST = 256.0
#: Eigenvalues below so much of the largest are rounding.
_LEAST = 1e-15


class RiemannianMeans(StatisticalHead):
    """Logits are minus ``scale`` times the squared distance to the mean of each class.

    Parameters
    ----------
    counts : Tensor, shape (n_classes,), int64
        Windows behind each mean.
    means : Tensor, shape (n_classes, c (c + 1) / 2)
        Tangent vectors at the reference.
    scale : float
        What squared distances are multiplied by before the softmax.
    """

    def __init__(self, counts: Tensor, means: Tensor, *, scale: float = 1.0) -> None:
        super().__init__()
        self.counts: Tensor
        self.means: Tensor
        self.register_buffer("counts", counts)
        self.register_buffer("means", means)
        self.scale = scale

    @classmethod
    def empty(cls, dim: int) -> "RiemannianMeans":
        """Return a head that knows no class yet."""
        return cls(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dim))

    @property
    def prototypes(self) -> Tensor:
        """The means, as tangent vectors (n_classes, dim)."""
        return self.means

    @torch.no_grad()
    def learned(self, features: Tensor, targets: Tensor) -> "RiemannianMeans":
        """Return the head after more examples: the mean of those of a new class, all at once.

        The mean of a known class moves along the geodesic to the mean of its new examples, as far as these
        are of all. With matrices that commute that is the mean of all; otherwise nearly so, and which came
        first matters a little.

        Parameters
        ----------
        features : Tensor, shape (n, dim)
            Tangent vectors at the reference.
        targets : Tensor, shape (n,)
            Columns of known classes, or of new ones behind them.
        """
        n_classes = max(len(self.counts), int(targets.max()) + 1 if len(targets) else 0)
        missing = n_classes - len(self.counts)
        counts, means = F.pad(self.counts, (0, missing)), F.pad(self.means, (0, 0, 0, missing)).clone()
        for target in sorted(set(targets.tolist())):
            own = positive_definite(features[targets == target])
            mean, n = riemannian_mean(own), int(counts[target])
            if n:
                mean = geodesic(positive_definite(means[[target]])[0], mean, len(own) / (n + len(own)))
            means[target] = tangent_vectors(mean[None], torch.eye(len(mean)).to(mean))[0].to(means)
            counts[target] = n + len(own)
        return RiemannianMeans(counts, means, scale=self.scale)

    def without(self, column: int) -> "RiemannianMeans":
        """Return the head as if a class had never been learned."""
        kept = [i for i in range(len(self.counts)) if i != column]
        return RiemannianMeans(self.counts[kept], self.means[kept], scale=self.scale)

    def forward(self, features: Tensor) -> Tensor:
        """Return -``scale`` · squared distances (n, n_classes)."""
        if not features.isfinite().all():  # of no matrix, and no eigenvalues would be found
            return features.new_full((len(features), len(self.means)), torch.nan)
        squares = squared_distances(positive_definite(features), symmetric_matrices(self.means.double()))
        return (-self.scale * squares).to(features.dtype)

    def likeness(self, some: Tensor, others: Tensor) -> Tensor:
        """Return minus the squared distance of features (n, dim) and others (m, dim) in the tangent space."""
        return -torch.cdist(some, others).square()


def positive_definite(vectors: Tensor) -> Tensor:
    """Return the matrices (n, c, c), float64, whose tangent vectors (n, c (c + 1) / 2) are given."""
    return matrix_function(symmetric_matrices(vectors.double()), torch.exp)


def squared_distances(matrices: Tensor, logarithms: Tensor) -> Tensor:
    """Return affine-invariant squared distances (n, k).

    Parameters
    ----------
    matrices : Tensor, shape (n, c, c)
    logarithms : Tensor, shape (k, c, c)
        Of the matrices that distances are measured from.
    """
    found = []
    for whitening in matrix_function(-0.5 * logarithms, torch.exp):
        values = torch.linalg.eigvalsh(whitening @ matrices @ whitening)  # (n, c), ascending
        found.append(values.clamp(min=_LEAST * values[:, -1:]).log().square().sum(1))
    return torch.stack(found, dim=1)


def geodesic(start: Tensor, end: Tensor, share: float) -> Tensor:
    """Return the matrix (c, c) that lies a share of the way from one to another."""
    root, inverse = matrix_function(start, torch.sqrt), matrix_function(start, torch.rsqrt)
    between = matrix_function(inverse @ end @ inverse, lambda values: values**share)
    return root @ between @ root
