"""What there is to attack: items that a model holds, with whose they are, and shadow models of its kind."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.inversion import Inversion, invert
from anchorinv.core.privacy import Privacy, private_statistics, unknown_generator
from anchorinv.core.registry import METHODS
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch
from anchorinv.core.views import view_sizes, without_views
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.progress import tick

#: Shadow models, where they cost nothing.
SHADOWS = 32
#: Items of a kind that are inverted, and steps of it.
MOST_INVERTED, STEPS = 40, 200


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


def standardised(model: AnchorInvClassifier, data: People) -> Tensor:
    """Return signals (n, n_chans, n_times) as the model takes them."""
    return torch.from_numpy(model.standardisation_(data.signals))


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
    memory = METHODS[METHODS.name_of(model.method)].memory
    if state.replay is not None and "replay" in memory.stores:
        latents = state.replay.with_values(model_tail(model, state.replay.values))
        found.append(_traced("replayed latents", "features", latents, features, members.labels, names))
    means = getattr(state.head, "prototypes", None)
    if means is not None and means.shape[1] == features.shape[1]:
        labels = np.array([names[each] for each in state.classes])
        weights = (labels[:, None] == members.labels) / np.maximum(
            (labels[:, None] == members.labels).sum(1, keepdims=True), 1
        )
        found.append(Kept("class means", "features", means.detach(), labels, weights))
    made = [inverted(model, item) for item in found if invert and item.space == "features"]
    return [*found, *made]


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


@dataclass(frozen=True, slots=True, eq=False)
class Shadowed:
    """Logits of shadow models on all windows.

    Parameters
    ----------
    target : Tensor, shape (n, n_classes)
        Those of the model itself, computed in the same way.
    logits : list of Tensor, shape (n, n_classes)
        Columns follow ``classes_``.
    inside : ndarray of bool, shape (n_shadows, n)
    """

    target: Tensor
    logits: list[Tensor]
    inside: np.ndarray


def shadow_logits(
    model: AnchorInvClassifier, data: People, n_shadows: int | None, *, by_unit: bool, seed: int
) -> Shadowed | None:
    """Return what models say that were trained like this one, each on half of all windows; None for none.

    Those of a discriminant take the features of the model, which is in the attacker's hands, and learn the
    statistics anew. Others are trained from the beginning. ``by_unit`` takes all windows of a name among
    ``data.people``, or none.
    """
    closed = isinstance(model.state_.head, Discriminant)
    n_shadows = (SHADOWS if closed else 0) if n_shadows is None else n_shadows
    if n_shadows < 2:
        return None
    signals = standardised(model, data)
    features = model._features(signals)
    parts, logits = [], []
    for number, half in enumerate(_halves(data.labels, data.people if by_unit else None, n_shadows, seed)):
        tick("shadow models", number, n_shadows)
        parts.append(half)
        logits.append(_statistics(model, features, data, half) if closed
                      else _trained(model, data, half, number))  # fmt: skip
    tick("shadow models", n_shadows, n_shadows)
    with torch.no_grad():
        target = model.state_.head(features)[:, model._columns] if closed else model._logits_of(signals)
    return Shadowed(target, logits, np.stack(parts))


def _halves(labels: np.ndarray, units: np.ndarray | None, n: int, seed: int) -> Iterator[np.ndarray]:
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


def _statistics(model: AnchorInvClassifier, features: Tensor, data: People, half: np.ndarray) -> Tensor:
    """Return logits (n, n_classes) of a discriminant that learned half of the windows."""
    head, names = model.state_.head, model._names.tolist()
    assert isinstance(head, Discriminant)
    chosen = torch.from_numpy(half)
    targets = torch.tensor([names.index(label) for label in data.labels[half].tolist()])
    empty = head._with(head.counts[:0], head.means[:0], head.scatters[:0], head.n_base)
    if isinstance(model.privacy, Privacy):
        whose = None if data.people is None else _numbers(data.people[half])
        learned = private_statistics(
            empty, features[chosen], targets, whose, model.privacy, rng=unknown_generator()
        )
    else:
        learned = empty.learned(features[chosen], targets)
    with torch.no_grad():
        logits: Tensor = learned(features)[:, model._columns]
    return logits


def _numbers(names: np.ndarray) -> Tensor:
    return torch.from_numpy(np.unique(names, return_inverse=True)[1])


def _trained(model: AnchorInvClassifier, data: People, half: np.ndarray, number: int) -> Tensor:
    """Return logits (n, n_classes) of a model that was trained on half of the windows."""
    shadow = AnchorInvClassifier(**model.get_params(deep=False) | {"random_state": number, "verbose": False})
    base = half & np.isin(data.labels, model.base_classes_)
    shadow.fit(data.signals[base], data.labels[base])
    for name in model._names.tolist()[len(model.base_classes_) :]:
        new = half & (data.labels == name)
        shadow.partial_fit(data.signals[new], data.labels[new])
    return shadow._logits_of(torch.from_numpy(shadow.standardisation_(data.signals)))
