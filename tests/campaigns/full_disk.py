"""Run ``anchorinv run`` on a disk that is full again and again: what was finished stays, the end is the same.

``python -m tests.campaigns.full_disk --rounds 20`` needs root, for a small file system in memory (tmpfs).
Each round it has a few kilobytes more, so that writes fail in the middle of whatever is being written.
"""

import argparse
import random
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from tests.campaigns.kill_runs import check_end, ended, finished, undisturbed
from tests.study.little import lines


def resized(mount: Path, pages: int, *, again: bool) -> None:
    how = f"{'remount,' if again else ''}size={pages * 4096}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", how, "tmpfs", str(mount)], check=True)


def campaign(folder: Path, rounds: int, trials: int, seed: int) -> dict[str, int]:
    """Run out of room as often as asked, and return in which files."""
    draw, counts = random.Random(seed), Counter[str]()
    mount, run = folder / "small", folder / "small" / "run"
    undisturbed(folder / "whole", trials)
    wanted = lines(folder / "whole")
    mount.mkdir()
    pages = 1
    resized(mount, pages, again=False)
    try:
        while sum(counts.values()) < rounds:
            before = finished(run)
            code, told = ended(run, trials)
            if code == 0:
                check_end(run, wanted)
                shutil.rmtree(run)
                pages = 1
            else:
                full = re.search(r"([a-z]+)[^/ ]* cannot be written|cannot write to", told)
                assert code == 1 and full and "Traceback" not in told, told
                assert before <= finished(run), "finished lines are lost"
                counts[f"full in: {full[1] or 'folder'}"] += 1
                # Base models are large, lines small: by a few pages more it comes to the next file.
                begun = any(run.glob("bases/replay-*"))
                pages += draw.choice((1, 2, 3)) if begun else draw.randint(1, 60)
            resized(mount, pages, again=True)
        resized(mount, 100_000, again=True)
        undisturbed(run, trials)
        check_end(run, wanted)
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)
    return {**counts, "lines compared": len(wanted)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=20)
    asked.add_argument("--trials", type=int, default=30)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for what, n in campaign(Path(folder), given.rounds, given.trials, given.seed).items():
            print(f"{n:5d}  {what}")


if __name__ == "__main__":
    main()
