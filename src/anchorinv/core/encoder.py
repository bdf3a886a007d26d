"""The encoder of a discriminant: feature blocks, possibly networks, scaled and reduced to components."""

import copy
import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from anchorinv.core.blocks import BLOCKS, Block, weighted_mean
from anchorinv.core.networks import apply_on_device, encode, frozen
from anchorinv.core.riemannian import Covariance
from anchorinv.core.types import stream
from anchorinv.progress import tick

#: The blocks of the default method, in the order of their features.
CLASSICAL = (
    "covariance",
    "covariance of differences",
    "covariance of envelopes",
    "covariance with the past",
    "time-domain",
    "spectrum",
    "autocorrelation",
    "moments",
    "envelope",
    "waveform",
)
#: Maximum number of features, which bounds the size and cost of a covariance.
MOST_FEATURES = 768
#: Maximum number of features per base window, for a reliable covariance.
SHARE = 0.5
_FEWEST_FEATURES = 8
#: A feature whose deviation is a smaller share than this of 1 plus its mean never varied.
_CONSTANT = 1e-6
#: Maximum number of rectified random projections, with enough windows.
MOST_RANDOM = 500


#: The name of blocks that are networks.
NETWORK = "network"


class FeatureNetwork(nn.Sequential):
    """Trunk and tail of a network: signals -> features (n, dim)."""

    def __init__(self, trunk: nn.Module, tail: nn.Module, dim: int) -> None:
        super().__init__(trunk, tail)
        self.dim = dim


class NetworkBlock(Block):
    """The first principal components of a trained network's features.

    All features would outnumber the other blocks, and most are redundant.
    """

    name = NETWORK
    citation = "Song et al., EEG Conformer, IEEE TNSRE 2023"
    most = 100

    def __init__(self, n_chans: int, n_times: int, network: FeatureNetwork) -> None:
        super().__init__(n_chans, n_times)
        self.network, dim = network, network.dim
        self.centre: Tensor
        self.components: Tensor
        self.register_buffer("centre", torch.zeros(dim))
        self.register_buffer("components", torch.zeros(min(self.most, dim), dim))

    @property
    def size(self) -> int:
        """As many as there are components."""
        return len(self.components)

    def fitted(self, signals: Tensor, weights: Tensor | None = None) -> Self:
        """Return the block with the components of base windows; weights are ignored, as in the network."""
        block, features = copy.copy(self), encode(self.network, signals).double()
        centre = features.mean(0)
        deviation = (features - centre).square().mean(0).sqrt().clamp(min=1e-6)
        leading = principal_components((features - centre) / deviation, min(self.size, len(features)))
        missing = leading.new_zeros(self.size - len(leading), leading.shape[1])
        components = torch.cat([leading / deviation, missing])
        block._buffers = {"centre": centre.to(signals), "components": components.to(signals)}
        return block

    def forward(self, signals: Tensor) -> Tensor:
        """Return components (n, size)."""
        components: Tensor = (apply_on_device(self.network, signals) - self.centre) @ self.components.T
        return components


def principal_components(values: Tensor, n: int) -> Tensor:
    """Return the first principal components (n, dim) of centred values, with deterministic signs."""
    wide = len(values) < values.shape[1]
    # The smaller of the two Gram matrices: their eigenvalues are the same.
    gram = values @ values.T if wide else values.T @ values
    eigenvalues, vectors = torch.linalg.eigh(gram)
    directions = vectors.flip(1)[:, :n].T
    if wide:
        lengths = eigenvalues.flip(0)[:n].clamp(min=0).sqrt()[:, None]
        directions = directions @ values / lengths.clamp(min=1e-6 * float(lengths.max()) + 1e-12)
    signs = directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
    components: Tensor = directions * signs
    return components


