"""Whether windows, sessions or people were in the training data: losses, distances and shadow models."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.heads import PrototypeHead, StatisticalHead
from anchorinv.core.networks import encode
from anchorinv.core.privacy import Privacy, clipped, private_statistics, unknown_generator
from anchorinv.core.registry import METHODS
from anchorinv.errors import listed
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.progress import tick
from anchorinv.serving.attacks import (
    Figure,
    Membership,
    class_means,
    confidence_of,
    likelihood_ratios,
    nearness,
    whitening_of,
)

#: Shadow models, where they cost nothing.
SHADOWS = 32
#: The attack by loss on shadow models in place of the model: what it reaches is not membership.
CONTROL = "loss of shadow models (control)"


@dataclass(frozen=True, slots=True, eq=False)
class People:
    """Labelled windows, and whose they are.

    Parameters
    ----------
    signals : ndarray, shape (n, n_chans, n_times)
    labels : ndarray, shape (n,)
    people, sessions : ndarray, shape (n,), or None, default=None
        Who was recorded, and on which day, in which run or trial.

    Examples
    --------
    >>> data = People(np.zeros((3, 2, 50)), np.array([0, 1, 0]), np.array(["a", "a", "b"]))
    >>> len(data.of(data.people == "a"))
    2
    """

    signals: np.ndarray
    labels: np.ndarray
    people: np.ndarray | None = None
    sessions: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("labels", "people", "sessions"):
            values = getattr(self, name)
            if values is not None and np.shape(values) != (len(self.signals),):
                raise ValueError(
                    f"{name} have shape {np.shape(values)}, {len(self.signals)} windows need one each"
                )

    def __len__(self) -> int:
        return len(self.signals)

    def of(self, chosen: np.ndarray) -> "People":
        """Return some of them, by a mask or by indices."""
        rest = (None if each is None else each[chosen] for each in (self.people, self.sessions))
        return People(self.signals[chosen], self.labels[chosen], *rest)

    def units(self, *, with_sessions: bool) -> np.ndarray | None:
        """Return to which person, or session of a person, each window belongs (n,); None if nobody knows."""
        if self.people is None or (with_sessions and self.sessions is None):
            return None
        sessions = self.sessions if with_sessions and self.sessions is not None else [""] * len(self)
        return np.array(
            [f"{person}\n{session}" for person, session in zip(self.people, sessions, strict=True)]
        )


def joined(members: People, others: People) -> tuple[People, np.ndarray]:
    """Return all windows, members first, and which of them are members (n,)."""
    columns: list[Any] = []
    for name in ("signals", "labels", "people", "sessions"):
        parts = [getattr(data, name) for data in (members, others)]
        columns.append(None if any(each is None for each in parts) else np.concatenate(parts))
    return People(*columns), np.arange(len(columns[0])) < len(members)


def standardised(model: AnchorInvClassifier, data: People) -> Tensor:
    """Return signals (n, n_chans, n_times) as the model takes them."""
    return torch.from_numpy(model.standardisation_(data.signals))


def membership(
    model: AnchorInvClassifier,
    members: People,
    others: People,
    notes: list[str],
    *,
    shadows: int | None,
    seed: int,
) -> Iterator[Figure]:
    """Tell members from others by every attack there is; what could not be tried is added to ``notes``."""
    both, inside = joined(members, others)
    units, unit = units_of(members, others, notes)
    whole = replace(both, people=units)
    for by, scores in _scores(model, whole, shadows, seed, notes, by_unit=bool(unit)).items():
        yield from membership_figures(scores, inside, units, unit, by)


def membership_figures(
    scores: np.ndarray, inside: np.ndarray, units: np.ndarray | None, unit: str, by: str
) -> Iterator[Figure]:
    """Measure scores (n,) of windows, inside (n,) or not; and of whole units (n,) if these have a name."""
    grouped = None if units is None else (units[inside], units[~inside])
    yield from Membership.of(scores[inside], scores[~inside], grouped).figures(f"window, by {by}")
    if units is not None and unit:
        means = []
        for part in (inside, ~inside):
            places = np.unique(units[part], return_inverse=True)[1]
            means.append(np.bincount(places, scores[part]) / np.bincount(places))
        if min(map(len, means)) >= 3:
            for each in Membership.of(means[0], means[1]).figures(f"{unit}, by {by}"):
                if each.estimate is not None:
                    yield each


def units_of(members: People, others: People, notes: list[str]) -> tuple[np.ndarray | None, str]:
    """Return which windows belong together (n,), and what that is called if it is a member as a whole.

    A person, or a session where people are on both sides; "" where sessions are on both sides, too.
    """
    if members.people is None or others.people is None:
        notes.append("Whose the windows are is not known: intervals take each window by itself.")
        return None, ""
    shared = bool(set(map(str, members.people)) & set(map(str, others.people)))
    unit = "session" if shared else "person"
    if shared and (members.sessions is None or others.sessions is None):
        notes.append(
            "The same people are on both sides, and sessions are not known: nothing is told by person."
        )
        shared, unit = False, ""
    first, second = (each.units(with_sessions=shared) for each in (members, others))
    assert first is not None and second is not None
    if unit and set(first) & set(second):
        notes.append("The same sessions are on both sides: membership is told of windows, not of sessions.")
        unit = ""
    return np.concatenate([first, second]), unit


def _scores(
    model: AnchorInvClassifier,
    whole: People,
    shadows: int | None,
    seed: int,
    notes: list[str],
    *,
    by_unit: bool,
) -> dict[str, np.ndarray]:
    """Return scores (n,) of all windows by each attack, larger for members."""
    columns = torch.from_numpy(np.searchsorted(model.classes_, whole.labels))[:, None]

    def own(logits: Tensor) -> np.ndarray:
        return logits.gather(1, columns).squeeze(1).double().numpy()

    signals = standardised(model, whole)
    tick("membership", 0, 2)
    scores = {"loss": own(model._logits_of(signals).log_softmax(1)), **_distances(model, whole)}
    tick("membership", 1, 2)
    ratios = means_ratios(model, whole, shadows, by_unit=by_unit, seed=seed)
    if ratios is not None:
        scores["likelihood ratio of class means"] = ratios
    missing = [name for name in model.classes_.tolist() if name not in whole.labels]
    shadowed = None if missing else shadow_logits(model, whole, shadows, by_unit=by_unit, seed=seed)
    if shadowed is None:
        why = (
            f"shadow models learn every class, and there are no windows of {listed(list(map(str, missing)))}"
            if missing
            else "it needs shadow models (shadows=, --shadows), trained as this one was"
        )
        notes.append(f"No likelihood ratio of confidence: {why}.")
        return scores
    target, logits, inside = shadowed
    # Half of them learned each window: what they tell members by is the split, not what the model remembers.
    scores[CONTROL] = np.mean([own(each.log_softmax(1)) for each in logits], axis=0)
    ways: dict[str, Callable[[Tensor], np.ndarray]] = {
        "confidence": lambda z: confidence_of(z, columns.squeeze(1))
    }
    if isinstance(model.state_.head, Discriminant):  # whose logits are densities, with a meaning of their own
        ways["density"] = own
    for name, way in ways.items():
        of_shadows = np.stack([way(each) for each in logits])
        scores[f"likelihood ratio of {name}"] = likelihood_ratios(way(target), of_shadows, inside)
    tick("membership", 2, 2)
    return scores


def _learned_order(model: AnchorInvClassifier, labels: np.ndarray) -> np.ndarray:
    """Return the columns (n,) of labels in the model's head: classes in the order they were learned."""
    return np.asarray(model._columns)[np.searchsorted(model.classes_, labels)]


