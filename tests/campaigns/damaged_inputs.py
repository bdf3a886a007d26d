"""Damaged inputs of all formats through the functions that commands read them by.

``python -m tests.campaigns.damaged_inputs --files 3000`` prints a table: how many were read, how many were
refused in a sentence, and how many broke a promise: no traceback, no read above 1 GB, none above 10 s.
"""

import argparse
import json
import os
import random
import resource
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from pathlib import Path

MOST_BYTES, MOST_SECONDS = 1 << 30, 10.0
#: A worker is given so much more memory than it starts with, and so long.
_ROOM, _PATIENCE = 5 << 29, 60.0


def case(name: str, number: int, folder: Path) -> Path:
    """Write the damaged input of a number, always the same; return what commands are given."""
    from tests.campaigns.formats import FORMATS

    form = FORMATS[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = form.write(folder)
    rng = random.Random(f"{name} {number}")
    files = sorted(file for pattern in form.damage for file in folder.rglob(pattern) if file.is_file())
    chosen = rng.choice(files)
    chosen.write_bytes(form.how(chosen.read_bytes(), rng))
    return path


def tried(path: Path, read, model) -> dict[str, object]:
    """Read once; return how it ended, in what time of the processor, with how much more memory."""
    Path("/proc/self/clear_refs").write_text("5")
    before, began = _peak(), time.process_time()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            read(path, model)
            ended, words = "read", ""
        except (ValueError, OSError) as error:
            short = isinstance(error.__cause__ or error.__context__, MemoryError)
            ended, words = ("memory" if short else "refused"), str(error)
        except BaseException:
            ended, words = "traceback", traceback.format_exc()
    noise = [f"{warning.category.__name__}: {warning.message}" for warning in heard]
    spent = {"seconds": time.process_time() - began, "bytes": _peak() - before}
    return {"ended": ended, "words": words, "noise": noise, **spent}


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def work(model_file: Path, folder: Path) -> None:
    """Take cases from standard input, a line of JSON each, and answer with a line."""
    from anchorinv import AnchorInvClassifier
    from tests.campaigns.formats import FORMATS

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(folder.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    model = AnchorInvClassifier.load(model_file)
    for name in FORMATS:  # whatever libraries load on their first file is no file's fault
        form = FORMATS[name]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        path = form.write(folder)
        for read in form.reads:
            try:
                read(path, model)
            except (ValueError, OSError) as error:
                print(f"the sound {name} is refused: {error}", flush=True)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _ROOM,) * 2)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        name, number = json.loads(line)
        written = os.fstat(1).st_size
        path = case(name, number, folder)
        found = [tried(path, read, model) for read in FORMATS[name].reads]
        found[-1]["noise"] = [*found[-1]["noise"], *(["printed"] if os.fstat(1).st_size > written else [])]
        print(json.dumps([name, number, found]), file=answers, flush=True)


class Worker:
    """A process that reads one damaged input after the other."""

    def __init__(self, model: Path, folder: Path) -> None:
        words = [sys.executable, "-m", "tests.campaigns.damaged_inputs", "--worker", str(model), str(folder)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n", "a worker did not start"
        self._watch = selectors.DefaultSelector()
        self._watch.register(self.process.stdout, selectors.EVENT_READ)

    def __call__(self, name: str, number: int) -> list[dict[str, object]] | None:
        """Return how the reads of a case ended; None if the process did not live to tell."""
        self.process.stdin.write(json.dumps([name, number]) + "\n")
        self.process.stdin.flush()
        if self._watch.select(_PATIENCE) and (line := self.process.stdout.readline()):
            return json.loads(line)[2]
        self.close()
        return None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def campaign(
    names: list[str], n_files: int, *, first: int = 0, log: Path | None = None
) -> dict[str, Counter]:
    """Run so many cases, over all formats in turn; return the counts of each."""
    from tests.models import fitted

    counts: dict[str, Counter] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fitted().save(folder / "model.anchorinv")
        worker = Worker(folder / "model.anchorinv", folder / "case")
        for i in range(n_files):
            name, number = names[i % len(names)], first + i // len(names)
            found = worker(name, number)
            if found is None:
                worker = Worker(folder / "model.anchorinv", folder / "case")
            broken = _count(counts[name], found)
            if broken and log is not None:
                with log.open("a") as file:
                    file.write(json.dumps([name, number, found]) + "\n")
        worker.close()
    return counts


def _count(count: Counter, found: list[dict] | None) -> bool:
    """Add a case to the counts of its format; tell whether it broke a promise."""
    reads = found or []
    count["files"] += 1
    count["reads"] += len(reads)
    count["read"] += sum(read["ended"] == "read" for read in reads)
    broken = {
        "tracebacks": found is None or any(read["ended"] == "traceback" for read in reads),
        "above 1 GB": any(read["ended"] == "memory" or read["bytes"] > MOST_BYTES for read in reads),
        "above 10 s": found is None or any(read["seconds"] > MOST_SECONDS for read in reads),
        "noisy": any(read["noise"] for read in reads),
    }
    for promise, broke in broken.items():
        count[promise] += broke
    count["MB"] = max(count["MB"], *(int(read["bytes"]) >> 20 for read in reads), 0, 0)
    count["ms"] = max(count["ms"], *(int(1000 * read["seconds"]) for read in reads), 0, 0)
    return any(broken.values())


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--files", type=int, default=3000)
    asked.add_argument("--first", type=int, default=0, help="number of the first case of each format")
    asked.add_argument("--formats", help="with commas between; default: all")
    asked.add_argument("--log", type=Path, help="file for the cases that broke a promise")
    asked.add_argument("--worker", nargs=2, type=Path, help=argparse.SUPPRESS)
    words = asked.parse_args()
    if words.worker:
        work(*words.worker)
        return
    from tests.campaigns.formats import FORMATS

    names = words.formats.split(",") if words.formats else list(FORMATS)
    counts = campaign(names, words.files, first=words.first, log=words.log)
    counts["all"] = sum((count for count in counts.values()), Counter())
    for most in ("MB", "ms"):
        counts["all"][most] = max(count[most] for name, count in counts.items() if name != "all")
    columns = ("files", "reads", "read", "tracebacks", "above 1 GB", "above 10 s", "noisy", "MB", "ms")
    print(f"{'format':18}" + "".join(f"{column:>12}" for column in columns))
    for name, count in counts.items():
        print(f"{name:18}" + "".join(f"{count[column]:>12}" for column in columns))


if __name__ == "__main__":
    main()
