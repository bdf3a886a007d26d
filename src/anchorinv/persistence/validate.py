"""Validation of the tensors of a model file; anchors in half precision."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.blocks import BLOCKS
from anchorinv.core.encoder import NETWORK, NetworkBlock
from anchorinv.core.heads import HEADS, Expected
from anchorinv.core.registry import METHODS
from anchorinv.core.rehearsal import FOLDS
from anchorinv.core.views import VIEWS
from anchorinv.persistence import limits
from anchorinv.persistence.format import Header, unpacked_head
from anchorinv.signal.drift import SHAPES, shapes_of

# Allowed types of the tensors of each part; weights and replay are float32.
_WHOLE = ("labels", "num_batches_tracked", "counts")
_DOUBLE = ("standardisation", "statistics")
_NETWORK = ("trunk", "tail")
#: Allowed types in networks that are not this package's.
_KINDS = (torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool)
#: Tensors of spectra and correlations of the base windows.
LARGEST_SHAPE = 100.0
#: Errors that a head may raise on malformed tensors.
_ODD = (ValueError, TypeError, RuntimeError, LookupError, AttributeError)


def check_tensors(tensors: Mapping[str, Tensor], *, own: bool = True) -> None:
    """Refuse tensors of wrong types or values; networks other than this package's ``own`` may have any."""
    for name, tensor in tensors.items():
        part, last, shown = name.split(".")[0], name.split(".")[-1], repr(name[:60])
        if not own and part in _NETWORK and tensor.dtype in _KINDS:
            if tensor.is_floating_point() and tensor.numel() and not _finite(tensor):
                raise ValueError(f"{shown} holds values that are not finite")
            continue
        wanted = torch.int64 if last in _WHOLE else torch.float64 if part in _DOUBLE else torch.float32
        if name == "head.counts" and tensor.dtype == torch.float64:
            wanted = torch.float64  # sums of weights
        halved = name == "anchors.inverted" and tensor.dtype == torch.float16
        if tensor.dtype != wanted and not halved:
            raise ValueError(f"{shown} is {tensor.dtype}, {wanted} was expected")
        if (last == "labels" or part == "curves") and tensor.ndim != 1:
            raise ValueError(f"{shown} has {tensor.ndim} dimensions, 1 was expected")
        # In full precision each takes as much memory as its replay.
        if halved and 8 * tensor.numel() > limits.MOST_BYTES:
            raise ValueError(f"{shown} has {tensor.numel()} values, {limits.MOST_BYTES // 8} at most")
        # Loss curves may contain infinities, other values may not.
        if part != "curves" and wanted.is_floating_point and tensor.numel() and not _finite(tensor):
            raise ValueError(f"{shown} holds values that are not finite")
    n_values = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("curves."))
    if n_values > limits.MOST_CURVE_VALUES:
        raise ValueError(f"its curves have {n_values} values, {limits.MOST_CURVE_VALUES} at most")


def _finite(tensor: Tensor) -> bool:
    # By the extremes, without a mask as large as the tensor.
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


def check_parts(header: Header, geometry: limits.Architecture, tensors: Mapping[str, Tensor]) -> None:
    """Refuse facts that contradict each other or are too large, and tensors that do not fit them."""
    if header.method not in METHODS:
        raise ValueError(f"its method {header.method!r} is unknown; known are {', '.join(METHODS)}")
    limits.check_geometry(geometry, used=needs_network(header))
    n_chans, n_times, state = geometry.n_chans, geometry.n_times, header.state
    n_classes = len(state.classes)
    if tuple(state.shape) != (n_chans, n_times):
        raise ValueError(f"signals of shape {state.shape} do not fit a network for {(n_chans, n_times)}")
    if not 2 <= n_classes == len(set(state.classes)) == len(header.classes) == len(header.counts):
        raise ValueError(
            f"it lists {n_classes} classes, {len(header.classes)} names, {len(header.counts)} counts"
        )
    if not 1 <= state.n_base <= n_classes:
        raise ValueError(f"n_base (={state.n_base}) does not fit {n_classes} classes")
    if header.ch_names is not None and len(header.ch_names) != n_chans:
        raise ValueError(f"it names {len(header.ch_names)} channels and has {n_chans}")
    sizes = (_dim(header, geometry), *_views(header, geometry))
    _check_kept(header, geometry, sizes, tensors)
    _check_standardisation(geometry, tensors)
    _check_shapes(geometry, tensors)
    _check_head(header, sizes, tensors)


