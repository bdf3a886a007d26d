"""Backbones split elsewhere than before their last block: what sessions train is the tail."""

import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HIDDEN = 512, 1024


class Pooled(nn.Module):
    """Average features (n, dim) down to (n, 512)."""

    def forward(self, features: Tensor) -> Tensor:
        """Return (n, 512)."""
        return F.adaptive_avg_pool1d(features.unsqueeze(1), WIDTH).squeeze(1)


class Projector(nn.Module):
    """Two hidden layers and a skip: (n, 512) -> (n, 512)."""

    def __init__(self) -> None:
        super().__init__()
        first = [nn.Linear(WIDTH, HIDDEN), nn.LayerNorm(HIDDEN), nn.LeakyReLU(0.1)]
        second = [nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN), nn.LeakyReLU(0.1)]
        self.layers = nn.Sequential(*first, *second, nn.Linear(HIDDEN, WIDTH, bias=False))
        self.skip = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return (n, 512)."""
        projected: Tensor = self.layers(pooled) + self.skip(pooled)
        return projected


class Projected(nn.Module):
    """Split a backbone after the pooling: all of it is the trunk, the projector is the tail."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.trunk = nn.Sequential(backbone, Pooled())
        self.tail = Projector()

    def forward(self, signals: Tensor) -> Tensor:
        """Return (n, 512)."""
        projected: Tensor = self.tail(self.trunk(signals))
        return projected


class Whole(nn.Module):
    """Leave nothing frozen: the trunk does nothing, the tail is all of a backbone."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.trunk = nn.Identity()
        self.tail = backbone

    def forward(self, signals: Tensor) -> Tensor:
        """Return features (n, dim)."""
        features: Tensor = self.tail(signals)
        return features
