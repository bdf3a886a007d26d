"""Split any network into a frozen trunk and a trainable tail, or say why not and what to do."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from anchorinv.core.cut import (
    FEW,
    MORE,
    BackboneError,
    BatchShape,
    Call,
    Cut,
    Key,
    check_finite,
    equal,
    find_classifier,
    find_cut,
    gradients,
    is_float,
    leaves_of,
    nested_like,
    random_signals,
    reason_of,
    record,
    takes_4d,
    tensors_of,
)

REMEDY = "pass Backbone(network, tail='...', classifier='...'), or a network with submodules trunk and tail"
#: The output of a call: its nesting, and for each leaf its shape, or the leaf itself if it is not a tensor.
OutputSpec = tuple[Any, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a network is run in two parts: which calls belong to which, and what is passed on.

    ``outputs`` describes the outputs of calls and ``inputs`` the inputs of classifiers; ``kept`` lists the
    outputs of the trunk that the tail needs, by call and position.
    """

    trunk: frozenset[Key]
    tail: frozenset[Key]
    classifiers: tuple[Key, ...]
    shape: tuple[int, int]
    input_4d: bool
    outputs: Mapping[Key, OutputSpec]
    inputs: Mapping[Key, BatchShape]
    kept: tuple[tuple[Key, int], ...] = ()
    with_signals: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "Plan":
        return self  # immutable

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the tensors in one window's latents."""
        kept = [self.outputs[key][1][place].row_shape for key, place in self.kept]
        return [self.shape, *kept] if self.with_signals else kept

    def network_input(self, signals: Tensor) -> Tensor:
        """Return signals in the shape that the network takes."""
        return signals.unsqueeze(1) if self.input_4d else signals


