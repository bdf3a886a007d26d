"""What a fitted model says of windows: logits, p-values of novelty, and groups that may be a new class."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.confidence import Confidence
from anchorinv.core.discriminant import held_out_confidence
from anchorinv.core.heads import class_means
from anchorinv.core.networks import CHUNK, encode, torch_threads
from anchorinv.core.recipe import BaseSpec, Recipe, without_networks
from anchorinv.core.training import holdout
from anchorinv.core.types import Batch, State, columns

_NOT_MEASURED = (
    "this model has no novelty scores, since no windows were held out when it was trained; train it again "
    "with method='discriminant' and at least 6 windows of each class, or with a method that has a network, "
    "at least 200 windows and no fixed number of epochs, and in either case without differential privacy; or "
    "leave out reject"
)


def logits_of(state: State, signals: Tensor) -> Tensor:
    """Return finite calibrated logits (n, n_classes) of standardised signals (n, n_chans, n_times)."""
    return answers_of(state, signals)[0]


def answers_of(state: State, signals: Tensor, *, novelty: bool = False) -> tuple[Tensor, Tensor | None]:
    """Return logits as :func:`logits_of` and, if asked for, p-values (n,) of being of a known class."""
    # As in lessons (one_thread), but limiting BLAS, too, would take longer than a window.
    with torch_threads(1) if without_networks(state) else nullcontext():
        return _answers_of(state, signals, novelty=novelty)


def _answers_of(state: State, signals: Tensor, *, novelty: bool) -> tuple[Tensor, Tensor | None]:
    features = encode(nn.Sequential(state.trunk, state.tail), signals)
    if not novelty:
        return check_finite(state.calibrated(encode(state.head, features))), None
    confidence = known_confidence(state)
    if len(features) == 1:  # as live windows come
        with torch.no_grad():
            logits, numbers, column = state.head.answers_of_one(features)
        p_value = confidence.p_value(numbers, taught=column >= state.n_base)
        p_values = torch.tensor([max(p_value, torch.finfo(logits.dtype).tiny)], dtype=logits.dtype)
    else:
        with torch.no_grad():
            parts = [state.head.answers(chunk) for chunk in torch.split(features, CHUNK)]
        logits, statistics, nearest = (torch.cat(part) for part in zip(*parts, strict=True))
        p_values = confidence.p_values(statistics, nearest >= state.n_base)
    return check_finite(state.calibrated(logits)), p_values


@torch.no_grad()
def novelty_of(state: State, features: Tensor) -> Tensor:
    """Return p-values (n,) of novelty of features (n, dim); an error says why there are none."""
    confidence = known_confidence(state)
    statistics, nearest = state.head.novelty(features)
    return confidence.p_values(statistics, nearest >= state.n_base)


def known_confidence(state: State) -> Confidence:
    """Return the model's confidence measures; an error says why there are none."""
    if state.confidence is None:
        raise ValueError(_NOT_MEASURED)
    return state.confidence


def check_held_out(recipe: Recipe, samples: Batch, *, needed: bool, rng: torch.Generator) -> None:
    """Refuse, before training, samples of which none would be held out, if some are needed."""
    if needed and isinstance(recipe.base_spec, BaseSpec) and not _held_out(recipe, samples, rng).any():
        raise ValueError(_NOT_MEASURED)


def _held_out(recipe: Recipe, samples: Batch, rng: torch.Generator) -> Tensor:
    """Return which samples (n,) the training of a network holds out for early stopping."""
    spec = recipe.base_spec
    if recipe.private or not isinstance(spec, BaseSpec) or spec.training.patience is None:
        return torch.zeros(len(samples), dtype=torch.bool)
    return holdout(columns(samples.labels, samples.classes), samples.groups, rng=rng)


def with_confidence(
    recipe: Recipe, state: State, samples: Batch, *, needed: bool, rng: torch.Generator
) -> State:
    """Return a base model with confidence measured on held-out windows, if any were held out.

    Closed forms have theirs already. A model that needs one and has none is refused.
    """
    held_out = _held_out(recipe, samples, rng)
    if state.confidence is not None or not held_out.any():
        if needed:
            known_confidence(state)
        return state
    features = encode(nn.Sequential(state.trunk, state.tail), samples.values[held_out])
    with torch.no_grad():
        statistics, nearest = state.head.novelty(features)
        logits = state.head(features)
    targets = state.columns(samples.labels)[held_out]
    return replace(state, confidence=held_out_confidence(logits, statistics, nearest, targets, state.n_base))


