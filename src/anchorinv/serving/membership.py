"""Membership inference of windows, sessions and people, by losses, distances and shadow models."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.heads import PrototypeHead, StatisticalHead
from anchorinv.core.networks import encode
from anchorinv.core.privacy import (
    AGGREGATE,
    Privacy,
    anchor_clip,
    clipped,
    noisy_anchors,
    private_statistics,
    unknown_generator,
)
from anchorinv.core.registry import METHODS
from anchorinv.core.types import Batch
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

#: Default number of shadow models of closed-form methods.
SHADOWS = 32
#: The attack by loss on shadow models instead of the model: its success is not due to membership.
CONTROL = "loss of shadow models (control)"


@dataclass(frozen=True, slots=True, eq=False)
class People:
    """Labelled windows with the people and sessions that they were recorded from.

    Parameters
    ----------
    signals : ndarray, shape (n, n_chans, n_times)
    labels : ndarray, shape (n,)
    people, sessions : ndarray, shape (n,), or None, default=None
        The person, and the day, run or trial of each window.

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
                    f"{name} have shape {np.shape(values)}, expected ({len(self.signals)},): one per window"
                )

    def __len__(self) -> int:
        return len(self.signals)

    def of(self, chosen: np.ndarray) -> "People":
        """Return a subset, by a mask or by indices."""
        rest = (None if column is None else column[chosen] for column in (self.people, self.sessions))
        return People(self.signals[chosen], self.labels[chosen], *rest)

    def units(self, *, with_sessions: bool) -> np.ndarray | None:
        """Return the person, or session of a person, of each window (n,); None if unknown."""
        if self.people is None or (with_sessions and self.sessions is None):
            return None
        sessions = self.sessions if with_sessions and self.sessions is not None else [""] * len(self)
        return np.array(
            [f"{person}\n{session}" for person, session in zip(self.people, sessions, strict=True)]
        )


def concatenate(members: People, others: People) -> tuple[People, np.ndarray]:
    """Return all windows, members first, and which of them are members (n,)."""
    columns: list[Any] = []
    for name in ("signals", "labels", "people", "sessions"):
        parts = [getattr(data, name) for data in (members, others)]
        columns.append(None if any(part is None for part in parts) else np.concatenate(parts))
    return People(*columns), np.arange(len(columns[0])) < len(members)


def standardise(model: AnchorInvClassifier, data: People) -> Tensor:
    """Return the signals (n, n_chans, n_times), standardised by the model."""
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
    """Run all membership inference attacks; those that are not possible are added to ``notes``."""
    both, inside = concatenate(members, others)
    units, unit = units_of(members, others, notes)
    whole = replace(both, people=units)
    for by, scores in _scores(model, whole, shadows, seed, notes, by_unit=bool(unit)).items():
        yield from membership_figures(scores, inside, units, unit, by)


def membership_figures(
    scores: np.ndarray, inside: np.ndarray, units: np.ndarray | None, unit: str, by: str
) -> Iterator[Figure]:
    """Evaluate scores (n,) of windows, members (``inside``) or not; also of units (n,) if ``unit`` is set."""
    grouped = None if units is None else (units[inside], units[~inside])
    yield from Membership.of(scores[inside], scores[~inside], grouped).figures(f"window, by {by}")
    if units is not None and unit:
        means = []
        for part in (inside, ~inside):
            places = np.unique(units[part], return_inverse=True)[1]
            means.append(np.bincount(places, scores[part]) / np.bincount(places))
        if min(map(len, means)) >= 3:
            for figure in Membership.of(means[0], means[1]).figures(f"{unit}, by {by}"):
                if figure.estimate is not None:
                    yield figure


def units_of(members: People, others: People, notes: list[str]) -> tuple[np.ndarray | None, str]:
    """Return the unit of each window (n,) and its kind, "person" or "session", if it is a member as a whole.

    Units are sessions if people are among members and others; the kind is "" if sessions are, too.
    """
    if members.people is None or others.people is None:
        notes.append("People are not known: confidence intervals treat windows as independent.")
        return None, ""
    shared = bool(set(map(str, members.people)) & set(map(str, others.people)))
    unit = "session" if shared else "person"
    if shared and (members.sessions is None or others.sessions is None):
        notes.append(
            "The same people are members and others, and sessions are not known: no membership of people."
        )
        shared, unit = False, ""
    first, second = (data.units(with_sessions=shared) for data in (members, others))
    assert first is not None and second is not None
    if unit and set(first) & set(second):
        notes.append("The same sessions are members and others: no membership of sessions.")
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

    signals = standardise(model, whole)
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
    # Half of the shadow models had each window: their success is due to the split, not to the model's memory.
    scores[CONTROL] = np.mean([own(shadow.log_softmax(1)) for shadow in logits], axis=0)
    statistics: dict[str, Callable[[Tensor], np.ndarray]] = {
        "confidence": lambda z: confidence_of(z, columns.squeeze(1))
    }
    if isinstance(model.state_.head, Discriminant):  # its logits are log densities
        statistics["density"] = own
    for name, statistic in statistics.items():
        of_shadows = np.stack([statistic(shadow) for shadow in logits])
        scores[f"likelihood ratio of {name}"] = likelihood_ratios(statistic(target), of_shadows, inside)
    tick("membership", 2, 2)
    return scores


