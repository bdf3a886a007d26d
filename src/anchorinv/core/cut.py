"""Where to split a network: its recorded calls, the classifier, and the last block before it.

Nothing is assumed about how a network is written: it is run, and its calls are recorded. A *unit* is a call
that is not looked into; the code of the network between units is run as it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from anchorinv.core.types import stream

#: The path of a module, and the index of the call among its calls.
Key = tuple[str, int]

# Two batch sizes, whose comparison shows how a dimension grows with the batch.
FEW, MORE = 3, 5

#: Containers of torch, which are opened; any other module of torch is one layer, whatever it calls.
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.TransformerEncoder, nn.TransformerDecoder)
#: Layers whose weights do not mix their inputs.
_NOT_MIXING = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.Embedding)


class BackboneError(ValueError):
    """A network that cannot be used as a backbone, with the reason and a remedy."""


@dataclass(slots=True, eq=False)
class Call:
    """The call of a module: its inputs, its output and the calls within it."""

    name: str
    index: int
    module: nn.Module
    inputs: list[Tensor]
    outputs: Any = None
    children: list["Call"] = field(default_factory=list)

    @property
    def key(self) -> Key:
        """The path of the module and the index of the call."""
        return self.name, self.index

    @property
    def mixes_inputs(self) -> bool:
        """Whether its weights mix its inputs, as those of a convolution do."""
        modules = [m for m in self.module.modules() if not isinstance(m, _NOT_MIXING)]
        return any(p.ndim > 1 for m in modules for p in m.parameters(recurse=False))

    @property
    def is_single_layer(self) -> bool:
        """Whether its weights belong to a single layer."""
        of_torch = type(self.module).__module__.startswith("torch.nn.")
        return (of_torch and not isinstance(self.module, _CONTAINERS)) or not any(
            c.mixes_inputs for c in self.children
        )

    @property
    def output(self) -> Tensor | None:
        """The first tensor of its output."""
        return next(iter(tensors_of(self.outputs)), None)

    def is_inside(self, name: str) -> bool:
        """Whether it is the module with this path, or inside it."""
        return self.name == name or self.name.startswith(f"{name}.")

    def layers(self) -> Iterator["Call"]:
        """Yield the calls of single layers whose weights mix their inputs, in order."""
        if self.mixes_inputs and self.is_single_layer and self.name:
            yield self
        elif self.mixes_inputs:
            for call in self.children:
                yield from call.layers()

    def descendants(self) -> Iterator["Call"]:
        """Yield all calls within it, at any depth."""
        for inner in self.children:
            yield inner
            yield from inner.descendants()


def leaves_of(values: Any) -> list[Any]:
    """Flatten nested tuples, lists and dicts."""
    if not isinstance(values, dict | list | tuple):
        return [values]
    items = values.values() if isinstance(values, dict) else values
    return [leaf for item in items for leaf in leaves_of(item)]


def nested_like(values: Any, leaves: Iterator[Any]) -> Any:
    """Nest leaves in the structure of some values."""
    if isinstance(values, dict):
        return {name: nested_like(value, leaves) for name, value in values.items()}
    if isinstance(values, list | tuple):
        items = [nested_like(value, leaves) for value in values]
        return type(values)(*items) if hasattr(values, "_fields") else type(values)(items)
    return next(leaves)


def tensors_of(values: Any) -> list[Tensor]:
    """Return the floating-point tensors in nested values, in order."""
    return [leaf for leaf in leaves_of(values) if is_float(leaf)]


def is_float(value: Any) -> bool:
    """Return whether a value is a floating-point tensor."""
    return isinstance(value, Tensor) and value.is_floating_point()


def record(
    network: nn.Module, signals: Tensor, change: Mapping[Key, Callable[[Tensor], Tensor]] | None = None
) -> Call:
    """Run a network on signals and record its calls; ``change`` maps calls to a change of their output."""
    root = Call("", 0, network, [signals])
    stack, counts, changes = [root], dict[str, int](), change or {}

    def before(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        index = counts[name] = counts.get(name, -1) + 1
        call = Call(name, index, module, tensors_of((args, kwargs)))
        stack[-1].children.append(call)
        stack.append(call)

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        call = stack.pop()
        if (alter := changes.get(call.key)) is not None:
            changed = (alter(leaf) if is_float(leaf) else leaf for leaf in leaves_of(output))
            output = nested_like(output, changed)
        call.outputs = output
        return output

    with ExitStack() as hooks:
        for name, module in network.named_modules():
            # Parametrisations, such as weight norm, are part of their layer.
            if name and "parametrizations" not in name.split("."):
                enter = module.register_forward_pre_hook(partial(before, name), with_kwargs=True)
                leave = module.register_forward_hook(after)
                hooks.callback(enter.remove)
                hooks.callback(leave.remove)
        root.outputs = network(signals)
    return root


def gradients(total: Tensor, of: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradients of a scalar, None for tensors it does not depend on."""
    inputs = [tensor for tensor in of if tensor.requires_grad]
    if not total.requires_grad or not inputs:
        return [None] * len(of)
    computed = iter(torch.autograd.grad(total, inputs, allow_unused=True))
    return [next(computed) if tensor.requires_grad else None for tensor in of]


