"""How large a model may be: whatever in a model file drives an allocation or a loop has its bound here.

What is bounded in a file is bounded in ``fit`` too, so that whatever was learned can be written.
"""

from collections.abc import Sequence

from anchorinv.core.catalogue import CLOSED_FORM, JUDGED, TEXTBOOK
from anchorinv.core.encoder import BLOCKS, MOST_FEATURES, suitable
from anchorinv.core.geometry import Geometry
from anchorinv.core.ranpac import N_RANDOM
from anchorinv.core.splits import WIDTH
from anchorinv.core.tangent import Covariance

#: Bytes of a file's header and of its tensors; reading takes twice the latter, and stays below a gigabyte.
MOST_HEADER, MOST_BYTES = 4 << 20, 384 << 20
#: Characters of a name, and of a remark.
LONGEST_NAME, LONGEST_NOTE = 200, 1000
MOST_CLASSES, MOST_CHANNELS = 4096, 1024
#: Features of an encoder, of components or at random.
MOST_COLUMNS = 1 << 11
#: Epochs of training, steps of an inversion or a finetuning.
MOST_STEPS = 100_000
#: Values of all curves in a file; longer ones are thinned when they are written.
MOST_TOLD = 1 << 20
#: Kept of each base class, and in a batch.
MOST_ANCHORS, MOST_BATCH = 10_000, 1 << 20
#: In Hz, of signals and of a filter's edges.
LOWEST_RATE, HIGHEST_RATE = 1e-3, 1e6
SEEDS = range(-(2**63), 2**64)


# What a user can do about it.
_WINDOWS = "shorter windows, a lower sampling rate or fewer channels"
_ANCHORS = "a smaller n_anchors (--anchors)"
#: Of a file's tensors, what is not foreseen: their names, curves, statistics, a projector.
_ROOM = 32 << 20
#: Values at once in an inversion, of the signals themselves or of the attention to them.
_AT_ONCE = 1 << 24


def check_geometry(geometry: Geometry) -> None:
    """Refuse a network that a window could not be computed with in bounded memory and time."""
    g = geometry
    products = g.n_chans * g.kernel * g.n_steps
    _check(
        {
            "channels": (g.n_chans, MOST_CHANNELS, "fewer channels"),
            "values of a window": (g.n_chans * g.n_times, 1 << 24, _WINDOWS),
            "values within the network (steps x width)": (
                g.n_steps * g.width,
                1 << 24,
                "shorter windows, or a geometry with a larger stride or a smaller width",
            ),
            "weights of the convolution (width x channels x kernel)": (
                g.width * g.n_chans * g.kernel,
                1 << 24,
                _WINDOWS,
            ),
            "products of a filter (channels x kernel x steps)": (products, 1 << 28, _WINDOWS),
            "products of the convolution": (g.width * products, 1 << 34, _WINDOWS),
            "steps of the pooling window": (g.pool, 1 << 14, "a geometry with a smaller pool"),
            "values pooled (tokens x width x pool)": (
                g.n_tokens * g.width * g.pool,
                1 << 22,
                "a geometry with a smaller pool, or a larger pool_stride",
            ),
            "values of width": (g.width, 1 << 10, "a geometry with a smaller width"),
            "blocks": (g.depth, 64, "a geometry with a smaller depth"),
            "scores of attention (heads x tokens²)": (
                _scores(g),
                1 << 22,
                "shorter windows, or a geometry with a larger pool_stride or fewer heads",
            ),
            "bytes of weights": (
                4 * _weights(g),
                MOST_BYTES - _ROOM,
                "fewer channels, or a geometry with a smaller width or depth",
            ),
        }
    )


def kept_by(method: str, counts: Sequence[int], n_anchors: int) -> int:
    """Return how many samples a method keeps of base classes that have so many each."""
    match method:
        case "finetune" | "protonet" | "teen" | "ranpac" | "lda" | "mdm" | "discriminant":
            return 0
        case "nc-fscil":
            return len(counts)
        case "deepdream" | "deepinv":
            return n_anchors * len(counts)
    return sum(min(count, n_anchors) for count in counts)


