"""Ridge regression as a classifier: on the anchors, and on random projections of all features.

Rectified random projections allow non-linear decision boundaries, and their second moments decorrelate them.
Both are sums over all windows, so that the order of classes does not matter (McDonnell et al., RanPAC,
NeurIPS 2023).
"""

from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from anchorinv.core.discriminant import square_of, triangle_of
from anchorinv.core.heads import (
    Cosine,
    Expected,
    PrototypeHead,
    ScaleFacts,
    StatisticalHead,
    prototype_head,
    register_head,
    without_row,
)
from anchorinv.core.memory import Memory
from anchorinv.core.networks import encode, frozen
from anchorinv.core.types import Batch, Curve, State, stream

#: Penalty on anchors, relative to the mean square length of a sample.
PENALTY = 0.1
#: Random projections; the published 10,000 would make a file of 200 MB.
N_RANDOM = 2000
MOST_RANDOM = 1 << 11
#: Candidates of the penalty on them, and the share of base windows held out to choose.
PENALTIES = tuple(10.0**power for power in range(-8, 9))
HELD_OUT = 0.2
#: Factor of outputs before the softmax (not in the publication): 1 among three of 0 has 95 %.
SCALE = 4.0
#: Smallest penalty relative to the mean square of a projection, given second moments in single precision.
_SMALLEST_PENALTY = 1e-5