def check_finite(logits: Tensor) -> Tensor:
    """Return logits (n, n_classes) if they are finite."""
    wrong = int((~logits.isfinite()).any(1).sum())
    if wrong:
        raise ValueError(
            f"the model's outputs for {wrong} of {len(logits)} signals are not finite: "
            f"its weights are damaged or far too large; use an earlier copy of the model, or train it again"
        )
    return logits


#: The p-value at which a model rejects windows unless it was set otherwise.
REJECT = 0.05
#: Examples that a suggested class is taught with.
SHOTS = 10
#: A window of a group that is nearer to a known class counts against so many that are not. Chosen on EMG
#: of days that belong to the training part: see docs/predictions.md.
PENALTY = 4
#: Rejected windows that are compared with each other; of more, so many at equal distances.
MOST = 500
#: Values encoded at once: next to a live stream this happens again and again, in little memory.
_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class Suggestion:
    """A group of windows that fit no known class and resemble each other; its text is one sentence.

    Parameters
    ----------
    indices : ndarray, shape (n,), int64
        Which windows these are, ascending.
    shots : ndarray, shape (n_shots,), int64
        Those to teach the class with: the ten that are most similar to the mean of the group, these first.
    n_rejected : int
        Windows that fit no known class, in the group and elsewhere.
    own : int
        Windows of the group that are nearer to the mean of its others than to any known class.
    nearest : Any
        The known class that is most similar to the mean of the group.

    Examples
    --------
    >>> print(Suggestion(np.arange(23), np.arange(10), 40, 21, "fist"))
    23 of 40 windows that fit no known class resemble each other; 21 of these 23 are nearer to each other \
than to any known class ('fist' is the closest): teach them as a new class?
    """

    indices: np.ndarray
    shots: np.ndarray
    n_rejected: int
    own: int
    nearest: Any

    @property
    def separation(self) -> float:
        """Share of the group that is nearer to the mean of its others than to any known class."""
        return self.own / len(self.indices)

    def __str__(self) -> str:
        n = len(self.indices)
        return (
            f"{n} of {self.n_rejected} windows that fit no known class resemble each other; {self.own} of "
            f"these {n} are nearer to each other than to any known class ({self.nearest!r} is the closest): "
            f"teach them as a new class?"
        )


