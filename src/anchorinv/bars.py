"""Progress bars in the terminal, and plain lines where there is none."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from anchorinv.core.progress import Tick, listening
from anchorinv.quoting import shown
from anchorinv.terminal import Terminal


@contextmanager
def progress_bars(console: Terminal | None = None) -> Iterator[None]:
    """Show a bar for every task inside the block; bars go when their task is done."""
    console = console or Terminal(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}", markup=False),
    )
    # Steps of large networks take seconds each: half a minute would hold too few of them to tell their pace.
    pace = 300.0
    with Progress(*columns, console=console, transient=True, speed_estimate_period=pace) as progress:
        tasks: dict[str, tuple[TaskID, float]] = {}
        plain = not (console.is_terminal or console.is_jupyter)
        named: set[str] = set()

        def show(tick: Tick) -> None:
            # Bars are drawn from text, not from strings, so the terminal cannot quote them.
            loss = shown(tick.note) if tick.loss != tick.loss else f"loss {tick.loss:.3f}"
            if tick.task not in tasks:
                tasks[tick.task] = (
                    progress.add_task(shown(tick.task), total=tick.total, loss=loss),
                    time.monotonic(),
                )
            task, began = tasks[tick.task]
            progress.update(task, completed=tick.done, total=tick.total, loss=loss)
            if tick.done >= tick.total:
                progress.remove_task(task)
                del tasks[tick.task]
                # A log names each kind of task once, and after that only what took its time.
                if plain and (tick.task not in named or time.monotonic() - began > 10):
                    console.say(f"{tick.task}: done {loss}".rstrip())
                    named.add(tick.task)

        with listening(show):
            yield
