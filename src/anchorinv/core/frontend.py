"""The convolution module: signals to tokens, with the two convolutions fused into one.

Nothing lies between the temporal and the spatial convolution, so they are one linear map, and one
convolution computes it (REFERENCE of the identity: docs/method.md). In evaluation mode the BatchNorm is
linear too and joins it. The two weight tensors stay what is trained; they are fused anew in each pass,
which costs little, and gradients reach both through the fusion.
"""

import math

import torch
from torch import Tensor, nn

from anchorinv.core.dropout import Dropout
from anchorinv.core.geometry import Geometry
from anchorinv.core.kernels import convolve, elu_pool


class FrontEnd(nn.Module):
    """Map signals (n, n_chans, n_times) to tokens (n, n_tokens, width)."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        g = self.geometry = geometry
        self.time_weight = nn.Parameter(_uniform(g.width, g.kernel, fan_in=g.kernel))
        self.time_bias = nn.Parameter(_uniform(g.width, fan_in=g.kernel))
        self.space_weight = nn.Parameter(_uniform(g.width, g.width, g.n_chans, fan_in=g.width * g.n_chans))
        self.space_bias = nn.Parameter(_uniform(g.width, fan_in=g.width * g.n_chans))
        self.norm = nn.BatchNorm2d(g.width)
        self.dropout = Dropout(g.dropout)
        self.projection = nn.Linear(g.width, g.width)

    def fused(self) -> tuple[Tensor, Tensor]:
        """Return the weight (width, n_chans, kernel) and bias (width,) of the one convolution.

        W[o,c,k] = Σ_i space[o,i,c] · time[i,k] and b[o] = space_bias[o] + Σ_ic space[o,i,c] · time_bias[i].
        """
        weight = torch.einsum("oic,ik->ock", self.space_weight, self.time_weight)
        bias = self.space_bias + torch.einsum("oic,i->o", self.space_weight, self.time_bias)
        return weight, bias

    def filtered(self, signals: Tensor) -> Tensor:
        """Return the convolutions' output (n, width, 1, n_steps), before the BatchNorm."""
        return self._convolved(signals, *self.fused())

    def forward(self, signals: Tensor) -> Tensor:
        """Return tokens (n, n_tokens, width)."""
        if self.training:
            steps = self.norm(self.filtered(signals))
        else:
            steps = self._convolved(signals, *self._normed(*self.fused()))
        g = self.geometry
        pooled = elu_pool(steps, pool=g.pool, stride=g.pool_stride)
        tokens = pooled.squeeze(2).transpose(1, 2)  # (n, n_tokens, width), no copy: channels came last
        projected: Tensor = self.projection(self.dropout(tokens))
        return projected

    def _convolved(self, signals: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # Channels last is the layout in which the convolution, the pooling and the tokens need no copies.
        planes = signals.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        kernel = weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        return convolve(planes, kernel, bias, stride=self.geometry.stride)

    def _normed(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        norm = self.norm
        assert norm.running_mean is not None and norm.running_var is not None
        gain = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        return weight * gain[:, None, None], (bias - norm.running_mean) * gain + norm.bias


def _uniform(*shape: int, fan_in: int) -> Tensor:
    # The usual start of convolutions and linear layers.
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(shape).uniform_(-bound, bound)
