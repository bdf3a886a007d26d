"""Run a study's jobs as Ray tasks: on this machine, or on a cluster.

For each method in each condition there is a task for the base model, one for the replay of the base classes,
and one for each trial. Ray computes a task again whose node or process was lost. The driver alone writes, and
it places what tasks share in the object store, so that a node takes nothing with it that others need. A base
training returns to the driver every minute and goes on in a new task: a lost node costs no more than that.
"""

import copyreg
import json
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from anchorinv.progress import Tick, tick
from anchorinv.study.cache import ModelCache
from anchorinv.study.execute import (
    Condition,
    JobResult,
    MethodFactory,
    PendingWork,
    Running,
    describe_error,
)
from anchorinv.study.experiment import Samples
from anchorinv.study.ray_cluster import capacity, connected, described, local, nodes, ray
from anchorinv.study.ray_tasks import (
    BETWEEN,
    Order,
    PackedState,
    Position,
    fit_base,
    kv_store,
    recall,
    run_trial,
    to_arrays,
    to_tensors,
)
from anchorinv.study.results import Job
from anchorinv.study.runner import SharesBase, shares_base

logger = logging.getLogger(__name__)

#: How often Ray computes a task again whose node or process was lost. Errors of a method are final.
RETRIES = 5
_PATIENCE = 0.5  # seconds to wait for a task
_LOOK = 5.0  # seconds between two looks at the cluster's nodes


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """An executor on a Ray of this machine, started for the run, or on an existing cluster.

    Parameters
    ----------
    workers : int or None, default=None
        Tasks at the same time; on a cluster None means as many as there is room for.
    cluster : str or None, default=None
        Address of an existing cluster.
    gpus : float, default=0.0
        GPUs that each worker is given; may be a fraction.

    Examples
    --------
    >>> executor = RayExecutor(workers=4)  # run_study(study, out, executor=executor)
    """

    workers: int | None = None
    cluster: str | None = None
    gpus: float = 0.0

    def __call__(self, work: PendingWork) -> Generator[JobResult | Running, None, None]:
        """Compute the jobs, and yield the result of each as it comes."""
        if not work.conditions:
            return
        threads = max(condition.experiment.threads for condition, _ in work.conditions)
        with ExitStack() as stack:
            if self.cluster is None:
                assert self.workers is not None, "on one machine somebody has to say how many"
                if self.workers * threads > (cores := os.cpu_count() or 1):
                    logger.warning(
                        "%d workers of %d threads wait for each other on %d cores; lower one of the two",
                        *(self.workers, threads, cores),
                    )
                address = stack.enter_context(local(self.workers * threads))
            else:
                address = self.cluster
            stack.enter_context(connected(address))
            if not (room := capacity(threads, self.gpus)):
                asked = f"{threads} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
                raise ValueError(
                    f"no node of {described(address)} has {asked} for a worker; add one that has"
                )
            room = min(room, self.workers or room)
            logger.info("%s; %d workers of %d threads", described(address), room, threads)
            try:
                driver = _Driver(work, self, threads)
                stack.callback(driver.stop)
                yield from driver.run()
            except ray().exceptions.RayError as error:
                raise OSError(
                    f"Ray at {address} failed ({_first_line(error)}); run the same command again, what is "
                    f"finished is kept"
                ) from None


@dataclass(eq=False)
class PendingRun:
    """One method in one condition, and what is left of it."""

    name: str  # no other run has it
    condition: Condition
    method: str
    shared: SharesBase | None  # the method, if it can share its base model
    pending: deque[Job]  # in order; those handed out are taken from here
    cache: ModelCache
    samples: Any  # ObjectRef
    base: Any = None  # ObjectRef, once it is known
    replay: Any = None  # ObjectRef, once it is known
    position: Position | None = None  # where the base training was left
    ready: bool = False  # for trials: the replay is known, or there is none

    def __post_init__(self) -> None:
        # Where base model and replay are cached; of a method that shares none, a name of its own.
        self.base_path = self.replay_path = Path(self.name)
        if self.shared:
            self.base_path = self.cache.base_path(self.shared.base_spec)
            self.replay_path = self.cache.replay_path(self.shared.base_spec, self.shared.memory)

    @property
    def has_trials(self) -> bool:
        """Whether trials are pending, beside the base session."""
        return bool(self.pending) and self.pending[-1].trial is not None


@dataclass(eq=False)
class _Task:
    """A task that runs: for which run, at which stage, for which job, and the last progress shown."""

    run: PendingRun
    stage: Literal["base", "replay", "trial"]
    key: Path | None = None
    job: Job | None = None
    progress: str = ""
    shown: Tick | None = None


