"""Rehearsal: choose settings, and whether networks help, by held-out base data alone.

Base classes are held out and taught with ten shots, as if new, to choose the shrinkage and the scale of the
probabilities. Whether networks are used in addition to classical features is decided on held-out windows of
base classes: classical features that separate these usually separate new classes, too, unlike those of a
network trained on a few classes; but where classical features are hardly better than chance, networks may be.
One network is trained for each fold, on the others, so that for every base window one network in three was
not fitted to it. Everything else is closed form on computed features. Windows of one person or recording are
never on both sides, where groups are known.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.encoder import FeatureNetwork
from anchorinv.core.metrics import confusion, macro_f1
from anchorinv.core.networks import encode, frozen, usual_threads
from anchorinv.core.posterior import Posterior, Statistics, posterior_of
from anchorinv.core.recipe import BaseLearner
from anchorinv.core.types import Batch, Curve, State, columns, stream
from anchorinv.progress import tick

FOLDS = 3
SHOTS = 10
#: Alternatives to Ledoit and Wolf's shrinkage. One is used only if better by a point of macro-F1 and by two
#: standard errors; otherwise theory is the better guide.
SHRINKAGES = (0.1, 0.3, 0.6)
MARGIN = 0.01
ERRORS = 2.0
#: Minimum number of windows of a class; a third of fewer is too few.
_LEAST = 6
_SCALES = torch.logspace(-3, 0.5, 36).tolist()


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen settings, and their scores in rehearsal.

    Parameters
    ----------
    shrinkage : float
    scale : float
        Factor of log-densities, so that probabilities are calibrated.
    score : float
        Macro-F1 over base and taught classes in rehearsal; nan where rehearsal was impossible.
    centring : float
        Gain in accuracy from centring the windows of an unseen group (mean minus two standard errors); nan
        where unknown.
    """

    shrinkage: float
    scale: float = 1.0
    score: float = math.nan
    centring: float = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsal:
    """One rehearsal: statistics of classes, and held-out windows (n, dim) with columns and groups."""

    known: Statistics
    features: Tensor
    targets: Tensor
    groups: Tensor


def rehearse(
    features: Tensor,
    targets: Tensor,
    groups: Tensor | None,
    *,
    shrinkage: float,
    prior: bool = True,
    rng: torch.Generator,
) -> Choice:
    """Choose the settings of a discriminant, by base features (n, dim) with their columns (n,).

    Parameters
    ----------
    groups : Tensor, shape (n,), or None
        Person or recording of each window.
    shrinkage : float
        Ledoit and Wolf's, used unless another one is clearly better.
    """
    # n windows span at most n directions; the others carry no further evidence. On synthetic EMG with 1 to 5
    # windows of a class and 768 features, this scale has nearly the highest likelihood.
    usual = Choice(shrinkage, scale=min(1.0, len(features) / features.shape[1]))
    folds = list(folds_of(targets, groups, rng))
    if not folds:
        return usual
    n_classes = int(targets.max()) + 1
    parts = held_out(n_classes, rng)
    marks = torch.arange(len(targets)) if groups is None else groups
    rounds = []
    for i, (known, evaluated) in enumerate(folds):
        for j, part in enumerate(parts):
            tick("rehearsal", i * len(parts) + j, len(folds) * len(parts))
            shots_rng = stream(rng, "shots", i, j)
            rehearsal = _rehearsal(features, targets, marks, known, evaluated, part, shots_rng)
            rounds += [rehearsal] if rehearsal else []
    tick("rehearsal", len(folds) * len(parts), len(folds) * len(parts))
    if not rounds:
        return usual
    candidates = [shrinkage] if parts == [()] else [shrinkage, *SHRINKAGES]
    logits = {
        candidate: [_solve(r.known, candidate, prior).logits(r.features) for r in rounds]
        for candidate in candidates
    }
    scores = {
        candidate: torch.tensor([f1_of(z, r.targets) for z, r in zip(outputs, rounds, strict=True)])
        for candidate, outputs in logits.items()
    }
    best = max(scores, key=lambda candidate: float(scores[candidate].mean()))
    chosen = best if clearly_better(scores[best] - scores[shrinkage]) else shrinkage
    scale = _scale(logits[chosen], [rehearsal.targets for rehearsal in rounds])
    many = groups is not None and len(set(groups.tolist())) >= FOLDS
    centring = _centring(rounds, shrinkage, prior) if many else math.nan
    return replace(
        usual, shrinkage=chosen, scale=scale, score=float(scores[chosen].mean()), centring=centring
    )