@torch.no_grad()
def suggested_class(
    state: State,
    signals: Tensor,
    names: Sequence[Any],
    *,
    reject: float,
    least: int,
    artefact: Callable[[np.ndarray], bool],
) -> Suggestion | None:
    """Return the largest and most separate group of windows that fit no known class, if there is one.

    Signals are standardised; ``names`` are the classes in the order of the head's columns. ``artefact`` says
    whether windows, by their indices, are rather a fault of the recording than a class; it is asked of each
    that is rejected, and of groups.
    """
    if not 0 < reject < 1:
        raise ValueError(f"reject (={reject!r}) must be a share between 0 and 1, as {REJECT}")
    if least != int(least) or least < 2:
        raise ValueError(f"least (={least!r}) must be a whole number of windows, 2 or more")
    network, at_once = nn.Sequential(state.trunk, state.tail), max(1, _AT_ONCE // signals[0].numel())
    starts = range(0, len(signals), at_once)
    features = torch.cat([encode(network, signals[i : i + at_once]) for i in starts])
    logits = check_finite(encode(state.head, features))
    rejected = np.flatnonzero(novelty_of(state, features).numpy() <= reject)
    if len(rejected) < least:
        return None
    features = embedded(state, features)
    accepted = np.setdiff1d(np.arange(len(features)), rejected)
    means, columns = _means(state, features[accepted], logits[accepted].argmax(1))
    plausible = np.array([i for i in rejected if not artefact(np.array([i]))], dtype=int)
    if len(plausible) < least:
        return None
    candidates = plausible[np.linspace(0, len(plausible) - 1, min(len(plausible), MOST)).round().astype(int)]
    best: tuple[int, np.ndarray] | None = None
    for group in _groups(state, features[candidates], means, least):
        if best is not None and len(group) <= best[0]:
            break  # smaller ones cannot be better
        score = _score(state, features[candidates[group]], means)
        if score > (best[0] if best else 0) and not artefact(candidates[group]):
            best = score, candidates[group]
    if best is None:
        return None
    indices = best[1]
    group_features = features[indices]
    centre = group_features.mean(0, keepdim=True)
    typical = similarity(state, group_features, centre)[:, 0].argsort(descending=True, stable=True)
    nearest = int(similarity(state, centre, means).argmax())
    n_separate = (best[0] + PENALTY * len(indices)) // (1 + PENALTY)
    return Suggestion(
        indices, indices[typical[:SHOTS].numpy()], len(rejected), n_separate, names[columns[nearest]]
    )


def _means(state: State, accepted: Tensor, predicted: Tensor) -> tuple[Tensor, list[int]]:
    """Return the means of known classes (n, dim) and their columns; by windows that fit, if need be."""
    if (means := known_means(state)) is not None:
        return means, list(range(len(means)))
    columns, numbers = np.unique(predicted.numpy(), return_inverse=True)
    if not len(columns):
        raise ValueError(
            "this method keeps nothing that tells where its classes lie, and none of these windows fits one; "
            "add windows of known classes, so that how separate the others are can be measured"
        )
    return class_means(accepted, torch.from_numpy(numbers)), columns.tolist()


def _score(state: State, group: Tensor, rivals: Tensor) -> int:
    """Return how large and separate a group (n, dim) is; above 0 it may be a class of its own."""
    separate, _ = nearest_rivals(state, group, rivals)
    return int(separate.sum()) - PENALTY * int((~separate).sum())


def _groups(state: State, features: Tensor, means: Tensor, least: int) -> list[np.ndarray]:
    """Return the groups (n,) of features (n, dim) that average linkage makes, the largest first.

    Those of two or more groups that are as separate from each other as from known classes are left out.
    """
    from scipy.cluster.hierarchy import linkage

    similarities = similarity(state, features, features).double()
    to_itself = similarities.diagonal()
    # A squared distance, whether the similarity is minus one or a cosine; symmetric in the last digit, too.
    squared = to_itself[:, None] + to_itself - similarities - similarities.T
    distances = squared.clamp(min=0).fill_diagonal_(0).numpy()
    merges = linkage(distances[np.triu_indices(len(distances), 1)], "average")[:, :2].astype(int)
    groups: list[np.ndarray | None] = [np.array([i]) for i in range(len(features))]  # None: of several
    for first, second in merges:
        one, other = groups[first], groups[second]
        several = (
            one is None or other is None or _are_two(state, features[one], features[other], means, least)
        )
        groups.append(None if several else np.sort(np.concatenate([one, other])))
    return sorted((g for g in groups if g is not None and len(g) >= least), key=len, reverse=True)


def _are_two(state: State, one: Tensor, other: Tensor, means: Tensor, least: int) -> bool:
    """Return whether two groups (n, dim) are classes of their own rather than halves of one."""
    if min(len(one), len(other)) < least:
        return False
    centres = torch.stack([one.mean(0), other.mean(0)])
    # Halves of a large group are apart, too, but near to each other.
    if similarity(state, centres[:1], centres[1:]).max() >= similarity(state, centres, means).max():
        return False
    pairs = ((one, centres[1:]), (other, centres[:1]))
    return all(_score(state, own, torch.cat([means, rival])) > 0 for own, rival in pairs)


@runtime_checkable
class _HasPrototypes(Protocol):
    """A head that can say where its classes lie among the features, and how similar features are."""

    @property
    def prototypes(self) -> Tensor: ...

    def similarity(self, some: Tensor, others: Tensor) -> Tensor: ...


def embedded(state: State, features: Tensor) -> Tensor:
    """Return features (n, dim) as the means of classes are and :func:`similarity` takes them."""
    into: Callable[[Tensor], Tensor] | None = getattr(state.head, "embedded", None)  # a space of its own
    return into(features) if into else features


def known_means(state: State) -> Tensor | None:
    """Return the means of the classes among the features (n_classes, dim), if they are known."""
    if isinstance(state.head, _HasPrototypes):
        return state.head.prototypes
    if state.replay and set(state.replay.classes) == set(state.classes):
        features = encode(state.tail, state.replay.values)
        return class_means(features, state.columns(state.replay.labels))
    return None


def similarity(state: State, some: Tensor, others: Tensor) -> Tensor:
    """Return how similar features (n, dim) and others (m, dim) are (n, m): by the head, or the cosine."""
    if isinstance(state.head, _HasPrototypes):
        return state.head.similarity(some, others)
    return F.normalize(some) @ F.normalize(others).T


def nearest_rivals(state: State, windows: Tensor, rivals: Tensor) -> tuple[Tensor, Tensor]:
    """Compare two or more windows of a class (n, dim) with its mean and those of rivals (n_rivals, dim).

    Return whether each is nearer to the mean of the others of its class than to any rival, and the rival
    that is nearest to it.
    """
    rest = (windows.sum(0) - windows) / (len(windows) - 1)  # mean of the other windows, for each window
    parts = (slice(i, i + 64) for i in range(0, len(windows), 64))
    to_own = torch.cat([similarity(state, windows[part], rest[part]).diagonal() for part in parts])
    best, nearest = similarity(state, windows, rivals).max(1)
    return best < to_own, nearest
