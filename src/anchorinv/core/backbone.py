"""Any network as a backbone: a frozen trunk and a trainable tail, whose output is the classifier's input."""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from anchorinv.core.calls import BackboneError, Form, Key, leaves_of, nested_like, tensors_of

REMEDY = "pass Backbone(network, tail='...', classifier='...'), or a network with submodules trunk and tail"

#: The output of a call: its nesting, and for each leaf its form, or the leaf itself if it is not a tensor.
Made = tuple[Any, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a network is run in two parts: which calls belong to which, and what is passed on.

    ``forms`` describes the outputs of calls and ``inputs`` the inputs of classifiers; ``kept`` lists the
    outputs of the trunk that the tail needs, by call and position.
    """

    before: frozenset[Key]
    after: frozenset[Key]
    classifiers: tuple[Key, ...]
    shape: tuple[int, int]
    planes: bool
    forms: Mapping[Key, Made]
    inputs: Mapping[Key, Form]
    kept: tuple[tuple[Key, int], ...] = ()
    with_signals: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "Plan":
        return self  # immutable

    @property
    def pieces(self) -> list[tuple[int, ...]]:
        """The shapes of the tensors in one window's latents."""
        own = [self.forms[key][1][place].latent for key, place in self.kept]
        return ([self.shape] if self.with_signals else []) + own

    def fed(self, signals: Tensor) -> Tensor:
        """Return signals in the shape that the network takes."""
        return signals.unsqueeze(1) if self.planes else signals


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
            raise _Reached
        return self.returned(key)

    def returned(self, key: Key) -> Any:
        """Return the output of a call in the trunk, with zeros in place of tensors that are not needed."""
        nesting, forms = self.plan.forms[key]
        leaves = [
            (self.known[key, i] if (key, i) in self.known else form.zeros(self.n, self.like))
            if isinstance(form, Form)
            else form
            for i, form in enumerate(forms)
        ]
        return nested_like(nesting, iter(leaves))


class _Reached(Exception):  # noqa: N818 (not an error)
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
        self.__dict__["shell"] = None if here else _emptied(module)

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
                rows = plan.inputs[key].by_window(tensors_of((args, kwargs))[0])
                run.features[key] = rows.flatten(1)
            if not run.in_tail or len(run.features) == len(plan.classifiers):
                return run.finish(key)
            return run.returned(key)
        if key in plan.before:
            if run.in_tail:
                return run.returned(key)
            output = self._run(args, kwargs)
            leaves = leaves_of(output)
            run.known |= {(k, i): leaves[i] for k, i in plan.kept if k == key}
            return output
        if key in plan.forms and (run.done or (key in plan.after and not run.in_tail)):
            return run.finish(key)
        return self._run(args, kwargs)

    def _run(self, args: Any, kwargs: Any) -> Any:
        if self.inner is None:
            raise BackboneError(
                f"{self.name} is called differently in training and in evaluation, so the network cannot be "
                f"split there; {REMEDY}"
            )
        return self.inner(*args, **kwargs)


def _emptied(module: nn.Module) -> nn.Module:
    """Copy a module without its tensors."""
    memo: dict[int, Any] = {id(t): None for t in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, memo)


class _Part(nn.Module):
    """One of the two parts: the network's own code with some of its modules."""

    def __init__(self, network: nn.Module, plan: Plan) -> None:
        super().__init__()
        self.network, self.plan = network, plan
        self.copies = False  # whether the network changes its input in place

    def run(self, run: Run, signals: Tensor) -> Run:
        """Run the network on signals until the results of this part are complete."""
        token = _running.set(run)
        try:
            self.network(self.plan.fed(signals))
        except _Reached:
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
        plan, given = self.plan, signals.clone() if self.copies else signals
        run = self.run(Run(plan, False, signals.shape[0], signals), given)
        pieces = [plan.forms[key][1][i].by_window(run.known[key, i]) for key, i in plan.kept]
        pieces = [signals, *pieces] if plan.with_signals else pieces
        return pieces[0] if len(pieces) == 1 else torch.cat([piece.flatten(1) for piece in pieces], dim=1)


class Tail(_Part):
    """Latents -> features (n, dim): the input of the classifier."""

    def forward(self, latents: Tensor) -> Tensor:
        """Return features (n, dim)."""
        plan, latents = self.plan, latents.clone() if self.copies else latents
        shapes = plan.pieces
        rows = [latents] if len(shapes) == 1 else torch.split(latents, [math.prod(s) for s in shapes], dim=1)
        pieces = [row.reshape(-1, *shape) for row, shape in zip(rows, shapes, strict=True)]
        # The network's code before the tail runs on the signals if the tail depends on them, else on zeros.
        signals = pieces.pop(0) if plan.with_signals else latents.new_zeros(latents.shape[0], *plan.shape)
        pairs = zip(plan.kept, pieces, strict=True)
        known = {(key, i): plan.forms[key][1][i].back(piece) for (key, i), piece in pairs}
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

    def note_changes(self, signals: Tensor) -> None:
        """Find out which parts change their input in place, and have these copy it."""
        values = signals.detach()
        for part in (self.trunk, self.tail):
            given = values.clone()
            made = part(given)
            if isinstance(part, _Part) and not torch.equal(given, values):
                part.copies = True
                made = part(values)
            values = made

    def forward(self, signals: Tensor) -> Tensor:
        """Return features (n, dim); with a single window in training, norms use their running statistics."""
        with _norms_at_rest(self, self.training and len(signals) == 1):
            features: Tensor = self.tail(self.trunk(signals))
        return features


@contextmanager
def _norms_at_rest(network: nn.Module, wanted: bool) -> Iterator[None]:
    # One window has no variance over windows.
    norms = [m for m in network.modules() if isinstance(m, _NormBase) and m.training] if wanted else []
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()
