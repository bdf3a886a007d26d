"""What signals look like before one knows anything else: terms that are added to an inversion's goal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anchorinv.core.frontend import FrontEnd
from anchorinv.core.inversion import Goal

#: (trunk, signals (n, n_chans, n_times)) -> how unlikely they are, (n,) or one number for the whole batch.
Term = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Prior:
    """A term and its weight; None sets the weight so that it starts at the goal's magnitude."""

    name: str
    term: Term
    weight: float | None = None


def energy(trunk: nn.Module, signals: Tensor) -> Tensor:
    """Return the mean square of each signal (n,)."""
    return signals.square().mean((1, 2))


def length(trunk: nn.Module, signals: Tensor) -> Tensor:
    """Return the Euclidean norm of each signal (n,): the ℓ2 of DeepInv's authors, and of the paper's runs."""
    norms: Tensor = signals.flatten(1).norm(dim=1)
    return norms


def total_variation(trunk: nn.Module, signals: Tensor) -> Tensor:
    """Return the mean absolute step from sample to sample (n,)."""
    return signals.diff(dim=2).abs().mean((1, 2))


def roughness(trunk: nn.Module, signals: Tensor) -> Tensor:
    """Return the mean square of the second difference along time (n,)."""
    return signals.diff(n=2, dim=2).square().mean((1, 2))


def statistics(trunk: nn.Module, signals: Tensor) -> Tensor:
    """Return how far the batch's statistics are from those that the BatchNorm has seen in training (DeepInv).

    ‖mean - running mean‖ + ‖variance - running variance‖, biased, of the BatchNorm's own input.
    """
    front = next((module for module in trunk.modules() if isinstance(module, FrontEnd)), None)
    if front is None or front.norm.running_mean is None or front.norm.running_var is None:
        raise TypeError("the statistics prior needs a trunk whose front end has a BatchNorm")
    steps = front.filtered(signals)  # (n, width, 1, n_steps)
    mean, variance = steps.mean((0, 2, 3)), steps.var((0, 2, 3), correction=0)
    distance: Tensor = (mean - front.norm.running_mean).norm() + (variance - front.norm.running_var).norm()
    return distance


def with_priors(
    goal: Goal, priors: Sequence[Prior], trunk: nn.Module, start: Tensor
) -> tuple[Goal, dict[str, float]]:
    """Add priors to a goal.

    Returns
    -------
    The sum as a goal, and the weights used by name, where left open measured on ``start``.
    """
    if not priors:
        return goal, {}
    with torch.no_grad():
        magnitude = goal(start, slice(None)).mean()
        weights = {
            prior.name: float(magnitude / prior.term(trunk, start).mean().clamp_min(1e-12))
            if prior.weight is None
            else prior.weight
            for prior in priors
        }

    def total(signals: Tensor, part: slice) -> Tensor:
        terms = [weights[prior.name] * prior.term(trunk, signals) for prior in priors]
        return goal(signals, part) + sum(terms, start=signals.new_zeros(()))

    return total, weights
