"""What a model reveals about the people it was trained on, measured by attacks; see docs/privacy.md."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorinv.core.blocks import view_sizes, without_views
from anchorinv.core.encoder import fit_encoder
from anchorinv.core.inversion import Inversion, invert
from anchorinv.core.networks import encode
from anchorinv.core.types import Batch, stream
from anchorinv.datasets.dataset import open_windows
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.progress import tick
from anchorinv.serving.attacks import (
    MEASURES,
    Estimate,
    Figure,
    Gallery,
    Membership,
    identification_rate,
    similarities,
)
from anchorinv.serving.membership import People, membership, replay_name, standardise, train_shadow
from anchorinv.signal.headers import missing_labels
from anchorinv.signal.readers import channels_for

#: Maximum number of windows in the reference of raw storage.
MOST_LINKED = 600
#: Maximum number of items of a kind that are inverted, and steps of the inversion.
MOST_INVERTED, STEPS = 40, 200


@dataclass(frozen=True, slots=True)
class Audit:
    """Results of privacy attacks on a model.

    Parameters
    ----------
    memory : str
        What the model stores about people, as shown by ``info``.
    figures : tuple of Figure
        One for each measure of each attack.
    notes : tuple of str
        What was not tried, and why.

    Examples
    --------
    >>> from anchorinv.serving.attacks import Estimate
    >>> line = Figure("re-identification", "anchors", "top-1 of 3 people", Estimate.share(9, 10), 1 / 3)
    >>> print(Audit("synthetic", (line,)).lines()[-1])
    re-identification  anchors  top-1 of 3 people  0.900 (0.596 to 0.982)  0.333   10
    """

    memory: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "memory": self.memory,
            "figures": [figure.facts() for figure in self.figures],
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return a table to read."""
        cells = [("attack", "target", "measure", "estimate (95 % CI)", "chance", "n")]
        for figure in self.figures:
            value, n = "too few windows", ""
            if figure.estimate is not None:
                value, n = str(figure.estimate), str(figure.estimate.n)
            chance = "" if figure.chance is None else f"{figure.chance:.3f}"
            cells.append((figure.attack, figure.target, figure.measure, value, chance, n))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        return [f"memory: {self.memory}", *rows, *self.notes]


def audit(
    model: AnchorInvClassifier,
    members: People,
    others: People,
    *,
    shadows: int | None = None,
    invert: bool = True,
    seed: int = 0,
) -> Audit:
    """Run all privacy attacks on a model: membership, re-identification, attributes, reconstruction.

    Parameters
    ----------
    model : AnchorInvClassifier
        Fitted.
    members : People
        Its training data.
    others : People
        Recorded in the same way, and not in the training data. If they are of the same people, on other days
        or in other trials, re-identification is attempted, too.
    shadows : int or None, default=None
        Number of shadow models for the likelihood ratio of confidence, each trained on half of all windows;
        None for 32 with the methods discriminant and lda, which are fast, and for none with others. 0 also
        leaves out the likelihood ratio of class means, which needs no training.
    invert : bool, default=True
        Whether to invert features to signals, for re-identification and reconstruction, the slowest attack.
    seed : int, default=0
        Seed of shadow models and random choices.

    Returns
    -------
    Audit

    Examples
    --------
    >>> from anchorinv.datasets import synthetic
    >>> data = synthetic.emg(n_classes=2, n_subjects=4, n_sessions=2, n_per_class=6, n_times=120, seed=0)
    >>> here = data.sessions == 0
    >>> model = AnchorInvClassifier(random_state=0).fit(data.signals[here], data.labels[here])
    >>> everybody = People(data.signals, data.labels, data.subjects, data.sessions)
    >>> result = audit(model, everybody.of(here), everybody.of(~here), shadows=4)
    >>> result.figures[0].attack, result.figures[0].measure, result.figures[0].chance
    ('membership', 'AUROC', 0.5)
    """
    # As loaded from its file, on the CPU.
    model = AnchorInvClassifier.from_bundle(model.to_bundle(), device="cpu")
    members, others, notes = _without_unknown(model, members, others)
    figures = [*membership(model, members, others, notes, shadows=shadows, seed=seed)]
    kept = stored_items(model, members, invert=invert)
    figures += reidentification(model, kept, members, others, notes, seed=seed)
    if invert:
        figures += reconstruction(model, kept, members, notes)
    return Audit(model.to_bundle().memory, tuple(figures), tuple(notes))


