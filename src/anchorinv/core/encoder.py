"""From a window to the features that a discriminant works on: blocks, evened out, and bounded in number."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anchorinv.core.blocks import Autocorrelation, Block, Envelope, Moments, Spectrum, TimeDomain, Waveform
from anchorinv.core.network_block import NETWORK, FeatureNetwork, NetworkBlock, principal_components
from anchorinv.core.networks import frozen, mapped
from anchorinv.core.progress import tick
from anchorinv.core.rng import stream
from anchorinv.core.tangent import Covariance, DifferenceCovariance, EnvelopeCovariance, LaggedCovariance

#: By the names under which files know them, in the order of their features.
BLOCKS: dict[str, type[Block]] = {
    block.name: block
    for block in (
        Covariance,
        DifferenceCovariance,
        EnvelopeCovariance,
        LaggedCovariance,
        TimeDomain,
        Spectrum,
        Autocorrelation,
        Moments,
        Envelope,
        Waveform,
    )
}
#: Of its standard deviation beside that of another block. At 1 it did harm on two sets of four.
NETWORK_WEIGHT = 0.3
#: Features in all: what a covariance of them takes in a file, and a second, is bounded by it.
MOST_FEATURES = 768
#: At most so many features to a base window: of more, a covariance is mostly chance.
SHARE = 0.5
_FEWEST = 8
#: Rectified random projections beside the components, where windows are many enough.
MOST_RANDOM = 500


class Encoder(nn.Module):
    """Signals -> features: components of the blocks' features, and rectified random projections of them.

    Each feature of a block has the same variance over the base windows, and each block the same variance in
    all, so that no block rules by its size. Projections at random, rectified, let a linear classifier draw
    curved borders (McDonnell et al., RanPAC, NeurIPS 2023).

    Parameters
    ----------
    shape : (int, int)
        Channels and samples of a signal.
    names : sequence of str
        Of the blocks.
    n_components : int
        As many principal components; as many as the blocks have features takes these as they are.
    n_random : int
        As many random projections.
    network : FeatureNetwork, optional
        Signals -> features, for the block of this name.

    Attributes
    ----------
    shift : Tensor, shape (dim,)
        Taken from the features: what a person differs by from the base windows, where that was measured.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        names: Sequence[str],
        n_components: int,
        n_random: int,
        network: FeatureNetwork | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.names = shape, tuple(names)
        self.blocks = nn.ModuleList([make_block(name, shape, network) for name in names])
        n_columns = self.n_columns
        if not 0 < n_components <= n_columns:
            raise ValueError(f"{n_components} components of {n_columns} features cannot be")
        self.centre: Tensor
        self.gain: Tensor
        self.components: Tensor
        self.random: Tensor
        self.register_buffer("centre", torch.zeros(n_columns))
        self.register_buffer("gain", torch.ones(n_columns))
        whole = n_components == n_columns
        self.register_buffer("components", torch.empty(0 if whole else n_components, n_columns))
        self.register_buffer("random", torch.empty(n_components, n_random))
        self.shift: Tensor
        self.register_buffer("shift", torch.zeros(n_components + n_random))

    @property
    def network(self) -> FeatureNetwork | None:
        """The network behind one of the blocks, if there is one."""
        return next((block.network for block in self.blocks if isinstance(block, NetworkBlock)), None)

    @property
    def sizes(self) -> dict[str, int]:
        """Features of each block, by its name."""
        return {block.name: block.size for block in self.blocks if isinstance(block, Block)}

    @property
    def n_columns(self) -> int:
        """Features of all blocks."""
        return sum(self.sizes.values())

    @property
    def dim(self) -> int:
        """Features that come out."""
        return sum(self.random.shape)

    def forward(self, signals: Tensor) -> Tensor:
        """Return features (n, dim) of signals (n, n_chans, n_times)."""
        columns = torch.cat([block(signals) for block in self.blocks], dim=1)  # (n, n_columns)
        evened = (columns - self.centre) * self.gain
        components = evened @ self.components.T if len(self.components) else evened
        return torch.cat([components, torch.relu(components @ self.random)], dim=1) - self.shift