class Encoder(nn.Module):
    """Signals -> features: components of the blocks' features, and rectified random projections of them.

    Features of a block have equal variance over the base windows, and blocks have equal total variance, so
    that no block dominates by its size. Rectified random projections allow non-linear decision boundaries
    (McDonnell et al., RanPAC, NeurIPS 2023).

    For signals of a shape (n_chans, n_times); with as many ``n_components`` as features, there is no
    reduction. There is a network for each block of that name. ``shift`` (dim,) is subtracted from the
    features: the offset of a person, where :func:`~anchorinv.core.closed_form.calibrated` measured it.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        names: Sequence[str],
        n_components: int,
        n_random: int,
        networks: Sequence[FeatureNetwork] = (),
    ) -> None:
        super().__init__()
        self.shape, self.names = shape, tuple(names)
        self.blocks = nn.ModuleList(make_blocks(shape, names, networks))
        n_columns = self.n_columns
        if not 0 < n_components <= n_columns:
            raise ValueError(f"{n_components} components do not fit {n_columns} features")
        self.centre: Tensor
        self.gain: Tensor
        self.components: Tensor
        self.random: Tensor
        self.register_buffer("centre", torch.zeros(n_columns))
        self.register_buffer("gain", torch.ones(n_columns))
        n_rows = n_components if n_components < n_columns else 0
        self.register_buffer("components", torch.empty(n_rows, n_columns))
        self.register_buffer("random", torch.empty(n_components, n_random))
        self.shift: Tensor
        self.register_buffer("shift", torch.zeros(n_components + n_random))

    @property
    def networks(self) -> tuple[FeatureNetwork, ...]:
        """The networks among the blocks."""
        return tuple(block.network for block in self.blocks if isinstance(block, NetworkBlock))

    @property
    def sizes(self) -> dict[str, int]:
        """Features of each kind of block, by its name."""
        sizes = dict.fromkeys(self.names, 0)
        for block in self.blocks:
            if isinstance(block, Block):
                sizes[block.name] += block.size
        return sizes

    @property
    def n_columns(self) -> int:
        """Number of features of all blocks."""
        return sum(self.sizes.values())

    @property
    def dim(self) -> int:
        """Number of output features."""
        return sum(self.random.shape)

    def forward(self, signals: Tensor) -> Tensor:
        """Return features (n, dim) of signals (n, n_chans, n_times)."""
        return self.project(torch.cat([block(signals) for block in self.blocks], dim=1))

    def project(self, columns: Tensor) -> Tensor:
        """Return features (n, dim) of the blocks' outputs (n, n_columns)."""
        scaled = (columns - self.centre) * self.gain
        components = scaled @ self.components.T if len(self.components) else scaled
        return torch.cat([components, torch.relu(components @ self.random)], dim=1) - self.shift

    def refitted(self, columns: Tensor, known: Tensor) -> "Encoder":
        """Return the encoder refitted to some (n,) of the base windows (n, n_columns).

        Its components are, or without any the scales of its features: both overfit few windows, which only
        windows not used to fit them can show.
        """
        some = columns[known].double()
        fitted = {"centre": some.mean(0)}
        if len(self.components):
            leading = principal_components((some - fitted["centre"]) * self.gain, len(self.components))
            # Fewer windows than components, as without a large group, leave some of these at zero.
            missing = leading.new_zeros(len(self.components) - len(leading), leading.shape[1])
            fitted["components"] = torch.cat([leading, missing])
        else:
            before, now = (values.std(0, correction=0) for values in (columns.double(), some))
            varied = now > _CONSTANT * (1 + fitted["centre"].abs())
            fitted["gain"] = torch.where(varied, self.gain * before / now, 0.0)
        other = copy.copy(self)
        other._buffers = {**self._buffers, **{name: values.to(self.gain) for name, values in fitted.items()}}
        return frozen(other)


def make_blocks(
    shape: tuple[int, int], names: Sequence[str], networks: Sequence[FeatureNetwork] = ()
) -> list[Block]:
    """Return blocks for signals of a shape (n_chans, n_times), not fitted yet."""
    if (n_blocks := tuple(names).count(NETWORK)) != len(networks):
        raise ValueError(f"{n_blocks} blocks {NETWORK!r} cannot have {len(networks)} networks")
    remaining = iter(networks)
    return [
        NetworkBlock(*shape, next(remaining)) if name == NETWORK else BLOCKS[name](*shape) for name in names
    ]


