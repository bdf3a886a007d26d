"""Views of a signal that need no learning: its spectrum and the covariance of its channels.

A network that was trained to tell a few base classes apart keeps what tells those apart. What tells a new
class apart may be gone from its features, but is often in what has been known of biosignals for long: how
strong each channel is in each band, and which channels go together. Views stand beside the features, where a
head that knows the covariance (``mahalanobis.py``) gives each the same vote.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from anchorinv.core.blocks import BANDS, band_powers
from anchorinv.core.heads import Cosine, class_means
from anchorinv.core.networks import frozen, mapped
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
        # Double: the smallest of a matrix's eigenvalues would drown in rounding.
        centred = (signals - signals.mean(2, keepdim=True)).double()
        matrices = centred @ centred.transpose(1, 2) / signals.shape[2]
        level = matrices.diagonal(dim1=1, dim2=2).mean(1)
        floor = torch.eye(signals.shape[1], dtype=matrices.dtype, device=signals.device)
        matrices = matrices + (FLOOR * level + _LEAST)[:, None, None] * floor
        values, vectors = torch.linalg.eigh(matrices)
        logarithms = (vectors * values.log()[:, None, :]) @ vectors.transpose(1, 2)
        rows, cols = torch.triu_indices(signals.shape[1], signals.shape[1], device=signals.device)
        # An entry off the diagonal stands for two: distances are those of whole matrices.
        weights = torch.where(rows == cols, 1.0, math.sqrt(2)).to(logarithms)
        vectorised: Tensor = logarithms[:, rows, cols] * weights
        return vectorised.to(signals.dtype)


#: By the names under which files know them.
VIEWS: dict[str, type[Spectrum] | type[Covariance]] = {"spectrum": Spectrum, "covariance": Covariance}


class Wide(nn.Module):
    """A trunk with views beside it: signals -> latents and views, in one row (n, n_latent + n_views)."""

    def __init__(self, trunk: nn.Module, views: tuple[str, ...]) -> None:
        super().__init__()
        self.trunk, self.names = trunk, views
        self.views = nn.ModuleList([VIEWS[name]() for name in views])

    def forward(self, signals: Tensor) -> Tensor:
        """Return latents, laid out in a row, and what each view sees."""
        return torch.cat([self.trunk(signals).flatten(1), *(view(signals) for view in self.views)], dim=1)


class WideTail(nn.Module):
    """The tail behind a wide trunk: latents become features, views are handed on.

    Parameters
    ----------
    latent : shape of the tail's own input.
    sizes : columns of its features, then of each view.
    """

    def __init__(self, tail: nn.Module, latent: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.tail, self.latent, self.sizes = tail, latent, sizes

    def forward(self, wide: Tensor) -> Tensor:
        """Return features and views (n, sum of sizes)."""
        n_latent = math.prod(self.latent)
        return torch.cat([self.tail(wide[:, :n_latent].reshape(-1, *self.latent)), wide[:, n_latent:]], dim=1)


def widened(
    trunk: nn.Module, tail: nn.Module, views: tuple[str, ...], shape: tuple[int, int]
) -> tuple[Wide, WideTail]:
    """Return trunk and tail with views beside them, for signals of a shape (n_chans, n_times)."""
    like = next(tail.parameters())
    with torch.no_grad():
        latents = trunk(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))
        sizes = (tail(latents).shape[1], *(VIEWS[name].size(shape[0]) for name in views))
    return frozen(Wide(trunk, views)), frozen(WideTail(tail, tuple(latents.shape[1:]), sizes))


def with_views(state: State, train: Batch, views: tuple[str, ...]) -> State:
    """Return a base model that also looks at views; prototypes are the means of all that it sees.

    A view that would take more than the features is left out: of very many channels, their covariances.
    """
    head = state.head
    if not isinstance(head, Cosine):
        raise TypeError(f"views go with prototypes, a Cosine head, not with a {type(head).__name__}")
    own = head.prototypes.shape[1]
    kept = tuple(name for name in views if VIEWS[name].size(state.shape[0]) <= own)
    if not kept:
        return state
    trunk, tail = widened(state.trunk, state.tail, kept, state.shape)
    seen = mapped(tail, mapped(trunk, train.values))
    prototypes = class_means(seen, columns(train.labels, state.classes))
    return replace(state, trunk=trunk, tail=tail, head=frozen(head.with_prototypes(prototypes, width=own)))


def sizes_of(state: State) -> tuple[int, ...]:
    """Return the columns of each view beside a state's features; none where there are none."""
    return state.tail.sizes[1:] if isinstance(state.tail, WideTail) else ()


def bare(state: State) -> tuple[nn.Module, nn.Module]:
    """Return trunk and tail without views."""
    trunk, tail = state.trunk, state.tail
    trunk = trunk.trunk if isinstance(trunk, Wide) else trunk
    return trunk, tail.tail if isinstance(tail, WideTail) else tail


def seen_as(latents: Tensor, anchors: Tensor, state: State) -> Tensor:
    """Return latents (n, ...) of inverted signals with the views that their anchors (n, dim) had.

    Signals are inverted by what the network sees of them; the views of their anchors are known, and need not
    be made up.
    """
    n_views = sum(sizes_of(state))
    if not n_views:
        return latents
    return torch.cat([latents[:, :-n_views], anchors[:, -n_views:]], dim=1)
