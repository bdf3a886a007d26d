"""What a network calls, in which order: the layer that classifies, and the last block before it.

Nothing is assumed of how a network is written: it is run, and what it calls is recorded. A *unit* is a call
that is not looked into; what a network computes between units is its own code, which is run as it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

#: A module by its path, and how often it had been called before.
Key = tuple[str, int]

#: Modules of torch that call others in a row; any other of torch is one piece, whatever it calls within.
_ROWS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.TransformerEncoder, nn.TransformerDecoder)
#: Their weights do not mix what they are given.
_SCALES = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.Embedding)
_MOST_CLASSIFIERS = 64


class BackboneError(ValueError):
    """A network that cannot be a backbone, with what was wanted, what came and what helps."""


@dataclass(slots=True, eq=False)
class Call:
    """A module called by a network: what it was given and returned, and what it called itself."""

    name: str
    index: int
    module: nn.Module
    given: list[Tensor]
    returned: Any = None
    inner: list["Call"] = field(default_factory=list)

    @property
    def key(self) -> Key:
        """Which module, and which of its calls."""
        return self.name, self.index

    @property
    def mixes(self) -> bool:
        """Whether it has weights that mix what it is given, as those of a convolution do."""
        modules = [m for m in self.module.modules() if not isinstance(m, _SCALES)]
        return any(p.ndim > 1 for m in modules for p in m.parameters(recurse=False))

    @property
    def whole(self) -> bool:
        """Whether it is one piece, as far as weights go."""
        of_torch = type(self.module).__module__.startswith("torch.nn.")
        return (of_torch and not isinstance(self.module, _ROWS)) or not any(c.mixes for c in self.inner)

    @property
    def output(self) -> Tensor | None:
        """The first tensor that it returned."""
        return next(iter(tensors_of(self.returned)), None)

    def within(self, name: str) -> bool:
        """Whether it is a module of this path, or below it."""
        return self.name == name or self.name.startswith(f"{name}.")

    def layers(self) -> Iterator["Call"]:
        """Yield the smallest pieces with weights that mix, in the order in which they were called."""
        if self.mixes and self.whole and self.name:
            yield self
        elif self.mixes:
            for call in self.inner:
                yield from call.layers()

    def smallest(self) -> Iterator["Call"]:
        """Yield the calls that call nothing."""
        if not self.inner:
            yield self
        for call in self.inner:
            yield from call.smallest()


def leaves_of(values: Any) -> list[Any]:
    """Return all that nested tuples, lists and dicts hold, in order."""
    inner = values.values() if isinstance(values, dict) else values
    if not isinstance(values, dict | list | tuple):
        return [values]
    return [leaf for value in inner for leaf in leaves_of(value)]


def nested_like(values: Any, leaves: Iterator[Any]) -> Any:
    """Return leaves, nested as some values are.

    Examples
    --------
    >>> nested_like((0, [0, 0]), iter("abc"))
    ('a', ['b', 'c'])
    """
    if isinstance(values, dict):
        return {name: nested_like(value, leaves) for name, value in values.items()}
    if isinstance(values, list | tuple):
        items = [nested_like(value, leaves) for value in values]
        return type(values)(*items) if hasattr(values, "_fields") else type(values)(items)
    return next(leaves)


def tensors_of(values: Any) -> list[Tensor]:
    """Return the tensors of floating-point numbers in nested values, in order."""
    leaves = leaves_of(values)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def record(
    network: nn.Module, signals: Tensor, change: Mapping[Key, Callable[[Tensor], Tensor]] | None = None
) -> Call:
    """Run a network on signals and return what it called; ``change`` alters what some calls return."""
    root = Call("", 0, network, [signals])
    stack, counts, changes = [root], dict[str, int](), change or {}

    def before(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        index = counts[name] = counts.get(name, -1) + 1
        call = Call(name, index, module, tensors_of((args, kwargs)))
        stack[-1].inner.append(call)
        stack.append(call)

    def after(output: Any) -> Any:
        call = stack.pop()
        if (alter := changes.get(call.key)) is not None:
            floats = [isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves_of(output)]
            pairs = zip(leaves_of(output), floats, strict=True)
            output = nested_like(output, iter([alter(leaf) if change else leaf for leaf, change in pairs]))
        call.returned = output
        return output

    with ExitStack() as hooks:
        for name, module in network.named_modules():
            # A weight that is computed from others is part of its layer.
            if name and "parametrizations" not in name.split("."):
                enter = module.register_forward_pre_hook(
                    lambda m, args, kwargs, name=name: before(name, m, args, kwargs), with_kwargs=True
                )
                leave = module.register_forward_hook(lambda m, args, output: after(output))
                hooks.callback(enter.remove)
                hooks.callback(leave.remove)
        root.returned = network(signals)
    return root


def find_classifier(network: nn.Module, signals: Tensor, name: str | None = None) -> list[Key]:
    """Return the calls that classify: the last layers, without which nothing reaches the output.

    One in most networks, several where outputs of several layers are added. ``name`` says which module it is.
    """
    if name is not None:
        found = list(_outermost(record(network, signals), name))
        if not found:
            raise BackboneError(
                f"it calls no {name!r} that could be its classifier; {_called(network, signals)}"
            )
        return found
    known: list[Key] = []
    while len(known) <= _MOST_CLASSIFIERS:
        root = record(network, signals, dict.fromkeys(known, Tensor.detach))
        total = torch.stack([t.sum() for t in tensors_of(root.returned)] or [torch.zeros(())]).sum()
        layers = [c for c in root.layers() if c.key not in known and c.output is not None]
        reached = gradients(total, [signals, *(c.output for c in layers if c.output is not None)])
        live = [c.key for c, slope in zip(layers, reached[1:], strict=True) if slope is not None]
        if not live and reached[0] is None and known:
            return known
        if not live:
            break
        known.append(live[-1])
    raise BackboneError(
        "no layer with weights was found that its output comes from, so nobody knows where its features are; "
        "name it: Backbone(network, classifier='...')"
    )


def gradients(total: Tensor, of: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradients of a number, None where it does not depend on a tensor."""
    wanted = [each for each in of if each.requires_grad]
    if not total.requires_grad or not wanted:
        return [None] * len(of)
    found = iter(torch.autograd.grad(total, wanted, allow_unused=True))
    return [next(found) if each.requires_grad else None for each in of]


