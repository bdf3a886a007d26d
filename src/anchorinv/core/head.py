"""Classifiers on top of the features. A head is a value: learning returns another one.

A head owns its facts: how it is written to and read from model files (``kind``, ``parts``, ``Facts``),
whether it is valid (``fits``), how a class is removed (``without``) and its maximum size (``n_values``).
``HEADS`` has all heads by kind; heads of other packages are registered there.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

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
    """Sizes that a head in a model file must have.

    Parameters
    ----------
    n_classes, n_base : int
        Classes of the model, and how many of them are base classes.
    sizes : tuple of int
        Features of the network or the encoder, then those of each view beside them.
    n_anchors : int, default=0
        Feature vectors kept, over all classes.
    """

    n_classes: int
    n_base: int
    sizes: tuple[int, ...]
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
        values = {name: getattr(self, name) for name in self.Facts.model_fields}
        known = {
            name: value for name, value in values.items() if value is not None and value == value
        }  # no nan
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

    def prepare(self) -> None:
        """Compute cached values now, and raise errors that they would raise later."""

    @classmethod
    def _in_files(cls, name: str) -> str:
        return ".".join(cls.names_in_files.get(part, part) for part in name.split("."))


H = TypeVar("H", bound=type[Head])

#: All heads that model files may hold, by kind.
HEADS: Registry[type[Head]] = Registry(
    "head",
    tuple(
        f"anchorinv.core.{name}" for name in ("heads", "mahalanobis", "ridge", "discriminant", "riemannian")
    ),
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
    """Return all rows but one.

    Examples
    --------
    >>> without_row(torch.tensor([1, 2, 3]), 1)
    tensor([1, 3])
    """
    return torch.cat([values[:row], values[row + 1 :]])
