"""Covariances of a window, laid flat in the tangent space of symmetric positive definite matrices.

The logarithm of a covariance relative to a reference turns mixtures of sources into straight lines, so that
means and differences say more than those of the matrices themselves (Barachant et al., Multiclass
Brain-Computer Interface Classification by Riemannian Geometry, IEEE TBME 2012).
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.blocks import FEW_CHANNELS, FLOOR, Block

#: Of more sources than this, as many principal components are taken: a matrix of 300 has 45,150 entries.
MOST_SOURCES = 32
#: So many windows, evenly spaced, say where the reference lies; more would move it by little.
MOST_FOR_REFERENCE = 512
_TOLERANCE, _MOST_STEPS = 1e-8, 50
#: Beside what the matrix has of its own: a window of silence is far away, and not nowhere.
_LEAST = 1e-10
#: Eigenvalues below so much of the largest are none.
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
    # Double: the smallest of a matrix's eigenvalues would drown in rounding.
    centred = (signals - signals.mean(2, keepdim=True)).double()
    n_chans, n_times = centred.shape[1:]
    matrices = centred @ centred.transpose(1, 2) / n_times
    level = matrices.diagonal(dim1=1, dim2=2).mean(1)
    square = matrices.square().mean((1, 2))
    apart = (n_times + 1) * (square - level.square() / n_chans)
    shrinkage = torch.where(apart > 0, (square + level.square()) / apart, 1.0).clamp(max=1.0)
    sphere = (shrinkage * level + _LEAST)[:, None, None] * torch.eye(n_chans).to(matrices)
    return (1 - shrinkage)[:, None, None] * matrices + sphere


def matrix_function(matrices: Tensor, apply: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a function of symmetric matrices (..., c, c), by their eigenvalues."""
    values, vectors = torch.linalg.eigh(matrices)
    result: Tensor = (vectors * apply(values)[..., None, :]) @ vectors.transpose(-1, -2)
    return result


def riemannian_mean(matrices: Tensor) -> Tensor:
    """Return the matrix (c, c) whose affine-invariant squared distances to matrices (n, c, c) are least.

    By steps along the mean of the tangent vectors (Moakher, SIAM J. Matrix Anal. 2005), from the arithmetic
    mean; the further apart matrices are, the shorter (Bini & Iannazzo, Linear Algebra Appl. 2013).
    """
    mean = matrices.mean(0)
    for _ in range(_MOST_STEPS):
        root, inverse = matrix_function(mean, torch.sqrt), matrix_function(mean, torch.rsqrt)
        values, vectors = torch.linalg.eigh(inverse @ matrices @ inverse)
        logarithms = values.clamp(min=_ROUNDING * values[:, -1:]).log()  # (n, c), ascending
        step = ((vectors * logarithms[:, None]) @ vectors.transpose(1, 2)).mean(0)
        half = 0.5 * (logarithms[:, -1] - logarithms[:, 0])
        steepest = torch.where(half > _TOLERANCE, half / half.tanh(), 1.0).mean()
        mean = root @ matrix_function(2 / (1 + steepest) * step, torch.exp) @ root
        if step.norm() < _TOLERANCE * math.sqrt(len(mean)):
            break
    return mean


def tangent_vectors(matrices: Tensor, whitening: Tensor) -> Tensor:
    """Return the logarithms (n, c (c + 1) / 2) of matrices (n, c, c), seen from a reference.

    Parameters
    ----------
    whitening : Tensor, shape (c, c)
        The reference to the power of -1/2.
    """
    logarithms = matrix_function(whitening @ matrices @ whitening, torch.log)
    rows, cols = torch.triu_indices(len(whitening), len(whitening), device=matrices.device)
    # An entry off the diagonal stands for two: lengths are those of whole matrices.
    weights = torch.where(rows == cols, 1.0, math.sqrt(2)).to(logarithms)
    return logarithms[:, rows, cols] * weights


def symmetric_matrices(vectors: Tensor) -> Tensor:
    """Return the symmetric matrices (n, c, c) that tangent vectors (n, c (c + 1) / 2) stand for."""
    size = math.isqrt(2 * vectors.shape[1])
    rows, cols = torch.triu_indices(size, size, device=vectors.device)
    weights = torch.where(rows == cols, 1.0, math.sqrt(0.5)).to(vectors)
    matrices = vectors.new_zeros(len(vectors), size, size)
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
        self.register_buffer("whitening", torch.eye(n_kept))
        # Of few sources none is left out.
        components = torch.eye(n_kept, n_sources) if n_kept < n_sources else None
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
        """Return what the covariance is taken of (n, n_sources, n_samples)."""

    def fitted(self, signals: Tensor) -> Self:
        """Return the block with its reference."""
        block, chosen = copy.deepcopy(self), signals[:: -(-len(signals) // MOST_FOR_REFERENCE)]
        with torch.no_grad():
            if block.components is not None:
                mean = oas_covariances(self.sources(chosen)).mean(0)
                block.components = (
                    torch.linalg.eigh(mean)[1][:, -len(block.whitening) :].T.to(signals).clone()
                )
            reference = riemannian_mean(block._matrices(chosen))
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


class Covariance(TangentBlock):
    """Covariance of the channels: how strong each is, and which go together."""

    name = "covariance"
    citation = "Barachant et al., Riemannian Geometry, IEEE TBME 2012"

    def sources(self, signals: Tensor) -> Tensor:
        """Return the signals."""
        return signals


class DifferenceCovariance(TangentBlock):
    """Covariance of the channels' first differences: the same of what changes fast."""

    name = "covariance of differences"
    citation = "after Barachant et al., IEEE TBME 2012"

    def sources(self, signals: Tensor) -> Tensor:
        """Return first differences."""
        return signals.diff(dim=2)


class EnvelopeCovariance(TangentBlock):
    """Covariance of the channels' log envelopes: which of them grow strong together."""

    name = "covariance of envelopes"
    citation = "after Barachant et al., IEEE TBME 2012"

    def sources(self, signals: Tensor) -> Tensor:
        """Return logarithms of local mean absolute values, a thirtieth of the window each."""
        width = max(4, signals.shape[2] // 30)
        amplitudes = (signals - signals.mean(2, keepdim=True)).abs()
        return (F.avg_pool1d(amplitudes, width, stride=width // 2) + FLOOR).log()


class LaggedCovariance(TangentBlock):
    """Covariance of one or two channels and themselves two samples later: their rhythms."""

    name = "covariance with the past"
    citation = "Carrara & Papadopoulo, Classification of BCI-EEG Based on Augmented Covariance Matrix, 2023"
    lag = 2

    @classmethod
    def suits(cls, n_chans: int, n_times: int) -> bool:
        """Say whether there are few channels: of many, their own covariances say as much."""
        return n_chans <= FEW_CHANNELS

    @property
    def n_sources(self) -> int:
        """Each channel twice."""
        return 2 * self.n_chans

    def sources(self, signals: Tensor) -> Tensor:
        """Return the signals, and what they were before."""
        return torch.cat([signals[..., self.lag :], signals[..., : -self.lag]], dim=1)
