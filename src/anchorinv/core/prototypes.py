"""Where new classes start: a new head from the old one and the features of the shots."""

from collections.abc import Callable

import torch

from anchorinv.core.heads import Cosine, Head, Mlp, class_means, uniform_rows
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch, State, columns

#: (state before the session, features of the shots) -> head with a column more per new class.
Placement = Callable[[State, Batch], Head]


def mean_of_shots(state: State, shots: Batch) -> Cosine:
    """Start new prototypes at the mean feature of their shots (Eq. 4)."""
    means = class_means(shots.values, columns(shots.labels, shots.classes))
    return _cosine(state).extended(means)


def random_rows(state: State, shots: Batch) -> Cosine:
    """Start new prototypes as a linear layer starts, drawn once per class and so alike in all trials."""
    rows = [
        uniform_rows(1, shots.values.shape[1], rng=stream(state.seed, "prototype", label))
        for label in shots.classes
    ]
    return _cosine(state).extended(torch.cat(rows).to(shots.values))


def new_outputs(state: State, shots: Batch) -> Mlp:
    """Append an output row per new class to a classifier that has no prototypes."""
    head = state.head
    if not isinstance(head, Mlp):
        raise TypeError(f"output rows belong to a Mlp head, not to a {type(head).__name__}")
    width = head.last.in_features
    drawn = [
        uniform_rows(1, width + 1, rng=stream(state.seed, "output", label)).to(shots.values)
        for label in shots.classes
    ]
    rows = torch.cat(drawn)
    return head.extended(rows[:, :-1], rows[:, -1])


def _cosine(state: State) -> Cosine:
    if not isinstance(state.head, Cosine):
        raise TypeError(f"prototypes belong to a Cosine head, not to a {type(state.head).__name__}")
    return state.head
