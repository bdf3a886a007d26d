"""The Conformer: convolutional front end, transformer blocks; the last block is the tail."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from anchorinv.core.kernels import Dropout, attend, convolve, elu_pool
from anchorinv.core.networks import GEOMETRIES, Geometry


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
        ours = self.state_dict()
        return {
            theirs: (_third(ours[name], part) if part is not None else ours[name]).reshape(shape).clone()
            for theirs, (name, part, shape) in _conv2d_layout(self.geometry).items()
        }

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
        layout = _conv2d_layout(geometry)
        if wrong := sorted(layout.keys() ^ state.keys()):
            raise ValueError(
                f"weights do not fit a Conformer with {geometry.depth} blocks: {len(wrong)} names are "
                f"missing or unknown, such as {wrong[0]!r}; pass the backbone's weights alone"
            )
        with torch.random.fork_rng():  # values are overwritten
            network = cls(geometry).to(state["0.shallownet.0.weight"].dtype)
        ours = network.state_dict()
        with torch.no_grad():
            for theirs, (name, part, shape) in layout.items():
                if state[theirs].shape != shape:
                    raise ValueError(
                        f"{theirs} has shape {tuple(state[theirs].shape)}, {tuple(shape)} is needed"
                    )
                target = _third(ours[name], part) if part is not None else ours[name]
                target.copy_(state[theirs].reshape(target.shape))
        return network


def _third(fused: Tensor, part: int) -> Tensor:
    return fused.chunk(3)[part]


def _conv2d_layout(g: Geometry) -> dict[str, tuple[str, int | None, torch.Size]]:
    """Map each usual name to our name, the third of our tensor it corresponds to (or None), and its shape."""
    layout: dict[str, tuple[str, int | None, torch.Size]] = {}

    def add(theirs: str, ours: str, *shape: int, part: int | None = None) -> None:
        layout[theirs] = (ours, part, torch.Size(shape))

    w = g.width
    add("0.shallownet.0.weight", "trunk.0.time_weight", w, 1, 1, g.kernel)
    add("0.shallownet.0.bias", "trunk.0.time_bias", w)
    add("0.shallownet.1.weight", "trunk.0.space_weight", w, w, g.n_chans, 1)
    add("0.shallownet.1.bias", "trunk.0.space_bias", w)
    for name in ("weight", "bias", "running_mean", "running_var"):
        add(f"0.shallownet.2.{name}", f"trunk.0.norm.{name}", w)
    add("0.shallownet.2.num_batches_tracked", "trunk.0.norm.num_batches_tracked")
    add("0.projection.0.weight", "trunk.0.projection.weight", w, w, 1, 1)
    add("0.projection.0.bias", "trunk.0.projection.bias", w)
    for i in range(g.depth):
        block = f"trunk.{i + 1}" if i < g.depth - 1 else "tail.0"
        for kind, shape in (("weight", (w, w)), ("bias", (w,))):
            for part, name in enumerate(("queries", "keys", "values")):
                add(f"1.{i}.0.fn.1.{name}.{kind}", f"{block}.attention.qkv.{kind}", *shape, part=part)
            add(f"1.{i}.0.fn.1.projection.{kind}", f"{block}.attention.projection.{kind}", *shape)
            add(f"1.{i}.0.fn.0.{kind}", f"{block}.attention_norm.{kind}", w)
            add(f"1.{i}.1.fn.0.{kind}", f"{block}.mlp_norm.{kind}", w)
        for layer, rows, columns in ((0, 4 * w, w), (3, w, 4 * w)):
            add(f"1.{i}.1.fn.1.{layer}.weight", f"{block}.mlp.{layer}.weight", rows, columns)
            add(f"1.{i}.1.fn.1.{layer}.bias", f"{block}.mlp.{layer}.bias", rows)
    return layout


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