def random_signals(n: int, shape: tuple[int, int]) -> Tensor:
    """Return standard normal signals (n, n_chans, n_times), the same in every call."""
    return torch.randn(n, *shape, generator=stream(n, "random signals")).requires_grad_()


def reason_of(error: Exception) -> str:
    """Return the first line of an error message."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


class BatchShape(NamedTuple):
    """The shape of a tensor for any batch size: which dimension grows with it, and by how much."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int | None  # None if none grows
    per_window: int

    @classmethod
    def of(cls, few: Tensor, more: Tensor) -> "BatchShape":
        """Compare the same tensor for ``FEW`` and for ``MORE`` windows."""
        pairs = list(zip(few.shape, more.shape, strict=True)) if few.ndim == more.ndim else []
        grown = [i for i, (a, b) in enumerate(pairs) if a != b]
        fits = len(grown) == 1 and few.shape[grown[0]] * MORE == more.shape[grown[0]] * FEW
        dim = grown[0] if fits and few.shape[grown[0]] % FEW == 0 else None
        return cls(tuple(few.shape), few.dtype, dim, per_window=1 if dim is None else few.shape[dim] // FEW)

    def zeros(self, n: int, like: Tensor) -> Tensor:
        """Return zeros for n windows, in place of a tensor that is not needed."""
        sizes = [n * self.per_window if i == self.dim else size for i, size in enumerate(self.shape)]
        return torch.zeros(sizes, dtype=self.dtype, device=like.device)

    def to_rows(self, tensor: Tensor) -> Tensor:
        """Rearrange a tensor to (n, ...), one row for each window."""
        assert self.dim is not None
        rows = tensor.movedim(self.dim, 0)
        return rows.reshape(-1, self.per_window, *rows.shape[1:]) if self.per_window > 1 else rows

    def from_rows(self, rows: Tensor) -> Tensor:
        """Undo :meth:`to_rows`."""
        assert self.dim is not None
        merged = rows.flatten(0, 1) if self.per_window > 1 else rows
        return merged.movedim(0, self.dim)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one window in :meth:`to_rows`."""
        rest = tuple(size for i, size in enumerate(self.shape) if i != self.dim)
        return (self.per_window, *rest) if self.per_window > 1 else rest


def check_finite(features: Tensor) -> Tensor:
    """Return features; raise BackboneError unless all are finite."""
    if not features.isfinite().all():
        raise BackboneError("its features of random signals are not finite; check its weights")
    return features


def equal(a: Tensor, b: Tensor) -> bool:
    """Return whether features computed in two ways are equal up to rounding."""
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-3 * (1 + b.abs().max()))


_MOST_CLASSIFIERS = 64


def classifier_of(network: nn.Module, shape: tuple[int, int], name: str | None = None) -> list[str]:
    """Return the paths of the classifier's modules; none for a network with submodules trunk and tail."""
    if hasattr(network, "trunk") and hasattr(network, "tail"):
        return []
    with torch.enable_grad(), torch.device("cpu"):
        signals = random_signals(FEW, shape)
        signals = signals.unsqueeze(1) if takes_4d(network, signals) else signals
        return [path for path, _ in find_classifier(network, signals, name)]


def takes_4d(network: nn.Module, signals: Tensor) -> bool:
    """Return whether a network takes (n, 1, n_chans, n_times) instead of (n, n_chans, n_times)."""
    try:
        record(network, signals)
        return False
    except Exception as error:
        reason = reason_of(error)
    try:
        record(network, signals.unsqueeze(1))
        return True
    except Exception:
        shape = tuple(signals.shape[1:])
        raise BackboneError(
            f"it does not take signals of {shape[0]} channels and {shape[1]} samples ({reason}); build it "
            f"for this shape, or pass a factory (n_chans, n_times, n_classes) -> network"
        ) from None


def find_classifier(network: nn.Module, signals: Tensor, name: str | None = None) -> list[Key]:
    """Return the calls of the classifier: the last layers with weights on all paths to the output.

    Most networks have one; there are several if their outputs are added. ``name`` overrides the rule.
    """
    if name is not None:
        root = record(network, signals)
        if not (matches := list(_outermost(root, name))):
            called = ", ".join(dict.fromkeys(call.name for call in root.children))
            raise BackboneError(
                f"it calls no module {name!r}, which should be its classifier; it calls {called}"
            )
        return matches
    classifiers: list[Key] = []
    while len(classifiers) <= _MOST_CLASSIFIERS:
        root = record(network, signals, dict.fromkeys(classifiers, Tensor.detach))
        total = torch.stack([t.sum() for t in tensors_of(root.outputs)] or [torch.zeros(())]).sum()
        layers = [c for c in root.layers() if c.key not in classifiers and c.output is not None]
        by_signals, *by_layer = gradients(
            total, [signals, *(c.output for c in layers if c.output is not None)]
        )
        used = [c.key for c, slope in zip(layers, by_layer, strict=True) if slope is not None]
        if not used and by_signals is None and classifiers:
            return classifiers
        if not used:
            break
        classifiers.append(used[-1])
    raise BackboneError(
        "no layer with weights was found that its output depends on, so its features are unknown; name the "
        "classifier: Backbone(network, classifier='...')"
    )


def _outermost(call: Call, name: str) -> Iterator[Key]:
    for inner in call.children:
        if inner.is_inside(name):
            yield inner.key
        else:
            yield from _outermost(inner, name)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Where a network is split: its units in order, the first one of the tail, and the classifiers."""

    units: tuple[Call, ...]
    first: int
    classifiers: frozenset[Key]

    @property
    def trunk(self) -> tuple[Call, ...]:
        """The units of the trunk."""
        return self.units[: self.first]

    @property
    def tail(self) -> tuple[Call, ...]:
        """The units of the tail, without the classifiers and the units after them."""
        end = max(i for i, unit in enumerate(self.units) if unit.key in self.classifiers)
        return tuple(unit for unit in self.units[self.first : end] if unit.key not in self.classifiers)


def find_cut(network: nn.Module, signals: Tensor, classifiers: Sequence[Key], tail: str | None = None) -> Cut:
    """Find the last block with weights such that every feature depends on it or on a later one.

    A block with more than half of all weights is opened. ``tail`` names the first module of the tail instead.
    """
    root, ends, opened = record(network, signals), frozenset(classifiers), set[Key]()
    while True:
        units = tuple(_units(root, ends, opened))
        end = next(i for i, unit in enumerate(units) if unit.key in ends)
        if tail is not None:
            first, too_large = _unit_of_tail(units, tail, end)
        else:
            first, too_large = _last_block(network, signals, units, end, ends)
        if too_large is None:
            return Cut(units, first, ends)
        opened.add(too_large.key)


def _units(call: Call, classifiers: frozenset[Key], opened: set[Key]) -> Iterator[Call]:
    for inner in call.children:
        keys = {nested.key for nested in inner.descendants()}
        if inner.key not in classifiers and (inner.key in opened or keys & classifiers):
            yield from _units(inner, classifiers, opened)
        else:
            yield inner


def _unit_of_tail(units: Sequence[Call], tail: str, end: int) -> tuple[int, Call | None]:
    for i, unit in enumerate(units[:end]):
        if unit.is_inside(tail):
            return i, None
        if tail.startswith(f"{unit.name}.") and any(nested.is_inside(tail) for nested in unit.descendants()):
            return i, unit
    names = ", ".join(dict.fromkeys(unit.name for unit in units[:end] if unit.mixes_inputs))
    raise BackboneError(
        f"no module {tail!r} is called before its classifier, so the tail cannot start there; modules with "
        f"weights before it: {names or 'none'}"
    )


def _last_block(
    network: nn.Module, signals: Tensor, units: Sequence[Call], end: int, classifiers: frozenset[Key]
) -> tuple[int, Call | None]:
    blocks = [i for i, unit in enumerate(units) if unit.mixes_inputs and unit.key not in classifiers]
    for first in reversed([i for i in blocks if i < end]):
        later = [units[i].key for i in blocks if i >= first]
        if not _reaches_all(network, signals, later, classifiers):
            continue
        unit = units[first]
        weights = {id(p): p.numel() for i in blocks for p in units[i].module.parameters()}
        n_weights = sum(p.numel() for p in unit.module.parameters())
        too_large = not unit.is_single_layer and n_weights > sum(weights.values()) / 2
        return first, unit if too_large else None
    raise BackboneError(
        "it has no block with weights before its classifier that all features depend on, so nothing could be "
        "finetuned; name the first module of the tail: Backbone(network, tail='...'), or give the network "
        "submodules trunk and tail"
    )


def _reaches_all(
    network: nn.Module, signals: Tensor, blocks: Sequence[Key], classifiers: frozenset[Key]
) -> bool:
    """Return whether every input of the classifiers depends on one of the blocks, by setting these to NaN."""
    with torch.no_grad():
        root = record(network, signals.detach(), dict.fromkeys(blocks, lambda t: t * torch.nan))
    features = [call.inputs[0] for call in root.descendants() if call.key in classifiers]
    return all(bool(values.isnan().all()) for values in features)
