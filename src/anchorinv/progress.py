"""Progress of long computations, reported to a listener; without one it costs nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tick:
    """Progress of a task: its steps so far."""

    task: str
    done: int
    total: int
    loss: float = float("nan")  # the last one; nan where there is none
    note: str = ""  # anything else to show
    sentence: bool = False  # a message, not a task


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
    """Report progress to the listener, if any; the arguments are those of :class:`Tick`."""
    if listener := _listener.get():
        listener(Tick(task, done, total, loss, note))


def tell(sentence: str) -> None:
    """Send a message to the listener, if any."""
    if listener := _listener.get():
        listener(Tick(sentence, 1, 1, sentence=True))


def has_listener() -> bool:
    """Return whether there is a listener, so that messages need not be computed otherwise."""
    return _listener.get() is not None
