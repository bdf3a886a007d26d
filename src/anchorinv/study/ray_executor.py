"""Run a study's jobs as Ray tasks: on this machine, or on a cluster.

There is a task for each shared base model, for each shared replay of the base classes, and for each trial.
Ray passes results between tasks, and computes again what was lost with a node or a process; an error of a
task is an error of all tasks that need it. Only the driver writes files: results, base models, replay, and
checkpoints.
"""

import json
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from anchorinv.progress import Tick
from anchorinv.study.cache import digest
from anchorinv.study.execute import Condition, JobResult, PendingWork, Running, describe_error
from anchorinv.study.ray_cluster import (
    BETWEEN,
    Order,
    Shared,
    Task,
    capacity,
    connected,
    described,
    device,
    first_line,
    fit_base,
    kv_store,
    local,
    nodes,
    placed_methods,
    ray,
    recall,
    run_trial,
)
from anchorinv.study.results import Job
from anchorinv.study.runner import shares_base

logger = logging.getLogger(__name__)

#: How often Ray repeats a task whose node or process was lost. Errors of a method are final.
RETRIES = 5
_PATIENCE = 0.5  # seconds to wait for a task
_LOOK = 5.0  # seconds between two looks at the cluster's nodes


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
    >>> executor = RayExecutor(workers=4)  # run_study(study, out, executor=executor)
    """

    workers: int | None = None
    cluster: str | None = None
    gpus: float = 0.0

    def choose_device(self, asked: str) -> str:
        """Return the device of workers: ``"auto"`` is their GPU, if they have one."""
        return device(asked, self.gpus)

    def __call__(self, work: PendingWork) -> Generator[JobResult | Running, None, None]:
        """Compute the jobs, and yield each result as it arrives."""
        if not work.conditions:
            return
        threads = max(condition.experiment.threads for condition, _ in work.conditions)
        with ExitStack() as stack:
            if self.cluster is None:
                assert self.workers is not None, "the number of workers is required on one machine"
                if self.workers * threads > (cores := os.cpu_count() or 1):
                    logger.warning(
                        "%d workers of %d threads compete for %d cores; lower one of the two",
                        *(self.workers, threads, cores),
                    )
                address = stack.enter_context(local(self.workers * threads))
            else:
                address = self.cluster
                stack.enter_context(connected(address))
            if not (room := capacity(threads, self.gpus)):
                asked = f"{threads} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
                raise ValueError(f"no node of {described(address)} has {asked} for a worker; add such a node")
            room = min(room, self.workers or room)
            logger.info("%s; %d workers of %d threads", described(address), room, threads)
            try:
                driver = _Driver(work, self, threads)
                stack.callback(driver.stop)
                yield from driver.run()
            except ray().exceptions.RayError as error:
                raise OSError(
                    f"Ray at {address} failed ({first_line(error)}); run the same command again, "
                    f"finished jobs are kept"
                ) from None


class _Driver:
    def __init__(self, work: PendingWork, settings: RayExecutor, threads: int) -> None:
        self._work, self._settings, self._threads = work, settings, threads
        self._conditions = deque(work.conditions)
        self._samples: tuple[str, Any] = ("", None)  # digest and reference of the last ones
        self._shared: WeakValueDictionary[Path, Shared] = WeakValueDictionary()  # while needed
        self._pending: list[Task] = []
        self._running: dict[Any, Task] = {}
        self._room, self._looked, self._shown = 1, -_LOOK, 0.0
        self._nodes: set[str] = set()
        self._own = placed_methods(work.own)
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
        """Cancel running tasks."""
        with suppress(ray().exceptions.RayError):
            for reference in self._running:
                ray().cancel(reference, force=True)

    def _look_at_nodes(self) -> None:
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked, alive = time.monotonic(), {node["NodeID"] for node in nodes()}
        for lost in self._nodes - alive:
            logger.warning("node %s was lost; Ray repeats its tasks, at most %d times", lost, RETRIES)
        self._nodes = alive
        self._room = max(1, capacity(self._threads, self._settings.gpus))  # a cluster may grow

    def _start_tasks(self) -> None:
        # More than fit, so that no node waits for the driver.
        while len(self._running) < (self._settings.workers or 2 * self._room):
            ready = (task for task in self._pending if all(each.reference for each in task.needs))
            if task := next(ready, None):
                self._pending.remove(task)
                self._running[self._started(task)] = task
            elif self._conditions:
                self._open(*self._conditions.popleft())
            else:
                return

    def _started(self, task: Task) -> Any:
        """Start a task and return a reference to its result."""
        if task.makes and (left := task.makes.checkpoint.load()):
            task.position.write(left)
        options = {"num_cpus": task.order.condition.experiment.threads, "num_gpus": self._settings.gpus}
        # Errors of a method are final; those of Ray, such as lost objects, are retried.
        retries = {"max_retries": RETRIES, "retry_exceptions": [ray().exceptions.RayError]}
        remote = self._remote[task.function].options(**options, **retries)
        return remote.remote(task.order, *(each.reference for each in task.needs))

    def _take_in(self, reference: Any) -> JobResult | None:
        """Store the output of a task, or return the outcome of its job."""
        task, error, details = self._running.pop(reference), "", ""
        try:
            result = ray().get(reference)
        except ray().exceptions.RayTaskError as raised:
            error, details = describe_error(raised.cause), str(raised)
        except ray().exceptions.RayError as raised:
            error, details = f"lost {RETRIES + 1} times, the last time by {first_line(raised)}", str(raised)
        if (made := task.makes) is None:
            assert task.job is not None
            return JobResult(task.job, [], error, details) if error else result
        made.reference = reference  # also an error, for all tasks that need it
        if error and (left := task.position.load()):
            made.checkpoint.write(left)
        elif not error and result and made.base_spec:
            made.cache.write(made.path, result, result[1]["seconds"])
            made.checkpoint.drop()
        task.position.drop()
        task.show(None)
        kv_store()._internal_kv_del(task.order.key)
        return None

    def _open(self, condition: Condition, jobs: Sequence[Job]) -> None:
        """Add the tasks of a condition: those that make base models and replay come before trials."""
        samples = condition.samples(self._work.data[condition.variant])
        arrays = [
            [part.numpy() for part in (batch.values, batch.labels, batch.groups) if part is not None]
            for batch in (samples.train, samples.test)
        ]
        if (content := digest(*arrays[0], *arrays[1])) != self._samples[
            0
        ]:  # shared by conditions with the same samples
            self._samples = content, ray().put(arrays)
        cache = self._work.cache_of(condition, samples)
        for name, method in condition.methods(self._work.own).items():
            if not (pending := [job for job in jobs if job.method == name]):
                continue
            label = f"{condition.prefix}{name}, seed {condition.protocol.seed}"
            order = Order(label, self._samples[1], self._own, condition, name, seconds=self._work.seconds)
            shared = shares_base(method)
            spec = shared.base_spec if shared else None
            base = Shared(cache.base_path(spec) if spec else Path(label), cache, spec)
            needs: tuple[Shared, ...] = (self._share(fit_base, order, base),)
            for job in pending:
                if job.trial is not None and shared and len(needs) == 1:
                    replay = Shared(cache.replay_path(shared.base_spec, shared.memory), cache, spec)
                    needs += (self._share(recall, order, replay, *needs),)
                self._pending.append(Task(run_trial, replace(order, trial=job.trial), needs, job=job))
        self._pending.sort(key=lambda task: task.makes is None)

    def _share(self, function: Callable[..., Any], order: Order, shared: Shared, *needs: Shared) -> Shared:
        """Return what methods share; unless cached, it is made for the first of them."""
        if (known := self._shared.get(shared.path)) is not None:
            return known
        self._shared[shared.path] = shared
        if not shared.find():
            order = replace(order, key=f"anchorinv-{secrets.token_hex(16)}")
            self._pending.append(Task(function, order, needs, makes=shared))
        return shared

    def _look_at_makers(self) -> None:
        """Show the progress of long tasks, and write checkpoints now and then."""
        if time.monotonic() - self._shown < BETWEEN:
            return
        self._shown = time.monotonic()
        for task in self._running.values():
            if not task.makes or not (last := kv_store()._internal_kv_get(task.order.key)):
                continue
            task.show(Tick(**json.loads(last)))
            if task.makes.checkpoint.due and (left := task.position.load()):
                task.makes.checkpoint.write(left)
