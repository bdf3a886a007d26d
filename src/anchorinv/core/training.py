"""Learning by gradients: the base session's training, and the adaptation to new classes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from anchorinv.core.aside import kept_aside
from anchorinv.core.best import Best
from anchorinv.core.checkpoint import Checkpoint
from anchorinv.core.descend import Descent, Plateau, descend
from anchorinv.core.heads import Head
from anchorinv.core.networks import frozen, trainable
from anchorinv.core.rng import scoped_seed, stream
from anchorinv.core.schedule import OneCycle
from anchorinv.core.types import Batch


@dataclass(frozen=True, slots=True)
class Training:
    """How the base session trains. The defaults are the paper's for BCI.

    Parameters
    ----------
    epochs, batch_size, lr, betas : of Adam.
    class_weights : weigh each class inversely to its number of samples, or to these sizes, one per class.
    converged : end before ``epochs`` by this rule, its window counted in epochs; off in the paper.
    schedule : how the rate changes, with ``lr`` as its highest; None leaves it as it is, as the paper does.
    patience : keep a tenth of the samples aside, leave the network as it was when it did best on them, and
        end after so many epochs without a better one; None learns from all, as the paper does.
    gain : in every step, make each channel of each window louder or softer by about this fraction, as
        electrodes that sit differently do; 0 in the paper.
    """

    epochs: int = 1500
    batch_size: int = 72
    lr: float = 2e-4
    betas: tuple[float, float] = (0.9, 0.999)
    class_weights: bool | tuple[int, ...] = False
    converged: Plateau | None = None
    # Marked, so that base models made before these were there are found again.
    schedule: OneCycle | None = field(default=None, metadata={"later": True})
    patience: int | None = field(default=None, metadata={"later": True})
    gain: float = field(default=0.0, metadata={"later": True})

    def descent(self, n_batches: int) -> Descent:
        """Return the plan in steps, for so many batches per epoch."""
        stop = self.converged
        if stop is not None:
            stop = Plateau(stop.window * n_batches, stop.tolerance, stop.patience, stop.enough)
        return Descent(self.epochs * n_batches, self.lr, self.betas, stop=stop, schedule=self.schedule)


def train(
    network: nn.Module,
    head: Head,
    samples: Batch,
    plan: Training,
    *,
    checkpoint: Checkpoint | None = None,
    rng: torch.Generator,
) -> Tensor:
    """Train a network and its head together, in place, by the head's loss.

    Parameters
    ----------
    samples : signals (n, n_chans, n_times), labelled by the head's columns; with ``patience``, whole groups
        are kept aside where they are known.
    checkpoint : where the training may be left and taken up, between epochs.

    Returns
    -------
    (n_steps,) the loss curve.
    """
    weights = _class_weights(samples, plan)
    samples, aside = _divided(samples, plan, rng)
    n_batches = -(-len(samples) // plan.batch_size)
    order = torch.empty(0)

    def objective(step: int) -> Tensor:
        nonlocal order
        epoch, batch = divmod(step, n_batches)
        if batch == 0:
            order = torch.randperm(len(samples), generator=stream(rng, "shuffle", epoch))
        chosen = order[batch * plan.batch_size : (batch + 1) * plan.batch_size]
        signals, targets = samples.values[chosen], samples.labels[chosen]
        if plan.gain:
            signals = _varied(signals, plan.gain, stream(rng, "gain", step))
        return head.loss(network(signals), targets, weights)

    network.train()
    head.train()
    best = Best(network, head, aside, weights, plan.patience) if aside and plan.patience else None
    with scoped_seed(stream(rng, "dropout")):
        params = [*network.parameters(), *head.parameters()]
        curve = descend(
            objective,
            params,
            plan.descent(n_batches),
            task="base training",
            buffers=[*network.buffers(), *head.buffers(), *(best.buffers if best else ())],
            checkpoint=checkpoint,
            every=n_batches,
            ended=best.ended if best else None,
        )
    if best:
        best.restore()
    frozen(network)
    frozen(head)
    return curve


def _varied(signals: Tensor, gain: float, rng: torch.Generator) -> Tensor:
    """Return signals (n, n_chans, n_times) with each channel of each louder or softer."""
    return signals * torch.exp(gain * torch.randn(*signals.shape[:2], 1, generator=rng)).to(signals)


def _divided(samples: Batch, plan: Training, rng: torch.Generator) -> tuple[Batch, Batch | None]:
    """Return what is learned from and what is kept aside, if anything is."""
    if plan.patience is None:
        return samples, None
    aside = kept_aside(samples.labels, samples.groups, rng=rng)
    return (samples[~aside], samples[aside]) if aside.any() else (samples, None)


def inverse(sizes: Tensor) -> Tensor:
    """Return weights (n_classes,) inversely proportional to class sizes, with mean 1."""
    weights = 1 / sizes.to(torch.get_default_dtype())
    return weights / weights.mean()


def _class_weights(samples: Batch, plan: Training) -> Tensor | None:
    if plan.class_weights is False:
        return None
    counts = samples.labels.bincount()
    sizes = counts if plan.class_weights is True else torch.tensor(plan.class_weights)
    if len(sizes) != len(counts):
        raise ValueError(f"class_weights has {len(sizes)} sizes for {len(counts)} base classes")
    return inverse(sizes).to(samples.values)


class Adaptation(Protocol):
    """How tail and head take in the shots of a session."""

    def __call__(
        self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None, *, session: int
    ) -> tuple[nn.Module, Head, Tensor]:
        """Return the adapted tail and head and the loss curve; samples are latents, labels are columns."""
        ...


@dataclass(frozen=True, slots=True)
class Stay:
    """Learn by placing prototypes alone: the network stays as it is."""

    def __call__(
        self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None, *, session: int
    ) -> tuple[nn.Module, Head, Tensor]:
        """Return tail and head as they are."""
        return tail, head, torch.zeros(0)


@dataclass(frozen=True, slots=True)
class Finetune:
    """Train tail and free head on shots and replay, full batch, without dropout (Eq. 10 to 12).

    Parameters
    ----------
    steps : per session; the last one holds for all later sessions.
    lr, betas : of Adam.
    replay_weight : the paper's λ.
    """

    steps: tuple[int, ...]
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    replay_weight: float = 1.0

    def __call__(
        self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None, *, session: int
    ) -> tuple[nn.Module, Head, Tensor]:
        """Return the finetuned copies and the loss curve."""
        plan = Descent(self.steps[min(session, len(self.steps)) - 1], self.lr, self.betas)
        return finetune(tail, head, shots, replay, plan, replay_weight=self.replay_weight)


def finetune(
    tail: nn.Module,
    head: Head,
    shots: Batch,
    replay: Batch | None,
    plan: Descent,
    *,
    replay_weight: float = 1.0,
    watch: Callable[[int, nn.Module, Head], None] | None = None,
) -> tuple[nn.Module, Head, Tensor]:
    """Minimise L_new + λ L_old over copies of tail and head.

    Parameters
    ----------
    shots, replay : latents (n, ...), labelled by the head's columns.
    watch : shown tail and head before each step, and once more after the last.

    Returns
    -------
    The finetuned tail and head, and the loss curve (n_steps,).
    """
    tail, head = trainable(tail), trainable(head)
    n_shots = len(shots)
    latents = shots.values if replay is None else torch.cat([shots.values, replay.values])

    def objective(step: int) -> Tensor:
        if watch:
            watch(step, tail, head)
        features = tail(latents)  # one pass for both terms
        loss = head.loss(features[:n_shots], shots.labels)
        if replay is not None:
            loss = loss + replay_weight * head.loss(features[n_shots:], replay.labels)
        return loss

    curve = descend(objective, [*tail.parameters(), *head.parameters()], plan, task="finetuning")
    if watch:
        watch(len(curve), tail, head)
    return frozen(tail), frozen(head), curve
