"""Heads trained with a network: cosine prototypes, a growing classifier, fixed vertices."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.head import (
    Count,
    Expected,
    Head,
    HeadFacts,
    Scale,
    ScaleFacts,
    register_head,
    without_row,
)
from anchorinv.core.kernels import Dropout

if TYPE_CHECKING:
    from anchorinv.core.types import Batch


class PrototypeHead(Head):
    """A head with a prototype per class, which can be moved, and to which new ones can be added.

    New prototypes are always placed, and trained, by cosine; heads with another measure are fitted
    afterwards. Old prototypes are fixed buffers; only ``free`` ones are parameters. The arguments are those
    of :class:`Cosine`; columns beyond ``width`` are not compared.
    """

    def __init__(
        self, free: Tensor, fixed: Tensor | None = None, *, scale: float = 16.0, width: int | None = None
    ) -> None:
        super().__init__()
        self.free = nn.Parameter(free)
        self.fixed: Tensor
        self.register_buffer("fixed", free.new_zeros(0, free.shape[1]) if fixed is None else fixed)
        self.scale, self.width = scale, width

    @property
    def prototypes(self) -> Tensor:
        """All prototypes (n_classes, dim), in the order of the classes."""
        return torch.cat([self.fixed, self.free])

    @abstractmethod
    def with_prototypes(self, prototypes: Tensor) -> "PrototypeHead":
        """Return the head with these prototypes (n_classes, dim), all fixed."""

    def add_classes(self, rows: Tensor) -> "Cosine":
        """Return a cosine head: all prototypes fixed, and ``rows`` (n_new, dim) as free ones after them."""
        return Cosine(rows.detach().clone(), self.prototypes.detach(), scale=self.scale, width=self.width)

    def similarity(self, some: Tensor, others: Tensor) -> Tensor:
        """Return the cosine of features (n, dim) and others (m, dim), by the columns compared (n, m)."""
        return F.normalize(some[:, : self.width]) @ F.normalize(others[:, : self.width]).T

    def fits(self, expected: Expected) -> bool:
        """Return whether there is a prototype of every class."""
        shapes, dim = (self.free.shape, self.fixed.shape), expected.dim
        rows = all(len(shape) == 2 and shape[1] == dim for shape in shapes)
        return rows and len(self.prototypes) == expected.n_classes and (self.width or dim) <= dim


@register_head
class Cosine(PrototypeHead):
    """Similarity to a prototype per class: the g_φ of the paper, softmax of ``scale`` · cosine.

    Parameters
    ----------
    free : Tensor, shape (n_free, dim)
        Prototypes that may still move.
    fixed : Tensor, shape (n_fixed, dim), or None, default=None
        Prototypes before them that may not.
    scale : float, default=16.0
        Factor of the cosine before the softmax.
    width : int or None, default=None
        Number of columns compared, from the first; None for all.

    Examples
    --------
    >>> head = Cosine(torch.tensor([[0.0, 5.0]]), torch.tensor([[2.0, 0.0]]), scale=10.0)
    >>> head(torch.tensor([[3.0, 0.0]])).tolist()
    [[10.0, 0.0]]
    """

    kind = "cosine"
    parts = ("free", "fixed")

    class Facts(ScaleFacts):
        """Scale, and the columns compared where these are not all."""

        width: Count | None = None

    @classmethod
    def start(cls, n_classes: int, dim: int) -> Self:
        """Return prototypes initialised like a linear layer, for base training."""
        return cls(uniform_rows(n_classes, dim))

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · cosine (n, n_classes)."""
        compared, prototypes = features[:, : self.width], self.prototypes[:, : self.width]
        return self.scale * F.normalize(compared) @ F.normalize(prototypes).T

    def finalise(self, features: Tensor, targets: Tensor) -> "Cosine":
        """Return the class means as prototypes, all fixed."""
        return self.with_prototypes(class_means(features, targets))

    def with_prototypes(self, prototypes: Tensor, *, width: int | None = None) -> "Cosine":
        """Return these prototypes (n_classes, dim), all fixed; ``width`` if it is to be another one."""
        width = self.width if width is None else width
        return Cosine(prototypes[:0].clone(), prototypes.detach().clone(), scale=self.scale, width=width)

    def without(self, column: int, anchors: "Batch | None" = None) -> "Cosine":
        """Return the other prototypes, all fixed."""
        return self.with_prototypes(without_row(self.prototypes, column))

    @classmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return those of a prototype per class."""
        return n_classes * dim


@register_head
class Mlp(Head):
    """EEG-Conformer's classifier: dim -> 256 -> 32 -> classes. It grows by a row per new class.

    Parameters
    ----------
    hidden : Sequential
        All layers but the last.
    last : Linear
        32 -> classes.

    Examples
    --------
    >>> head = Mlp.start(3, 10)
    >>> head(torch.zeros(2, 10)).shape, head.without(0)(torch.zeros(2, 10)).shape
    (torch.Size([2, 3]), torch.Size([2, 2]))
    """

    kind = "mlp"

    def __init__(self, hidden: nn.Sequential, last: nn.Linear) -> None:
        super().__init__()
        self.hidden, self.last = hidden, last

    @classmethod
    def start(cls, n_classes: int, dim: int) -> Self:
        """Return an initialised head, for base training."""
        first = [nn.Linear(dim, 256), nn.ELU(), Dropout(0.5)]
        second = [nn.Linear(256, 32), nn.ELU(), Dropout(0.3)]
        return cls(nn.Sequential(*first, *second), nn.Linear(32, n_classes))

    @classmethod
    def blank(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Return layers of the packed sizes."""
        return cls.start(len(tensors["last.bias"]), tensors["hidden.0.weight"].shape[1])

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, n_classes)."""
        logits: Tensor = self.last(self.hidden(features))
        return logits

    def add_classes(self, rows: Tensor, biases: Tensor) -> "Mlp":
        """Return a head with more output rows (n_new, 32) and biases (n_new,)."""
        return self._with_outputs(
            torch.cat([self.last.weight.detach(), rows]), torch.cat([self.last.bias.detach(), biases])
        )

    def without(self, column: int, anchors: "Batch | None" = None) -> "Mlp":
        """Return the head without a class's output; the other layers are unchanged."""
        last = self.last
        return self._with_outputs(*(without_row(each.detach(), column) for each in (last.weight, last.bias)))

    def _with_outputs(self, rows: Tensor, biases: Tensor) -> "Mlp":
        # On the meta device, so that its initialisation does not draw from the global generator.
        last = nn.Linear(self.last.in_features, len(rows), device="meta")
        last.weight, last.bias = nn.Parameter(rows), nn.Parameter(biases)
        return Mlp(self.hidden, last)

    def fits(self, expected: Expected) -> bool:
        """Return whether it fits the features and has an output for every class."""
        first = self.hidden.get_parameter("0.weight")
        return first.shape[1:] == (expected.dim,) and self.last.bias.shape == (expected.n_classes,)

    @classmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return those of three layers."""
        return 256 * (dim + 1) + 32 * 257 + 33 * n_classes


@register_head
class DotRegression(Head):
    """Fixed vertices of a simplex, one for every present and future class (NC-FSCIL).

    Parameters
    ----------
    vertices : Tensor, shape (n_all, dim)
        Of a simplex; the first ``n_classes`` are in use.
    n_classes : int
        Classes known so far.
    weight : float, default=10.0
        Of the loss.

    Examples
    --------
    >>> head = DotRegression(simplex_etf(4, 8), 2)
    >>> head(head.vertices[:1]).shape, head.add_classes(1)(head.vertices[:1]).shape
    (torch.Size([1, 2]), torch.Size([1, 3]))
    """

    kind = "dot-regression"
    parts = ("vertices",)

    class Facts(HeadFacts):
        """Classes known, and the weight of the loss."""

        n_classes: Count
        weight: Scale

    def __init__(self, vertices: Tensor, n_classes: int, *, weight: float = 10.0) -> None:
        super().__init__()
        self.vertices: Tensor
        self.register_buffer("vertices", vertices)
        if n_classes > len(vertices):
            raise ValueError(
                f"{n_classes} classes, but the base session reserved vertices for {len(vertices)}; "
                f"train with a larger n_all"
            )
        self.n_classes, self.weight = n_classes, weight

    @classmethod
    def start(cls, n_classes: int, dim: int, *, n_all: int) -> Self:
        """Return randomly rotated vertices for ``n_all`` classes."""
        return cls(simplex_etf(n_all, dim), n_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Return the cosine to each vertex in use (n, n_classes)."""
        return F.normalize(features) @ self.vertices[: self.n_classes].T

    def loss(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return ``weight`` · mean ½ (⟨vertex, feature⟩ - 1)²."""
        cosines = self(features).gather(1, targets[:, None]).squeeze(1)
        each: Tensor = 0.5 * (cosines - 1).square()
        share = torch.ones_like(each) if weights is None else weights[targets]
        mean: Tensor = (share * each).sum() / share.sum()
        return self.weight * mean

    def add_classes(self, n_new: int) -> "DotRegression":
        """Return the head with more of its vertices in use."""
        return DotRegression(self.vertices, self.n_classes + n_new, weight=self.weight)

    def without(self, column: int, anchors: "Batch | None" = None) -> "DotRegression":
        """Return the head without a class's vertex; unused ones are kept for future classes."""
        return DotRegression(without_row(self.vertices, column), self.n_classes - 1, weight=self.weight)

    def fits(self, expected: Expected) -> bool:
        """Return whether every class has a vertex; a simplex has no more of them than dimensions."""
        n_all, dim = self.vertices.shape
        return self.n_classes == expected.n_classes <= n_all <= dim == expected.dim

    @classmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return those of as many vertices as there are dimensions."""
        return dim * dim


def prototype_head(head: Head) -> PrototypeHead:
    """Return a head if it has prototypes."""
    if not isinstance(head, PrototypeHead):
        raise TypeError(
            f"prototypes belong to a Cosine head or one fitted to it, not to a {type(head).__name__}"
        )
    return head


def simplex_etf(n: int, dim: int, *, rng: torch.Generator | None = None) -> Tensor:
    """Return the vertices of a simplex: of length 1, with cosines -1 / (n - 1) between them.

    Parameters
    ----------
    n, dim : int
        Vertices, and dimensions, at least as many.
    rng : Generator or None, default=None
        For the random rotation; None uses the global one.

    Returns
    -------
    Tensor, shape (n, dim)
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
    """Draw rows as a linear layer is initialised, U(±1/√dim); without ``rng`` from the global generator."""
    bound = 1 / math.sqrt(dim)
    return torch.empty(n_rows, dim).uniform_(-bound, bound, generator=rng)