def make_block(name: str, shape: tuple[int, int], network: FeatureNetwork | None = None) -> Block:
    """Return a block for signals of a shape (n_chans, n_times), not fitted yet."""
    if name != NETWORK:
        return BLOCKS[name](*shape)
    if network is None:
        raise ValueError(f"the block {NETWORK!r} needs a network")
    return NetworkBlock(*shape, network)


def suitable(shape: tuple[int, int], names: Sequence[str] = tuple(BLOCKS)) -> tuple[str, ...]:
    """Return the blocks that suit signals of a shape (n_chans, n_times)."""
    return tuple(name for name in names if BLOCKS[name].suits(*shape))


@torch.no_grad()
def fit_encoder(
    signals: Tensor,
    names: Sequence[str] = tuple(BLOCKS),
    *,
    most_features: int = MOST_FEATURES,
    most_random: int = MOST_RANDOM,
    share: float = SHARE,
    by_block: bool = True,
    network: FeatureNetwork | None = None,
    rng: torch.Generator,
) -> Encoder:
    """Return the encoder that base windows (n, n_chans, n_times) determine; their classes play no part.

    Parameters
    ----------
    most_features : int
        That come out; fewer where base windows are few.
    most_random : int
        Random projections among them, where there is room.
    share : float
        Features to a base window, at the most.
    by_block : bool
        Whether each block has the same variance in all, or each feature of every block.
    network : FeatureNetwork, optional
        Trained and frozen: its features are one block more, with less weight than the others.
    """
    shape = (signals.shape[1], signals.shape[2])
    names = suitable(shape, names) + (() if network is None else (NETWORK,))
    blocks, parts = [], []
    for i, name in enumerate(names):
        tick("features", i, len(names), note=name)
        blocks.append(make_block(name, shape, network).to(signals).fitted(signals))
        parts.append(mapped(blocks[-1], signals))
    tick("features", len(names), len(names))
    columns = torch.cat(parts, dim=1).double()
    centre = columns.mean(0)
    deviation = (columns - centre).square().mean(0).sqrt()
    # A feature that never varied says nothing here, and whatever it may say later.
    power = -0.5 if by_block else 0.0
    shares = [block.size**power * (NETWORK_WEIGHT if block.name == NETWORK else 1.0) for block in blocks]
    sizes = torch.tensor([block.size for block in blocks])
    weights = torch.tensor(shares).to(deviation).repeat_interleave(sizes)
    gain = torch.where(deviation > 1e-6 * (1 + centre.abs()), weights / deviation, 0.0)
    room = int(min(most_features, max(_FEWEST, share * len(signals))))
    n_components = columns.shape[1] if columns.shape[1] <= room else min(room, len(signals))
    n_random = min(most_random, room - n_components)
    encoder = Encoder(shape, names, n_components, n_random, network).to(signals)
    encoder.blocks = nn.ModuleList(blocks)
    encoder.centre, encoder.gain = centre.to(signals), gain.to(signals)
    if n_components < columns.shape[1]:
        encoder.components = principal_components((columns - centre) * gain, n_components).to(signals)
    drawn = torch.randn(encoder.random.shape, generator=stream(rng, "random projections"))
    encoder.random = (drawn / math.sqrt(n_components)).to(signals)
    return frozen(encoder)


@torch.no_grad()
def covariance_encoder(signals: Tensor) -> Encoder:
    """Return an encoder of signals (n, n_chans, n_times) to tangent vectors of their covariances, as is."""
    shape = (signals.shape[1], signals.shape[2])
    block = Covariance(*shape).to(signals).fitted(signals)
    encoder = Encoder(shape, (block.name,), block.size, 0).to(signals)
    encoder.blocks = nn.ModuleList([block])
    return frozen(encoder)
