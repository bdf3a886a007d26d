"""Riemannian geometry of covariances: means, tangent vectors as feature blocks, distances to class means.

Classification is by the affine-invariant distance between the covariance of a window and the mean of each
class (Barachant et al., Multiclass Brain-Computer Interface Classification by Riemannian Geometry, IEEE TBME
2012). Matrices are stored as tangent vectors at one reference, so that any values in a file are positive
definite; the distance does not depend on the reference.
"""

import copy
import math
from abc import abstractmethod
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.blocks import (
    FEW_CHANNELS,
    FLOOR,
    Block,
    matrix_function,
    register_block,
    upper_triangles,
    weighted_mean,
)
from anchorinv.core.heads import Expected, ScaleFacts, StatisticalHead, register_head, without_row
from anchorinv.core.types import Batch

#: Maximum number of sources; more are reduced to principal components: a matrix of 300 has 45,150 entries.
MOST_SOURCES = 32
#: Maximum number of windows, evenly spaced, for the reference.
MOST_FOR_REFERENCE = 512
_TOLERANCE, _MOST_STEPS = 1e-8, 50
#: Added to the diagonal, so that windows of silence are positive definite.
_LEAST = 1e-10
#: Smallest eigenvalue relative to the largest.
_ROUNDING = 1e-15


def oas_covariances(signals: Tensor) -> Tensor:
    """Return the covariance of each window's channels, shrunk by the oracle approximating rule.

    Parameters
    ----------
    signals : Tensor, shape (n, n_chans, n_times)

    Returns
    -------
    Tensor, shape (n, n_chans, n_chans)
        Positive definite, float64. See Chen et al., Shrinkage Algorithms for MMSE Covariance Estimation, IEEE
        TSP 2010.
    """
    # Double: the smallest eigenvalues would be lost in rounding.
    centred = (signals - signals.mean(2, keepdim=True)).double()
    n_chans, n_times = centred.shape[1:]
    matrices = centred @ centred.transpose(1, 2) / n_times
    level = matrices.diagonal(dim1=1, dim2=2).mean(1)
    square = matrices.square().mean((1, 2))
    denominator = (n_times + 1) * (square - level.square() / n_chans)
    shrinkage = torch.where(denominator > 0, (square + level.square()) / denominator, 1.0).clamp(max=1.0)
    sphere = (shrinkage * level + _LEAST)[:, None, None] * torch.eye(n_chans).to(matrices)
    return (1 - shrinkage)[:, None, None] * matrices + sphere


