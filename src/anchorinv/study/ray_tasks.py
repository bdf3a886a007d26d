"""What Ray's workers do: train a base model, make the replay of the base classes, compute a trial.

A worker keeps the samples and the method of its last task, and nothing else: its memory does not grow with
the number of trials. Samples are views of the node's object store, which all workers of a node share.
"""

import json
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv import __version__
from anchorinv.core.types import Batch, State
from anchorinv.persistence.format import packed, unpacked
from anchorinv.progress import Tick, listening
from anchorinv.study.cache import inverted
from anchorinv.study.execute import Condition, JobResult, reset_peak
from anchorinv.study.ray_cluster import ray
from anchorinv.study.runner import InMemory, MethodRun, Scorer, SharesBase, fit_base_model, shares_base

#: Seconds between two reports of progress.
BETWEEN = 1.0

#: Tensors by name, and a packed state, as they travel.
Arrays = dict[str, np.ndarray]
PackedState = tuple[Arrays, dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Which method in which condition, and references to what it starts from."""

    run: str  # a name that no other method in a condition has
    condition: Condition
    method: str
    samples: Any  # ObjectRef
    own: Any  # ObjectRef
    base: Any  # ObjectRef or None
    replay: Any  # ObjectRef or None
    progress: str  # key under which progress is reported
    versions: tuple[str, str] = (__version__, torch.__version__)  # others give other last digits


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """Where a training is after so many seconds, so that another task can go on from there."""

    values: Arrays
    seconds: float = 0.0


class _TimeUp(Exception):  # noqa: N818 (no error)
    """Carries the position out of a training."""


class _TimedCheckpoint:
    """A checkpoint that ends the training after some seconds."""

    def __init__(self, position: Position | None, seconds: float) -> None:
        self._position, self._until = position, time.monotonic() + seconds

    def load(self) -> dict[str, Tensor] | None:
        return to_tensors(self._position.values) if self._position else None

    def save(self, values: Callable[[], dict[str, Tensor]]) -> None:
        if time.monotonic() >= self._until:
            raise _TimeUp(to_arrays(values()))


def fit_base(order: Order, position: Position | None, seconds: float) -> Any:
    """Train a base model for some seconds, from where it was left, and return the position then.

    Or, at the end, the model, packed, and the seconds it took; of a method that shares no base model its
    state after the base session.
    """
    run, shared, train = _prepared(order)
    began = time.perf_counter() - (position.seconds if position else 0.0)
    with listening(_reporter(order.progress)):
        if shared is None:
            return run.base()
        base_train = train.of(*order.condition.protocol.base_classes)
        checkpoint = _TimedCheckpoint(position, seconds)
        try:
            state = fit_base_model(shared.base_spec, base_train, order.condition.protocol, checkpoint)
        except _TimeUp as pause:
            return Position(pause.args[0], time.perf_counter() - began)
    return _packed(state), time.perf_counter() - began


def recall(order: Order) -> tuple[PackedState, float] | None:
    """Return the inverted replay of the base classes and its seconds; None where nothing is inverted."""
    run, _, _ = _prepared(order)
    began = time.perf_counter()
    with listening(_reporter(order.progress)):
        state = run.ready()
    return (_packed(state), time.perf_counter() - began) if inverted(state) else None


def run_trial(order: Order, trial: int | None) -> JobResult:
    """Compute a trial, through all sessions, or the base session."""
    run, _, _ = _prepared(order)
    reset_peak()
    return JobResult.of(order.condition.job(order.method, trial), list(run.results(trial)))


class _Held:
    """What this process holds: samples and run of its last task, and nothing else."""

    samples: tuple[Any, Batch, Scorer] | None = None
    run: tuple[Any, MethodRun, SharesBase | None] | None = None


def _prepared(order: Order) -> tuple[MethodRun, SharesBase | None, Batch]:
    """Return the order's run, the method if it shares its base model, and the training samples."""
    here = (__version__, torch.__version__)
    if here != order.versions:
        raise RuntimeError(
            f"node {ray().util.get_node_ip_address()} has anchorinv {here[0]} and torch {here[1]}, the run "
            f"{order.versions[0]} and {order.versions[1]}; install the same on all nodes"
        )
    torch.set_num_threads(order.condition.experiment.threads)
    if _Held.samples is None or _Held.samples[0] != order.samples:
        _Held.run = _Held.samples = None  # the run holds the samples, too
        train, test = (Batch(*map(_view, arrays)) for arrays in ray().get(order.samples))
        _Held.samples = order.samples, train, Scorer(test)
    _, train, scorer = _Held.samples
    name = (order.run, order.base, order.replay)
    if _Held.run is None or _Held.run[0] != name:
        _Held.run = None
        base, replay = (each and ray().get(each) for each in (order.base, order.replay))
        method = order.condition.methods(ray().get(order.own))[order.method]
        known, cache, shared = base, InMemory(), shares_base(method)
        if shared and base:
            bases = {shared.base_spec: _unpacked(base, shared)}
            known, cache = None, InMemory(bases, _unpacked(replay, shared)[0] if replay else None)
        run = MethodRun(order.method, method, train, scorer, order.condition.protocol, cache, base=known)
        _Held.run = name, run, shared
    return (*_Held.run[1:], train)


def _reporter(key: str) -> Callable[[Tick], None]:
    """Return a listener that leaves the last tick where the driver looks for it, now and then."""
    last = 0.0

    def listen(now: Tick) -> None:
        nonlocal last
        if time.monotonic() - last >= BETWEEN:
            last = time.monotonic()
            with suppress(Exception):  # it is for show
                kv_store()._internal_kv_put(key, json.dumps(asdict(now)))

    return listen


def kv_store() -> Any:
    """Return the key-value store that every Ray cluster has, through which progress is reported."""
    return import_module("ray.experimental.internal_kv")


def _packed(state: State) -> PackedState:
    tensors, facts = packed(state)
    return to_arrays(tensors), facts


def _unpacked(state: PackedState, shared: SharesBase) -> tuple[State, float]:
    arrays, facts = state
    return unpacked(to_tensors(arrays), facts, shared.base_spec.backbone), float(facts["seconds"])


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Return tensors as they travel."""
    return {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}


def to_tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Return tensors in memory of their own, aligned as that of tensors made here."""
    return {name: torch.tensor(array) for name, array in arrays.items()}


def _view(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        # The object store is read-only, and torch says so; nothing here writes to samples.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