def base_score(
    features: Tensor,
    targets: Tensor,
    folds: Sequence[tuple[Tensor, Tensor]],
    *,
    shrinkage: float,
    prior: bool = True,
) -> float:
    """Return macro-F1 over the base classes alone, each fold by the others; nan without folds."""
    scores = []
    for known, evaluated in folds:
        statistics = Statistics.of(features[known], targets[known], int(targets.max()) + 1)
        logits = _solve(statistics, shrinkage, prior).logits(features[evaluated])
        scores.append(f1_of(logits, targets[evaluated]))
    return sum(scores) / len(scores) if scores else math.nan


def clearly_better(gains: Tensor) -> bool:
    """Return whether gains (n_rounds,) exceed a point of macro-F1 and two standard errors."""
    enough = max(MARGIN, float(ERRORS * gains.std() / math.sqrt(len(gains)))) if len(gains) > 1 else math.inf
    return float(gains.mean()) >= enough if len(gains) else False


def _solve(known: Statistics, shrinkage: float, prior: bool) -> Posterior:
    return posterior_of(known, shrinkage=shrinkage, prior=prior, student=prior, directions=False)


def _rehearsal(
    features: Tensor,
    targets: Tensor,
    groups: Tensor,
    known: Tensor,
    evaluated: Tensor,
    part: tuple[int, ...],
    rng: torch.Generator,
) -> Rehearsal | None:
    """Return a rehearsal with some classes as new ones, or None where too few classes have windows."""
    counts = targets[known].bincount(minlength=int(targets.max()) + 1).tolist()
    base = [label for label, count in enumerate(counts) if label not in part and count > 1]
    new = [label for label in part if counts[label]]
    if len(base) < 2:
        return None
    place = torch.full((len(counts),), -1)
    place[[*base, *new]] = torch.arange(len(base) + len(new))
    chosen = known & torch.isin(targets, torch.tensor(base))
    for label in new:
        own = (known & (targets == label)).nonzero().flatten()
        chosen[own[torch.randperm(len(own), generator=rng)[:SHOTS]]] = True
    scored = evaluated & (place[targets] >= 0)
    if not scored.any():
        return None
    statistics = Statistics.of(features[chosen], place[targets[chosen]], len(base))
    return Rehearsal(statistics, features[scored], place[targets[scored]], groups[scored])


