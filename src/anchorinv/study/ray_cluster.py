"""A Ray to work on, of this machine or an existing cluster, and the tasks that its workers compute.

A worker keeps the samples and the method of its last task, and nothing else: its memory does not grow with
the number of trials. Samples are views of the node's object store, which all workers of a node share. How far
a long task is, it leaves in the key-value store that every Ray has, where the driver looks for it; a training
leaves its position there, too, and goes on from it when Ray computes it again.
"""

import copyreg
import json
import logging
import os
import secrets
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from anchorinv import __version__
from anchorinv.core.devices import choose_device
from anchorinv.core.recipe import BaseLearner
from anchorinv.core.registry import METHODS
from anchorinv.core.types import Batch, State
from anchorinv.errors import import_extra
from anchorinv.persistence.format import packed
from anchorinv.progress import Tick, listening, tick
from anchorinv.study.cache import FileCheckpoint, ModelCache, Packed, inverted, restored
from anchorinv.study.execute import Condition, JobResult, MethodFactory, reset_peak
from anchorinv.study.results import Job
from anchorinv.study.runner import InMemory, MethodRun, Scorer, SharesBase, fit_base_model, shares_base

#: Sockets lie in Ray's folder, and the system allows 107 characters for their paths; Ray takes 70 of them.
_LONGEST = 16


def ray() -> Any:
    """Return the library, which comes with the extra ``cluster``, or say how to get it."""
    # No usage statistics are sent; and a worker without a GPU keeps what it sees of them.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return import_extra("ray", extra="cluster")


@contextmanager
def local(n_cpus: int) -> Iterator[str]:
    """Start a Ray of this machine alone for the block, and give its address; it ends with this process."""
    if ray().is_initialized():  # somebody's, and theirs to end
        yield ray().get_runtime_context().gcs_address
        return
    # Nobody else on this machine may submit tasks; a token that is set already is kept.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray()._raylet.Config.initialize("")  # it read its settings when it was imported
    where = tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST else os.sep + "tmp"
    with tempfile.TemporaryDirectory(prefix="anchorinv-", dir=where, ignore_cleanup_errors=True) as folder:
        try:
            yield _start(n_cpus, folder, attempts=3)
        finally:
            ray().shutdown()


def _start(n_cpus: int, folder: str, *, attempts: int) -> str:
    """Start Ray and return its address; on a busy machine its processes may not find each other in time."""
    # Ray sets OMP_NUM_THREADS in its workers to what a task asks for, unless it finds it set.
    n_threads = os.environ.pop("OMP_NUM_THREADS", None)
    # Ray lowers the priority of its workers so far that beside any other program they get next to nothing.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        context = ray().init(
            "local",
            num_cpus=n_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
    except Exception as error:  # Ray raises no other kind when it runs out of time
        ray().shutdown()
        if attempts == 1:
            raise OSError(f"Ray did not start on this machine ({first_line(error)})") from None
        return _start(n_cpus, folder, attempts=attempts - 1)
    finally:
        if n_threads is not None:
            os.environ["OMP_NUM_THREADS"] = n_threads
    return str(context.address_info["address"])


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a cluster for the block; the cluster goes on after it."""
    if address.startswith("ray://"):
        raise ValueError(
            f"{address} is for Ray Client, which is not used here; start the command on a node of the "
            f"cluster, with --cluster auto"
        )
    if ray().is_initialized():  # somebody's connection, and theirs to end
        yield
        return
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdigit():  # Ray would try for half a minute
            socket.create_connection((host, int(port)), timeout=10).close()
        ray().init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"no Ray cluster answers at {address} ({first_line(error)}); start one with 'ray start --head', "
            f"and the command on one of its nodes"
        ) from None
    try:
        yield
    finally:
        ray().shutdown()


def nodes() -> list[dict[str, Any]]:
    """Return the living nodes, as Ray describes them."""
    return [node for node in ray().nodes() if node["Alive"]]


def capacity(threads: int, gpus: float) -> int:
    """Return how many workers of so many threads and GPUs the cluster has room for, node by node."""
    room = 0
    for node in nodes():
        resources = node["Resources"]
        fit = int(resources.get("CPU", 0) // threads)
        room += min(fit, int(resources.get("GPU", 0) / gpus)) if gpus else fit
    return room


def device(asked: str, gpus: float) -> str:
    """Return where workers have their networks who are given so many GPUs each; auto takes what is given.

    Examples
    --------
    >>> device("auto", 0.5), device("auto", 0)
    ('cuda', 'cpu')
    """
    if asked == "auto":
        return "cuda" if gpus else "cpu"
    if asked.startswith("cuda:"):
        raise ValueError(f"a worker sees the GPU that it is given, and no other; say cuda, not {asked}")
    if asked == "cuda" and not gpus:
        raise ValueError(
            "workers are given no GPU; say with --gpus-per-worker how much of one each is given, such as 0.5"
        )
    return asked


def described(address: str) -> str:
    """Return a line on what a cluster is made of."""
    alive = nodes()
    cpus, gpus = (sum(node["Resources"].get(name, 0) for node in alive) for name in ("CPU", "GPU"))
    with_gpus = f", {gpus:g} GPUs" if gpus else ""
    return f"Ray {ray().__version__} at {address}: {len(alive)} nodes, {cpus:g} CPUs{with_gpus}"


def first_line(error: Exception) -> str:
    """Return an error's kind and the first line of its message; Ray's have many."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


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
    choose_device(order.condition.device)  # says so if this node has none
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
    return restored(tensors, facts, shared.base_spec), float(facts["seconds"])


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
