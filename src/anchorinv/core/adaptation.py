"""Adaptation to new classes: none, finetuning, or finetuning with steps chosen by cross-validation.

Folds are made of what a learner has in a session, its shots and its replay: in each, some shots and as many
replay samples of each old class are held out. Neither test data nor future classes are used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from anchorinv.core.head import Head
from anchorinv.core.heads import Cosine, class_means
from anchorinv.core.minimise import Optimiser, minimise
from anchorinv.core.networks import device_of, encode, frozen, trainable
from anchorinv.core.prototypes import follow_replay
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch, columns, concat


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
        apart = errors - errors[best]
        doubt = apart.std(1) / apart.shape[1] ** 0.5
        alike = (means - means[best] <= doubt).tolist()
        return min((o for o, ok in zip(options, alike, strict=True) if ok), key=lambda o: (o[0] * o[1], o[0]))

    def errors(self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None) -> Tensor | None:
        """Return the share of errors in each fold, by rate and number of steps (n_options, n_folds).

        Classes have equal weight within a fold.
        """
        n_folds = min(self.folds, int(shots.labels.bincount()[list(shots.classes)].min()))
        if n_folds < 2:
            return None
        kept = _few(replay, self.most) if replay is not None else None
        shot_folds = _folds(shots, n_folds)
        replay_folds = _folds(kept, n_folds) if kept is not None else None
        lengths = sorted(set(self.lengths))
        errors = torch.empty(len(self.lrs), len(lengths), n_folds)
        for fold in range(n_folds):
            learned, aside = shots[shot_folds != fold], shots[shot_folds == fold]
            old = None
            if kept is not None and replay_folds is not None:
                old, aside = kept[replay_folds != fold], concat(aside, kept[replay_folds == fold])
            start = _placed(head, tail, learned) if self.from_mean else head
            for row, lr in zip(errors, self.lrs, strict=True):

                def watch(
                    step: int,
                    moved: nn.Module,
                    head: Head,
                    scores: Tensor = row[:, fold],
                    old: Batch | None = old,
                    aside: Batch = aside,
                ) -> None:
                    if step not in lengths:
                        return
                    if self.refresh and old is not None:
                        head = follow_replay(head, old, tail, moved)
                    scores[lengths.index(step)] = _errors(moved, head, aside)

                plan = Optimiser(lengths[-1], lr, self.betas)
                finetune(tail, start, learned, old, plan, replay_weight=self.replay_weight, watch=watch)
        return errors.flatten(0, 1)


def _errors(tail: nn.Module, head: Head, aside: Batch) -> float:
    """Return the mean error rate over classes.

    Not the loss: confidence keeps rising long after the error has stopped falling.
    """
    with torch.no_grad():
        wrong = head(tail(aside.values.to(device_of(tail)))).argmax(1).cpu() != aside.labels
    return float(class_means(wrong[:, None].to(aside.values), columns(aside.labels, aside.classes)).mean())


def _placed(head: Head, tail: nn.Module, shots: Batch) -> Head:
    if not isinstance(head, Cosine):
        return head
    means = class_means(encode(tail, shots.values), columns(shots.labels, shots.classes))
    return Cosine(means, head.fixed, scale=head.scale, width=head.width)


def _few(samples: Batch, most: int) -> Batch:
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
