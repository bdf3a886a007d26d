"""Limits on the size of models, and checks of the tensors of a file.

Everything that determines an allocation or a loop is bounded. Files and ``fit`` have the same limits, so that
every fitted model can be saved. What a method needs follows from its network or encoder, its head and its
memory.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import AfterValidator
from torch import Tensor, nn

from anchorinv.backbones import BackboneFor
from anchorinv.core.blocks import BLOCKS, VIEWS
from anchorinv.core.conformer import Conformer
from anchorinv.core.cut import reason_of
from anchorinv.core.encoder import MOST_FEATURES, NETWORK, NetworkBlock
from anchorinv.core.heads import HEADS, Cosine, Expected, Head
from anchorinv.core.networks import Geometry
from anchorinv.core.recipe import BaseSpec, Recipe
from anchorinv.core.registry import METHODS, MethodSpec
from anchorinv.core.rehearsal import FOLDS
from anchorinv.core.training import Training
from anchorinv.core.types import State
from anchorinv.errors import check_name
from anchorinv.signal.drift import SHAPES, shapes_of

if TYPE_CHECKING:
    from anchorinv.persistence.format import Header

#: Bytes of a file's header and of its tensors; reading takes twice the latter, below a gigabyte.
MOST_HEADER, MOST_BYTES = 4 << 20, 384 << 20
MOST_CLASSES, MOST_CHANNELS = 4096, 1024
#: Features of an encoder: components or random projections.
MOST_COLUMNS = 1 << 11
#: Epochs of training, steps of an inversion or a finetuning.
MOST_STEPS = 100_000
#: Values of all loss curves in a file; longer ones are thinned when they are written.
MOST_CURVE_VALUES = 1 << 20
#: Samples kept of each base class, and samples in a batch.
MOST_ANCHORS, MOST_BATCH = 10_000, 1 << 20
#: Sampling rates and filter edges in Hz.
LOWEST_RATE, HIGHEST_RATE = 1e-3, 1e6
SEEDS = range(-(2**63), 2**64)

# Remedies.
_WINDOWS = "shorter windows, a lower sampling rate or fewer channels"
_ANCHORS = "a smaller n_anchors (--anchors)"
#: Reserve of a file's tensors: names, curves, statistics, a projector.
_ROOM = 32 << 20
#: Values processed at once in an inversion: signals or attention scores.
_AT_ONCE = 1 << 24


#: What networks are built from: the sizes of this package's network, or another backbone.
Architecture = Geometry | BackboneFor


def check_geometry(geometry: Architecture, *, used: bool = True) -> None:
    """Refuse a network that needs too much memory or time for one window.

    Another backbone is built to measure it, unless it is not ``used``.
    """
    if isinstance(geometry, BackboneFor):
        return _check_backbone(geometry, used=used)
    g = geometry
    convolution, products = g.width * g.n_chans * g.kernel, g.n_chans * g.kernel * g.n_steps
    wide = "shorter windows, or a geometry with a larger stride or a smaller width"
    pooled = "a geometry with a smaller pool, or a larger pool_stride"
    attended = "shorter windows, or a geometry with a larger pool_stride or fewer heads"
    heavy = "fewer channels, or a geometry with a smaller width or depth"
    _check(
        {
            "channels": (g.n_chans, MOST_CHANNELS, "fewer channels"),
            "values of a window": (g.n_chans * g.n_times, 1 << 24, _WINDOWS),
            "values within the network (steps x width)": (g.n_steps * g.width, 1 << 24, wide),
            "weights of the convolution (width x channels x kernel)": (convolution, 1 << 24, _WINDOWS),
            "products of a filter (channels x kernel x steps)": (products, 1 << 28, _WINDOWS),
            "products of the convolution": (g.width * products, 1 << 34, _WINDOWS),
            "steps of the pooling window": (g.pool, 1 << 14, "a geometry with a smaller pool"),
            "values pooled (tokens x width x pool)": (g.n_tokens * g.width * g.pool, 1 << 22, pooled),
            "values of width": (g.width, 1 << 10, "a geometry with a smaller width"),
            "blocks": (g.depth, 64, "a geometry with a smaller depth"),
            "scores of attention (heads x tokens²)": (_scores(g), 1 << 22, attended),
            "bytes of weights": (4 * _weights(g), MOST_BYTES - _ROOM, heavy),
        }
    )
    return None


def _check_backbone(spec: BackboneFor, *, used: bool) -> None:
    # The shape first: no network is built for one that is too large.
    _check(
        {
            "channels": (spec.n_chans, MOST_CHANNELS, "fewer channels"),
            "values of a window": (spec.n_chans * spec.n_times, 1 << 20, _WINDOWS),
        }
    )
    if not used:
        return
    smaller = f"a smaller backbone, or {_WINDOWS}"
    _check(
        {
            "bytes of weights": (4 * spec.sizes.n_weights, MOST_BYTES - _ROOM, smaller),
            "values within the network": (spec.sizes.n_activations, 1 << 26, smaller),
        }
    )


def network_of(architecture: Architecture) -> Callable[[], nn.Module]:
    """Return the factory of the network."""
    return architecture if isinstance(architecture, BackboneFor) else partial(Conformer, architecture)


def recipe_for(method: str, geometry: Architecture, **options: Any) -> Recipe:
    """Return a method for a network, to compute sizes; unknown options are ignored."""
    spec = METHODS[method]
    base_spec = BaseSpec(network_of(geometry), Cosine.start, Training())
    recipe: Recipe = spec.build(base_spec, **{k: v for k, v in options.items() if k in spec.options})
    return recipe


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a method, for one geometry."""

    latent: tuple[int, ...]  # shape of a replay sample
    dim: int  # maximum number of features of the head
    n_fixed: int  # values of network and encoder


