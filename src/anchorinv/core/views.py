"""Views of a signal that need no learning: its spectrum and the covariance of its channels.

A network that was trained to tell a few base classes apart keeps what tells those apart. What tells a new
class apart may be gone from its features, but is often in what has been known of biosignals for long: how
strong each channel is in each band, and which channels go together. Views stand beside the features, where a
head that knows the covariance (``mahalanobis.py``) gives each the same vote.
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

#: Of the mean, added to what a logarithm is taken of: a silent channel or band is quiet, not minus infinity.
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

    Straight lines between logarithms are the geodesics along which mixtures of sources vary, which is why
    differences and means of them say more than those of the covariances (Barachant et al., IEEE TBME 2012).
    """

    @staticmethod
    def size(n_chans: int) -> int:
        """Return the number of its columns."""
        return n_chans * (n_chans + 1) // 2

    def forward(self, signals: Tensor) -> Tensor:
        """Return (n, size) of signals (n, n_chans, n_times)."""
        # Double: the smallest of a matrix's eigenvalues would drown in rounding. Devices may have none.
        centred = (signals - signals.mean(2, keepdim=True)).cpu().double()
        matrices = centred @ centred.transpose(1, 2) / signals.shape[2]
        level = matrices.diagonal(dim1=1, dim2=2).mean(1)
        floor = torch.eye(signals.shape[1], dtype=matrices.dtype)
        matrices = matrices + (FLOOR * level + _LEAST)[:, None, None] * floor
        values, vectors = torch.linalg.eigh(matrices)
        logarithms = (vectors * values.log()[:, None, :]) @ vectors.transpose(1, 2)
        rows, cols = torch.triu_indices(signals.shape[1], signals.shape[1])
        # An entry off the diagonal stands for two: distances are those of whole matrices.
        weights = torch.where(rows == cols, 1.0, math.sqrt(2)).to(logarithms)
        vectorised: Tensor = logarithms[:, rows, cols] * weights
        return vectorised.to(signals.dtype).to(signals.device)


#: By the names under which files know them.
VIEWS: dict[str, type[Spectrum] | type[Covariance]] = {"spectrum": Spectrum, "covariance": Covariance}


class FeatureBlocks(NamedTuple):
    """Which columns of a feature vector belong to what: the network's features, then each view's.

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
    """A trunk with views beside it: signals -> latents and views in one row (n, n_latent + n_views)."""

    def __init__(self, trunk: nn.Module, views: tuple[str, ...]) -> None:
        super().__init__()
        self.trunk, self.names = trunk, views
        self.views = nn.ModuleList([VIEWS[name]() for name in views])

    def forward(self, signals: Tensor) -> Tensor:
        """Return latents, laid out in a row, and what each view sees."""
        return torch.cat([self.trunk(signals).flatten(1), *(view(signals) for view in self.views)], dim=1)


class TailWithViews(nn.Module):
    """The tail behind such a trunk: latents become features, views are handed on.

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
    """Return trunk and tail with views beside them, for signals of a shape (n_chans, n_times)."""
    like = next(tail.parameters())
    with torch.no_grad():
        latents = trunk(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))
        sizes = (tail(latents).shape[1], *(VIEWS[name].size(shape[0]) for name in views))
    blocks = FeatureBlocks(("network", *views), sizes)
    return frozen(TrunkWithViews(trunk, views)), frozen(TailWithViews(tail, tuple(latents.shape[1:]), blocks))


def with_views(state: State, train: Batch, views: tuple[str, ...]) -> State:
    """Return a base model that also looks at views; prototypes are the means of all that it sees.

    A view that would take more columns than the network's features is left out: of very many channels, their
    covariances.
    """
    head = state.head
    if not isinstance(head, Cosine):
        raise TypeError(f"views go with prototypes, a Cosine head, not with a {type(head).__name__}")
    own = head.prototypes.shape[1]
    kept = tuple(name for name in views if VIEWS[name].size(state.shape[0]) <= own)
    if not kept:
        return state
    trunk, tail = add_views(state.trunk, state.tail, kept, state.shape)
    features = encode(tail, encode(trunk, train.values))
    prototypes = class_means(features, columns(train.labels, state.classes))
    return replace(state, trunk=trunk, tail=tail, head=frozen(head.with_prototypes(prototypes, width=own)))


def feature_blocks(state: State, n_columns: int) -> FeatureBlocks:
    """Return the blocks of a state's features of so many columns; the network's alone without views."""
    tail = state.tail
    return tail.blocks if isinstance(tail, TailWithViews) else FeatureBlocks(("network",), (n_columns,))


def view_sizes(state: State) -> tuple[int, ...]:
    """Return the columns of each view beside a state's features; none where there are none."""
    return state.tail.blocks.sizes[1:] if isinstance(state.tail, TailWithViews) else ()


def without_views(state: State) -> tuple[nn.Module, nn.Module]:
    """Return trunk and tail without views."""
    trunk, tail = state.trunk, state.tail
    trunk = trunk.trunk if isinstance(trunk, TrunkWithViews) else trunk
    return trunk, tail.tail if isinstance(tail, TailWithViews) else tail


def with_views_of(latents: Tensor, anchors: Tensor, state: State) -> Tensor:
    """Return latents (n, ...) of inverted signals with the views that their anchors (n, dim) had.

    Signals are inverted by what the network sees of them; the views of their anchors are known, and need not
    be made up.
    """
    if not view_sizes(state):
        return latents
    views = feature_blocks(state, anchors.shape[1]).views(anchors)
    return torch.cat([latents[:, : latents.shape[1] - views.shape[1]], views], dim=1)
