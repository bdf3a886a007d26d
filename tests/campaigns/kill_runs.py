"""Kill ``anchorinv run`` again and again: no finished line is lost, and the end is that of a run left alone.

``python -m tests.campaigns.kill_runs --rounds 40`` kills at random moments, and, so that these are met too,
in the middle of an append, of a training's checkpoint, of a base model and of a replay being written.
"""

import argparse
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anchorinv.study.folder import RunFolder
from anchorinv.study.results import to_line
from tests.study.little import lines

RUN = ("run", "grabmyo-4base", "--methods", "finetune,anchorinv", "--scale", "smoke", "--threads", "1")
SERVER = multiprocessing.get_context("forkserver")
# Imported once for all: what a run imports takes longer than the run, torch._dynamo (by its optimisers) most.
SERVER.set_forkserver_preload(["anchorinv.cli", "anchorinv.study.execute", "torch._dynamo", "rich.console"])
#: Where a process kills itself when a file is half-written, and the name of that file.
PLACES = {
    "append": r"results\.jsonl",
    "checkpoint": r"\.unfinished",
    "base": r"base-.*\.safetensors",
    "replay": r"replay-.*\.safetensors",
}


def main_killed(place: str, share: float, after: int) -> None:
    """Be ``anchorinv`` with this process's arguments, and die in the middle of a write.

    Parameters
    ----------
    place : of ``PLACES``; elsewhere it does not die by itself.
    share : how much of the bytes are written by then.
    after : how many such writes succeed before.
    """
    import safetensors.torch as safetensors

    from anchorinv import cli
    from anchorinv.study import execute, folder

    def dying(write: Callable[..., None]) -> Callable[..., None]:
        left = iter(range(after, -1, -1))

        def wrapped(*args: Any, **options: Any) -> None:
            path = next(arg for arg in args if isinstance(arg, Path))
            before = path.stat().st_size if path.exists() else 0
            write(*args, **options)
            if place in PLACES and re.search(PLACES[place], path.name) and next(left) == 0:
                os.truncate(path, before + int(share * (path.stat().st_size - before)))
                os.kill(os.getpid(), signal.SIGKILL)

        return wrapped

    assert execute.run_study.__kwdefaults__ is not None
    execute.run_study.__kwdefaults__["seconds"] = 0.0  # a checkpoint after every epoch
    folder.append, safetensors.save_file = dying(folder.append), dying(safetensors.save_file)
    cli.main()


def ended(
    out: Path, trials: int, place: str = "", share: float = 0.0, after: int = 0, seconds: float | None = None
) -> tuple[int, str]:
    """Run the command in a process of its own, killed after some seconds, and return its code and errors.

    The process is forked from one that has imported all and computed nothing: it starts at once.
    """
    with tempfile.NamedTemporaryFile("r") as output:
        process = SERVER.Process(target=_child, args=(str(out), trials, output.name, place, share, after))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        return process.exitcode, output.read()


def _child(out: str, trials: int, output: str, place: str, share: float, after: int) -> None:
    with Path(output).open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["anchorinv", *RUN, "--trials", str(trials), "--out", out]
    main_killed(place, share, after)


def undisturbed(out: Path, trials: int) -> None:
    code, output = ended(out, trials)
    assert code == 0, output


def finished(out: Path) -> set[str]:
    """The lines of all parts that a folder holds."""
    there = (out / "config.json").exists()
    return {to_line(result) for result in RunFolder(out).read().results} if there else set()


def killed(out: Path, trials: int, draw: random.Random, place: str, longest: float) -> bool:
    """Start a run, kill it somewhere, and say whether it had not ended by itself."""
    after = draw.randrange(4) if place == "append" else 0
    seconds = draw.uniform(0.05, longest) if place == "anywhere" else None
    code, output = ended(out, trials, place, draw.random(), after, seconds)
    assert code in (0, -signal.SIGKILL), f"ended with {code}: {output}"
    return code != 0


def campaign(
    folder: Path,
    rounds: int,
    trials: int,
    seed: int,
    places: tuple[str, ...],
    say: Callable[[str], object] = lambda output: None,
) -> dict[str, int]:
    """Kill runs ``rounds`` times and return how often where; a run that ends is followed by a new one."""
    draw = random.Random(seed)
    began = time.monotonic()
    undisturbed(folder / "whole", trials)
    longest = time.monotonic() - began
    wanted = lines(folder / "whole")
    counts: Counter[str] = Counter()
    out, n_runs = folder / "run", 0
    while sum(counts.values()) < rounds:
        before = finished(out)
        place = places[sum(counts.values()) % len(places)]
        if killed(out, trials, draw, place, longest):
            counts[f"killed in: {place}"] += 1
            say(f"{sum(counts.values())} kills, {len(finished(out))} lines finished")
            assert before <= finished(out), f"{len(before - finished(out))} finished lines are lost"
            continue
        check_end(out, wanted)
        shutil.rmtree(out)
        n_runs += 1
    undisturbed(out, trials)
    check_end(out, wanted)
    return {**counts, "runs that ended as one left alone": n_runs + 1, "lines compared": len(wanted)}


def check_end(out: Path, wanted: list[dict[str, Any]]) -> None:
    assert lines(out) == wanted, "the end is another"
    assert not list(out.rglob("*.part")) and not list(out.rglob("*.unfinished")), "something was left behind"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=40)
    asked.add_argument("--trials", type=int, default=4)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    places = ("anywhere", "append", "anywhere", "checkpoint", "anywhere", "base", "anywhere", "replay")
    with tempfile.TemporaryDirectory() as folder:
        for what, n in campaign(Path(folder), given.rounds, given.trials, given.seed, places, print).items():
            print(f"{n:5d}  {what}")


if __name__ == "__main__":
    main()
