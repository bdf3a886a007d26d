"""A trained network's features as one block beside the others."""

import copy
from typing import Self

import torch
from torch import Tensor, nn

from anchorinv.core.blocks import Block
from anchorinv.core.networks import mapped

#: Its name; a shape alone does not make it.
NETWORK = "network"


class FeatureNetwork(nn.Sequential):
    """Trunk and tail of a network in one, signals -> features (n, dim)."""

    def __init__(self, trunk: nn.Module, tail: nn.Module, dim: int) -> None:
        super().__init__(trunk, tail)
        self.dim = dim


class NetworkBlock(Block):
    """The first principal components of a trained network's features.

    All of them would be far more than all other blocks have, and most say the same.
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

    def fitted(self, signals: Tensor) -> Self:
        """Return the block with the components of base windows."""
        block, features = copy.copy(self), mapped(self.network, signals).double()
        centre = features.mean(0)
        deviation = (features - centre).square().mean(0).sqrt().clamp(min=1e-6)
        found = principal_components((features - centre) / deviation, min(self.size, len(features)))
        missing = found.new_zeros(self.size - len(found), found.shape[1])
        components = torch.cat([found / deviation, missing])
        block._buffers = {"centre": centre.to(signals), "components": components.to(signals)}
        return block

    def forward(self, signals: Tensor) -> Tensor:
        """Return components (n, size)."""
        components: Tensor = (self.network(signals) - self.centre) @ self.components.T
        return components


def principal_components(values: Tensor, n: int) -> Tensor:
    """Return the first principal components (n, dim) of centred values, with signs that are not chance."""
    wide = len(values) < values.shape[1]
    # Of the two Gram matrices the smaller: their eigenvalues are the same.
    gram = values @ values.T if wide else values.T @ values
    found, vectors = torch.linalg.eigh(gram)
    directions = vectors.flip(1)[:, :n].T
    if wide:
        lengths = found.flip(0)[:n].clamp(min=0).sqrt()[:, None]
        directions = directions @ values / lengths.clamp(min=1e-6 * float(lengths.max()) + 1e-12)
    signs = directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
    components: Tensor = directions * signs
    return components
