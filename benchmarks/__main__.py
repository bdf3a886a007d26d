"""``python -m benchmarks [--json FILE] [--quick] [--only NAME ...]``: print the ratios, and write them.

``python -m benchmarks growth [--json FILE] [--figure FILE]``: how time and memory grow with every size.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from anchorinv.progress import Tick, listening
from benchmarks.cases import CASES
from benchmarks.growth import Point, draw_growth, grown, show_growth
from benchmarks.latency import latency, told
from benchmarks.machine import measured
from benchmarks.table import show
from benchmarks.timing import Case, Figure, measure


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Speed against the textbook twin."
    )
    parser.add_argument("what", nargs="?", choices=["ratios", "growth"], default="ratios")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write a list of objects: name, ratio, spread and more"
    )
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some rows, by the start of their names")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="growth: draw it into this file")
    options = parser.parse_args()
    for path in (options.json, options.figure):
        if path and not path.absolute().parent.is_dir():
            parser.error(f"no folder {path.absolute().parent} for {path.name}; make it first")
    if options.what == "growth":
        points = grown()
        show_growth(points)
        if options.json:
            write(points, options.json)
        if options.figure:
            draw_growth(points, options.figure)
        return
    cases = [case for case in CASES if not options.only or case.name.startswith(tuple(options.only))]
    if not cases:
        names = ", ".join(case.name for case in CASES)
        parser.error(f"no row starts with {' or '.join(options.only)}; there are {names}")
    figures = run(cases, quick=options.quick, into=options.json)
    show(figures)
    if not options.only:
        Console().print(told(latency(20 if options.quick else 100)), soft_wrap=True)


def run(cases: list[Case], *, quick: bool, into: Path | None) -> list[Figure]:
    """Measure case by case; what is known is in the file after each one."""
    figures: list[Figure] = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=sum(case.n_pairs(quick) + case.warm_up for case in cases))
        within = progress.add_task("", total=None, visible=False)

        def show_step(step: Tick) -> None:
            progress.update(
                within, description=step.task, completed=step.done, total=step.total, visible=True
            )

        for case in cases:
            progress.update(task, description=case.name)
            with listening(show_step):
                figure = measure(case, measured(), quick=quick, tick=lambda: progress.advance(task))
            progress.update(within, visible=False)
            figures.append(figure)
            if into:
                write(figures, into)
            progress.console.print(f"{figure.name}: {figure.ratio:.1f}")
    return figures


def write(figures: Sequence[Figure | Point], path: Path) -> None:
    """Replace ``path`` in one go: whoever reads it sees the old file or the whole new one."""
    text = json.dumps([asdict(figure) for figure in figures], indent=2) + "\n"
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main()
