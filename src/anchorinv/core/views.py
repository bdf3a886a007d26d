"""Views: fixed features of a signal, its spectrum and the covariance of its channels.

A network trained on a few base classes keeps what separates those. What separates a new class may be gone
from its features, but is often in the power of each channel in each band, and in the covariance of channels.
Views are appended to the network's features, and a head with covariances (``mahalanobis.py``) weighs them
equally.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anchorinv.core.blocks import BANDS, band_powers
from anchorinv.core.heads import Cosine, class_means
from anchorinv.core.networks import encode, frozen
from anchorinv.core.types import Batch, State, columns

#: Added before a logarithm, relative to the mean: a silent channel or band is not minus infinity.
FLOOR = 1e-2
_LEAST = 1e-8


class Spectrum(nn.Module):
    """Log power of each channel in each band, by averaged periodograms (Welch, IEEE TAE 1967)."""

    @staticmethod
    def size(n_chans: int) -> int:
        """Return the number of its columns."""
        return n_chans * BANDS

    def forward(self, signals: Tensor) -> Tensor:
        """Return (n, size) of signals (n, n_chans, n_times)."""
        return band_powers(signals)


class Covariance(nn.Module):
    """Logarithm of the matrix of covariances between channels (Arsigny et al., SIAM J. Matrix Anal. 2007).

    Straight lines between logarithms are geodesics, so that differences and means of them are more meaningful
    than those of covariances (Barachant et al., IEEE TBME 2012).
    """

    @staticmethod
    def size(n_chans: int) -> int:
        """Return the number of its columns."""
        return n_chans * (n_chans + 1) // 2

    def forward(self, signals: Tensor) -> Tensor:
        """Return (n, size) of signals (n, n_chans, n_times)."""
        # Double, on the host: the smallest eigenvalues would be lost in rounding.
        centred = (signals - signals.mean(2, keepdim=True)).cpu().double()
        matrices = centred @ centred.transpose(1, 2) / signals.shape[2]
        level = matrices.diagonal(dim1=1, dim2=2).mean(1)
        floor = torch.eye(signals.shape[1], dtype=matrices.dtype)
        matrices = matrices + (FLOOR * level + _LEAST)[:, None, None] * floor
        values, vectors = torch.linalg.eigh(matrices)
        logarithms = (vectors * values.log()[:, None, :]) @ vectors.transpose(1, 2)
        rows, cols = torch.triu_indices(signals.shape[1], signals.shape[1])
        # Off-diagonal entries count twice: distances are those of whole matrices.
        weights = torch.where(rows == cols, 1.0, math.sqrt(2)).to(logarithms)
        vectorised: Tensor = logarithms[:, rows, cols] * weights
        return vectorised.to(signals.dtype).to(signals.device)


#: Views by their names in files.
VIEWS: dict[str, type[Spectrum] | type[Covariance]] = {"spectrum": Spectrum, "covariance": Covariance}


class FeatureBlocks(NamedTuple):
    """The columns of a feature vector: the network's features, then each view's.

    Examples
    --------
    >>> blocks = FeatureBlocks(("network", "spectrum"), (3, 2))
    >>> blocks.n_network, blocks.n_columns
    (3, 5)
    >>> blocks.take(torch.arange(5)[None], "spectrum")
    tensor([[3, 4]])
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def n_network(self) -> int:
        """Columns of the network's own features."""
        return self.sizes[0]

    @property
    def n_columns(self) -> int:
        """Columns of all blocks."""
        return sum(self.sizes)

    def take(self, features: Tensor, name: str) -> Tensor:
        """Return the columns of one block (n, size) of features (n, n_columns)."""
        return torch.split(features, list(self.sizes), dim=1)[self.names.index(name)]

    def network(self, features: Tensor) -> Tensor:
        """Return the network's own features (n, n_network)."""
        return features[:, : self.n_network]

    def views(self, features: Tensor) -> Tensor:
        """Return the columns of all views (n, n_columns - n_network)."""
        return features[:, self.n_network :]