class _Driver:
    def __init__(self, work: PendingWork, settings: RayExecutor, threads: int) -> None:
        self._work, self._settings, self._threads = work, settings, threads
        self._conditions = deque(work.conditions)
        self._samples: tuple[tuple[Any, ...], Samples, Any] | None = None
        self._runs: list[PendingRun] = []
        self._running: dict[Any, _Task] = {}
        self._room, self._looked, self._shown = 1, -_LOOK, 0.0
        self._nodes: set[str] = set()
        self._own = _placed_methods(work.own)
        self._remote = {task: ray().remote(task) for task in (fit_base, recall, run_trial)}

    def run(self) -> Generator[JobResult | Running, None, None]:
        """Start tasks and take in their results until nothing is left."""
        while True:
            self._look_at_nodes()
            self._start_tasks()
            yield Running(len(self._running))
            if not self._running:
                return
            finished, _ = ray().wait(list(self._running), num_returns=1, timeout=_PATIENCE)
            for reference in finished:
                yield from self._take_in(reference)
            self._show_progress()
            self._runs = [run for run in self._runs if run.pending]

    def stop(self) -> None:
        """Cancel whatever still runs."""
        with suppress(ray().exceptions.RayError):
            for reference in self._running:
                ray().cancel(reference, force=True)

    def _look_at_nodes(self) -> None:
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked, alive = time.monotonic(), {node["NodeID"] for node in nodes()}
        for lost in self._nodes - alive:
            logger.warning("node %s was lost; Ray computes its tasks again, %d times at most", lost, RETRIES)
        self._nodes = alive
        self._room = max(1, capacity(self._threads, self._settings.gpus))  # a cluster may grow

    def _start_tasks(self) -> None:
        while True:
            # Some ahead, so that no node waits for the driver; but a training that goes on waits for nobody.
            ahead = 1 if any(run.base is None for run in self._runs) else 2
            if len(self._running) >= (self._settings.workers or ahead * self._room):
                return
            task = self._next()
            if task is not None:
                self._running[self._started(task)] = task
            elif self._conditions:
                self._open()
            else:
                return

    def _next(self) -> _Task | None:
        """Return what to start next: base models before replay, both before trials."""
        # What several methods share is made for one of them; the others wait for it.
        making = {task.key for task in self._running.values()}
        next_trial = None
        for run in self._runs:
            if run.base is None:
                if run.base_path not in making:
                    return _Task(run, "base", run.base_path)
                continue
            if run.has_trials and not run.ready and run.replay_path not in making:
                return _Task(run, "replay", run.replay_path)
            if next_trial is None and run.pending and (run.ready or run.pending[0].trial is None):
                next_trial = run
        return _Task(next_trial, "trial", job=next_trial.pending.popleft()) if next_trial else None

    def _started(self, task: _Task) -> Any:
        run, task.progress = task.run, f"anchorinv-{secrets.token_hex(16)}"
        order = Order(
            run.name, run.condition, run.method, run.samples, self._own, run.base, run.replay, task.progress
        )

        def start(function: Callable[..., Any], *args: Any) -> Any:
            options = {"num_cpus": run.condition.experiment.threads, "num_gpus": self._settings.gpus}
            # A method's own errors are final; those of Ray (an object that was lost) are nobody's fault.
            retries = {"max_retries": RETRIES, "retry_exceptions": [ray().exceptions.RayError]}
            return self._remote[function].options(**options, **retries).remote(order, *args)

        if task.stage == "base":
            if run.shared and not run.position and (left := run.cache.checkpoint(run.base_path).load()):
                run.position = Position(to_arrays(left))
            return start(fit_base, run.position, self._work.seconds)
        if task.stage == "replay":
            return start(recall)
        assert task.job is not None
        return start(run_trial, task.job.trial)

    def _take_in(self, reference: Any) -> Iterator[JobResult]:
        task = self._running.pop(reference)
        self._close_bar(task)
        try:
            result = ray().get(reference)
        except ray().exceptions.RayTaskError as error:
            yield from self._failed(task, describe_error(error.cause), str(error))
        except ray().exceptions.RayError as error:
            why = f"lost {RETRIES + 1} times, the last time by {_first_line(error)}"
            yield from self._failed(task, why, str(error))
        else:
            if task.stage == "base":
                self._keep_base(task.run, result)
            elif task.stage == "replay":
                self._keep_replay(task.run, result)
            else:
                yield result

    def _failed(self, task: _Task, error: str, details: str) -> Iterator[JobResult]:
        """Yield the jobs that cannot be computed because a task failed."""
        if task.job is not None:
            yield JobResult(task.job, [], error, details)
            return
        runs = self._sharing_base(task.run) if task.stage == "base" else [task.run]
        for run in runs:
            jobs = [job for job in run.pending if task.stage == "base" or job.trial is not None]
            run.pending = deque(job for job in run.pending if job not in jobs)
            yield from (JobResult(job, [], error, details) for job in jobs)

    def _sharing_base(self, one: PendingRun) -> list[PendingRun]:
        return [run for run in self._runs if run.base is None and run.base_path == one.base_path]

    def _keep_base(self, run: PendingRun, result: Any) -> None:
        if isinstance(result, Position):  # and it goes on from there
            run.cache.checkpoint(run.base_path).write(to_tensors(result.values))
            for each in self._sharing_base(run):
                each.position = result
        elif run.shared is None:
            run.base, run.ready = ray().put(result), True
        else:
            (arrays, facts), seconds = result
            run.cache.write(run.base_path, (to_tensors(arrays), facts), seconds)
            run.cache.checkpoint(run.base_path).drop()
            for each in self._sharing_base(run):
                self._find(each)

    def _keep_replay(self, run: PendingRun, result: tuple[PackedState, float] | None) -> None:
        if result is not None:
            (arrays, facts), seconds = result
            run.cache.write(run.replay_path, (to_tensors(arrays), facts), seconds)
        for each in self._runs:
            if each.base is not None and each.replay_path == run.replay_path:
                self._find(each)
                each.ready = True  # also where nothing is inverted: each trial then recalls by itself

    def _find(self, run: PendingRun) -> None:
        """Give a run the base model and the replay that other runs or the cache have."""
        run.base = run.base or self._placed(run, run.base_path)
        if run.base is not None and run.has_trials:
            run.replay = self._placed(run, run.replay_path)
            run.ready = run.replay is not None

    def _placed(self, run: PendingRun, path: Path) -> Any:
        """Return a reference to what the cache has; each node that needs it fetches it once."""
        assert run.shared is not None
        for other in self._runs:
            for where, reference in ((other.base_path, other.base), (other.replay_path, other.replay)):
                if where == path and reference is not None:
                    return reference
        stored = run.cache.read(path, run.shared.base_spec)
        return None if stored is None else ray().put((to_arrays(stored[0]), stored[1]))

    def _open(self) -> None:
        """Add the runs of the next condition; samples of conditions alike are placed once."""
        condition, jobs = self._conditions.popleft()
        settings = condition.experiment.model_dump(
            include={"data": True, "synthetic": True, "standardise": True, "protocol": {"leave_one_out"}}
        )
        classes = condition.protocol.base_classes, condition.protocol.sessions
        kind = (id(self._work.data[condition.variant]), condition.person, settings, classes)
        if self._samples is None or self._samples[0] != kind:
            samples = condition.samples(self._work.data[condition.variant])
            arrays = [
                [part.numpy() for part in (batch.values, batch.labels, batch.groups) if part is not None]
                for batch in (samples.train, samples.test)
            ]
            self._samples = kind, samples, ray().put(arrays)
        _, samples, reference = self._samples
        cache = self._work.cache_of(condition, samples)
        for name, method in condition.methods(self._work.own).items():
            if pending := deque(job for job in jobs if job.method == name):
                label = f"{condition.prefix}{name}, seed {condition.protocol.seed}"
                run = PendingRun(label, condition, name, shares_base(method), pending, cache, reference)
                self._runs.append(run)
                if run.shared:
                    self._find(run)

    def _show_progress(self) -> None:
        if time.monotonic() - self._shown < BETWEEN:
            return
        self._shown = time.monotonic()
        for task in self._running.values():
            if task.stage == "trial" or not (last := kv_store()._internal_kv_get(task.progress)):
                continue
            now = Tick(**json.loads(last))
            if task.shown and task.shown.task != now.task:
                self._close_bar(task)
            task.shown = now
            tick(f"{task.run.name}: {now.task}", now.done, now.total, now.loss)

    def _close_bar(self, task: _Task) -> None:
        if task.shown:
            last, task.shown = task.shown, None
            tick(f"{task.run.name}: {last.task}", last.total, last.total, last.loss)
        if task.stage != "trial" and task.progress:
            kv_store()._internal_kv_del(task.progress)


def _placed_methods(own: Mapping[str, MethodFactory]) -> Any:
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


def _first_line(error: Exception) -> str:
    """Return an error's kind and the first line of its message; Ray's have many."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
