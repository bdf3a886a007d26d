"""How large a model may be: whatever in a model file drives an allocation or a loop has its bound here.

What is bounded in a file is bounded in ``fit`` too, so that whatever was learned can be written.
"""

from collections.abc import Sequence

from anchorinv.core.catalogue import JUDGED
from anchorinv.core.geometry import Geometry

#: Bytes of a file's header and of its tensors; reading takes twice the latter.
MOST_HEADER, MOST_BYTES = 4 << 20, 1 << 29
#: Characters of a name, and of a remark.
LONGEST_NAME, LONGEST_NOTE = 200, 1000
MOST_CLASSES, MOST_CHANNELS = 4096, 1024
#: Epochs of training, steps of an inversion or a finetuning.
MOST_STEPS = 100_000
#: Kept of each base class, and in a batch.
MOST_ANCHORS, MOST_BATCH = 10_000, 1 << 20
#: In Hz, of signals and of a filter's edges.
LOWEST_RATE, HIGHEST_RATE = 1e-3, 1e6
#: Of a model's rate to that of a recording.
LOWEST_RATIO, HIGHEST_RATIO = 1e-3, 100.0
SEEDS = range(-(2**63), 2**64)


def check_geometry(geometry: Geometry) -> None:
    """Refuse a network that a window could not be computed with in bounded memory and time."""
    g = geometry
    products = g.n_chans * g.kernel * g.n_steps
    _check(
        {
            "channels": (g.n_chans, MOST_CHANNELS),
            "values of a window": (g.n_chans * g.n_times, 1 << 24),
            "values within the network (steps x width)": (g.n_steps * g.width, 1 << 24),
            "weights of the convolution (width x channels x kernel)": (
                g.width * g.n_chans * g.kernel,
                1 << 24,
            ),
            "products of a filter (channels x kernel x steps)": (products, 1 << 27),
            "products of the convolution": (g.width * products, 1 << 32),
            "steps of the pooling window": (g.pool, 1 << 14),
            "values pooled (tokens x width x pool)": (g.n_tokens * g.width * g.pool, 1 << 22),
            "values of width": (g.width, 1 << 10),
            "blocks": (g.depth, 64),
            "scores of attention (heads x tokens²)": (_scores(g), 1 << 22),
        }
    )


def kept_by(method: str, counts: Sequence[int], n_anchors: int) -> int:
    """Return how many samples a method keeps of base classes that have so many each."""
    match method:
        case "finetune" | "protonet" | "teen":
            return 0
        case "nc-fscil":
            return len(counts)
        case "deepdream" | "deepinv":
            return n_anchors * len(counts)
    return sum(min(count, n_anchors) for count in counts)


def check_kept(method: str, geometry: Geometry, n_classes: int, n_kept: int) -> None:
    """Refuse more samples kept of all classes (anchors, replay) than a lesson could compute with."""
    sizes = {
        "classes": (n_classes, MOST_CLASSES),
        # Ridge regression takes the square of them.
        "samples kept": (n_kept, 1 << (13 if method == "ridge" else 14)),
        "samples kept x classes": (n_kept * n_classes, 1 << 25),
    }
    if method not in JUDGED:  # the others send what they keep through the network, all of it at once
        sizes |= {
            "values of all samples kept": (n_kept * geometry.n_chans * geometry.n_times, 1 << 28),
            "scores of attention of all samples kept": (n_kept * _scores(geometry), 1 << 28),
        }
    _check(sizes)


def _scores(geometry: Geometry) -> int:
    return geometry.heads * geometry.n_tokens**2


def _check(sizes: dict[str, tuple[int, int]]) -> None:
    for words, (size, most) in sizes.items():
        if size > most:
            raise ValueError(f"{size} {words} are too many to compute with, {most} at the most; use fewer")