def _head_columns(model: AnchorInvClassifier, labels: np.ndarray) -> np.ndarray:
    """Return the columns (n,) of labels in the model's head, whose classes are in the order of learning."""
    return np.asarray(model._columns)[np.searchsorted(model.classes_, labels)]


def _distances(model: AnchorInvClassifier, data: People) -> dict[str, np.ndarray]:
    """Return minus the distance (n,) of each window to the nearest item stored of its class."""
    state, head = model.state_, model.state_.head
    signals, columns = standardise(model, data), _head_columns(model, data.labels)
    features = model._features(signals)
    scores = {}
    held = {"recordings": (state.recordings, signals.flatten(1)), "anchors": (state.anchors, features)}
    if (name := replay_name(model)) is not None:
        held[name] = (state.replay, encode(state.trunk, signals).flatten(1))
    for name, (batch, values) in held.items():
        if batch is None or not batch.values.shape[1]:
            continue
        score = np.full(len(data), np.nan)
        for column in np.unique(columns):
            stored = batch.of(state.classes[column]).values.flatten(1).to(values)
            if len(stored):
                near = torch.cdist(values[torch.from_numpy(columns == column)], stored)
                score[columns == column] = -near.min(1).values.double().numpy()
        if not np.isnan(score).all():
            # The class taught last has no replay yet: nothing suggests that its windows are members.
            scores[f"distance to {name}"] = np.where(np.isnan(score), np.nanmin(score), score)
    if isinstance(head, StatisticalHead | PrototypeHead):
        with torch.no_grad():
            if isinstance(head, StatisticalHead):
                near = head.similarity(head.embedded(features), head.prototypes)
            else:
                near = torch.cosine_similarity(features[:, None], head.prototypes, dim=2)
        scores["distance to class means"] = near.double().numpy()[np.arange(len(data)), columns]
    return scores


def replay_name(model: AnchorInvClassifier) -> str | None:
    """Return the kind of a model's replay; None without one, or if it is encoded from stored recordings."""
    memory = METHODS[METHODS.name_of(model.method)].memory
    if model.state_.replay is None or "recordings" in memory.stores:
        return None
    return "inverted replay" if memory.inverts else "replayed latents"


def means_ratios(
    model: AnchorInvClassifier, data: People, n_shadows: int | None, *, by_unit: bool, seed: int
) -> np.ndarray | None:
    """Return the likelihood ratio (n,) of each window's distance to its class mean; None without means.

    A mean of n windows in many dimensions is closer to each of them than to others (Dwork et al., Robust
    Traceability from Trace Amounts, FOCS 2015). Features are the model's, so the shadow means of half of the
    windows need no training; distances are whitened by the covariance of the attacker's windows.
    """
    means = getattr(model.state_.head, "prototypes", None)
    features = model._features(standardise(model, data))
    if means is None or means.shape[1] != features.shape[1] or n_shadows == 0:
        return None
    columns = _head_columns(model, data.labels)
    privacy = model.privacy if isinstance(model.privacy, Privacy) else None
    closed, clip = isinstance(model.state_.head, Discriminant), 0.0
    if privacy is not None:
        clip = privacy.clip if closed else anchor_clip(model.state_, privacy)
        features = clipped(features, clip)
    values = features.double().numpy()
    halves = np.stack([*half_splits(data.labels, data.people if by_unit else None, SHADOWS, seed)])
    if privacy and not closed and min(np.bincount(columns[half]).min() for half in halves) < AGGREGATE:
        return None  # half of the windows of a class are too few for an anchor
    n_classes = int(columns.max()) + 1
    exact = [class_means(values[half], columns[half], n_classes) for half in halves]
    of_halves, noise = exact, 0.0
    if privacy is not None:
        of_halves = [_private_means(model, features, data, half, privacy, clip) for half in halves]
        noise = noise_of_means(np.stack(of_halves), np.stack(exact), halves.sum() / len(halves) / n_classes)
    whitening = whitening_of(values, columns, noise=noise)
    whitened = values @ whitening
    scores = [nearness(whitened, columns, each @ whitening) for each in of_halves]
    target = nearness(whitened, columns, means.detach().double().numpy() @ whitening)
    return likelihood_ratios(target, np.stack(scores), halves)


