"""Run a study in a folder: finished jobs are kept, the others computed; base models and replay are cached."""

import logging
import resource
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anchorinv import __version__
from anchorinv.core.memory import Memory
from anchorinv.core.minimise import Checkpoint
from anchorinv.core.networks import choose_device
from anchorinv.core.recipe import BaseLearner, BaseSpec, Method, placed
from anchorinv.core.types import State
from anchorinv.datasets.dataset import Dataset
from anchorinv.files import HERE, in_use, read_tensors, write_tensors
from anchorinv.persistence.format import packed, unpacked
from anchorinv.persistence.limits import Architecture
from anchorinv.progress import tick
from anchorinv.study.config import Experiment, Study, digest
from anchorinv.study.folder import RunFolder
from anchorinv.study.loading import (
    Samples,
    base_spec_of,
    check_samples,
    geometry_of,
    methods_of,
    open_data,
    people,
    protocol_of,
    samples_of,
)
from anchorinv.study.results import Job, check_number
from anchorinv.study.runner import Protocol, SessionResult, trials

logger = logging.getLogger(__name__)
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")

_NAME = "[0-9a-f]" * 24
#: Patterns of files that a killed process may have left partially written.
HALVES = tuple(
    f"{kind}-{_NAME}.{end}.{HERE}" for kind in ("base", "replay") for end in ("safetensors", "unfinished")
)


#: A state as :func:`~anchorinv.persistence.format.packed` returns it.
Packed = tuple[dict[str, Tensor], dict[str, Any]]


class ModelCache:
    """Stores base models and replay in a folder, for all methods, trials and runs that share them.

    A new model is written and read back before it is used, so that runs with and without a cached model are
    identical to the last bit. ``determined_by`` is part of the key of a model, in addition to its settings
    (data, seed, versions); ``seconds`` is the time between two checkpoints of a training.
    """

    def __init__(self, folder: Path, *determined_by: Any, seconds: float = 60.0) -> None:
        self._folder, self._by, self._seconds = folder, digest(list(determined_by)), seconds
        self._bases: dict[BaseLearner, tuple[State, float]] = {}

    def base(self, base_spec: BaseLearner, make: Callable[[Checkpoint | None], State]) -> tuple[State, float]:
        """Return a base model and the seconds its training took, training it if it is missing."""
        if base_spec not in self._bases:
            path = self.base_path(base_spec)
            checkpoint = self.checkpoint(path)
            self._bases[base_spec] = self._kept(path, base_spec, lambda: make(checkpoint), lambda _: True)
            checkpoint.drop()
        return self._bases[base_spec]

    def recalled(self, base_spec: BaseLearner, memory: Memory, make: Callable[[], State]) -> State:
        """Return the base model with a memory's replay of the base classes, making it if it is missing.

        Only inversion takes long; other memories are computed each time, and recordings are never written.
        """
        return self._kept(self.replay_path(base_spec, memory), base_spec, make, inverted)[0]

    def find(self, base_spec: BaseLearner, memory: Memory | None = None) -> State | None:
        """Return a base model, or with a memory its replay, if it is cached; a damaged file is an error."""
        path = self.replay_path(base_spec, memory) if memory else self.base_path(base_spec)
        return unpacked(*read_tensors(path), base_spec.backbone) if path.exists() else None

    def base_path(self, base_spec: BaseLearner) -> Path:
        """Return the path of a base model, cached or not."""
        return self._folder / f"base-{digest('base', self._by, base_spec)}.safetensors"

    def replay_path(self, base_spec: BaseLearner, memory: Memory) -> Path:
        """Return the path of a memory's replay of the base classes, cached or not."""
        return self._folder / f"replay-{digest('replay', self._by, base_spec, memory)}.safetensors"

    def checkpoint(self, path: Path) -> "FileCheckpoint":
        """Return the checkpoint of the training whose model will be at ``path``."""
        return FileCheckpoint(path.with_suffix(".unfinished"), seconds=self._seconds)

    def write(self, path: Path, packed_state: Packed, seconds: float) -> None:
        """Store a packed state and the seconds it took."""
        tensors, facts = packed_state
        write_tensors(path, tensors, {**facts, "seconds": round(seconds, 3)})
        logger.info("made %s in %.1f s", path.name, seconds)

    def read(self, path: Path, base_spec: BaseLearner) -> Packed | None:
        """Return a packed state with its seconds, or None if it is missing or damaged (logged)."""
        if not path.exists():
            return None
        try:
            tensors, facts = read_tensors(path)
            unpacked(tensors, facts, base_spec.backbone)
        except ValueError as error:
            logger.warning("%s; it is made again", error)
            return None
        logger.info("found %s", path.name)
        return tensors, facts

    def _kept(
        self,
        path: Path,
        base_spec: BaseLearner,
        make: Callable[[], State],
        worth_keeping: Callable[[State], bool],
    ) -> tuple[State, float]:
        if (stored := self.read(path, base_spec)) is None:
            began = time.perf_counter()
            state = make()
            seconds = time.perf_counter() - began
            if not worth_keeping(state):
                return state, seconds
            self.write(path, packed(state), seconds)
            stored = read_tensors(path)
        tensors, facts = stored
        return restored(tensors, facts, base_spec), float(facts["seconds"])


