"""What a training keeps aside to see how far it should go."""

import torch
from torch import Tensor

from anchorinv.core.rng import stream

#: About so much of the samples is kept aside.
SHARE = 0.1
#: Of fewer groups, or fewer samples kept aside, chance says more than the training does.
LEAST_GROUPS = 5
LEAST_KEPT = 20


def kept_aside(labels: Tensor, groups: Tensor | None = None, *, rng: torch.Generator) -> Tensor:
    """Choose about a tenth of the samples: whole groups, or some of each class where there are no groups.

    Nothing is kept aside where that would leave a class without samples, or where it would be too little
    to judge by: fewer than 5 groups, fewer than 20 samples kept, or a class of fewer than 10 without groups.

    Parameters
    ----------
    labels : (n,) int64, classes.
    groups : (n,) int64, the person, day or recording that each sample comes from; None where nobody knows.

    Returns
    -------
    (n,) bool, True where a sample is kept aside.
    """
    if groups is not None and groups.shape != labels.shape:
        raise ValueError(f"{len(groups)} groups for {len(labels)} samples; one per sample is needed")
    kept = _of_classes(labels, rng) if groups is None else _whole(labels, groups, rng)
    return kept if kept.sum() >= LEAST_KEPT else torch.zeros_like(kept)


def _of_classes(labels: Tensor, rng: torch.Generator) -> Tensor:
    kept = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        places = (labels == label).nonzero().flatten()
        n_kept = int(len(places) * SHARE)
        if n_kept == 0:  # it would be judged by the others alone
            return torch.zeros_like(kept)
        order = torch.randperm(len(places), generator=stream(rng, "aside", label))
        kept[places[order[:n_kept]]] = True
    return kept


def _whole(labels: Tensor, groups: Tensor, rng: torch.Generator) -> Tensor:
    kept = torch.zeros(len(labels), dtype=torch.bool)
    names = sorted(set(groups.tolist()))
    if len(names) < LEAST_GROUPS:
        return kept
    classes = set(labels.tolist())
    order = torch.randperm(len(names), generator=stream(rng, "aside"))
    for place in order.tolist():
        if kept.sum() >= SHARE * len(labels):
            break
        more = kept | (groups == names[place])
        # A group that is much of the data, or all there is of a class, is to be learned from.
        if more.sum() <= 2 * SHARE * len(labels) and set(labels[~more].tolist()) == classes:
            kept = more
    return kept
