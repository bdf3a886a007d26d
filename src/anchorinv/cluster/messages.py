"""What a task says to the driver while it runs, as items of its own stream of results.

There is no third process between the two that could be away when a node dies.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec

import numpy as np
import torch
from torch import Tensor

from anchorinv.cluster.library import ray
from anchorinv.core.progress import Tick
from anchorinv.study.work import Outcome, described

#: Tensors by name, as they travel.
Arrays = dict[str, np.ndarray]

P = ParamSpec("P")
_BETWEEN = 1.0  # seconds between two ticks of the same kind


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """Where a training is, so that another worker could go on from there."""

    values: Arrays


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """The last item of a task: what it returns."""

    result: Any


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """The last item of a task whose own code raised an exception; trying again would not help.

    Parameters
    ----------
    error : str
        Kind and message, in a line.
    details : str
        Where it happened, in lines.
    """

    error: str
    details: str


Item = Tick | Position | Outcome | Finished | Failed
Send = Callable[[Item], None]


def streaming(task: Callable[Concatenate[Send, P], Any]) -> Callable[P, Iterator[Item]]:
    """Have a task's first argument send items to the driver while it runs; its result is the last one.

    Errors of Ray itself (an object that was lost, say) are raised as they are: they are nobody's fault.
    """

    @wraps(task)
    def items(*args: P.args, **kwargs: P.kwargs) -> Iterator[Item]:
        queue: SimpleQueue[Item | None] = SimpleQueue()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(task, queue.put, *args, **kwargs)
            future.add_done_callback(lambda _: queue.put(None))
            while (item := queue.get()) is not None:
                yield item
            error = future.exception()
            if error is None:
                yield Finished(future.result())
            elif isinstance(error, Exception) and not isinstance(error, ray().exceptions.RayError):
                yield Failed(described(error), "".join(traceback.format_exception(error)))
            else:
                raise error

    del items.__wrapped__  # or Ray would ask for the argument that it must not send
    return items


def now_and_then(send: Send) -> Callable[[Tick], None]:
    """Return a listener that passes few enough ticks on not to be a burden."""
    last: dict[str, float] = {}

    def listen(tick: Tick) -> None:
        now = time.monotonic()
        if tick.done >= tick.total or now - last.get(tick.task, -_BETWEEN) >= _BETWEEN:
            last[tick.task] = now
            send(tick)

    return listen


class Positions:
    """A checkpoint that is sent to the driver, which keeps it."""

    def __init__(self, send: Send, begun: Arrays | None, *, seconds: float) -> None:
        self._send, self._begun, self._seconds = send, begun, seconds
        self._last = time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """Return where the training was left, or None."""
        return to_tensors(self._begun) if self._begun else None

    def save(self, values: Callable[[], dict[str, Tensor]]) -> None:
        """Send the values if the last time is long ago."""
        if time.monotonic() - self._last >= self._seconds:
            self._send(Position(to_arrays(values())))
            self._last = time.monotonic()


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Return tensors as they travel."""
    return {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}


def to_tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Return tensors in memory of their own, which lies as that of tensors made here."""
    return {name: torch.tensor(array) for name, array in arrays.items()}