def folds_of(targets: Tensor, groups: Tensor | None, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield masks of training and evaluation windows; nothing where either is too small."""
    if int(targets.bincount().min()) < _LEAST:
        return
    # Imported here, as it takes half a second.
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    seed = int(torch.randint(2**31, (1,), generator=stream(rng, "folds")))
    n_groups = 1 if groups is None else len(set(groups.tolist()))
    # A single group cannot be held out: windows are, as without groups.
    kind = StratifiedGroupKFold if n_groups > 1 else StratifiedKFold
    folds = kind(min(FOLDS, n_groups) if n_groups > 1 else FOLDS, shuffle=True, random_state=seed)
    numbers = groups.numpy() if groups is not None and n_groups > 1 else None
    for known, _ in folds.split(targets[:, None].numpy(), targets.numpy(), numbers):
        mask = torch.zeros(len(targets), dtype=torch.bool)
        mask[torch.from_numpy(known)] = True
        yield mask, ~mask


def held_out(n_classes: int, rng: torch.Generator) -> list[tuple[int, ...]]:
    """Return which classes are held out in turn, a third at a time; none of two classes."""
    if n_classes < 3:
        return [()]
    order = torch.randperm(n_classes, generator=stream(rng, "held out")).tolist()
    n_parts = min(FOLDS, n_classes)
    return [tuple(sorted(order[i::n_parts])) for i in range(n_parts)]


def f1_of(logits: Tensor, targets: Tensor) -> float:
    """Return macro-F1 of logits (n, n_classes) over the classes that are among the targets (n,)."""
    n_classes = logits.shape[1]
    matrix = confusion(targets.numpy(), logits.argmax(1).numpy(), tuple(range(n_classes)))
    present = sorted(set(targets.tolist()))
    return float(macro_f1(matrix, present))


def _scale(logits: list[Tensor], targets: list[Tensor]) -> float:
    """Return the scale of the logits with the highest likelihood (Guo et al., ICML 2017)."""
    losses = [
        sum(float(F.cross_entropy(scale * a, t)) for a, t in zip(logits, targets, strict=True))
        for scale in _SCALES
    ]
    best: float = _SCALES[losses.index(min(losses))]
    return best


def _centring(rounds: list[Rehearsal], shrinkage: float, prior: bool) -> float:
    """Return the gain in accuracy from centring each unseen group, minus two standard errors."""
    gains = []
    for rehearsal in rounds:
        posterior = _solve(rehearsal.known, shrinkage, prior)
        for group in sorted(set(rehearsal.groups.tolist())):
            own = rehearsal.groups == group
            if own.sum() < SHOTS:
                continue
            features, answers = rehearsal.features[own], rehearsal.targets[own]
            moved = features - features.mean(0) + rehearsal.known.middle
            before, after = (
                float((posterior.logits(some).argmax(1) == answers).float().mean())
                for some in (features, moved)
            )
            gains.append(after - before)
    values = torch.tensor(gains)
    return (
        float(values.mean() - ERRORS * values.std() / math.sqrt(len(values))) if len(gains) > 1 else math.nan
    )


#: Networks are trained if the classical macro-F1, as a share of the way from chance (0) to perfect (1), is
#: below this. On held-out parts: imagined movements 0.04 to 0.17, stress 0.39 to 0.58, EMG and ECG from 0.96.
POOR = 1 / 3
#: From this share on, all features are kept if they fit, even with few windows: where base classes are easily
#: separated, so are new ones, in directions that few base windows do not show. Below it, half as many
#: features as windows do better.
GOOD = 1 / 2


@dataclass(frozen=True, slots=True, eq=False)
class NetworkComparison:
    """Scores of both kinds of features, and the networks to use, if any.

    Parameters
    ----------
    networks : tuple of FeatureNetwork
    classical, learned : float
        Macro-F1 over the base classes on held-out windows, by classical features and by networks; nan
        where nothing could be held out, or no network was trained.
    curves : tuple of Curve
        How the loss of each network fell.
    separation : float
        Classical macro-F1 as a share of the way from chance (0) to perfect (1); nan as above.
    """

    networks: tuple[FeatureNetwork, ...] = ()
    classical: float = math.nan
    learned: float = math.nan
    curves: tuple[Curve, ...] = ()
    separation: float = math.nan

    @property
    def easy(self) -> bool:
        """Whether classical features separate the base classes easily, as far as that is known."""
        return not self.separation < GOOD

    def __str__(self) -> str:
        if math.isnan(self.learned):
            why = "network='always'" if self.networks else "none was needed"
        else:
            why = f"{100 * self.learned:.0f} % of macro-F1 on held-out base windows"
        without = "" if math.isnan(self.classical) else f"; {100 * self.classical:.0f} % without networks"
        return f"networks: {'used' if self.networks else 'not used'}, {why}{without}"


def compare_networks(
    learner: BaseLearner | None,
    samples: Batch,
    features: Tensor,
    *,
    shrinkage: float,
    prior: bool,
    always: bool = False,
    rng: torch.Generator,
) -> NetworkComparison:
    """Compare a discriminant on classical features (n, dim) with networks, fold by fold.

    Parameters
    ----------
    learner : BaseLearner or None
        Trains a network; None only scores the classical features.
    samples : Batch
        Base signals (n, n_chans, n_times); whole groups are held out where they are known.
    shrinkage, prior : float, bool
        Of the discriminant.
    always : bool
        Train and use networks regardless of the comparison.
    """
    targets = columns(samples.labels, samples.classes)
    n_classes = len(samples.classes)
    folds = [
        (known, evaluated)
        for known, evaluated in folds_of(targets, samples.groups, rng)
        if len(set(targets[known].tolist())) == n_classes
    ]
    classical = base_score(features, targets, folds, shrinkage=shrinkage, prior=prior)
    separation = (classical - 1 / n_classes) / (1 - 1 / n_classes)
    without = NetworkComparison(classical=classical, separation=separation)
    if learner is None or (not always and not separation < POOR):
        return without
    networks, scores, curves = [], [], []
    whole = torch.ones_like(targets, dtype=torch.bool)
    for i, (known, evaluated) in enumerate(folds or [(whole, ~whole)]):
        with usual_threads():
            state = learner.fit(samples[known], rng=stream(rng, "network", i))
        networks.append(_feature_network(state, samples.values[:1]))
        curves += [replace(curve, name=f"network {i + 1}") for curve in state.curves if curve.name == "base"]
        logits = (
            encode(state.head, encode(networks[-1], samples.values[evaluated])) if evaluated.any() else None
        )
        scores += [] if logits is None else [f1_of(logits, targets[evaluated])]
        tick("networks", i + 1, max(1, len(folds)))
    learned = sum(scores) / len(scores) if scores else math.nan
    used = tuple(networks) if always or learned > classical else ()
    return replace(without, networks=used, learned=learned, curves=tuple(curves))


def _feature_network(state: State, signal: Tensor) -> FeatureNetwork:
    dim = encode(state.tail, encode(state.trunk, signal)).shape[1]
    return frozen(FeatureNetwork(state.trunk, state.tail, dim))
