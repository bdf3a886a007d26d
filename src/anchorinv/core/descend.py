"""The only gradient loop: base training, finetuning and inversion are objectives for it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from anchorinv.core.checkpoint import Bookmark, Checkpoint
from anchorinv.core.progress import tick
from anchorinv.core.quasi_newton import QuasiNewton
from anchorinv.core.schedule import OneCycle


@dataclass(frozen=True, slots=True)
class Plateau:
    """Stop when a loss has stopped falling, or has fallen far enough.

    Parameters
    ----------
    window : the loss is averaged over so many steps before it is compared.
    tolerance : a window counts as better if it is lower than the best by this fraction.
    patience : so many windows without a better one end the descent.
    enough : a window below this ends it too.
    """

    window: int
    tolerance: float = 0.01
    patience: int = 3
    enough: float = 0.0

    def reached(self, curve: Tensor) -> Tensor:
        """Say whether a loss curve (n_steps,), or each of several (n_steps, n), has got there: bool, (n,)."""
        if len(curve) % self.window:
            return torch.zeros(curve.shape[1:], dtype=torch.bool)
        means = curve.reshape(-1, self.window, *curve.shape[1:]).mean(1)
        best, stale = means[0], torch.zeros(curve.shape[1:], dtype=torch.int)
        for mean in means[1:]:
            better = mean < best * (1 - self.tolerance)
            best, stale = torch.where(better, mean, best), torch.where(better, 0, stale + 1)
        there: Tensor = (stale >= self.patience) | (means[-1] < self.enough)
        return there


@dataclass(frozen=True, slots=True)
class Descent:
    """How to descend: Adam's settings, the number of steps, and when to stop before.

    With losses per sample the rule is asked of each, and the descent ends when all have got there.
    ``schedule`` makes ``lr`` the highest rate of those it says; without one the rate stays.
    ``curvature`` takes the quasi-Newton steps of ``core/quasi_newton.py`` in place of Adam's, which have no
    rate; it needs smooth losses, one per sample of a single tensor.
    """

    steps: int
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    stop: Plateau | None = None
    curvature: bool = False
    schedule: OneCycle | None = None

    def rate(self, step: int) -> float:
        """Return the rate of a step: 0, 1, ..."""
        return self.lr * self.schedule(step, self.steps) if self.schedule else self.lr


def descend(
    objective: Callable[[int], Tensor],
    params: Iterable[Tensor],
    plan: Descent,
    *,
    task: str = "descend",
    buffers: Iterable[Tensor] = (),
    checkpoint: Checkpoint | None = None,
    every: int = 1,
    ended: Callable[[], bool] | None = None,
) -> Tensor:
    """Minimise an objective over ``params``, in place, by Adam or by quasi-Newton steps.

    Parameters
    ----------
    objective : step -> losses, a scalar or one per sample (n,); their sum is minimised.
    params : leaf tensors that require gradients.
    plan : rate, length and stop rule.
    task : the name under which progress is reported.
    buffers : tensors that the objective changes, such as running statistics; kept in a checkpoint.
    checkpoint : where the descent may be left and taken up, after any multiple of ``every`` steps.
    ended : asked after any multiple of ``every`` steps whether that was the last; what it remembers belongs
        to ``buffers``.

    Returns
    -------
    (n_steps,) the mean of the losses before each step.
    """
    # A plan of no steps is a method in its own right (frozen prototypes), not an error.
    if plan.steps == 0:
        return torch.zeros(0)
    # Listed, because inverting gives one tensor and training a module's generator.
    params = list(params)
    newton = QuasiNewton(params[0]) if plan.curvature else None
    optimiser = torch.optim.Adam(params, lr=plan.lr, betas=plan.betas, eps=plan.eps, fused=True)
    bookmark = Bookmark(params, buffers, optimiser)
    left = checkpoint.load() if checkpoint else None
    curve = bookmark.restore(left) if left else []
    with torch.enable_grad():
        for step in range(len(curve), plan.steps):
            optimiser.param_groups[0]["lr"] = plan.rate(step)
            losses = objective(step)
            gradients = torch.autograd.grad(losses.sum(), params)
            for param, gradient in zip(params, gradients, strict=True):
                param.grad = _laid_out_as(param, gradient)
            curve.append(losses.detach())
            newton.step(curve[-1]) if newton else optimiser.step()
            if step % 10 == 9 or step + 1 == plan.steps:
                tick(task, step + 1, plan.steps, curve[-1].mean().item())
            if plan.stop and len(curve) % plan.stop.window == 0:
                there = plan.stop.reached(torch.stack(curve))
                if there.all():
                    tick(task, plan.steps, plan.steps, curve[-1].mean().item())
                    break
                if newton:
                    newton.hold(there)
            if (step + 1) % every == 0:
                if ended and ended():
                    tick(task, plan.steps, plan.steps, curve[-1].mean().item())
                    break
                if checkpoint:
                    checkpoint.save(partial(bookmark.values, curve))
    if newton:
        newton.finish()
    for param in params:
        param.grad = None
    losses = torch.stack(curve)
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def _laid_out_as(param: Tensor, gradient: Tensor) -> Tensor:
    # The fused optimiser walks both through memory side by side and does not look at their strides.
    return gradient if gradient.stride() == param.stride() else torch.empty_like(param).copy_(gradient)
