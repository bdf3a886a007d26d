"""Whether the parts of a model file fit each other, before a model is made of them."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anchorinv.core.catalogue import CATALOGUE, CLOSED_FORM
from anchorinv.core.encoder import BLOCKS, suitable
from anchorinv.core.geometry import Geometry
from anchorinv.core.network_block import NETWORK, NetworkBlock
from anchorinv.core.riemannian import LONGEST
from anchorinv.core.splits import WIDTH
from anchorinv.core.tangent import Covariance
from anchorinv.core.views import VIEWS
from anchorinv.model.header import Header
from anchorinv.model.limits import MOST_BYTES, MOST_COLUMNS, MOST_TOLD, check_geometry, check_kept
from anchorinv.model.statistics import SHAPES, shapes_of

# What tensors of a part may be made of; weights and replay are float32 throughout.
_WHOLE = ("labels", "num_batches_tracked", "counts")
_DOUBLE = ("standardisation", "statistics")

# Of each method: its head; what it keeps of each class; what may be there beside it.
_OWN: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "finetune": ("mlp", (), ()),
    "nc-fscil": ("dot-regression", ("replay",), ()),
    "protonet": ("cosine", (), ()),
    "teen": ("cosine", (), ()),
    "deepdream": ("cosine", ("anchors",), ("replay", "signals")),
    "deepinv": ("cosine", ("anchors",), ("replay", "signals")),
    "anchorinv": ("cosine", ("anchors",), ("replay", "signals")),
    "real-replay": ("cosine", ("recordings",), ("replay",)),
    "latent-replay": ("cosine", ("replay",), ()),
    "ridge": ("linear", ("anchors",), ()),
    "whitened": ("whitened", ("anchors",), ()),
    "fecam": ("mahalanobis", ("anchors",), ()),
    "anchorinv-plus": ("mahalanobis", ("anchors",), ()),
    "ranpac": ("projected-ridge", (), ()),
    "lda": ("discriminant", (), ()),
    "mdm": ("riemannian-means", (), ()),
    "discriminant": ("discriminant", (), ()),
}
_MDM = (Covariance.name,)
#: Of the statistics of windows' shapes.
LARGEST_SHAPE = 100.0


def check_tensors(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors of odd types or values, whatever they are for."""
    for name, tensor in tensors.items():
        part, last, shown = name.split(".")[0], name.split(".")[-1], repr(name[:60])
        wanted = torch.int64 if last in _WHOLE else torch.float64 if part in _DOUBLE else torch.float32
        halved = name == "anchors.inverted" and tensor.dtype == torch.float16
        if tensor.dtype != wanted and not halved:
            raise ValueError(f"{shown} is {tensor.dtype}, {wanted} was expected")
        if (last == "labels" or part == "curves") and tensor.ndim != 1:
            raise ValueError(f"{shown} has {tensor.ndim} dimensions, 1 was expected")
        # In full precision each takes as much as its replay; more would not fit beside the file's own bytes.
        if halved and 8 * tensor.numel() > MOST_BYTES:
            raise ValueError(f"{shown} has {tensor.numel()} values, {MOST_BYTES // 8} at the most")
        # A loss may have been infinite on the way; what is computed with may not.
        if part != "curves" and wanted.is_floating_point and tensor.numel() and not _finite(tensor):
            raise ValueError(f"{shown} holds values that are not finite")
    told = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("curves."))
    if told > MOST_TOLD:
        raise ValueError(f"its curves have {told} values, {MOST_TOLD} at the most")


def _finite(tensor: Tensor) -> bool:
    # By the extremes: asked value by value, it would take the tensor's size in memory once more.
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


def check_parts(header: Header, geometry: Geometry, tensors: Mapping[str, Tensor]) -> None:
    """Refuse facts that contradict each other or are too large, and tensors that do not fit them."""
    if header.method not in CATALOGUE:
        raise ValueError(f"its method {header.method!r} is unknown; known are {', '.join(CATALOGUE)}")
    check_geometry(geometry)
    n_chans, n_times, state = geometry.n_chans, geometry.n_times, header.state
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
    dim = _dim(header, geometry)
    views = [VIEWS[name].size(n_chans) for name in state.views]
    usual = header.method == "anchorinv-plus" and len(set(state.views)) == len(views)
    if views and not (usual and max(views) <= dim):
        raise ValueError(
            f"views ({', '.join(state.views)}) do not fit {header.method} and {n_chans} channels"
        )
    _check_kept(header, geometry, dim, views, tensors)
    _check_standardisation(geometry, tensors)
    _check_shapes(geometry, tensors)
    _check_head(header, [dim, *views], tensors)


