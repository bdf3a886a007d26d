"""Whether the parts of a model file fit each other, before a model is made of them."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anchorinv.core.geometry import Geometry
from anchorinv.core.splits import WIDTH
from anchorinv.core.views import VIEWS
from anchorinv.model.header import Header

#: Of a window, in or within the network: 256 MB.
MOST_VALUES = 1 << 26

# What tensors of a part may be made of; weights and replay are float32 throughout.
_WHOLE = ("labels", "num_batches_tracked")
_DOUBLE = ("standardisation", "statistics")


def check_parts(header: Header, geometry: Geometry, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors of odd types, values or shapes, and facts that contradict each other."""
    for name, tensor in tensors.items():
        part, last = name.split(".")[0], name.split(".")[-1]
        wanted = torch.int64 if last in _WHOLE else torch.float64 if part in _DOUBLE else torch.float32
        if tensor.dtype != wanted:
            raise ValueError(f"{name} is {tensor.dtype}, {wanted} was expected")
        # A loss may have been infinite on the way; what is computed with may not.
        if part != "curves" and wanted.is_floating_point and not tensor.isfinite().all():
            raise ValueError(f"{name} holds values that are not finite")
    n_chans, n_times, state = geometry.n_chans, geometry.n_times, header.state
    if n_times * max(n_chans, geometry.width) > MOST_VALUES:
        raise ValueError(f"windows of {n_chans} channels and {n_times} samples are too large to compute with")
    n_classes = len(state.classes)
    if tuple(state.shape) != (n_chans, n_times):
        raise ValueError(f"signals of shape {state.shape} do not fit a network for {(n_chans, n_times)}")
    if not 2 <= n_classes == len(set(state.classes)) == len(header.classes) == len(header.counts):
        raise ValueError(
            f"it lists {n_classes} classes, {len(header.classes)} names, {len(header.counts)} counts"
        )
    if not 1 <= state.n_base <= n_classes:
        raise ValueError(f"{state.n_base} base classes of {n_classes} cannot be")
    if header.ch_names is not None and len(header.ch_names) != n_chans:
        raise ValueError(f"it names {len(header.ch_names)} channels and has {n_chans}")
    _check_shapes(header, geometry, tensors)


def _check_shapes(header: Header, geometry: Geometry, tensors: Mapping[str, Tensor]) -> None:
    pooled = header.method == "nc-fscil"
    dim = WIDTH if pooled else geometry.dim
    latent: tuple[int, ...] = (WIDTH,) if pooled else (geometry.n_tokens, geometry.width)
    if views := [VIEWS[name].size(geometry.n_chans) for name in header.state.views]:
        dim, latent = dim + sum(views), (math.prod(latent) + sum(views),)
    signal = (geometry.n_chans, geometry.n_times)
    free = {"deepdream": (0,), "deepinv": (0,)}.get(header.method, (dim,))
    for name, each in {"anchors": free, "replay": latent, "recordings": signal, "signals": signal}.items():
        values, labels = tensors.get(f"{name}.values"), tensors.get(f"{name}.labels")
        if values is None and labels is None:
            continue
        if values is None or labels is None or tuple(values.shape) != (len(labels), *each):
            raise ValueError(f"{name} do not fit the network")
        if unknown := set(labels.tolist()) - set(header.state.classes):
            raise ValueError(f"{name} are of class {min(unknown)}, which is not there")
    for name in _DOUBLE:
        shapes = {tuple(tensors[f"{name}.{part}"].shape) for part in ("mean", "std")}
        allowed = {(geometry.n_chans, 1)} | ({(1, 1)} if name == "standardisation" else set())
        if len(shapes) != 1 or not shapes <= allowed:
            raise ValueError(f"{name} does not fit {geometry.n_chans} channels")
    if not (tensors["standardisation.std"] > 0).all() or not (tensors["statistics.std"] >= 0).all():
        raise ValueError("a spread is below 0")
    _check_head(header, [dim - sum(views), *views], tensors)


def _check_head(header: Header, sizes: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
    n_classes, head, dim = len(header.state.classes), header.state.head, sum(sizes)
    match head.kind:
        case "cosine":
            rows, columns = sum(len(tensors[f"head.{part}"]) for part in ("free", "fixed")), "head.fixed"
            fits = rows == n_classes and head.scale is not None and tensors["head.free"].shape[1:] == (dim,)
        case "linear":
            columns = "head.weights"
            fits = len(tensors[columns]) == n_classes and tensors["head.bias"].shape == (n_classes,)
            fits = fits and tensors["head.fixed"].shape == tensors[columns].shape and head.scale is not None
        case "spread" | "whitened":
            columns, parts = "head.fixed", [f"head.scatters.{i}" for i in range(len(sizes))]
            fits = len(tensors[columns]) == n_classes and head.scale is not None
            fits = fits and tensors["head.trust"].shape == (n_classes,)
            fits = fits and all(_fits(tensors, *each) for each in zip(parts, sizes, strict=True))
        case "mlp":
            columns = "head.hidden.0.weight"
            fits = len(tensors["head.last.bias"]) == n_classes
        case "dot-regression":
            columns = "head.vertices"
            fits = head.n_classes == n_classes <= len(tensors[columns]) and head.weight is not None
    if not fits or tensors[columns].shape[1:] != (dim,):
        raise ValueError(f"the head does not fit {n_classes} classes and features of {dim} values")


def _fits(tensors: Mapping[str, Tensor], part: str, size: int) -> bool:
    directions, shares, unit = (tensors[f"{part}.{name}"] for name in ("directions", "shares", "unit"))
    return directions.shape[1:] == (size,) and shares.shape == directions.shape[:1] and bool(unit > 0)
