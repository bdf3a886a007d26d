"""Base training: which samples are held out, when to stop, and which weights to keep."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from anchorinv.core.head import Head
from anchorinv.core.minimise import Checkpoint, EarlyStopping, OneCycle, Optimiser, minimise
from anchorinv.core.networks import device_of, encode, frozen
from anchorinv.core.rng import scoped_seed, stream
from anchorinv.core.types import Batch

#: Share of the samples held out, about.
SHARE = 0.1
#: Minimum number of groups, and of held-out samples, for a meaningful loss.
LEAST_GROUPS = 5
LEAST_KEPT = 20


def holdout(labels: Tensor, groups: Tensor | None = None, *, rng: torch.Generator) -> Tensor:
    """Return which samples to hold out (n,), about a tenth: whole groups (n,), or some of each class without.

    None are held out if a class would be left without samples, or if there are too few to evaluate on: fewer
    than 5 groups, fewer than 20 samples, or without groups a class of fewer than 10.
    """
    if groups is not None and groups.shape != labels.shape:
        raise ValueError(f"{len(groups)} groups for {len(labels)} samples; one per sample is needed")
    kept = _of_classes(labels, rng) if groups is None else _whole(labels, groups, rng)
    return kept if kept.sum() >= LEAST_KEPT else torch.zeros_like(kept)


def _of_classes(labels: Tensor, rng: torch.Generator) -> Tensor:
    kept = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        places = (labels == label).nonzero().flatten()
        if (n_kept := int(len(places) * SHARE)) == 0:  # the other classes alone would decide
            return torch.zeros_like(kept)
        order = torch.randperm(len(places), generator=stream(rng, "aside", label))
        kept[places[order[:n_kept]]] = True
    return kept


def _whole(labels: Tensor, groups: Tensor, rng: torch.Generator) -> Tensor:
    kept = torch.zeros(len(labels), dtype=torch.bool)
    names = sorted(set(groups.tolist()))
    if len(names) < LEAST_GROUPS:
        return kept
    classes = set(labels.tolist())
    order = torch.randperm(len(names), generator=stream(rng, "aside"))
    for place in order.tolist():
        if kept.sum() >= SHARE * len(labels):
            break
        more = kept | (groups == names[place])
        # A group that is much of the data, or all of a class, is not held out.
        if more.sum() <= 2 * SHARE * len(labels) and set(labels[~more].tolist()) == classes:
            kept = more
    return kept


class BestWeights:
    """Early stopping: keep the weights with the lowest held-out loss, and decide when to stop.

    Parameters
    ----------
    network, head : nn.Module, Head
        What is trained, in place.
    aside : Batch
        Signals (n, n_chans, n_times), labelled by the head's columns.
    weights : Tensor, shape (n_classes,) or None
        Of the classes in the loss, or None.
    patience : int
        Number of evaluations without improvement after which to stop.
    """

    def __init__(
        self, network: nn.Module, head: Head, aside: Batch, weights: Tensor | None, patience: int
    ) -> None:
        self._network, self._head, self._aside, self._weights = network, head, aside, weights
        self._patience = patience
        self._tensors = [*network.state_dict().values(), *head.state_dict().values()]  # not copies
        self._kept = [tensor.clone() for tensor in self._tensors]
        self._loss, self._stale = torch.tensor(torch.inf, dtype=torch.float64), torch.tensor(0)

    @property
    def buffers(self) -> list[Tensor]:
        """Its state as tensors, which a checkpoint can restore in place."""
        return [*self._kept, self._loss, self._stale]

    @torch.no_grad()
    def ended(self) -> bool:
        """Evaluate the held-out loss, keep the weights if it is the lowest so far, return whether to stop."""
        if (loss := self.loss()) < self._loss:
            self._loss.fill_(loss)
            self._stale.zero_()
            for kept, tensor in zip(self._kept, self._tensors, strict=True):
                kept.copy_(tensor)
        else:
            self._stale += 1
        return bool(self._stale >= self._patience)

    @torch.no_grad()
    def loss(self) -> float:
        """Return the held-out loss in evaluation mode."""
        self._network.eval()
        self._head.eval()
        device = device_of(self._network)
        features = encode(self._network, self._aside.values).to(device)
        loss = self._head.loss(features, self._aside.labels.to(device), self._weights).item()
        self._network.train()
        self._head.train()
        return loss

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the best weights; before the first evaluation, the initial ones."""
        for kept, tensor in zip(self._kept, self._tensors, strict=True):
            tensor.copy_(kept)


