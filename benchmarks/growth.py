"""How time and memory grow with trials, shots, anchors, classes and channels: one process per point.

Run as ``python -m benchmarks.growth NAME=VALUE`` it prints what that point took, as JSON.
"""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

#: What everything else stands at while one size grows; ``classes`` are the new ones, a session each.
USUAL = {"trials": 4, "shots": 10, "anchors": 20, "classes": 2, "channels": 8}
SWEEPS = {
    "trials": (10, 30, 100),
    "shots": (5, 10, 20, 40),
    "anchors": (10, 20, 40, 80),
    "classes": (1, 2, 4, 8),
    "channels": (4, 8, 16, 32),
}


@dataclass(frozen=True)
class Point:
    """What a run of one size took: seconds of one core, peak megabytes, and those beyond the start."""

    name: str
    size: int
    seconds: float
    peak_mb: float
    beyond_mb: float


def grown(sweeps: dict[str, tuple[int, ...]] = SWEEPS) -> list[Point]:
    """Measure every point in a process of its own, on one core."""
    found = []
    for name, sizes in sweeps.items():
        for size in sizes:
            command = [sys.executable, "-m", "benchmarks.growth", f"{name}={size}"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            found.append(Point(name, size, **json.loads(done.stdout)))
    return found


def exponent(points: list[Point]) -> float:
    """Return the slope of time against size, both in logarithms, by least squares."""
    pairs = [(math.log(point.size), math.log(point.seconds)) for point in points]
    mean_x, mean_y = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    up = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return up / sum((x - mean_x) ** 2 for x, _ in pairs)


def by_name(points: list[Point]) -> dict[str, list[Point]]:
    """Return the points of each sweep."""
    return {
        name: [point for point in points if point.name == name]
        for name in dict.fromkeys(p.name for p in points)
    }


def show_growth(points: list[Point]) -> None:
    """Print a line for each point, and for each sweep how fast time and memory grow."""
    table = Table(title="AnchorInv through all sessions, scored; small geometry, one core")
    for header in ("", "size", "seconds", "peak MB", "beyond start MB", "time grows by", "memory by"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, sweep in by_name(points).items():
        for point in sweep:
            last = point is sweep[-1]
            table.add_row(
                name if point is sweep[0] else "",
                str(point.size),
                f"{point.seconds:.2f}",
                f"{point.peak_mb:.0f}",
                f"{point.beyond_mb:.0f}",
                f"size^{exponent(sweep):.2f}" if last else "",
                f"{point.peak_mb / sweep[0].peak_mb - 1:+.0%}" if last else "",
                end_section=last,
            )
    Console(width=max(110, Console().width)).print(table)


def draw_growth(points: list[Point], path: Path) -> None:
    """Draw time and memory of every sweep, with what proportional growth would look like."""
    import matplotlib.pyplot as plt

    sweeps = by_name(points)
    figure, axes = plt.subplots(2, len(sweeps), figsize=(12, 5), sharey="row", layout="constrained")
    for column, (name, sweep) in zip(axes.T, sweeps.items(), strict=True):
        sizes = [point.size for point in sweep]
        seconds = [point.seconds for point in sweep]
        time_axis, memory_axis = column
        time_axis.loglog(sizes, seconds, "o-", color="#0072B2", label="measured")
        line = [seconds[-1] * size / sizes[-1] for size in sizes]
        time_axis.loglog(sizes, line, "--", color="#E69F00", label="proportional to the size")
        time_axis.set_title(f"{name}: size^{exponent(sweep):.2f}", fontsize=10)
        memory_axis.plot(sizes, [point.peak_mb for point in sweep], "s-", color="#009E73")
        memory_axis.set_xscale("log")
        for axis in column:
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        memory_axis.set_xlabel(f"number of {name}" if name != "shots" else "shots per class")
    axes[1, 0].set_ylim(0, 1.15 * max(point.peak_mb for point in points))  # shared by the row
    axes[0, 0].set_ylabel("time / s of one core")
    axes[1, 0].set_ylabel("peak memory / MB")
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def measure_point(*, trials: int, shots: int, anchors: int, classes: int, channels: int) -> dict[str, float]:
    """Run AnchorInv once and return seconds and megabytes."""
    import torch

    from anchorinv.core import catalogue
    from anchorinv.core.conformer import Conformer
    from anchorinv.core.heads import Cosine
    from anchorinv.core.inversion import Inversion
    from anchorinv.core.networks import Geometry
    from anchorinv.core.prototypes import mean_of_shots
    from anchorinv.core.recipe import BaseSpec
    from anchorinv.core.training import Finetune, Training
    from anchorinv.core.types import Batch, stream
    from anchorinv.study.runner import Protocol, run
    from benchmarks.memory import peak_resident, resident

    g = Geometry(channels, 250, kernel=15, pool=30, pool_stride=10, width=16, heads=4, depth=3)

    def samples(n: int, name: str) -> Batch:
        labels = torch.arange(2 + classes).repeat_interleave(n)
        return Batch(torch.randn(len(labels), channels, 250, generator=stream(5, name)), labels)

    recipe = catalogue.anchorinv(
        BaseSpec(lambda: Conformer(g), Cosine.start, Training(epochs=1)),
        start=mean_of_shots,
        adapt=Finetune((10,), lr=1e-3),
        per_class=anchors,
        inversion=Inversion(steps=10),
    )
    train, test = samples(100, "train"), samples(50, "test")

    protocol = Protocol((0, 1), tuple(range(2, 2 + classes)), shots=shots, trials=trials)
    before, start = resident(), time.process_time()
    for _ in run({"anchorinv": recipe}, train, test, protocol):
        pass
    seconds = time.process_time() - start
    return {
        "seconds": seconds,
        "peak_mb": peak_resident() / 1e6,
        "beyond_mb": (peak_resident() - before) / 1e6,
    }


if __name__ == "__main__":
    changed, value = sys.argv[1].split("=")
    print(json.dumps(measure_point(**{**USUAL, changed: int(value)})))
