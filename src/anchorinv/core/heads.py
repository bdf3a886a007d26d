"""Classifiers on top of the features. A head is a value: learning returns another one.

A head owns its facts: how it is written to and read from model files (``kind``, ``parts``, ``Facts``),
whether it is valid (``fits``), how a class is removed (``without``) and its maximum size (``n_values``).
``HEADS`` has all heads by kind; heads of other packages are registered there.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from anchorinv.core.conformer import Dropout
from anchorinv.core.registry import Registry

if TYPE_CHECKING:
    from anchorinv.core.types import Batch


#: Factor of the logits.
Scale = Annotated[float, Field(gt=0, le=1e6)]
Count = Annotated[int, Field(ge=0, le=2**53)]


class HeadFacts(BaseModel):
    """The settings of a head in a model file, with types and bounds."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class ScaleFacts(HeadFacts):
    """The factor of the logits, which most heads have."""

    scale: Scale


@dataclass(frozen=True, slots=True)
class Expected:
    """Sizes that a head in a model file must have."""

    n_classes: int
    n_base: int
    #: Features of the network or the encoder, then those of each view beside them.
    sizes: tuple[int, ...]
    #: Feature vectors kept, over all classes.
    n_anchors: int = 0

    @property
    def dim(self) -> int:
        """Number of features."""
        return sum(self.sizes)