def _distances(model: AnchorInvClassifier, data: People) -> dict[str, np.ndarray]:
    """Return minus the distance of each window to the nearest of its class that the model holds (n,)."""
    state, head = model.state_, model.state_.head
    signals, columns = standardised(model, data), _learned_order(model, data.labels)
    features = model._features(signals)
    found = {}
    held = {"recordings": (state.recordings, signals.flatten(1)), "anchors": (state.anchors, features)}
    if (name := replay_name(model)) is not None:
        held[name] = (state.replay, encode(state.trunk, signals).flatten(1))
    for name, (batch, values) in held.items():
        if batch is None or not batch.values.shape[1]:
            continue
        score = np.full(len(data), -np.inf)
        for column in np.unique(columns):
            known = batch.of(state.classes[column]).values.flatten(1).to(values)
            near = torch.cdist(values[torch.from_numpy(columns == column)], known)
            score[columns == column] = -near.min(1).values.double().numpy()
        found[f"distance to {name}"] = score
    if isinstance(head, StatisticalHead | PrototypeHead):
        with torch.no_grad():
            if isinstance(head, StatisticalHead):
                near = head.similarity(head.embedded(features), head.prototypes)
            else:
                near = torch.cosine_similarity(features[:, None], head.prototypes, dim=2)
        found["distance to class means"] = near.double().numpy()[np.arange(len(data)), columns]
    return found


def replay_name(model: AnchorInvClassifier) -> str | None:
    """Return what a model's replay is; None without one, or where it only encodes recordings it holds."""
    memory = METHODS[METHODS.name_of(model.method)].memory
    if model.state_.replay is None or "recordings" in memory.stores:
        return None
    return "inverted replay" if memory.inverts else "replayed latents"


