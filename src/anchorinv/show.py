"""What commands show in the terminal: tables, progress and plain sentences."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anchorinv.bars import progress_bars
from anchorinv.core.runner import SessionResult, run
from anchorinv.study.demo import make_demo
from anchorinv.study.results import append, select
from anchorinv.study.summary import PARTS, cell, in_words, methods_of


def show_demo(out: Path, *, quick: bool) -> None:
    """Run the demo, show it, and write its results to ``out / "results.jsonl"``."""
    console, began = Console(), time.perf_counter()
    path = out / "results.jsonl"
    # Written beside and moved at the end: an earlier demo's results stay whole if this one is stopped.
    unfinished = out / "results.jsonl.unfinished"
    _made_writable(out, path, unfinished)
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
    console.print(table(results, spread=console.width >= 72))
    console.print(in_words(results))
    unfinished.replace(path)
    console.print(f"Results: {path} ({time.perf_counter() - began:.0f} s)")


def _made_writable(out: Path, path: Path, unfinished: Path) -> None:
    """Find out before anything is computed whether results can be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        unfinished.write_text("")
    except OSError as error:
        raise OSError(f"cannot write to {out}: {error.strerror}; choose another folder with --out") from None
    if path.is_dir():
        raise OSError(f"{path} is a folder, and results go into a file of that name; choose another --out")


def table(results: Sequence[SessionResult], *, spread: bool = True, of: str = "over trials") -> Table:
    """Return macro-F1 over all, base and new classes, per method and session.

    Without ``spread`` it has means alone and fits a narrow terminal.
    """
    last = max(result.session for result in results)
    title = "mean ± standard deviation" if spread else "mean"
    shown = Table(title=f"Macro-F1 in percent, {title} {of}")
    shown.add_column("classes", no_wrap=True)
    shown.add_column("method", no_wrap=True)
    for session in range(last + 1):
        header = f"session {session}" if spread else str(session)
        shown.add_column(header if session else "base", justify="right", no_wrap=True)
    methods = methods_of(results)
    for part, words in PARTS.items():
        for method in methods:
            cells = [
                "" if part == "f1_new" and session == 0 else _shown(results, method, session, part, spread)
                for session in range(last + 1)
            ]
            first, final = method == methods[0], method == methods[-1]
            shown.add_row(words if first else "", method, *cells, end_section=final)
    return shown


def _shown(results: Sequence[SessionResult], method: str, session: int, part: str, spread: bool) -> str:
    if not select(results, method=method, session=session):
        return ""  # not there yet
    found = cell(results, method, session, part)
    return str(found) if spread else f"{found.mean:.1f}"
