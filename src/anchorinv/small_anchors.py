"""Anchors in a model file: in full precision until they are inverted, in half of it afterwards."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def with_small_anchors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keep in half precision the anchors that have been inverted: nothing is computed from them any more."""
    if "anchors.values" not in tensors:
        return tensors
    values, inverted = tensors["anchors.values"], _inverted(tensors)
    small = values[inverted].half()
    if not small.isfinite().all():  # beyond the range of half precision
        small = values[inverted]
    rest = {name: tensor for name, tensor in tensors.items() if name != "anchors.values"}
    return rest | {"anchors.inverted": small, "anchors.pending": values[~inverted]}


def with_whole_anchors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as a state packs them, from those of a file."""
    if "anchors.labels" not in tensors:
        return tensors
    inverted = _inverted(tensors)
    rest = dict(tensors)
    small, pending = rest.pop("anchors.inverted"), rest.pop("anchors.pending")
    counts = (int(inverted.sum()), int((~inverted).sum()))
    if (len(small), len(pending)) != counts or small.shape[1:] != pending.shape[1:]:
        raise ValueError(
            f"anchors of shape {tuple(small.shape)} and {tuple(pending.shape)} do not fit {counts}"
        )
    values = torch.empty(len(inverted), *pending.shape[1:], dtype=torch.float32)
    values[inverted], values[~inverted] = small.float(), pending
    return rest | {"anchors.values": values}


def _inverted(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return which anchors (n,) have their replay: in each class the first, as many as are replayed."""
    labels = tensors["anchors.labels"].numpy()
    replayed = np.sort(tensors["replay.labels"].numpy()) if "replay.labels" in tensors else labels[:0]
    order = np.argsort(labels, kind="stable")
    rank = np.empty(len(labels), dtype=np.int64)  # of each anchor within its class
    rank[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    n_replay = np.searchsorted(replayed, labels, "right") - np.searchsorted(replayed, labels, "left")
    return torch.from_numpy(rank < n_replay)
