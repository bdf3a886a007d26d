"""Feature blocks: classical features of windows, of single channels here; and views, those beside a network.

A network trained on a few base classes keeps what separates those; what separates a new class may be gone
from its features. These features have been used on biosignals for decades, and do not depend on the base
classes. Blocks are the features of a closed form (``encoder.py``). Views are appended to the network's
features, and a head with covariances (``mahalanobis.py``) weighs them equally.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.heads import Cosine, class_means
from anchorinv.core.networks import encode, frozen
from anchorinv.core.registry import Registry
from anchorinv.core.types import Batch, State, columns

#: Added before a logarithm, in standard deviations of the base data: silence is not -inf.
FLOOR = 1e-3
#: Bands of the spectrum, of equal width up to half the sampling rate, whatever that is.
BANDS = 5
#: With at most this many channels, features of the waveform are added.
FEW_CHANNELS = 2


class Block(nn.Module, ABC):
    """Signals (n, n_chans, n_times) -> features (n, size).

    A block is made for one shape of signals. Values fitted to base windows are buffers, whose shapes follow
    from that shape, so that a file can be checked against it.

    Examples
    --------
    >>> class Range(Block):
    ...     name, citation, per_channel = "range", "an example", 1
    ...     def forward(self, signals):
    ...         return signals.amax(2) - signals.amin(2)
    >>> Range(2, 30)(torch.ones(5, 2, 30)).shape
    torch.Size([5, 2])
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    per_channel: ClassVar[int]

    def __init__(self, n_chans: int, n_times: int) -> None:
        super().__init__()
        self.n_chans, self.n_times = n_chans, n_times

    @classmethod
    def suits(cls, n_chans: int, n_times: int) -> bool:
        """Return whether the block applies to signals of a shape."""
        return True

    @property
    def size(self) -> int:
        """Number of features, ``per_channel`` for each channel unless a block has another."""
        return self.n_chans * self.per_channel

    def fitted(self, signals: Tensor, weights: Tensor | None = None) -> Self:
        """Return the block fitted to base windows (n, n_chans, n_times) with weights (n,)."""
        return self

    @abstractmethod
    def forward(self, signals: Tensor) -> Tensor:
        """Return features (n, size)."""


B = TypeVar("B", bound=type[Block])

#: All blocks by their names in files.
BLOCKS: Registry[type[Block]] = Registry("block", ("anchorinv.core.blocks", "anchorinv.core.riemannian"))


def register_block(block: B) -> B:
    """Class decorator that registers a block for encoders and model files."""
    BLOCKS.register(block.name, block)
    return block


@register_block
class TimeDomain(Block):
    """Mean absolute value, waveform length, zero crossings and slope sign changes of each channel."""

    name = "time-domain"
    citation = "Hudgins et al., A New Strategy for Multifunction Myoelectric Control, IEEE TBME 1993"
    per_channel = 4

    def forward(self, signals: Tensor) -> Tensor:
        """Return logarithms of the two amplitudes, and the rates of the two events per sample."""
        centred = _centred(signals)
        slopes = centred.diff(dim=2)
        amplitudes = [(part.abs().mean(2) + FLOOR).log() for part in (centred, slopes)]
        # Double: integer samples often equal the mean, and single-precision rounding would put them on
        # either side of it, depending on the runtime.
        exact = _centred(signals.double())
        events = [
            (part[..., 1:] * part[..., :-1] < 0).to(signals.dtype).mean(2)
            for part in (exact, exact.diff(dim=2))
        ]
        return torch.cat([*amplitudes, *events], dim=1)


@register_block
class Spectrum(Block):
    """Log power of each channel in five bands of equal width, by averaged periodograms."""

    name = "spectrum"
    citation = "Welch, The Use of Fast Fourier Transform for the Estimation of Power Spectra, IEEE TAE 1967"
    per_channel = BANDS

    def forward(self, signals: Tensor) -> Tensor:
        """Return log powers, the bands of a channel side by side."""
        return band_powers(signals)


