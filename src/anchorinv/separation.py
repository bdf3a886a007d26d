"""How separate the windows of a class are from other classes, in a model's features and by its measure."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.heads import class_means
from anchorinv.core.networks import encode
from anchorinv.core.types import State

#: A new class looks like others if this share of its examples is nearer to one of them.
ALIKE = 1 / 3


@dataclass(frozen=True, slots=True)
class Separation:
    """How well the examples of a new class are separated from other classes, in the features before learning.

    Examples
    --------
    >>> Separation("new", 10, 3, "left", 4).alike
    True
    """

    name: Any
    shots: int
    own: int  # examples nearer to the mean of the others of their class than to any other class
    rival: Any  # the class that most of the remaining ones are nearest to; None if there is none
    nearer: int  # how many these are

    @property
    def alike(self) -> bool:
        """Whether the new class looks like another one."""
        return self.rival is not None and self.shots - self.own >= ALIKE * self.shots


@runtime_checkable
class _HasPrototypes(Protocol):
    """A head that can say where its classes lie among the features, and how similar features are."""

    @property
    def prototypes(self) -> Tensor: ...

    def similarity(self, some: Tensor, others: Tensor) -> Tensor: ...


@runtime_checkable
class _Embeds(Protocol):
    """A head whose prototypes lie in a space of its own."""

    def embedded(self, features: Tensor) -> Tensor: ...


def embedded(state: State, features: Tensor) -> Tensor:
    """Return features (n, dim) as the means of classes are and :func:`similarity` takes them."""
    return state.head.embedded(features) if isinstance(state.head, _Embeds) else features


def known_means(state: State) -> Tensor | None:
    """Return the means of the classes among the features (n_classes, dim), if they are known."""
    if isinstance(state.head, _HasPrototypes):
        return state.head.prototypes
    if state.replay and set(state.replay.classes) == set(state.classes):
        features = encode(state.tail, state.replay.values)
        return class_means(features, state.columns(state.replay.labels))
    return None


def similarity(state: State, some: Tensor, others: Tensor) -> Tensor:
    """Return how similar features (n, dim) and others (m, dim) are (n, m): by the head, or the cosine."""
    if isinstance(state.head, _HasPrototypes):
        return state.head.similarity(some, others)
    return F.normalize(some) @ F.normalize(others).T


def nearest_rivals(state: State, own: Tensor, rivals: Tensor) -> tuple[Tensor, Tensor]:
    """Compare the windows of a class with its own mean and with those of others.

    Parameters
    ----------
    own : Tensor, shape (n, dim)
        Two or more.
    rivals : Tensor, shape (n_rivals, dim)

    Returns
    -------
    apart : Tensor, shape (n,), bool
        Whether a window is nearer to the mean of the others of its class than to any rival.
    nearest : Tensor, shape (n,)
        The rival that is nearest to each.
    """
    rest = (own.sum(0) - own) / (len(own) - 1)  # mean of the other windows, for each window
    parts = (slice(i, i + 64) for i in range(0, len(own), 64))
    to_own = torch.cat([similarity(state, own[part], rest[part]).diagonal() for part in parts])
    best, nearest = similarity(state, own, rivals).max(1)
    return best < to_own, nearest
