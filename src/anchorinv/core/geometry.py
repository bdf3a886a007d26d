"""The shape of a backbone: what comes in, how it is cut into tokens, how wide and deep it is."""

from dataclasses import dataclass

#: Shorter signals leave no room for a kernel, a pooling window and more than a few tokens.
MIN_TIMES = 16


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a :class:`~anchorinv.Conformer`.

    Parameters
    ----------
    n_chans, n_times : shape of one signal.
    kernel, stride : of the temporal convolution, in samples.
    pool, pool_stride : of the average pooling, in steps of the convolution.
    width : number of filters, and of values in a token.
    heads : attention heads; ``width`` is a multiple of it.
    depth : number of transformer blocks; the last one is the tail.
    dropout : after the pooling and inside the blocks, in training only.

    Examples
    --------
    >>> GEOMETRIES["bci2a"].n_tokens, GEOMETRIES["bci2a"].dim
    (61, 2440)
    """

    n_chans: int
    n_times: int
    kernel: int = 25
    stride: int = 1
    pool: int = 75
    pool_stride: int = 15
    width: int = 40
    heads: int = 10
    depth: int = 6
    dropout: float = 0.5

    def __post_init__(self) -> None:
        for name in (
            "n_chans",
            "n_times",
            "kernel",
            "stride",
            "pool",
            "pool_stride",
            "width",
            "heads",
            "depth",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} (={getattr(self, name)}) must be at least 1")
        if self.kernel > self.n_times:
            raise ValueError(
                f"n_times (={self.n_times}) is shorter than the temporal kernel (={self.kernel})"
            )
        if self.pool > self.n_steps:
            raise ValueError(
                f"the convolution leaves {self.n_steps} steps, fewer than the pooling window (={self.pool}); "
                f"use longer signals or a shorter kernel, stride or pooling"
            )
        if self.width % self.heads:
            raise ValueError(f"width (={self.width}) must be a multiple of heads (={self.heads})")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout (={self.dropout}) must be in [0, 1)")

    @property
    def n_steps(self) -> int:
        """Time steps after the convolution."""
        return (self.n_times - self.kernel) // self.stride + 1

    @property
    def n_tokens(self) -> int:
        """Tokens after the pooling."""
        return (self.n_steps - self.pool) // self.pool_stride + 1

    @property
    def dim(self) -> int:
        """Values in a feature vector."""
        return self.n_tokens * self.width

    @classmethod
    def for_shape(cls, n_chans: int, n_times: int) -> "Geometry":
        """Derive sizes for any signal: about 60 tokens for long ones, 40 and fewer for short ones.

        The proportions are the paper's: its BCI geometry comes out for (22, 1000).

        Examples
        --------
        >>> Geometry.for_shape(22, 1000) == GEOMETRIES["bci2a"]
        True
        >>> Geometry.for_shape(8, 300).n_tokens
        42
        """
        if n_times < MIN_TIMES:
            raise ValueError(
                f"signals of {n_times} samples are too short: at least {MIN_TIMES} are needed; "
                f"use longer windows or a higher sampling rate"
            )
        stride = max(1, n_times // 960)
        kernel = min(25 if stride == 1 else 16 * stride, n_times // 4)
        n_steps = (n_times - kernel) // stride + 1
        # Attention costs the square of the tokens, and short signals hold less to tell apart.
        wanted = min(61, max(40, n_times // 16))
        pool_stride = min(range(1, n_steps // 5 + 1), key=lambda p: abs((n_steps - 5 * p) // p + 1 - wanted))
        return cls(n_chans, n_times, kernel, stride, pool=5 * pool_stride, pool_stride=pool_stride)


GEOMETRIES: dict[str, Geometry] = {
    "bci2a": Geometry(22, 1000),
    "nhie": Geometry(8, 3840, kernel=64, stride=4),
    "grabmyo": Geometry(28, 1280, kernel=64, pool_stride=20),
}