def _outermost(call: Call, name: str) -> Iterator[Key]:
    for inner in call.inner:
        if inner.within(name):
            yield inner.key
        else:
            yield from _outermost(inner, name)


def _called(network: nn.Module, signals: Tensor) -> str:
    names = dict.fromkeys(call.name for call in record(network, signals).inner)
    return f"it calls {', '.join(names)}"


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Where a network is divided: its units in order, the first of the tail, and those that classify."""

    units: tuple[Call, ...]
    first: int
    classifiers: frozenset[Key]

    @property
    def before(self) -> tuple[Call, ...]:
        """The units of the trunk."""
        return self.units[: self.first]

    @property
    def tail(self) -> tuple[Call, ...]:
        """The units of the tail, without those that classify and what is done with their output."""
        end = max(i for i, unit in enumerate(self.units) if unit.key in self.classifiers)
        return tuple(unit for unit in self.units[self.first : end] if unit.key not in self.classifiers)


def find_cut(network: nn.Module, signals: Tensor, classifiers: Sequence[Key], tail: str | None = None) -> Cut:
    """Return where the last block begins: the last from which on every feature passes a layer with weights.

    A block that holds more than half of all weights is looked into. ``tail`` names the module with which the
    tail begins instead.
    """
    root, known, opened = record(network, signals), frozenset(classifiers), set[Key]()
    while True:
        units = tuple(_units(root, known, opened))
        places = [i for i, unit in enumerate(units) if unit.key in known]
        if tail is not None:
            first, inside = _named(units, tail, places[0])
        else:
            first, inside = _last_block(network, signals, units, places[0], known)
        if inside is None:
            return Cut(units, first, known)
        opened.add(inside.key)


def _units(call: Call, classifiers: frozenset[Key], opened: set[Key]) -> Iterator[Call]:
    for inner in call.inner:
        below = {each.key for each in _below(inner)}
        if inner.key not in classifiers and (inner.key in opened or below & classifiers):
            yield from _units(inner, classifiers, opened)
        else:
            yield inner


def _below(call: Call) -> Iterator[Call]:
    for inner in call.inner:
        yield inner
        yield from _below(inner)


def _named(units: Sequence[Call], tail: str, end: int) -> tuple[int, Call | None]:
    for i, unit in enumerate(units[:end]):
        if unit.within(tail):
            return i, None
        if tail.startswith(f"{unit.name}.") and any(each.within(tail) for each in _below(unit)):
            return i, unit
    names = ", ".join(dict.fromkeys(unit.name for unit in units[:end] if unit.mixes))
    raise BackboneError(
        f"no {tail!r} is called before its classifier, so the tail cannot begin there; "
        f"modules with weights there: {names or 'none'}"
    )


def _last_block(
    network: nn.Module, signals: Tensor, units: Sequence[Call], end: int, classifiers: frozenset[Key]
) -> tuple[int, Call | None]:
    blocks = [i for i, unit in enumerate(units) if unit.mixes and unit.key not in classifiers]
    early = [i for i in blocks if i < end]
    for first in reversed(early):
        later = [units[i].key for i in blocks if i >= first]
        if not _reaches_all(network, signals, later, classifiers):
            continue
        unit = units[first]
        weights = {id(p): p.numel() for i in blocks for p in units[i].module.parameters()}
        own = sum(p.numel() for p in unit.module.parameters())
        return first, unit if not unit.whole and own > sum(weights.values()) / 2 else None
    raise BackboneError(
        "no block with weights that all its features pass stands before its classifier, so nothing could be "
        "finetuned; name the module with which the tail begins: Backbone(network, tail='...'), or give the "
        "network submodules trunk and tail of its own"
    )


def _reaches_all(
    network: nn.Module, signals: Tensor, blocks: Sequence[Key], classifiers: frozenset[Key]
) -> bool:
    """Say whether each value that classifiers are given depends on one of the blocks: NaN spreads."""
    with torch.no_grad():
        spoilt = record(network, signals.detach(), dict.fromkeys(blocks, lambda t: t * torch.nan))
    given = [call.given[0] for call in _below(spoilt) if call.key in classifiers]
    return all(bool(values.isnan().all()) for values in given)
