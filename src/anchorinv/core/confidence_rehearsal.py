"""What a discriminant's confidence rests on: windows kept aside, and classes taught as if they were new.

Everything is closed form, so it is done over and over: neighbouring windows, or whole groups, are kept aside a
fifth at a time, and a model of the others is asked about them. Neighbours are kept aside together, because a
model is used on another day than it was trained on. A third of the classes is taught with three, ten
and thirty shots to see how sure the model is of such classes, and one at a time with ten to see how far their
windows lie from what it knows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.confidence import SHOTS, Confidence, Scores
from anchorinv.core.discriminant import Discriminant
from anchorinv.core.networks import encode
from anchorinv.core.rng import stream
from anchorinv.progress import tick

FOLDS = 5
#: Windows of a class; with fewer a fifth of them says nothing.
_LEAST = 6
#: Of the logits: from a hundredth to a hundredfold.
_FACTORS = [10 ** (k / 20) for k in range(-40, 41)]

#: (which windows to learn from (n,)) -> features (n, dim) of all windows, as these windows set them.
Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What a model said of windows that it had not learned from.

    Parameters
    ----------
    logits : Tensor, shape (n, n_classes)
    targets : Tensor, shape (n,)
        The right columns.
    statistics, nearest : Tensor, shape (n, n_statistics) and (n,)
        Of :meth:`~anchorinv.core.head.Head.novelty`.
    n_base : int
        Base classes, the first columns; the others were taught.
    labels : Tensor, shape (n,)
        The right class by its number among all base classes.
    """

    logits: Tensor
    targets: Tensor
    statistics: Tensor
    nearest: Tensor
    n_base: int
    labels: Tensor

    @property
    def taught(self) -> Tensor:
        """Which windows (n,) are of taught classes."""
        return self.targets >= self.n_base


def rehearse_confidence(
    features: Features,
    targets: Tensor,
    groups: Tensor | None,
    empty: Discriminant,
    *,
    rng: torch.Generator,
) -> Confidence | None:
    """Return the confidence of a discriminant on base windows; None where they are too few.

    Parameters
    ----------
    features : callable
        Features of all windows, without what those kept aside would add to them.
    targets : Tensor, shape (n,)
        Columns of the base classes.
    groups : Tensor, shape (n,), or None
        Person or recording of each window.
    empty : Discriminant
        Without classes, with the settings that were chosen.
    """
    plain: list[Answers] = []
    single: list[Answers] = []
    several: dict[int, list[Answers]] = {n: [] for n in SHOTS}
    folds = list(neighbouring_folds(targets, groups))
    n_classes = int(targets.max()) + 1
    order = torch.randperm(n_classes, generator=stream(rng, "confidence")).tolist()
    for i, aside in enumerate(folds):
        tick("confidence", i, len(folds))
        fold = _Fold(features(~aside), targets, aside, empty)
        known = [column for column in order if fold.counts[column] > 1]
        if len(known) < 2 or not fold.asks(known):
            continue
        plain.append(fold.answers(known, [], 0, rng))
        if len(known) < 3:
            continue
        draw = stream(rng, "confidence", "shots", i)
        single.append(fold.answers(known, [known[i % len(known)]], SHOTS[1], draw))
        for n_shots, rounds in several.items():
            rounds.append(fold.answers(known, known[i % 3 :: 3], n_shots, draw))
    tick("confidence", len(folds), len(folds))
    return _confidence(plain, single, several, n_classes) if plain else None


def held_out_confidence(
    logits: Tensor, statistics: Tensor, nearest: Tensor, targets: Tensor, n_base: int
) -> Confidence:
    """Return the confidence of any head by windows that it did not learn from, all of base classes."""
    answers = Answers(logits, targets, statistics, nearest, n_base, targets)
    return _confidence([answers], [], {n: [] for n in SHOTS}, n_base)


class _Fold:
    """A discriminant of all classes without the windows kept aside; rounds take from it what they need."""

    def __init__(self, features: Tensor, targets: Tensor, aside: Tensor, empty: Discriminant) -> None:
        self.features, self.targets, self.aside = features, targets, aside
        self.counts = targets[~aside].bincount(minlength=int(targets.max()) + 1).tolist()
        self.empty = empty
        self.whole = empty.learned(features[~aside], targets[~aside])

    def asks(self, known: list[int]) -> bool:
        """Say whether windows of known classes were kept aside."""
        return bool((self.aside & torch.isin(self.targets, torch.tensor(known))).any())

    def answers(self, known: list[int], taught: list[int], n_shots: int, rng: torch.Generator) -> Answers:
        """Ask a model of the known classes, of which some were taught with so many shots each."""
        base = [column for column in known if column not in taught]
        head = self.whole.of(base, len(base))
        place = torch.full((len(self.counts),), -1)
        place[[*base, *taught]] = torch.arange(len(known))
        if taught:
            shots = torch.cat([self._shots(column, n_shots, rng) for column in taught])
            head = head.learned(self.features[shots], place[self.targets[shots]])
        asked = self.aside & (place[self.targets] >= 0)
        features, labels = self.features[asked], self.targets[asked]
        statistics, nearest = head.novelty(features)
        return Answers(encode(head, features), place[labels], statistics, nearest, len(base), labels)

    def _shots(self, column: int, n_shots: int, rng: torch.Generator) -> Tensor:
        there = (~self.aside & (self.targets == column)).nonzero().flatten()
        return there[torch.randperm(len(there), generator=rng)[:n_shots]]


