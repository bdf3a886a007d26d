"""Inversion: signals that a frozen network maps to what one wants (Eq. 9 of the paper).

A *goal* says how far each signal is from what is wanted: from an anchor in the feature space, or from being
classified as a label. *Priors* (core/priors.py) are added to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.descend import Descent, Plateau, descend

# The published loss is a mean over a batch, ours a sum over samples, so that no sample depends on its
# neighbours. Gradients are as many times larger as a batch has samples, and so is Adam's eps: same steps.
EPS = 1e-8

#: (signals (n, n_chans, n_times), which of all samples they are) -> errors (n,).
Goal = Callable[[Tensor, slice], Tensor]

#: When a swift inversion is close enough: when fifty steps lower the squared error by less than a fifth.
SWIFT = Plateau(window=25, tolerance=0.2, patience=2)


@dataclass(frozen=True, slots=True)
class Inversion:
    """How to invert. The defaults are the paper's for BCI and NHIE.

    Parameters
    ----------
    steps, lr, betas : of Adam on the signals.
    from_zeros : start from zeros instead of standard normal noise (the paper's figure does).
    chunk : samples inverted at once; bounds the memory. A step of 50 samples of the paper's sizes lives on
        memory that the last one left; a step of 100 gives it back to the system and asks for it again.
    curvature : towards anchors alone, take quasi-Newton steps on the squared error: a tenth of the steps
        gets as close. Priors and labels are always pursued by Adam.
    stop : leave a sample where it is when its loss has stopped falling, by its own curve; the chunk ends
        with its last one.
    batch, new_batch : samples of base and of new classes whose mean the published loss is; they scale Adam's
        eps and nothing else. The authors invert the 10 shots of a new class by themselves: there it is 10.
    shared_noise : start every new class in every trial from the same noise, as the authors' runs do.
    """

    steps: int = 4000
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    from_zeros: bool = False
    chunk: int = 50
    curvature: bool = False
    stop: Plateau | None = None
    batch: int = 100
    new_batch: int = 100
    shared_noise: bool = False

    @classmethod
    def swift(cls, steps: int = 4000, **settings: Any) -> "Inversion":
        """Return quasi-Newton steps, each sample until its error hardly falls any more."""
        return cls(steps, curvature=True, stop=SWIFT, **settings)

    def start(self, n: int, shape: tuple[int, int], *, rng: torch.Generator) -> Tensor:
        """Return the signals (n, n_chans, n_times) from which the inversion starts."""
        return torch.zeros(n, *shape) if self.from_zeros else torch.randn(n, *shape, generator=rng)


@dataclass(frozen=True, slots=True, eq=False)
class Inverted:
    """What an inversion found.

    Parameters
    ----------
    signals : (n, n_chans, n_times)
    errors : (n,) of each signal, the mean absolute error of its features where anchors are the goal.
    curve : (n_steps + 1,) mean error before each step and at the end; a chunk that stopped early counts
        with its last value from there on.
    """

    signals: Tensor
    errors: Tensor
    curve: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Want the features of each signal to be its anchor (n, dim), by mean absolute error."""

    network: Callable[[Tensor], Tensor]
    anchors: Tensor

    def __call__(self, signals: Tensor, part: slice) -> Tensor:
        """Return the mean absolute error of each signal (n,)."""
        return (self.network(signals) - self.anchors[part]).abs().mean(1)

    def smoothly(self, signals: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """Return the mean square, which has the same minimum and bends smoothly there, and the error (n,)."""
        away = self.network(signals) - self.anchors[part]
        return away.square().mean(1), away.detach().abs().mean(1)


def reach(network: Callable[[Tensor], Tensor], anchors: Tensor) -> Goal:
    """Want the features of each signal to be its anchor (n, dim), by mean absolute error."""
    return Reach(network, anchors)


def classify(logits: Callable[[Tensor], Tensor], targets: Tensor) -> Goal:
    """Want each signal to be classified as its target (n,), by cross-entropy."""
    return lambda signals, part: F.cross_entropy(logits(signals), targets[part], reduction="none")


def invert(network: Callable[[Tensor], Tensor], anchors: Tensor, start: Tensor, plan: Inversion) -> Inverted:
    """Move signals until their features match the anchors.

    Parameters
    ----------
    network : signals -> features; frozen.
    anchors : (n, dim)
    start : (n, n_chans, n_times)

    Returns
    -------
    Inverted. A signal that got no closer than it started is returned as it started.
    """
    return pursue(reach(network, anchors), start, plan)


def pursue(goal: Goal, start: Tensor, plan: Inversion) -> Inverted:
    """Move signals (n, n_chans, n_times) towards a goal, chunk by chunk."""
    parts = [slice(i, i + plan.chunk) for i in range(0, len(start), plan.chunk)]
    signals = torch.empty_like(start)  # filled in place: of long windows, a copy more is gigabytes
    found = []
    for part in parts:
        chunk = _pursue_chunk(goal, part, start[part], plan)
        signals[part] = chunk.signals
        found.append((chunk.errors, chunk.curve))
    longest = max(len(curve) for _, curve in found)
    curves = torch.stack([_padded(curve, longest) for _, curve in found])
    sizes = torch.tensor([len(errors) for errors, _ in found]).to(curves)
    mean = (sizes[:, None] * curves).sum(0) / sizes.sum()
    return Inverted(signals, torch.cat([errors for errors, _ in found]), mean)


def _pursue_chunk(goal: Goal, part: slice, start: Tensor, plan: Inversion) -> Inverted:
    # The leaf lies in memory as (n, n_times, n_chans), the layout that the front end takes without a copy.
    leaf = start.transpose(1, 2).contiguous().clone().requires_grad_()
    smooth = goal.smoothly if plan.curvature and isinstance(goal, Reach) else None
    errors: list[Tensor] = []

    def objective(step: int) -> Tensor:
        signals = leaf.transpose(1, 2)
        losses, error = smooth(signals, part) if smooth else (found := goal(signals, part), found.detach())
        errors.append(error)
        return losses

    descent = Descent(
        plan.steps, plan.lr, plan.betas, EPS * plan.batch, plan.stop, curvature=smooth is not None
    )
    descend(objective, [leaf], descent, task="inverting")
    with torch.no_grad():
        after = goal(leaf.transpose(1, 2), part)
    before = errors[0] if errors else after
    worse = ~(after <= before)  # what overflowed is worse, too
    reached = torch.where(worse, before, after)
    kept = torch.where(worse[:, None, None], start, leaf.detach().transpose(1, 2)).contiguous()
    return Inverted(kept, reached, torch.stack([each.mean() for each in (*errors, reached)]))


def _padded(curve: Tensor, length: int) -> Tensor:
    return torch.cat([curve, curve[-1:].expand(length - len(curve))])
