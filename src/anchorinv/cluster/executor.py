"""The driver: hands out a study's work, one trial at a time, and takes in what comes of it.

The driver alone writes: results, base models, checkpoints. What workers share is placed in the object store
by the driver, too, so that a node that dies takes nothing with it but the tasks it was at. The driver hands
those out again; Ray's own retries say nothing and know only the arguments of the first time, while here a
training goes on from the last position that the driver has.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from anchorinv.cluster import tasks
from anchorinv.cluster.connection import capacity, connected, described, local
from anchorinv.cluster.library import ray
from anchorinv.cluster.messages import Failed, Finished, Item, Position, to_arrays, to_tensors
from anchorinv.cluster.pending import Legs, PendingRun, placed, placed_methods
from anchorinv.core.progress import Tick, tick
from anchorinv.core.recipe import Recipe
from anchorinv.study.parts import Part
from anchorinv.study.work import AtWork, Outcome, Work

logger = logging.getLogger(__name__)

#: How often a task is handed out again whose node or process was lost. Errors of a method are final.
RETRIES = 5
_PATIENCE = 0.5  # seconds to wait for news of any task
_LOOK = 5.0  # seconds between two looks at the cluster's size


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """An executor: a Ray of this machine, started for the run, or an existing cluster.

    Parameters
    ----------
    workers : int or None, default=None
        Tasks at the same time; on a cluster as many as there is room for, unless said.
    cluster : str or None, default=None
        Address of an existing cluster.
    gpus : float, default=0.0
        That each worker is given; may be a fraction.
    """

    workers: int | None = None
    cluster: str | None = None
    gpus: float = 0.0

    def __call__(self, work: Work) -> Generator[Outcome | AtWork, None, None]:
        """Do the work, and yield what became of each part as it comes."""
        if not work.legs:
            return
        threads = max(leg.experiment.threads for leg, _ in work.legs)
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
                    f"Ray at {address} failed ({_in_a_line(error)}); run the same command again, what is "
                    f"finished is kept"
                ) from None


@dataclass(eq=False)
class _Job:
    """A task: of which run, which stage of it, and which part where it is a trial."""

    run: PendingRun
    stage: Literal["base", "open", "trial"]
    part: Part | None = None
    losses: int = 0
    bars: dict[str, Tick] = field(default_factory=dict)

    def __str__(self) -> str:
        what = {"base": "base model", "open": "base session and replay", "trial": f"{self.part}"}
        return what[self.stage] if self.part else f"{what[self.stage]} of {self.run.name}"


class _Driver:
    def __init__(self, work: Work, settings: RayExecutor, threads: int) -> None:
        self._work, self._settings, self._threads = work, settings, threads
        self._legs = Legs(work)
        self._runs: list[PendingRun] = []
        self._lost: deque[_Job] = deque()
        self._running: dict[Any, _Job] = {}
        self._limit, self._looked = 0, 0.0
        self._own = placed_methods(work.own)

    def run(self) -> Generator[Outcome | AtWork, None, None]:
        """Hand out and take in until nothing is left."""
        while True:
            self._hand_out()
            yield AtWork(len(self._running))
            if not self._running:
                return
            streams = list(self._running)
            ready, _ = ray().wait(streams, num_returns=len(streams), timeout=_PATIENCE)
            for stream in ready:
                yield from self._take_in(stream)
            self._runs = [run for run in self._runs if run.pending]

    def stop(self) -> None:
        """Have nothing run on, whatever happened."""
        with suppress(ray().exceptions.RayError):
            for stream in self._running:
                ray().cancel(stream, force=True)

    def _hand_out(self) -> None:
        if self._settings.workers is not None:
            self._limit = self._settings.workers
        elif time.monotonic() - self._looked > _LOOK:
            # Some ahead, so that no node waits for the driver; and a cluster may grow.
            self._limit = max(1, 2 * capacity(self._threads, self._settings.gpus))
            self._looked = time.monotonic()
        while len(self._running) < self._limit:
            job = self._lost.popleft() if self._lost else self._next()
            if job is not None:
                self._running[self._started(job)] = job
            elif self._legs:
                self._runs += self._legs.open()
            else:
                return

    def _next(self) -> _Job | None:
        """Return what to start next: base models before what follows them, both before trials."""
        jobs = self._running.values()
        busy = {job.run for job in jobs if job.stage == "open"}
        # What several methods share is made for one of them; the others wait for it.
        making = {job.run.base_path for job in jobs if job.stage == "base"}
        making |= {run.replay_path for run in busy} - {None}
        trial = None
        for run in self._runs:
            if run.needs_base:
                if run.base_path not in making:
                    return _Job(run, "base")
            elif not run.opened:
                if run not in busy and run.replay_path not in making:
                    return _Job(run, "open")
            elif trial is None and run.pending:
                trial = run
        return _Job(trial, "trial", trial.pending.popleft()) if trial else None

    def _started(self, job: _Job) -> Any:
        run = job.run
        order = tasks.Order(run.name, run.leg, run.method, run.samples, self._own, run.base, run.replay)

        def remote(task: Any) -> Any:
            return ray().remote(
                num_cpus=run.leg.experiment.threads,
                num_gpus=self._settings.gpus,
                num_returns="streaming",
                max_retries=0,
            )(task)

        if job.stage == "base":
            assert isinstance(run.what, Recipe) and run.base_path is not None
            left = run.shelf.checkpoint(run.base_path).load()
            model = (run.what.foundation, to_arrays(left) if left else None, self._work.seconds)
            return remote(tasks.make_base).remote(order, *model)
        if job.stage == "open":
            asked = {"base_session": run.base_session, "recall": run.replay is None and run.trials}
            return remote(tasks.open_run).remote(order, **asked)
        assert job.part is not None
        return remote(tasks.run_trial).remote(order, job.part.trial)

    def _take_in(self, stream: Any) -> Generator[Outcome, None, None]:
        """Take the next item of a task's stream, or notice that the task was lost."""
        job = self._running[stream]
        try:
            item: Item = ray().get(next(stream))
        except (ray().exceptions.RayError, StopIteration) as error:
            item = Failed(_in_a_line(error), str(error))
            yield from self._gone(self._ended(stream), item)
            return
        match item:
            case Tick():
                name = f"{job.run.name}: {item.task}"
                job.bars[name] = item
                tick(name, item.done, item.total, item.loss)
            case Position():
                assert job.run.base_path is not None
                job.run.shelf.checkpoint(job.run.base_path).write(to_tensors(item.values))
            case Outcome():  # of a base session, whose task goes on
                job.run.pending.popleft()
                yield item
            case Failed():
                yield from self._failed(self._ended(stream), item)
            case Finished(result) if job.stage == "base":
                self._keep_base(self._ended(stream).run, *result)
            case Finished(result) if job.stage == "open":
                self._opened(self._ended(stream).run, result)
            case Finished(result):
                self._ended(stream)
                yield result

    def _ended(self, stream: Any) -> _Job:
        job = self._running.pop(stream)
        for name, shown in job.bars.items():
            tick(name, shown.total, shown.total, shown.loss)  # the bar goes
        return job

    def _gone(self, job: _Job, loss: Failed) -> Generator[Outcome, None, None]:
        """Hand a task out again that was lost by no fault of its own, unless that happens all the time."""
        job.losses += 1
        if job.losses <= RETRIES:
            logger.warning("%s was lost (%s); computed again, %d of %d", job, loss.error, job.losses, RETRIES)
            self._lost.append(job)
        else:
            why = f"lost {job.losses} times, the last time by {loss.error}"
            yield from self._failed(job, Failed(why, loss.details))

    def _failed(self, job: _Job, why: Failed) -> Generator[Outcome, None, None]:
        """Yield the parts that cannot be computed because a task failed."""
        if job.part is not None:
            yield Outcome(job.part, [], why.error, why.details)
            return
        for run in self._sharing(job.run) if job.stage == "base" else [job.run]:
            while run.pending:
                yield Outcome(run.pending.popleft(), [], why.error, why.details)

    def _sharing(self, one: PendingRun) -> list[PendingRun]:
        return [run for run in self._runs if run.needs_base and run.base_path == one.base_path]

    def _keep_base(self, run: PendingRun, packed: tasks.PackedState, seconds: float) -> None:
        assert run.base_path is not None
        base = _kept(run, run.base_path, packed, seconds)
        run.shelf.checkpoint(run.base_path).drop()
        for each in self._sharing(run):
            each.base = base
            each.find_replay()

    def _opened(self, run: PendingRun, result: Any) -> None:
        run.opened = True
        if not isinstance(run.what, Recipe):
            run.base = ray().put(result)
        elif result is not None:
            assert run.replay_path is not None
            replay = _kept(run, run.replay_path, *result)
            for each in self._runs:
                if each.replay_path == run.replay_path:
                    each.replay = replay


def _kept(run: PendingRun, path: Path, packed: tasks.PackedState, seconds: float) -> Any:
    """Write a packed state to the shelf, and place what is read back from there."""
    assert isinstance(run.what, Recipe)
    arrays, facts = packed
    run.shelf.write(path, (to_tensors(arrays), facts), seconds)
    return placed(run.shelf.read(path, run.what.foundation))


def _in_a_line(error: Exception) -> str:
    """Return an error's kind and the first line of what it says; Ray's errors have many."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
