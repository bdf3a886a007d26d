"""A state without one of its classes."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from anchorinv.core.heads import Cosine, DotRegression, Head, Mlp, StatisticalHead
from anchorinv.core.mahalanobis import MahalanobisHead, mahalanobis_head
from anchorinv.core.networks import frozen
from anchorinv.core.ridge import Linear
from anchorinv.core.types import Batch, State


def forgotten(state: State, label: int) -> State:
    """Return the state without a class's prototype, anchors, replay and recordings; the network stays.

    The logits of the other classes are those they had, unless they were measured by the covariance of
    all. What finetuning wrote into the network's weights while the class was there stays in them.
    """
    if len(state.classes) <= 2:
        raise ValueError("two classes at least must remain; teach another one before this one is forgotten")
    column = state.classes.index(label)
    is_base = column < state.n_base
    if is_base and state.n_base == 1:
        raise ValueError("it is the last of the base classes, and one must remain; train anew without it")
    kept = [i for i in range(len(state.classes)) if i != column]
    anchors = _without(state.anchors, label)
    return replace(
        state,
        head=frozen(_with_rows(state.head, kept, anchors)),
        classes=tuple(state.classes[i] for i in kept),
        n_base=state.n_base - is_base,
        anchors=anchors,
        replay=_without(state.replay, label),
        recordings=_without(state.recordings, label),
        signals=_without(state.signals, label),
    )


def _with_rows(head: Head, kept: list[int], anchors: Batch | None) -> Head:
    match head:
        case MahalanobisHead():
            # Measured anew: the covariance had the class's own samples in it.
            assert anchors is not None, "such a head is measured by anchors"
            return mahalanobis_head(
                head.prototypes[kept],
                anchors,
                trust=head.trust[kept],
                views=head.sizes[1:],
                scale=head.scale,
                kind=type(head),
            )
        case StatisticalHead():
            (column,) = set(range(len(head.prototypes))) - set(kept)
            return head.without(column)
        case Linear():
            return Linear(head.prototypes[kept], head.weights[kept], head.bias[kept], scale=head.scale)
        case Cosine():
            return head.with_prototypes(head.prototypes[kept])
        case Mlp():
            last = nn.Linear(head.last.in_features, len(kept), device="meta")
            last.weight = nn.Parameter(head.last.weight.detach()[kept].clone())
            last.bias = nn.Parameter(head.last.bias.detach()[kept].clone())
            return Mlp(head.hidden, last)
        case DotRegression():
            # Its vertex is given away; the unused ones stay for classes to come.
            unused: Tensor = torch.arange(head.n_classes, len(head.vertices))
            rows = torch.cat([torch.tensor(kept), unused])
            return DotRegression(head.vertices[rows].clone(), len(kept), weight=head.weight)
    raise TypeError(f"a {type(head).__name__} head cannot forget yet; Cosine, Mlp, DotRegression can")


def _without(batch: Batch | None, label: int) -> Batch | None:
    return batch[batch.labels != label] if batch is not None else None
