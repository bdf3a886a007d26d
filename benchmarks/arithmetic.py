"""What each piece of work needs at least: the arithmetic of its matrix products, bytes to and from memory.

FLOP: two per multiply-add of every product and convolution in the formulation that is used here (one fused
convolution, a frozen trunk encoded once). Activations, norms and softmax are not counted, as is usual.
Bytes: every input, weight and result once, as if all that lies between them stayed in the cache. Both are
lower bounds, so the time they imply is a limit that nobody reaches.
"""

from dataclasses import dataclass

from anchorinv.core.networks import Geometry

FLOAT = 4  # bytes of a float32


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOP and bytes; costs add up, and a number times a cost is that much of it."""

    flop: float
    bytes: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flop + other.flop, self.bytes + other.bytes)

    def __rmul__(self, times: float) -> "Cost":
        return Cost(times * self.flop, times * self.bytes)

    def seconds(self, peak: float, bandwidth: float) -> float:
        """Return the least time at ``peak`` FLOP/s and ``bandwidth`` bytes/s."""
        return max(self.flop / peak, self.bytes / bandwidth)


def convolution(g: Geometry) -> float:
    """FLOP of the fused convolution of one signal."""
    return 2 * g.n_steps * g.width * g.n_chans * g.kernel


def fusion(g: Geometry) -> float:
    """FLOP of fusing the two convolutions' weights and biases."""
    return 2 * g.width**2 * (g.n_chans * g.kernel + 1)


def linear(g: Geometry) -> float:
    """FLOP of one block's five linear maps (query, key, value: 3; projection: 1; MLP: 8), one signal."""
    return 2 * g.n_tokens * 12 * g.width**2


def attention(g: Geometry) -> float:
    """FLOP of one block's scores and weighted sums, one signal; their gradients are twice as much."""
    return 2 * 2 * g.n_tokens**2 * g.width


def head(g: Geometry, n_classes: int) -> float:
    """FLOP of the cosines of one signal."""
    return 2 * g.dim * n_classes


def signal(g: Geometry) -> int:
    """Bytes of a signal."""
    return FLOAT * g.n_chans * g.n_times


def latent(g: Geometry) -> int:
    """Bytes of a latent, and of a feature vector."""
    return FLOAT * g.dim


def block_weights(g: Geometry) -> int:
    """Bytes of a block's weights."""
    return FLOAT * (12 * g.width**2 + 13 * g.width)


def weights(g: Geometry) -> int:
    """Bytes of a network's weights."""
    front = g.width * (g.kernel + g.width * g.n_chans + g.width + 7)
    return FLOAT * front + g.depth * block_weights(g)


def inversion_step(g: Geometry, n: int) -> Cost:
    """Forward and the gradient of the signals; Adam reads and writes signals and two moments."""
    projection = 2 * g.n_tokens * g.width**2
    forth = convolution(g) + projection + g.depth * (linear(g) + attention(g))
    back = convolution(g) + projection + g.depth * (linear(g) + 2 * attention(g))
    return Cost(fusion(g) + n * (forth + back), weights(g) + n * (6 * signal(g) + latent(g)))


def training_step(g: Geometry, n: int, n_classes: int) -> Cost:
    """Forward, gradients of all weights, and of all inputs but the signals; Adam on all weights."""
    projection = 2 * g.n_tokens * g.width**2
    forth = convolution(g) + projection + g.depth * (linear(g) + attention(g)) + head(g, n_classes)
    back = convolution(g) + 2 * (projection + g.depth * (linear(g) + attention(g)) + head(g, n_classes))
    moved = weights(g) + n_classes * latent(g)
    return Cost(3 * fusion(g) + n * (forth + back), 7 * moved + n * signal(g))


def finetuning_step(g: Geometry, n: int, n_classes: int) -> Cost:
    """Forward and gradients of the last block and the head, on latents; Adam on the block's weights."""
    per_sample = 3 * (linear(g) + attention(g) + head(g, n_classes))
    return Cost(n * per_sample, 7 * block_weights(g) + n * latent(g) + 7 * n_classes * latent(g))


def encoding(g: Geometry, n: int) -> Cost:
    """From signals to latents."""
    projection = 2 * g.n_tokens * g.width**2
    per_sample = convolution(g) + projection + (g.depth - 1) * (linear(g) + attention(g))
    return Cost(fusion(g) + n * per_sample, weights(g) - block_weights(g) + n * (signal(g) + latent(g)))


def scoring(g: Geometry, n: int, n_classes: int) -> Cost:
    """From latents to logits."""
    per_sample = linear(g) + attention(g) + head(g, n_classes)
    return Cost(n * per_sample, block_weights(g) + n * latent(g) + n_classes * latent(g))


def inference(g: Geometry, n: int, n_classes: int) -> Cost:
    """From signals to logits: latents stay in the cache."""
    both = encoding(g, n) + scoring(g, n, n_classes)
    return Cost(both.flop, both.bytes - 2 * n * latent(g))


def adaptation(
    g: Geometry, *, trials: int, steps: int, anchors: int, shots: int, n_base: int, tests: tuple[int, ...]
) -> Cost:
    """All trials through sessions of one new class each; ``tests`` are the samples scored after each one.

    Once: the anchors of the base classes are inverted and encoded, the test samples encoded. In each
    trial and session: the shots are encoded, tail and head finetuned and scored; between two sessions the
    shots of the last class are inverted.
    """
    total = steps * inversion_step(g, anchors) + encoding(g, anchors) + encoding(g, max(tests))
    for session, n_tests in enumerate(tests, start=1):
        n_classes = n_base + session
        batch = anchors + session * shots
        one = encoding(g, shots) + steps * finetuning_step(g, batch, n_classes)
        one += scoring(g, n_tests, n_classes)
        if session > 1:
            one += steps * inversion_step(g, shots) + encoding(g, shots)
        total += trials * one
    return total
