"""Tasks for Ray's workers: train a base model, make the replay of the base classes, compute a trial.

A worker keeps the samples and the method of its last task, and nothing else: its memory does not grow with
the number of trials. Samples are views of the node's object store, which all workers of a node share. How far
a long task is, it leaves in the key-value store that every Ray has, where the driver looks for it; a training
leaves its position there, too, and goes on from it when Ray computes it again.
"""

import copyreg
import json
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from anchorinv import __version__
from anchorinv.core.recipe import BaseLearner
from anchorinv.core.registry import METHODS
from anchorinv.core.types import Batch, State
from anchorinv.persistence.format import packed, unpacked
from anchorinv.progress import Tick, listening, tick
from anchorinv.study.cache import FileCheckpoint, ModelCache, Packed, inverted
from anchorinv.study.execute import Condition, JobResult, MethodFactory, reset_peak
from anchorinv.study.ray_cluster import ray
from anchorinv.study.results import Job
from anchorinv.study.runner import InMemory, MethodRun, Scorer, SharesBase, fit_base_model, shares_base

#: Seconds between two reports of progress.
BETWEEN = 1.0


@dataclass(frozen=True, slots=True)
class Order:
    """Which method in which condition, and where its samples are."""

    run: str  # a name that no other method in a condition has
    samples: Any  # ObjectRef
    own: Any  # ObjectRef
    condition: Condition = field(compare=False)
    method: str = field(compare=False)
    trial: int | None = field(default=None, compare=False)
    seconds: float = field(default=60.0, compare=False)  # between two positions of a training
    key: str = field(default="", compare=False)  # under which progress and positions are left
    versions: tuple[str, str] = (__version__, torch.__version__)  # others give other last digits

    @property
    def label(self) -> str:
        """What stands before its progress."""
        title = METHODS[self.method].title if self.method in METHODS else self.method
        return f"{self.condition.prefix}{title}, seed {self.condition.protocol.seed}"


def fit_base(order: Order) -> Any:
    """Train a base model, from where it was left; return it packed.

    Of a method that shares no base model, return its state after the base session and the seconds it took.
    """
    run, shared, train = _prepared(order)
    with _reported(order):
        if shared is None:
            return run.base()
        base_train, began = train.of(*order.condition.protocol.base_classes), time.perf_counter()
        checkpoint = StoredPosition(order.key, order.seconds)
        state = fit_base_model(shared.base_spec, base_train, order.condition.protocol, checkpoint)
    return _packed(state, began)


def recall(order: Order, base: Packed) -> Packed | None:
    """Return the inverted replay of the base classes; None where nothing is inverted."""
    run, _, _ = _prepared(order, base)
    began = time.perf_counter()
    with _reported(order):
        state = run.ready()
    return _packed(state, began) if inverted(state) else None


def run_trial(order: Order, base: Any, replay: Packed | None = None) -> JobResult:
    """Compute a trial, through all sessions, or the base session."""
    run, _, _ = _prepared(order, base, replay)
    reset_peak()
    return JobResult.of(order.condition.job(order.method, order.trial), list(run.results(order.trial)))


_Prepared = tuple[MethodRun, SharesBase | None, Batch]
_last: dict[tuple[Order, bool, bool], _Prepared] = {}  # of the last task


def _prepared(order: Order, base: Any = None, replay: Packed | None = None) -> _Prepared:
    """Return the order's run, the method if it shares its base model, and the training samples."""
    key = (order, base is None, replay is None)
    if key in _last:
        return _last[key]
    _last.clear()
    here = (__version__, torch.__version__)
    if here != order.versions:
        raise RuntimeError(
            f"node {ray().util.get_node_ip_address()} has anchorinv {here[0]} and torch {here[1]}, the run "
            f"{order.versions[0]} and {order.versions[1]}; install the same on all nodes"
        )
    torch.set_num_threads(order.condition.experiment.threads)
    train, scorer = _samples(order.samples)
    method = order.condition.methods(ray().get(order.own))[order.method]
    cache, shared = InMemory(), shares_base(method)
    if shared and base:
        cache = InMemory({shared.base_spec: _unpacked(base, shared)}, replay and _unpacked(replay, shared)[0])
        base = None
    run = MethodRun(order.method, method, train, scorer, order.condition.protocol, cache, base=base)
    _last[key] = run, shared, train
    return _last[key]


