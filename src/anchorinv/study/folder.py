"""The run folder: what was asked for, what it ran on, and what is finished; safe against kills."""

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorinv.core.runner import SessionResult
from anchorinv.files import half_written, read_json, replacing, write_json
from anchorinv.study.about import FORMAT, Start, checked, checked_starts
from anchorinv.study.config import Study, dotted
from anchorinv.study.environment import environment
from anchorinv.study.identity import digest
from anchorinv.study.parts import Outline, Part, all_parts
from anchorinv.study.results import Lines, append, put_aside, read_lines, to_line
from anchorinv.study.tables import COMPARED, as_csv, comparisons, rows

logger = logging.getLogger(__name__)
_OURS = ("config.json", "environment.json", "results.jsonl", "scores.csv", "comparisons.csv")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder that holds one run."""

    path: Path

    @property
    def results(self) -> Path:
        """Return where the results are."""
        return self.path / "results.jsonl"

    @property
    def name(self) -> str:
        """Return what the folder is called."""
        return self.path.name

    @property
    def log(self) -> Path:
        """Return where the log is."""
        return self.path / "run.log"

    def prepare(
        self,
        study: Study,
        *,
        data: dict[str, dict[str, Any]],
        people: dict[str, list[str]],
        own: Sequence[str] = (),
    ) -> None:
        """Make the folder, or check that what it holds is a run of the same study.

        Parameters
        ----------
        data : fingerprint and classes of the data sets, by name.
        people : whom each variant studies one by one.
        own : names of methods beside the study's.
        """
        asked = {
            "study": _plainly(study),
            "data": data,
            "people": people,
            "own": list(own),
        }
        for leftover in half_written(self.path, *_OURS):
            leftover.unlink()  # half a file that a killed process was writing
        config = self.path / "config.json"
        if config.exists():
            _check_same(self.path, self.about(), asked)
            self._mend()
        else:
            write_json(config, {"format": FORMAT, "hash": digest(asked), **asked})
        self._note_start()
        self.results.touch()

    def check_free(self) -> None:
        """Refuse a folder of something else, before anything in it is touched."""
        if not self.path.is_dir() or (self.path / "config.json").exists():
            return
        others = {path.name for path in self.path.iterdir()} - {
            path.name for path in half_written(self.path, *_OURS)
        }
        if others := others - {"lock", "run.log", "bases"}:
            raise ValueError(f"{self.path} holds no run but {min(others)}; choose an empty or a new folder")

    def study(self) -> Study:
        """Return the study that the folder holds."""
        return self._config()[0]

    def about(self) -> dict[str, Any]:
        """Return what the folder was asked for: the study, its hash, fingerprint and classes of the data."""
        return self._config()[1]

    def parts(self) -> list[Part]:
        """Return all that the run consists of, in order."""
        return all_parts(*self._config())

    def starts(self) -> list[Start]:
        """Return versions and machine at each start."""
        path = self.path / "environment.json"
        return checked_starts(read_json(path), path) if path.exists() else []

    def _config(self) -> tuple[Study, dict[str, Any]]:
        config = self.path / "config.json"
        if not config.is_file():
            raise ValueError(f"{self.path} is no run: config.json is missing")
        about = read_json(config)
        return checked(about, config), about

    def read(self) -> Lines:
        """Return the results so far."""
        if not self.results.exists():
            return Lines([], [])
        return read_lines(self.results, Outline(*self._config()))

    def add(self, results: Sequence[SessionResult]) -> None:
        """Add the results of one part, all at once."""
        try:
            append(self.results, *results)
        except OSError as error:
            raise OSError(
                f"{self.results} cannot be written: {error.strerror}; make room and run the same command "
                f"again, what is finished is kept"
            ) from None

    def put_in_order(self) -> None:
        """Have the lines in the order of the parts, whoever computed them when."""
        found, order = self.read(), {part: i for i, part in enumerate(self.parts())}
        wanted = sorted(found.results, key=lambda result: (order[Part.of(result)], result.session))
        if not found.damage and wanted != found.results:
            self._rewrite(wanted)

    def _rewrite(self, results: Sequence[SessionResult]) -> None:
        with replacing(self.results) as beside:
            beside.write_text("".join(to_line(result) + "\n" for result in results), encoding="utf-8")

    def write_tables(self) -> list[Path]:
        """Write all scores and comparisons as tables, and return where they are."""
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
        """Say whether a process is running in the folder."""
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

    def _mend(self) -> None:
        """Keep all parts that are whole; put what else the file holds aside, as it is."""
        found = self.read()
        if not found.damage:
            return
        aside = self.path / "results.damaged.jsonl"
        put_aside(self.results, found.places, aside)
        self._rewrite(found.results)
        whole, n = len({Part.of(result) for result in found.results}), len(self.parts())
        logger.warning(
            "%s had %s; put aside in %s. %d of %d parts are whole and kept, the other %d are computed",
            self.results, found.damage, aside.name, whole, n, n - whole,
        )  # fmt: skip

    def _note_start(self) -> None:
        """Add to the record of starts, and say if something is not as it was."""
        path = self.path / "environment.json"
        starts, now = self.starts(), environment()
        changed = [key for key in now if starts and starts[-1].get(key) != now[key]]
        for key in changed:
            logger.warning("%s was %s, is %s: last digits may differ", key, starts[-1].get(key), now[key])
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(path, [*starts, {"started": started, "pid": os.getpid(), **now}])


def _plainly(study: Study) -> Any:
    return json.loads(study.model_dump_json())


def _check_same(path: Path, known: dict[str, Any], asked: dict[str, Any]) -> None:
    # Keys that the folder's version did not have yet are at their defaults: what it did.
    whole = {**known, "study": _plainly(checked(known, path / "config.json"))}
    before, now = (dotted({key: each.get(key) for key in asked}) for each in (whole, asked))
    different = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if different:
        shown = [f"{_plain(key)} was {before.get(key)}, is {now.get(key)}" for key in different[:5]]
        more = f", and {len(different) - 5} more" if len(different) > 5 else ""
        raise ValueError(
            f"{path} holds another run: {'; '.join(shown)}{more}. Choose another --out, or the same settings"
        )


def _plain(key: str) -> str:
    """Return a key as a config has it; a study without variants has one without a name."""
    return key.removeprefix("study.").replace("variants..", "")
