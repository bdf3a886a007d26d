"""Learning rates that change on the way, as shares of the highest one."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OneCycle:
    """Let the rate rise to its highest and fall to almost nothing, each along half a cosine.

    After Smith and Topin (Super-Convergence, 2019), with the shape that PyTorch's ``OneCycleLR`` has.

    Parameters
    ----------
    rise : the share of the steps in which the rate rises.
    first, last : the rates of the first and of the last step, as shares of the highest.

    Examples
    --------
    >>> [round(OneCycle()(step, 11), 3) for step in (0, 1, 2, 3, 10)]
    [0.04, 0.422, 0.96, 0.98, 0.0]
    """

    rise: float = 0.3
    first: float = 1 / 25
    last: float = 1 / 250_000

    def __post_init__(self) -> None:
        if not (0 < self.rise < 1 and 0 < self.first <= 1 and 0 < self.last <= 1):
            raise ValueError(
                f"rise (={self.rise}) must lie between 0 and 1, first (={self.first}) and "
                f"last (={self.last}) above 0, 1 at the most"
            )

    def __call__(self, step: int, steps: int) -> float:
        """Return the rate of a step (0, 1, ...) among so many, as a share of the highest."""
        top, end = self.rise * steps - 1, steps - 1
        if top <= 0:  # too few steps to rise in
            return _between(1.0, self.last, step / max(1, end))
        if step <= top:
            return _between(self.first, 1.0, step / top)
        return _between(1.0, self.last, (step - top) / (end - top))


def _between(start: float, end: float, share: float) -> float:
    """Return the value on half a cosine from ``start`` to ``end``."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))
