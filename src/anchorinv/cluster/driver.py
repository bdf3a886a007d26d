"""The driver: hands out a study's work, one trial at a time, and takes in what comes of it.

The driver alone writes: results, base models, checkpoints. What workers share is placed in the object store
by the driver, too, so that a node that dies takes nothing with it but the trials it was at; Ray computes
those again elsewhere.
"""

import logging
import os
import time
from collections.abc import Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Literal

from anchorinv.cluster import tasks
from anchorinv.cluster.connection import capacity, connected, described, local
from anchorinv.cluster.lanes import LaneLeft, Legs, placed, placed_methods
from anchorinv.cluster.library import ray, scheduling
from anchorinv.cluster.post import Post, to_arrays, to_tensors
from anchorinv.core.progress import Tick, tick
from anchorinv.core.recipe import Recipe
from anchorinv.study.parts import Part
from anchorinv.study.work import AtWork, Outcome, Work
from anchorinv.study.work import described as in_a_line

logger = logging.getLogger(__name__)

#: How often Ray computes a task again whose node or process was lost. Errors of a method are final.
RETRIES = 5
_PATIENCE = 0.5  # seconds between two looks at the post
_LOOK = 5.0  # seconds between two looks at the cluster's size


@dataclass(frozen=True, slots=True)
class OnRay:
    """An executor: a Ray of this machine, started for the run, or an existing cluster.

    Parameters
    ----------
    workers : tasks at the same time; on a cluster as many as there is room for, unless said.
    cluster : address of an existing cluster.
    gpus : that each worker is given; may be a fraction.
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
            driver = _Driver(work, self, threads)
            stack.callback(driver.stop)
            yield from driver.run()


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """A task: of which lane, which stage of it, and which part where it is a trial."""

    lane: LaneLeft
    stage: Literal["base", "open", "trial"]
    part: Part | None = None


class _Driver:
    def __init__(self, work: Work, settings: OnRay, threads: int) -> None:
        self._work, self._settings, self._threads = work, settings, threads
        self._legs = Legs(work)
        self._lanes: list[LaneLeft] = []
        self._running: dict[Any, _Unit] = {}
        self._bars: dict[LaneLeft, dict[str, Tick]] = {}
        self._limit, self._looked = 0, 0.0
        here = ray().get_runtime_context().get_node_id()
        affinity = scheduling().NodeAffinitySchedulingStrategy(here, soft=True)
        actor = ray().remote(num_cpus=0, max_restarts=-1, scheduling_strategy=affinity)(Post)
        self._post, self._news = actor.remote(), None
        self._own = placed_methods(work.own)

    def run(self) -> Generator[Outcome | AtWork, None, None]:
        """Hand out and take in until nothing is left."""
        while True:
            self._hand_out()
            yield AtWork(len(self._running))
            if not self._running:
                return
            done, _ = ray().wait(list(self._running), timeout=_PATIENCE)
            for reference in done:
                yield from self._take_in(reference, self._running.pop(reference))
            self._lanes = [lane for lane in self._lanes if lane.pending]
            self._fetch()

    def stop(self) -> None:
        """Have nothing run on, whatever happened."""
        with suppress(ray().exceptions.RayError):
            for reference in self._running:
                ray().cancel(reference, force=True)
            ray().kill(self._post)

    def _hand_out(self) -> None:
        if self._settings.workers is not None:
            self._limit = self._settings.workers
        elif time.monotonic() - self._looked > _LOOK:
            # Some ahead, so that no node waits for the driver; and a cluster may grow.
            self._limit = max(1, 2 * capacity(self._threads, self._settings.gpus))
            self._looked = time.monotonic()
        while len(self._running) < self._limit:
            unit = self._next()
            if unit is not None:
                self._running[self._started(unit)] = unit
            elif self._legs:
                self._lanes += self._legs.open()
            else:
                return

    def _next(self) -> _Unit | None:
        """Return what to start next: base models before what follows them, both before trials."""
        units = self._running.values()
        busy = {unit.lane for unit in units if unit.stage == "open"}
        # What several lanes share is made for one of them; the others wait for it.
        making = {unit.lane.base_path for unit in units if unit.stage == "base"}
        making |= {lane.replay_path for lane in busy} - {None}
        trial = None
        for lane in self._lanes:
            if lane.needs_base:
                if lane.base_path not in making:
                    return _Unit(lane, "base")
            elif not lane.opened:
                if lane not in busy and lane.replay_path not in making:
                    return _Unit(lane, "open")
            elif trial is None and lane.pending:
                trial = lane
        return _Unit(trial, "trial", trial.pending.popleft()) if trial else None

    def _started(self, unit: _Unit) -> Any:
        lane = unit.lane
        stores = tasks.Stores(lane.samples, self._own, lane.base, lane.replay)
        order = tasks.Order(lane.name, lane.leg, lane.method, stores, self._post)
        if unit.stage == "base":
            assert isinstance(lane.what, Recipe) and lane.base_path is not None
            left = lane.shelf.checkpoint(lane.base_path).load()
            begun = to_arrays(left) if left else None
            model = (lane.what.foundation, lane.base_path.stem, begun, self._work.seconds)
            return self._remote(tasks.make_base, lane).remote(order, *model)
        if unit.stage == "open":
            asked = {"base_session": lane.base_session, "recall": lane.replay is None and lane.trials}
            return self._remote(tasks.open_lane, lane).remote(order, **asked)
        assert unit.part is not None
        return self._remote(tasks.run_trial, lane).remote(order, unit.part.trial)

    def _remote(self, task: Any, lane: LaneLeft) -> Any:
        return ray().remote(
            num_cpus=lane.leg.experiment.threads, num_gpus=self._settings.gpus, max_retries=RETRIES
        )(task)

    def _take_in(self, reference: Any, unit: _Unit) -> Generator[Outcome, None, None]:
        for name, shown in self._bars.pop(unit.lane, {}).items():
            tick(name, shown.total, shown.total, shown.loss)  # the bar goes
        try:
            found = ray().get(reference)
        except ray().exceptions.RayTaskError as error:
            yield from self._failed(unit, in_a_line(error.cause), str(error))
        except ray().exceptions.RayError as error:
            yield from self._failed(unit, str(error).strip().splitlines()[0], str(error))
        else:
            if unit.stage == "base":
                self._keep_base(unit.lane, *found)
            elif unit.stage == "open":
                yield from self._opened(unit, found)
            else:
                yield found

    def _failed(self, unit: _Unit, error: str, details: str) -> Generator[Outcome, None, None]:
        """Yield the parts that cannot be computed because a task failed."""
        if unit.part is not None:
            yield Outcome(unit.part, [], error, details)
            return
        for lane in self._sharing(unit.lane) if unit.stage == "base" else [unit.lane]:
            while lane.pending:
                yield Outcome(lane.pending.popleft(), [], error, details)

    def _sharing(self, one: LaneLeft) -> list[LaneLeft]:
        return [lane for lane in self._lanes if lane.needs_base and lane.base_path == one.base_path]

    def _keep_base(self, lane: LaneLeft, parcel: tasks.Parcel, seconds: float) -> None:
        assert isinstance(lane.what, Recipe) and lane.base_path is not None
        arrays, facts = parcel
        lane.shelf.write(lane.base_path, (to_tensors(arrays), facts), seconds)
        lane.shelf.checkpoint(lane.base_path).drop()
        self._post.forget.remote(lane.base_path.stem)
        base = placed(lane.shelf.read(lane.base_path, lane.what.foundation))
        for each in self._sharing(lane):
            each.base = base
            each.find_replay()

    def _opened(self, unit: _Unit, found: tasks.Opened) -> Generator[Outcome, None, None]:
        lane = unit.lane
        lane.opened = True
        if found.outcome is not None:
            lane.pending.popleft()
            yield found.outcome
        if found.error:
            yield from self._failed(unit, found.error, found.details)
        if not isinstance(lane.what, Recipe):
            lane.base = ray().put(found.state)
        if found.replay is None:
            return
        assert isinstance(lane.what, Recipe) and lane.replay_path is not None
        (arrays, facts), seconds = found.replay
        lane.shelf.write(lane.replay_path, (to_tensors(arrays), facts), seconds)
        replay = placed(lane.shelf.read(lane.replay_path, lane.what.foundation))
        for each in self._lanes:
            if each.replay_path == lane.replay_path:
                each.replay = replay

    def _fetch(self) -> None:
        """Show how far long tasks are, and write where trainings are."""
        if self._news is None:
            self._news = self._post.fetch.remote()
        if not ray().wait([self._news], timeout=0)[0]:
            return
        news, self._news = self._news, None
        try:
            ticks, left = ray().get(news)
        except ray().exceptions.RayError:  # the post was lost with its node, and Ray opens another
            return
        lanes = {unit.lane.name: unit.lane for unit in self._running.values() if unit.stage != "trial"}
        for (name, task), told in ticks.items():
            if name in lanes:
                self._bars.setdefault(lanes[name], {})[f"{name}: {task}"] = told
                tick(f"{name}: {task}", told.done, told.total, told.loss)
        for lane in lanes.values():
            if lane.base_path is not None and lane.base_path.stem in left:
                lane.shelf.checkpoint(lane.base_path).write(to_tensors(left[lane.base_path.stem]))
