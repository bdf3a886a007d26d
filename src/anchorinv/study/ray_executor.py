"""Run a study's jobs as Ray tasks: on this machine, or on a cluster.

There is a task for each shared base model, for each shared replay of the base classes, and for each trial.
Ray passes results between tasks, and computes again what was lost with a node or a process; an error of a
task is an error of all tasks that need it. Only the driver writes files. Progress and checkpoints of long
tasks go through Ray's key-value store; a task that Ray computes again resumes from its last checkpoint.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from safetensors.torch import load, save
from torch import Tensor

from anchorinv import __version__
from anchorinv.core.networks import choose_device
from anchorinv.core.recipe import BaseLearner
from anchorinv.core.types import Batch, State
from anchorinv.errors import import_extra
from anchorinv.persistence.format import packed
from anchorinv.progress import Tick, listening, tick
from anchorinv.study.config import digest
from anchorinv.study.execute import (
    Condition,
    FileCheckpoint,
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
from anchorinv.study.runner import InMemory, MethodRun, Scorer, SharesBase, fit_base_model, shares_base
from anchorinv.study.scores import method_title

logger = logging.getLogger(__name__)

#: How often Ray repeats a task whose node or process was lost. Errors of a method are final.
RETRIES = 5
#: Seconds between two reports of progress.
BETWEEN = 1.0
_PATIENCE = 0.5  # seconds to wait for a task
_LOOK = 5.0  # seconds between two looks at the cluster's nodes
#: Longest temporary folder: paths of sockets in Ray's folder have at most 107 characters, of which Ray uses
#: 70.
_LONGEST = 16
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def ray() -> Any:
    """Import Ray, which comes with the extra ``cluster``."""
    # No usage statistics; and Ray does not hide GPUs from workers without one.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return import_extra("ray", extra="cluster")


def kv_store() -> Any:
    """Return Ray's key-value store."""
    return import_module("ray.experimental.internal_kv")


@contextmanager
def local(n_cpus: int) -> Iterator[str]:
    """Start Ray on this machine for the block, and yield its address; it ends with this process."""
    if ray().is_initialized():  # started, and to be stopped, by the caller
        yield ray().get_runtime_context().gcs_address
        return
    # A token keeps other users from submitting tasks; an existing one is kept.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    # By default workers have such a low priority that they starve next to other programs.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray()._raylet.Config.initialize("")  # settings were read at import
    where = tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST else os.sep + "tmp"
    with tempfile.TemporaryDirectory(prefix="anchorinv-", dir=where, ignore_cleanup_errors=True) as folder:
        try:
            yield _start(n_cpus, folder)
        finally:
            _leave()


def _start(n_cpus: int, folder: str, attempts: int = 3) -> str:
    """Start Ray and return its address; retried, as its processes may time out on a busy machine."""
    # Ray sets OMP_NUM_THREADS in its workers to the CPUs of a task, unless it is set.
    n_threads = os.environ.pop("OMP_NUM_THREADS", None)
    here: dict[str, Any] = {"_node_ip_address": "127.0.0.1", "_temp_dir": folder, "include_dashboard": False}
    try:
        context = ray().init("local", num_cpus=n_cpus, **here, **_QUIET)
    except Exception as error:  # Ray raises plain exceptions on a timeout
        ray().shutdown()
        if attempts == 1:
            raise OSError(f"Ray did not start on this machine ({first_line(error)})") from None
        return _start(n_cpus, folder, attempts - 1)
    finally:
        if n_threads is not None:
            os.environ["OMP_NUM_THREADS"] = n_threads
    return str(context.address_info["address"])


@contextmanager
def connected(address: str) -> Iterator[str]:
    """Connect to a cluster for the block, and yield its address; the cluster is left running."""
    if address.startswith("ray://"):
        raise ValueError(
            f"{address} belongs to Ray Client, which is not supported; start the command on a node of the "
            f"cluster, with --cluster auto"
        )
    if ray().is_initialized():  # connected by the caller
        yield address
        return
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
    try:
        yield address
    finally:
        _leave()


def _leave() -> None:
    """Shut Ray down; whatever it raises then must not take the place of what ended the run, as Ctrl-C."""
    try:
        ray().shutdown()
    except Exception as error:
        logger.warning("Ray did not end properly (%s)", first_line(error))


def nodes() -> dict[str, dict[str, float]]:
    """Return the resources of the living nodes, by their ids."""
    return {node["NodeID"]: node["Resources"] for node in ray().nodes() if node["Alive"]}