def sizes_of(method: str, geometry: Architecture) -> Sizes:
    """Return the sizes of a method for a network."""
    return _sizes(METHODS[method], geometry)


@lru_cache(maxsize=64)  # by the entry of the registry, as another may be registered under its name
def _sizes(spec: MethodSpec, geometry: Architecture) -> Sizes:
    recipe, latent = recipe_for(spec.name, geometry), _latent(geometry)
    if spec.network and recipe.base_spec.backbone == geometry:
        return Sizes(latent, geometry.dim, _weights(geometry))
    if spec.network:
        with torch.random.fork_rng(), torch.device("meta"):
            network = recipe.base_spec.backbone()
        # A network that is not split before its last block knows the shape there.
        latent = getattr(network, "latent_shape", latent)
        return Sizes(latent, getattr(network, "dim", geometry.dim), _weights(geometry))
    shape, base = (geometry.n_chans, geometry.n_times), recipe.base_spec
    n_columns = sum(block(*shape).size for block in BLOCKS.values() if block.suits(*shape))
    n_columns += FOLDS * NetworkBlock.most
    if blocks := HEADS[spec.head].blocks:
        dim = sum(BLOCKS[name](*shape).size for name in blocks)
    else:
        most = n_columns + getattr(base, "most_random", MOST_COLUMNS)
        dim = min(getattr(base, "most_features", MOST_COLUMNS), most)
    encoder = n_columns * (2 + min(n_columns, MOST_FEATURES)) + MOST_FEATURES**2
    networks = FOLDS * (_weights(geometry) + (1 + NetworkBlock.most) * geometry.dim)
    return Sizes(latent, dim, networks + encoder)


def kept_by(method: str, counts: Sequence[int], n_anchors: int) -> int:
    """Return how many samples a method keeps of base classes of these sizes."""
    any_geometry = Geometry.for_shape(1, 64)
    return recipe_for(method, any_geometry, per_class=n_anchors).memory.n_kept(counts)


