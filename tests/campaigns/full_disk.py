"""Run ``anchorinv run`` on a disk that is full again and again: what was finished stays, the end is the same.

``python -m tests.campaigns.full_disk --rounds 20`` needs root, for a small file system in memory (tmpfs).
Each round it has a few kilobytes more, so that writes fail in the middle of whatever is being written.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.campaigns.kill_runs import RUN, check_end, finished
from tests.study.little import lines


def called(out: Path, trials: int) -> tuple[int, str]:
    command = [sys.executable, "-m", "anchorinv", *RUN, "--trials", str(trials), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def resized(mount: Path, pages: int, *, again: bool) -> None:
    how = f"{'remount,' if again else ''}size={pages * 4096}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", how, "tmpfs", str(mount)], check=True)


def campaign(folder: Path, rounds: int, trials: int, seed: int) -> dict[str, int]:
    """Run out of room as often as asked, and return in which files."""
    draw, counts = random.Random(seed), Counter[str]()
    code, told = called(folder / "whole", trials)
    assert code == 0, told
    wanted = lines(folder / "whole")
    mount = folder / "small"
    mount.mkdir()
    pages = 1
    resized(mount, pages, again=False)
    try:
        while sum(counts.values()) < rounds:
            before = finished(mount / "run")
            code, told = called(mount / "run", trials)
            if code == 0:
                check_end(mount / "run", wanted)
                subprocess.run(["umount", str(mount)], check=True)
                pages = 1
                resized(mount, pages, again=False)
                continue
            assert code == 1 and "Traceback" not in told, told
            assert re.search(r"cannot (be written|write)", told), told
            assert before <= finished(mount / "run"), "finished lines are lost"
            named = re.search(r"cannot (?:be written|write)[^\n]*", told) and re.search(
                r"(\w+)[-.]?[^/ ]* cannot", told
            )
            counts[f"full in: {named[1] if named else 'folder'}"] += 1
            # Base models are large, lines small: by a few pages more it comes to the next file.
            pages += (
                draw.choice((1, 1, 2, 3)) if list(mount.glob("run/bases/replay-*")) else draw.randint(1, 60)
            )
            resized(mount, pages, again=True)
        resized(mount, 100_000, again=True)
        code, told = called(mount / "run", trials)
        assert code == 0, told
        check_end(mount / "run", wanted)
    finally:
        subprocess.run(["umount", str(mount)], check=True)
    return {**counts, "lines compared": len(wanted)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=20)
    asked.add_argument("--trials", type=int, default=12)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for what, n in campaign(Path(folder), given.rounds, given.trials, given.seed).items():
            print(f"{n:5d}  {what}")


if __name__ == "__main__":
    main()