def riemannian_mean(matrices: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the matrix (c, c) with the least affine-invariant squared distances to matrices (n, c, c).

    By steps along the mean of the tangent vectors (Moakher, SIAM J. Matrix Anal. 2005), from the arithmetic
    mean; the further apart matrices are, the shorter (Bini & Iannazzo, Linear Algebra Appl. 2013). A matrix
    with a weight (n,) of 2 counts as two.
    """
    mean = weighted_mean(matrices, weights)
    for _ in range(_MOST_STEPS):
        root, inverse = matrix_function(mean, torch.sqrt), matrix_function(mean, torch.rsqrt)
        values, vectors = torch.linalg.eigh(inverse @ matrices @ inverse)
        logarithms = values.clamp(min=_ROUNDING * values[:, -1:]).log()  # (n, c), ascending
        step = weighted_mean((vectors * logarithms[:, None]) @ vectors.transpose(1, 2), weights)
        half = 0.5 * (logarithms[:, -1] - logarithms[:, 0])
        steepest = weighted_mean(torch.where(half > _TOLERANCE, half / half.tanh(), 1.0), weights)
        mean = root @ matrix_function(2 / (1 + steepest) * step, torch.exp) @ root
        if step.norm() < _TOLERANCE * math.sqrt(len(mean)):
            break
    return mean


def tangent_vectors(matrices: Tensor, whitening: Tensor) -> Tensor:
    """Return tangent vectors (n, c (c + 1) / 2) of matrices (n, c, c) at a reference.

    ``whitening`` (c, c) is the reference to the power of -1/2.
    """
    return upper_triangles(matrix_function(whitening @ matrices @ whitening, torch.log))


def symmetric_matrices(vectors: Tensor) -> Tensor:
    """Return the symmetric matrices (n, c, c) of tangent vectors (n, c (c + 1) / 2)."""
    size = math.isqrt(2 * vectors.shape[1])
    rows, cols = torch.triu_indices(size, size, device=vectors.device)
    weights = torch.where(rows == cols, 1.0, math.sqrt(0.5)).to(vectors)
    matrices = vectors.new_zeros(vectors.shape[0], size, size)
    matrices[:, rows, cols] = vectors * weights
    matrices[:, cols, rows] = vectors * weights
    return matrices


class TangentBlock(Block):
    """Tangent vectors of covariances between some sources of a window, at the mean of the base windows'."""

    def __init__(self, n_chans: int, n_times: int) -> None:
        super().__init__(n_chans, n_times)
        n_sources = self.n_sources
        n_kept = min(n_sources, MOST_SOURCES)
        self.whitening: Tensor
        self.components: Tensor | None
        # Not torch.eye: on the meta device, where model files are read, it loads torch's compiler (seconds).
        self.register_buffer("whitening", torch.zeros(n_kept, n_kept).fill_diagonal_(1))
        # Few sources are not reduced.
        some = n_kept < n_sources
        components = torch.zeros(n_kept, n_sources).fill_diagonal_(1) if some else None
        self.register_buffer("components", components)

    @property
    def n_sources(self) -> int:
        """Rows of :meth:`sources`."""
        return self.n_chans

    @property
    def size(self) -> int:
        """Entries of a triangle of the matrix."""
        return len(self.whitening) * (len(self.whitening) + 1) // 2

    @abstractmethod
    def sources(self, signals: Tensor) -> Tensor:
        """Return the sources of the covariance (n, n_sources, n_samples)."""

    def fitted(self, signals: Tensor, weights: Tensor | None = None) -> Self:
        """Return the block with its reference."""
        every = -(-len(signals) // MOST_FOR_REFERENCE)
        block, chosen = copy.deepcopy(self), signals[::every]
        weights = None if weights is None else weights[::every]
        with torch.no_grad():
            if block.components is not None:
                mean = weighted_mean(oas_covariances(self.sources(chosen)), weights)
                block.components = (
                    torch.linalg.eigh(mean)[1][:, -len(block.whitening) :].T.to(signals).clone()
                )
            reference = riemannian_mean(block._matrices(chosen), weights)
            block.whitening = matrix_function(reference, torch.rsqrt).to(signals)
        return block

    def forward(self, signals: Tensor) -> Tensor:
        """Return tangent vectors (n, size)."""
        return tangent_vectors(self._matrices(signals), self.whitening.double()).to(signals.dtype)

    def _matrices(self, signals: Tensor) -> Tensor:
        sources = self.sources(signals)
        if self.components is not None:
            sources = self.components @ sources
        return oas_covariances(sources)


@register_block
class Covariance(TangentBlock):
    """Covariance of the channels."""

    name = "covariance"
    citation = "Barachant et al., Riemannian Geometry, IEEE TBME 2012"

    def sources(self, signals: Tensor) -> Tensor:
        """Return the signals."""
        return signals


@register_block
class DifferenceCovariance(TangentBlock):
    """Covariance of the channels' first differences, which emphasise high frequencies."""

    name = "covariance of differences"
    citation = "after Barachant et al., IEEE TBME 2012"

    def sources(self, signals: Tensor) -> Tensor:
        """Return first differences."""
        return signals.diff(dim=2)


@register_block
class EnvelopeCovariance(TangentBlock):
    """Covariance of the channels' log envelopes."""

    name = "covariance of envelopes"
    citation = "after Barachant et al., IEEE TBME 2012"

    def sources(self, signals: Tensor) -> Tensor:
        """Return logarithms of local mean absolute values, a thirtieth of the window each."""
        width = max(4, signals.shape[2] // 30)
        amplitudes = (signals - signals.mean(2, keepdim=True)).abs()
        return (F.avg_pool1d(amplitudes, width, stride=width // 2) + FLOOR).log()


@register_block
class LaggedCovariance(TangentBlock):
    """Covariance of one or two channels and their copies two samples later."""

    name = "covariance with the past"
    citation = "Carrara & Papadopoulo, Classification of BCI-EEG Based on Augmented Covariance Matrix, 2023"
    lag = 2

    @classmethod
    def suits(cls, n_chans: int, n_times: int) -> bool:
        """Return whether there are few channels; with many, it adds little."""
        return n_chans <= FEW_CHANNELS

    @property
    def n_sources(self) -> int:
        """Each channel twice."""
        return 2 * self.n_chans

    def sources(self, signals: Tensor) -> Tensor:
        """Return the signals and their delayed copies."""
        return torch.cat([signals[..., self.lag :], signals[..., : -self.lag]], dim=1)


#: Maximum length of a mean's tangent vector, more than twice that of a window of silence.
LONGEST = 256.0


@register_head
class RiemannianMeans(StatisticalHead):
    """Logits are minus ``scale`` times the squared Riemannian distance to the mean covariance of each class.

    Parameters
    ----------
    counts : Tensor, shape (n_classes,), int64
        Windows behind each mean; float64, the sums of their weights, where windows had some.
    means : Tensor, shape (n_classes, c (c + 1) / 2)
        Tangent vectors at the reference.
    scale : float, default=1.0
        Factor of squared distances before the softmax.
    """

    kind = "riemannian-means"
    parts = ("counts", "means")
    blocks = (Covariance.name,)

    Facts = ScaleFacts

    def __init__(self, counts: Tensor, means: Tensor, *, scale: float = 1.0) -> None:
        super().__init__()
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
    def learned(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> "RiemannianMeans":
        """Return the head after more examples; a new class gets the Riemannian mean of its examples.

        The mean of a known class moves along the geodesic towards the mean of its new examples, by their
        share of all. This is the mean of all if matrices commute, and nearly so otherwise: the order of
        examples matters a little.

        Parameters
        ----------
        features : Tensor, shape (n, dim)
            Tangent vectors at the reference.
        targets : Tensor, shape (n,)
            Columns of known classes, or of new ones behind them.
        weights : Tensor, shape (n,), or None, default=None
            An example with a weight of 2 counts as two; None counts each as one.
        """
        missing = self.n_unknown(targets)
        counts, means = F.pad(self.counts, (0, missing)), F.pad(self.means, (0, 0, 0, missing)).clone()
        counts = counts if weights is None else counts.double()
        for target in sorted(set(targets.tolist())):
            own = positive_definite(features[targets == target])
            shares = None if weights is None else weights[targets == target]
            n, m = counts[target].item(), len(own) if shares is None else float(shares.sum())
            mean = riemannian_mean(own, shares)
            if n:
                mean = geodesic(positive_definite(means[[target]])[0], mean, m / (n + m))
            means[target] = tangent_vectors(mean[None], torch.eye(len(mean)).to(mean))[0].to(means)
            counts[target] = n + m
        return RiemannianMeans(counts, means, scale=self.scale)

    def without(self, column: int, anchors: Batch | None = None) -> "RiemannianMeans":
        """Return the head as if a class had never been learned."""
        counts, means = without_row(self.counts, column), without_row(self.means, column)
        return RiemannianMeans(counts, means, scale=self.scale)

    def fits(self, expected: Expected) -> bool:
        """Return whether every class has a count and a mean that is not too far away."""
        return (
            self.has_examples(expected.n_classes)
            and self.means.shape == (expected.n_classes, expected.dim)
            and bool((self.means.norm(dim=1) <= LONGEST).all())
        )

    @classmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return those of a mean and a count per class."""
        return n_classes * (dim + 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return -``scale`` · squared distances (n, n_classes)."""
        # NaN input would make the eigensolver fail; exported graphs return NaN.
        if not torch.compiler.is_exporting() and not features.isfinite().all():
            return features.new_full((len(features), len(self.means)), torch.nan)
        squares = squared_distances(positive_definite(features), symmetric_matrices(self.means.double()))
        return (-self.scale * squares).to(features.dtype)

    def similarity(self, some: Tensor, others: Tensor) -> Tensor:
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
        Logarithms of the matrices to compare with.
    """
    columns = []
    for whitening in matrix_function(-0.5 * logarithms, torch.exp):
        values = torch.linalg.eigvalsh(whitening @ matrices @ whitening)  # (n, c), ascending
        columns.append(values.clamp(min=_ROUNDING * values[:, -1:]).log().square().sum(1))
    return torch.stack(columns, dim=1)


def geodesic(start: Tensor, end: Tensor, share: float) -> Tensor:
    """Return the matrix (c, c) at a share of the geodesic from one to another."""
    root, inverse = matrix_function(start, torch.sqrt), matrix_function(start, torch.rsqrt)
    between = matrix_function(inverse @ end @ inverse, lambda values: values**share)
    return root @ between @ root
