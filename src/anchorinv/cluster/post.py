"""Between workers and the driver: how far they are, and where they left a long training."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.progress import Tick

#: Tensors by name, as they travel.
Arrays = dict[str, np.ndarray]

_BETWEEN = 1.0  # seconds between two ticks of the same task


def to_arrays(tensors: dict[str, Tensor]) -> Arrays:
    """Return tensors as they travel."""
    return {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}


def to_tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Return tensors in memory of their own, which lies as that of tensors made here."""
    return {name: torch.tensor(array) for name, array in arrays.items()}


class Post:
    """An actor that holds the last word of each worker until the driver fetches it."""

    def __init__(self) -> None:
        self._ticks: dict[tuple[str, str], Tick] = {}
        self._left: dict[str, Arrays] = {}
        self._news: set[str] = set()

    def tell(self, unit: str, tick: Tick) -> None:
        """Note how far a unit of work is."""
        self._ticks[unit, tick.task] = tick

    def leave(self, name: str, values: Arrays) -> None:
        """Note where a training is."""
        self._left[name] = values
        self._news.add(name)

    def left(self, name: str) -> Arrays | None:
        """Return where a training was left, if it was."""
        return self._left.get(name)

    def forget(self, name: str) -> None:
        """Forget a training that is finished."""
        self._left.pop(name, None)
        self._news.discard(name)

    def fetch(self) -> tuple[dict[tuple[str, str], Tick], dict[str, Arrays]]:
        """Return what is new since the last time."""
        ticks, left = self._ticks, {name: self._left[name] for name in self._news}
        self._ticks, self._news = {}, set()
        return ticks, left


class Relay:
    """Sends a worker's ticks to the post, few enough not to be a burden."""

    def __init__(self, post: Any, unit: str) -> None:
        self._post, self._unit = post, unit
        self._last: dict[str, float] = {}

    def __call__(self, tick: Tick) -> None:
        """Send a tick if the last one is a while ago, or if it says that the task is done."""
        now = time.monotonic()
        if tick.done >= tick.total or now - self._last.get(tick.task, -_BETWEEN) >= _BETWEEN:
            self._last[tick.task] = now
            self._post.tell.remote(self._unit, tick)


class PostCheckpoint:
    """A training's last position, at the post: a worker that takes over from a lost one goes on from there.

    Parameters
    ----------
    name : of the model in the making.
    left : where it was left in an earlier run, if it was.
    seconds : between two positions.
    get : waits for an actor's answer.
    """

    def __init__(
        self, post: Any, name: str, left: Arrays | None, *, seconds: float, get: Callable[[Any], Any]
    ) -> None:
        self._post, self._name, self._given, self._seconds, self._get = post, name, left, seconds, get
        self._last = time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """Return what was left, or None."""
        found = self._get(self._post.left.remote(self._name)) or self._given
        return to_tensors(found) if found else None

    def save(self, values: Callable[[], dict[str, Tensor]]) -> None:
        """Send the values if the last time is long ago."""
        if time.monotonic() - self._last >= self._seconds:
            self._post.leave.remote(self._name, to_arrays(values()))
            self._last = time.monotonic()
