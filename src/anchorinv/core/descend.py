"""The only gradient loop: base training, finetuning and inversion are objectives for it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from anchorinv.core.checkpoint import Bookmark, Checkpoint
from anchorinv.core.progress import tick


@dataclass(frozen=True, slots=True)
class Plateau:
    """Stop when the loss has stopped falling, or has fallen far enough.

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

    def reached(self, curve: Tensor) -> bool:
        """Say whether a loss curve (n_steps,) has got there."""
        if len(curve) % self.window:
            return False
        means = curve.reshape(-1, self.window).mean(1)
        if means[-1] < self.enough:
            return True
        best, stale = means[0], 0
        for mean in means[1:]:
            if mean < best * (1 - self.tolerance):
                best, stale = mean, 0
            else:
                stale += 1
        return stale >= self.patience


@dataclass(frozen=True, slots=True)
class Descent:
    """How to descend: Adam's settings, the number of steps, and when to stop before."""

    steps: int
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    stop: Plateau | None = None


def descend(
    objective: Callable[[int], Tensor],
    params: Iterable[Tensor],
    plan: Descent,
    *,
    task: str = "descend",
    buffers: Iterable[Tensor] = (),
    checkpoint: Checkpoint | None = None,
    every: int = 1,
) -> Tensor:
    """Minimise an objective over ``params``, in place, by Adam.

    Parameters
    ----------
    objective : step -> losses, a scalar or one per sample (n,); their sum is minimised.
    params : leaf tensors that require gradients.
    plan : rate, length and stop rule.
    task : the name under which progress is reported.
    buffers : tensors that the objective changes, such as running statistics; kept in a checkpoint.
    checkpoint : where the descent may be left and taken up, after any multiple of ``every`` steps.

    Returns
    -------
    (n_steps,) the mean of the losses before each step.
    """
    # A plan of no steps is a method in its own right (frozen prototypes), not an error.
    if plan.steps == 0:
        return torch.zeros(0)
    # Listed, because inverting gives one tensor and training a module's generator.
    params = list(params)
    optimiser = torch.optim.Adam(params, lr=plan.lr, betas=plan.betas, eps=plan.eps, fused=True)
    bookmark = Bookmark(params, buffers, optimiser)
    left = checkpoint.load() if checkpoint else None
    curve = bookmark.restore(left) if left else []
    with torch.enable_grad():
        for step in range(len(curve), plan.steps):
            losses = objective(step)
            gradients = torch.autograd.grad(losses.sum(), params)
            for param, gradient in zip(params, gradients, strict=True):
                param.grad = _laid_out_as(param, gradient)
            optimiser.step()
            curve.append(losses.detach().mean())
            if step % 10 == 9 or step + 1 == plan.steps:
                tick(task, step + 1, plan.steps, curve[-1].item())
            if plan.stop and len(curve) % plan.stop.window == 0 and plan.stop.reached(torch.stack(curve)):
                tick(task, plan.steps, plan.steps, curve[-1].item())
                break
            if checkpoint and (step + 1) % every == 0:
                checkpoint.save(partial(bookmark.values, curve))
    for param in params:
        param.grad = None
    return torch.stack(curve)


def _laid_out_as(param: Tensor, gradient: Tensor) -> Tensor:
    # The fused optimiser walks both through memory side by side and does not look at their strides.
    return gradient if gradient.stride() == param.stride() else torch.empty_like(param).copy_(gradient)