@dataclass(slots=True, eq=False)
class Run:
    """One pass through a part of a network."""

    plan: Plan
    in_tail: bool
    n: int
    like: Tensor
    known: dict[tuple[Key, int], Tensor] = field(default_factory=dict)
    features: dict[Key, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    done: bool = False

    def key(self, name: str) -> Key:
        """Count a call of a module and return its key."""
        index = self.counts[name] = self.counts.get(name, -1) + 1
        return name, index

    def finish(self, key: Key) -> Any:
        """End the pass, as nothing more is needed; while torch traces, continue with zeros instead."""
        self.done = True
        if not torch.compiler.is_compiling():  # an exception would confuse torch's exporter
            raise _PassComplete
        return self.output(key)

    def output(self, key: Key) -> Any:
        """Return the output of a call in the trunk, with zeros in place of tensors that are not needed."""
        nesting, leaves = self.plan.outputs[key]
        values = []
        for i, leaf in enumerate(leaves):
            if (key, i) in self.known:
                values.append(self.known[key, i])
            else:
                values.append(leaf.zeros(self.n, self.like) if isinstance(leaf, BatchShape) else leaf)
        return nested_like(nesting, iter(values))


class _PassComplete(Exception):  # noqa: N818 (not an error)
    """Ends a pass when its results are complete."""


# One for each thread: several may run the same modules at the same time.
_running: ContextVar[Run | None] = ContextVar("running", default=None)


class Unit(nn.Module):
    """A module of a split network: run, or replaced by its output in the other part.

    Without ``inner`` its weights are in the other part; its other attributes stay available.
    """

    def __init__(self, name: str, module: nn.Module, *, here: bool) -> None:
        super().__init__()
        self.name = name
        self.inner = module if here else None
        # Not registered as a submodule: it has no weights.
        self.__dict__["shell"] = None if here else _without_tensors(module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or name in ("inner", "shell"):
                raise
            return getattr(self.inner if self.inner is not None else self.__dict__["shell"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the module, now or in the trunk."""
        if (run := _running.get()) is None:
            return self._run(args, kwargs)
        key, plan = run.key(self.name), run.plan
        if key in plan.classifiers:
            if run.in_tail:
                rows = plan.inputs[key].to_rows(tensors_of((args, kwargs))[0])
                run.features[key] = rows.flatten(1)
            if not run.in_tail or len(run.features) == len(plan.classifiers):
                return run.finish(key)
            return run.output(key)
        if key in plan.trunk:
            if run.in_tail:
                return run.output(key)
            output = self._run(args, kwargs)
            leaves = leaves_of(output)
            run.known |= {(k, i): leaves[i] for k, i in plan.kept if k == key}
            return output
        if key in plan.outputs and (run.done or (key in plan.tail and not run.in_tail)):
            return run.finish(key)
        return self._run(args, kwargs)

    def _run(self, args: Any, kwargs: Any) -> Any:
        if self.inner is None:
            raise BackboneError(
                f"{self.name} is called differently in training and in evaluation, so the network cannot be "
                f"split there; {REMEDY}"
            )
        return self.inner(*args, **kwargs)


def _without_tensors(module: nn.Module) -> nn.Module:
    """Copy a module without its tensors."""
    memo: dict[int, Any] = {id(t): None for t in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, memo)


class _Part(nn.Module):
    """One of the two parts: the network's own code with some of its modules."""

    def __init__(self, network: nn.Module, plan: Plan) -> None:
        super().__init__()
        self.network, self.plan = network, plan
        # Whether the network changes its input in place.
        self.copies_input = False

    def run(self, run: Run, signals: Tensor) -> Run:
        """Run the network on signals until the results of this part are complete."""
        token = _running.set(run)
        try:
            self.network(self.plan.network_input(signals))
        except _PassComplete:
            pass
        finally:
            _running.reset(token)
        if not run.done:
            raise BackboneError(f"it ran to its end without calling its classifier; {REMEDY}")
        return run


class Trunk(_Part):
    """Signals (n, n_chans, n_times) -> latents: the tensors that the tail needs, flattened if several."""

    def forward(self, signals: Tensor) -> Tensor:
        """Return latents (n, ...)."""
        plan, copied = self.plan, signals.clone() if self.copies_input else signals
        run = self.run(Run(plan, False, signals.shape[0], signals), copied)
        pieces = [plan.outputs[key][1][i].to_rows(run.known[key, i]) for key, i in plan.kept]
        pieces = [signals, *pieces] if plan.with_signals else pieces
        return pieces[0] if len(pieces) == 1 else torch.cat([piece.flatten(1) for piece in pieces], dim=1)


class Tail(_Part):
    """Latents -> features (n, dim): the input of the classifier."""

    def forward(self, latents: Tensor) -> Tensor:
        """Return features (n, dim)."""
        plan, latents = self.plan, latents.clone() if self.copies_input else latents
        shapes = plan.shapes
        rows = [latents] if len(shapes) == 1 else torch.split(latents, [math.prod(s) for s in shapes], dim=1)
        pieces = [row.reshape(-1, *shape) for row, shape in zip(rows, shapes, strict=True)]
        # The network's code before the tail runs on the signals if the tail depends on them, else on zeros.
        signals = pieces.pop(0) if plan.with_signals else latents.new_zeros(latents.shape[0], *plan.shape)
        pairs = zip(plan.kept, pieces, strict=True)
        known = {(key, i): plan.outputs[key][1][i].from_rows(piece) for (key, i), piece in pairs}
        run = self.run(Run(plan, True, latents.shape[0], latents, known), signals)
        features = [run.features[key] for key in plan.classifiers]
        return features[0] if len(features) == 1 else torch.cat(features, dim=1)


class SplitNetwork(nn.Module):
    """A network in two parts, ``trunk`` and ``tail``: signals (n, n_chans, n_times) -> features (n, dim)."""

    def __init__(self, trunk: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.trunk, self.tail = trunk, tail
        self.latent_shape: tuple[int, ...] = ()
        self.dim = 0
        #: Number of activations for one window.
        self.n_activations = 0

    def detect_in_place(self, signals: Tensor) -> None:
        """Find out which parts change their input in place, and have these copy it."""
        values = signals.detach()
        for part in (self.trunk, self.tail):
            inputs = values.clone()
            outputs = part(inputs)
            if isinstance(part, _Part) and not torch.equal(inputs, values):
                part.copies_input = True
                outputs = part(values)
            values = outputs

    def forward(self, signals: Tensor) -> Tensor:
        """Return features (n, dim); with a single window in training, norms use their running statistics."""
        norms = []
        if self.training and len(signals) == 1:  # one window has no variance over windows
            norms = [m for m in self.modules() if isinstance(m, _NormBase) and m.training]
        for norm in norms:
            norm.eval()
        try:
            features: Tensor = self.tail(self.trunk(signals))
        finally:
            for norm in norms:
                norm.train()
        return features


_NO_GRADIENT = (
    "its features have no finite gradient with respect to the signals, which inversion needs; replace "
    "operations without one, such as rounding, comparisons or detach()"
)


def split(
    network: nn.Module, shape: tuple[int, int], *, tail: str | None = None, classifier: str | None = None
) -> SplitNetwork:
    """Split a network into trunk and tail; its features (n, dim) are the input of its classifier.

    A network with submodules ``trunk`` and ``tail`` is used as it is. In others, the classifier is the last
    layer with weights, and the tail starts at the last block before it. Both parts are checked on random
    signals. Weights with ``requires_grad=False`` are never trained.

    Parameters
    ----------
    network : nn.Module
        Takes signals (n, n_chans, n_times) or (n, 1, n_chans, n_times); modified.
    shape : (int, int)
        ``(n_chans, n_times)``.
    tail, classifier : str or None
        Names of the first submodule of the tail and of the classifier, to override the rule.

    Examples
    --------
    >>> blocks = [nn.Conv1d(2, 4, 5), nn.ReLU(), nn.Conv1d(4, 4, 5), nn.ReLU(), nn.Flatten()]
    >>> parts = split(nn.Sequential(*blocks, nn.Linear(16, 3)), (2, 12))
    >>> parts.latent_shape, parts.dim
    ((4, 8), 16)
    """
    with torch.enable_grad(), torch.device("cpu"):
        _prepare(network)
        first, last = getattr(network, "trunk", None), getattr(network, "tail", None)
        if isinstance(first, nn.Module) and isinstance(last, nn.Module):
            parts = SplitNetwork(first, last)
        else:
            with _backbone_errors():
                parts = _split_by_calls(network, shape, tail, classifier)
        with _backbone_errors():
            return _checked_parts(parts.eval(), shape)


@contextmanager
def _backbone_errors() -> Iterator[None]:
    """Turn any error of the network's code into a BackboneError."""
    try:
        yield
    except BackboneError:
        raise
    except Exception as error:
        raise BackboneError(f"it fails if run in two parts ({reason_of(error)}); {REMEDY}") from error


def _prepare(network: nn.Module) -> None:
    """Set a network to evaluation mode on the CPU, and turn frozen weights into buffers."""
    if any(is_lazy(p) for p in (*network.parameters(), *network.buffers())):
        raise BackboneError("some of its weights have no shape yet (lazy modules); run it on a window first")
    network.eval().cpu().float()
    parameters = list(network.named_parameters())
    if not any(p.requires_grad for _, p in parameters):
        why = "requires_grad is False for all of them" if parameters else "it has none"
        raise BackboneError(f"a backbone needs trainable weights, and {why}; pass a network that has some")
    for name, parameter in parameters:
        if not parameter.requires_grad:
            _as_buffer(network, name, persistent=True)


def _as_buffer(network: nn.Module, path: str, *, persistent: bool) -> None:
    owner, _, name = path.rpartition(".")
    module = network.get_submodule(owner)
    values = module._parameters.pop(name)
    assert values is not None
    module.register_buffer(name, values.detach(), persistent=persistent)


def _split_by_calls(
    network: nn.Module, shape: tuple[int, int], tail: str | None, classifier: str | None
) -> SplitNetwork:
    few, more = random_signals(FEW, shape), random_signals(MORE, shape)
    input_4d = takes_4d(network, few)
    few_input, more_input = (signals.unsqueeze(1) if input_4d else signals for signals in (few, more))
    cut = find_cut(network, few_input, find_classifier(network, few_input, classifier), tail)
    units = {unit.key: unit for unit in cut.units}
    again = {call.key: call for call in record(network, more_input).descendants()}
    if missing := [key for key in units if key not in again]:
        raise BackboneError(f"whether it calls {missing[0][0]} depends on the number of windows; {REMEDY}")
    order = tuple(key for key in units if key in cut.classifiers)
    plan = Plan(
        trunk=frozenset(unit.key for unit in cut.trunk),
        tail=frozenset(unit.key for unit in cut.tail),
        classifiers=order,
        shape=shape,
        input_4d=input_4d,
        outputs={unit.key: _output_spec(unit, again[unit.key]) for unit in cut.units},
        inputs={key: BatchShape.of(units[key].inputs[0], again[key].inputs[0]) for key in order},
    )
    if any(inputs.dim is None for inputs in plan.inputs.values()):
        raise BackboneError(f"the input of its classifier has no batch dimension; {REMEDY}")
    _refuse_shared_weights(cut)
    end = _part(network, cut, cut.tail)
    plan = _with_kept(end, plan, units, few)
    parts = SplitNetwork(Trunk(_part(network, cut, cut.trunk), plan), Tail(end, plan)).eval()
    _assign_free_weights(parts, network, cut, few)
    with torch.no_grad():
        rows = [plan.inputs[key].to_rows(units[key].inputs[0]).flatten(1) for key in order]
        features = check_finite(torch.cat(rows, dim=1))
        if not equal(parts(few.detach()), features):
            raise BackboneError(f"its features differ if it is run in two parts; {REMEDY}")
    return parts


def _output_spec(few: Call, more: Call) -> OutputSpec:
    pairs = zip(leaves_of(few.outputs), leaves_of(more.outputs), strict=True)
    outputs = tuple(BatchShape.of(a, b) if isinstance(a, Tensor) else a for a, b in pairs)
    return nested_like(few.outputs, repeat(None)), outputs


def _refuse_shared_weights(cut: Cut) -> None:
    parts = [cut.trunk, cut.tail, [unit for unit in cut.units if unit.key in cut.classifiers]]
    seen: dict[int, int] = {}
    for i, units in enumerate(parts):
        for unit in units:
            for parameter in unit.module.parameters():
                if seen.setdefault(id(parameter), i) != i:
                    raise BackboneError(
                        f"weights of {unit.name} are used both before and after the start of the tail, so "
                        f"they cannot be frozen in one part and trained in the other; name another tail: "
                        f"Backbone(network, tail='...')"
                    )


def _part(network: nn.Module, cut: Cut, here: Sequence[Call]) -> nn.Module:
    """Copy the network with the weights of some units only."""
    part, kept = copy.deepcopy(network), {unit.name for unit in here}
    modules = {unit.name: part.get_submodule(unit.name) for unit in cut.units}
    units = {id(module): Unit(name, module, here=name in kept) for name, module in modules.items()}
    for parent in [module for module in part.modules() if id(module) not in units]:
        parent._modules |= {name: units[id(m)] for name, m in parent._modules.items() if id(m) in units}
    return part


def _with_kept(tail: nn.Module, plan: Plan, units: Mapping[Key, Call], signals: Tensor) -> Plan:
    """Return the plan with the outputs of the trunk that the tail depends on."""
    candidates: dict[tuple[Key, int], Tensor] = {}
    for key in (key for key in units if key in plan.trunk):
        for i, leaf in enumerate(leaves_of(units[key].outputs)):
            if is_float(leaf):
                candidates[key, i] = leaf.detach().clone().requires_grad_()
    # Cloned, since the network may change its input in place.
    run = Run(plan, True, len(signals), signals, {place: leaf.clone() for place, leaf in candidates.items()})
    Tail(tail, plan).run(run, signals.clone())
    features = torch.cat([run.features[key] for key in plan.classifiers], dim=1)
    of_signals, *slopes = gradients(features.sum(), [signals, *candidates.values()])
    kept = tuple(place for place, slope in zip(candidates, slopes, strict=True) if slope is not None)
    for key, i in kept:
        if plan.outputs[key][1][i].dim is None:
            raise BackboneError(f"the output of {key[0]} has no batch dimension; {REMEDY}")
    if not kept and of_signals is None:
        raise BackboneError(_NO_GRADIENT)
    return replace(plan, kept=kept, with_signals=of_signals is not None)


def _assign_free_weights(parts: SplitNetwork, network: nn.Module, cut: Cut, signals: Tensor) -> None:
    """Assign each weight that is used outside of submodules to the part that needs it."""
    inside = tuple(f"{unit.name}." for unit in cut.units)
    between = [name for name, _ in network.named_parameters() if not name.startswith(inside)]
    latents = parts.trunk(signals)
    features = parts.tail(latents.detach())
    for name in between:
        use = [
            gradients(values.sum(), [part.get_parameter(f"network.{name}")])[0] is not None
            for part, values in ((parts.trunk, latents), (parts.tail, features))
        ]
        if all(use):
            raise BackboneError(
                f"its {name} is used both before and after the start of the tail; name another tail: "
                f"Backbone(network, tail='...')"
            )
        for part, needed in zip((parts.trunk, parts.tail), use, strict=True):
            if not needed:
                _as_buffer(part, f"network.{name}", persistent=False)


def _checked_parts(parts: SplitNetwork, shape: tuple[int, int]) -> SplitNetwork:
    """Check that the parts can be trained, inverted and finetuned, and set their sizes."""
    signals = random_signals(FEW, shape)
    if not any(True for _ in parts.tail.parameters()):
        raise BackboneError(f"its tail has no weights to finetune; {REMEDY}")
    with torch.no_grad():
        parts.detect_in_place(signals)
        latents = parts.trunk(signals)
        features = parts.tail(latents)
        if features.ndim != 2 or len(features) != FEW:
            raise BackboneError(
                f"its features must be (n, dim), but for {FEW} windows they are {tuple(features.shape)}; "
                f"flatten them"
            )
        check_finite(features)
        single, reversed_batch = parts(signals[:1]), parts.tail(latents.flip(0)).flip(0)
        if not (equal(single, features[:1]) and equal(reversed_batch[:1], features[:1])):
            raise BackboneError(
                "in evaluation mode its features of a window depend on the other windows of the batch, or on "
                "chance; use norms with running statistics, and dropout modules"
            )
    slope = gradients(parts(signals).square().sum(), [signals])[0]
    if slope is None or not slope.isfinite().all() or not slope.any():
        raise BackboneError(_NO_GRADIENT)
    parts.latent_shape, parts.dim = tuple(latents.shape[1:]), features.shape[1]
    layers = [call for call in record(parts, signals).descendants() if not call.children]
    parts.n_activations = sum(t.numel() for call in layers for t in tensors_of(call.outputs)) // FEW
    return parts
