"""A run on disk: the run folder, which survives being killed, and the record, one small file to publish."""

import fcntl
import json
import logging
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from anchorinv import __version__
from anchorinv.files import (
    MOST_JSON,
    check_regular,
    half_written,
    parsed_json,
    read_json,
    replacing,
    write_json,
)
from anchorinv.study.config import Study, digest, dotted
from anchorinv.study.results import (
    ExpectedResults,
    Job,
    StoredResults,
    all_jobs,
    append,
    check_number,
    first_problem,
    move_damaged,
    read_lines,
    to_line,
)
from anchorinv.study.runner import SessionResult
from anchorinv.study.scores import COMPARED, as_csv, comparisons, rows

logger = logging.getLogger(__name__)
#: What a record contains about a start; machine and process are left out.
_PUBLIC = (
    "started", "anchorinv", "python", "torch", "numpy", "scipy", "scikit-learn", "pydantic", "safetensors",
    "system", "cores", "device",
)  # fmt: skip
_OURS = ("config.json", "environment.json", "results.jsonl", "scores.csv", "comparisons.csv")


FORMAT = 1

#: Versions and machine at one start.
Start = dict[str, str | int | float | None]
_T = TypeVar("_T")


class _DatasetInfo(BaseModel):
    """Description of a data set."""

    model_config = ConfigDict(extra="forbid")

    fingerprint: str
    classes: list[str]


class RunInfo(BaseModel):
    """The content of ``config.json`` and of a record's first line; the hash covers all fields after it."""

    model_config = ConfigDict(extra="forbid")

    format: int
    hash: str
    study: Study
    data: dict[str, _DatasetInfo]
    people: dict[str, Annotated[list[str], Field(min_length=1)]]
    own: list[str]
    starts: list[Start] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits(self) -> "RunInfo":
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} is not {FORMAT}, which this version reads")
        if set(self.people) != set(self.study.variants):
            raise ValueError("subjects do not match the study's variants")
        for variant, experiment in self.study.variants.items():
            named = (self.people[variant], [*experiment.methods, *self.own])
            if any(len(set(names)) < len(names) for names in named):
                raise ValueError("a subject or a method occurs twice")
            known = self.data.get(experiment.data.name)
            protocol = experiment.protocol
            classes = [c for c in (*protocol.base_classes, *protocol.sessions) if isinstance(c, str)]
            if known is None or not set(classes) <= set(known.classes):
                raise ValueError(f"data set {experiment.data.name!r} is not described, or lacks classes")
        check_number(self.study, self.people, self.own)
        return self


_INFO, _STARTS = TypeAdapter(RunInfo), TypeAdapter(list[Start])


def validate_study(about: Any, path: Path) -> Study:
    """Return the study in a file; ``about`` is the file's content."""
    return _validate(_INFO, about, path, "put a copy back, or run the study elsewhere").study


def _validate(kind: TypeAdapter[_T], value: Any, path: Path, advice: str) -> _T:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{path} is damaged: {first_problem(error)}; {advice}") from None


def environment() -> dict[str, Any]:
    """Return versions and machine, as plain values."""
    libraries = ("torch", "numpy", "scipy", "scikit-learn", "pydantic", "safetensors")
    return {
        "anchorinv": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in libraries},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor()