def capacity(threads: int, gpus: float) -> int:
    """Return how many workers with these threads and GPUs fit on the nodes of the cluster."""
    n_workers = 0
    for resources in nodes().values():
        by_cpu = int(resources.get("CPU", 0) // threads)
        n_workers += min(by_cpu, int(resources.get("GPU", 0) / gpus)) if gpus else by_cpu
    return n_workers


def described(address: str) -> str:
    """Describe a cluster in one line."""
    total = ray().cluster_resources()
    gpus = f", {total['GPU']:g} GPUs" if total.get("GPU") else ""
    return f"Ray {ray().__version__} at {address}: {len(nodes())} nodes, {total.get('CPU', 0):g} CPUs{gpus}"


def first_line(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


@dataclass(frozen=True, slots=True)
class Order:
    """Arguments of a task: its job, and references to samples and custom methods.

    ``seconds`` is the time between two checkpoints of a training, ``key`` that of progress and checkpoints
    in the key-value store. Results depend on the versions in their last digits.
    """

    condition: Condition
    job: Job
    samples: Any
    own: Any
    seconds: float
    key: str = ""
    versions: tuple[str, str] = (__version__, torch.__version__)


def fit_base(order: Order) -> Any:
    """Train a base model, from the last checkpoint; return it packed.

    For a method that shares no base model, return its state after the base session and the seconds it took.
    """
    run, shared, train = _prepared(order)
    mailbox, protocol, began = _Mailbox(order), order.condition.protocol, time.perf_counter()
    with listening(mailbox.report):
        if shared is None:
            return run.base()
        base_train = train.of(*protocol.base_classes)
        return _packed(fit_base_model(shared.base_spec, base_train, protocol, mailbox), began)


def recall(order: Order, base: Packed) -> Packed | None:
    """Return the inverted replay of the base classes; None where nothing is inverted."""
    run, _, _ = _prepared(order, base)
    began = time.perf_counter()
    with listening(_Mailbox(order).report):
        state = run.ready()
    return _packed(state, began) if inverted(state) else None


def run_trial(order: Order, base: Any, replay: Packed | None = None) -> JobResult:
    """Compute a trial, through all sessions, or the base session."""
    run, _, _ = _prepared(order, base, replay)
    reset_peak()
    return JobResult.of(order.job, list(run.results(order.job.trial)))


_last: dict[Any, tuple[MethodRun, SharesBase | None, Batch]] = {}  # of the last task


def _prepared(
    order: Order, base: Any = None, replay: Packed | None = None
) -> tuple[MethodRun, SharesBase | None, Batch]:
    """Return the order's run, the method if it shares its base model, and the training samples."""
    key = (replace(order.job, trial=None), order.samples, order.own, base is None, replay is None)
    if key in _last:
        return _last[key]
    _last.clear()
    here = (__version__, torch.__version__)
    if here != order.versions:
        raise RuntimeError(
            f"node {ray().util.get_node_ip_address()} has anchorinv {here[0]} and torch {here[1]}, the run "
            f"{order.versions[0]} and {order.versions[1]}; install the same on all nodes"
        )
    condition = order.condition
    choose_device(condition.device)  # an error if this node does not have it
    torch.set_num_threads(condition.experiment.threads)
    train, scorer = _samples(order.samples)
    method = condition.methods(ray().get(order.own))[order.job.method]
    cache, shared = InMemory(), shares_base(method)
    if shared and base:
        cache = InMemory({shared.base_spec: _unpacked(base, shared)}, replay and _unpacked(replay, shared)[0])
        base = None
    run = MethodRun(order.job.method, method, train, scorer, condition.protocol, cache, base=base)
    _last[key] = run, shared, train
    return _last[key]


@lru_cache(maxsize=1)
def _samples(reference: Any) -> tuple[Batch, Scorer]:
    with warnings.catch_warnings():
        # torch warns that the object store is read-only; nothing writes to samples.
        warnings.simplefilter("ignore", UserWarning)
        train, test = (Batch(*map(torch.from_numpy, arrays)) for arrays in ray().get(reference))
    return train, Scorer(test)


def _packed(state: State, began: float) -> Packed:
    tensors, facts = packed(state)
    return tensors, {**facts, "seconds": time.perf_counter() - began}


def _unpacked(state: Packed, shared: SharesBase) -> tuple[State, float]:
    tensors, facts = state
    return restored(tensors, facts, shared.base_spec), float(facts["seconds"])


class _Mailbox(FileCheckpoint):
    """Progress and checkpoint of a long task, written by it to Ray's key-value store for the driver."""

    def __init__(self, order: Order) -> None:
        super().__init__(Path(f"{order.key}-position"), seconds=order.seconds)
        self._key, self._reported = order.key, 0.0

    def report(self, now: Tick) -> None:
        if not now.sentence and time.monotonic() - self._reported >= BETWEEN:
            self._reported = time.monotonic()
            with suppress(Exception):  # progress is not essential
                kv_store()._internal_kv_put(self._key, json.dumps(asdict(now)))

    def progress(self) -> Tick | None:
        last = kv_store()._internal_kv_get(self._key)
        return Tick(**json.loads(last)) if last else None

    def load(self) -> dict[str, Tensor] | None:
        stored = kv_store()._internal_kv_get(self.path.name)
        return None if stored is None else load(stored)

    def write(self, values: dict[str, Tensor]) -> None:
        kv_store()._internal_kv_put(self.path.name, save(values))
        self._last = time.monotonic()

    def drop(self) -> None:
        for key in (self._key, self.path.name):
            kv_store()._internal_kv_del(key)


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """Executor on Ray: started on this machine for the run, or an existing cluster.

    Parameters
    ----------
    workers : int or None, default=None
        Parallel tasks; on a cluster None means as many as fit.
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
        with ExitStack() as stack:
            of_caller = ray().is_initialized()  # who also shuts it down
            if self.cluster is None:
                assert self.workers is not None, "the number of workers is required on one machine"
                if self.workers * threads > (cores := os.cpu_count() or 1):
                    logger.warning(
                        "%d workers of %d threads compete for %d cores; lower one of the two",
                        *(self.workers, threads, cores),
                    )
                address = stack.enter_context(local(self.workers * threads))
            else:
                address = stack.enter_context(connected(self.cluster))
            if not (n_fit := capacity(threads, self.gpus)):
                needed = f"{threads} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
                raise ValueError(
                    f"no node of {described(address)} has {needed} for a worker; add such a node"
                )
            n_workers = min(n_fit, self.workers or n_fit)
            logger.info("%s; %d workers of %d threads", described(address), n_workers, threads)
            try:
                driver = _Driver(work, self, threads)
                if of_caller:
                    stack.callback(driver.stop)
                yield from driver.run()
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
    needs: tuple["_Task", ...] = ()
    path: Path | None = None
    cache: ModelCache | None = None
    spec: BaseLearner | None = None
    reference: Any = None
    progress: Tick | None = None  # the last that was shown

    def __post_init__(self) -> None:
        self.mailbox = _Mailbox(self.order)
        if self.path and self.cache:
            self.checkpoint = self.cache.checkpoint(self.path)

    def show(self, now: Tick | None) -> None:
        """Show progress; None, or progress of something else, closes the bar."""
        job = self.order.job
        title = f"{self.order.condition.prefix}{method_title(job.method)}, seed {job.seed}"
        if (last := self.progress) and (now is None or last.task != now.task):
            tick(f"{title}: {last.task}", last.total, last.total, last.loss)
        self.progress = now
        if now:
            tick(f"{title}: {now.task}", now.done, now.total, now.loss)


class _Driver:
    def __init__(self, work: PendingWork, settings: RayExecutor, threads: int) -> None:
        self._work, self._settings, self._threads = work, settings, threads
        self._conditions = deque(work.conditions)
        self._samples: tuple[str, Any] = ("", None)  # digest and reference of the last ones
        self._makers: WeakValueDictionary[Path, _Task] = WeakValueDictionary()  # while they are needed
        self._pending: list[_Task] = []
        self._running: dict[Any, _Task] = {}
        self._room, self._looked, self._shown = 1, -_LOOK, 0.0
        self._nodes: set[str] = set()
        self._own = _placed_methods(work.own)
        self._remote = {task: ray().remote(task) for task in (fit_base, recall, run_trial)}

    def run(self) -> Generator[JobResult | Running, None, None]:
        """Start tasks and collect their results until all are done."""
        while True:
            self._look_at_nodes()
            self._start_tasks()
            yield Running(len(self._running))
            if not self._running:
                return
            finished, _ = ray().wait(list(self._running), num_returns=1, timeout=_PATIENCE)
            for reference in finished:
                if result := self._take_in(reference):
                    yield result
            self._look_at_makers()

    def stop(self) -> None:
        """Cancel running tasks, where Ray stays; else they end with the connection.

        Not by force: if a task ends just then, Ray 2.60 ends this process ("Tried to complete task that was
        not pending"), with exit code 1 and whatever was to be said unsaid.
        """
        for reference in self._running:
            with suppress(Exception):  # as in _leave; and a task that has just ended cannot be cancelled
                ray().cancel(reference)

    def _look_at_nodes(self) -> None:
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked, alive = time.monotonic(), set(nodes())
        for lost in self._nodes - alive:
            logger.warning("node %s was lost; Ray repeats its tasks, at most %d times", lost, RETRIES)
        self._nodes = alive
        self._room = max(1, capacity(self._threads, self._settings.gpus))  # a cluster may grow

    def _start_tasks(self) -> None:
        # More than fit, so that no node waits for the driver.
        while len(self._running) < (self._settings.workers or 2 * self._room):
            ready = (task for task in self._pending if all(need.reference for need in task.needs))
            if task := next(ready, None):
                self._pending.remove(task)
                self._running[self._started(task)] = task
            elif self._conditions:
                self._open(*self._conditions.popleft())
            else:
                return

    def _started(self, task: _Task) -> Any:
        """Start a task and return a reference to its result."""
        if task.path and (values := task.checkpoint.load()):
            task.mailbox.write(values)
        remote = self._remote[task.function].options(
            num_cpus=task.order.condition.experiment.threads,
            num_gpus=self._settings.gpus,
            max_retries=RETRIES,
            retry_exceptions=[ray().exceptions.RayError],  # such as lost objects; a method's are final
        )  # fmt: skip
        return remote.remote(task.order, *(need.reference for need in task.needs))

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
        if error and (values := task.mailbox.load()):
            task.checkpoint.write(values)
        elif not error and result and task.spec and task.cache:
            task.cache.write(task.path, result, result[1]["seconds"])
            task.checkpoint.drop()
        task.mailbox.drop()
        task.show(None)
        return None

    def _look_at_makers(self) -> None:
        """Show the progress of long tasks, and write checkpoints now and then."""
        if time.monotonic() - self._shown < BETWEEN:
            return
        self._shown = time.monotonic()
        for task in self._running.values():
            if task.path and (now := task.mailbox.progress()):
                task.show(now)
                if task.checkpoint.due and (values := task.mailbox.load()):
                    task.checkpoint.write(values)

    def _open(self, condition: Condition, jobs: Sequence[Job]) -> None:
        """Add the tasks of a condition: those that make base models and replay come before trials."""
        samples = condition.samples(self._work.data[condition.variant])
        arrays = [
            [part.numpy() for part in (batch.values, batch.labels, batch.groups) if part is not None]
            for batch in samples
        ]
        content = digest(*arrays[0], *arrays[1])
        if content != self._samples[0]:  # shared by conditions with the same samples
            self._samples = content, ray().put(arrays)
        cache = self._work.cache_of(condition, samples)
        for name, method in condition.methods(self._work.own).items():
            if not (pending := [job for job in jobs if job.method == name]):
                continue
            job = condition.job(name, None)
            order = Order(condition, job, self._samples[1], self._own, self._work.seconds)
            shared = shares_base(method)
            spec = shared.base_spec if shared else None
            base = self._maker(
                fit_base, order, cache.base_path(spec) if spec else Path(str(job)), cache, spec
            )
            needs: tuple[_Task, ...] = (base,)
            if shared and spec and any(job.trial is not None for job in pending):
                path = cache.replay_path(spec, shared.memory)
                needs += (self._maker(recall, order, path, cache, spec, base),)
            for job in pending:
                used = needs[:1] if job.trial is None else needs
                self._pending.append(_Task(run_trial, replace(order, job=job), used))
        self._pending.sort(key=lambda task: not task.path)

    def _maker(
        self, function: Callable[..., Any], order: Order, path: Path, cache: ModelCache,
        spec: BaseLearner | None, *needs: _Task,
    ) -> _Task:  # fmt: skip
        """Return the task that makes what methods share; for the first of them, and unless it is cached."""
        if (existing := self._makers.get(path)) is not None:
            return existing
        order = replace(order, key=f"anchorinv-{secrets.token_hex(16)}")
        task = self._makers[path] = _Task(function, order, needs, path, cache, spec)
        if spec and (stored := cache.read(path, spec)):
            task.reference = ray().put(stored)
        else:
            self._pending.append(task)
        return task


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
