"""Feature blocks: classical features of windows, the interface and those of single channels.

A network trained on a few base classes keeps what separates those; what separates a new class may be gone
from its features. These blocks have been used on biosignals for decades, and do not depend on the base
classes.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.registry import Registry

#: Added before a logarithm, in standard deviations of the base data: silence is not -inf.
FLOOR = 1e-3
#: With at most this many channels, features of the waveform are added.
FEW_CHANNELS = 2


class Block(nn.Module, ABC):
    """Signals (n, n_chans, n_times) -> features (n, size).

    A block is made for one shape of signals. Values fitted to base windows are buffers, whose shapes follow
    from that shape, so that a file can be checked against it.

    Examples
    --------
    >>> class Range(Block):
    ...     name, citation = "range", "an example"
    ...     @property
    ...     def size(self):
    ...         return self.n_chans
    ...     def forward(self, signals):
    ...         return signals.amax(2) - signals.amin(2)
    >>> Range(2, 30)(torch.ones(5, 2, 30)).shape
    torch.Size([5, 2])
    """

    name: ClassVar[str]
    citation: ClassVar[str]

    def __init__(self, n_chans: int, n_times: int) -> None:
        super().__init__()
        self.n_chans, self.n_times = n_chans, n_times

    @classmethod
    def suits(cls, n_chans: int, n_times: int) -> bool:
        """Return whether the block applies to signals of a shape."""
        return True

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of features."""

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

    @property
    def size(self) -> int:
        """Four for each channel."""
        return 4 * self.n_chans

    def forward(self, signals: Tensor) -> Tensor:
        """Return logarithms of the two amplitudes, and the rates of the two events per sample."""
        centred = _centred(signals)
        slopes = centred.diff(dim=2)
        amplitudes = [(each.abs().mean(2) + FLOOR).log() for each in (centred, slopes)]
        # Double: integer samples often equal the mean, and single-precision rounding would put them on
        # either side of it, depending on the runtime.
        exact = _centred(signals.double())
        events = [
            (each[..., 1:] * each[..., :-1] < 0).to(signals.dtype).mean(2)
            for each in (exact, exact.diff(dim=2))
        ]
        return torch.cat([*amplitudes, *events], dim=1)


@register_block
class Spectrum(Block):
    """Log power of each channel in five bands of equal width, by averaged periodograms."""

    name = "spectrum"
    citation = "Welch, The Use of Fast Fourier Transform for the Estimation of Power Spectra, IEEE TAE 1967"

    @property
    def size(self) -> int:
        """One for each channel and band."""
        return self.n_chans * BANDS

    def forward(self, signals: Tensor) -> Tensor:
        """Return log powers, the bands of a channel side by side."""
        return band_powers(signals)


@register_block
class Autocorrelation(Block):
    """Autocorrelation of each channel at a few lags, independent of amplitude."""

    name = "autocorrelation"
    citation = "Box & Jenkins, Time Series Analysis: Forecasting and Control, 1970"
    lags = (1, 2, 3, 5, 8)

    @property
    def size(self) -> int:
        """One for each channel and lag."""
        return self.n_chans * len(self.lags)

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

    @property
    def size(self) -> int:
        """Three for each channel."""
        return 3 * self.n_chans

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
    parts = 4

    @property
    def size(self) -> int:
        """One for each channel and part."""
        return self.n_chans * self.parts

    def forward(self, signals: Tensor) -> Tensor:
        """Return log amplitudes, the parts of a channel side by side."""
        parts = F.adaptive_avg_pool1d(_centred(signals).abs(), self.parts)
        return (parts + 10 * FLOOR).log().flatten(1)


@register_block
class Waveform(Block):
    """The signal itself as 32 local means, for windows of one or two channels that are cut at an event."""

    name = "waveform"
    citation = "de Chazal et al., Automatic Classification of Heartbeats, IEEE TBME 2004"
    points = 32

    @classmethod
    def suits(cls, n_chans: int, n_times: int) -> bool:
        """Return whether there are few channels, and enough samples for the means."""
        return n_chans <= FEW_CHANNELS and n_times >= cls.points

    @property
    def size(self) -> int:
        """One for each channel and point."""
        return self.n_chans * self.points

    def forward(self, signals: Tensor) -> Tensor:
        """Return local means, the points of a channel side by side."""
        return F.adaptive_avg_pool1d(signals, self.points).flatten(1)


#: Bands of the spectrum, of equal width up to half the sampling rate, whatever that is.
BANDS = 5
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
    """Return the mean of values (n, ...) over the first axis, by weights (n,) where there are some.

    Examples
    --------
    >>> weighted_mean(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 1.0]))
    tensor(2.)
    """
    if weights is None:
        return values.mean(0)
    shares = (weights / weights.sum()).to(values)
    mean: Tensor = torch.tensordot(shares, values, dims=1)
    return mean


def _centred(signals: Tensor) -> Tensor:
    return signals - signals.mean(2, keepdim=True)