@register_block
class Autocorrelation(Block):
    """Autocorrelation of each channel at a few lags, independent of amplitude."""

    name = "autocorrelation"
    citation = "Box & Jenkins, Time Series Analysis: Forecasting and Control, 1970"
    lags = (1, 2, 3, 5, 8)
    per_channel = len(lags)

    def forward(self, signals: Tensor) -> Tensor:
        """Return correlations in [-1, 1], lag by lag."""
        centred = _centred(signals)
        power = centred.square().mean(2) + FLOOR**2
        products = [(centred[..., lag:] * centred[..., :-lag]).mean(2) for lag in self.lags]
        return torch.cat([product / power for product in products], dim=1)


@register_block
class Moments(Block):
    """Shape of each channel's distribution: skewness, log kurtosis, mean absolute value over deviation."""

    name = "moments"
    citation = "Joanes & Gill, Comparing Measures of Sample Skewness and Kurtosis, The Statistician 1998"
    per_channel = 3

    def forward(self, signals: Tensor) -> Tensor:
        """Return the three, one after the other."""
        centred = _centred(signals)
        scaled = centred / (centred.square().mean(2, keepdim=True).sqrt() + FLOOR)
        kurtosis = (scaled.pow(4).mean(2) + FLOOR).log()
        return torch.cat([scaled.pow(3).mean(2), kurtosis, scaled.abs().mean(2)], dim=1)


@register_block
class Envelope(Block):
    """Log mean absolute value of each channel in four parts of the window: its envelope."""

    name = "envelope"
    citation = "Hogan & Mann, Myoelectric Signal Processing: Optimal Estimation, IEEE TBME 1980"
    per_channel = 4

    def forward(self, signals: Tensor) -> Tensor:
        """Return log amplitudes, the parts of a channel side by side."""
        parts = F.adaptive_avg_pool1d(_centred(signals).abs(), self.per_channel)
        return (parts + 10 * FLOOR).log().flatten(1)


@register_block
class Waveform(Block):
    """The signal itself as 32 local means, for windows of one or two channels that are cut at an event."""

    name = "waveform"
    citation = "de Chazal et al., Automatic Classification of Heartbeats, IEEE TBME 2004"
    per_channel = 32

    @classmethod
    def suits(cls, n_chans: int, n_times: int) -> bool:
        """Return whether there are few channels, and enough samples for the means."""
        return n_chans <= FEW_CHANNELS and n_times >= cls.per_channel

    def forward(self, signals: Tensor) -> Tensor:
        """Return local means, the points of a channel side by side."""
        return F.adaptive_avg_pool1d(signals, self.per_channel).flatten(1)


_FLOOR_OF_BANDS = 1e-3
_LEAST = 1e-8