@lru_cache(maxsize=1)
def _samples(reference: Any) -> tuple[Batch, Scorer]:
    with warnings.catch_warnings():
        # The object store is read-only, and torch says so; nothing here writes to samples.
        warnings.simplefilter("ignore", UserWarning)
        train, test = (Batch(*map(torch.from_numpy, arrays)) for arrays in ray().get(reference))
    return train, Scorer(test)


def _packed(state: State, began: float) -> Packed:
    tensors, facts = packed(state)
    return tensors, {**facts, "seconds": time.perf_counter() - began}


def _unpacked(state: Packed, shared: SharesBase) -> tuple[State, float]:
    tensors, facts = state
    return unpacked(tensors, facts, shared.base_spec.backbone), float(facts["seconds"])


class StoredPosition(FileCheckpoint):
    """A training's last position, under a key of Ray's store in place of a file."""

    def __init__(self, key: str, seconds: float) -> None:
        super().__init__(Path(f"{key}-position"), seconds=seconds)

    def load(self) -> dict[str, Tensor] | None:
        """Return what was left, or None."""
        left = kv_store()._internal_kv_get(self.path.name)
        return None if left is None else load(left)

    def write(self, values: dict[str, Tensor]) -> None:
        """Leave the values."""
        kv_store()._internal_kv_put(self.path.name, save(values))
        self._last = time.monotonic()

    def drop(self) -> None:
        """Remove what was left."""
        kv_store()._internal_kv_del(self.path.name)


@dataclass(eq=False)
class Shared:
    """A base model or replay that tasks start from: where it is cached, and a reference once it is known."""

    path: Path
    cache: ModelCache
    base_spec: BaseLearner | None  # None: the method shares nothing, and nothing is cached
    reference: Any = None

    def __post_init__(self) -> None:
        self.checkpoint = self.cache.checkpoint(self.path)

    def find(self) -> bool:
        """Place what the cache has in the object store, and say whether it has it."""
        if self.base_spec and (stored := self.cache.read(self.path, self.base_spec)):
            self.reference = ray().put(stored)
        return self.reference is not None


@dataclass(eq=False)
class Task:
    """A task: what it needs, what it makes or the job that it computes, and the last progress shown."""

    function: Callable[..., Any]
    order: Order
    needs: tuple[Shared, ...]
    makes: Shared | None = None
    job: Job | None = None
    shown: Tick | None = None

    def __post_init__(self) -> None:
        self.position = StoredPosition(self.order.key, self.order.seconds)

    def show(self, now: Tick | None) -> None:
        """Show progress; the bar is closed where that ends (None), or another one begins."""
        if (last := self.shown) and (now is None or last.task != now.task):
            tick(f"{self.order.label}: {last.task}", last.total, last.total, last.loss)
        self.shown = now
        if now:
            tick(f"{self.order.label}: {now.task}", now.done, now.total, now.loss)


def _reported(order: Order) -> Any:
    """Leave the last tick of the block where the driver looks for it, now and then."""
    last = 0.0

    def listen(now: Tick) -> None:
        nonlocal last
        if not now.sentence and time.monotonic() - last >= BETWEEN:
            last = time.monotonic()
            with suppress(Exception):  # it is for show
                kv_store()._internal_kv_put(order.key, json.dumps(asdict(now)))

    return listening(listen)


def kv_store() -> Any:
    """Return the key-value store that every Ray has."""
    return import_module("ray.experimental.internal_kv")


def placed_methods(own: Mapping[str, MethodFactory]) -> Any:
    """Put methods of one's own into the object store; one that cannot be sent is named."""
    odd: tuple[Any, ...] = (torch.classes, torch.ops)
    for module in odd:
        # Modules of a kind of their own, which go along with a function of a script that says ``.classes``.
        copyreg.pickle(type(module), lambda each: (import_module, (each.__name__,)))
    for name, make in own.items():
        try:
            ray().put(make)
        except TypeError as error:
            why = error.__cause__ or error
            raise ValueError(
                f"the method {name!r} cannot be sent to workers ({str(why).strip().splitlines()[0]}); "
                f"make it of plain functions and values, or run it without --workers and --cluster"
            ) from None
    return ray().put(dict(own))