def check_kept(method: str, geometry: Geometry, n_classes: int, n_kept: int) -> None:
    """Refuse more samples kept of all classes (anchors, replay) than a lesson or a file has room for."""
    g = geometry
    window, wanted = g.n_chans * g.n_times, f"{_WINDOWS}, or {_ANCHORS}"
    sizes = {
        "classes": (n_classes, MOST_CLASSES, "fewer classes"),
        # Ridge regression takes the square of them.
        "samples kept": (n_kept, 1 << (13 if method == "ridge" else 14), _ANCHORS),
        "samples kept x classes": (n_kept * n_classes, 1 << 25, f"{_ANCHORS}, or fewer classes"),
        "bytes in a file": (
            4 * (_fixed(method, g) + n_classes * _of_a_class(method, g) + n_kept * _of_a_sample(method, g)),
            MOST_BYTES - _ROOM,
            wanted,
        ),
    }
    if method in _INVERTED:
        # Signals that started and that were found; labels are inverted all at once, with Adam's moments.
        most = 1 << (29 if method == "anchorinv" else 28)
        sizes["values of all signals to invert"] = (n_kept * window, most, wanted)
    if method not in JUDGED:  # they go through the last block all at once, labels through the others too
        blocks = g.depth if method in ("deepdream", "deepinv") else 1
        words = "scores of attention of all samples kept"
        sizes[words] = (n_kept * blocks * _scores(g), 1 << 29, wanted)
    _check(sizes)


def check_held(n_bytes: int) -> None:
    """Refuse more bytes of tensors than a file has room for."""
    _check({"bytes in a file": (n_bytes, MOST_BYTES - _ROOM // 2, "fewer classes or examples")})


def inverted_at_once(geometry: Geometry, most: int) -> int:
    """Return how many samples to invert at once, so that memory is bounded: fewer where windows are large."""
    each = max(geometry.n_chans * geometry.n_times, geometry.depth * _scores(geometry))
    return max(1, min(most, _AT_ONCE // each))


_INVERTED = ("anchorinv", "deepdream", "deepinv")


def _fixed(method: str, geometry: Geometry) -> int:
    """Return how many values of a model there are whatever it learns."""
    if method in CLOSED_FORM:
        n_columns = _columns(geometry)
        return _weights(geometry) + n_columns * (2 + min(n_columns, MOST_FEATURES)) + MOST_FEATURES**2
    if method == "ranpac":
        return _weights(geometry) + N_RANDOM * geometry.dim + N_RANDOM * (N_RANDOM + 1) // 2
    return _weights(geometry) + (256 * geometry.dim if method == "finetune" else 0)


def _of_a_class(method: str, geometry: Geometry) -> int:
    """Return how many values of a model there are because of a class, whatever is kept of it."""
    if method == "mdm":
        return Covariance(geometry.n_chans, geometry.n_times).size + 1
    if method in CLOSED_FORM:
        dim = MOST_FEATURES if method == "discriminant" else min(TEXTBOOK.most_features, _columns(geometry))
        return dim + dim * (dim + 1) // 2
    if method == "ranpac":
        return N_RANDOM + 1
    return geometry.dim * (2 if method == "ridge" else 1)


def _of_a_sample(method: str, geometry: Geometry) -> int:
    """Return how many values are kept with a sample: latents are as large as features."""
    match method:
        case "real-replay":
            return geometry.n_chans * geometry.n_times + geometry.dim
        case "nc-fscil":
            return WIDTH
        case "anchorinv" | "fecam" | "whitened" | "anchorinv-plus":
            return 2 * geometry.dim  # an anchor, and its replay or a direction of the covariance
    return geometry.dim


def _columns(geometry: Geometry) -> int:
    """Return how many features all blocks have together."""
    shape = (geometry.n_chans, geometry.n_times)
    return sum(BLOCKS[name](*shape).size for name in suitable(shape))


def _weights(geometry: Geometry) -> int:
    g = geometry
    front = g.width * (g.kernel + g.width * (g.n_chans + 1) + 7)
    return front + g.depth * g.width * (12 * g.width + 13)


def _scores(geometry: Geometry) -> int:
    return geometry.heads * geometry.n_tokens**2


def _check(sizes: dict[str, tuple[int, int, str]]) -> None:
    for words, (size, most, remedy) in sizes.items():
        if size > most:
            raise ValueError(f"{size} {words} are too many, {most} at the most; use {remedy}")