def _dim(header: Header, geometry: Geometry) -> int:
    """Return how many features the head is given, if encoder and method fit each other."""
    encoder, shape = header.state.encoder, (geometry.n_chans, geometry.n_times)
    if (encoder is not None) != (header.method in CLOSED_FORM):
        raise ValueError(f"{header.method} has {'no' if encoder else 'an'} encoder")
    if encoder is None:
        return WIDTH if header.method == "nc-fscil" else geometry.dim
    blocks = tuple(name for name in encoder.blocks if name != NETWORK)
    wanted = geometry.dim if NETWORK in encoder.blocks else None
    if encoder.network_dim != wanted or (wanted and header.method != "discriminant"):
        raise ValueError(f"an encoder of {header.method} does not fit its network")
    if len(set(encoder.blocks)) < len(encoder.blocks) or set(blocks) - set(suitable(shape)):
        raise ValueError(f"blocks {', '.join(blocks)} do not fit {shape[0]} channels of {shape[1]} samples")
    n_columns = sum(BLOCKS[name](*shape).size for name in blocks)
    if NETWORK in encoder.blocks:
        n_columns += min(NetworkBlock.most, geometry.dim)
    if encoder.n_components > n_columns or encoder.n_components + encoder.n_random > MOST_COLUMNS:
        raise ValueError(f"{encoder.n_components} components of {n_columns} features cannot be")
    if header.method == "mdm" and (blocks, encoder.n_components, encoder.n_random) != (_MDM, n_columns, 0):
        raise ValueError(f"mdm has an encoder of the {_MDM[0]} alone, as it is")
    return encoder.n_components + encoder.n_random


def _check_kept(
    header: Header, geometry: Geometry, dim: int, views: Sequence[int], tensors: Mapping[str, Tensor]
) -> None:
    pooled, classes = header.method == "nc-fscil", set(header.state.classes)
    latent: tuple[int, ...] = (WIDTH,) if pooled else (geometry.n_tokens, geometry.width)
    if views:
        latent = (math.prod(latent) + sum(views),)
    signal = (geometry.n_chans, geometry.n_times)
    free = (0,) if header.method in ("deepdream", "deepinv") else (dim + sum(views),)
    _, needed, allowed = _OWN[header.method]
    most = len(classes) if pooled else len(tensors.get(f"{needed[0]}.labels", ())) if needed else 0
    for name, each in {"anchors": free, "replay": latent, "recordings": signal, "signals": signal}.items():
        values, labels = tensors.get(f"{name}.values"), tensors.get(f"{name}.labels")
        if values is None and labels is None and name not in needed:
            continue
        if name not in (*needed, *allowed):
            raise ValueError(f"{header.method} keeps no {name}")
        if values is None or labels is None or tuple(values.shape) != (len(labels), *each):
            raise ValueError(f"{name} do not fit the network")
        check_kept(header.method, geometry, len(classes), len(labels))
        if len(labels) > most:
            raise ValueError(f"{len(labels)} {name} are more than {header.method} keeps, {most} at the most")
        found = set(labels.tolist())
        if found - classes:
            raise ValueError(f"{name} are of class {min(found - classes)}, which is not there")
        if name in needed and classes - found:
            raise ValueError(f"{name} of class {min(classes - found)} are missing")


def _check_standardisation(geometry: Geometry, tensors: Mapping[str, Tensor]) -> None:
    for name in _DOUBLE:
        shapes = {tuple(tensors[f"{name}.{part}"].shape) for part in ("mean", "std")}
        allowed = {(geometry.n_chans, 1)} | ({(1, 1)} if name == "standardisation" else set())
        if len(shapes) != 1 or not shapes <= allowed:
            raise ValueError(f"{name} does not fit {geometry.n_chans} channels")
    if not (tensors["standardisation.std"] > 0).all() or not (tensors["statistics.std"] >= 0).all():
        raise ValueError("a spread is below 0")


