"""Find where to split a network: the classifier, and the last block before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anchorinv.core.calls import (
    FEW,
    BackboneError,
    Call,
    Key,
    gradients,
    made_up,
    reason_of,
    record,
    tensors_of,
)

_MOST_CLASSIFIERS = 64


def classifier_of(network: nn.Module, shape: tuple[int, int], name: str | None = None) -> list[str]:
    """Return the paths of the classifier's modules; none for a network with submodules trunk and tail."""
    if hasattr(network, "trunk") and hasattr(network, "tail"):
        return []
    with torch.enable_grad(), torch.device("cpu"):
        signals = made_up(FEW, shape)
        fed = signals.unsqueeze(1) if takes_planes(network, signals) else signals
        return [path for path, _ in find_classifier(network, fed, name)]


def takes_planes(network: nn.Module, signals: Tensor) -> bool:
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

    Most networks have one; there are several if their outputs are added. ``name`` is the module, if given.
    """
    if name is not None:
        found = list(_outermost(record(network, signals), name))
        if not found:
            raise BackboneError(
                f"it calls no module {name!r}, which should be its classifier; {_called(network, signals)}"
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
        "no layer with weights was found that its output depends on, so its features are unknown; name the "
        "classifier: Backbone(network, classifier='...')"
    )


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
    """Where a network is split: its units in order, the first one of the tail, and the classifiers."""

    units: tuple[Call, ...]
    first: int
    classifiers: frozenset[Key]

    @property
    def before(self) -> tuple[Call, ...]:
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
        keys = {each.key for each in below(inner)}
        if inner.key not in classifiers and (inner.key in opened or keys & classifiers):
            yield from _units(inner, classifiers, opened)
        else:
            yield inner


def below(call: Call) -> Iterator[Call]:
    """Yield all calls within a call, at any depth."""
    for inner in call.inner:
        yield inner
        yield from below(inner)


def _named(units: Sequence[Call], tail: str, end: int) -> tuple[int, Call | None]:
    for i, unit in enumerate(units[:end]):
        if unit.within(tail):
            return i, None
        if tail.startswith(f"{unit.name}.") and any(each.within(tail) for each in below(unit)):
            return i, unit
    names = ", ".join(dict.fromkeys(unit.name for unit in units[:end] if unit.mixes))
    raise BackboneError(
        f"no module {tail!r} is called before its classifier, so the tail cannot start there; modules with "
        f"weights before it: {names or 'none'}"
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
        "it has no block with weights before its classifier that all features depend on, so nothing could be "
        "finetuned; name the first module of the tail: Backbone(network, tail='...'), or give the network "
        "submodules trunk and tail"
    )


def _reaches_all(
    network: nn.Module, signals: Tensor, blocks: Sequence[Key], classifiers: frozenset[Key]
) -> bool:
    """Return whether every input of the classifiers depends on one of the blocks, by setting these to NaN."""
    with torch.no_grad():
        spoilt = record(network, signals.detach(), dict.fromkeys(blocks, lambda t: t * torch.nan))
    given = [call.given[0] for call in below(spoilt) if call.key in classifiers]
    return all(bool(values.isnan().all()) for values in given)
