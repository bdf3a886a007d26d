"""Layers with hand-written gradients: attention, convolution, ELU and pooling, dropout."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import grad as conv_grad


class Dropout(nn.Module):
    """Set values to zero with probability ``p`` in training and scale the rest up, like ``nn.Dropout``.

    A mask takes 16 random bits per value, a quarter of one draw of the global generator, where the stock
    one takes a whole draw and a comparison in double precision. ``p`` is met within 2⁻¹⁷, and exactly at 0.5.
    Masks are drawn on the host, whatever the device: a seed then means the same masks everywhere.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        """Return (...) of the same shape."""
        mask = self.mask(values, *values.shape)
        return values if mask is None else values * mask

    def mask(self, like: Tensor, *shape: int) -> Tensor | None:
        """Return a dropout mask of a shape, of the type of ``like``; None for all ones."""
        if not self.training or self.p == 0:
            return None
        n = math.prod(shape)
        words = torch.empty((n + 3) // 4, dtype=torch.int64)
        bits = words.random_(-(2**63), None).view(torch.int16)[:n].view(shape)
        threshold = round(self.p * 2**16) - 2**15
        return (bits >= threshold).to(like.device).to(like.dtype).mul_(1 / (1 - self.p))


#: Bytes of attention scores processed at a time, so that they stay in the cache between products.
SCORES = 2**22
#: Scores within ± this do not need the maximum subtracted before the exponential, even in single precision.
SAFE = 40.0


class _Attend(torch.autograd.Function):
    """Attention without normalised scores: softmax is e / z with e = exp(scores) and z its row sums.

    A row of ones below the values makes z come out of the product with e; a row of -Σ gradient · output
    below the gradient makes softmax's derivative come out of the product with the values. What is left to
    do on all pairs of tokens is one exponential forward and one multiplication backward.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, scale: float, mask: Tensor | None) -> Tensor:
        n, length, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        each = width // heads
        # Heads are narrow, so tokens come last: products run along contiguous memory.
        laid = qkv.new_ones(3, n, heads, each + 1, length)
        laid[..., :each, :] = qkv.view(n, length, 3, heads, each).permute(2, 0, 3, 4, 1)
        query, key, value = laid.view(3, n * heads, each + 1, length)
        query, key = query[:, :each].mul_(scale), key[:, :each]
        safe = bool(each * query.abs().amax() * key.abs().amax() <= SAFE)
        parts = _parts(qkv, n * heads, length)
        # Without a gradient to come, the powers of one part give way to those of the next.
        room = qkv.new_empty(n * heads if ctx.needs_input_grad[0] else parts[0].stop, length, length)
        sums = qkv.new_empty(n * heads, each + 1, length)
        for part in parts:
            powers = room[part] if ctx.needs_input_grad[0] else room[: part.stop - part.start]
            torch.bmm(query[part].mT, key[part], out=powers)
            if not safe:
                powers -= powers.amax(2, keepdim=True)
            powers.exp_()
            if mask is None:
                torch.bmm(value[part], powers.mT, out=sums[part])
            else:
                # Not in place: products are slow on strided rows between heads.
                sums[part, :each] = torch.bmm(value[part, :each], (powers * mask[part]).mT)
                torch.sum(powers, 2, out=sums[part, each])
        output = sums[:, :each] / sums[:, each:]
        ctx.save_for_backward(query, key, value, room, sums, output, mask)
        ctx.scale = scale
        return output.view(n, width, length).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        query, key, value, powers, sums, output, mask = ctx.saved_tensors
        n, length, width = gradient.shape
        each = query.shape[1]
        shares = torch.empty_like(sums)
        share, fall = shares[:, :each], shares[:, each]
        torch.div(gradient.transpose(1, 2).reshape(share.shape), sums[:, each:], out=share)
        torch.sum(share * output, 1, out=fall).neg_()
        by_query, by_key, by_value = by = query.new_empty(3, *query.shape)
        parts = _parts(gradient, len(query), length)
        room = torch.empty_like(powers[parts[0]])
        for part in parts:
            scores = room[: part.stop - part.start]
            if mask is None:
                torch.bmm(share[part], powers[part], out=by_value[part])
                torch.bmm(shares[part].mT, value[part], out=scores)
            else:
                torch.bmm(share[part], powers[part] * mask[part], out=by_value[part])
                torch.bmm(share[part].mT, value[part, :each], out=scores)
                scores.mul_(mask[part]).add_(fall[part, :, None])
            scores.mul_(powers[part])
            torch.bmm(key[part], scores.mT, out=by_query[part])
            torch.bmm(query[part], scores, out=by_key[part])
        by_query.mul_(ctx.scale)
        heads = len(query) // n
        by_qkv = by.view(3, n, heads, each, length).permute(1, 4, 0, 2, 3).reshape(n, length, 3 * width)
        return by_qkv, None, None, None


def _parts(like: Tensor, n_heads: int, length: int) -> list[slice]:
    step = max(1, SCORES // (length * length * like.element_size()))
    return [slice(i, min(i + step, n_heads)) for i in range(0, n_heads, step)]


def attend(qkv: Tensor, *, heads: int, scale: float, mask: Tensor | None = None) -> Tensor:
    """Return ``(softmax(scale * query @ key.mT) * mask) @ value`` of all heads, side by side.

    Parameters
    ----------
    qkv : Tensor, shape (n, n_tokens, 3 · width)
        Queries, keys and values, each with one head after the other.
    mask : Tensor, shape (n · heads, n_tokens, n_tokens) or None, default=None
        Of dropout, or None.

    Returns
    -------
    (n, n_tokens, width)
    """
    if torch.compiler.is_exporting():
        n, length, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        query, key, value = qkv.view(n, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        mixed: Tensor = F.softmax(scale * query @ key.mT, dim=3) @ value
        return mixed.transpose(1, 2).reshape(n, length, width)
    attended: Tensor = _Attend.apply(qkv, heads, scale, mask)
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
    # A convolution with the flipped kernel; fastest with a multiple of 8 channels.
    kernel = weight.flip(3).transpose(0, 1)
    n_chans = len(kernel)
    kernel = F.pad(kernel, (0, 0, 0, 0, 0, 0, 0, -n_chans % 8)).contiguous(memory_format=torch.channels_last)
    return F.conv2d(gradient, kernel, padding=(0, weight.shape[3] - 1))[:, :n_chans]


def convolve(planes: Tensor, weight: Tensor, bias: Tensor, *, stride: int) -> Tensor:
    """Return ``F.conv2d(planes, weight, bias, stride=(1, stride))`` for (n, n_chans, 1, n_times)."""
    if torch.compiler.is_exporting():
        return F.conv2d(planes, weight, bias, stride=(1, stride))
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
        # All steps of a block are in the same windows, so sums are computed once per block.
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
    """Sum over the windows of each block: (n, width, 1, n_windows) -> (n, n_blocks, width)."""
    tokens = share[:, :, 0].transpose(1, 2)  # (n, n_windows, width)
    sums = share.new_zeros(len(share), n_blocks, share.shape[1])
    for first in range(per_window):
        sums[:, first : first + (tokens.shape[1] - 1) * stride + 1 : stride] += tokens
    return sums


def elu_pool(steps: Tensor, *, pool: int, stride: int) -> Tensor:
    """Return ``F.avg_pool2d(F.elu(steps), (1, pool), (1, stride))`` for (n, width, 1, n_steps)."""
    if torch.compiler.is_exporting():
        return F.avg_pool2d(F.elu(steps), (1, pool), (1, stride))
    pooled: Tensor = _EluPool.apply(steps, pool, stride)
    return pooled
