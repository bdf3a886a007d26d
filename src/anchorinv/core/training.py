"""Training of networks: base training, and adaptation to new classes by finetuning.

The number of finetuning steps may be chosen by cross-validation. Folds are made of what a learner has in a
session, its shots and its replay: in each, some shots and as many replay samples of each old class are held
out. Neither test data nor future classes are used.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from anchorinv.core.heads import Cosine, Head, class_means
from anchorinv.core.minimise import Checkpoint, EarlyStopping, OneCycle, Optimiser, minimise
from anchorinv.core.networks import device_of, encode, frozen, trainable
from anchorinv.core.prototypes import follow_replay
from anchorinv.core.types import Batch, columns, concat, scoped_seed, stream

#: Share of the samples held out, about.
SHARE = 0.1
#: Minimum number of groups, and of held-out samples, for a meaningful loss.
LEAST_GROUPS = 5
LEAST_HELD_OUT = 20


def holdout(labels: Tensor, groups: Tensor | None = None, *, rng: torch.Generator) -> Tensor:
    """Return which samples to hold out (n,), about a tenth: whole groups (n,), or some of each class without.

    None are held out if a class would be left without samples, or if there are too few to evaluate on: fewer
    than 5 groups, fewer than 20 samples, or without groups a class of fewer than 10.
    """
    if groups is not None and groups.shape != labels.shape:
        raise ValueError(f"{len(groups)} groups for {len(labels)} samples; one per sample is needed")
    held_out = _holdout_of_classes(labels, rng) if groups is None else _holdout_of_groups(labels, groups, rng)
    return held_out if held_out.sum() >= LEAST_HELD_OUT else torch.zeros_like(held_out)


def _holdout_of_classes(labels: Tensor, rng: torch.Generator) -> Tensor:
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        places = (labels == label).nonzero().flatten()
        if (n_held_out := int(len(places) * SHARE)) == 0:  # the other classes alone would decide
            return torch.zeros_like(held_out)
        order = torch.randperm(len(places), generator=stream(rng, "aside", label))
        held_out[places[order[:n_held_out]]] = True
    return held_out


def _holdout_of_groups(labels: Tensor, groups: Tensor, rng: torch.Generator) -> Tensor:
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    names = sorted(set(groups.tolist()))
    if len(names) < LEAST_GROUPS:
        return held_out
    classes = set(labels.tolist())
    order = torch.randperm(len(names), generator=stream(rng, "aside"))
    for place in order.tolist():
        if held_out.sum() >= SHARE * len(labels):
            break
        more = held_out | (groups == names[place])
        # A group that is much of the data, or all of a class, is not held out.
        if more.sum() <= 2 * SHARE * len(labels) and set(labels[~more].tolist()) == classes:
            held_out = more
    return held_out


class BestWeights:
    """Early stopping: keep the weights with the lowest loss on what is held out, and decide when to stop.

    Training stops after ``patience`` evaluations without improvement; ``weights`` (n_classes,) are of the
    classes in the loss.
    """

    def __init__(
        self, network: nn.Module, head: Head, validation: Batch, weights: Tensor | None, patience: int
    ) -> None:
        self._network, self._head, self._validation, self._weights = network, head, validation, weights
        self._patience = patience
        self._tensors = [*network.state_dict().values(), *head.state_dict().values()]  # not copies
        self._kept = [tensor.clone() for tensor in self._tensors]
        self._loss, self._stale = torch.tensor(torch.inf, dtype=torch.float64), torch.tensor(0)

    @property
    def buffers(self) -> list[Tensor]:
        """Its state as tensors, which a checkpoint can restore in place."""
        return [*self._kept, self._loss, self._stale]

    @torch.no_grad()
    def should_stop(self) -> bool:
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
        features = encode(self._network, self._validation.values).to(device)
        loss = self._head.loss(features, self._validation.labels.to(device), self._weights).item()
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
        stop = self.converged and replace(self.converged, window=self.converged.window * n_batches)
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
    """Train a network and its head together, in place and on their device; return the loss curve (n_steps,).

    Samples are signals (n, n_chans, n_times), labelled by the head's columns; with ``patience``, whole groups
    are held out where they are known. With a checkpoint, training can be resumed between epochs.
    """
    device = device_of(network)
    weights = _class_weights(samples, plan, device)
    best = None
    if plan.patience and (held_out := holdout(samples.labels, samples.groups, rng=rng)).any():
        samples, validation = samples[~held_out], samples[held_out]
        best = BestWeights(network, head, validation, weights, plan.patience)
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
            log_gains = torch.randn(*signals.shape[:2], 1, generator=stream(rng, "gain", step))
            signals = signals * torch.exp(plan.gain * log_gains).to(signals)
        return head.loss(network(signals.to(device)), targets.to(device), weights)

    network.train()
    head.train()
    with scoped_seed(stream(rng, "dropout"), device):
        curve = minimise(
            objective,
            [*network.parameters(), *head.parameters()],
            plan.optimiser(n_batches),
            task="base training",
            buffers=[*network.buffers(), *head.buffers(), *(best.buffers if best else ())],
            checkpoint=checkpoint,
            every=n_batches,
            should_stop=best.should_stop if best else None,
        )
    if best:
        best.restore()
    frozen(network)
    frozen(head)
    return curve


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


class Adaptation(Protocol):
    """How tail and head learn from the shots of a session."""

    def __call__(
        self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None, *, session: int
    ) -> tuple[nn.Module, Head, Tensor]:
        """Return the adapted tail and head and the loss curve; samples are latents, labels are columns."""


@dataclass(frozen=True, slots=True)
class NoAdaptation:
    """No adaptation: new classes only get prototypes, the network stays as it is."""

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
    steps : tuple of int
        Per session; the last one holds for all later sessions.
    lr, betas : float, (float, float)
        Of Adam.
    replay_weight : float, default=1.0
        The paper's λ.

    Examples
    --------
    >>> Finetune(steps=(1250, 700), lr=2e-5).steps  # of the first session, and of all later ones
    (1250, 700)
    """

    steps: tuple[int, ...]
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    replay_weight: float = 1.0

    def __call__(
        self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None, *, session: int
    ) -> tuple[nn.Module, Head, Tensor]:
        """Return the finetuned copies and the loss curve."""
        plan = Optimiser(self.steps[min(session, len(self.steps)) - 1], self.lr, self.betas)
        return finetune(tail, head, shots, replay, plan, replay_weight=self.replay_weight)