@register_head
class LinearHead(PrototypeHead):
    """Linear outputs classify; prototypes are kept to place new classes.

    Parameters
    ----------
    prototypes : Tensor, shape (n_classes, dim)
        Means of the classes.
    weights, bias : Tensor, shape (n_classes, dim) and (n_classes,)
        Of the outputs.
    scale : float, default=16.0
        What outputs are multiplied by before the softmax.

    Examples
    --------
    >>> head = LinearHead(torch.eye(2), torch.eye(2), torch.zeros(2), scale=2.0)
    >>> head(torch.tensor([[1.0, 0.0]])).tolist()
    [[2.0, 0.0]]
    """

    kind = "linear"
    parts = ("fixed", "weights", "bias")
    most_samples = 1 << 13  # ridge regression takes the square of them

    Facts = ScaleFacts

    def __init__(self, prototypes: Tensor, weights: Tensor, bias: Tensor, *, scale: float = 16.0) -> None:
        super().__init__(prototypes[:0].clone(), prototypes, scale=scale)
        self.weights: Tensor
        self.bias: Tensor
        self.register_buffer("weights", weights)
        self.register_buffer("bias", bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · outputs (n, n_classes), near 1 for the true class, and near 0 otherwise."""
        return self.scale * (features @ self.weights.T + self.bias)

    def with_prototypes(self, prototypes: Tensor) -> "LinearHead":
        """Return these prototypes (n_classes, dim) with the same outputs."""
        return LinearHead(prototypes.detach().clone(), self.weights, self.bias, scale=self.scale)

    def without(self, column: int, anchors: Batch | None = None) -> "LinearHead":
        """Return the head without a class's output; the other outputs are as they were."""
        parts = (without_row(part, column) for part in (self.prototypes, self.weights, self.bias))
        return LinearHead(*parts, scale=self.scale)

    def fits(self, expected: Expected) -> bool:
        """Return whether every class has a prototype and an output."""
        rows = self.weights.shape == self.fixed.shape and self.bias.shape == (expected.n_classes,)
        return rows and super().fits(expected)

    @classmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return those of a prototype and an output per class."""
        return 2 * n_classes * dim


@dataclass(frozen=True, slots=True)
class FitRidge:
    """Fit a head by ridge regression to one-hot targets; classes have equal weight."""

    #: Relative to the mean square length of a sample.
    penalty: float = PENALTY

    def __call__(self, state: State, features: Batch) -> LinearHead:
        """Return the head of a state, fitted to features of what is kept."""
        head = prototype_head(state.head)
        targets = F.one_hot(state.columns(features.labels), len(state.classes)).to(features.values)
        shares = (targets / targets.sum(0)).sum(1) / len(state.classes)  # of each sample; they add up to 1
        centre, level = shares @ features.values, shares @ targets
        roots = shares.sqrt()[:, None]
        centred, outputs = roots * (features.values - centre), roots * (targets - level)
        # With fewer samples than dimensions, the smaller of two equivalent systems.
        inner = centred @ centred.T
        penalised = inner + self.penalty * inner.trace() / len(inner) * torch.eye(len(inner)).to(inner)
        weights = torch.linalg.solve(penalised, outputs).T @ centred
        return LinearHead(
            head.prototypes.detach().clone(), weights, level - weights @ centre, scale=head.scale
        )


@register_head
class ProjectedRidge(StatisticalHead):
    """Outputs by ridge regression to one-hot targets, on relu(features · projection).

    Parameters
    ----------
    projection : Tensor, shape (dim, n_random)
        Drawn once.
    counts : Tensor, shape (n_classes,), int64
        Windows of each class.
    sums : Tensor, shape (n_classes, n_random)
        Of the projected features of each class.
    gram : Tensor, shape (n_random (n_random + 1) / 2,)
        Upper triangle of the sums of squares and products, over all classes.
    penalty : float
        Added to the diagonal of the Gram matrix.
    scale : float, default=4.0
        What outputs are multiplied by before the softmax.
    """

    kind = "projected-ridge"
    parts = ("projection", "counts", "sums", "gram")

    class Facts(ScaleFacts):
        """Scale and penalty."""

        penalty: Annotated[float, Field(gt=0, le=1e12)]

    def __init__(
        self,
        projection: Tensor,
        counts: Tensor,
        sums: Tensor,
        gram: Tensor,
        *,
        penalty: float,
        scale: float = SCALE,
    ) -> None:
        super().__init__()
        self.projection: Tensor
        self.sums: Tensor
        self.gram: Tensor
        for name, value in (("projection", projection), ("counts", counts), ("sums", sums), ("gram", gram)):
            self.register_buffer(name, value)
        self.penalty, self.scale = penalty, scale
        self._weights: Tensor | None = None

    @classmethod
    def empty(cls, projection: Tensor, *, penalty: float, scale: float = SCALE) -> "ProjectedRidge":
        """Return a head that knows no class yet."""
        n_random = projection.shape[1]
        counts = torch.zeros(0, dtype=torch.int64)
        sums, gram = projection.new_zeros(0, n_random), projection.new_zeros(n_random * (n_random + 1) // 2)
        return cls(projection, counts, sums, gram, penalty=penalty, scale=scale)

    @property
    def prototypes(self) -> Tensor:
        """Mean projected feature of each class (n_classes, n_random)."""
        return self.sums / self.counts[:, None]

    def embedded(self, features: Tensor) -> Tensor:
        """Return rectified projections (n, n_random) of features (n, dim)."""
        return rectified(features, self.projection).to(features.dtype)

    @torch.no_grad()
    def learned(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> "ProjectedRidge":
        """Return the head after more examples: statistics add up, whatever their order."""
        missing = self.n_unknown(targets)
        values = rectified(features, self.projection)
        members = F.one_hot(targets, len(self.counts) + missing)
        scaled = values
        if weights is not None:
            members, scaled = members * weights.double()[:, None], values * weights.double()[:, None]
        sums = F.pad(self.sums, (0, 0, 0, missing)).double() + members.double().T @ values
        gram = self.gram.double() + triangle_of(scaled.T @ values)
        counts = F.pad(self.counts, (0, missing)) + members.sum(0)
        return self._with(counts, sums.to(self.sums), gram.to(self.gram))

    def without(self, column: int, anchors: Batch | None = None) -> "ProjectedRidge":
        """Return the head without a class's output; its share of the second moments is unknown."""
        return self._with(without_row(self.counts, column), without_row(self.sums, column), self.gram)

    def _with(self, counts: Tensor, sums: Tensor, gram: Tensor) -> "ProjectedRidge":
        return ProjectedRidge(self.projection, counts, sums, gram, penalty=self.penalty, scale=self.scale)

    def fits(self, expected: Expected) -> bool:
        """Return whether every class has a sum of the projected features, and all of them one Gram matrix."""
        n_classes, n_random = expected.n_classes, self.projection.shape[-1]
        return (
            self.projection.shape == (expected.dim, n_random)
            and n_random <= MOST_RANDOM
            and self.sums.shape == (n_classes, n_random)
            and self.gram.shape == (n_random * (n_random + 1) // 2,)
            and self.has_examples(n_classes)
        )

    @classmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return those of the projection, the Gram matrix, and a sum and a count per class."""
        return N_RANDOM * dim + N_RANDOM * (N_RANDOM + 1) // 2 + n_classes * (N_RANDOM + 1)

    @property
    def weights(self) -> Tensor:
        """Of the outputs (n_random, n_classes), float64; computed at first use."""
        if self._weights is None:
            gram = square_of(self.gram.double(), self.projection.shape[1])
            self._weights = ridge_weights(gram, self.sums.double().T, self.penalty)
        return self._weights

    def prepare(self) -> None:
        """Solve for the weights."""
        _ = self.weights

    def _apply(self, fn: object, recurse: bool = True) -> Self:
        self._weights = None  # they belong to the old tensors
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · outputs (n, n_classes)."""
        outputs = rectified(features, self.projection) @ self.weights
        return (self.scale * outputs).to(features.dtype)

    def similarity(self, some: Tensor, others: Tensor) -> Tensor:
        """Return the cosine of rectified projections (n, n_random) and others (m, n_random)."""
        return F.normalize(some) @ F.normalize(others).T


@dataclass(frozen=True, slots=True)
class RidgeStatistics(Memory):
    """Keep statistics of ``n_random`` random projections of all windows, in the head; replay nothing."""

    n_random: int = N_RANDOM

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Return the state after the base session with a head of its windows; later ones have theirs."""
        if not isinstance(state.head, Cosine):
            return state
        features, targets = encode(state.tail, latents.values), state.columns(latents.labels)
        drawn = torch.randn(features.shape[1], self.n_random, generator=stream(state.seed, "projection"))
        projection = drawn.to(features)
        # Scaled so that projections are of order one.
        projection = projection / features.square().sum(1).mean().sqrt().clamp(min=1e-12)
        penalty = choose_penalty(rectified(features, projection), targets, rng=rng)
        head = ProjectedRidge.empty(projection, penalty=penalty)
        choice = Curve("penalty", 0, torch.tensor([penalty]))
        learned = frozen(head.learned(features, targets))
        return replace(state, head=learned, curves=(*state.curves, choice))


def rectified(features: Tensor, projection: Tensor) -> Tensor:
    """Return rectified projections (n, n_random), float64: as outputs are small differences of large sums."""
    return torch.relu(features.double() @ projection.double())


def ridge_weights(gram: Tensor, sums: Tensor, penalty: float) -> Tensor:
    """Return (gram + penalty · I)⁻¹ sums, of sums (n_random, n_classes); the penalty is above rounding."""
    penalty = max(penalty, _SMALLEST_PENALTY * float(gram.diagonal().mean()) + 1e-12)
    factor, failed = torch.linalg.cholesky_ex(gram + penalty * torch.eye(len(gram)).to(gram))
    if not failed:
        return torch.cholesky_solve(sums, factor)
    # In single precision, rounding may make eigenvalues negative by more than the least penalty.
    eigenvalues, vectors = torch.linalg.eigh(gram)
    weights: Tensor = vectors @ ((vectors.T @ sums) / (eigenvalues.clamp(min=0) + penalty)[:, None])
    return weights


@torch.no_grad()
def choose_penalty(values: Tensor, targets: Tensor, *, rng: torch.Generator) -> float:
    """Return the penalty with the least squared error on a fifth of the base windows, held out at random.

    The windows are projected features (n, n_random), float64, with their columns (n,).
    """
    order = torch.randperm(len(values), generator=stream(rng, "penalty"))
    n_held_out = max(1, round(HELD_OUT * len(values)))
    one_hot = F.one_hot(targets, int(targets.max()) + 1).double()
    held_out, train = values[order].tensor_split([n_held_out])
    held_out_targets, train_targets = one_hot[order].tensor_split([n_held_out])
    least = _SMALLEST_PENALTY * float(train.square().mean() * len(train)) + 1e-12
    # The smaller of two equivalent systems, and one decomposition for all penalties.
    inner, sums = train.T @ train, train.T @ train_targets
    if len(train) < values.shape[1]:
        inner, sums, held_out = train @ train.T, train_targets, held_out @ train.T
    eigenvalues, vectors = torch.linalg.eigh(inner)
    rotated_sums, rotated = vectors.T @ sums, held_out @ vectors
    errors = {}
    for penalty in PENALTIES:
        if penalty >= least:
            outputs = rotated @ (rotated_sums / (eigenvalues.clamp(min=0) + penalty)[:, None])
            errors[penalty] = float((outputs - held_out_targets).square().mean())
    return min(errors, key=errors.__getitem__, default=PENALTIES[-1])