def band_powers(signals: Tensor) -> Tensor:
    """Return the log power of each channel in each of ``BANDS`` bands (n, n_chans * BANDS)."""
    length = max(2, signals.shape[2] // 4)
    pieces = signals.unfold(2, length, max(1, length // 2))  # (n, n_chans, n_pieces, length)
    pieces = pieces - pieces.mean(-1, keepdim=True)
    window = torch.hann_window(length, periodic=False, dtype=signals.dtype, device=signals.device)
    power = torch.fft.rfft(pieces * window).abs().square().mean(2)[:, :, 1:]  # without the mean
    n_bins = power.shape[2]
    edges = [round(i * n_bins / BANDS) for i in range(BANDS + 1)]
    # In very short windows some bands share a bin.
    starts = [min(low, n_bins - 1) for low in edges[:-1]]
    ends = [max(low + 1, high) for low, high in zip(starts, edges[1:], strict=True)]
    bands = [power[:, :, low:high].mean(2) for low, high in zip(starts, ends, strict=True)]
    inside = torch.stack(bands, dim=2)
    floor = _FLOOR_OF_BANDS * inside.mean(2, keepdim=True) + _LEAST
    return (inside + floor).log().flatten(1)


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of values (n, ...) over the first axis, by weights (n,) where there are some."""
    if weights is None:
        return values.mean(0)
    shares = (weights / weights.sum()).to(values)
    mean: Tensor = torch.tensordot(shares, values, dims=1)
    return mean


def _centred(signals: Tensor) -> Tensor:
    return signals - signals.mean(2, keepdim=True)


#: Added to the covariances of a view before their logarithm, relative to their mean.
FLOOR_OF_COVARIANCES = 1e-2


def log_covariances(signals: Tensor) -> Tensor:
    """Return logarithms of the channels' covariances (n, n_chans (n_chans + 1) / 2) of signals.

    Straight lines between logarithms are geodesics (Arsigny et al., SIAM J. Matrix Anal. 2007), so that
    differences and means of them are more meaningful than those of covariances (Barachant et al., IEEE TBME
    2012).
    """
    # Double, on the host: the smallest eigenvalues would be lost in rounding.
    centred = _centred(signals).cpu().double()
    matrices = centred @ centred.transpose(1, 2) / signals.shape[2]
    floor = FLOOR_OF_COVARIANCES * matrices.diagonal(dim1=1, dim2=2).mean(1) + _LEAST
    regular = matrices + floor[:, None, None] * torch.eye(signals.shape[1]).double()
    return upper_triangles(matrix_function(regular, torch.log)).to(signals.dtype).to(signals.device)


def matrix_function(matrices: Tensor, apply: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to the eigenvalues of symmetric matrices (..., c, c)."""
    values, vectors = torch.linalg.eigh(matrices)
    result: Tensor = (vectors * apply(values)[..., None, :]) @ vectors.transpose(-1, -2)
    return result


def upper_triangles(matrices: Tensor) -> Tensor:
    """Return the upper triangles (n, c (c + 1) / 2) of symmetric matrices (n, c, c).

    Off-diagonal entries count twice, so that distances are those of whole matrices.
    """
    size = matrices.shape[-1]
    rows, cols = torch.triu_indices(size, size, device=matrices.device)
    weights = torch.where(rows == cols, 1.0, math.sqrt(2)).to(matrices)
    return matrices[:, rows, cols] * weights


class View(NamedTuple):
    """Fixed features of a signal."""

    #: Number of channels -> number of features.
    size: Callable[[int], int]
    #: Signals (n, n_chans, n_times) -> features (n, size).
    features: Callable[[Tensor], Tensor]


#: Views by their names in files.
VIEWS = {
    "spectrum": View(lambda n_chans: n_chans * BANDS, band_powers),
    "covariance": View(lambda n_chans: n_chans * (n_chans + 1) // 2, log_covariances),
}


class TrunkWithViews(nn.Module):
    """A trunk with views: signals -> latents and views in one row (n, n_latent + n_views)."""

    def __init__(self, trunk: nn.Module, views: tuple[str, ...]) -> None:
        super().__init__()
        self.trunk, self.names = trunk, views

    def forward(self, signals: Tensor) -> Tensor:
        """Return flattened latents and all views."""
        views = (VIEWS[name].features(signals) for name in self.names)
        return torch.cat([self.trunk(signals).flatten(1), *views], dim=1)


class TailWithViews(nn.Module):
    """The tail of such a trunk: latents of a shape become features, views are passed through.

    ``sizes`` are the columns of the network's features, and of each view.
    """

    def __init__(self, tail: nn.Module, latent: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.tail, self.latent, self.sizes = tail, latent, sizes

    def forward(self, row: Tensor) -> Tensor:
        """Return features and views (n, sum of the sizes)."""
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
    return frozen(TrunkWithViews(trunk, views)), frozen(TailWithViews(tail, tuple(latents.shape[1:]), sizes))


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


def view_sizes(state: State) -> tuple[int, ...]:
    """Return the number of columns of each view of a state."""
    return state.tail.sizes[1:] if isinstance(state.tail, TailWithViews) else ()


def network_columns(state: State, features: Tensor) -> Tensor:
    """Return the columns of features (n, dim) that are the network's, without those of views."""
    return features[:, : features.shape[1] - sum(view_sizes(state))]


def without_views(state: State) -> tuple[nn.Module, nn.Module]:
    """Return trunk and tail without views."""
    trunk, tail = state.trunk, state.tail
    trunk = trunk.trunk if isinstance(trunk, TrunkWithViews) else trunk
    return trunk, tail.tail if isinstance(tail, TailWithViews) else tail


def with_views_of(latents: Tensor, anchors: Tensor, state: State) -> Tensor:
    """Return latents (n, ...) of inverted signals with the views that their anchors (n, dim) had.

    Signals are inverted by the network's features; the views of their anchors are known.
    """
    if not (n_views := sum(view_sizes(state))):
        return latents
    return torch.cat([latents[:, :-n_views], anchors[:, -n_views:]], dim=1)
