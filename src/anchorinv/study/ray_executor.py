"""Run a study's jobs as Ray tasks: on this machine, or on a cluster.

There is a task for each shared base model, for each shared replay of the base classes, and for each trial.
Ray passes results between tasks, and computes again what was lost with a node or a process; an error of a
task is an error of all tasks that need it. Only the driver writes results and models; a training writes its
checkpoints itself, beside the model, where its node sees that folder.
Samples are views of the node's object store; a worker keeps those and the method of its last task, no more.
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
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from anchorinv import __version__
from anchorinv.core.networks import choose_device
from anchorinv.core.recipe import BaseLearner
from anchorinv.core.types import Batch
from anchorinv.errors import import_extra
from anchorinv.persistence.format import packed
from anchorinv.progress import Tick, listening, tick
from anchorinv.study.config import digest
from anchorinv.study.execute import (
    Condition,
    JobResult,
    MethodFactory,
    ModelCache,
    Packed,
    PendingWork,
    Running,
    describe_error,
    inverted,
    reset_peak,
    restored,
)
from anchorinv.study.results import Job
from anchorinv.study.runner import InMemory, MethodRun, Scorer, fit_base_model, shares_base
from anchorinv.study.scores import method_title

logger = logging.getLogger(__name__)

#: How often Ray repeats a task whose node or process was lost. Errors of a method are final.
RETRIES = 5
#: Seconds between two looks at the nodes and at the progress of long tasks.
BETWEEN = 1.0
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def ray() -> Any:
    """Import Ray, which comes with the extra ``cluster``."""
    # No usage statistics; and Ray does not hide GPUs from workers without one.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return import_extra("ray", extra="cluster")


@contextmanager
def connected(cluster: str | None, n_cpus: int) -> Iterator[str]:
    """Connect to a cluster for the block, or start Ray on this machine (None), and yield its address.

    A cluster is left running, and so is a Ray that the caller started or connected to.
    """
    if ray().is_initialized():
        yield ray().get_runtime_context().gcs_address
        return
    # Paths of sockets in Ray's folder have at most 107 characters, of which Ray uses 70.
    where = tempfile.gettempdir() if len(tempfile.gettempdir()) <= 16 else os.sep + "tmp"
    with tempfile.TemporaryDirectory(prefix="anchorinv-", dir=where, ignore_cleanup_errors=True) as folder:
        try:
            yield _start(n_cpus, folder) if cluster is None else _connect(cluster)
        finally:
            with suppress(Exception):  # it must not take the place of what ended the run, such as Ctrl-C
                ray().shutdown()


def _start(n_cpus: int, folder: str, attempts: int = 3) -> str:
    """Start Ray, which ends with this process; retried, as Ray's half a minute may be too little."""
    # A token keeps other users from submitting tasks; an existing one is kept.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    # By default workers have such a low priority that they starve next to other programs.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray()._raylet.Config.initialize("")  # settings were read at import
    # Ray sets OMP_NUM_THREADS in its workers to the CPUs of a task, unless it is set.
    n_threads = os.environ.pop("OMP_NUM_THREADS", None)
    here = {"_node_ip_address": "127.0.0.1", "_temp_dir": folder, "include_dashboard": False}
    try:
        return str(ray().init("local", num_cpus=n_cpus, **here, **_QUIET).address_info["address"])
    except Exception as error:  # Ray raises plain exceptions on a timeout
        ray().shutdown()
        if attempts == 1:
            raise OSError(f"Ray did not start on this machine ({first_line(error)})") from None
        return _start(n_cpus, folder, attempts - 1)
    finally:
        if n_threads is not None:
            os.environ["OMP_NUM_THREADS"] = n_threads


def _connect(address: str) -> str:
    if address.startswith("ray://"):
        raise ValueError(
            "Ray Client is not supported; start the command on a node of the cluster, with --cluster auto"
        )
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdigit():  # fail fast: Ray would try for half a minute
            socket.create_connection((host, int(port)), timeout=10).close()
        ray().init(address, **_QUIET)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"no Ray cluster answers at {address} ({first_line(error)}); start one with 'ray start --head', "
            f"and the command on one of its nodes"
        ) from None
    return address


def nodes() -> dict[str, dict[str, float]]:
    """Return the resources of the living nodes, by their ids."""
    return {node["NodeID"]: node["Resources"] for node in ray().nodes() if node["Alive"]}


