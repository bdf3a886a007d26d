"""Hand-written gradients for the three places where most of the time goes.

Each function equals the line of ordinary torch in its docstring, in value and gradient; what differs is the
order in which memory is walked. The sizes here are unusual (heads four wide, one long axis), and the stock
gradients choose forms that suit wide matrices and square images.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import grad as conv_grad


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        weights = torch.softmax(torch.bmm(query.transpose(1, 2), key), dim=2)
        kept = weights if mask is None else weights * mask
        ctx.save_for_backward(query, key, value, weights, mask)
        return torch.bmm(value, kept.transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, weights, mask = ctx.saved_tensors
        gradient = gradient.contiguous()
        kept = weights if mask is None else weights * mask
        by_value = torch.bmm(gradient, kept)
        by_kept = torch.bmm(gradient.transpose(1, 2), value)
        by_weights = by_kept if mask is None else by_kept.mul_(mask)
        scores = torch._softmax_backward_data(by_weights, weights, 2, weights.dtype)
        return torch.bmm(key, scores.transpose(1, 2)), torch.bmm(query, scores), by_value, None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``value @ (softmax(query.mT @ key) * mask).mT``: attention with tokens along the last axis.

    Parameters
    ----------
    query, key, value : (n, width, n_tokens); the query is scaled already.
    mask : (n, n_tokens, n_tokens) of dropout, or None.

    Returns
    -------
    (n, width, n_tokens). With so few rows and tokens last, every product runs along contiguous memory.
    """
    attended: Tensor = _Attend.apply(query, key, value, mask)
    return attended


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, planes: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(planes, weight)
        ctx.stride = stride
        return F.conv2d(planes, weight, bias, stride=(1, stride))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        planes, weight = ctx.saved_tensors
        by_planes = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            by_planes = _by_input(gradient, planes, weight, ctx.stride)
        if ctx.needs_input_grad[1]:
            by_weight = conv_grad.conv2d_weight(planes, weight.shape, gradient, stride=(1, ctx.stride))
        if ctx.needs_input_grad[2]:
            by_bias = gradient.sum((0, 2, 3))
        return by_planes, by_weight, by_bias, None


def _by_input(gradient: Tensor, planes: Tensor, weight: Tensor, stride: int) -> Tensor:
    if stride > 1:
        by_planes: Tensor = conv_grad.conv2d_input(planes.shape, weight, gradient, stride=(1, stride))
        return by_planes
    # The same as a convolution with the kernel turned round; with a multiple of 8 channels it runs fastest.
    kernel = weight.flip(3).transpose(0, 1)
    n_chans = len(kernel)
    kernel = F.pad(kernel, (0, 0, 0, 0, 0, 0, 0, -n_chans % 8)).contiguous(memory_format=torch.channels_last)
    return F.conv2d(gradient, kernel, padding=(0, weight.shape[3] - 1))[:, :n_chans]


def convolve(planes: Tensor, weight: Tensor, bias: Tensor, *, stride: int) -> Tensor:
    """Return ``F.conv2d(planes, weight, bias, stride=(1, stride))`` for (n, n_chans, 1, n_times)."""
    convolved: Tensor = _Convolve.apply(planes, weight, bias, stride)
    return convolved


class _EluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: Tensor, pool: int, stride: int) -> Tensor:
        activated = F.elu(steps)
        ctx.save_for_backward(activated)
        ctx.pool, ctx.stride = pool, stride
        return F.avg_pool2d(activated, (1, pool), (1, stride))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (activated,) = ctx.saved_tensors
        # ELU's slope is 1 above zero and e^x = ELU(x) + 1 below: no need for its input.
        slope = activated.clamp(max=0).add_(1)
        # All steps of a block lie in the same windows, so their sums are made once per block.
        block = math.gcd(ctx.pool, ctx.stride)
        shares = _block_shares(
            gradient / ctx.pool, slope.shape[3] // block + 1, ctx.pool // block, ctx.stride // block
        )
        by_step = slope[:, :, 0].transpose(1, 2)  # (n, n_steps, width), where each row is contiguous
        whole = by_step.shape[1] // block
        by_step[:, : whole * block].unflatten(1, (whole, block)).mul_(shares[:, :whole, None])
        by_step[:, whole * block :].mul_(shares[:, whole:])
        return slope, None, None


def _block_shares(share: Tensor, n_blocks: int, per_window: int, stride: int) -> Tensor:
    """Sum over windows what each block gets of them: (n, width, 1, n_windows) -> (n, n_blocks, width)."""
    tokens = share[:, :, 0].transpose(1, 2)  # (n, n_windows, width)
    sums = share.new_zeros(len(share), n_blocks, share.shape[1])
    for first in range(per_window):
        sums[:, first : first + (tokens.shape[1] - 1) * stride + 1 : stride] += tokens
    return sums


def elu_pool(steps: Tensor, *, pool: int, stride: int) -> Tensor:
    """Return ``F.avg_pool2d(F.elu(steps), (1, pool), (1, stride))`` for (n, width, 1, n_steps)."""
    pooled: Tensor = _EluPool.apply(steps, pool, stride)
    return pooled
