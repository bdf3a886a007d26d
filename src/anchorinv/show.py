"""What commands show in the terminal: tables, progress and plain sentences."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anchorinv.bars import progress_bars
from anchorinv.core.runner import SessionResult, run
from anchorinv.study.demo import make_demo
from anchorinv.study.results import append
from anchorinv.study.summary import PARTS, cell, in_words, methods_of


def show_demo(out: Path, *, quick: bool) -> None:
    """Run the demo, show it, and write its results to ``out / "results.jsonl"``."""
    console, began = Console(), time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.jsonl"
    # Written beside and moved at the end: an earlier demo's results stay whole if this one is stopped.
    unfinished = out / "results.jsonl.unfinished"
    unfinished.write_text("")
    console.print("Synthetic EMG-like recordings; nobody's data, and no evidence about real people.")
    results: list[SessionResult] = []
    with progress_bars(console):
        demo = make_demo(quick=quick)
        protocol = demo.protocol
        console.print(
            f"{len(protocol.base_classes)} base classes with all their recordings, then "
            f"{len(protocol.sessions)} new classes, one per session, {protocol.shots} examples each; "
            f"{protocol.trials} trials, the same examples for all methods."
        )
        for result in run(demo.methods, demo.train, demo.test, protocol):
            append(unfinished, result)
            results.append(result)
    unfinished.replace(path)
    console.print(table(results))
    console.print(in_words(results))
    console.print(f"Results: {path} ({time.perf_counter() - began:.0f} s)")


def table(results: Sequence[SessionResult]) -> Table:
    """Return macro-F1 over all, base and new classes, per method and session."""
    last = max(result.session for result in results)
    shown = Table(title="Macro-F1 in percent, mean ± standard deviation over trials")
    shown.add_column("classes", no_wrap=True)
    shown.add_column("method", no_wrap=True)
    for session in range(last + 1):
        shown.add_column(f"session {session}" if session else "base", justify="right", no_wrap=True)
    methods = methods_of(results)
    for part, words in PARTS.items():
        for method in methods:
            cells = [
                "" if part == "f1_new" and session == 0 else str(cell(results, method, session, part))
                for session in range(last + 1)
            ]
            first, final = method == methods[0], method == methods[-1]
            shown.add_row(words if first else "", method, *cells, end_section=final)
    return shown