def capacity(threads: int, gpus: float) -> int:
    """Return how many workers with these threads and GPUs fit on the nodes of the cluster."""
    needed = {"CPU": threads, **({"GPU": gpus} if gpus else {})}
    return sum(min(int(has.get(name, 0) / n) for name, n in needed.items()) for has in nodes().values())


def first_line(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


@dataclass(frozen=True, slots=True)
class Order:
    """Arguments of a task: its job, the cache of base models, references to samples and custom methods.

    ``key`` is that of its progress in Ray's key-value store. Results depend on the versions in their last
    digits.
    """

    condition: Condition
    job: Job
    cache: ModelCache
    samples: Any
    own: Any
    key: str = field(default_factory=lambda: f"anchorinv-{secrets.token_hex(16)}")
    versions: tuple[str, str] = (__version__, torch.__version__)


def fit_base(order: Order) -> tuple[Any, float]:
    """Train a base model, from its last checkpoint; return it packed, and the seconds it took.

    For a method that shares no base model, return its state after the base session.
    """
    run, protocol, began = _prepared(order), order.condition.protocol, time.perf_counter()
    with listening(partial(_report, order.key)):
        if not (shared := shares_base(run.method)):
            return run.base()
        path = order.cache.base_path(shared.base_spec)
        # Where this node does not see the folder, a training that Ray repeats starts again.
        checkpoint = order.cache.checkpoint(path) if os.access(path.parent, os.W_OK) else None
        base_train = run.train.of(*protocol.base_classes)
        state = fit_base_model(shared.base_spec, base_train, protocol, checkpoint)
    return packed(state), time.perf_counter() - began


def recall(order: Order, base: tuple[Any, float]) -> tuple[Packed, float] | None:
    """Return the inverted replay of the base classes and its seconds; None where nothing is inverted."""
    run, began = _prepared(order, base), time.perf_counter()
    with listening(partial(_report, order.key)):
        state = run.ready()
    return (packed(state), time.perf_counter() - began) if inverted(state) else None


def run_trial(order: Order, base: Any, replay: Any = None) -> JobResult:
    """Compute a trial, through all sessions, or the base session."""
    run = _prepared(order, base, replay)
    reset_peak()
    return JobResult.of(order.job, list(run.results(order.job.trial)))


_last: dict[Any, MethodRun] = {}  # of the last task


def _prepared(order: Order, base: Any = None, replay: Any = None) -> MethodRun:
    """Return the run of the order's method, which starts from what was made before."""
    key = (replace(order.job, trial=None), order.samples, base is None, replay is None)
    if key in _last:
        return _last[key]
    _last.clear()
    if (here := (__version__, torch.__version__)) != order.versions:
        raise RuntimeError(
            f"node {ray().util.get_node_ip_address()} has anchorinv {here[0]} and torch {here[1]}, the run "
            f"{order.versions[0]} and {order.versions[1]}; install the same on all nodes"
        )
    condition, name = order.condition, order.job.method
    choose_device(condition.device)  # an error if this node does not have it
    torch.set_num_threads(condition.experiment.threads)
    # The object store is read-only; nothing writes to samples.
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    train, test = (Batch(*map(torch.from_numpy, arrays)) for arrays in ray().get(order.samples))
    method, cache = condition.methods(ray().get(order.own))[name], InMemory()
    if base and (shared := shares_base(method)):
        spec = shared.base_spec
        made = [restored(tensors, facts, spec) for (tensors, facts), _ in filter(None, (base, replay))]
        cache, base = InMemory({spec: (made[0], base[1])}, *made[1:]), None
    _last[key] = MethodRun(name, method, train, Scorer(test), condition.protocol, cache, base=base)
    return _last[key]


def _report(key: str, now: Tick) -> None:
    """Put progress into Ray's key-value store, for the driver to show."""
    if not now.sentence:
        with suppress(Exception):  # progress is not essential
            ray().experimental.internal_kv._internal_kv_put(key, json.dumps(asdict(now)))


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """Executor on Ray: started on this machine for the run, or an existing cluster.

    Parameters
    ----------
    workers : int or None, default=None
        Parallel tasks; None means as many as fit on a cluster, and one where Ray is started for the run.
    cluster : str or None, default=None
        Address of an existing cluster.
    gpus : float, default=0.0
        GPUs per worker; may be a fraction.

    Examples
    --------
    >>> executor = RayExecutor(workers=4, gpus=0.5)  # run_study(study, out, executor=executor)
    >>> executor.choose_device("auto")
    'cuda'
    """

    workers: int | None = None
    cluster: str | None = None
    gpus: float = 0.0

    def choose_device(self, device: str) -> str:
        """Return the device of workers: ``"auto"`` is their GPU, if they have one."""
        if device.startswith("cuda:"):
            raise ValueError(f"a worker only sees its own GPU; pass cuda, not {device}")
        if device == "cuda" and not self.gpus:
            raise ValueError("workers have no GPU; set --gpus-per-worker, such as 0.5")
        if device == "auto":
            return "cuda" if self.gpus else "cpu"
        return device

    def __call__(self, work: PendingWork) -> Generator[JobResult | Running, None, None]:
        """Compute the jobs, and yield each result as it arrives."""
        if not work.conditions:
            return
        threads = max(condition.experiment.threads for condition, _ in work.conditions)
        n_workers, cores, stays = self.workers or 1, os.cpu_count() or 1, ray().is_initialized()
        if self.cluster is None and n_workers * threads > cores:
            message = "%d workers of %d threads compete for %d cores; lower one of the two"
            logger.warning(message, n_workers, threads, cores)
        with connected(self.cluster, n_workers * threads) as address:
            if not (n_fit := capacity(threads, self.gpus)):
                needed = f"{threads} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
                raise ValueError(f"no node of Ray at {address} has {needed} for a worker; add such a node")
            n_workers = min(n_fit, self.workers or n_fit)
            where = f"Ray {ray().__version__} at {address}: {len(nodes())} nodes"
            logger.info("%s, %d workers of %d threads", where, n_workers, threads)
            try:
                yield from _Driver(work, self, threads).run(stays=stays)
            except ray().exceptions.RayError as error:
                raise OSError(
                    f"Ray at {address} failed ({first_line(error)}); run the same command again, "
                    f"finished jobs are kept"
                ) from None


@dataclass(eq=False)
class _Task:
    """A trial, or what makes a base model or replay, cached at ``path`` if the method shares it (``spec``).

    ``needs`` are tasks whose results it takes, ``reference`` is its own, once other tasks may take it.
    """

    function: Callable[..., Any]
    order: Order
    needs: Sequence["_Task"] = ()
    path: Path | None = None
    spec: BaseLearner | None = None
    reference: Any = None
    shown: Tick | None = None  # the last progress

    def show(self, now: Tick | None) -> None:
        """Show progress; None, or progress of something else, closes the bar."""
        job, last = self.order.job, self.shown
        title = f"{self.order.condition.prefix}{method_title(job.method)}, seed {job.seed}"
        if last and (now is None or last.task != now.task):
            tick(f"{title}: {last.task}", last.total, last.total, last.loss)
        if now:
            tick(f"{title}: {now.task}", now.done, now.total, now.loss)
        self.shown = now


class _Driver:
    """Starts tasks once their needs are met, and as many as fit; Ray does the rest."""

    def __init__(self, work: PendingWork, settings: RayExecutor, threads: int) -> None:
        self._work = replace(work, bases=work.bases.absolute())  # workers have another working directory
        self._settings, self._threads = settings, threads
        self._conditions = deque(work.conditions)
        self._samples: tuple[str, Any] = ("", None)  # digest and reference of the last ones
        self._makers: WeakValueDictionary[Path, _Task] = WeakValueDictionary()  # while they are needed
        self._pending: list[_Task] = []
        self._running: dict[Any, _Task] = {}
        self._nodes: set[str] = set()
        self._looked, self._limit = -BETWEEN, 1
        self._own = _placed_methods(work.own)
        remote = ray().remote(
            num_cpus=threads,
            num_gpus=settings.gpus,
            max_retries=RETRIES,
            retry_exceptions=[ray().exceptions.RayError],  # lost objects; a method's are final
        )
        self._remote = {task: remote(task) for task in (fit_base, recall, run_trial)}

    def run(self, *, stays: bool) -> Generator[JobResult | Running, None, None]:
        """Start tasks and collect their results until all are done; a Ray that stays is left without any."""
        try:
            while True:
                self._look()
                self._start_tasks()
                yield Running(len(self._running))
                if not self._running:
                    return
                finished, _ = ray().wait(list(self._running), timeout=BETWEEN)
                yield from filter(None, map(self._take_in, finished))
        finally:
            # Not by force: if a task ends just then, Ray 2.60 ends this process ("Tried to complete task that
            # was not pending"), with exit code 1 and whatever was to be said unsaid.
            for reference in self._running if stays else ():
                with suppress(Exception):  # such as that the task has just ended
                    ray().cancel(reference)

    def _look(self) -> None:
        """Look for lost nodes and new room, and show the progress of long tasks; once a second."""
        if time.monotonic() - self._looked < BETWEEN:
            return
        self._looked, alive = time.monotonic(), set(nodes())
        for lost in self._nodes - alive:
            logger.warning("node %s was lost; Ray repeats its tasks, at most %d times", lost, RETRIES)
        self._nodes = alive
        # More than fit on a cluster, which may grow, so that no node waits for the driver.
        self._limit = self._settings.workers or 2 * max(1, capacity(self._threads, self._settings.gpus))
        for task in self._running.values():
            if task.path and (now := ray().experimental.internal_kv._internal_kv_get(task.order.key)):
                task.show(Tick(**json.loads(now)))

    def _start_tasks(self) -> None:
        """Start what can be computed now; the next condition is opened when nothing else can be."""
        while len(self._running) < self._limit:
            ready = (task for task in self._pending if all(need.reference for need in task.needs))
            if task := next(ready, None):
                self._pending.remove(task)
                needs = (need.reference for need in task.needs)
                self._running[self._remote[task.function].remote(task.order, *needs)] = task
            elif self._conditions:
                self._open(*self._conditions.popleft())
            else:
                return

    def _take_in(self, reference: Any) -> JobResult | None:
        """Store the output of a task, or return the outcome of its job."""
        task, error, details = self._running.pop(reference), "", ""
        try:
            result = ray().get(reference)
        except ray().exceptions.RayTaskError as raised:
            error, details = describe_error(raised.cause), str(raised)
        except ray().exceptions.RayError as raised:
            error, details = f"lost {RETRIES + 1} times, the last time by {first_line(raised)}", str(raised)
        if not task.path:
            return JobResult(task.order.job, [], error, details) if error else result
        task.reference = reference  # also an error, for all tasks that need it
        if not error and result and task.spec:
            task.order.cache.write(task.path, *result)
            task.order.cache.checkpoint(task.path).drop()
        ray().experimental.internal_kv._internal_kv_del(task.order.key)
        task.show(None)
        return None

    def _open(self, condition: Condition, jobs: Sequence[Job]) -> None:
        """Add the tasks of a condition: those that make base models and replay come before trials."""
        samples = condition.samples(self._work.data[condition.variant])
        arrays = [
            [part.numpy() for part in (batch.values, batch.labels, batch.groups) if part is not None]
            for batch in samples
        ]
        if (content := digest(*arrays[0], *arrays[1])) != self._samples[0]:
            self._samples = content, ray().put(arrays)  # shared by conditions with the same samples
        cache = self._work.cache_of(condition, samples)
        for name, method in condition.methods(self._work.own).items():
            if not (pending := [job for job in jobs if job.method == name]):
                continue
            order = Order(condition, condition.job(name, None), cache, self._samples[1], self._own)
            shared = shares_base(method)
            spec = shared.base_spec if shared else None
            makers: dict[Path, Any] = {cache.base_path(spec) if spec else Path(str(order.job)): fit_base}
            if shared and spec and any(job.trial is not None for job in pending):
                makers[cache.replay_path(spec, shared.memory)] = recall
            needs: list[_Task] = []
            for path, function in makers.items():
                # Made for the first of the methods that share it, unless it is cached.
                if (task := self._makers.get(path)) is None:
                    task = self._makers[path] = _Task(function, order, needs[:], path, spec)
                    if spec and (stored := cache.read(path, spec)):
                        task.reference = ray().put((stored, stored[1]["seconds"]))
                    else:
                        self._pending.append(task)
                needs.append(task)
            for job in pending:
                used = needs[:1] if job.trial is None else needs
                self._pending.append(_Task(run_trial, replace(order, job=job), used))
        self._pending.sort(key=lambda task: not task.path)


def _placed_methods(own: Mapping[str, MethodFactory]) -> Any:
    """Put custom methods into the object store; an error names one that cannot be pickled."""
    modules: tuple[Any, ...] = (torch.classes, torch.ops)
    for module in modules:
        # These modules cannot be pickled, and may be captured by functions of a script.
        copyreg.pickle(type(module), lambda module: (import_module, (module.__name__,)))
    for name, make in own.items():
        try:
            ray().put(make)
        except TypeError as error:
            why = error.__cause__ or error
            raise ValueError(
                f"the method {name!r} cannot be sent to workers ({str(why).strip().splitlines()[0]}); "
                f"use plain functions and values, or run it without --workers and --cluster"
            ) from None
    return ray().put(dict(own))
