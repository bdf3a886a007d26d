"""The gradient loop of all training: Adam or L-BFGS, learning-rate schedule, early stopping, checkpoints."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from anchorinv.core.types import restore_generator
from anchorinv.progress import tick

#: Sufficient decrease of a step (Armijo).
ARMIJO = 1e-4
#: Factor that shortens a bad step; and the shortest step, after which the history is discarded.
SHORTER, SHORTEST = 0.4, 1e-3
#: Length of the first step relative to the signals', before any curvature is known.
FIRST = 0.1


class BatchedLBFGS:
    """L-BFGS for many independent problems at once: every sample has its own curvature and step length.

    Adam needs thousands of steps for an inversion. With curvature from past steps and gradients, a tenth of
    the steps is enough (Nocedal & Wright, Numerical Optimization, 2006, algorithm 7.4). One evaluation of the
    loss is one step: a step that went too far is taken back and shortened in the next call, so
    that the loop around it is the same as Adam's.

    Parameters
    ----------
    leaf : Tensor, shape (n, ...)
        What is moved, in place; its ``grad`` is that of the sum of the losses.
    memory : int, default=8
        Pairs of step and change of gradient that are remembered.
    """

    def __init__(self, leaf: Tensor, memory: int = 8) -> None:
        self._leaf, self._memory = leaf, memory
        n = len(leaf)
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # (step, change of gradient, 1 / their product)
        self._length = leaf.new_ones(n)
        self._frozen = torch.zeros(n, dtype=torch.bool, device=leaf.device)
        # Position, loss and gradient after the last good step.
        self._accepted: tuple[Tensor, Tensor, Tensor] | None = None
        self._search = torch.zeros_like(leaf).detach()

    @torch.no_grad()
    def step(self, losses: Tensor, gradient: Tensor) -> None:
        """Take the next step, given the losses (n,) and gradients after the last one."""
        if self._accepted is None:
            self._accepted = self._leaf.detach().clone(), losses.clone(), gradient.clone()
            self._search = self._direction()
        else:
            good = self._evaluate(losses, gradient)
            direction = self._direction()
            self._search = torch.where(_per_sample(good, direction), direction, self._search)
        # Frozen samples stay where they are.
        length = self._length.masked_fill(self._frozen, 0)
        self._leaf.copy_(torch.addcmul(self._accepted[0], _per_sample(length, self._search), self._search))

    def freeze(self, samples: Tensor) -> None:
        """Freeze some samples (n,) bool."""
        self._frozen |= samples

    @torch.no_grad()
    def finish(self) -> None:
        """Return to the last good steps: the latest one was not evaluated."""
        if self._accepted is not None:
            self._leaf.copy_(self._accepted[0])

    def _evaluate(self, losses: Tensor, gradient: Tensor) -> Tensor:
        """Accept good steps, shorten the others, and return which were good (n,)."""
        assert self._accepted is not None
        place, loss, slope = self._accepted
        promised = self._length * _dot(slope, self._search)
        good = (losses <= loss + ARMIJO * promised) & ~self._frozen
        step, change = self._leaf - place, gradient - slope
        along = _dot(step, change)
        # Without positive curvature along the step, the pair is skipped.
        informative = good & (along > 1e-10 * _dot(change, change))
        mask = _per_sample(informative, step)
        self._pairs.append((step * mask, change * mask, torch.where(informative, 1 / along, 0)))
        self._pairs = self._pairs[-self._memory :]
        accept = _per_sample(good, place)
        self._accepted = (
            torch.where(accept, self._leaf, place),
            torch.where(good, losses, loss),
            torch.where(accept, gradient, slope),
        )
        self._length = torch.where(good, 1.0, self._length * SHORTER)
        lost = ~good & (self._length < SHORTEST)
        if lost.any():
            self._pairs = [(step, change, rho.masked_fill(lost, 0)) for step, change, rho in self._pairs]
            self._length = self._length.masked_fill(lost, 1.0)
        return good | lost

    def _direction(self) -> Tensor:
        """Return the search direction (n, ...) by the two-loop recursion."""
        assert self._accepted is not None
        place, _, gradient = self._accepted
        direction = -gradient
        kept = []
        for step, change, inverse in reversed(self._pairs):
            share = inverse * _dot(step, direction)
            direction = torch.addcmul(direction, _per_sample(-share, direction), change)
            kept.append(share)
        direction = direction * _per_sample(self._scale(place, gradient), direction)
        for (step, change, inverse), share in zip(self._pairs, reversed(kept), strict=True):
            direction = torch.addcmul(
                direction, _per_sample(share - inverse * _dot(change, direction), direction), step
            )
        return direction

    def _scale(self, place: Tensor, gradient: Tensor) -> Tensor:
        """Return the initial scale of the step (n,): by the last pair, or a cautious one."""
        scale = FIRST * _norm(place).clamp_min(1.0) / _norm(gradient).clamp_min(1e-30)
        for _, change, inverse in self._pairs:
            usable = inverse > 0
            scale = torch.where(usable, 1 / (inverse * _dot(change, change)).clamp_min(1e-30), scale)
        return scale


def _dot(a: Tensor, b: Tensor) -> Tensor:
    dot: Tensor = torch.linalg.vecdot(a.flatten(1), b.flatten(1))
    return dot


def _norm(a: Tensor) -> Tensor:
    norm: Tensor = a.flatten(1).norm(dim=1)
    return norm


def _per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per sample (n,) to broadcast over the samples (n, ...)."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


class Checkpoint(Protocol):
    """Interface of a checkpoint of a training."""

    def load(self) -> dict[str, Tensor] | None:
        """Return the stored values, or None."""

    def save(self, values: Callable[[], dict[str, Tensor]]) -> None:
        """Store the values if it is time to; they are only gathered then."""


class AdamSteps:
    """Adam over some tensors, with its moments.

    Uses the function behind ``torch.optim.Adam``, which itself would import torch's compiler at first use:
    more than a second in every process.
    """

    def __init__(self, params: list[Tensor], plan: "Optimiser") -> None:
        self._params, self._plan = params, plan
        self.moments = {
            "step": [torch.zeros((), dtype=torch.float32, device=param.device) for param in params],
            "exp_avg": [torch.zeros_like(param) for param in params],
            "exp_avg_sq": [torch.zeros_like(param) for param in params],
        }

    @torch.no_grad()
    def step(self, gradients: list[Tensor], lr: float) -> None:
        """Take a step, with a gradient of the same layout for each tensor."""
        steps, means, squares = self.moments.values()
        beta1, beta2 = self._plan.betas
        adam(
            *(self._params, gradients, means, squares, [], steps),
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=0.0,
            eps=self._plan.eps,
            maximize=False,
        )


class Snapshot:
    """The position of a training, in host memory, so that it can be resumed on another device.

    ``buffers`` are tensors other than parameters that change, such as running statistics; ``moments`` are
    Adam's, one for each of ``params``.
    """

    def __init__(
        self, params: list[Tensor], buffers: Iterable[Tensor], moments: dict[str, list[Tensor]]
    ) -> None:
        self._tensors = {f"tensor.{i}": tensor for i, tensor in enumerate((*params, *buffers))}
        for name, tensors in moments.items():
            self._tensors |= {f"moment.{i}.{name}": moment for i, moment in enumerate(tensors)}

    def values(self, curve: list[Tensor]) -> dict[str, Tensor]:
        """Return copies of all tensors, the curve so far and the global generator's state."""
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._tensors.items()}
        return {**copies, "curve": torch.stack(curve).cpu(), "generator": torch.get_rng_state()}

    @torch.no_grad()
    def restore(self, values: dict[str, Tensor]) -> list[Tensor]:
        """Restore everything and return the curve so far; its length is the next step."""
        for name, tensor in self._tensors.items():
            tensor.copy_(values[name])
        restore_generator(values["generator"])
        return list(values["curve"].to(self._tensors["tensor.0"].device))