def means_ratios(
    model: AnchorInvClassifier, data: People, n_shadows: int | None, *, by_unit: bool, seed: int
) -> np.ndarray | None:
    """Return the likelihood ratio (n,) of each window's distance to its class mean; None without means.

    A mean of n windows in many dimensions leans towards each of them (Dwork et al., Robust Traceability from
    Trace Amounts, FOCS 2015). The features are those of the model, whatever network makes them, so shadow
    means of half of the windows cost nothing; they are whitened by the covariance of the attacker's windows.
    """
    means = getattr(model.state_.head, "prototypes", None)
    features = model._features(standardised(model, data))
    if means is None or means.shape[1] != features.shape[1] or n_shadows == 0:
        return None
    columns = _learned_order(model, data.labels)
    privacy = model.privacy if isinstance(model.privacy, Privacy) else None
    if privacy is not None:
        features = clipped(features, privacy.clip)
    values = features.double().numpy()
    whitening = whitening_of(values, columns)
    whitened = values @ whitening
    halves = np.stack([*half_splits(data.labels, data.people if by_unit else None, SHADOWS, seed)])
    scores = []
    for half in halves:
        of_half = (
            class_means(values[half], columns[half], int(columns.max()) + 1)
            if privacy is None
            else _learned(model, features, data, half).means.double().numpy()
        )
        scores.append(nearness(whitened, columns, of_half @ whitening))
    target = nearness(whitened, columns, means.detach().double().numpy() @ whitening)
    return likelihood_ratios(target, np.stack(scores), halves)


def shadow_logits(
    model: AnchorInvClassifier, data: People, n_shadows: int | None, *, by_unit: bool, seed: int
) -> tuple[Tensor, list[Tensor], np.ndarray] | None:
    """Return logits (n, n_classes) of a model and of shadow models, and what these learned (n_shadows, n).

    Each is trained like the model, on half of all windows; None if there are to be none. Those of a
    discriminant take the features of the model, which is in the attacker's hands, and learn the statistics
    anew. Others are trained from the beginning. ``by_unit`` takes all windows of a name among
    ``data.people``, or none.
    """
    head = model.state_.head
    closed = isinstance(head, Discriminant)
    n_shadows = (SHADOWS if closed else 0) if n_shadows is None else n_shadows
    if n_shadows < 2:
        return None
    signals = standardised(model, data)
    features = model._features(signals)
    halves = np.stack([*half_splits(data.labels, data.people if by_unit else None, n_shadows, seed)])
    logits = []
    with torch.no_grad():
        target = head(features)[:, model._columns] if closed else model._logits_of(signals)
    for number, half in enumerate(halves):
        tick("shadow models", number, n_shadows)
        if closed:
            with torch.no_grad():
                logits.append(_learned(model, features, data, half)(features)[:, model._columns])
        else:
            logits.append(_trained(model, data, half, number))
    tick("shadow models", n_shadows, n_shadows)
    return target, logits, halves


def half_splits(labels: np.ndarray, units: np.ndarray | None, n: int, seed: int) -> Iterator[np.ndarray]:
    """Yield halves of all windows (n,), whole units if they are known, and in pairs: a half and the rest."""
    rng = np.random.default_rng(seed)
    units = np.arange(len(labels)) if units is None else units
    names, half = np.unique(units), np.zeros(len(labels), dtype=bool)
    for number in range(n):
        if number % 2:
            yield ~half
            continue
        for _ in range(50):
            half = np.isin(units, rng.permutation(names)[: len(names) // 2])
            if all(len(np.unique(labels[part])) == len(np.unique(labels)) for part in (half, ~half)):
                break
        else:  # classes of one unit alone: windows are drawn, of each class half
            half = np.zeros(len(labels), dtype=bool)
            for label in np.unique(labels):
                own = rng.permutation(np.flatnonzero(labels == label))
                half[own[: max(1, len(own) // 2)]] = True
        yield half


def _learned(model: AnchorInvClassifier, features: Tensor, data: People, half: np.ndarray) -> Discriminant:
    """Return a discriminant like the model's that learned half of the windows, with noise of its own."""
    head, chosen = model.state_.head, torch.from_numpy(half)
    assert isinstance(head, Discriminant)
    targets = torch.from_numpy(_learned_order(model, data.labels[half]))
    empty = head._with(head.counts[:0], head.means[:0], head.scatters[:0], head.n_base)
    if not isinstance(model.privacy, Privacy):
        return empty.learned(features[chosen], targets)
    whose = None
    if data.people is not None:
        whose = torch.from_numpy(np.unique(data.people[half], return_inverse=True)[1])
    return private_statistics(empty, features[chosen], targets, whose, model.privacy, rng=unknown_generator())


def _trained(model: AnchorInvClassifier, data: People, half: np.ndarray, number: int) -> Tensor:
    """Return logits (n, n_classes) of a model that was trained on half of the windows."""
    shadow = AnchorInvClassifier(**model.get_params(deep=False) | {"random_state": number, "verbose": False})
    base = half & np.isin(data.labels, model.base_classes_)
    shadow.fit(data.signals[base], data.labels[base])
    for name in model._names.tolist()[len(model.base_classes_) :]:
        new = half & (data.labels == name)
        shadow.partial_fit(data.signals[new], data.labels[new])
    return shadow._logits_of(standardised(shadow, data))
