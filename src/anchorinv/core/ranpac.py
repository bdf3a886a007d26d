"""Ridge regression on rectified random projections of the network's features, from sufficient statistics.

Projections at random let a linear classifier draw curved borders, and their second moments tell which of them
go together. Both are sums over all windows, so that classes may come in any order with the same result
(McDonnell et al., RanPAC, NeurIPS 2023).
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.discriminant import square_of, triangle_of
from anchorinv.core.heads import Cosine, StatisticalHead
from anchorinv.core.networks import frozen, mapped
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch, Curve, State

#: Projections; the published number is 10,000, whose second moments would be a file of 200 MB.
N_RANDOM = 2000
#: What the penalty is chosen from, and the share of base windows that say which.
PENALTIES = tuple(10.0**power for power in range(-8, 9))
HELD_OUT = 0.2
#: Of outputs before the softmax, which the publication has no use for: 1 among three of 0 is sure by 95 %.
SCALE = 4.0
#: A penalty below so much of the mean square of a projection is lost in second moments of single precision.
_LEAST = 1e-5


class ProjectedRidge(StatisticalHead):
    """Outputs by ridge regression to one-hot targets, on relu(features · projection).

    Parameters
    ----------
    projection : Tensor, shape (dim, n_random)
        Drawn once, and never changed.
    counts : Tensor, shape (n_classes,), int64
    sums : Tensor, shape (n_classes, n_random)
        Of the projected features of each class.
    gram : Tensor, shape (n_random (n_random + 1) / 2,)
        Upper triangle of the sums of squares and products, over all classes.
    penalty : float
        Added to the diagonal of the Gram matrix.
    scale : float
        What outputs are multiplied by before the softmax.
    """

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
        self.counts: Tensor
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
    def learned(self, features: Tensor, targets: Tensor) -> "ProjectedRidge":
        """Return the head after more examples: statistics add up, whatever their order."""
        n_classes = max(len(self.counts), int(targets.max()) + 1 if len(targets) else 0)
        missing = n_classes - len(self.counts)
        values = rectified(features, self.projection)
        members = F.one_hot(targets, n_classes)
        sums = F.pad(self.sums, (0, 0, 0, missing)).double() + members.double().T @ values
        gram = self.gram.double() + triangle_of(values.T @ values)
        counts = F.pad(self.counts, (0, missing)) + members.sum(0)
        return self._with(counts, sums.to(self.sums), gram.to(self.gram))

    def without(self, column: int) -> "ProjectedRidge":
        """Return the head without a class's output; of the second moments its share cannot be told apart."""
        kept = [i for i in range(len(self.counts)) if i != column]
        return self._with(self.counts[kept], self.sums[kept], self.gram)

    def _with(self, counts: Tensor, sums: Tensor, gram: Tensor) -> "ProjectedRidge":
        return ProjectedRidge(self.projection, counts, sums, gram, penalty=self.penalty, scale=self.scale)

    @property
    def weights(self) -> Tensor:
        """Of the outputs (n_random, n_classes), float64; found when they are first asked for."""
        if self._weights is None:
            gram = square_of(self.gram.double(), self.projection.shape[1])
            self._weights = ridge_weights(gram, self.sums.double().T, self.penalty)
        return self._weights

    def _apply(self, fn: object, recurse: bool = True) -> Self:
        self._weights = None  # they belong to the tensors as they were
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · outputs (n, n_classes)."""
        outputs = rectified(features, self.projection) @ self.weights
        return (self.scale * outputs).to(features.dtype)

    def likeness(self, some: Tensor, others: Tensor) -> Tensor:
        """Return the cosine of rectified projections (n, n_random) and others (m, n_random)."""
        return F.normalize(some) @ F.normalize(others).T


@dataclass(frozen=True, slots=True)
class RidgeStatistics:
    """Keep the statistics of all windows, in a head that follows from them; nothing is replayed.

    Parameters
    ----------
    n_random : int
        Projections.
    """

    n_random: int = N_RANDOM

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Return the state after the base session with a head of its windows; later ones have theirs."""
        if not isinstance(state.head, Cosine):
            return state
        features, targets = mapped(state.tail, latents.values), state.columns(latents.labels)
        drawn = torch.randn(features.shape[1], self.n_random, generator=stream(state.seed, "projection"))
        projection = drawn.to(features)
        # Features of any size: what is rectified is of the size of one.
        projection = projection / features.square().sum(1).mean().sqrt().clamp(min=1e-12)
        penalty = chosen_penalty(rectified(features, projection), targets, rng=rng)
        head = ProjectedRidge.empty(projection, penalty=penalty)
        told = Curve("penalty", 0, torch.tensor([penalty]))
        learned = frozen(head.learned(features, targets))
        return replace(state, head=learned, curves=(*state.curves, told))

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Return the state as it is."""
        return state


def rectified(features: Tensor, projection: Tensor) -> Tensor:
    """Return rectified projections (n, n_random), float64: outputs are small differences of large sums."""
    return torch.relu(features.double() @ projection.double())


def ridge_weights(gram: Tensor, sums: Tensor, penalty: float) -> Tensor:
    """Return (gram + penalty · I)⁻¹ sums, of sums (n_random, n_classes); the penalty is above rounding."""
    least = _LEAST * float(gram.diagonal().mean()) + 1e-12
    held = gram + max(penalty, least) * torch.eye(len(gram)).to(gram)
    return torch.cholesky_solve(sums, torch.linalg.cholesky(held))


@torch.no_grad()
def chosen_penalty(values: Tensor, targets: Tensor, *, rng: torch.Generator) -> float:
    """Return the penalty with the least squared error on a fifth of the base windows, kept aside at random.

    Parameters
    ----------
    values : Tensor, shape (n, n_random)
        Projected features, float64.
    """
    order = torch.randperm(len(values), generator=stream(rng, "penalty"))
    n_aside = max(1, round(HELD_OUT * len(values)))
    wanted = F.one_hot(targets, int(targets.max()) + 1).double()
    aside, known, answers = values[order[:n_aside]], values[order[n_aside:]], wanted[order[n_aside:]]
    least = _LEAST * float(known.square().mean() * len(known)) + 1e-12
    # Of two equal systems the smaller, and one decomposition for all penalties.
    inner, sums, seen = known.T @ known, known.T @ answers, aside
    if len(known) < values.shape[1]:
        inner, sums, seen = known @ known.T, answers, aside @ known.T
    found, vectors = torch.linalg.eigh(inner)
    along, seen = vectors.T @ sums, seen @ vectors
    errors = {}
    for penalty in PENALTIES:
        if penalty >= least:
            outputs = seen @ (along / (found.clamp(min=0) + penalty)[:, None])
            errors[penalty] = float((outputs - wanted[order[:n_aside]]).square().mean())
    return min(errors, key=lambda penalty: errors[penalty]) if errors else PENALTIES[-1]