def finetune(
    tail: nn.Module,
    head: Head,
    shots: Batch,
    replay: Batch | None,
    plan: Optimiser,
    *,
    replay_weight: float = 1.0,
    watch: Callable[[int, nn.Module, Head], None] | None = None,
) -> tuple[nn.Module, Head, Tensor]:
    """Minimise L_new + λ L_old over copies of tail and head; return these and the loss curve (n_steps,).

    Shots and replay are latents (n, ...), labelled by the head's columns. ``watch`` is called with
    tail and head before each step and after the last, on the tail's device.
    """
    device = device_of(tail)
    tail, head = trainable(tail), trainable(head).to(device)
    n_shots, labels = len(shots), shots.labels.to(device)
    old_labels = None if replay is None else replay.labels.to(device)
    latents = (shots.values if replay is None else torch.cat([shots.values, replay.values])).to(device)

    def objective(step: int) -> Tensor:
        if watch:
            watch(step, tail, head)
        features = tail(latents)  # one pass for both terms
        loss = head.loss(features[:n_shots], labels)
        if old_labels is not None:
            loss = loss + replay_weight * head.loss(features[n_shots:], old_labels)
        return loss

    curve = minimise(objective, [*tail.parameters(), *head.parameters()], plan, task="finetuning")
    if watch:
        watch(len(curve), tail, head)
    return frozen(tail), frozen(head).cpu(), curve


