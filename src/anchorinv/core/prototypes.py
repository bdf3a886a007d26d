"""Where new classes start: a new head from the old one and the features of the shots."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

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


def reinforced(state: State, features: Batch, counts: Sequence[int]) -> Cosine:
    """Move prototypes of known classes by more examples: each becomes the mean over old and new ones.

    A trained prototype has a length of its own, which says nothing, so it is brought to the new mean's
    before both are weighed.

    Parameters
    ----------
    features : of the examples (n, dim), labelled by known classes.
    counts : examples behind each prototype so far, in the order of the classes.
    """
    head = _cosine(state)
    prototypes = head.prototypes.clone()
    for label in features.classes:
        column, examples = state.classes.index(label), features.of(label).values
        mean = examples.mean(0)
        old = F.normalize(prototypes[column], dim=0) * mean.norm()
        prototypes[column] = (counts[column] * old + examples.sum(0)) / (counts[column] + len(examples))
    return head.with_prototypes(prototypes)


def _cosine(state: State) -> Cosine:
    if not isinstance(state.head, Cosine):
        raise TypeError(f"prototypes belong to a Cosine head, not to a {type(state.head).__name__}")
    return state.head