def suitable(shape: tuple[int, int], names: Sequence[str] = CLASSICAL) -> tuple[str, ...]:
    """Return the blocks that apply to signals of a shape (n_chans, n_times)."""
    return tuple(name for name in names if BLOCKS[name].suits(*shape))


@torch.no_grad()
def fit_encoder(
    signals: Tensor,
    names: Sequence[str] = CLASSICAL,
    *,
    most_features: int = MOST_FEATURES,
    most_random: int = MOST_RANDOM,
    share: float = SHARE,
    by_block: bool = True,
    networks: Sequence[FeatureNetwork] = (),
    weights: Tensor | None = None,
    rng: torch.Generator,
) -> Encoder:
    """Fit an encoder to base windows (n, n_chans, n_times), without their labels.

    It has at most ``share`` features per window, including up to ``most_random`` random projections.
    ``by_block`` gives each block the same total variance, or else each feature. Frozen networks are further
    blocks, together with the weight of one. A window with weight 2 counts as two.
    """
    shape = (signals.shape[1], signals.shape[2])
    names = suitable(shape, names) + (NETWORK,) * len(networks)
    blocks, parts = [], []
    for i, block in enumerate(make_blocks(shape, names, networks)):
        tick("features", i, len(names), note=block.name)
        blocks.append(_fitted(block.to(signals.dtype), signals, weights))  # networks stay where they are
        parts.append(encode(blocks[-1], signals))
    tick("features", len(names), len(names))
    columns = torch.cat(parts, dim=1).double()
    centre = weighted_mean(columns, weights)
    deviation = weighted_mean((columns - centre).square(), weights).sqrt()
    # A feature that never varied is ignored: its gain is 0.
    power = -0.5 if by_block else 0.0
    shares = [block.size**power * names.count(block.name) ** -0.5 for block in blocks]
    sizes = torch.tensor([block.size for block in blocks])
    spreads = torch.tensor(shares).to(deviation).repeat_interleave(sizes)
    gain = torch.where(deviation > _CONSTANT * (1 + centre.abs()), spreads / deviation, 0.0)
    n_windows = len(signals) if weights is None else float(weights.sum())
    room = int(min(most_features, max(_FEWEST_FEATURES, share * n_windows)))
    n_components = columns.shape[1] if columns.shape[1] <= room else min(room, len(signals))
    n_random = min(most_random, room - n_components)
    encoder = Encoder(shape, names, n_components, n_random, networks).to(signals.dtype)
    encoder.blocks = nn.ModuleList(blocks)
    encoder.centre, encoder.gain = centre.to(signals), gain.to(signals)
    if n_components < columns.shape[1]:
        scaled = (columns - centre) * gain
        scaled = scaled if weights is None else weights.sqrt()[:, None] * scaled
        encoder.components = principal_components(scaled, n_components).to(signals)
    drawn = torch.randn(encoder.random.shape, generator=stream(rng, "random projections"))
    encoder.random = (drawn / math.sqrt(n_components)).to(signals)
    return frozen(encoder)


def _fitted(block: Block, signals: Tensor, weights: Tensor | None) -> Block:
    # Blocks of other packages may not support weights.
    return block.fitted(signals) if weights is None else block.fitted(signals, weights)


@torch.no_grad()
def covariance_encoder(signals: Tensor, weights: Tensor | None = None) -> Encoder:
    """Return an encoder of signals (n, n_chans, n_times) to tangent vectors of covariances."""
    shape = (signals.shape[1], signals.shape[2])
    block = Covariance(*shape).to(signals).fitted(signals, weights)
    encoder = Encoder(shape, (block.name,), block.size, 0).to(signals)
    encoder.blocks = nn.ModuleList([block])
    return frozen(encoder)
