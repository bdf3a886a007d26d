"""A ridge classifier on what is kept of each class: a cheap yardstick for heads that know less, or more."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.heads import Cosine
from anchorinv.core.types import Batch, State

#: Of the mean square length of a sample: how much the weights are held back.
PENALTY = 0.1


class Linear(Cosine):
    """Prototypes, which new classes are placed by, and linear outputs, which classify.

    Parameters
    ----------
    prototypes : (n_classes, dim)
    weights, bias : (n_classes, dim) and (n_classes,) of the outputs.
    """

    def __init__(self, prototypes: Tensor, weights: Tensor, bias: Tensor, *, scale: float = 16.0) -> None:
        super().__init__(prototypes[:0].clone(), prototypes, scale=scale)
        self.weights: Tensor
        self.bias: Tensor
        self.register_buffer("weights", weights)
        self.register_buffer("bias", bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · outputs (n, n_classes), which are near 1 for the own class, and near 0 else."""
        return self.scale * (features @ self.weights.T + self.bias)


@dataclass(frozen=True, slots=True)
class ByRidge:
    """Judge by least squares to one-hot targets, held back; every class counts alike."""

    penalty: float = PENALTY

    def __call__(self, state: State, features: Batch) -> Linear:
        """Return the head of a state, fitted to features of what is kept."""
        head = state.head
        if not isinstance(head, Cosine):
            raise TypeError(f"prototypes belong to a Cosine head, not to a {type(head).__name__}")
        targets = F.one_hot(state.columns(features.labels), len(state.classes)).to(features.values)
        shares = (targets / targets.sum(0)).sum(1) / len(state.classes)  # of each sample; they add up to 1
        centre, level = shares @ features.values, shares @ targets
        roots = shares.sqrt()[:, None]
        apart, wanted = roots * (features.values - centre), roots * (targets - level)
        # With fewer samples than dimensions, the smaller of the two equal systems.
        inner = apart @ apart.T
        held = inner + self.penalty * inner.trace() / len(inner) * torch.eye(len(inner)).to(inner)
        weights = torch.linalg.solve(held, wanted).T @ apart
        return Linear(head.prototypes.detach().clone(), weights, level - weights @ centre, scale=head.scale)
