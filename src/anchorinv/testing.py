"""Checks for authors of methods: whether a method keeps the contract that studies rely on."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.heads import PrototypeHead
from anchorinv.core.recipe import Method
from anchorinv.core.types import Batch, Session, State, scoped_seed, stream

#: All values of a state, or of the global generators, in a form that can be compared.
Snapshot = dict[str, Any]


def check_method(method: Method, train: Batch, sessions: Sequence[Session], test: Tensor) -> None:
    """Check that a method keeps its contract from the base session to the last.

    Inputs are not changed; the same rng gives the same state; global generators are untouched; states are
    frozen; old prototypes stay; predictions are known classes and do not depend on the batch.

    Parameters
    ----------
    method : Method
        Its states have a trunk, a tail and a head, as those of a :class:`anchorinv.core.recipe.Recipe` do.
    train : Batch
        Signals (n, n_chans, n_times) of the base classes.
    sessions : sequence of Session
        The incremental sessions.
    test : Tensor, shape (n, n_chans, n_times)
        Signals to predict.

    Raises
    ------
    AssertionError
        Says which part of the contract was broken.
    """
    state = _learn_twice(lambda rng: method.fit_base(train, rng=rng), [train], seed=5)
    _check_state(method, state, train.classes, test)
    for session in sessions:
        before, known = state, snapshot(state)

        def learn(rng: torch.Generator, before: State = before, session: Session = session) -> State:
            return method.learn_session(before, session, rng=rng)

        state = _learn_twice(learn, [train, session.train], seed=6)
        assert same(snapshot(before), known), "the input state was changed"
        _check_state(method, state, (*before.classes, *session.train.classes), test)
        _check_continuity(before, state)


def _learn_twice(learn: Callable[[torch.Generator], State], batches: Sequence[Batch], *, seed: int) -> State:
    copies = [(batch.values.clone(), batch.labels.clone()) for batch in batches]
    rng = stream(seed)
    state = learn(rng)
    torch.rand(3, generator=rng)  # neither draws from it nor from the global one may matter
    # The second time: libraries imported on first use may draw while they are imported.
    with scoped_seed(stream(1, "elsewhere")), untouched_generators():
        again = learn(rng)
    assert same(snapshot(state), snapshot(again)), "the same rng gave another state"
    assert same([(batch.values, batch.labels) for batch in batches], copies), "the data were changed"
    return state


def _check_state(method: Method, state: State, classes: tuple[int, ...], test: Tensor) -> None:
    assert state.classes == classes, f"classes are {state.classes}, not {classes}"
    modules = [*state.trunk.modules(), *state.tail.modules(), *state.head.modules()]
    assert not any(module.training for module in modules), "a module is in training mode"
    kept = [batch.values for batch in (state.anchors, state.replay) if batch is not None]
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    tensors += [*kept, *(curve.values for curve in state.curves)]
    assert not any(tensor.requires_grad for tensor in tensors), "a state's tensor requires a gradient"
    assert all(torch.isfinite(tensor).all() for tensor in tensors), "a state's tensor is not finite"
    try:
        state.session = state.session  # type: ignore[misc]
    except FrozenInstanceError:
        pass
    else:
        raise AssertionError("a state can be changed; make it a frozen data class")
    _check_predictions(method, state, test)


def _check_predictions(method: Method, state: State, test: Tensor) -> None:
    before, signals = snapshot(state), test.clone()
    with untouched_generators():
        predicted = method.predict(state, signals)
    assert predicted.shape == (len(test),)
    assert set(predicted.tolist()) <= set(state.classes)
    assert torch.equal(method.predict(state, signals), predicted), "a second prediction differs"
    assert same(snapshot(state), before), "prediction changed the state"
    assert torch.equal(signals, test), "prediction changed the signals"

    logits = _logits(state, test)
    best = logits.topk(2).values
    clear = best[:, 0] - best[:, 1] > 1e-4  # away from ties
    assert clear.float().mean() > 0.9
    assert torch.equal(torch.tensor(state.classes)[logits.argmax(1)][clear], predicted[clear])
    for size in (1, 7):
        parts = torch.split(test, size)
        split = torch.cat([_logits(state, part) for part in parts])
        torch.testing.assert_close(split, logits, rtol=1e-5, atol=1e-5)
        pieces = torch.cat([method.predict(state, part) for part in parts])
        assert torch.equal(pieces[clear], predicted[clear]), "a label depends on the batch"


def _logits(state: State, signals: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = state.head(state.tail(state.trunk(signals)))
    return logits


def _check_continuity(before: State, after: State) -> None:
    """Check what must be exactly the same after a session as before it."""
    assert after.session == before.session + 1
    assert (after.n_base, after.shape, after.seed) == (before.n_base, before.shape, before.seed)
    assert same(_part(before, "trunk"), _part(after, "trunk")), "the trunk moved"
    if isinstance(before.head, PrototypeHead):
        assert isinstance(after.head, PrototypeHead)
        old = before.head.prototypes
        assert torch.equal(after.head.prototypes[: len(old)], old), "an old prototype moved"
    for name in ("anchors", "replay"):
        old_batch, new_batch = getattr(before, name), getattr(after, name)
        if old_batch is not None:
            kept = new_batch[torch.arange(len(old_batch))]
            assert same((kept.values, kept.labels), (old_batch.values, old_batch.labels)), f"old {name} moved"
    assert same(snapshot(after)["curves"][: len(before.curves)], snapshot(before)["curves"])


def _part(state: State, name: str) -> dict[str, Tensor]:
    return {key: value for key, value in snapshot(state).items() if key.startswith(f"{name}.")}


def snapshot(state: State) -> Snapshot:
    """Copy all values of a state."""
    modules = {"trunk": state.trunk, "tail": state.tail, "head": state.head}
    held: Snapshot = {
        f"{part}.{name}": tensor.clone()
        for part, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
    for name in ("anchors", "replay", "recordings", "signals"):
        batch = getattr(state, name)
        held[name] = None if batch is None else (batch.values.clone(), batch.labels.clone())
    held["curves"] = [(curve.name, curve.session, curve.values.clone()) for curve in state.curves]
    held["facts"] = (state.classes, state.n_base, state.shape, state.seed, state.session)
    return held


def same(a: Any, b: Any) -> bool:
    """Return whether two snapshots are identical."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _global_generators() -> Snapshot:
    return {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (to see that nothing was drawn from it)
        "random": random.getstate(),
    }


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Fail if the block draws from, or seeds, a global generator."""
    before = _global_generators()
    yield
    after = _global_generators()
    touched = [name for name in before if not same(before[name], after[name])]
    assert not touched, f"global generators touched: {touched}"