def restored(tensors: Mapping[str, Tensor], facts: Mapping[str, Any], base_spec: BaseLearner) -> State:
    """Unpack a state, its networks on the learner's device."""
    # Learners without a network, or of other packages, may have no device.
    return placed(unpacked(tensors, facts, base_spec.backbone), getattr(base_spec, "device", "cpu"))


def inverted(state: State) -> bool:
    """Return whether a state has inverted replay, which takes long to make."""
    return any(curve.name == "invert" for curve in state.curves)


class FileCheckpoint:
    """A checkpoint of a training in a file, written at most every ``seconds``."""

    def __init__(self, path: Path, *, seconds: float) -> None:
        self.path, self._seconds, self._last = path, seconds, time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """Return the values of the last checkpoint, or None."""
        if not self.path.exists():
            return None
        try:
            values, _ = read_tensors(self.path)
        except ValueError as error:
            logger.warning("%s; training starts again", error)
            return None
        logger.info("training resumes after %d steps", len(values["curve"]))
        return values

    @property
    def due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return time.monotonic() - self._last >= self._seconds

    def save(self, values: Callable[[], dict[str, Tensor]]) -> None:
        """Write the values if that is due."""
        if self.due:
            self.write(values())

    def write(self, values: dict[str, Tensor]) -> None:
        """Write the values."""
        write_tensors(self.path, values, {})
        self._last = time.monotonic()

    def drop(self) -> None:
        """Remove the file: the training is finished."""
        self.path.unlink(missing_ok=True)


#: Builds a custom method from the study's base spec.
MethodFactory = Callable[[BaseSpec], Method]


@dataclass(frozen=True, slots=True)
class Condition:
    """Jobs with the same samples: of one variant, one base seed, one subject or all.

    It contains settings, no recordings, so that it is small enough to be sent to workers. ``device`` is that
    of its networks.
    """

    variant: str
    person: str
    experiment: Experiment
    protocol: Protocol
    geometry: Architecture
    device: str = "cpu"

    @classmethod
    def of(
        cls, variant: str, experiment: Experiment, data: Dataset, seed: int, person: str, device: str = "cpu"
    ) -> "Condition":
        """Return a condition of a variant on its data set."""
        protocol = protocol_of(experiment, data, seed)
        return cls(variant, person, experiment, protocol, geometry_of(experiment, data), device)

    @property
    def prefix(self) -> str:
        """Prefix of a method's name in progress reports."""
        return "".join(f"{name}, " for name in (self.variant, self.person) if name)

    def job(self, method: str, trial: int | None) -> Job:
        """Return a job of the condition."""
        return Job(self.variant, self.person, self.protocol.seed, method, trial)

    @property
    def base_spec(self) -> BaseSpec:
        """How the study's base models are made."""
        spec = base_spec_of(self.experiment, self.geometry, self.protocol.base_classes)
        return replace(spec, device=self.device)

    def methods(self, own: Mapping[str, MethodFactory]) -> dict[str, Method]:
        """Return the study's and the custom methods, by name and in order."""
        methods = methods_of(self.experiment, self.base_spec)
        return methods | {name: make(self.base_spec) for name, make in own.items()}

    def samples(self, data: Dataset) -> Samples:
        """Return the training and test windows."""
        return samples_of(self.experiment, data, self.person, self.protocol)


