"""The Conformer: convolutional front end, transformer blocks, layers with hand-written gradients."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import grad as conv_grad

from anchorinv.core.networks import GEOMETRIES, Geometry


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
        head_width = width // heads
        # Heads are narrow, so tokens come last: products run along contiguous memory.
        laid = qkv.new_ones(3, n, heads, head_width + 1, length)
        laid[..., :head_width, :] = qkv.view(n, length, 3, heads, head_width).permute(2, 0, 3, 4, 1)
        query, key, value = laid.view(3, n * heads, head_width + 1, length)
        query, key = query[:, :head_width].mul_(scale), key[:, :head_width]
        safe = bool(head_width * query.abs().amax() * key.abs().amax() <= SAFE)
        parts = _parts(qkv, n * heads, length)
        # Without a gradient to come, the powers of one part give way to those of the next.
        room = qkv.new_empty(n * heads if ctx.needs_input_grad[0] else parts[0].stop, length, length)
        sums = qkv.new_empty(n * heads, head_width + 1, length)
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
                sums[part, :head_width] = torch.bmm(value[part, :head_width], (powers * mask[part]).mT)
                torch.sum(powers, 2, out=sums[part, head_width])
        output = sums[:, :head_width] / sums[:, head_width:]
        ctx.save_for_backward(query, key, value, room, sums, output, mask)
        ctx.scale = scale
        return output.view(n, width, length).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        query, key, value, powers, sums, output, mask = ctx.saved_tensors
        n, length, width = gradient.shape
        head_width = query.shape[1]
        shares = torch.empty_like(sums)
        share, fall = shares[:, :head_width], shares[:, head_width]
        torch.div(gradient.transpose(1, 2).reshape(share.shape), sums[:, head_width:], out=share)
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
                torch.bmm(share[part].mT, value[part, :head_width], out=scores)
                scores.mul_(mask[part]).add_(fall[part, :, None])
            scores.mul_(powers[part])
            torch.bmm(key[part], scores.mT, out=by_query[part])
            torch.bmm(query[part], scores, out=by_key[part])
        by_query.mul_(ctx.scale)
        heads = len(query) // n
        by_qkv = by.view(3, n, heads, head_width, length).permute(1, 4, 0, 2, 3).reshape(n, length, 3 * width)
        return by_qkv, None, None, None


def _parts(like: Tensor, n_heads: int, length: int) -> list[slice]:
    step = max(1, SCORES // (length * length * like.element_size()))
    return [slice(i, min(i + step, n_heads)) for i in range(0, n_heads, step)]


def attend(qkv: Tensor, *, heads: int, scale: float, mask: Tensor | None = None) -> Tensor:
    """Return ``(softmax(scale * query @ key.mT) * mask) @ value`` (n, n_tokens, width) of all heads.

    ``qkv`` (n, n_tokens, 3 · width) has queries, keys and values, each with one head after the other;
    ``mask`` (n · heads, n_tokens, n_tokens) is of dropout.
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
    # The default initialisation of convolutions and linear layers.
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(shape).uniform_(-bound, bound)


class Attention(nn.Module):
    """Self-attention with several heads; scores are divided by √width, as EEG-Conformer does."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.heads, self.scale = geometry.heads, geometry.width**-0.5
        # Query, key and value maps in one layer: the same result with a third of the calls.
        self.qkv = nn.Linear(geometry.width, 3 * geometry.width)
        self.dropout = Dropout(geometry.dropout)
        self.projection = nn.Linear(geometry.width, geometry.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (n, n_tokens, width) to the same shape."""
        n, length, _ = tokens.shape
        mask = self.dropout.mask(tokens, n * self.heads, length, length)
        mixed = attend(self.qkv(tokens), heads=self.heads, scale=self.scale, mask=mask)
        projected: Tensor = self.projection(mixed)
        return projected


class Block(nn.Module):
    """A transformer block: attention and a two-layer network, each normed before and added after."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        width = geometry.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(geometry)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), Dropout(geometry.dropout), nn.Linear(4 * width, width)
        )
        self.dropout = Dropout(geometry.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (n, n_tokens, width) to the same shape."""
        tokens = tokens + self.dropout(self.attention(self.attention_norm(tokens)))
        added: Tensor = tokens + self.dropout(self.mlp(self.mlp_norm(tokens)))
        return added


