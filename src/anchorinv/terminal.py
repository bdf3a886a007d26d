"""The terminal: the only place that prints, so that no name does more there than be read; progress bars."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib import import_module
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


#: Seconds until a task that is under way is told of where there is no terminal, and between such lines.
FIRST, BETWEEN = 2.0, 10.0
#: Seconds between two looks of the bars in a notebook.
REDRAWN = 0.3


def duration(seconds: float) -> str:
    """Return a time in words, as roughly as it is known.

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
    """Show how far every task inside the block is, on standard error if not on another console.

    A terminal and a notebook have bars; elsewhere there is a line now and then.
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
    # Steps of large networks take seconds each: half a minute would hold too few of them to tell their pace.
    return Progress(*columns, console=console, transient=True, speed_estimate_period=300.0)


class _Bars:
    """A listener with a bar for each task that is under way."""

    def __init__(self, console: Terminal, progress: "Progress") -> None:
        self._console, self._progress = console, progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, tick: Tick) -> None:
        if tick.sentence:
            self._console.say(tick.task)
            return
        # Bars are drawn from text, not from strings, so the terminal cannot quote them.
        loss = shown(_beside(tick))
        if tick.task not in self._tasks:
            self._tasks[tick.task] = self._progress.add_task(shown(tick.task), total=tick.total, loss=loss)
        self._progress.update(self._tasks[tick.task], completed=tick.done, total=tick.total, loss=loss)
        if tick.done >= tick.total:
            self._progress.remove_task(self._tasks.pop(tick.task))


def _beside(tick: Tick) -> str:
    """Return what is told beside the steps of a task."""
    return tick.note if tick.loss != tick.loss else f"loss {tick.loss:#.3g}"


@dataclass
class _UnderWay:
    """A task: when it was first heard of, how far it was then, and how far it is."""

    began: float
    first: int
    last: Tick

    def words(self, now: float) -> str:
        """Return how far it is and, once there is a pace to tell it by, how long it will take."""
        tick, done = self.last, self.last.done - self.first
        left = (now - self.began) / done * (tick.total - tick.done) if done else 0.0
        pace = f"about {duration(left)} left at this pace" if left else ""
        return ", ".join(filter(None, [f"{tick.task}: {tick.done} of {tick.total}", _beside(tick), pace]))


class _Lines:
    """A listener that says now and then how far the first and the latest task are, and what is done."""

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
            # A log names each kind of task once, and after that only what took its time.
            if tick.task not in self._logged or now - task.began > BETWEEN:
                self._console.say(", ".join(filter(None, [f"{tick.task}: done", _beside(tick)])))
                self._logged.add(tick.task)
        elif now >= self._next:
            # The first is what all others are part of.
            several = dict.fromkeys([next(iter(self._tasks)), tick.task])
            self._console.say("; ".join(self._tasks[name].words(now) for name in several))
            self._next = now + BETWEEN


def _notebook_display() -> Callable[..., Any] | None:
    """Return what shows something in a notebook and can change it afterwards; None without IPython."""
    try:
        shows: Callable[..., Any] = import_module("IPython.display").display
    except ImportError:
        return None
    return shows


class _NotebookBars:
    """A listener with bars below a notebook's cell: HTML in one output, so that no widgets are needed."""

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
        """Leave the sentences, and no bar."""
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
