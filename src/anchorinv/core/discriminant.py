"""A linear discriminant on statistics of each class, and its confidence, measured on held-out windows.

The statistics are count, mean and scatter of each class, no samples. Classes share one within-class
covariance, and their means have a prior estimated from the base classes, see ``posterior.py``. Everything
follows in closed form, so the order of examples does not matter, and a class is forgotten exactly.

Its confidence is measured by cross-validation: neighbouring windows, or whole groups, are held out a fifth at
a time, and predicted by a model of the others. Neighbours are held out together, because a model is used on
another day than it was trained on. Base classes are also removed and taught again with ten shots, one at a
time and a third of them at once, and with three shots, to calibrate taught classes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from anchorinv.core.confidence import SHOTS, Confidence, Scores, misfits_of
from anchorinv.core.heads import (
    Count,
    Expected,
    HeadFacts,
    Scale,
    StatisticalHead,
    register_head,
    without_row,
)
from anchorinv.core.posterior import FEW, Posterior, Statistics, posterior_of
from anchorinv.core.types import Batch, stream
from anchorinv.progress import tick

FOLDS = 5
#: Segments of neighbouring windows in each fold. With one, models lack a fifth of all days or records in a
#: row, and too few windows are rejected; with many, neighbours of held-out windows stay in the training part.
STRETCHES = 6
TEN = SHOTS[-1]
#: Base classes, to say how sure a model may be of them after lessons.
FEWEST_CLASSES = 6
#: Windows of a class; with fewer a fifth of them says nothing.
_LEAST = 6
#: Of the logits: from a hundredth to a hundredfold.
_FACTORS = [10 ** (k / 20) for k in range(-40, 41)]

#: (which windows to learn from (n,)) -> features (n, dim) of all windows, as these windows set them.
Features = Callable[[Tensor], Tensor]


@register_head
class Discriminant(StatisticalHead):
    """Log-densities of classes, each with its own mean and the within-class covariance of all.

    Parameters
    ----------
    counts : Tensor, shape (n_classes,), int64
        Examples of each class; float64, the sums of their weights, where examples had some.
    means : Tensor, shape (n_classes, dim)
        Of the examples of each class.
    scatters : Tensor, shape (n_classes, dim (dim + 1) / 2)
        Upper triangles of the scatter matrices: sums of squares and products around the mean.
    n_base : int
        Number of base classes, which come first; their means determine the prior.
    shrinkage : float
        In [0, 1]: shrinkage of the within-class covariance towards a sphere.
    prior : bool, default=True
        Whether means have a prior. False is the textbook discriminant, with squared distances scaled by
        n / (n + 1).
    student : bool, default=True
        Whether densities are Student's t where means have a prior; False is a Gaussian, as in model files of
        earlier versions.
    scale : float, default=1.0
        Factor of the log-densities before the softmax, as features are not independent.
    centring : float, default=nan
        Gain from centring an unseen person's windows, in rehearsal; nan where unknown.

    Examples
    --------
    >>> head = Discriminant.empty(2, n_base=2, shrinkage=0.1)
    >>> features = torch.tensor([[0.0, 0.0], [0.0, 1.0], [5.0, 0.0], [5.0, 1.0]])
    >>> head = head.learned(features, torch.tensor([0, 0, 1, 1]))
    >>> head(torch.tensor([[4.0, 0.5]])).argmax(1).tolist(), head.counts.tolist()
    ([1], [2, 2])
    """

    kind = "discriminant"
    parts = ("counts", "means", "scatters")
    n_statistics = 5

    class Facts(HeadFacts):
        """All settings, centring where it is known."""

        n_base: Count
        shrinkage: Annotated[float, Field(ge=0, le=1)]
        prior: bool
        student: bool = False
        scale: Scale
        centring: Annotated[float, Field(ge=-1, le=1)] | None = None

    def __init__(
        self,
        counts: Tensor,
        means: Tensor,
        scatters: Tensor,
        *,
        n_base: int,
        shrinkage: float,
        prior: bool = True,
        student: bool = True,
        scale: float = 1.0,
        centring: float = math.nan,
    ) -> None:
        super().__init__()
        self.means: Tensor
        self.scatters: Tensor
        self.register_buffer("counts", counts)
        self.register_buffer("means", means)
        self.register_buffer("scatters", scatters)
        self.n_base, self.shrinkage, self.prior = n_base, shrinkage, prior
        self.student, self.scale, self.centring = prior and student, scale, centring
        self._posterior: Posterior | None = None

    @classmethod
    def empty(cls, dim: int, *, n_base: int, shrinkage: float, **settings: Any) -> Self:
        """Return a discriminant that knows no class yet; settings are those of the class."""
        counts = torch.zeros(0, dtype=torch.int64)
        means, scatters = torch.zeros(0, dim), torch.zeros(0, dim * (dim + 1) // 2)
        return cls(counts, means, scatters, n_base=n_base, shrinkage=shrinkage, **settings)

    @property
    def prototypes(self) -> Tensor:
        """The means (n_classes, dim)."""
        return self.means

    @property
    def middle(self) -> Tensor:
        """The mean of all base windows (dim,)."""
        return self.statistics.middle

    @property
    def statistics(self) -> Statistics:
        """Those of all classes; the scatter is a matrix."""
        scatter = square_of(self.scatters.double().sum(0), self.means.shape[1])
        return Statistics(self.counts, self.means, scatter, self.n_base)

    def learned(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> "Discriminant":
        """Return the discriminant after more examples, whatever their order and grouping.

        Parameters
        ----------
        features : Tensor, shape (n, dim)
        targets : Tensor, shape (n,)
            Columns of known classes, or of new ones behind them.
        weights : Tensor, shape (n,), or None, default=None
            An example with a weight of 2 counts as two; None counts each as one.
        """
        missing = self.n_unknown(targets)
        counts = F.pad(self.counts, (0, missing))
        counts = counts if weights is None else counts.double()
        means, scatters = (F.pad(each, (0, 0, 0, missing)).clone() for each in (self.means, self.scatters))
        for target in sorted(set(targets.tolist())):
            own = features[targets == target].double()
            n, m, mean = counts[target].item(), float(len(own)), own.mean(0)
            scaled = centred = own - mean
            if weights is not None:
                shares = weights[targets == target].double()
                m, mean = float(shares.sum()), shares @ own / shares.sum()
                centred = own - mean
                scaled = shares[:, None] * centred
            step = mean - means[target].double()
            scatter = triangle_of(scaled.T @ centred + (n * m / (n + m)) * torch.outer(step, step))
            means[target] = (means[target].double() + step * (m / (n + m))).to(means)
            scatters[target] = (scatters[target].double() + scatter).to(scatters)
            counts[target] = n + m
        return self._with(counts, means, scatters, self.n_base)

    def without(self, column: int, anchors: Batch | None = None) -> "Discriminant":
        """Return the discriminant as if a class had never been learned."""
        counts, means = without_row(self.counts, column), without_row(self.means, column)
        n_base = self.n_base - (column < self.n_base)
        return self._with(counts, means, without_row(self.scatters, column), n_base)

    def of(self, columns: list[int], n_base: int) -> "Discriminant":
        """Return the discriminant of some classes, in this order, the first ``n_base`` as base classes."""
        return self._with(self.counts[columns], self.means[columns], self.scatters[columns], n_base)

    def _with(self, counts: Tensor, means: Tensor, scatters: Tensor, n_base: int) -> "Discriminant":
        return Discriminant(
            counts,
            means,
            scatters,
            n_base=n_base,
            shrinkage=self.shrinkage,
            prior=self.prior,
            student=self.student,
            scale=self.scale,
            centring=self.centring,
        )

    def fits(self, expected: Expected) -> bool:
        """Return whether every class has a count, a mean and a scatter matrix."""
        n_classes, dim = expected.n_classes, expected.dim
        return (
            self.has_examples(n_classes)
            and self.means.shape == (n_classes, dim)
            and self.scatters.shape == (n_classes, dim * (dim + 1) // 2)
            and self.n_base == expected.n_base
        )

    @classmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return those of a mean and a scatter matrix per class."""
        return n_classes * (dim + dim * (dim + 1) // 2)

    @property
    def posterior(self) -> Posterior:
        """What follows from the statistics; computed when it is first asked for."""
        if self._posterior is None:
            self._posterior = posterior_of(
                self.statistics, shrinkage=self.shrinkage, prior=self.prior, student=self.student
            )
        return self._posterior

    def prepare(self) -> None:
        """Solve for the posterior of the means; an error if the statistics are not a covariance."""
        _ = self.posterior

    def _apply(self, fn: object, recurse: bool = True) -> Self:
        self._posterior = None  # it belongs to the old tensors
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    def forward(self, features: Tensor) -> Tensor:
        """Return ``scale`` · log-densities up to a constant (n, n_classes)."""
        posterior = self.posterior
        return self.scale * posterior.log_densities(posterior.distances(features))

    def novelty(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return five statistics of each window (n, 5), large for new ones, and the nearest class (n,).

        The log-likelihood ratio of an unknown class, distributed like the base classes, and the nearest
        known one; the log of the squared distance to that; and the same in those directions alone in which
        windows of a class differ most, in the first two of these, and in those where they differ least.
        """
        return self.posterior.novelty(self.posterior.distances(features))

    def answers(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (n, n_classes) and what :meth:`novelty` returns, by the same distances."""
        posterior = self.posterior
        distances = posterior.distances(features)
        return self.scale * posterior.log_densities(distances), *posterior.novelty(distances)

    def answers_of_one(self, features: Tensor) -> tuple[Tensor, list[float], int]:
        """Return :meth:`answers` to one window, as of a live source: logits (1, n_classes), plain numbers."""
        posterior = self.posterior
        distances = posterior.distances(features)
        return self.scale * posterior.log_densities(distances), *posterior.novelty_of_one(distances)

    def similarity(self, some: Tensor, others: Tensor) -> Tensor:
        """Return minus the squared Mahalanobis distance of features (n, dim) and others (m, dim)."""
        whitening = self.posterior.whitening
        return -torch.cdist(some @ whitening, others @ whitening).square()


def triangle_of(matrix: Tensor) -> Tensor:
    """Return the upper triangle (dim (dim + 1) / 2,) of a symmetric matrix (dim, dim)."""
    rows, cols = torch.triu_indices(len(matrix), len(matrix), device=matrix.device)
    return matrix[rows, cols]


def square_of(triangle: Tensor, dim: int) -> Tensor:
    """Return the symmetric matrix (dim, dim) that has an upper triangle."""
    rows, cols = torch.triu_indices(dim, dim, device=triangle.device)
    matrix = triangle.new_zeros(dim, dim)
    matrix[rows, cols] = triangle
    matrix[cols, rows] = triangle
    return matrix


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Predictions for held-out windows.

    Parameters
    ----------
    logits : Tensor, shape (n, n_classes)
    targets : Tensor, shape (n,)
        The right columns.
    statistics, nearest : Tensor, shape (n, n_statistics) and (n,)
        Of :meth:`~anchorinv.core.heads.Head.novelty`.
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

    @property
    def near_taught(self) -> Tensor:
        """Which windows (n,) are nearest to a taught class, whatever they are of."""
        return self.nearest >= self.n_base

    @property
    def says_taught(self) -> Tensor:
        """Which windows (n,) were taken for windows of taught classes."""
        return self.logits.argmax(1) >= self.n_base


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
    rounds = _Rounds()
    folds = list(neighbouring_folds(targets, groups))
    n_classes = int(targets.max()) + 1
    order = torch.randperm(n_classes, generator=stream(rng, "confidence")).tolist()
    for i, aside in enumerate(folds):
        tick("confidence", i, len(folds))
        fold = _Fold(features(~aside), targets, aside, empty)
        known = [column for column in order if fold.counts[column] > 1]
        if len(known) < 2 or not fold.asks(known):
            continue
        rounds.plain.append(fold.answers(known, [], 0, rng))
        if len(known) < 3:
            continue
        draw = stream(rng, "confidence", "shots", i)
        for j in (2 * i, 2 * i + 1):
            rounds.one.append(fold.answers(known, [known[j % len(known)]], TEN, draw))
        for n_shots in SHOTS:
            rounds.third[n_shots].append(fold.answers(known, known[i % 3 :: 3], n_shots, draw))
    tick("confidence", len(folds), len(folds))
    return rounds.confidence(n_classes) if rounds.plain else None


def held_out_confidence(
    logits: Tensor, statistics: Tensor, nearest: Tensor, targets: Tensor, n_base: int
) -> Confidence:
    """Return the confidence of any head by windows that it did not learn from, all of base classes."""
    answers = Answers(logits, targets, statistics, nearest, n_base, targets)
    return _Rounds([answers]).confidence(n_base)


class _Fold:
    """A discriminant of all classes without the windows kept aside; rounds take from it what they need."""

    def __init__(self, features: Tensor, targets: Tensor, aside: Tensor, empty: Discriminant) -> None:
        self.features, self.targets, self.aside = features, targets, aside
        self.counts = targets[~aside].bincount(minlength=int(targets.max()) + 1).tolist()
        self.empty = empty
        # Of few windows there is nothing to add up: solving for each round's own is faster.
        few = int((~aside).sum()) <= FEW * features.shape[1]
        self.whole = None if few else empty.learned(features[~aside], targets[~aside])

    def asks(self, known: list[int]) -> bool:
        """Say whether windows of known classes were kept aside."""
        return bool((self.aside & torch.isin(self.targets, torch.tensor(known))).any())

    def answers(self, known: list[int], taught: list[int], n_shots: int, rng: torch.Generator) -> Answers:
        """Ask a model of the known classes, of which some were taught with so many shots each."""
        base = [column for column in known if column not in taught]
        place = torch.full((len(self.counts),), -1)
        place[[*base, *taught]] = torch.arange(len(known))
        shots = torch.cat([torch.zeros(0).long(), *(self._shots(column, n_shots, rng) for column in taught)])
        posterior = self._posterior(base, shots, place)
        asked = self.aside & (place[self.targets] >= 0)
        features, labels = self.features[asked], self.targets[asked]
        distances = posterior.distances(features)
        logits = self.empty.scale * posterior.log_densities(distances)
        return Answers(logits, place[labels], *posterior.novelty(distances), len(base), labels)

    def _posterior(self, base: list[int], shots: Tensor, place: Tensor) -> Posterior:
        """Solve for base classes and shots (n,), whose columns are in ``place`` (n_classes,)."""
        if self.whole is not None:
            head = self.whole.of(base, len(base))
            return head.learned(self.features[shots], place[self.targets[shots]]).posterior
        windows = ~self.aside & torch.isin(self.targets, torch.tensor(base))
        windows[shots] = True
        statistics = Statistics.of(self.features[windows], place[self.targets[windows]], len(base))
        empty = self.empty
        return posterior_of(statistics, shrinkage=empty.shrinkage, prior=empty.prior, student=empty.student)

    def _shots(self, column: int, n_shots: int, rng: torch.Generator) -> Tensor:
        there = (~self.aside & (self.targets == column)).nonzero().flatten()
        return there[torch.randperm(len(there), generator=rng)[:n_shots]]


def neighbouring_folds(targets: Tensor, groups: Tensor | None) -> Iterator[Tensor]:
    """Yield masks (n,) of held-out windows: segments of each class, or of whole groups."""
    if int(targets.bincount().min()) < _LEAST:
        return
    numbers = [] if groups is None else list(dict.fromkeys(groups.tolist()))  # in the order they come in
    if groups is None or len(numbers) < 2:
        fold = torch.zeros_like(targets)
        for column in set(targets.tolist()):
            own = (targets == column).nonzero().flatten()
            fold[own] = _dealt(len(own))
    else:
        dealt = dict(zip(numbers, _dealt(len(numbers)).tolist(), strict=True))
        fold = torch.tensor([dealt[group] for group in groups.tolist()])
    for i in sorted(set(fold.tolist())):
        yield fold == i


def _dealt(n: int) -> Tensor:
    """Return the fold of each of n neighbours (n,): consecutive segments are assigned in turn."""
    return (torch.arange(n) * min(FOLDS * STRETCHES, n) // n) % min(FOLDS, n)


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Answers of models of all classes, of those that were taught one class, and a third of the classes."""

    plain: list[Answers] = field(default_factory=list)
    one: list[Answers] = field(default_factory=list)
    third: dict[int, list[Answers]] = field(default_factory=lambda: {n: [] for n in SHOTS})

    def confidence(self, n_classes: int) -> Confidence:
        """Return what all answers say."""
        none = Scores.of(torch.zeros(0))
        confidence = Confidence(self._factors(), none, none, none)
        known = torch.cat([answers.statistics for answers in self.plain])
        lessons = torch.cat([known[:0], *(a.statistics[a.near_taught] for a in self.one)])
        lessons = lessons if len(lessons) else known  # none near a taught class may have been kept aside
        tables = [[Scores.of(column) for column in known.T], [Scores.of(column) for column in lessons.T]]
        # Artefacts are unusual by base windows as well: only the first statistic is compared with windows
        # near taught classes alone, the others with base or taught windows, whichever have lower quantiles.
        pairs = zip(*tables, strict=True)
        tables[1] = [own if i == 0 else base.lower(own) for i, (base, own) in enumerate(pairs)]
        apart = replace(confidence, base=Scores.stack(tables[0]), taught=Scores.stack(tables[1]))
        of_base, of_lessons = torch.zeros(len(known)).bool(), torch.ones(len(lessons)).bool()
        return replace(
            confidence,
            base=Scores.stack([*tables[0], Scores.of(apart.surprise(known, of_base))]),
            taught=Scores.stack([*tables[1], Scores.of(apart.surprise(lessons, of_lessons))]),
            misfits=Scores.stack(self._misfits(confidence, n_classes)),
        )

    def _factors(self) -> Tensor:
        """Return those of taught classes by their shots, of base classes, and of these after lessons."""
        base = _factor([self.plain], lambda answers: ~answers.taught, _FACTORS)
        # Factors rise with the number of shots, and do not rise after lessons; deviations are due to chance.
        most = [factor for factor in _FACTORS if factor <= base]
        lessons = {**{n: [rounds] for n, rounds in self.third.items()}, TEN: [self.one, self.third[TEN]]}
        taught = [_factor(lessons[n], lambda answers: answers.says_taught, most) for n in SHOTS]
        after = base
        # Of few classes a third, or one, is too much of what a model knows to stand for a lesson to come.
        if len(self.plain[0].logits[0]) >= FEWEST_CLASSES:
            # This factor is underconfident for windows of base classes, and overconfident for those of taught
            # classes, some of which are mistaken for base classes: the geometric mean errs least on both.
            both = _factor(lessons[TEN], lambda answers: ~answers.says_taught, most)
            after, taught[-1] = math.sqrt(base * both), math.sqrt(taught[-1] * both)
        return torch.tensor([*torch.tensor([*taught, base]).cummax(0).values, after])

    def _misfits(self, confidence: Confidence, n_classes: int) -> list[Scores]:
        before, lessons = self.plain, self.third[TEN]
        first = torch.cat([_misfit(confidence, answers) for answers in before])
        labels = torch.cat([answers.labels for answers in before])
        rows = [Scores.of(first[labels == column]) for column in range(n_classes)] + [Scores.of(first)]
        later = torch.cat([torch.zeros(0), *(_misfit(confidence, answers) for answers in lessons)])
        taught = torch.cat([torch.zeros(0, dtype=torch.bool), *(answers.taught for answers in lessons)])
        return [*rows, Scores.of(later[~taught]), Scores.of(later[taught])]


def _factor(kinds: list[list[Answers]], which: Callable[[Answers], Tensor], factors: list[float]) -> float:
    """Return the factor that makes some answers likeliest, each kind of rounds with the same weight.

    Without any answers it is the largest.
    """
    # One by one: where groups lack a class, rounds have different numbers of classes.
    asked = [[(a.logits[which(a)], a.targets[which(a)]) for a in rounds] for rounds in kinds]
    asked = [rounds for rounds in asked if any(len(t) for _, t in rounds)]

    def loss(factor: float) -> float:
        return sum(
            float(torch.cat([F.cross_entropy(factor * z, t, reduction="none") for z, t in rounds]).mean())
            for rounds in asked
        )

    return min(reversed(factors), key=loss)


def _misfit(confidence: Confidence, answers: Answers) -> Tensor:
    """Return how far the logit of the right class is below the largest (n,), taught with ten shots or not."""
    counts = torch.full((answers.logits.shape[1],), TEN)
    calibrated = confidence.scaled(answers.logits, counts, n_base=answers.n_base)
    return misfits_of(calibrated).gather(1, answers.targets[:, None]).squeeze(1)
