"""Linking what a model holds to people, and reconstructing windows from it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from anchorinv.core.encoder import fit_encoder
from anchorinv.core.inversion import Inversion, invert
from anchorinv.core.networks import encode
from anchorinv.core.registry import METHODS
from anchorinv.core.types import Batch, stream
from anchorinv.core.views import view_sizes, without_views
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.progress import tick
from anchorinv.serving.attacks import MEASURES, Estimate, Figure, Gallery, compared, linked_share
from anchorinv.serving.shadows import People, standardised

#: Windows that stand for all, as the reference of raw storage.
MOST_LINKED = 600
#: Items of a kind that are inverted, and steps of it.
MOST_INVERTED, STEPS = 40, 200


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Items of one kind that a model file holds, or that can be computed from it.

    Parameters
    ----------
    name : str
    space : str
        "signals" or "features": what ``values`` are.
    values : Tensor, shape (n, ...)
    labels : ndarray, shape (n,)
    weights : ndarray, shape (n, n_members)
        How much of each member's window is in each item.
    inverted : bool, default=False
        Whether they are signals made from features.
    """

    name: str
    space: str
    values: Tensor
    labels: np.ndarray
    weights: np.ndarray
    inverted: bool = False

    def shares_of(self, names: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return how much of each item is of each known name (n, n_known), by the members' names."""
        members = (names[:, None] == known).astype(float)
        return np.asarray(self.weights @ members)


def kept_of(model: AnchorInvClassifier, members: People, *, invert: bool = True) -> list[Kept]:
    """Return all that a model holds of single people or classes, and signals inverted from it if asked."""
    state = model.state_
    signals = standardised(model, members)
    names = dict(zip(state.classes, model._names.tolist(), strict=True))
    features = model._features(signals)
    found = []
    if state.recordings is not None:
        found.append(_traced("recordings", "signals", state.recordings, signals, members.labels, names))
    if state.anchors is not None and state.anchors.values.shape[1]:
        found.append(_traced("anchors", "features", state.anchors, features, members.labels, names))
    if (name := replay_name(model)) is not None and state.replay is not None:
        latents = state.replay.with_values(model_tail(model, state.replay.values))
        inverts = METHODS[METHODS.name_of(model.method)].memory.inverts
        traced = next((item for item in found if item.name == "anchors"), None) if inverts else None
        found.append(
            _computed(name, latents, traced, members.labels, names)
            if inverts
            else _traced(name, "features", latents, features, members.labels, names)
        )
    means = getattr(state.head, "prototypes", None)
    if means is not None and means.shape[1] == features.shape[1]:
        labels = np.array([names[each] for each in state.classes])
        found.append(Kept("class means", "features", means.detach(), labels, _alike(labels, members.labels)))
    vectors = [item for item in found if item.space == "features" and item.name != "inverted replay"]
    return [*found, *(inverted(model, item) for item in vectors if invert)]


def replay_name(model: AnchorInvClassifier) -> str | None:
    """Return what a model's replay is; None without one, or where it only encodes recordings it holds."""
    memory = METHODS[METHODS.name_of(model.method)].memory
    if model.state_.replay is None or "recordings" in memory.stores:
        return None
    return "inverted replay" if memory.inverts else "replayed latents"


def _alike(own: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return weights (n, n_members) of items that all windows of their class have equal parts in."""
    same = own[:, None] == labels
    return np.asarray(same / np.maximum(same.sum(1, keepdims=True), 1))


def _computed(
    name: str, batch: Batch, anchors: Kept | None, labels: np.ndarray, names: dict[int, object]
) -> Kept:
    """Return inverted replay: of the windows of its anchors, in their order, or of its whole class."""
    own = np.array([names[label] for label in batch.labels.tolist()])
    weights = _alike(own, labels)
    for label in set(own.tolist()) if anchors is not None else ():
        assert anchors is not None
        places = np.flatnonzero(own == label)
        weights[places] = anchors.weights[anchors.labels == label][: len(places)]
    return Kept(name, "features", batch.values, own, weights)


@torch.no_grad()
def model_tail(model: AnchorInvClassifier, latents: Tensor) -> Tensor:
    """Return features of latents by the model's tail."""
    features: Tensor = model.state_.tail(latents)
    return features


def _traced(
    name: str, space: str, batch: Batch, values: Tensor, labels: np.ndarray, names: dict[int, object]
) -> Kept:
    """Return items with the members' windows that they are made of, each one or a mean of several."""
    from scipy.optimize import nnls

    own = np.array([names[label] for label in batch.labels.tolist()])
    weights = np.zeros((len(own), len(labels)))
    flat, known = batch.values.flatten(1).double().numpy(), values.flatten(1).double().numpy()
    for number, label in enumerate(own):
        peers = np.flatnonzero(labels == label)
        if not len(peers):
            continue
        distances = ((known[peers] - flat[number]) ** 2).sum(1)
        if distances.min() < 1e-4 * max(float((flat[number] ** 2).sum()), 1e-12):
            weights[number, peers[distances.argmin()]] = 1.0
            continue
        # A mean of several windows: the one combination without negative weights says of which.
        solution, _ = nnls(known[peers].T, flat[number], maxiter=10 * len(peers))
        if solution.sum() > 0:
            weights[number, peers] = solution / solution.sum()
    return Kept(name, space, batch.values, own, weights)


def inverted(model: AnchorInvClassifier, item: Kept, *, most: int = MOST_INVERTED, seed: int = 0) -> Kept:
    """Return signals whose features match an item's, by the strongest inversion there is (L-BFGS)."""
    state = model.state_
    chosen = np.linspace(0, len(item.labels) - 1, min(most, len(item.labels))).astype(int)
    targets = item.values[torch.from_numpy(chosen)].float()
    own = targets.shape[1] - sum(view_sizes(state))
    network = nn.Sequential(*without_views(state))
    plan = Inversion.lbfgs(STEPS)
    start = 0.5 * plan.start(len(chosen), state.shape, rng=stream(seed, "audit", item.name))
    tick("inverting", 0, 1)
    result = invert(network, targets[:, :own], start, plan)
    tick("inverting", 1, 1)
    labels, weights = item.labels[chosen], item.weights[chosen]
    return Kept(
        f"signals inverted from {item.name}", "signals", result.signals, labels, weights, inverted=True
    )


def linking(
    model: AnchorInvClassifier,
    kept: Sequence[Kept],
    members: People,
    others: People,
    notes: list[str],
    *,
    seed: int,
) -> Iterator[Figure]:
    """Link what a model holds to people, and to sessions, by other recordings of them; raw storage beside it.

    An attacker compares features by the model's own encoder, and signals by one made of the recordings at
    hand. What could not be tried is added to ``notes``.
    """
    raw = standardised(model, others)
    own = fit_encoder(raw, most_random=0, rng=stream(seed, "attacker"))
    spaces = {"signals": encode(own, raw), "features": model._features(raw)}
    units = members.units(with_sessions=members.sessions is not None)
    for attack, column in (("re-identification", "people"), ("attribute", "sessions")):
        given, known = getattr(members, column), getattr(others, column)
        if given is None or known is None:
            continue
        names, known = given.astype(str), known.astype(str)
        shared = np.array(sorted(set(names) & set(known)))
        if len(shared) < 2:
            notes.append(f"No {attack} by {column}: fewer than two are among members and others.")
            continue
        here = np.isin(known, shared)
        galleries = {
            space: Gallery(features[torch.from_numpy(here)], others.labels[here], known[here])
            for space, features in spaces.items()
        }
        items = (*kept, _raw_storage(model, members, np.isin(names, shared), seed))
        for number, item in enumerate(items):
            tick(attack, number + 1, len(items))
            shares = item.shares_of(names, shared)
            if not (whole := shares.sum(1) > 1e-6).any():
                continue
            values = item.values[torch.from_numpy(whole)]
            values = encode(own, values) if item.space == "signals" else values
            found = galleries[item.space].linked(values, item.labels[whole])
            shares = shares[whole] / shares[whole].sum(1, keepdims=True)
            sources = None if units is None else units[item.weights[whole].argmax(1)]
            share = linked_share(found, shares, shared, sources)
            yield Figure(attack, item.name, f"top-1 of {len(shared)} {column}", share, 1 / len(shared))


def _raw_storage(model: AnchorInvClassifier, members: People, known: np.ndarray, seed: int) -> Kept:
    """Return members' windows as they are: what an attacker would have of a file that holds recordings."""
    places = np.sort(np.random.default_rng(seed).permutation(np.flatnonzero(known))[:MOST_LINKED])
    signals = torch.from_numpy(model.standardisation_(members.signals[places]))
    weights = np.zeros((len(places), len(known)))
    weights[np.arange(len(places)), places] = 1.0
    return Kept("raw storage", "signals", signals, members.labels[places], weights)


def reconstruction(
    model: AnchorInvClassifier, kept: Sequence[Kept], members: People, notes: list[str]
) -> Iterator[Figure]:
    """Compare inverted signals with the windows behind them, and these with the nearest other windows."""
    signals = standardised(model, members)
    made = [item for item in kept if item.inverted]
    for item in made:
        found = np.array([
            _closeness(item, number, signals, members)
            for number, label in enumerate(item.labels)
            if (members.labels == label).sum() > 2
        ])  # (n, measures, 3)  # fmt: skip
        if len(found) < 2:
            continue
        for column, (name, larger) in enumerate(MEASURES.items()):
            of_item, same, apart = found[:, column].T
            for what, values in (("", of_item), (", nearest other window of the person", same),
                                 (", nearest window of other people", apart)):  # fmt: skip
                finite = values[np.isfinite(values)]
                if len(finite) > 1:
                    yield Figure("reconstruction", item.name, name + what, Estimate.mean(finite))
            rivals = np.fmax(same, apart) if larger else np.fmin(same, apart)
            closer = of_item > rivals if larger else of_item < rivals
            share = Estimate.share(int(closer.sum()), len(closer))
            yield Figure("reconstruction", item.name, f"closer than any real window, {name}", share)
    if not made:
        notes.append("No reconstruction: the model holds no features that an inversion could start from.")


def _closeness(item: Kept, number: int, signals: Tensor, members: People) -> np.ndarray:
    """Return how close an item is to its window, and this to the nearest of its person and of others.

    (measures, 3); nan where there is no such window. Of a mean of many windows its window is whichever it
    comes closest to.
    """
    peers = np.flatnonzero(members.labels == item.labels[number])
    real = signals[torch.from_numpy(peers)]
    near = compared(item.values[number : number + 1], real)
    single = item.weights[number].max() > 0.5
    source = int(np.flatnonzero(peers == item.weights[number].argmax())[0]) if single else -1
    rows = []
    for name, larger in MEASURES.items():
        best, sign = (np.max, 1) if larger else (np.min, -1)
        own = source if single else int((sign * near[name][0]).argmax())
        among = compared(real[own : own + 1], real)[name][0]
        others = np.arange(len(peers)) != own
        whose = np.zeros(len(peers)) if members.people is None else members.people[peers]
        parts = [others & (whose == whose[own]), others & (whose != whose[own])]
        rows.append([near[name][0][own], *(best(among[part]) if part.any() else np.nan for part in parts)])
    return np.array(rows, dtype=np.float64)
