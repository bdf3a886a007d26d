"""Printing to the terminal, with untrusted names as plain text; progress bars and log messages."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from anchorinv.errors import shown
from anchorinv.progress import Tick, listening

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Terminal(Console):
    """A console that prints strings as plain text on one line, in sentences and in tables.

    Markup, emoji codes and control characters have no effect; only ``style`` adds colour. Options are those
    of :class:`rich.console.Console`.

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
        """Print a line without wrapping it."""
        self.print(str(line), style=style, soft_wrap=True)


def say(*lines: object) -> None:
    """Print lines to standard output."""
    for line in lines:
        Terminal().say(line)


def complain(*lines: object) -> None:
    """Print lines to standard error."""
    for line in lines:
        Terminal(stderr=True).say(line)


#: Without a terminal: seconds until a task is first reported, and between reports.
FIRST, BETWEEN = 2.0, 10.0
#: Seconds between updates of bars in a notebook.
REDRAWN = 0.3


def duration(seconds: float) -> str:
    """Return a rough duration in words.

    Examples
    --------
    >>> [duration(seconds) for seconds in (0.4, 42, 400, 9000)]
    ['1 s', '42 s', '7 min', '2.5 h']
    """
    if seconds < 99.5:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


@contextmanager
def progress_bars(
    console: Terminal | None = None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Show the progress of tasks inside the block, by default on standard error.

    Terminals and notebooks show bars, other outputs a line now and then.
    """
    console = console or Terminal(stderr=True)
    if console.is_jupyter and (shown_in := _notebook_display()):
        bars = _NotebookBars(shown_in, clock)
        try:
            with listening(bars):
                yield
        finally:
            bars.close()
    elif console.is_terminal:
        with _terminal_bars(console) as progress, listening(_Bars(console, progress)):
            yield
    else:
        with listening(_Lines(console, clock)):
            yield


def _terminal_bars(console: Terminal) -> "Progress":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}", markup=False),
    )
    # Steps of large networks take seconds: rich's 30 s would be too few of them to estimate the speed.
    return Progress(*columns, console=console, transient=True, speed_estimate_period=300.0)


class _Bars:
    """A listener that shows a bar for each running task."""

    def __init__(self, console: Terminal, progress: "Progress") -> None:
        self._console, self._progress = console, progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, tick: Tick) -> None:
        if tick.sentence:
            self._console.say(tick.task)
            return
        # Bars are made of rich's Text, which the console does not escape.
        loss = shown(_beside(tick))
        if tick.task not in self._tasks:
            self._tasks[tick.task] = self._progress.add_task(shown(tick.task), total=tick.total, loss=loss)
        self._progress.update(self._tasks[tick.task], completed=tick.done, total=tick.total, loss=loss)
        if tick.done >= tick.total:
            self._progress.remove_task(self._tasks.pop(tick.task))


def _beside(tick: Tick) -> str:
    """Return the loss and note of a tick as text."""
    return tick.note if tick.loss != tick.loss else f"loss {tick.loss:#.3g}"


@dataclass
class _UnderWay:
    """A running task: its first and last tick, and when the first one came."""

    began: float
    first: int
    last: Tick

    def words(self, now: float) -> str:
        """Return its progress and, once there is a speed to estimate it by, the time left."""
        tick, done = self.last, self.last.done - self.first
        left = (now - self.began) / done * (tick.total - tick.done) if done else 0.0
        pace = f"about {duration(left)} left at this pace" if left else ""
        return ", ".join(filter(None, [f"{tick.task}: {tick.done} of {tick.total}", _beside(tick), pace]))


class _Lines:
    """A listener that prints now and then the progress of the first and the latest task."""

    def __init__(self, console: Terminal, clock: Callable[[], float]) -> None:
        self._console, self._clock = console, clock
        self._tasks: dict[str, _UnderWay] = {}
        self._logged: set[str] = set()
        self._next = clock() + FIRST

    def __call__(self, tick: Tick) -> None:
        if tick.sentence:
            self._console.say(tick.task)
            return
        now = self._clock()
        task = self._tasks.setdefault(tick.task, _UnderWay(now, tick.done, tick))
        task.last = tick
        if tick.done >= tick.total:
            del self._tasks[tick.task]
            # Each kind of task is logged once, and later only if it took long.
            if tick.task not in self._logged or now - task.began > BETWEEN:
                self._console.say(", ".join(filter(None, [f"{tick.task}: done", _beside(tick)])))
                self._logged.add(tick.task)
        elif now >= self._next:
            # The first task contains all others.
            several = dict.fromkeys([next(iter(self._tasks)), tick.task])
            self._console.say("; ".join(self._tasks[name].words(now) for name in several))
            self._next = now + BETWEEN


def _notebook_display() -> Callable[..., Any] | None:
    """Return a handle to an updatable notebook output; None without IPython."""
    try:
        shows: Callable[..., Any] = import_module("IPython.display").display
    except ImportError:
        return None
    return shows


class _NotebookBars:
    """A listener that shows bars below a notebook cell, as HTML in one output: no widgets are needed."""

    def __init__(self, display: Callable[..., Any], clock: Callable[[], float]) -> None:
        self._clock, self._tasks, self._said = clock, dict[str, _UnderWay](), list[str]()
        self._handle = display({"text/plain": "", "text/html": ""}, raw=True, display_id=True)
        self._drawn = -REDRAWN

    def __call__(self, tick: Tick) -> None:
        now = self._clock()
        if tick.sentence:
            self._said.append(shown(tick.task))
        elif tick.done >= tick.total:
            self._tasks.pop(tick.task, None)
        else:
            self._tasks.setdefault(tick.task, _UnderWay(now, tick.done, tick)).last = tick
        if tick.sentence or now - self._drawn >= REDRAWN:
            self._draw(now)

    def close(self) -> None:
        """Remove the bars and keep the messages."""
        self._tasks.clear()
        self._draw(self._clock())

    def _draw(self, now: float) -> None:
        self._drawn = now
        words = {shown(task.words(now)): task.last for task in self._tasks.values()}
        bars = [
            f'<progress value="{tick.done}" max="{tick.total}"></progress> {escape(text)}'
            for text, tick in words.items()
        ]
        html = "".join(f"<div>{line}</div>" for line in [*map(escape, self._said), *bars])
        self._handle.update({"text/plain": "\n".join([*self._said, *words]), "text/html": html}, raw=True)


class _ConsoleHandler(logging.Handler):
    """Print each record as one line, above the progress bars.

    Rich's own handler wraps messages and does not escape them.
    """

    def __init__(self, console: Terminal, level: str) -> None:
        super().__init__(level.upper())
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        self._console.say(f"{record.levelname.lower()}: {record.getMessage()}")


class _LineFormatter(logging.Formatter):
    """Format a message as one line, with names escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Return the line, before any traceback."""
        return shown(super().formatMessage(record))


@contextmanager
def logging_to(path: Path, level: str, console: Terminal) -> Iterator[None]:
    """Log what happens inside the block: to a file from ``info`` on, to a console from ``level`` on."""
    logger = logging.getLogger("anchorinv")
    before = logger.level
    # Opened by the first message, so that a command that fails early leaves no folder.
    to_file = logging.FileHandler(path, encoding="utf-8", delay=True)
    to_file.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    handlers = [to_file, _ConsoleHandler(console, level)]
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(min(logging.INFO, logging.getLevelName(level.upper())))
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
