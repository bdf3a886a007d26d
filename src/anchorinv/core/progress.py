"""Tell whoever listens how far a long computation has come. Without a listener it costs nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tick:
    """How far a task is: ``done`` of ``total`` steps; ``loss`` is nan where unknown, ``note`` says more."""

    task: str
    done: int
    total: int
    loss: float = float("nan")
    note: str = ""


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
    """Report progress, if anybody listens."""
    if listener := _listener.get():
        listener(Tick(task, done, total, loss, note))