@dataclass(frozen=True, slots=True, eq=False)
class PendingWork:
    """The jobs of a study that are not finished: conditions with their pending jobs, all in order.

    ``data`` has the data set of each variant, ``own`` the custom methods by name; ``bases`` is the folder
    of base models and replay, ``seconds`` the time between two checkpoints of a base training.
    """

    conditions: Sequence[tuple[Condition, Sequence[Job]]]
    data: Mapping[str, Dataset]
    bases: Path
    own: Mapping[str, MethodFactory] = field(default_factory=dict)
    seconds: float = 60.0

    def cache_of(self, condition: Condition, samples: Samples) -> ModelCache:
        """Return the cache of what the condition's methods and trials share."""
        base = samples.train.of(*condition.protocol.base_classes)
        seed, threads = condition.protocol.seed, condition.experiment.threads
        versions = torch.__version__, __version__
        key = digest(base.values, base.labels)
        return ModelCache(self.bases, key, seed, threads, *versions, seconds=self.seconds)


@dataclass(frozen=True, slots=True, eq=False)
class JobResult:
    """The outcome of a job: its results, or the exception in a line and its traceback."""

    job: Job
    results: Sequence[SessionResult]
    error: str = ""
    details: str = ""

    @classmethod
    def of(cls, job: Job, results: Sequence[SessionResult]) -> "JobResult":
        """Return the outcome of a job of this process, with its peak memory."""
        peak = peak_mb()
        named = [replace(result, variant=job.variant, person=job.person, peak_mb=peak) for result in results]
        return cls(job, named)


def reset_peak() -> None:
    """Reset the peak memory of the process, where the system allows it."""
    with suppress(OSError):
        _RESET.write_text("5")


