"""L-BFGS for many independent problems at once: every sample has its own curvature and its own step length.

Adam's steps have one length whatever the distance left, so inverting takes it thousands of them. The limited
memory of past steps and gradients tells how the loss bends, and a tenth of the steps gets as far
(Nocedal & Wright, Numerical Optimization, 2006, algorithm 7.4). One evaluation of the loss is one step here:
a step that went too far is taken back and shortened when the next one is asked for, so that the loop around
it is the same as Adam's.
"""

import torch
from torch import Tensor

#: A step is good if the loss fell by this part of what its slope promised (Armijo).
ENOUGH = 1e-4
#: What a step that went too far is shortened by; and the shortest one, after which the memory is useless.
SHORTER, SHORTEST = 0.4, 1e-3
#: The first step has this part of the length of the signals: nothing is known of the curvature yet.
FIRST = 0.1


class QuasiNewton:
    """Steps for a tensor whose samples (n, ...) are independent of each other.

    Parameters
    ----------
    leaf : (n, ...) what is moved, in place; its ``grad`` is that of the sum of the losses.
    memory : pairs of step and change of gradient that are remembered.
    """

    def __init__(self, leaf: Tensor, memory: int = 8) -> None:
        self._leaf, self._memory = leaf, memory
        n = len(leaf)
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # (step, change of gradient, 1 / their product)
        self._length = leaf.new_ones(n)
        self._held = torch.zeros(n, dtype=torch.bool)
        self._at: tuple[Tensor, Tensor, Tensor] | None = (
            None  # where the last good step led: place, loss, gradient
        )
        self._way = torch.zeros_like(leaf).detach()

    @torch.no_grad()
    def step(self, losses: Tensor) -> None:
        """Take the next step, knowing the losses (n,) and gradients where the last one led."""
        gradient = self._leaf.grad
        assert gradient is not None, "gradients come before a step"
        if self._at is None:
            self._at = self._leaf.detach().clone(), losses.clone(), gradient.clone()
            self._way = self._direction()
        else:
            good = self._judged(losses, gradient)
            way = self._direction()
            self._way = torch.where(_over(good, way), way, self._way)
        # A sample that is held stays where it got to.
        length = self._length.masked_fill(self._held, 0)
        self._leaf.copy_(torch.addcmul(self._at[0], _over(length, self._way), self._way))

    def hold(self, samples: Tensor) -> None:
        """Leave some samples (n,) bool where they are for good."""
        self._held |= samples

    @torch.no_grad()
    def finish(self) -> None:
        """Go back to where the last good steps led: the last one was not judged."""
        if self._at is not None:
            self._leaf.copy_(self._at[0])

    def _judged(self, losses: Tensor, gradient: Tensor) -> Tensor:
        """Say which steps were good (n,), accept those and shorten the others."""
        assert self._at is not None
        place, loss, slope = self._at
        promised = self._length * _dot(slope, self._way)
        good = (losses <= loss + ENOUGH * promised) & ~self._held
        step, change = self._leaf - place, gradient - slope
        along = _dot(step, change)
        # Where the loss does not bend upwards along the step, it says nothing of the curvature.
        tells = good & (along > 1e-10 * _dot(change, change))
        mask = _over(tells, step)
        self._pairs.append((step * mask, change * mask, torch.where(tells, 1 / along, 0)))
        self._pairs = self._pairs[-self._memory :]
        accept = _over(good, place)
        self._at = (
            torch.where(accept, self._leaf, place),
            torch.where(good, losses, loss),
            torch.where(accept, gradient, slope),
        )
        self._length = torch.where(good, 1.0, self._length * SHORTER)
        lost = ~good & (self._length < SHORTEST)
        if lost.any():
            self._forget(lost)
        return good | lost

    def _forget(self, lost: Tensor) -> None:
        self._pairs = [(step, change, inverse.masked_fill(lost, 0)) for step, change, inverse in self._pairs]
        self._length = self._length.masked_fill(lost, 1.0)

    def _direction(self) -> Tensor:
        """Return where to go (n, ...): the gradient, turned by what the remembered pairs tell."""
        assert self._at is not None
        place, _, gradient = self._at
        way = -gradient
        kept = []
        for step, change, inverse in reversed(self._pairs):
            share = inverse * _dot(step, way)
            way = torch.addcmul(way, _over(-share, way), change)
            kept.append(share)
        way = way * _over(self._scale(place, gradient), way)
        for (step, change, inverse), share in zip(self._pairs, reversed(kept), strict=True):
            way = torch.addcmul(way, _over(share - inverse * _dot(change, way), way), step)
        return way

    def _scale(self, place: Tensor, gradient: Tensor) -> Tensor:
        """Return the length of a step per slope (n,): by the last pair that tells it, or a cautious one."""
        scale = FIRST * _norm(place).clamp_min(1.0) / _norm(gradient).clamp_min(1e-30)
        for _, change, inverse in self._pairs:
            told = inverse > 0
            scale = torch.where(told, 1 / (inverse * _dot(change, change)).clamp_min(1e-30), scale)
        return scale


def _dot(a: Tensor, b: Tensor) -> Tensor:
    dot: Tensor = torch.linalg.vecdot(a.flatten(1), b.flatten(1))
    return dot


def _norm(a: Tensor) -> Tensor:
    norm: Tensor = a.flatten(1).norm(dim=1)
    return norm


def _over(each: Tensor, like: Tensor) -> Tensor:
    """Shape a value per sample (n,) so that it applies to all of the sample's."""
    return each.reshape(-1, *[1] * (like.ndim - 1))
