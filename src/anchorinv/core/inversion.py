"""Feature-space-guided inversion: signals whose features are the anchors (Eq. 9 of the paper)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorinv.core.descend import Descent, Plateau, descend

# The published loss is a mean over a batch of 100 samples, ours a sum over samples, so that no sample
# depends on its neighbours. Gradients are 100 times larger and so is Adam's eps: the steps are the same.
EPS = 1e-8 * 100


@dataclass(frozen=True, slots=True)
class Inversion:
    """How to invert. The defaults are the paper's for BCI and NHIE.

    Parameters
    ----------
    steps, lr, betas : of Adam on the signals.
    from_zeros : start from zeros instead of standard normal noise (the paper's figure does).
    chunk : samples inverted at once; bounds the memory.
    stop : end before ``steps`` when a chunk's mean error has stopped falling, so that a sample's result
        then depends on its chunk; off in the paper.
    """

    steps: int = 4000
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    from_zeros: bool = False
    chunk: int = 100
    stop: Plateau | None = None

    def start(self, n: int, shape: tuple[int, int], *, rng: torch.Generator) -> Tensor:
        """Return the signals (n, n_chans, n_times) from which the inversion starts."""
        return torch.zeros(n, *shape) if self.from_zeros else torch.randn(n, *shape, generator=rng)


@dataclass(frozen=True, slots=True, eq=False)
class Inverted:
    """What an inversion found.

    Parameters
    ----------
    signals : (n, n_chans, n_times)
    errors : (n,) mean absolute error of the features of each signal.
    curve : (n_steps + 1,) mean error before each step and at the end; a chunk that stopped early counts
        with its last value from there on.
    """

    signals: Tensor
    errors: Tensor
    curve: Tensor


def invert(
    network: Callable[[Tensor], Tensor],
    anchors: Tensor,
    start: Tensor,
    plan: Inversion,
    *,
    task: str = "invert",
) -> Inverted:
    """Move signals until their features match the anchors, by mean absolute error.

    Parameters
    ----------
    network : signals -> features; frozen.
    anchors : (n, dim)
    start : (n, n_chans, n_times)

    Returns
    -------
    Inverted. A signal that got no closer than it started is returned as it started.
    """
    chunks = [
        _invert_chunk(network, *chunk, plan, task=task)
        for chunk in zip(torch.split(anchors, plan.chunk), torch.split(start, plan.chunk), strict=True)
    ]
    longest = max(len(chunk.curve) for chunk in chunks)
    curves = torch.stack([_padded(chunk.curve, longest) for chunk in chunks])
    sizes = torch.tensor([len(chunk.errors) for chunk in chunks]).to(curves)
    return Inverted(
        torch.cat([chunk.signals for chunk in chunks]),
        torch.cat([chunk.errors for chunk in chunks]),
        (sizes[:, None] * curves).sum(0) / sizes.sum(),
    )


def _invert_chunk(
    network: Callable[[Tensor], Tensor], anchors: Tensor, start: Tensor, plan: Inversion, *, task: str
) -> Inverted:
    def errors(leaf: Tensor) -> Tensor:
        return (network(leaf.transpose(1, 2)) - anchors).abs().mean(1)

    # The leaf lies in memory as (n, n_times, n_chans), the layout that the front end takes without a copy.
    leaf = start.transpose(1, 2).contiguous().clone()
    with torch.no_grad():
        before = errors(leaf)
    leaf.requires_grad_()
    descent = Descent(plan.steps, plan.lr, plan.betas, EPS, plan.stop)
    curve = descend(lambda step: errors(leaf), [leaf], descent, task=task)
    with torch.no_grad():
        after = errors(leaf)
    signals = leaf.detach().transpose(1, 2)
    worse = ~(after <= before)  # what overflowed is worse, too
    reached = torch.where(worse, before, after)
    kept = torch.where(worse[:, None, None], start, signals).contiguous()
    return Inverted(kept, reached, torch.cat([curve, reached.mean()[None]]))


def _padded(curve: Tensor, length: int) -> Tensor:
    return torch.cat([curve, curve[-1:].expand(length - len(curve))])
