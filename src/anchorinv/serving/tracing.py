"""Whose is what a model holds, and how close it comes to real windows: linking and reconstruction."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.encoder import fit_encoder
from anchorinv.core.networks import encode
from anchorinv.core.rng import stream
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.progress import tick
from anchorinv.serving.attacks import MEASURES, Estimate, Figure, Gallery, compared, linked_share
from anchorinv.serving.exposure import Kept, People, standardised

#: Windows that stand for all, as the reference of raw storage.
MOST_LINKED = 600


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
            share = linked_share(found, shares[whole] / shares[whole].sum(1, keepdims=True), shared)
            yield Figure(attack, item.name, f"top-1 of {len(shared)} {column}", share, 1 / len(shared))


def _raw_storage(model: AnchorInvClassifier, members: People, known: np.ndarray, seed: int) -> Kept:
    """Return members' windows as they are: what an attacker would have of a file that holds recordings."""
    places = np.sort(np.random.default_rng(seed).permutation(np.flatnonzero(known))[:MOST_LINKED])
    signals = torch.from_numpy(model.standardisation_(members.signals[places]))
    return Kept("raw storage", "signals", signals, members.labels[places], np.eye(len(known))[places])


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
            for what, values in (("", of_item), (", nearest real window", same),
                                 (", nearest of other people", apart)):  # fmt: skip
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
