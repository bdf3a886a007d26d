"""Dropout from cheap random bits: attention weights are many, and the stock mask costs more than they do."""

import math

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Set values to zero with probability ``p`` in training and scale the rest up, like ``nn.Dropout``.

    A mask takes 16 random bits per value, a quarter of one draw of the global generator, where the stock
    one takes a whole draw and a comparison in double precision. ``p`` is met within 2⁻¹⁷, and exactly at 0.5.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        """Return (...) of the same shape."""
        mask = self.mask(values, *values.shape)
        return values if mask is None else values * mask

    def mask(self, like: Tensor, *shape: int) -> Tensor | None:
        """Return what values of a shape are multiplied with, of the kind of ``like``; None for all ones."""
        if not self.training or self.p == 0:
            return None
        n = math.prod(shape)
        words = torch.empty((n + 3) // 4, dtype=torch.int64, device=like.device)
        bits = words.random_(-(2**63), None).view(torch.int16)[:n].view(shape)
        threshold = round(self.p * 2**16) - 2**15
        return (bits >= threshold).to(like.dtype).mul_(1 / (1 - self.p))