def peak_mb() -> float:
    """Return the peak memory (MB) of the process since the last reset or its start."""
    with suppress(OSError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@dataclass(frozen=True, slots=True)
class Running:
    """Yielded now and then: how many jobs are being computed at the same time."""

    n_jobs: int


#: Computes jobs: yields the result of each as soon as it is known, in any order.
Executor = Callable[[PendingWork], Generator["JobResult | Running", None, None]]


class Unfinished(ValueError):  # noqa: N818 (named after the state of the run)
    """Some jobs failed; results of the others are in the folder."""

    def __init__(self, failed: Sequence[JobResult], n_jobs: int) -> None:
        first = failed[0]
        more = f", and {len(failed) - 1} more (all are in run.log)" if len(failed) > 1 else ""
        super().__init__(
            f"{len(failed)} of {n_jobs} jobs failed: {first.job}: {first.error}{more}. The others are "
            f"finished; run the same command again to retry the failed ones"
        )


def describe_error(error: BaseException) -> str:
    """Return the type and message of an exception in one line."""
    return ": ".join(filter(None, [type(error).__name__, " ".join(str(error).split())]))


def run_study(
    study: Study,
    out: Path,
    folders: Mapping[str, Dataset] | None = None,
    *,
    cache: Path | None = None,
    own: Mapping[str, MethodFactory] | None = None,
    seconds: float = 60.0,
    executor: Executor | None = None,
    verify: bool = False,
    device: str = "auto",
) -> None:
    """Compute all jobs of a study that are not in the folder yet.

    A job that fails does not stop the others; an error at the end names it.

    Parameters
    ----------
    study : Study
        As :func:`~anchorinv.study.loading.load` returns it.
    out : Path
        The run folder, new or of the same study.
    folders : mapping of str to Dataset, default=None
        Data sets by name.
    cache : Path or None, default=None
        Folder of base models, to be shared by several studies; None is in the run folder.
    own : mapping of str to callable, default=None
        Custom methods by name, in addition to the study's: each builds one from the study's base spec.
    seconds : float, default=60.0
        Time between two checkpoints of a base training.
    executor : callable or None, default=None
        Computes the jobs; None is this process, see :class:`~anchorinv.study.ray_executor.RayExecutor`.
    verify : bool, default=False
        Check all prepared recordings for changes, of any size.
    device : str, default="auto"
        Where networks are trained and run, as in :class:`~anchorinv.AnchorInvClassifier`. Finished
        jobs are kept for any device; base models are cached separately for each device.
    """
    # Workers may have other devices than this machine; their executor knows which.
    device = getattr(executor, "choose_device", choose_device)(device)
    own, folder, bases = own or {}, RunFolder(out), cache or out / "bases"
    data = _open_datasets(study, folders or {})
    subjects = _check_subjects(study, data, own)
    folder.check_free()
    for dataset in {id(dataset): dataset for dataset in data.values()}.values():
        dataset.check(whole=verify)
    with folder.locked(), in_use(bases, *HALVES):
        about = {study.variants[name].data.name: _facts(dataset) for name, dataset in data.items()}
        folder.prepare(study, data=about, people=subjects, own=tuple(own), device=device)
        finished, jobs = {Job.of(result) for result in folder.read().results}, folder.jobs()
        logger.info("%s: %d of %d jobs are finished", study.name, len(finished), len(jobs))
        pending = [job for job in jobs if job not in finished]
        work = PendingWork(_conditions(study, data, pending, device), data, bases, own, seconds)
        failed = _compute(work, executor or in_process, folder, done=len(finished), total=len(jobs))
        folder.sort_results()
    if failed:
        raise Unfinished(failed, len(jobs))


def _facts(data: Dataset) -> dict[str, Any]:
    return {"fingerprint": data.fingerprint, "classes": [*data.class_names]}


def _check_subjects(
    study: Study, data: Mapping[str, Dataset], own: Mapping[str, MethodFactory]
) -> dict[str, list[str]]:
    """Return the subjects of each variant; an invalid study is refused before anything is computed."""
    subjects = {variant: people(study.variants[variant], data[variant]) for variant in study.variants}
    check_number(study, subjects, list(own))
    for variant, experiment in study.variants.items():
        check_samples(experiment, data[variant], subjects[variant])
        if both := sorted(set(own) & set(experiment.methods)):
            raise ValueError(f"a custom method has the name {both[0]!r} of one of the study's; rename it")
    return subjects


def _compute(
    work: PendingWork, executor: Executor, folder: RunFolder, *, done: int, total: int
) -> list[JobResult]:
    """Write results as they come, a job at a time, and return what failed."""
    failed: list[JobResult] = []
    running = ""
    with closing(executor(work)) as outcomes:
        tick("whole study", done, total)
        for outcome in outcomes:
            if isinstance(outcome, Running):
                running = f"{outcome.n_jobs} at work"
            elif outcome.error:
                failed.append(outcome)
                logger.error("%s failed: %s", outcome.job, outcome.error)
                logger.info("%s", outcome.details)
            else:
                folder.add(outcome.results)
                logger.info("finished %s", outcome.job)
                done += 1
            tick("whole study", done, total, note=running if done < total else "")
    return failed


def _conditions(
    study: Study, data: Mapping[str, Dataset], pending: Sequence[Job], device: str
) -> list[tuple[Condition, list[Job]]]:
    groups: dict[tuple[str, int, str], list[Job]] = {}
    for job in pending:
        groups.setdefault((job.variant, job.seed, job.person), []).append(job)
    return [
        (Condition.of(variant, study.variants[variant], data[variant], seed, person, device), jobs)
        for (variant, seed, person), jobs in groups.items()
    ]


def _open_datasets(study: Study, folders: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return the data set of each variant, checked for its classes and shapes."""
    datasets: dict[str, Dataset] = {}
    alike: dict[str, Dataset] = {}
    for variant, experiment in study.variants.items():
        made_from = digest(experiment.model_dump(include={"data", "synthetic", "geometry", "protocol"}))
        if made_from not in alike:
            alike[made_from] = open_data(experiment, folders)
        datasets[variant] = alike[made_from]
        protocol_of(experiment, datasets[variant], experiment.protocol.seeds[0])
    return datasets


def in_process(work: PendingWork) -> Generator[JobResult, None, None]:
    """Compute all jobs in this process, in order: the executor without Ray."""
    for condition, jobs in work.conditions:
        yield from _run_condition(work, condition, set(jobs))


def _run_condition(
    work: PendingWork, condition: Condition, pending: set[Job]
) -> Generator[JobResult, None, None]:
    torch.set_num_threads(condition.experiment.threads)
    samples = condition.samples(work.data[condition.variant])
    for trial in trials(
        condition.methods(work.own),
        samples.train,
        samples.test,
        condition.protocol,
        cache=work.cache_of(condition, samples),
        skip=lambda method, trial: condition.job(method, trial) not in pending,
        prefix=condition.prefix,
    ):
        job = condition.job(trial.method, trial.trial)
        reset_peak()
        try:
            results = list(trial.results)
        except OSError:
            raise  # a full disk is not the method's error
        except Exception as error:
            yield JobResult(job, [], describe_error(error), traceback.format_exc())
            continue
        yield JobResult.of(job, results)