def neighbouring_folds(targets: Tensor, groups: Tensor | None) -> Iterator[Tensor]:
    """Yield which windows (n,) are kept aside in turn: neighbours in each class, or neighbouring whole groups."""
    if int(targets.bincount().min()) < _LEAST:
        return
    n_groups = 0 if groups is None else len(set(groups.tolist()))
    if groups is None or n_groups < 2:
        rank = torch.zeros_like(targets)
        for column in set(targets.tolist()):
            own = (targets == column).nonzero().flatten()
            rank[own] = torch.arange(len(own)) * FOLDS // len(own)
    else:
        first = {group: i for i, group in reversed(list(enumerate(groups.tolist())))}
        sizes = groups.unique(return_counts=True)
        names = sorted(first, key=lambda group: first[group])
        many = dict(zip(sizes[0].tolist(), sizes[1].tolist(), strict=True))
        counts = torch.tensor([many[name] for name in names])
        middle = counts.cumsum(0) - counts / 2
        fold = dict(zip(names, (middle * min(FOLDS, n_groups) / len(groups)).long().tolist(), strict=True))
        rank = torch.tensor([fold[group] for group in groups.tolist()])
    for i in sorted(set(rank.tolist())):
        yield rank == i


def _confidence(
    plain: list[Answers], single: list[Answers], several: dict[int, list[Answers]], n_classes: int
) -> Confidence:
    """Return what answers say: of base classes, of one taught class at a time, and of several at once."""
    base = min(_FACTORS, key=lambda factor: _loss(plain, lambda a: factor * a.logits))
    some = Scores.of(plain[0].targets[:0].float())
    blank = Confidence(torch.full((len(SHOTS) + 1,), base), some, some, some)
    factors = [_taught_factor(rounds, n, blank) for n, rounds in several.items()]
    confidence = replace(blank, factors=torch.tensor([*factors, base]))
    known = torch.cat([answers.statistics for answers in plain])
    taught = torch.cat([answers.statistics[answers.taught] for answers in single]) if single else known
    misfits = torch.cat([_misfit(confidence, answers) for answers in plain])
    labels = torch.cat([answers.labels for answers in plain])
    rows = [Scores.of(misfits[labels == column]) for column in range(n_classes)] + [Scores.of(misfits)]
    lessons = [_misfit(confidence, answers)[answers.taught] for answers in several[SHOTS[1]]]
    rows.append(Scores.of(torch.cat(lessons)) if lessons else some)
    return replace(
        confidence,
        base=Scores.stack([Scores.of(column) for column in known.T]),
        taught=Scores.stack([Scores.of(column) for column in taught.T]),
        misfits=Scores.stack(rows),
    )


def _calibrated(confidence: Confidence, answers: Answers, n_shots: int = SHOTS[1]) -> Tensor:
    """Return calibrated logits of answers whose taught classes had so many shots."""
    counts = torch.full((answers.logits.shape[1],), n_shots)
    return confidence.scaled(answers.logits, counts, n_base=answers.n_base)


def _taught_factor(rounds: list[Answers], n_shots: int, blank: Confidence) -> float:
    """Return the factor for classes of so many shots that makes all answers likeliest; base classes' stays."""
    base = float(blank.factors[-1])
    if not rounds:
        return base

    def loss(factor: float) -> float:
        trial = replace(blank, factors=torch.tensor([factor] * len(SHOTS) + [base]))
        return _loss(rounds, lambda answers: _calibrated(trial, answers, n_shots))

    return min(_FACTORS, key=loss)


def _loss(rounds: list[Answers], logits_of: Callable[[Answers], Tensor]) -> float:
    return sum(float(F.cross_entropy(logits_of(answers), answers.targets)) for answers in rounds)


def _misfit(confidence: Confidence, answers: Answers) -> Tensor:
    """Return one minus the probability of the right class (n,)."""
    chances = F.softmax(_calibrated(confidence, answers), dim=1)
    return 1 - chances.gather(1, answers.targets[:, None]).squeeze(1)