class TrunkWithViews(nn.Module):
    """A trunk with views: signals -> latents and views in one row (n, n_latent + n_views)."""

    def __init__(self, trunk: nn.Module, views: tuple[str, ...]) -> None:
        super().__init__()
        self.trunk, self.names = trunk, views
        self.views = nn.ModuleList([VIEWS[name]() for name in views])

    def forward(self, signals: Tensor) -> Tensor:
        """Return flattened latents and all views."""
        return torch.cat([self.trunk(signals).flatten(1), *(view(signals) for view in self.views)], dim=1)


class TailWithViews(nn.Module):
    """The tail of such a trunk: latents become features, views are passed through.

    Parameters
    ----------
    tail : nn.Module
        Latents -> features.
    latent : tuple of int
        Shape of the tail's own input.
    blocks : FeatureBlocks
        Of what comes out.
    """

    def __init__(self, tail: nn.Module, latent: tuple[int, ...], blocks: FeatureBlocks) -> None:
        super().__init__()
        self.tail, self.latent, self.blocks = tail, latent, blocks

    def forward(self, row: Tensor) -> Tensor:
        """Return features and views (n, n_columns)."""
        n_latent = math.prod(self.latent)
        return torch.cat([self.tail(row[:, :n_latent].reshape(-1, *self.latent)), row[:, n_latent:]], dim=1)


def add_views(
    trunk: nn.Module, tail: nn.Module, views: tuple[str, ...], shape: tuple[int, int]
) -> tuple[TrunkWithViews, TailWithViews]:
    """Return trunk and tail with views, for signals of a shape (n_chans, n_times)."""
    like = next(tail.parameters())
    with torch.no_grad():
        latents = trunk(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))
        sizes = (tail(latents).shape[1], *(VIEWS[name].size(shape[0]) for name in views))
    blocks = FeatureBlocks(("network", *views), sizes)
    return frozen(TrunkWithViews(trunk, views)), frozen(TailWithViews(tail, tuple(latents.shape[1:]), blocks))


def with_views(state: State, train: Batch, views: tuple[str, ...]) -> State:
    """Return a base model with views; prototypes are means of features and views.

    A view with more columns than the network's features is left out, such as covariances of many channels.
    """
    head = state.head
    if not isinstance(head, Cosine):
        raise TypeError(f"views need prototypes (a Cosine head), not a {type(head).__name__}")
    own = head.prototypes.shape[1]
    kept = tuple(name for name in views if VIEWS[name].size(state.shape[0]) <= own)
    if not kept:
        return state
    trunk, tail = add_views(state.trunk, state.tail, kept, state.shape)
    features = encode(tail, encode(trunk, train.values))
    prototypes = class_means(features, columns(train.labels, state.classes))
    return replace(state, trunk=trunk, tail=tail, head=frozen(head.with_prototypes(prototypes, width=own)))


def feature_blocks(state: State, n_columns: int) -> FeatureBlocks:
    """Return the blocks of a state's features, given the number of columns."""
    tail = state.tail
    return tail.blocks if isinstance(tail, TailWithViews) else FeatureBlocks(("network",), (n_columns,))


def view_sizes(state: State) -> tuple[int, ...]:
    """Return the number of columns of each view of a state."""
    return state.tail.blocks.sizes[1:] if isinstance(state.tail, TailWithViews) else ()


def without_views(state: State) -> tuple[nn.Module, nn.Module]:
    """Return trunk and tail without views."""
    trunk, tail = state.trunk, state.tail
    trunk = trunk.trunk if isinstance(trunk, TrunkWithViews) else trunk
    return trunk, tail.tail if isinstance(tail, TailWithViews) else tail


def with_views_of(latents: Tensor, anchors: Tensor, state: State) -> Tensor:
    """Return latents (n, ...) of inverted signals with the views that their anchors (n, dim) had.

    Signals are inverted by the network's features; the views of their anchors are known.
    """
    if not view_sizes(state):
        return latents
    views = feature_blocks(state, anchors.shape[1]).views(anchors)
    return torch.cat([latents[:, : latents.shape[1] - views.shape[1]], views], dim=1)
