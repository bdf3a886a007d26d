"""Report how far a long computation is, to whoever listens; without a listener it costs nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tick:
    """How many of its steps a task has done.

    Examples
    --------
    >>> ticks = []
    >>> with listening(ticks.append):
    ...     tick("base training", 10, 200)
    >>> ticks
    [Tick(task='base training', done=10, total=200, loss=nan, note='', sentence=False)]
    """

    task: str
    done: int
    total: int
    loss: float = float("nan")  # the last one; nan where there is none
    note: str = ""  # anything else to show beside the steps
    sentence: bool = False  # the task is something to say, and nothing is under way


Listener = Callable[[Tick], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the ticks of everything inside the block to ``listener``."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tick(task: str, done: int, total: int, loss: float = float("nan"), *, note: str = "") -> None:
    """Report progress, if anybody listens; the arguments are those of :class:`Tick`."""
    if listener := _listener.get():
        listener(Tick(task, done, total, loss, note))


def tell(sentence: str) -> None:
    """Say something about what is computed, if anybody listens."""
    if listener := _listener.get():
        listener(Tick(sentence, 1, 1, sentence=True))


def is_heard() -> bool:
    """Return whether anybody listens: what is only to be told need not be computed otherwise."""
    return _listener.get() is not None
