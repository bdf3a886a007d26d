"""The terminal: the only place that prints, so that no name does more there than be read; progress bars."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from anchorinv.errors import shown
from anchorinv.progress import Tick, listening

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Terminal(Console):
    """A console for which a string is one line of plain text, in sentences and in cells of tables alike.

    Nothing in it is markup, a code for an emoji or a control character; only ``style`` adds colour. Options
    are those of :class:`rich.console.Console`.

    Examples
    --------
    >>> Terminal(width=40).say("[bold]left[/bold]")
    [bold]left[/bold]
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as rich prints it."""
        return super().render_str(shown(text), **options | {"markup": False, "emoji": False})

    def say(self, line: object = "", *, style: str | None = None) -> None:
        """Print a line as long as it is: breaking it is left to the terminal."""
        self.print(str(line), style=style, soft_wrap=True)


def say(*lines: object) -> None:
    """Print lines to standard output."""
    for line in lines:
        Terminal().say(line)


def complain(*lines: object) -> None:
    """Print lines to standard error."""
    for line in lines:
        Terminal(stderr=True).say(line)


@contextmanager
def progress_bars(console: Terminal | None = None) -> Iterator[None]:
    """Show a bar for every task inside the block, on standard error if not on another console.

    Where there is no terminal, there is a line for tasks that are done.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
    progress = Progress(*columns, console=console, transient=True, speed_estimate_period=pace)
    with progress, listening(_Bars(console, progress)):
        yield


class _Bars:
    """A listener with a bar for each task that is under way."""

    def __init__(self, console: Terminal, progress: "Progress") -> None:
        self._console, self._progress = console, progress
        self._plain = not (console.is_terminal or console.is_jupyter)
        self._tasks: dict[str, tuple[TaskID, float]] = {}
        self._logged: set[str] = set()

    def __call__(self, tick: Tick) -> None:
        # Bars are drawn from text, not from strings, so the terminal cannot quote them.
        loss = shown(tick.note) if tick.loss != tick.loss else f"loss {tick.loss:.3f}"
        if tick.task not in self._tasks:
            bar = self._progress.add_task(shown(tick.task), total=tick.total, loss=loss)
            self._tasks[tick.task] = (bar, time.monotonic())
        bar, began = self._tasks[tick.task]
        self._progress.update(bar, completed=tick.done, total=tick.total, loss=loss)
        if tick.done < tick.total:
            return
        self._progress.remove_task(bar)
        del self._tasks[tick.task]
        # A log names each kind of task once, and after that only what took its time.
        if self._plain and (tick.task not in self._logged or time.monotonic() - began > 10):
            self._console.say(f"{tick.task}: done {loss}".rstrip())
            self._logged.add(tick.task)