class _StoredRun:
    """The settings of a run on disk."""

    __slots__ = ()

    def study(self) -> Study:
        """Return the study."""
        return self._config()[0]

    def about(self) -> dict[str, Any]:
        """Return the study, its hash, fingerprint and classes of the data, as plain values."""
        return self._config()[1]

    def jobs(self) -> list[Job]:
        """Return all jobs of the run, in order."""
        return all_jobs(*self._config())

    def _config(self) -> tuple[Study, dict[str, Any]]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RunFolder(_StoredRun):
    """The folder of one run; it need not exist yet."""

    path: Path

    @property
    def results(self) -> Path:
        """Path of the results."""
        return self.path / "results.jsonl"

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def log(self) -> Path:
        """Path of the log."""
        return self.path / "run.log"

    def prepare(
        self,
        study: Study,
        *,
        data: dict[str, dict[str, Any]],
        people: dict[str, list[str]],
        own: Sequence[str] = (),
        device: str = "cpu",
    ) -> None:
        """Create the folder, or check that it contains a run of the same study.

        ``data`` has fingerprint and classes of each data set, ``people`` the subjects that each variant
        studies one by one, ``own`` the names of custom methods. ``device`` is recorded.
        """
        settings = {"study": _as_json(study), "data": data, "people": people, "own": list(own)}
        for leftover in half_written(self.path, *_OURS):
            leftover.unlink()  # a partial file of a killed process
        config = self.path / "config.json"
        if config.exists():
            _check_same(self.path, self.about(), settings)
            self._repair()
        else:
            write_json(config, {"format": FORMAT, "hash": digest(settings), **settings})
        self._add_start(device)
        self.results.touch()

    def check_free(self) -> None:
        """Refuse a folder with other content, before anything in it is touched."""
        if not self.path.is_dir() or (self.path / "config.json").exists():
            return
        ours = {"lock", "run.log", "bases", *(path.name for path in half_written(self.path, *_OURS))}
        if others := {path.name for path in self.path.iterdir()} - ours:
            raise ValueError(
                f"{self.path} is not a run folder, it contains {min(others)}; choose an empty or a new folder"
            )

    def starts(self) -> list[Start]:
        """Return versions and machine at each start."""
        path = self.path / "environment.json"
        advice = "move it away, it only lists versions"
        return _validate(_STARTS, read_json(path), path, advice) if path.exists() else []

    def _config(self) -> tuple[Study, dict[str, Any]]:
        config = self.path / "config.json"
        if not config.is_file():
            raise ValueError(f"{self.path} is not a run folder: config.json is missing")
        about = read_json(config)
        return validate_study(about, config), about

    def read(self) -> StoredResults:
        """Return the results so far."""
        if not self.results.exists():
            return StoredResults([], [])
        return read_lines(self.results, ExpectedResults(*self._config()))

    def add(self, results: Sequence[SessionResult]) -> None:
        """Append the results of one job, atomically."""
        try:
            append(self.results, *results)
        except OSError as error:
            raise OSError(
                f"{self.results} cannot be written: {error.strerror}; free some space, run the same command "
                f"again, finished jobs are kept"
            ) from None

    def sort_results(self) -> None:
        """Sort the lines by job; they were written in the order in which jobs were finished."""
        stored, order = self.read(), {job: i for i, job in enumerate(self.jobs())}
        ordered = sorted(stored.results, key=lambda result: (order[Job.of(result)], result.session))
        if not stored.damage and ordered != stored.results:
            self._rewrite(ordered)

    def _rewrite(self, results: Sequence[SessionResult]) -> None:
        with replacing(self.results) as beside:
            beside.write_text("".join(to_line(result) + "\n" for result in results), encoding="utf-8")

    def write_tables(self) -> list[Path]:
        """Write all scores and comparisons as tables, and return their paths."""
        results, (study, about) = self.read().results, self._config()
        names = {
            variant: about["data"][experiment.data.name]["classes"]
            for variant, experiment in study.variants.items()
        }
        files = {
            "scores.csv": as_csv(list(rows(results, names))),
            "comparisons.csv": as_csv(list(comparisons(results, study.reference)), COMPARED),
        }
        for name, text in files.items():
            with replacing(self.path / name) as beside:
                beside.write_text(text, encoding="utf-8")
        return [self.path / name for name in files]

    @property
    def in_use(self) -> bool:
        """Return whether a process is running in the folder."""
        try:
            with self.locked():
                return False
        except ValueError:
            return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder inside the block."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a")
        except OSError as error:
            raise OSError(f"cannot write to {self.path}: {error.strerror}; choose another folder") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another process is running in {self.path}; wait for it, or stop it"
                ) from None
            yield

    def _repair(self) -> None:
        """Keep the results of all complete jobs; move other lines to another file, unchanged."""
        stored = self.read()
        if not stored.damage:
            return
        aside = self.path / "results.damaged.jsonl"
        move_damaged(self.results, stored.places, aside)
        self._rewrite(stored.results)
        n_kept, n = len({Job.of(result) for result in stored.results}), len(self.jobs())
        logger.warning(
            "%s had %s; moved to %s. %d of %d jobs are complete and kept, the other %d are computed",
            self.results, stored.damage, aside.name, n_kept, n, n - n_kept,
        )  # fmt: skip

    def _add_start(self, device: str) -> None:
        """Append to the list of starts, and warn if versions or machine have changed."""
        path = self.path / "environment.json"
        starts, now = self.starts(), environment() | {"device": device}
        last = {"device": "cpu", **starts[-1]} if starts else now  # earlier versions had no other device
        for key in [key for key in now if last.get(key) != now[key]]:
            logger.warning("%s was %s, is %s: last digits may differ", key, last.get(key), now[key])
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(path, [*starts, {"started": started, "pid": os.getpid(), **now}])