def needs_network(header: Header) -> bool:
    """Return whether a model has a network, by itself or among the blocks of its encoder."""
    encoder = header.state.encoder
    return NETWORK in encoder.blocks if encoder else METHODS[header.method].network


def _views(header: Header, geometry: limits.Architecture) -> list[int]:
    """Return the number of features of each view, if the method has these views."""
    views = header.state.views
    sizes = [VIEWS[name].size(geometry.n_chans) for name in views]
    usual = set(views) <= set(limits.recipe_for(header.method, geometry).views) and len(set(views)) == len(
        views
    )
    if views and not (usual and max(sizes) <= geometry.dim):
        raise ValueError(
            f"views ({', '.join(views)}) do not fit {header.method} and {geometry.n_chans} channels"
        )
    return sizes


def _dim(header: Header, geometry: limits.Architecture) -> int:
    """Return the number of features of the head, if encoder and method fit each other."""
    encoder, shape = header.state.encoder, (geometry.n_chans, geometry.n_times)
    spec, name = METHODS[header.method], header.method
    if (encoder is None) != spec.network:
        raise ValueError(f"{name} has {'no' if encoder else 'an'} encoder")
    if encoder is None:
        return limits.sizes_of(name, geometry).dim
    blocks = tuple(block for block in encoder.blocks if block != NETWORK)
    wanted = geometry.dim if NETWORK in encoder.blocks else None
    if encoder.network_dim != wanted or (wanted and "network" not in spec.options):
        raise ValueError(f"an encoder of {name} does not fit its network")
    if (n_networks := len(encoder.blocks) - len(blocks)) > FOLDS:
        raise ValueError(f"{n_networks} networks are more than the {FOLDS} that a model has")
    if len(set(blocks)) < len(blocks) or not all(b in BLOCKS and BLOCKS[b].suits(*shape) for b in blocks):
        raise ValueError(f"blocks {', '.join(blocks)} do not fit {shape[0]} channels of {shape[1]} samples")
    n_columns = sum(BLOCKS[block](*shape).size for block in blocks)
    n_columns += n_networks * min(NetworkBlock.most, geometry.dim)
    if encoder.n_components > n_columns or encoder.n_components + encoder.n_random > limits.MOST_COLUMNS:
        raise ValueError(f"{encoder.n_components} components do not fit {n_columns} features")
    only = HEADS[spec.head].blocks
    if only and (encoder.blocks, encoder.n_components, encoder.n_random) != (only, n_columns, 0):
        raise ValueError(f"{name} needs an encoder of the {' and the '.join(only)} alone, without components")
    return encoder.n_components + encoder.n_random


def _check_kept(
    header: Header, geometry: limits.Architecture, sizes: Sequence[int], tensors: Mapping[str, Tensor]
) -> None:
    method, classes = header.method, set(header.state.classes)
    memory, latent = limits.recipe_for(method, geometry).memory, limits.sizes_of(method, geometry).latent
    if len(sizes) > 1:  # with views, latents are flattened
        latent = (math.prod(latent) + sum(sizes[1:]),)
    signal = (geometry.n_chans, geometry.n_times)
    shapes = {
        "anchors": (0 if memory.labels_only else sum(sizes),),
        "replay": latent,
        "recordings": signal,
        "signals": signal,
    }
    stores = memory.stores
    most = len(tensors.get(f"{stores[0]}.labels", ())) if stores else 0
    most = len(classes) if memory.one_per_class else most
    for name, shape in shapes.items():
        values, labels = tensors.get(f"{name}.values"), tensors.get(f"{name}.labels")
        if values is None and labels is None and name not in stores:
            continue
        if name not in (*stores, *memory.may_store):
            raise ValueError(f"{method} keeps no {name}")
        if values is None or labels is None or tuple(values.shape) != (len(labels), *shape):
            raise ValueError(f"{name} do not fit the network")
        limits.check_kept(method, geometry, len(classes), len(labels))
        if len(labels) > most:
            raise ValueError(f"{len(labels)} {name} are more than {method} keeps, {most} at most")
        present = set(labels.tolist())
        if present - classes:
            raise ValueError(f"{name} are of the unknown class {min(present - classes)}")
        if name in stores and classes - present:
            raise ValueError(f"{name} of class {min(classes - present)} are missing")


