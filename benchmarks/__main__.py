"""``python -m benchmarks [--json FILE] [--quick]``: print the ratios and, if asked, write them."""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.cases import CASES
from benchmarks.latency import latency, told
from benchmarks.timing import Figure, measure


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Speed against the textbook twin."
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write a list of objects: name, ratio, spread"
    )
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    options = parser.parse_args()
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"no folder {options.json.absolute().parent} for {options.json.name}; make it first")
    figures = run(repeats=3 if options.quick else 7)
    show(figures)
    Console().print(told(latency(20 if options.quick else 100)), soft_wrap=True)
    if options.json:
        write(figures, options.json)


def run(repeats: int) -> list[Figure]:
    figures = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(CASES) * (repeats + 1))
        for case in CASES:
            progress.update(task, description=case.name)
            figures.append(measure(case, repeats, tick=lambda: progress.advance(task)))
    return figures


def show(figures: list[Figure]) -> None:
    table = Table(title=f"Textbook twin against ours, per step; {torch.get_num_threads()} threads")
    table.add_column("name", no_wrap=True)
    table.add_column("what")
    for header in ("twin ms", "ours ms", "ratio", "spread", "must"):
        table.add_column(header, justify="right")
    for figure in figures:
        colour = "green" if figure.ratio >= figure.must else "red"
        table.add_row(
            figure.name,
            figure.what,
            f"{figure.twin_ms:.0f}",
            f"{figure.ours_ms:.0f}",
            f"[{colour}]{figure.ratio:.1f}[/]",
            f"{figure.spread:.1f}",
            f"≥ {figure.must:g}",
        )
    console = Console()
    console.print(table)
    for figure in figures:
        if figure.ratio < figure.must:
            console.print(
                f"{figure.name}: {figure.ratio:.2f} is below {figure.must:g}; was the machine busy?"
            )


def write(figures: list[Figure], path: Path) -> None:
    """Replace ``path`` in one go: whoever reads it sees the old file or the whole new one."""
    text = json.dumps([asdict(figure) for figure in figures], indent=2) + "\n"
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main()