def noise_of_means(noisy: np.ndarray, exact: np.ndarray, n_windows: float) -> float:
    """Return the noise of means (..., dim) of windows as a variance of a single window."""
    return float(n_windows * np.square(noisy - exact).mean())


def shadow_logits(
    model: AnchorInvClassifier, data: People, n_shadows: int | None, *, by_unit: bool, seed: int
) -> tuple[Tensor, list[Tensor], np.ndarray] | None:
    """Return logits (n, n_classes) of a model and of shadow models, and their training masks (n_shadows, n).

    Shadow models are trained like the model, each on half of all windows; None without any. For a
    discriminant, they use the model's features and fit the statistics; otherwise they are trained from
    scratch. With ``by_unit`` the windows of a name in ``data.people`` stay together.
    """
    head = model.state_.head
    closed = isinstance(head, Discriminant)
    n_shadows = (SHADOWS if closed else 0) if n_shadows is None else n_shadows
    if n_shadows < 2:
        return None
    signals = standardise(model, data)
    features = model._features(signals)
    halves = np.stack([*half_splits(data.labels, data.people if by_unit else None, n_shadows, seed)])
    logits = []
    with torch.no_grad():
        target = head(features)[:, model._columns] if closed else model._logits_of(signals)
    for number, half in enumerate(halves):
        tick("shadow models", number, n_shadows)
        if closed:
            with torch.no_grad():
                logits.append(_fit_shadow_head(model, features, data, half)(features)[:, model._columns])
        else:
            shadow = train_shadow(model, People(data.signals[half], data.labels[half]), seed=number)
            logits.append(shadow._logits_of(standardise(shadow, data)))
    tick("shadow models", n_shadows, n_shadows)
    return target, logits, halves


def half_splits(labels: np.ndarray, units: np.ndarray | None, n: int, seed: int) -> Iterator[np.ndarray]:
    """Yield masks (n,) of half of the windows, in complementary pairs; units, if known, are not split."""
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
        else:  # a class with a single unit: draw half of the windows of each class
            half = np.zeros(len(labels), dtype=bool)
            for label in np.unique(labels):
                own = rng.permutation(np.flatnonzero(labels == label))
                half[own[: max(1, len(own) // 2)]] = True
        yield half


def _fit_shadow_head(
    model: AnchorInvClassifier, features: Tensor, data: People, half: np.ndarray
) -> Discriminant:
    """Return a discriminant like the model's, fitted to half of the windows, with its own privacy noise."""
    head, chosen = model.state_.head, torch.from_numpy(half)
    assert isinstance(head, Discriminant)
    targets = torch.from_numpy(_head_columns(model, data.labels[half]))
    empty = head._with(head.counts[:0], head.means[:0], head.scatters[:0], head.n_base)
    if not isinstance(model.privacy, Privacy):
        return empty.learned(features[chosen], targets)
    whose = _whose(data, half)
    return private_statistics(empty, features[chosen], targets, whose, model.privacy, rng=unknown_generator())


def _private_means(
    model: AnchorInvClassifier,
    features: Tensor,
    data: People,
    half: np.ndarray,
    privacy: Privacy,
    clip: float,
) -> np.ndarray:
    """Return class means (n_classes, dim) of half of the windows, with noise as in the model."""
    if isinstance(model.state_.head, Discriminant):
        return np.asarray(_fit_shadow_head(model, features, data, half).means.double())
    chosen, columns = torch.from_numpy(half), _head_columns(model, data.labels[half])
    own = Batch(features[chosen], torch.from_numpy(columns), _whose(data, half))
    anchors = noisy_anchors(own, model.n_anchors, privacy, clip=clip, rng=unknown_generator())
    return class_means(anchors.values.double().numpy(), anchors.labels.numpy(), int(columns.max()) + 1)


def _whose(data: People, chosen: np.ndarray) -> Tensor | None:
    if data.people is None:
        return None
    return torch.from_numpy(np.unique(data.people[chosen], return_inverse=True)[1])


def train_shadow(model: AnchorInvClassifier, data: People, *, seed: int) -> AnchorInvClassifier:
    """Return a model trained on other data with the same settings, classes in the same order."""
    shadow = AnchorInvClassifier(**model.get_params(deep=False) | {"random_state": seed, "verbose": False})
    base = np.isin(data.labels, model.base_classes_)
    groups = data.people[base] if data.people is not None and model.privacy is not None else None
    shadow.fit(data.signals[base], data.labels[base], groups)
    for name in model._names.tolist()[len(model.base_classes_) :]:
        new = data.labels == name
        if new.any():
            shadow.partial_fit(data.signals[new], data.labels[new])
    return shadow