@dataclass(frozen=True, slots=True)
class Training:
    """How the base session trains. The defaults are the paper's for BCI.

    Parameters
    ----------
    epochs, batch_size, lr, betas : int, float, (float, float)
        Of Adam.
    class_weights : bool or tuple of int, default=False
        Weigh each class inversely to its number of samples, or to these sizes, one per class.
    converged : EarlyStopping or None, default=None
        End before ``epochs`` by this rule, its window counted in epochs; off in the paper.
    schedule : OneCycle or None
        How the rate changes, with ``lr`` as its highest; None leaves it as it is, as the paper does.
    patience : int or None
        Early stopping: hold out a tenth of the samples, keep the weights with the lowest loss on them, and
        stop after this many epochs without improvement; None trains on all samples, as the paper does.
    gain : float
        Data augmentation: scale each channel of each window randomly by about this fraction in every step, as
        shifted electrodes do; 0 in the paper.

    Examples
    --------
    >>> Training(epochs=10, batch_size=16).optimiser(n_batches=5).steps
    50
    """

    epochs: int = 1500
    batch_size: int = 72
    lr: float = 2e-4
    betas: tuple[float, float] = (0.9, 0.999)
    class_weights: bool | tuple[int, ...] = False
    converged: EarlyStopping | None = None
    # Left out of hashes at their defaults, so that base models cached before these settings are still valid.
    schedule: OneCycle | None = field(default=None, metadata={"later": True})
    patience: int | None = field(default=None, metadata={"later": True})
    gain: float = field(default=0.0, metadata={"later": True})

    def optimiser(self, n_batches: int) -> Optimiser:
        """Return the plan in steps, for a number of batches per epoch."""
        stop = self.converged
        if stop is not None:
            stop = EarlyStopping(stop.window * n_batches, stop.tolerance, stop.patience, stop.enough)
        return Optimiser(self.epochs * n_batches, self.lr, self.betas, stop=stop, schedule=self.schedule)


def train(
    network: nn.Module,
    head: Head,
    samples: Batch,
    plan: Training,
    *,
    checkpoint: Checkpoint | None = None,
    rng: torch.Generator,
) -> Tensor:
    """Train a network and its head together, in place and on their device, by the head's loss.

    Parameters
    ----------
    samples : Batch
        Signals (n, n_chans, n_times), labelled by the head's columns; with ``patience``, whole groups are
        held out where they are known.
    checkpoint : Checkpoint or None, default=None
        Where training can be interrupted and resumed, between epochs.

    Returns
    -------
    (n_steps,) the loss curve.
    """
    device = device_of(network)
    weights = _class_weights(samples, plan, device)
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
            loudness = torch.randn(*signals.shape[:2], 1, generator=stream(rng, "gain", step))
            signals = signals * torch.exp(plan.gain * loudness).to(signals)
        return head.loss(network(signals.to(device)), targets.to(device), weights)

    network.train()
    head.train()
    best = BestWeights(network, head, aside, weights, plan.patience) if aside and plan.patience else None
    with scoped_seed(stream(rng, "dropout"), device):
        curve = minimise(
            objective,
            [*network.parameters(), *head.parameters()],
            plan.optimiser(n_batches),
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


def _divided(samples: Batch, plan: Training, rng: torch.Generator) -> tuple[Batch, Batch | None]:
    """Return the training samples and the held-out ones, if any."""
    if plan.patience is None:
        return samples, None
    aside = holdout(samples.labels, samples.groups, rng=rng)
    return (samples[~aside], samples[aside]) if aside.any() else (samples, None)


def inverse_frequency(sizes: Tensor) -> Tensor:
    """Return weights (n_classes,) inversely proportional to class sizes, with mean 1."""
    weights = 1 / sizes.to(torch.get_default_dtype())
    return weights / weights.mean()


def _class_weights(samples: Batch, plan: Training, device: torch.device) -> Tensor | None:
    if plan.class_weights is False:
        return None
    counts = samples.labels.bincount()
    sizes = counts if plan.class_weights is True else torch.tensor(plan.class_weights)
    if len(sizes) != len(counts):
        raise ValueError(f"class_weights has {len(sizes)} sizes for {len(counts)} base classes")
    return inverse_frequency(sizes).to(samples.values).to(device)