def _check_shapes(geometry: Geometry, tensors: Mapping[str, Tensor]) -> None:
    """Refuse spectra and correlations of the base data that are none; files of former versions have none."""
    fitting = shapes_of(geometry.n_chans, geometry.n_times)
    for name in SHAPES:
        parts = [tensors.get(f"statistics.{name}.{part}") for part in ("mean", "std")]
        if parts == [None, None]:
            continue
        if any(part is None or tuple(part.shape) != fitting.get(name) for part in parts):
            raise ValueError(f"statistics.{name} do not fit {geometry.n_chans} channels")
        # Logarithms of shares and transforms of correlations: none is large.
        if any(not (part.abs() <= LARGEST_SHAPE).all() for part in parts if part is not None):
            raise ValueError(f"statistics.{name} hold values that no windows have")
        if parts[1] is not None and not (parts[1] >= 0).all():
            raise ValueError("a spread is below 0")


def _check_head(header: Header, sizes: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
    n_classes, head, dim = len(header.state.classes), header.state.head, sum(sizes)
    if head.kind != (usual := _OWN[header.method][0]):
        raise ValueError(f"its head is {head.kind}, {header.method} has {usual}")
    shape = {part: tuple(tensors[f"head.{part}"].shape) for part in _PARTS[head.kind]}
    match head.kind:
        case "cosine":
            rows = shape["free"][0] + shape["fixed"][0]
            fits = rows == n_classes and shape["free"][1:] == shape["fixed"][1:] == (dim,)
        case "linear":
            fits = shape["fixed"] == shape["weights"] == (n_classes, dim) and shape["bias"] == (n_classes,)
        case "mahalanobis" | "whitened":
            fits = shape["fixed"] == (n_classes, dim) and shape["trust"] == (n_classes,)
            n_kept = len(tensors["anchors.labels"])
            fits = fits and all(
                _fits(tensors, f"head.scatters.{i}", size, min(size, n_kept)) for i, size in enumerate(sizes)
            )
        case "discriminant":
            fits = shape["counts"] == (n_classes,) and shape["means"] == (n_classes, dim)
            fits = fits and shape["scatters"] == (n_classes, dim * (dim + 1) // 2)
            fits = fits and head.n_base == header.state.n_base and None not in (head.shrinkage, head.prior)
            fits = fits and bool((tensors["head.counts"] > 0).all())
        case "projected-ridge":
            n_random = shape["projection"][-1]
            fits = shape["projection"] == (dim, n_random) and n_random <= MOST_COLUMNS
            fits = fits and shape["sums"] == (n_classes, n_random) and shape["counts"] == (n_classes,)
            fits = fits and shape["gram"] == (n_random * (n_random + 1) // 2,) and head.penalty is not None
            fits = fits and bool((tensors["head.counts"] > 0).all())
        case "riemannian-means":
            fits = shape["counts"] == (n_classes,) and shape["means"] == (n_classes, dim)
            fits = fits and bool((tensors["head.counts"] > 0).all())
            fits = fits and bool((tensors["head.means"].norm(dim=1) <= LONGEST).all())
        case "mlp":
            fits = shape["last.bias"] == (n_classes,) and shape["hidden.0.weight"][1:] == (dim,)
        case "dot-regression":
            rows = shape["vertices"][0]
            # A simplex has at most as many vertices as its space has dimensions.
            fits = head.n_classes == n_classes <= rows <= dim and shape["vertices"][1:] == (dim,)
    given = head.weight if head.kind == "dot-regression" else head.scale
    if not fits or (given is None and head.kind != "mlp"):
        raise ValueError(f"the head does not fit {n_classes} classes and features of {dim} values")


_PARTS = {
    "cosine": ("free", "fixed"),
    "linear": ("fixed", "weights", "bias"),
    "mahalanobis": ("fixed", "trust"),
    "whitened": ("fixed", "trust"),
    "discriminant": ("counts", "means", "scatters"),
    "projected-ridge": ("projection", "counts", "sums", "gram"),
    "riemannian-means": ("counts", "means"),
    "mlp": ("last.bias", "hidden.0.weight"),
    "dot-regression": ("vertices",),
}


def _fits(tensors: Mapping[str, Tensor], part: str, size: int, most: int) -> bool:
    directions, shares, unit = (tensors[f"{part}.{name}"] for name in ("directions", "shares", "unit"))
    fits = directions.shape[1:] == (size,) and shares.shape == directions.shape[:1]
    fits = fits and len(directions) <= most
    return fits and not unit.ndim and bool(unit > 0)