@dataclass(frozen=True, slots=True)
class OneCycle:
    """One-cycle schedule: the rate rises to its maximum and falls to almost 0, along half cosines.

    After Smith and Topin (Super-Convergence, 2019), with the shape that PyTorch's ``OneCycleLR`` has.

    Parameters
    ----------
    rise : float, default=0.3
        The share of the steps in which the rate rises.
    first, last : float
        The rates of the first and of the last step, as shares of the highest.
    """

    rise: float = 0.3
    first: float = 1 / 25
    last: float = 1 / 250_000

    def __post_init__(self) -> None:
        if not (0 < self.rise < 1 and 0 < self.first <= 1 and 0 < self.last <= 1):
            raise ValueError(
                f"rise (={self.rise}) must lie between 0 and 1, first (={self.first}) and "
                f"last (={self.last}) above 0, 1 at most"
            )

    def __call__(self, step: int, steps: int) -> float:
        """Return the rate of a step (0, 1, ...) as a share of the maximum."""
        top, end = self.rise * steps - 1, steps - 1
        if top <= 0:  # too few steps to rise
            return _between(1.0, self.last, step / max(1, end))
        if step <= top:
            return _between(self.first, 1.0, step / top)
        return _between(1.0, self.last, (step - top) / (end - top))


def _between(start: float, end: float, share: float) -> float:
    """Return the value on half a cosine from ``start`` to ``end``."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Stop when a loss has stopped falling, or has fallen far enough.

    Parameters
    ----------
    window : int
        Number of steps over which the loss is averaged before it is compared.
    tolerance : float, default=0.01
        A window counts as better if it is lower than the best by this fraction.
    patience : int, default=3
        Number of windows without improvement after which to stop.
    enough : float, default=0.0
        Stop also when a window is below this.
    """

    window: int
    tolerance: float = 0.01
    patience: int = 3
    enough: float = 0.0

    def reached(self, curve: Tensor) -> Tensor:
        """Return whether a loss curve (n_steps,), or each of several (n_steps, n), has converged (n,)."""
        if len(curve) % self.window:
            return torch.zeros(curve.shape[1:], dtype=torch.bool, device=curve.device)
        means = curve.reshape(-1, self.window, *curve.shape[1:]).mean(1)
        best, stale = means[0], torch.zeros(curve.shape[1:], dtype=torch.int, device=curve.device)
        for mean in means[1:]:
            better = mean < best * (1 - self.tolerance)
            best, stale = torch.where(better, mean, best), torch.where(better, 0, stale + 1)
        done: Tensor = (stale >= self.patience) | (means[-1] < self.enough)
        return done


