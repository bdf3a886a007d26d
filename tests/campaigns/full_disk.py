"""Run ``anchorinv run`` on a disk that is full again and again: what was finished stays, the end is the same.

``python -m tests.campaigns.full_disk --rounds 20`` needs root, for a small file system in memory (tmpfs).
Each round it has a few kilobytes more, so that writes fail in the middle: at first of base models, then of
results.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from tests.campaigns.kill_runs import check_end, ended, finished, undisturbed
from tests.study.little import lines

PLENTY = 100_000  # pages of 4 KiB


def resized(mount: Path, room: int) -> None:
    """Leave so many pages of room."""
    there = os.statvfs(mount)
    pages = there.f_blocks - there.f_bfree + room
    subprocess.run(["mount", "-o", f"remount,size={pages * 4096}", str(mount)], check=True)


def campaign(folder: Path, rounds: int, trials: int, seed: int) -> dict[str, int]:
    """Run out of room as often as asked, and return in which files."""
    draw, counts = random.Random(seed), Counter[str]()
    mount, run = folder / "small", folder / "small" / "run"
    undisturbed(folder / "whole", trials)
    wanted = lines(folder / "whole")
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4096", "tmpfs", str(mount)], check=True)
    try:
        while (n := sum(counts.values())) < rounds:
            if n == rounds // 4 or (n and not run.exists()):
                # Base models are large, lines small: let it come to the trials of the last method, and die.
                resized(mount, PLENTY)
                assert ended(run, trials, "append", 0.5, trials + 2)[0] == -signal.SIGKILL
            resized(mount, draw.randint(1, 60) if n < rounds // 4 else draw.randint(1, 3))
            before = finished(run)
            code, output = ended(run, trials)
            if code == 0:
                check_end(run, wanted)
                shutil.rmtree(run)
                continue
            full = re.search(r"([a-z]+)[^/ ]* cannot be written|cannot write to", output)
            assert code == 1 and full and "Traceback" not in output, output
            assert before <= finished(run), "finished lines are lost"
            counts[f"full in: {full[1] or 'folder'}"] += 1
        resized(mount, PLENTY)
        undisturbed(run, trials)
        check_end(run, wanted)
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)
    return {**counts, "lines compared": len(wanted)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=20)
    asked.add_argument("--trials", type=int, default=16)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for what, n in campaign(Path(folder), given.rounds, given.trials, given.seed).items():
            print(f"{n:5d}  {what}")


if __name__ == "__main__":
    main()
