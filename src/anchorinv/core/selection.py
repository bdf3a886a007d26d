"""Choosing how far to finetune, from what a learner has in a session: its shots and its replay.

In each fold some shots, and as many replay samples of each old class, are kept aside; the others finetune a
copy, and those kept aside say after which number of steps, and at which rate, classes are told apart best.
Nothing else is looked at: no test data, no class that is yet to come.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anchorinv.core.descend import Descent
from anchorinv.core.heads import Cosine, Head, class_means
from anchorinv.core.networks import mapped
from anchorinv.core.prototypes import refreshed
from anchorinv.core.rng import stream
from anchorinv.core.training import Finetune, finetune
from anchorinv.core.types import Batch, columns, joined


@dataclass(frozen=True, slots=True)
class Validated:
    """Finetune as far as samples kept aside say; an adaptation like any other.

    Parameters
    ----------
    lengths : numbers of steps to choose from; 0 leaves the network as it is.
    lrs : rates to choose from. One will do: twice the rate for half the steps leads to the same place.
    folds : each shot is kept aside in one of them. With fewer shots than folds, each shot is a fold.
    most : replay samples of a class that take part in a fold, which bounds the cost.
    from_mean : whether new prototypes start at the mean of their shots, which a fold has fewer of.
    refresh : whether old prototypes will follow their replay, as ``Recipe.refresh`` says.
    betas, replay_weight : of the finetuning.
    """

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
        """Return tail and head, finetuned on all shots and replay as far as was chosen."""
        steps, lr = self.choose(tail, head, shots, replay)
        plan = Finetune((steps,), lr, self.betas, self.replay_weight)
        return plan(tail, head, shots, replay, session=session)

    def choose(self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None) -> tuple[int, float]:
        """Return the number of steps and the rate."""
        options = [(steps, lr) for lr in self.lrs for steps in sorted(set(self.lengths))]
        if len(options) == 1:
            return options[0]
        errors = self.errors(tail, head, shots, replay)
        if errors is None:  # a single shot cannot be kept aside and learned from
            return min(options)
        means = errors.mean(1)
        best = int(means.argmin())
        # Of all that cannot be told from the best, the one that moves the network least.
        apart = errors - errors[best]
        doubt = apart.std(1) / apart.shape[1] ** 0.5
        alike = (means - means[best] <= doubt).tolist()
        return min((o for o, ok in zip(options, alike, strict=True) if ok), key=lambda o: (o[0] * o[1], o[0]))

    def errors(self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None) -> Tensor | None:
        """Return the share of errors in each fold, by rate and number of steps (n_options, n_folds).

        Within a fold classes count alike, whatever the number of samples kept aside.
        """
        smallest = int(shots.labels.bincount()[list(shots.classes)].min())
        n_folds = min(self.folds, smallest)
        if n_folds < 2:
            return None
        kept = _few(replay, self.most) if replay is not None else None
        shot_folds = _folds(shots, n_folds)
        replay_folds = _folds(kept, n_folds) if kept is not None else None
        lengths = sorted(set(self.lengths))
        found = torch.empty(len(self.lrs), len(lengths), n_folds)
        for fold in range(n_folds):
            learned, aside = shots[shot_folds != fold], shots[shot_folds == fold]
            old = None
            if kept is not None and replay_folds is not None:
                old, aside = kept[replay_folds != fold], joined(aside, kept[replay_folds == fold])
            start = _placed(head, tail, learned) if self.from_mean else head
            for row, lr in zip(found, self.lrs, strict=True):

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
                        head = refreshed(head, old, tail, moved)
                    scores[lengths.index(step)] = _errors(moved, head, aside)

                plan = Descent(lengths[-1], lr, self.betas)
                finetune(tail, start, learned, old, plan, replay_weight=self.replay_weight, watch=watch)
        return found.flatten(0, 1)


def _errors(tail: nn.Module, head: Head, aside: Batch) -> float:
    """Return the share of samples that are taken for another class, every class counting alike.

    Not the loss: finetuning makes a network surer long after it has stopped making it better.
    """
    with torch.no_grad():
        wrong = head(tail(aside.values)).argmax(1) != aside.labels
    share = class_means(wrong[:, None].to(aside.values), columns(aside.labels, aside.classes))
    return float(share.mean())


def _placed(head: Head, tail: nn.Module, shots: Batch) -> Head:
    if not isinstance(head, Cosine):
        return head
    means = class_means(mapped(tail, shots.values), columns(shots.labels, shots.classes))
    return Cosine(means, head.fixed, scale=head.scale, width=head.width)


def _few(samples: Batch, most: int) -> Batch:
    """Return at most so many samples of each class, spread evenly over those there are."""
    chosen = []
    for label in samples.classes:
        places = (samples.labels == label).nonzero().flatten()
        at = torch.linspace(0, len(places) - 1, min(most, len(places))).round().long()
        chosen.append(places[at])
    return samples[torch.cat(chosen)]


def _folds(samples: Batch, n_folds: int) -> Tensor:
    """Return the fold of each sample (n,): the samples of every class shared out evenly."""
    folds = torch.empty(len(samples), dtype=torch.int64)
    for label in samples.classes:
        places = (samples.labels == label).nonzero().flatten()
        order = torch.randperm(len(places), generator=stream(label, "folds"))
        folds[places[order]] = torch.arange(len(places)) % n_folds
    return folds