@dataclass(frozen=True, slots=True)
class Optimiser:
    """How to minimise: Adam's settings, the number of steps, and when to stop before.

    With losses per sample, early stopping applies to each, and training ends when all have converged.
    With a ``schedule``, ``lr`` is its maximum; otherwise the rate is constant. ``use_lbfgs`` uses
    :class:`BatchedLBFGS` in place of Adam, without a rate; it needs smooth losses, one per sample of a single
    tensor.
    """

    steps: int
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    stop: EarlyStopping | None = None
    use_lbfgs: bool = False
    schedule: OneCycle | None = None

    def rate(self, step: int) -> float:
        """Return the rate of a step: 0, 1, ..."""
        return self.lr * self.schedule(step, self.steps) if self.schedule else self.lr


def minimise(
    objective: Callable[[int], Tensor],
    params: Iterable[Tensor],
    plan: Optimiser,
    *,
    task: str = "minimise",
    buffers: Iterable[Tensor] = (),
    checkpoint: Checkpoint | None = None,
    every: int = 1,
    should_stop: Callable[[], bool] | None = None,
) -> Tensor:
    """Minimise an objective over ``params``, leaf tensors, in place; return the loss curve (n_steps,).

    Parameters
    ----------
    objective : callable
        Step -> losses before it, a scalar or one per sample (n,); their sum is minimised.
    buffers : iterable of Tensor, default=()
        Tensors that the objective changes, such as running statistics; kept in a checkpoint.
    every : int, default=1
        Every this many steps, checkpoints are made and ``should_stop`` decides whether to stop.
    """
    # No steps is a valid setting (frozen prototypes), not an error.
    if plan.steps == 0:
        return torch.zeros(0)
    # Listed, because inverting gives one tensor and training a module's generator.
    params = list(params)
    lbfgs = BatchedLBFGS(params[0]) if plan.use_lbfgs else None
    adam_steps = AdamSteps(params, plan)
    snapshot = Snapshot(params, buffers, adam_steps.moments)
    saved = checkpoint.load() if checkpoint else None
    curve = snapshot.restore(saved) if saved else []
    with torch.enable_grad():
        for step in range(len(curve), plan.steps):
            losses = objective(step)
            # Zero for unused weights.
            raw = torch.autograd.grad(losses.sum(), params, materialize_grads=True)
            gradients = [_with_strides_of(*pair) for pair in zip(params, raw, strict=True)]
            curve.append(losses.detach())
            lbfgs.step(curve[-1], gradients[0]) if lbfgs else adam_steps.step(gradients, plan.rate(step))
            if step % 10 == 9 or step + 1 == plan.steps:
                tick(task, step + 1, plan.steps, curve[-1].mean().item())
            converged = torch.tensor(False)
            if plan.stop and len(curve) % plan.stop.window == 0:
                converged = plan.stop.reached(torch.stack(curve))
                if lbfgs:
                    lbfgs.freeze(converged)
            pause = (step + 1) % every == 0
            if converged.all() or (pause and should_stop and should_stop()):
                tick(task, plan.steps, plan.steps, curve[-1].mean().item())
                break
            if pause and checkpoint:
                checkpoint.save(partial(snapshot.values, curve))
    if lbfgs:
        lbfgs.finish()
    losses = torch.stack(curve).cpu()
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def _with_strides_of(param: Tensor, gradient: Tensor) -> Tensor:
    # The fused optimiser ignores strides.
    return gradient if gradient.stride() == param.stride() else torch.empty_like(param).copy_(gradient)