class Conformer(nn.Module):
    """Map signals (n, n_chans, n_times) to features (n, dim): the f_θ of the paper.

    ``trunk`` is all but the last block and gives latents (n, n_tokens, width); ``tail`` is the last block,
    which incremental sessions finetune, and gives features.

    Parameters
    ----------
    geometry : Geometry
        Its sizes.

    Examples
    --------
    >>> network = Conformer(GEOMETRIES["bci2a"]).eval()
    >>> network(torch.zeros(1, 22, 1000)).shape
    torch.Size([1, 2440])
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry
        blocks = [Block(geometry) for _ in range(geometry.depth)]
        self.trunk = nn.Sequential(FrontEnd(geometry), *blocks[:-1])
        self.tail = nn.Sequential(blocks[-1], nn.Flatten())

    def forward(self, signals: Tensor) -> Tensor:
        """Return features (n, dim), token by token."""
        features: Tensor = self.tail(self.trunk(signals))
        return features

    def to_conv2d_state(self) -> dict[str, Tensor]:
        """Return the weights under the names and shapes of the usual two-convolution code."""
        return {name: view.clone() for name, view in _conv2d_views(self).items()}

    @classmethod
    def from_conv2d_state(cls, state: Mapping[str, Tensor], geometry: Geometry | None = None) -> Self:
        """Make a network from weights under the names of the usual two-convolution code.

        Parameters
        ----------
        state : mapping of str to Tensor
            As :meth:`to_conv2d_state` returns it; other keys, such as a classifier's, are refused.
        geometry : Geometry or None, default=None
            Needed where stride, pooling and length are not those of a known geometry with the same channels
            and kernel, since the weights do not tell them.
        """
        geometry = geometry or _geometry_of(state)
        with torch.random.fork_rng():  # values are overwritten
            network = cls(geometry)
        if wrong := sorted(_conv2d_views(network).keys() ^ state.keys()):
            raise ValueError(
                f"weights do not fit a Conformer with {geometry.depth} blocks: {len(wrong)} names are "
                f"missing or unknown, such as {wrong[0]!r}; pass the backbone's weights alone"
            )
        network.to(state["0.shallownet.0.weight"].dtype)
        for name, view in _conv2d_views(network).items():
            if state[name].shape != view.shape:
                raise ValueError(
                    f"{name} has shape {tuple(state[name].shape)}, {tuple(view.shape)} is needed"
                )
            view.copy_(state[name])
        return network


#: Layers of a block under their usual names, and under ours.
_USUAL_LAYERS = {
    "0.fn.0": "attention_norm",
    "0.fn.1.projection": "attention.projection",
    "1.fn.0": "mlp_norm",
    "1.fn.1.0": "mlp.0",
    "1.fn.1.3": "mlp.3",
}


def _conv2d_views(network: Conformer) -> dict[str, Tensor]:
    """Return the weights by their usual names, as views of ours in the usual shapes."""
    g, ours = network.geometry, network.state_dict()
    views = {
        "0.shallownet.0.weight": ours["trunk.0.time_weight"].view(g.width, 1, 1, g.kernel),
        "0.shallownet.0.bias": ours["trunk.0.time_bias"],
        "0.shallownet.1.weight": ours["trunk.0.space_weight"].view(g.width, g.width, g.n_chans, 1),
        "0.shallownet.1.bias": ours["trunk.0.space_bias"],
        "0.projection.0.weight": ours["trunk.0.projection.weight"].view(g.width, g.width, 1, 1),
        "0.projection.0.bias": ours["trunk.0.projection.bias"],
    }
    for kind in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        views[f"0.shallownet.2.{kind}"] = ours[f"trunk.0.norm.{kind}"]
    for i in range(g.depth):
        block = f"trunk.{i + 1}" if i < g.depth - 1 else "tail.0"
        for kind in ("weight", "bias"):
            thirds = ours[f"{block}.attention.qkv.{kind}"].chunk(3)
            for name, third in zip(("queries", "keys", "values"), thirds, strict=True):
                views[f"1.{i}.0.fn.1.{name}.{kind}"] = third
            for theirs, mine in _USUAL_LAYERS.items():
                views[f"1.{i}.{theirs}.{kind}"] = ours[f"{block}.{mine}.{kind}"]
    return views


def _geometry_of(state: Mapping[str, Tensor]) -> Geometry:
    try:
        kernel = state["0.shallownet.0.weight"].shape[-1]
        width, _, n_chans, _ = state["0.shallownet.1.weight"].shape
    except (KeyError, ValueError):
        raise ValueError("no weights of two convolutions under 0.shallownet.0 and 0.shallownet.1") from None
    blocks = [key.split(".")[1] for key in state if key.startswith("1.")]
    depth = 1 + max((int(block) for block in blocks if block.isdigit()), default=0)
    for known in GEOMETRIES.values():
        if (known.n_chans, known.kernel, known.width) == (n_chans, kernel, width):
            return replace(known, depth=depth)
    raise ValueError(
        f"no known geometry has {n_chans} channels, kernel {kernel} and width {width}; "
        f"pass geometry=Geometry({n_chans}, n_times, kernel={kernel}, ...)"
    )
