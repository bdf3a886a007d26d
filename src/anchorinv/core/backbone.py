"""Any network as a backbone: a frozen trunk, a trainable tail, and features from where its classifier sat."""

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


#: What a call returns: how it is nested, and of each leaf its form, or itself where it is no tensor.
Made = tuple[Any, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a network is run in two parts: which calls are of which, and what goes from one to the other.

    ``forms`` has the tensors that calls return, ``kept`` those of the trunk that the tail asks for, each by
    its call and its place among the tensors there; ``inputs`` those that classifiers are given.
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
        return self  # it never changes

    @property
    def pieces(self) -> list[tuple[int, ...]]:
        """The shapes of what one window's latents consist of."""
        own = [self.forms[key][1][place].latent for key, place in self.kept]
        return ([self.shape] if self.with_signals else []) + own

    def fed(self, signals: Tensor) -> Tensor:
        """Return signals as the network takes them."""
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
        """Return which call of a module this is."""
        index = self.counts[name] = self.counts.get(name, -1) + 1
        return name, index

    def finish(self, key: Key) -> Any:
        """Leave the network, whose other calls nobody asks for; traced by torch, it goes on with zeros."""
        self.done = True
        if not torch.compiler.is_compiling():  # torch's exporter loses its place where an exception passes
            raise _Reached
        return self.returned(key)

    def returned(self, key: Key) -> Any:
        """Return what a call returned in the trunk, with zeros for what nobody asks for."""
        nesting, forms = self.plan.forms[key]
        leaves = [
            (self.known[key, i] if (key, i) in self.known else form.zeros(self.n, self.like))
            if isinstance(form, Form)
            else form
            for i, form in enumerate(forms)
        ]
        return nested_like(nesting, iter(leaves))


class _Reached(Exception):  # noqa: N818 (no error: the part of the network that was asked for is done)
    """All that a pass is for has been computed."""


# Of the thread that runs: others may run the same modules at the same time.
_running: ContextVar[Run | None] = ContextVar("running", default=None)


class Unit(nn.Module):
    """A module of a network that was divided: run, remembered, or replaced by what it returned before.

    Without ``inner`` its weights are in the other part; other attributes are there for who asks.
    """

    def __init__(self, name: str, module: nn.Module, *, here: bool) -> None:
        super().__init__()
        self.name = name
        self.inner = module if here else None
        # Not registered: it has no weights, and is no part of the network.
        self.__dict__["shell"] = None if here else _emptied(module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or name in ("inner", "shell"):
                raise
            return getattr(self.inner if self.inner is not None else self.__dict__["shell"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns, or returned in the trunk."""
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
                f"{self.name} is called otherwise in training than in evaluation, so the network cannot be "
                f"divided there; {REMEDY}"
            )
        return self.inner(*args, **kwargs)


def _emptied(module: nn.Module) -> nn.Module:
    """Return a copy without tensors."""
    memo: dict[int, Any] = {id(t): None for t in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, memo)


class _Part(nn.Module):
    """One of the two parts, as the network's own code with some of its modules."""

    def __init__(self, network: nn.Module, plan: Plan) -> None:
        super().__init__()
        self.network, self.plan = network, plan
        # Whether the network changes what it is given in place.
        self.copies = False

    def run(self, run: Run, signals: Tensor) -> Run:
        """Run the network's code on signals until all that the part is for is computed."""
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
    """Signals (n, n_chans, n_times) -> latents: what the tail asks for, of several tensors in a row."""

    def forward(self, signals: Tensor) -> Tensor:
        """Return latents (n, ...)."""
        plan, given = self.plan, signals.clone() if self.copies else signals
        run = self.run(Run(plan, False, signals.shape[0], signals), given)
        pieces = [plan.forms[key][1][i].by_window(run.known[key, i]) for key, i in plan.kept]
        pieces = [signals, *pieces] if plan.with_signals else pieces
        return pieces[0] if len(pieces) == 1 else torch.cat([piece.flatten(1) for piece in pieces], dim=1)


class Tail(_Part):
    """Latents -> features (n, dim): what the classifier was given."""

    def forward(self, latents: Tensor) -> Tensor:
        """Return features (n, dim)."""
        plan, latents = self.plan, latents.clone() if self.copies else latents
        shapes = plan.pieces
        rows = [latents] if len(shapes) == 1 else torch.split(latents, [math.prod(s) for s in shapes], dim=1)
        pieces = [row.reshape(-1, *shape) for row, shape in zip(rows, shapes, strict=True)]
        # Shown to the network's own code before the tail; where that is of no consequence, nothing is.
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
        #: Values that it computes of a window, in all and in the tail.
        self.n_activations = 0

    def note_changes(self, signals: Tensor) -> None:
        """Have a part that changes what it is given in place work on a copy of it from now on."""
        values = signals.detach()
        for part in (self.trunk, self.tail):
            given = values.clone()
            made = part(given)
            if isinstance(part, _Part) and not torch.equal(given, values):
                part.copies = True
                made = part(values)
            values = made

    def forward(self, signals: Tensor) -> Tensor:
        """Return features (n, dim); of a single window in training, norms do as in evaluation."""
        with _norms_at_rest(self, self.training and len(signals) == 1):
            features: Tensor = self.tail(self.trunk(signals))
        return features


@contextmanager
def _norms_at_rest(network: nn.Module, wanted: bool) -> Iterator[None]:
    # One window has no variance over windows.
    norms = [m for m in network.modules() if isinstance(m, _NormBase) and m.training] if wanted else []
    for norm in norms:
        norm.eval()
    yield
    for norm in norms:
        norm.train()