@dataclass(frozen=True, slots=True)
class CrossValidatedFinetune:
    """Finetune for a number of steps chosen by cross-validation.

    Parameters
    ----------
    lengths : tuple of int, default=(0, 25, 50, 100, 200)
        Numbers of steps to choose from; 0 leaves the network as it is.
    lrs : tuple of float, default=(2e-05,)
        Learning rates to choose from. One is enough: twice the rate for half the steps is about the same.
    folds : int, default=3
        Each shot is held out in one of them. With fewer shots than folds, each shot is a fold.
    most : int, default=10
        Replay samples of a class that take part in a fold, which bounds the cost.
    from_mean : bool, default=True
        Whether new prototypes start at the mean of their shots, recomputed in each fold.
    refresh : bool, default=False
        Whether old prototypes will follow their replay, as ``Recipe.refresh`` says.
    betas, replay_weight : (float, float), float
        Of the finetuning.
    """

    #: The number of steps differs from session to session, and so is recorded.
    chooses_steps: ClassVar[bool] = True

    lengths: tuple[int, ...] = (0, 25, 50, 100, 200)
    lrs: tuple[float, ...] = (2e-5,)
    folds: int = 3
    most: int = 10
    from_mean: bool = True
    refresh: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    replay_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.lengths or not self.lrs or min(self.lengths) < 0 or min(self.lrs) <= 0:
            raise ValueError(
                f"lengths (={list(self.lengths)}) must be 0 or more and rates (={list(self.lrs)}) above 0, "
                f"one of each at least"
            )
        if self.folds < 2 or self.most < 2:
            raise ValueError(f"folds (={self.folds}) and most (={self.most}) must be 2 at least")

    def __call__(
        self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None, *, session: int
    ) -> tuple[nn.Module, Head, Tensor]:
        """Return tail and head, finetuned on all shots and replay by the chosen number of steps."""
        steps, lr = self.choose(tail, head, shots, replay)
        plan = Finetune((steps,), lr, self.betas, self.replay_weight)
        return plan(tail, head, shots, replay, session=session)

    def choose(self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None) -> tuple[int, float]:
        """Return the number of steps and the rate."""
        options = [(steps, lr) for lr in self.lrs for steps in sorted(set(self.lengths))]
        if len(options) == 1:
            return options[0]
        errors = self.errors(tail, head, shots, replay)
        if errors is None:  # a single shot cannot be held out and learned from
            return min(options)
        best = int((means := errors.mean(1)).argmin())
        # Of all within a standard error of the best, the one that moves the network least.
        differences = errors - errors[best]
        standard_error = differences.std(1) / differences.shape[1] ** 0.5
        alike = (means - means[best] <= standard_error).tolist()
        return min((o for o, ok in zip(options, alike, strict=True) if ok), key=lambda o: (o[0] * o[1], o[0]))

    def errors(self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None) -> Tensor | None:
        """Return the share of errors in each fold, by rate and number of steps (n_options, n_folds).

        Classes have equal weight within a fold.
        """
        n_folds = min(self.folds, int(shots.labels.bincount()[list(shots.classes)].min()))
        if n_folds < 2:
            return None
        shot_folds = _folds(shots, n_folds)
        kept = None if replay is None else _evenly_spaced(replay, self.most)
        replay_folds = None if kept is None else _folds(kept, n_folds)
        errors = torch.empty(len(self.lrs), len(set(self.lengths)), n_folds)
        for fold in range(n_folds):
            learned, validation = shots[shot_folds != fold], shots[shot_folds == fold]
            old = None
            if kept is not None and replay_folds is not None:
                old, validation = kept[replay_folds != fold], concat(validation, kept[replay_folds == fold])
            start = _with_mean_prototypes(head, tail, learned) if self.from_mean else head
            for row, lr in zip(errors, self.lrs, strict=True):
                row[:, fold] = self._error_rates(tail, start, learned, old, validation, lr)
        return errors.flatten(0, 1)

    def _error_rates(
        self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None, validation: Batch, lr: float
    ) -> Tensor:
        """Finetune, and return the error rate on what is held out after each number of steps (n_lengths,)."""
        lengths = sorted(set(self.lengths))
        rates = torch.empty(len(lengths))

        def watch(step: int, moved: nn.Module, head: Head) -> None:
            if step in lengths:
                if self.refresh and replay is not None:
                    head = follow_replay(head, replay, tail, moved)
                rates[lengths.index(step)] = _error_rate(moved, head, validation)

        plan = Optimiser(lengths[-1], lr, self.betas)
        finetune(tail, head, shots, replay, plan, replay_weight=self.replay_weight, watch=watch)
        return rates


def _error_rate(tail: nn.Module, head: Head, validation: Batch) -> float:
    """Return the mean error rate over classes.

    Not the loss: confidence keeps rising long after the error has stopped falling.
    """
    with torch.no_grad():
        wrong = head(tail(validation.values.to(device_of(tail)))).argmax(1).cpu() != validation.labels
    targets = columns(validation.labels, validation.classes)
    return float(class_means(wrong[:, None].to(validation.values), targets).mean())


def _with_mean_prototypes(head: Head, tail: nn.Module, shots: Batch) -> Head:
    if not isinstance(head, Cosine):
        return head
    means = class_means(encode(tail, shots.values), columns(shots.labels, shots.classes))
    return Cosine(means, head.fixed, scale=head.scale, width=head.width)


def _evenly_spaced(samples: Batch, most: int) -> Batch:
    """Return at most ``most`` samples of each class, evenly spaced."""
    chosen = []
    for label in samples.classes:
        places = (samples.labels == label).nonzero().flatten()
        chosen.append(places[torch.linspace(0, len(places) - 1, min(most, len(places))).round().long()])
    return samples[torch.cat(chosen)]


def _folds(samples: Batch, n_folds: int) -> Tensor:
    """Return the fold of each sample (n,), stratified by class."""
    folds = torch.empty(len(samples), dtype=torch.int64)
    for label in samples.classes:
        places = (samples.labels == label).nonzero().flatten()
        order = torch.randperm(len(places), generator=stream(label, "folds"))
        folds[places[order]] = torch.arange(len(places)) % n_folds
    return folds