def check_kept(method: str, geometry: Architecture, n_classes: int, n_kept: int) -> None:
    """Refuse more kept samples (anchors, replay) than a lesson or a file can hold."""
    memory, head = recipe_for(method, geometry).memory, HEADS[METHODS[method].head]
    sizes, remedies = sizes_of(method, geometry), f"{_WINDOWS}, or {_ANCHORS}"
    window = geometry.n_chans * geometry.n_times
    values = {
        "anchors": 0 if memory.labels_only else sizes.dim,
        "replay": math.prod(sizes.latent),
        "recordings": window,
    }
    parts = (*memory.stores, *memory.may_store)
    n_values = sizes.n_fixed + head.n_values(sizes.dim, n_classes, n_kept)
    n_values += n_kept * sum(values.get(part, 0) for part in parts)
    bounds = {
        "classes": (n_classes, MOST_CLASSES, "fewer classes"),
        "samples kept": (n_kept, head.most_samples, _ANCHORS),
        "samples kept x classes": (n_kept * n_classes, 1 << 25, f"{_ANCHORS}, or fewer classes"),
        "bytes in a file": (4 * n_values, MOST_BYTES - _ROOM, remedies),
    }
    if memory.inverts:
        # Start and end of each signal; labels are inverted all at once, with Adam's moments.
        most = 1 << (28 if memory.labels_only else 29)
        bounds["values of all signals to invert"] = (n_kept * window, most, remedies)
    if "replay" in parts:  # they go through the last block all at once, labels through the others too
        words, per_sample = "values within the network", _within(geometry)
        if isinstance(geometry, Geometry):
            words, per_sample = "scores of attention", per_sample if memory.labels_only else _scores(geometry)
        bounds[f"{words} of all samples kept"] = (n_kept * per_sample, 1 << 29, remedies)
    _check(bounds)