@dataclass(frozen=True, slots=True)
class Record(_StoredRun):
    """A run as one small file: settings on the first line, then one result per line."""

    path: Path

    @property
    def results(self) -> Path:
        """Path of the results: the file itself."""
        return self.path

    @property
    def name(self) -> str:
        """Name of the file, without suffix."""
        return self.path.stem

    def starts(self) -> list[Start]:
        """Return the versions at each start."""
        return list(self.about().get("starts", []))

    def read(self) -> StoredResults:
        """Return the results."""
        return read_lines(self.path, ExpectedResults(*self._config()), heads=1)

    def _config(self) -> tuple[Study, dict[str, Any]]:
        check_regular(self.path)
        try:
            with self.path.open("rb") as file:
                about = parsed_json(file.readline(MOST_JSON + 1), self.path)
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read: {error.strerror}") from None
        except ValueError:
            about = None
        if not isinstance(about, dict) or "study" not in about:
            raise ValueError(
                f"{self.path} is not a record of a run: its first line does not describe one; "
                f"make one with anchorinv report RUN --export {self.path.name}"
            )
        return validate_study(about, self.path), about


def write_record(run: RunFolder, path: Path) -> Record:
    """Write a run, finished or not, as one file."""
    stored, about = run.read(), run.about()
    if stored.damage:
        raise ValueError(f"{run.results} has {stored.damage}; the same run command repairs it")
    starts = [{key: start[key] for key in _PUBLIC if key in start} for start in run.starts()]
    lines = [_short({**about, "starts": starts})]
    for result in stored.results:  # floats to four digits: nothing is derived from them but means
        facts = {name: float(f"{value:.4g}") for name, value in result.facts.items()}
        lines.append(_short(json.loads(to_line(replace(result, facts=facts)))))
    with replacing(path) as beside:
        beside.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return Record(path)


def _short(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _as_json(study: Study) -> Any:
    return json.loads(study.model_dump_json())


def _check_same(path: Path, about: dict[str, Any], settings: dict[str, Any]) -> None:
    # Keys that the folder's version did not have are at their defaults.
    stored = {**about, "study": _as_json(validate_study(about, path / "config.json"))}
    before, now = (dotted({key: run.get(key) for key in settings}) for run in (stored, settings))
    different = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if different:
        # As a config has the keys; a study without variants has one without a name.
        names = {key: key.removeprefix("study.").replace("variants..", "") for key in different[:5]}
        changes = [f"{name} was {before.get(key)}, is {now.get(key)}" for key, name in names.items()]
        more = f", and {len(different) - 5} more" if len(different) > 5 else ""
        raise ValueError(
            f"{path} has another run: {'; '.join(changes)}{more}. Choose another --out, or the same settings"
        )