class Head(nn.Module, ABC):
    """Map features (n, dim) to logits (n, n_classes). Its parameters are what may be trained.

    A subclass that takes the tensors in ``parts`` by position and the fields of ``Facts`` by keyword, and has
    attributes of these names, inherits packing and unpacking.

    Attributes
    ----------
    kind : str
        Its name in model files.
    former_kinds : tuple of str
        Its names in older model files.
    parts : tuple of str
        Names of its tensors, in the order of its arguments.
    names_in_files : dict of str to str
        Names in model files of tensors, or of modules with tensors, where these differ.
    Facts : type of HeadFacts
        Its settings beside the tensors.
    blocks : tuple of str or None
        The feature blocks it requires, without reduction; None accepts any features.
    most_samples : int
        Maximum number of samples kept, over all classes.
    n_statistics : int
        Of :meth:`novelty`; see :data:`~anchorinv.core.confidence.SHARES` for how many there may be.

    Examples
    --------
    A head that predicts the class of the largest features:

    >>> class Largest(Head):
    ...     kind, parts = "largest", ("rows",)
    ...     def __init__(self, rows):
    ...         super().__init__()
    ...         self.register_buffer("rows", rows)
    ...     def forward(self, features):
    ...         return features @ self.rows.T
    ...     def fits(self, expected):
    ...         return self.rows.shape == (expected.n_classes, expected.dim)
    ...     def without(self, column, anchors=None):
    ...         return Largest(without_row(self.rows, column))
    ...     @classmethod
    ...     def n_values(cls, dim, n_classes, n_anchors):
    ...         return n_classes * dim
    >>> tensors, facts = Largest(torch.eye(3)).packed()
    >>> facts, list(tensors)
    ({'kind': 'largest'}, ['rows'])
    >>> Largest.unpacked(tensors, facts).without(1)(torch.tensor([[5.0, 6.0, 7.0]]))
    tensor([[5., 7.]])
    """

    kind: ClassVar[str]
    former_kinds: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()
    names_in_files: ClassVar[Mapping[str, str]] = {}
    Facts: ClassVar[type[HeadFacts]] = HeadFacts
    blocks: ClassVar[tuple[str, ...] | None] = None
    most_samples: ClassVar[int] = 1 << 14
    n_statistics: ClassVar[int] = 1

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, n_classes)."""

    def loss(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy of features (n, dim); ``weights`` (n_classes,) weigh the classes."""
        return F.cross_entropy(self(features), targets, weights)

    def finalise(self, features: Tensor, targets: Tensor) -> "Head":
        """Return the head after the base session, given its features and columns; unchanged by default."""
        return self

    @abstractmethod
    def without(self, column: int, anchors: "Batch | None" = None) -> "Head":
        """Return the head without a class; heads fitted to anchors are given those of the other classes."""

    @abstractmethod
    def fits(self, expected: Expected) -> bool:
        """Return whether shapes and values are valid for these classes and features.

        The head comes from a file; its values are finite, and nothing else was checked.
        """

    @classmethod
    @abstractmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return the maximum number of values, given the sizes of features, classes and kept samples."""

    def packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return its tensors by name in files, and its settings as plain values."""
        settings = {name: getattr(self, name) for name in self.Facts.model_fields}
        # Neither None nor nan, which is not equal to itself.
        known = {name: value for name, value in settings.items() if value is not None and value == value}
        tensors = {self._in_files(name): tensor for name, tensor in self.state_dict().items()}
        return tensors, {"kind": self.kind, **known}

    @classmethod
    def unpacked(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """Unpack a head, without checks: see :meth:`fits`."""
        settings = {name: value for name, value in facts.items() if name != "kind"}
        with torch.device("meta"):  # sizes alone, until the values are taken over
            head = cls.blank(tensors, settings)
        names = {cls._in_files(name): name for name in head.state_dict()}
        head.load_state_dict({names.get(name, name): value for name, value in tensors.items()}, assign=True)
        return head

    @classmethod
    def blank(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Return a head of the sizes of packed tensors, without values."""
        return cls(*cls.shells(tensors, *cls.parts), **settings)

    @classmethod
    def shells(cls, tensors: Mapping[str, Tensor], *parts: str) -> list[Tensor]:
        """Return empty tensors of the shapes and types of packed ones."""
        packed = [tensors[cls._in_files(part)] for part in parts]
        return [torch.empty(part.shape, dtype=part.dtype) for part in packed]

    def novelty(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return statistics (n, n_statistics) of features (n, dim), and the nearest class (n,).

        Large values indicate unknown classes. By default there is one, minus the largest logit.
        """
        largest, nearest = self(features).max(1)
        return -largest[:, None], nearest

    def answers(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (n, n_classes) and the results of :meth:`novelty`, sharing computations."""
        return self(features), *self.novelty(features)

    def answers_of_one(self, features: Tensor) -> tuple[Tensor, list[float], int]:
        """Return :meth:`answers` to one window, as of a live source: logits (1, n_classes), plain numbers."""
        logits, statistics, nearest = self.answers(features)
        return logits, statistics[0].tolist(), int(nearest)

    def prepare(self) -> None:
        """Compute cached values now, and raise errors that they would raise later."""

    @classmethod
    def _in_files(cls, name: str) -> str:
        return ".".join(cls.names_in_files.get(part, part) for part in name.split("."))


H = TypeVar("H", bound=type[Head])

#: All heads that model files may hold, by kind.
HEADS: Registry[type[Head]] = Registry(
    "head", [f"anchorinv.core.{name}" for name in ("mahalanobis", "ridge", "discriminant", "riemannian")]
)


def register_head(head: H) -> H:
    """Class decorator that registers a head for model files."""
    HEADS.register(head.kind, head, former=head.former_kinds)
    return head


class StatisticalHead(Head):
    """A head computed from statistics of its classes, without a gradient.

    Attributes
    ----------
    counts : Tensor, shape (n_classes,), int64
        Examples of each class; float64, the sums of their weights, where examples had some.
    """

    counts: Tensor

    @property
    @abstractmethod
    def prototypes(self) -> Tensor:
        """Mean or prototype of each class (n_classes, dim)."""

    @abstractmethod
    def learned(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> "StatisticalHead":
        """Return the head after more examples (n, dim), of known columns (n,) or new ones after them.

        An example with a weight (n,) of 2 counts as two.
        """

    def after(self, samples: "Batch", targets: Tensor) -> "StatisticalHead":
        """Return the head after samples with features (n, dim) and columns (n,), by their weights if any."""
        # Heads of other packages may not support weights.
        if samples.weights is None:
            return self.learned(samples.values, targets)
        return self.learned(samples.values, targets, samples.weights)

    def n_unknown(self, targets: Tensor) -> int:
        """Return the number of new classes in columns (n,)."""
        return max(0, int(targets.max()) + 1 - len(self.counts)) if len(targets) else 0

    def has_examples(self, n_classes: int) -> bool:
        """Return whether the number of classes is right, and each has examples."""
        return self.counts.shape == (n_classes,) and bool((self.counts > 0).all())

    def embedded(self, features: Tensor) -> Tensor:
        """Return features (n, dim) as prototypes are and :meth:`similarity` takes them."""
        return features

    @abstractmethod
    def similarity(self, some: Tensor, others: Tensor) -> Tensor:
        """Return how similar features (n, dim) and others (m, dim) are by this head's measure (n, m)."""


def without_row(values: Tensor, row: int) -> Tensor:
    """Return all rows but one."""
    return torch.cat([values[:row], values[row + 1 :]])


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
    """

    kind = "mlp"

    def __init__(self, hidden: nn.Sequential, last: nn.Linear) -> None:
        super().__init__()
        self.hidden, self.last = hidden, last

    @classmethod
    def start(cls, n_classes: int, dim: int) -> Self:
        """Return an initialised head, for base training."""
        first = (nn.Linear(dim, 256), nn.ELU(), Dropout(0.5))
        second = (nn.Linear(256, 32), nn.ELU(), Dropout(0.3))
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
        last = self.last
        return self._with_outputs(
            torch.cat([last.weight.detach(), rows]), torch.cat([last.bias.detach(), biases])
        )

    def without(self, column: int, anchors: "Batch | None" = None) -> "Mlp":
        """Return the head without a class's output; the other layers are unchanged."""
        last = self.last
        return self._with_outputs(
            *(without_row(parameter.detach(), column) for parameter in (last.weight, last.bias))
        )

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
        losses: Tensor = 0.5 * (cosines - 1).square()
        share = torch.ones_like(losses) if weights is None else weights[targets]
        mean: Tensor = (share * losses).sum() / share.sum()
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
    """Return the vertices (n, dim) of a simplex: of length 1, with cosines -1 / (n - 1) between them.

    They are rotated at random; without ``rng`` by the global generator.
    """
    if n > dim:
        raise ValueError(f"{n} classes need vertices in at least {n} dimensions, got {dim}")
    turned, _ = torch.linalg.qr(torch.randn(dim, n, generator=rng))  # (dim, n), orthonormal columns
    centred: Tensor = torch.eye(n) - 1 / n
    vertices: Tensor = math.sqrt(n / (n - 1)) * (centred @ turned.T)
    return vertices


def class_means(features: Tensor, targets: Tensor) -> Tensor:
    """Return the mean feature of each class 0, 1, ..., max (n_classes, dim): Eq. 4 of the paper."""
    members = F.one_hot(targets).to(features.dtype)  # (n, n_classes)
    return members.T @ features / members.sum(0)[:, None]


def uniform_rows(n_rows: int, dim: int, *, rng: torch.Generator | None = None) -> Tensor:
    """Draw rows as a linear layer is initialised, U(±1/√dim); without ``rng`` from the global generator."""
    bound = 1 / math.sqrt(dim)
    return torch.empty(n_rows, dim).uniform_(-bound, bound, generator=rng)