def check_room(method: str, geometry: Architecture, state: State, n_bytes: int) -> None:
    """Refuse a state with more samples than a lesson, or more bytes of tensors than a file, can hold."""
    kept = [len(batch) for batch in (state.anchors, state.replay, state.recordings) if batch]
    check_kept(method, geometry, len(state.classes), max(kept, default=0))
    _check({"bytes in a file": (n_bytes, MOST_BYTES - _ROOM // 2, "fewer classes or examples")})


def inversion_batch(geometry: Architecture, most: int) -> int:
    """Return how many samples to invert at once: fewer where windows are large, to bound memory."""
    per_sample = max(geometry.n_chans * geometry.n_times, _within(geometry))
    return max(1, min(most, _AT_ONCE // per_sample))


def _latent(geometry: Architecture) -> tuple[int, ...]:
    return geometry.sizes.latent if isinstance(geometry, BackboneFor) else (geometry.n_tokens, geometry.width)


def _within(geometry: Architecture) -> int:
    """Return the number of values a network computes per window, or attention scores if these are more."""
    if isinstance(geometry, BackboneFor):
        return geometry.sizes.n_activations
    return geometry.depth * _scores(geometry)


def _weights(geometry: Architecture) -> int:
    if isinstance(geometry, BackboneFor):
        return geometry.sizes.n_weights
    g = geometry
    front = g.width * (g.kernel + g.width * (g.n_chans + 1) + 7)
    return front + g.depth * g.width * (12 * g.width + 13)


def _scores(geometry: Geometry) -> int:
    return geometry.heads * geometry.n_tokens**2


def _check(bounds: dict[str, tuple[int, int, str]]) -> None:
    for words, (size, most, remedy) in bounds.items():
        if size > most:
            raise ValueError(f"{size} {words} are too many, {most} at most; use {remedy}")


Name = Annotated[str, AfterValidator(check_name)]


# Types of tensors by the last or first part of their names; all others are float32.
_INTEGERS = ("labels", "num_batches_tracked", "counts")
_DOUBLES = ("standardisation", "statistics")
#: Allowed types in networks that are not this package's.
_NETWORK_TYPES = (torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool)
#: Largest value of spectra and correlations: logarithms of shares and transformed correlations are small.
LARGEST_SHAPE = 100.0


def check_tensors(tensors: Mapping[str, Tensor], *, own: bool = True) -> None:
    """Refuse tensors of wrong types or values; networks other than this package's ``own`` may have any."""
    for name, tensor in tensors.items():
        part, last, shown = name.split(".")[0], name.split(".")[-1], repr(name[:60])
        # Loss curves may contain infinities, other values may not.
        if part != "curves" and tensor.is_floating_point() and tensor.numel() and not _finite(tensor):
            raise ValueError(f"{shown} holds values that are not finite")
        if not own and part in ("trunk", "tail") and tensor.dtype in _NETWORK_TYPES:
            continue
        expected = torch.float64 if part in _DOUBLES else torch.float32
        if last in _INTEGERS:
            expected = torch.int64
        if name == "head.counts" and tensor.dtype == torch.float64:
            expected = torch.float64  # sums of weights
        halved = name == "anchors.inverted" and tensor.dtype == torch.float16
        if tensor.dtype != expected and not halved:
            raise ValueError(f"{shown} is {tensor.dtype}, {expected} was expected")
        if (last == "labels" or part == "curves") and tensor.ndim != 1:
            raise ValueError(f"{shown} has {tensor.ndim} dimensions, 1 was expected")
        # In full precision each takes as much memory as its replay.
        if halved and 8 * tensor.numel() > MOST_BYTES:
            raise ValueError(f"{shown} has {tensor.numel()} values, {MOST_BYTES // 8} at most")
    n_values = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("curves."))
    if n_values > MOST_CURVE_VALUES:
        raise ValueError(f"its curves have {n_values} values, {MOST_CURVE_VALUES} at most")


def _finite(tensor: Tensor) -> bool:
    # By the extremes, without a mask as large as the tensor.
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


def check_parts(header: "Header", geometry: Architecture, tensors: Mapping[str, Tensor]) -> None:
    """Refuse facts that contradict each other or are too large, and tensors that do not fit them."""
    if header.method not in METHODS:
        raise ValueError(f"its method {header.method!r} is unknown; known are {', '.join(METHODS)}")
    check_geometry(geometry, used=needs_network(header))
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
    _check_samples(header, geometry, sizes, tensors)
    _check_standardisation(geometry, tensors)
    _check_shapes(geometry, tensors)
    _check_head(header, sizes, tensors)


def needs_network(header: "Header") -> bool:
    """Return whether a model has a network, by itself or among the blocks of its encoder."""
    encoder = header.state.encoder
    return NETWORK in encoder.blocks if encoder else METHODS[header.method].network


def _views(header: "Header", geometry: Architecture) -> list[int]:
    """Return the number of features of each view, if the method has these views."""
    views = header.state.views
    sizes = [VIEWS[name].size(geometry.n_chans) for name in views]
    usual = set(views) <= set(recipe_for(header.method, geometry).views) and len(set(views)) == len(views)
    if views and not (usual and max(sizes) <= geometry.dim):
        raise ValueError(
            f"views ({', '.join(views)}) do not fit {header.method} and {geometry.n_chans} channels"
        )
    return sizes


def _dim(header: "Header", geometry: Architecture) -> int:
    """Return the number of features of the head, if encoder and method fit each other."""
    encoder, shape = header.state.encoder, (geometry.n_chans, geometry.n_times)
    spec, name = METHODS[header.method], header.method
    if (encoder is None) != spec.network:
        raise ValueError(f"{name} has {'no' if encoder else 'an'} encoder")
    if encoder is None:
        return sizes_of(name, geometry).dim
    blocks = tuple(block for block in encoder.blocks if block != NETWORK)
    network_dim = geometry.dim if NETWORK in encoder.blocks else None
    if encoder.network_dim != network_dim or (network_dim and "network" not in spec.options):
        raise ValueError(f"an encoder of {name} does not fit its network")
    if (n_networks := len(encoder.blocks) - len(blocks)) > FOLDS:
        raise ValueError(f"{n_networks} networks are more than the {FOLDS} that a model has")
    if len(set(blocks)) < len(blocks) or not all(b in BLOCKS and BLOCKS[b].suits(*shape) for b in blocks):
        raise ValueError(f"blocks {', '.join(blocks)} do not fit {shape[0]} channels of {shape[1]} samples")
    n_columns = sum(BLOCKS[block](*shape).size for block in blocks)
    n_columns += n_networks * min(NetworkBlock.most, geometry.dim)
    if encoder.n_components > n_columns or encoder.n_components + encoder.n_random > MOST_COLUMNS:
        raise ValueError(f"{encoder.n_components} components do not fit {n_columns} features")
    required = HEADS[spec.head].blocks
    if required and (encoder.blocks, encoder.n_components, encoder.n_random) != (required, n_columns, 0):
        raise ValueError(
            f"{name} needs an encoder of the {' and the '.join(required)} alone, without components"
        )
    return encoder.n_components + encoder.n_random


def _check_samples(
    header: "Header", geometry: Architecture, sizes: Sequence[int], tensors: Mapping[str, Tensor]
) -> None:
    method, classes = header.method, set(header.state.classes)
    memory, latent = recipe_for(method, geometry).memory, sizes_of(method, geometry).latent
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
        check_kept(method, geometry, len(classes), len(labels))
        if len(labels) > most:
            raise ValueError(f"{len(labels)} {name} are more than {method} keeps, {most} at most")
        present = set(labels.tolist())
        if present - classes:
            raise ValueError(f"{name} are of the unknown class {min(present - classes)}")
        if name in stores and classes - present:
            raise ValueError(f"{name} of class {min(classes - present)} are missing")


def _check_standardisation(geometry: Architecture, tensors: Mapping[str, Tensor]) -> None:
    for name in _DOUBLES:
        shapes = {tuple(tensors[f"{name}.{part}"].shape) for part in ("mean", "std")}
        allowed = {(geometry.n_chans, 1)} | ({(1, 1)} if name == "standardisation" else set())
        if len(shapes) != 1 or not shapes <= allowed:
            raise ValueError(f"{name} does not fit {geometry.n_chans} channels")
    if not (tensors["standardisation.std"] > 0).all() or not (tensors["statistics.std"] >= 0).all():
        raise ValueError("a standard deviation is below 0")


def _check_shapes(geometry: Architecture, tensors: Mapping[str, Tensor]) -> None:
    """Refuse invalid spectra and correlations of the base data; files from earlier versions lack them."""
    fitting = shapes_of(geometry.n_chans, geometry.n_times)
    for name in SHAPES:
        parts = [tensors.get(f"statistics.{name}.{part}") for part in ("mean", "std")]
        if parts == [None, None]:
            continue
        if any(part is None or tuple(part.shape) != fitting.get(name) for part in parts):
            raise ValueError(f"statistics.{name} do not fit {geometry.n_chans} channels")
        if any(not (part.abs() <= LARGEST_SHAPE).all() for part in parts if part is not None):
            raise ValueError(f"statistics.{name} are out of range")
        if parts[1] is not None and not (parts[1] >= 0).all():
            raise ValueError("a standard deviation is below 0")


def _check_head(header: "Header", sizes: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
    state, usual = header.state, METHODS[header.method].head
    if state.head["kind"] != usual:
        raise ValueError(f"its head is {state.head['kind']}, {header.method} has {usual}")
    n_anchors = len(tensors.get("anchors.labels", ()))
    expected = Expected(len(state.classes), state.n_base, sizes, n_anchors)
    head, fits = unpack_head(tensors, state.head), False
    with suppress(ValueError, TypeError, RuntimeError, LookupError, AttributeError):  # malformed tensors
        fits = head.fits(expected)
    if not fits:
        raise ValueError(
            f"the head does not fit {expected.n_classes} classes and features of {expected.dim} values"
        )


def unpack_head(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Head:
    """Return the head among packed tensors, not yet checked."""
    with as_value_error():
        return HEADS[facts["kind"]].unpacked(with_prefix("head", tensors), facts)


@contextmanager
def as_value_error() -> Iterator[None]:
    """Turn errors that malformed tensors and facts raise into a ValueError."""
    try:
        yield
    except (LookupError, TypeError, RuntimeError, AttributeError) as error:
        raise ValueError(f"the weights do not fit this network: {reason_of(error)}") from None


def with_prefix(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a part, by their names within it."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
