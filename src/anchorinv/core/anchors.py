"""Which points of the feature space to keep: the μ of the paper's Eq. 7."""

from collections.abc import Callable

import torch
from torch import Tensor

#: (features (n, dim) of one class, how many, rng) -> anchors (at most that many, dim).
Selection = Callable[[Tensor, int, torch.Generator], Tensor]


def random_anchors(features: Tensor, quota: int, rng: torch.Generator) -> Tensor:
    """Keep ``quota`` features drawn at random without repetition, or all where there are fewer."""
    chosen = torch.randperm(len(features), generator=rng)[:quota]
    return features[chosen.sort().values]