def _without_unknown(
    model: AnchorInvClassifier, members: People, others: People
) -> tuple[People, People, list[str]]:
    """Return the windows of classes that the model knows, and notes on the others."""
    notes, parts = [], []
    for name, data in (("members", members), ("others", others)):
        known = np.isin(data.labels, model.classes_)
        if not known.any():
            raise ValueError(
                f"the model knows none of the classes of the {name}; it knows "
                f"{', '.join(map(str, model.classes_.tolist()))}"
            )
        if not known.all():
            notes.append(
                f"{int((~known).sum())} {name} are of classes that the model does not know, and left out."
            )
        parts.append(data.of(known))
    return parts[0], parts[1], notes


@dataclass(frozen=True, slots=True, eq=False)
class StoredItems:
    """Items of one kind that a model file stores, or that can be computed from it."""

    name: str
    space: str  # what values are: "signals" or "features"
    values: Tensor  # (n, ...)
    labels: np.ndarray  # (n,)
    weights: np.ndarray  # (n, n_members), of each member's window in each item
    inverted: bool = False  # whether they are signals inverted from features

    def shares_of(self, names: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return the share of each known name in each item (n, n_known), by the members' names."""
        return np.asarray(self.weights @ (names[:, None] == known))


def stored_items(model: AnchorInvClassifier, members: People, *, invert: bool = True) -> list[StoredItems]:
    """Return what a model stores of people or classes; with ``invert`` also signals inverted from it."""
    state = model.state_
    signals, labels = standardise(model, members), members.labels
    names = dict(zip(state.classes, model._names.tolist(), strict=True))
    features = model._features(signals)
    items: dict[str, StoredItems] = {}
    if state.recordings is not None:
        stored = state.recordings
        items["recordings"] = _trace_sources("recordings", "signals", stored, signals, labels, names)
    if state.anchors is not None and state.anchors.values.shape[1]:
        items["anchors"] = _trace_sources("anchors", "features", state.anchors, features, labels, names)
    if (name := replay_name(model)) is not None and state.replay is not None:
        replay = state.replay.with_values(encode(state.tail, state.replay.values))
        items[name] = (
            _replay_items(replay, items.get("anchors"), labels, names)
            if name == "inverted replay"
            else _trace_sources(name, "features", replay, features, labels, names)
        )
    means = getattr(state.head, "prototypes", None)
    if means is not None and means.shape[1] == features.shape[1]:
        classes = np.array([names[number] for number in state.classes])
        weights = _equal_weights(classes, labels)
        items["class means"] = StoredItems("class means", "features", means.detach(), classes, weights)
    vectors = [item for item in items.values() if item.space == "features" and item.name != "inverted replay"]
    return [*items.values(), *(invert_items(model, item) for item in vectors if invert)]


def _equal_weights(classes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return weights (n, n_members) of items to which all windows of their class contribute equally."""
    same = classes[:, None] == labels
    return np.asarray(same / np.maximum(same.sum(1, keepdims=True), 1))


def _replay_items(
    replay: Batch, anchors: StoredItems | None, labels: np.ndarray, names: dict[int, Any]
) -> StoredItems:
    """Return inverted replay: of the windows of its anchors, in their order, or of all of its class."""
    classes = np.array([names[label] for label in replay.labels.tolist()])
    weights = _equal_weights(classes, labels)
    if anchors is not None:
        for label in np.unique(classes):
            places = np.flatnonzero(classes == label)
            weights[places] = anchors.weights[anchors.labels == label][: len(places)]
    return StoredItems("inverted replay", "features", replay.values, classes, weights)


def _trace_sources(
    name: str, space: str, batch: Batch, values: Tensor, labels: np.ndarray, names: dict[int, Any]
) -> StoredItems:
    """Return items with the members' windows that they consist of: one each, or a mean of several."""
    from scipy.optimize import nnls

    classes = np.array([names[label] for label in batch.labels.tolist()])
    weights = np.zeros((len(classes), len(labels)))
    stored, windows = batch.values.flatten(1).double().numpy(), values.flatten(1).double().numpy()
    for number, (label, item) in enumerate(zip(classes, stored, strict=True)):
        peers = np.flatnonzero(labels == label)
        if not len(peers):
            continue
        distances = ((windows[peers] - item) ** 2).sum(1)
        if distances.min() < 1e-4 * max(float((item**2).sum()), 1e-12):
            weights[number, peers[distances.argmin()]] = 1.0
            continue
        # A mean of several windows: non-negative least squares finds which.
        solution, _ = nnls(windows[peers].T, item, maxiter=10 * len(peers))
        if solution.sum() > 0:
            weights[number, peers] = solution / solution.sum()
    return StoredItems(name, space, batch.values, classes, weights)


def invert_items(model: AnchorInvClassifier, item: StoredItems) -> StoredItems:
    """Return signals whose features match an item's, by the strongest inversion there is (L-BFGS)."""
    state = model.state_
    chosen = np.linspace(0, len(item.labels) - 1, min(MOST_INVERTED, len(item.labels))).astype(int)
    targets = item.values[torch.from_numpy(chosen)].float()
    targets = targets[:, : targets.shape[1] - sum(view_sizes(state))]
    network = nn.Sequential(*without_views(state))
    plan = Inversion.lbfgs(STEPS)
    start = 0.5 * plan.start(len(chosen), state.shape, rng=stream(0, "audit", item.name))
    tick("inverting", 0, 1)
    signals = invert(network, targets, start, plan).signals
    tick("inverting", 1, 1)
    name, labels, weights = f"signals inverted from {item.name}", item.labels[chosen], item.weights[chosen]
    return StoredItems(name, "signals", signals, labels, weights, inverted=True)


def reidentification(
    model: AnchorInvClassifier,
    kept: Sequence[StoredItems],
    members: People,
    others: People,
    notes: list[str],
    *,
    seed: int,
) -> Iterator[Figure]:
    """Match what a model stores, and raw storage for reference, to people and sessions by other recordings.

    The attacker compares features by the model's encoder, and signals by an encoder fitted to the other
    recordings. Attacks that are not possible are added to ``notes``.
    """
    raw = standardise(model, others)
    encoder = fit_encoder(raw, most_random=0, rng=stream(seed, "attacker"))
    spaces = {"signals": encode(encoder, raw), "features": model._features(raw)}
    units = members.units(with_sessions=members.sessions is not None)
    for attack, column in (("re-identification", "people"), ("attribute", "sessions")):
        names, other_names = getattr(members, column), getattr(others, column)
        if names is None or other_names is None:
            continue
        names, other_names = names.astype(str), other_names.astype(str)
        shared = np.array(sorted(set(names) & set(other_names)))
        if len(shared) < 2:
            notes.append(f"No {attack} by {column}: fewer than two are among members and others.")
            continue
        in_both = np.isin(other_names, shared)
        galleries = {
            space: Gallery(features[torch.from_numpy(in_both)], others.labels[in_both], other_names[in_both])
            for space, features in spaces.items()
        }
        items = (*kept, _raw_storage(model, members, np.isin(names, shared), seed))
        for number, item in enumerate(items):
            tick(attack, number + 1, len(items))
            shares = item.shares_of(names, shared)
            if not (traced := shares.sum(1) > 1e-6).any():
                continue
            values = item.values[torch.from_numpy(traced)]
            values = encode(encoder, values) if item.space == "signals" else values
            matches = galleries[item.space].identify(values, item.labels[traced])
            shares = shares[traced] / shares[traced].sum(1, keepdims=True)
            sources = None if units is None else units[item.weights[traced].argmax(1)]
            rate = identification_rate(matches, shares, shared, sources)
            yield Figure(attack, item.name, f"top-1 of {len(shared)} {column}", rate, 1 / len(shared))


def _raw_storage(model: AnchorInvClassifier, members: People, chosen: np.ndarray, seed: int) -> StoredItems:
    """Return members' windows themselves, as a file with recordings would reveal them."""
    places = np.sort(np.random.default_rng(seed).permutation(np.flatnonzero(chosen))[:MOST_LINKED])
    weights = (places[:, None] == np.arange(len(chosen))).astype(float)
    signals = standardise(model, members.of(places))
    return StoredItems("raw storage", "signals", signals, members.labels[places], weights)


def reconstruction(
    model: AnchorInvClassifier, kept: Sequence[StoredItems], members: People, notes: list[str]
) -> Iterator[Figure]:
    """Compare inverted signals with their source windows, and these with the nearest other windows."""
    signals = standardise(model, members)
    inverted = [item for item in kept if item.inverted]
    for item in inverted:
        several = [i for i, label in enumerate(item.labels) if (members.labels == label).sum() > 2]
        if len(several) < 2:
            continue
        closeness = np.array([_closeness(item, i, signals, members) for i in several])  # (n, measures, 3)
        for column, (name, larger) in enumerate(MEASURES.items()):
            of_item, same_person, other_people = closeness[:, column].T
            for suffix, values in {
                "": of_item,
                ", nearest other window of the person": same_person,
                ", nearest window of other people": other_people,
            }.items():
                finite = values[np.isfinite(values)]
                if len(finite) > 1:
                    yield Figure("reconstruction", item.name, name + suffix, Estimate.mean(finite))
            best = np.fmax if larger else np.fmin
            rivals = best(same_person, other_people)
            closer = of_item > rivals if larger else of_item < rivals
            share = Estimate.share(int(closer.sum()), len(closer))
            yield Figure("reconstruction", item.name, f"closer than any real window, {name}", share)
    if not inverted:
        notes.append("No reconstruction: the model stores no features that could be inverted.")


def _closeness(item: StoredItems, number: int, signals: Tensor, members: People) -> np.ndarray:
    """Return the similarity (measures, 3) of an item to its source window, and of this to other windows.

    These are the nearest of the same person and of other people; nan if there is none. A mean of many windows
    has the closest one as its source.
    """
    peers = np.flatnonzero(members.labels == item.labels[number])
    real = signals[torch.from_numpy(peers)]
    near = similarities(item.values[number : number + 1], real)
    single = item.weights[number].max() > 0.5
    source = int(np.flatnonzero(peers == item.weights[number].argmax())[0]) if single else -1
    rows = []
    for name, larger in MEASURES.items():
        best, sign = (np.max, 1) if larger else (np.min, -1)
        own = source if single else int((sign * near[name][0]).argmax())
        among = similarities(real[own : own + 1], real)[name][0]
        others = np.arange(len(peers)) != own
        whose = np.zeros(len(peers)) if members.people is None else members.people[peers]
        parts = [others & (whose == whose[own]), others & (whose != whose[own])]
        rows.append([near[name][0][own], *(best(among[part]) if part.any() else np.nan for part in parts)])
    return np.array(rows, dtype=np.float64)


def audit_forgetting(model: AnchorInvClassifier, label: Any, members: People, others: People) -> Audit:
    """Measure whether a forgotten class can still be detected: membership inference before and after.

    Three models are compared: the model, the model after ``forget_class``, and one trained with the same
    settings without the class. Windows are scored by their distance to the nearest class, or largest logit.

    Parameters
    ----------
    model : AnchorInvClassifier
        Fitted, with the class.
    label : object
        The class.
    members, others : People
        As in :func:`audit`; both need windows of the class.

    Returns
    -------
    Audit
    """
    models = {
        "before": model,
        "after": AnchorInvClassifier.from_bundle(model.to_bundle()).forget_class(label),
        "never taught": train_shadow(model, members.of(members.labels != label), seed=model.seed_),
    }
    inside, outside = (data.of(data.labels == label) for data in (members, others))
    first, second = (data.units(with_sessions=data.sessions is not None) for data in (inside, outside))
    groups = None if first is None or second is None else (first, second)
    figures = []
    for name, attacked in models.items():
        auroc = Membership.of(_nearness(attacked, inside), _nearness(attacked, outside), groups).auroc
        figures.append(Figure("forgetting", name, "AUROC", auroc, 0.5))
    return Audit(model.to_bundle().memory, tuple(figures))


def _nearness(model: AnchorInvClassifier, data: People) -> np.ndarray:
    """Return minus the distance (n,) of each window to its nearest class, or its largest logit."""
    with torch.no_grad():
        statistics, _ = model.state_.head.novelty(model._features(standardise(model, data)))
    # Of a discriminant's statistics the second is the distance to the nearest class.
    return -statistics[:, min(1, statistics.shape[1] - 1)].double().numpy()


def read_people(model: AnchorInvClassifier, path: Path, *, split: str) -> People:
    """Return the labelled windows of an ``.npz`` file or a split of a prepared folder, and their people."""
    file = open_windows(path, split=split)
    if file.labels is None:
        raise missing_labels(path)
    channels = channels_for(file, model.n_chans_, model.ch_names_, model.sfreq_)
    if file.shape[2] != model.n_times_:
        raise ValueError(f"{path} has windows of {file.shape[2]} samples, the model takes {model.n_times_}")
    return People(file.all()[:, channels], file.labels, file.people, file.sessions)
