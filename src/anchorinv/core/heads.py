"""Classifiers on top of the features. A head is a value: learning returns another one."""

import math
from abc import ABC, abstractmethod
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.dropout import Dropout


class Head(nn.Module, ABC):
    """Map features (n, dim) to logits (n, n_classes). Its parameters are what may be trained."""

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, n_classes)."""

    @abstractmethod
    def loss(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss of features (n, dim); ``weights`` (n_classes,) weigh the classes."""

    @abstractmethod
    def settled(self, features: Tensor, targets: Tensor) -> "Head":
        """Return the head that the base session leaves, given its features and their columns."""


class StatisticalHead(Head):
    """A head that follows from statistics of its classes: it takes in examples without a gradient."""

    @property
    @abstractmethod
    def prototypes(self) -> Tensor:
        """What stands for each class among the features (n_classes, dim)."""

    @abstractmethod
    def learned(self, features: Tensor, targets: Tensor) -> "StatisticalHead":
        """Return the head after more examples (n, dim), of known columns (n,) or of new ones behind them."""

    @abstractmethod
    def without(self, column: int) -> "StatisticalHead":
        """Return the head without a class."""

    def embedded(self, features: Tensor) -> Tensor:
        """Return features (n, dim) as prototypes are and :meth:`likeness` takes them."""
        return features

    @abstractmethod
    def likeness(self, some: Tensor, others: Tensor) -> Tensor:
        """Return how alike features (n, dim) and others (m, dim) are by this head's measure (n, m)."""

    def loss(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(self(features), targets, weights)

    def settled(self, features: Tensor, targets: Tensor) -> Self:
        """Return the head as it is: it never was trained."""
        return self


class Cosine(Head):
    """Similarity to a prototype per class: the g_φ of the paper, softmax of ``scale`` · cosine.

    Old prototypes are fixed, so they are no parameters; only ``free`` ones can be trained.

    Parameters
    ----------
    free : (n_free, dim) prototypes that may still move.
    fixed : (n_fixed, dim) prototypes before them that may not.
    scale : what the cosine is multiplied by before the softmax.
    width : so many of the columns are compared, from the first; None for all. Others are carried along.
    """

    def __init__(
        self, free: Tensor, fixed: Tensor | None = None, *, scale: float = 16.0, width: int | None = None
    ) -> None:
        super().__init__()
        self.free = nn.Parameter(free)
        self.fixed: Tensor
        self.register_buffer("fixed", free.new_zeros(0, free.shape[1]) if fixed is None else fixed)
        self.scale, self.width = scale, width

    @classmethod
    def start(cls, n_classes: int, dim: int) -> Self:
        """Return prototypes as a linear layer starts, for base training."""
        return cls(uniform_rows(n_classes, dim))

    @property
    def prototypes(self) -> Tensor:
        """All prototypes (n_classes, dim), in the order of the classes."""
        return torch.cat([self.fixed, self.free])

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · cosine (n, n_classes)."""
        compared, prototypes = features[:, : self.width], self.prototypes[:, : self.width]
        return self.scale * F.normalize(compared) @ F.normalize(prototypes).T

    def loss(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(self(features), targets, weights)

    def settled(self, features: Tensor, targets: Tensor) -> "Cosine":
        """Return the class means as prototypes, all fixed."""
        return self.with_prototypes(class_means(features, targets))

    def likeness(self, some: Tensor, others: Tensor) -> Tensor:
        """Return how alike features (n, dim) and others (m, dim) are by this head's measure (n, m)."""
        return F.normalize(some[:, : self.width]) @ F.normalize(others[:, : self.width]).T

    def with_prototypes(self, prototypes: Tensor, *, width: int | None = None) -> "Cosine":
        """Return these prototypes (n_classes, dim), all fixed; ``width`` if it is to be another one."""
        width = self.width if width is None else width
        return Cosine(prototypes[:0].clone(), prototypes.detach().clone(), scale=self.scale, width=width)

    def extended(self, rows: Tensor) -> "Cosine":
        """Return all prototypes as fixed and ``rows`` (n_new, dim) as free ones after them."""
        return Cosine(rows.detach().clone(), self.prototypes.detach(), scale=self.scale, width=self.width)


class Mlp(Head):
    """EEG-Conformer's classifier: dim -> 256 -> 32 -> classes. It grows by a row per new class."""

    def __init__(self, hidden: nn.Sequential, last: nn.Linear) -> None:
        super().__init__()
        self.hidden, self.last = hidden, last

    @classmethod
    def start(cls, n_classes: int, dim: int) -> Self:
        """Return the head as layers start, for base training."""
        first = [nn.Linear(dim, 256), nn.ELU(), Dropout(0.5)]
        second = [nn.Linear(256, 32), nn.ELU(), Dropout(0.3)]
        return cls(nn.Sequential(*first, *second), nn.Linear(32, n_classes))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, n_classes)."""
        logits: Tensor = self.last(self.hidden(features))
        return logits

    def loss(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(self(features), targets, weights)

    def settled(self, features: Tensor, targets: Tensor) -> "Mlp":
        """Return the head as it was trained."""
        return self

    def extended(self, rows: Tensor, biases: Tensor) -> "Mlp":
        """Return a head with more output rows (n_new, 32) and biases (n_new,)."""
        n_classes, width = len(self.last.bias) + len(rows), self.last.in_features
        # Made on no device, so that the rows it would draw for itself do not touch the global generator.
        last = nn.Linear(width, n_classes, device="meta")
        last.weight = nn.Parameter(torch.cat([self.last.weight.detach(), rows]))
        last.bias = nn.Parameter(torch.cat([self.last.bias.detach(), biases]))
        return Mlp(self.hidden, last)


class DotRegression(Head):
    """Fixed vertices, as far from each other as can be, one for every class ever to come (NC-FSCIL).

    Parameters
    ----------
    vertices : (n_all, dim) of a simplex; the first ``n_classes`` are in use.
    n_classes : classes known so far.
    weight : of the loss.
    """

    def __init__(self, vertices: Tensor, n_classes: int, *, weight: float = 10.0) -> None:
        super().__init__()
        self.vertices: Tensor
        self.register_buffer("vertices", vertices)
        if n_classes > len(vertices):
            raise ValueError(
                f"{n_classes} classes, but vertices for {len(vertices)} were set aside in the base session; "
                f"train with a larger n_all"
            )
        self.n_classes, self.weight = n_classes, weight

    @classmethod
    def start(cls, n_classes: int, dim: int, *, n_all: int) -> Self:
        """Return vertices for ``n_all`` classes, turned at random."""
        return cls(simplex_etf(n_all, dim), n_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Return the cosine to each vertex in use (n, n_classes)."""
        return F.normalize(features) @ self.vertices[: self.n_classes].T

    def loss(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return ``weight`` · mean ½ (⟨vertex, feature⟩ - 1)²."""
        reached = self(features).gather(1, targets[:, None]).squeeze(1)
        each: Tensor = 0.5 * (reached - 1).square()
        share = torch.ones_like(each) if weights is None else weights[targets]
        mean: Tensor = (share * each).sum() / share.sum()
        return self.weight * mean

    def settled(self, features: Tensor, targets: Tensor) -> "DotRegression":
        """Return the head as it is: its vertices never move."""
        return self

    def extended(self, n_new: int) -> "DotRegression":
        """Return the head with more of its vertices in use."""
        return DotRegression(self.vertices, self.n_classes + n_new, weight=self.weight)


def simplex_etf(n: int, dim: int, *, rng: torch.Generator | None = None) -> Tensor:
    """Return the vertices (n, dim) of a simplex: of length 1, with cosines -1 / (n - 1) between them.

    Turned at random, by the global generator without ``rng``. ``dim`` is at least ``n``.
    """
    if n > dim:
        raise ValueError(f"{n} classes need vertices in at least {n} dimensions, got {dim}")
    turned, _ = torch.linalg.qr(torch.randn(dim, n, generator=rng))  # (dim, n), orthonormal columns
    centred: Tensor = torch.eye(n) - 1 / n
    vertices: Tensor = math.sqrt(n / (n - 1)) * (centred @ turned.T)
    return vertices


def class_means(features: Tensor, targets: Tensor) -> Tensor:
    """Return the mean feature of each class 0, 1, ..., max (n_classes, dim): Eq. 4 of the paper.

    Examples
    --------
    >>> class_means(torch.tensor([[0.0, 2.0], [4.0, 4.0], [2.0, 0.0]]), torch.tensor([0, 1, 0]))
    tensor([[1., 1.],
            [4., 4.]])
    """
    members = F.one_hot(targets).to(features.dtype)  # (n, n_classes)
    return members.T @ features / members.sum(0)[:, None]


def uniform_rows(n_rows: int, dim: int, *, rng: torch.Generator | None = None) -> Tensor:
    """Draw rows as a linear layer starts them, U(±1/√dim); from the global generator without ``rng``."""
    bound = 1 / math.sqrt(dim)
    return torch.empty(n_rows, dim).uniform_(-bound, bound, generator=rng)
