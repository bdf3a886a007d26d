"""Inversion: signals whose features match anchors or whose class is a label, with priors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from anchorinv.core.conformer import FrontEnd
from anchorinv.core.minimise import EarlyStopping, Optimiser, minimise
from anchorinv.core.networks import HOST, device_of

# The published loss is a mean over a batch, ours a sum over samples, so that samples are independent.
# Gradients are larger by the batch size, and Adam's eps is scaled likewise: the steps are the same.
EPS = 1e-8

#: (signals (n, n_chans, n_times), which of all samples they are) -> errors (n,).
InversionLoss = Callable[[Tensor, slice], Tensor]

#: L-BFGS stops when fifty steps lower the squared error by less than a fifth.
LBFGS_STOPPING = EarlyStopping(window=25, tolerance=0.2, patience=2)


@dataclass(frozen=True, slots=True)
class Inversion:
    """How to invert. The defaults are the paper's for BCI and NHIE.

    Parameters
    ----------
    steps, lr, betas : int, float, (float, float)
        Of Adam on the signals.
    from_zeros : bool, default=False
        Start from zeros instead of standard normal noise (the paper's figure does).
    chunk : int, default=50
        Samples inverted at once, to bound memory. With 50 samples of the paper's sizes, steps reuse memory;
        with 100, it is returned to the system and allocated again in each step.
    use_lbfgs : bool, default=False
        Towards anchors alone, take L-BFGS steps on the squared error: a tenth of the steps gets as close.
        Losses with priors or labels are always minimised by Adam.
    stop : EarlyStopping or None, default=None
        Stop a sample when its own loss has stopped falling; a chunk ends with its last sample.
    batch, new_batch : int
        Batch sizes of base and new classes in the published loss, which is a mean; they only scale Adam's
        eps. The authors invert the 10 shots of a new class separately: there it is 10.
    shared_noise : bool, default=False
        Start every new class in every trial from the same noise, as the authors' runs do.

    Examples
    --------
    >>> Inversion(from_zeros=True).start(2, (22, 1000), rng=torch.Generator()).shape
    torch.Size([2, 22, 1000])
    """

    steps: int = 4000
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    from_zeros: bool = False
    chunk: int = 50
    use_lbfgs: bool = False
    stop: EarlyStopping | None = None
    batch: int = 100
    new_batch: int = 100
    shared_noise: bool = False

    @classmethod
    def lbfgs(cls, steps: int = 4000, **settings: Any) -> "Inversion":
        """Return an inversion by L-BFGS, in which each sample stops when its error hardly falls."""
        return cls(steps, use_lbfgs=True, stop=LBFGS_STOPPING, **settings)

    def start(self, n: int, shape: tuple[int, int], *, rng: torch.Generator) -> Tensor:
        """Return the signals (n, n_chans, n_times) from which the inversion starts."""
        return torch.zeros(n, *shape) if self.from_zeros else torch.randn(n, *shape, generator=rng)


@dataclass(frozen=True, slots=True, eq=False)
class Inverted:
    """The result of an inversion.

    Parameters
    ----------
    signals : Tensor, shape (n, n_chans, n_times)
    errors : Tensor, shape (n,)
        Of each signal, the mean absolute error of its features where anchors are to be matched.
    curve : Tensor, shape (n_steps + 1,)
        Mean error before each step and at the end; the last value is repeated for chunks that stopped early.
    """

    signals: Tensor
    errors: Tensor
    curve: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class MatchFeatures:
    """Mean absolute error between the features of each signal and its anchor (n, dim)."""

    network: Callable[[Tensor], Tensor]
    anchors: Tensor

    def __call__(self, signals: Tensor, part: slice) -> Tensor:
        """Return the mean absolute error of each signal (n,)."""
        return (self.network(signals) - self.anchors[part]).abs().mean(1)

    def with_squares(self, signals: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """Return the mean square, which is smooth at the same minimum, and the error (n,)."""
        difference = self.network(signals) - self.anchors[part]
        return difference.square().mean(1), difference.detach().abs().mean(1)


def match_labels(logits: Callable[[Tensor], Tensor], targets: Tensor) -> InversionLoss:
    """Cross-entropy of each signal's logits and its target (n,)."""
    return lambda signals, part: F.cross_entropy(logits(signals), targets[part], reduction="none")


def invert(network: Callable[[Tensor], Tensor], anchors: Tensor, start: Tensor, plan: Inversion) -> Inverted:
    """Move signals until their features match the anchors.

    Parameters
    ----------
    network : callable
        Signals -> features; frozen.
    anchors : Tensor, shape (n, dim)
    start : Tensor, shape (n, n_chans, n_times)
    plan : Inversion

    Returns
    -------
    A signal that did not improve is returned as it started.
    """
    device = device_of(network) if isinstance(network, nn.Module) else HOST
    return invert_with(MatchFeatures(network, anchors.to(device)), start, plan, device)


def invert_with(loss: InversionLoss, start: Tensor, plan: Inversion, device: torch.device = HOST) -> Inverted:
    """Move signals (n, n_chans, n_times) until an inversion loss is small, chunk by chunk on a device."""
    signals = torch.empty_like(start)  # filled in place: a copy of long windows takes gigabytes
    results = []
    for first in range(0, len(start), plan.chunk):
        part = slice(first, first + plan.chunk)
        chunk = _invert_chunk(loss, part, start[part].to(device), plan)
        signals[part] = chunk.signals
        results.append((chunk.errors.cpu(), chunk.curve.cpu()))
    longest = max(len(curve) for _, curve in results)
    curves = torch.stack([torch.cat([c, c[-1:].expand(longest - len(c))]) for _, c in results])
    sizes = torch.tensor([len(errors) for errors, _ in results]).to(curves)
    mean = (sizes[:, None] * curves).sum(0) / sizes.sum()
    return Inverted(signals, torch.cat([errors for errors, _ in results]), mean)


def _invert_chunk(loss: InversionLoss, part: slice, start: Tensor, plan: Inversion) -> Inverted:
    # The leaf's memory layout is (n, n_times, n_chans), which the front end uses without a copy.
    leaf = start.transpose(1, 2).contiguous().clone().requires_grad_()
    squared = loss.with_squares if plan.use_lbfgs and isinstance(loss, MatchFeatures) else None
    errors: list[Tensor] = []

    def objective(step: int) -> Tensor:
        signals = leaf.transpose(1, 2)
        if squared:
            losses, error = squared(signals, part)
        else:
            losses = loss(signals, part)
            error = losses.detach()
        errors.append(error)
        return losses

    optimiser = Optimiser(
        plan.steps, plan.lr, plan.betas, EPS * plan.batch, plan.stop, use_lbfgs=squared is not None
    )
    minimise(objective, [leaf], optimiser, task="inverting")
    with torch.no_grad():
        after = loss(leaf.transpose(1, 2), part)
    before = errors[0] if errors else after
    worse = ~(after <= before)  # overflow counts as worse, too
    final = torch.where(worse, before, after)
    signals = torch.where(worse[:, None, None], start, leaf.detach().transpose(1, 2)).contiguous()
    return Inverted(signals, final, torch.stack([error.mean() for error in (*errors, final)]))


#: (network, signals (n, n_chans, n_times)) -> penalty, (n,) or one number for the batch.
Term = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Prior:
    """A penalty and its weight; None chooses the weight so that it starts at the magnitude of the loss."""

    name: str
    term: Term
    weight: float | None = None


def energy(network: nn.Module, signals: Tensor) -> Tensor:
    """Return the mean square of each signal (n,)."""
    return signals.square().mean((1, 2))


def length(network: nn.Module, signals: Tensor) -> Tensor:
    """Return the Euclidean norm of each signal (n,): the ℓ2 of DeepInv's authors, and of the paper's runs."""
    norms: Tensor = signals.flatten(1).norm(dim=1)
    return norms


def total_variation(network: nn.Module, signals: Tensor) -> Tensor:
    """Return the mean absolute step from sample to sample (n,)."""
    return signals.diff(dim=2).abs().mean((1, 2))


def roughness(network: nn.Module, signals: Tensor) -> Tensor:
    """Return the mean square of the second difference along time (n,)."""
    return signals.diff(n=2, dim=2).square().mean((1, 2))


def statistics(network: nn.Module, signals: Tensor) -> Tensor:
    """Return DeepInv's ‖mean - running mean‖ + ‖variance - running variance‖ at the first BatchNorm."""
    front = next((module for module in network.modules() if isinstance(module, FrontEnd)), None)
    norm, running_mean, running_variance = _first_norm(network)
    steps = front.filtered(signals) if front else _input_of(norm, network, signals)  # (n, width, ...)
    over = [dim for dim in range(steps.ndim) if dim != 1]
    mean, variance = steps.mean(over), steps.var(over, correction=0)
    distance: Tensor = (mean - running_mean).norm() + (variance - running_variance).norm()
    return distance


def _first_norm(network: nn.Module) -> tuple[_BatchNorm, Tensor, Tensor]:
    """Return the first BatchNorm with running statistics, and these; deepinv needs one."""
    for norm in (module for module in network.modules() if isinstance(module, _BatchNorm)):
        if norm.running_mean is not None and norm.running_var is not None:
            return norm, norm.running_mean, norm.running_var
    raise ValueError(
        "deepinv compares signals by the running statistics of a BatchNorm, and this backbone has none; "
        "use deepdream, which does without, or a backbone with a BatchNorm"
    )


class _InputReached(Exception):  # noqa: N818 (not an error: stops the forward pass)
    pass


def _input_of(module: nn.Module, network: nn.Module, signals: Tensor) -> Tensor:
    """Return the input of a module when its network is applied to signals."""
    inputs: list[Tensor] = []

    def stop(module: nn.Module, args: tuple[Any, ...]) -> None:
        inputs.append(args[0])
        raise _InputReached

    hook = module.register_forward_pre_hook(stop)
    try:
        network(signals)
    except _InputReached:
        return inputs[0]
    finally:
        hook.remove()
    raise ValueError("the first BatchNorm of this backbone is not used; deepinv needs one, deepdream none")


def with_priors(
    loss: InversionLoss, priors: Sequence[Prior], network: nn.Module, start: Tensor
) -> tuple[InversionLoss, dict[str, float]]:
    """Add priors to a loss.

    Returns
    -------
    The sum as a loss, and the weights by name; unset ones are measured on ``start``, on its device.
    """
    if not priors:
        return loss, {}
    with torch.no_grad():
        magnitude = loss(start, slice(None)).mean()
        weights = {
            prior.name: float(magnitude / prior.term(network, start).mean().clamp_min(1e-12))
            if prior.weight is None
            else prior.weight
            for prior in priors
        }

    def total(signals: Tensor, part: slice) -> Tensor:
        terms = [weights[prior.name] * prior.term(network, signals) for prior in priors]
        return loss(signals, part) + sum(terms, start=signals.new_zeros(()))

    return total, weights
