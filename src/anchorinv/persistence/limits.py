"""Limits on the size of models and names: everything that determines an allocation or a loop is bounded.

Files and ``fit`` have the same limits, so that every fitted model can be saved. What a method needs follows
from its network or encoder, its head and its memory.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any

import torch
from pydantic import AfterValidator
from torch import nn

from anchorinv.backbones import BackboneFor
from anchorinv.core.blocks import BLOCKS
from anchorinv.core.conformer import Conformer
from anchorinv.core.encoder import MOST_FEATURES, NetworkBlock
from anchorinv.core.heads import HEADS, Cosine
from anchorinv.core.networks import Geometry
from anchorinv.core.recipe import BaseSpec, Recipe
from anchorinv.core.registry import METHODS, MethodSpec
from anchorinv.core.rehearsal import FOLDS
from anchorinv.core.training import Training

#: Bytes of a file's header and of its tensors; reading takes twice the latter, below a gigabyte.
MOST_HEADER, MOST_BYTES = 4 << 20, 384 << 20
#: Characters of a name.
LONGEST_NAME = 200
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


@lru_cache(maxsize=64)
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
        words, each = "values within the network", _within(geometry)
        if isinstance(geometry, Geometry):
            words, each = "scores of attention", each if memory.labels_only else _scores(geometry)
        bounds[f"{words} of all samples kept"] = (n_kept * each, 1 << 29, remedies)
    _check(bounds)


def check_held(n_bytes: int) -> None:
    """Refuse more bytes of tensors than a file can hold."""
    _check({"bytes in a file": (n_bytes, MOST_BYTES - _ROOM // 2, "fewer classes or examples")})


def inverted_at_once(geometry: Architecture, most: int) -> int:
    """Return how many samples to invert at once: fewer where windows are large, to bound memory."""
    each = max(geometry.n_chans * geometry.n_times, _within(geometry))
    return max(1, min(most, _AT_ONCE // each))


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


# Unicode categories without a glyph: control characters, surrogates, line and paragraph separators.
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")


def check_name(name: str) -> str:
    r"""Return a name if it is printable.

    Examples
    --------
    >>> check_name("left" + chr(0))
    Traceback (most recent call last):
    ValueError: the name 'left\x00' contains the invisible character '\x00'; leave it out
    """
    if not 0 < len(name) <= LONGEST_NAME:
        shown = f"{name[:20]!r} ... has {len(name)} characters" if name else "'' is empty"
        raise ValueError(f"the name {shown}; 1 to {LONGEST_NAME} are needed")
    for letter in name:
        if unicodedata.category(letter) in _UNSEEN:
            raise ValueError(
                f"the name {name[:40]!r} contains the invisible character {letter!r}; leave it out"
            )
    return name


def check_names(names: Iterable[Any]) -> None:
    """Refuse names that are not printable or look the same; numbers and booleans are not checked."""
    seen: dict[str, str] = {}
    for name in names:
        if isinstance(name, str):
            if (look := _seen(check_name(name))) in seen:
                raise ValueError(f"the names {seen[look]!r} and {name!r} look the same; rename one of them")
            seen[look] = name


def looks_like(name: Any, others: Iterable[Any]) -> Any | None:
    """Return another name that differs only in spaces or case, if there is one.

    An underscore counts as a space. A space between digits is significant, and so is the case of a single
    letter: annotations of heartbeats have both ``A`` and ``a``.

    Examples
    --------
    >>> looks_like(" Gest 00", ["rest", "gest00"])
    'gest00'
    >>> looks_like("arm 1_2", ["arm 12"])
    """
    if not isinstance(name, str):
        return None
    rough = _rough(name)
    return next((o for o in others if isinstance(o, str) and o != name and _rough(o) == rough), None)


def _rough(name: str) -> str:
    words = re.sub(r"[\s_]+", " ", _seen(name)).strip()
    bare = re.sub(r"(?<!\d) | (?!\d)", "", words)
    return bare.casefold() if len(bare) > 1 else bare or name


def _seen(name: str) -> str:
    """Return a normalised form of a name, without characters of zero width."""
    whole = unicodedata.normalize("NFC", name)
    return "".join(letter for letter in whole if not unicodedata.category(letter).startswith("C"))


Name = Annotated[str, AfterValidator(check_name)]