def _check_standardisation(geometry: limits.Architecture, tensors: Mapping[str, Tensor]) -> None:
    for name in _DOUBLE:
        shapes = {tuple(tensors[f"{name}.{part}"].shape) for part in ("mean", "std")}
        allowed = {(geometry.n_chans, 1)} | ({(1, 1)} if name == "standardisation" else set())
        if len(shapes) != 1 or not shapes <= allowed:
            raise ValueError(f"{name} does not fit {geometry.n_chans} channels")
    if not (tensors["standardisation.std"] > 0).all() or not (tensors["statistics.std"] >= 0).all():
        raise ValueError("a standard deviation is below 0")


def _check_shapes(geometry: limits.Architecture, tensors: Mapping[str, Tensor]) -> None:
    """Refuse invalid spectra and correlations of the base data; files from earlier versions lack them."""
    fitting = shapes_of(geometry.n_chans, geometry.n_times)
    for name in SHAPES:
        parts = [tensors.get(f"statistics.{name}.{part}") for part in ("mean", "std")]
        if parts == [None, None]:
            continue
        if any(part is None or tuple(part.shape) != fitting.get(name) for part in parts):
            raise ValueError(f"statistics.{name} do not fit {geometry.n_chans} channels")
        # Logarithms of shares and transformed correlations are small numbers.
        if any(not (part.abs() <= LARGEST_SHAPE).all() for part in parts if part is not None):
            raise ValueError(f"statistics.{name} are out of range")
        if parts[1] is not None and not (parts[1] >= 0).all():
            raise ValueError("a standard deviation is below 0")


def _check_head(header: Header, sizes: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
    state, usual = header.state, METHODS[header.method].head
    if state.head["kind"] != usual:
        raise ValueError(f"its head is {state.head['kind']}, {header.method} has {usual}")
    n_anchors = len(tensors.get("anchors.labels", ()))
    expected = Expected(len(state.classes), state.n_base, sizes, n_anchors)
    head = unpacked_head(tensors, state.head)
    try:
        fits = head.fits(expected)
    except _ODD:
        fits = False
    if not fits:
        raise ValueError(
            f"the head does not fit {expected.n_classes} classes and features of {expected.dim} values"
        )


def compressed_anchors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store inverted anchors in half precision: nothing is computed from them any more."""
    if "anchors.values" not in tensors:
        return tensors
    values, inverted = tensors["anchors.values"], _inverted(tensors)
    small = values[inverted].half()
    if not small.isfinite().all():  # beyond the range of half precision
        small = values[inverted]
    rest = {name: tensor for name, tensor in tensors.items() if name != "anchors.values"}
    return rest | {"anchors.inverted": small, "anchors.pending": values[~inverted]}


def restored_anchors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file as a state packs them."""
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
    """Return which anchors (n,) have replay: the first ones of each class."""
    labels = tensors["anchors.labels"].numpy()
    replayed = np.sort(tensors["replay.labels"].numpy()) if "replay.labels" in tensors else labels[:0]
    order = np.argsort(labels, kind="stable")
    rank = np.empty(len(labels), dtype=np.int64)  # of each anchor within its class
    rank[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    n_replay = np.searchsorted(replayed, labels, "right") - np.searchsorted(replayed, labels, "left")
    return torch.from_numpy(rank < n_replay)
