"""What a model reveals about the people it was trained on, measured by attacks; see docs/privacy.md."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.heads import PrototypeHead, StatisticalHead
from anchorinv.core.networks import encode
from anchorinv.datasets.dataset import open_windows
from anchorinv.errors import listed
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.progress import tick
from anchorinv.serving.attacks import Figure, Membership, confidence_of, likelihood_ratios
from anchorinv.serving.shadows import People, means_ratios, shadow_logits, standardised
from anchorinv.serving.tracing import kept_of, linking, reconstruction, replay_name
from anchorinv.signal.headers import missing_labels
from anchorinv.signal.readers import channels_for

#: The attack by loss on shadow models in place of the model: what it reaches is not membership.
CONTROL = "loss of shadow models (control)"


@dataclass(frozen=True, slots=True)
class Audit:
    """What attacks on a model found.

    Parameters
    ----------
    memory : str
        What the model keeps of people, as ``info`` calls it.
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
            "figures": [each.facts() for each in self.figures],
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return a table to read."""
        widths = [max(map(len, column)) for column in zip(*self._cells(), strict=True)]
        rows = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in self._cells()]  # fmt: skip
        return [f"memory: {self.memory}", *rows, *self.notes]

    def _cells(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("attack", "target", "measure", "estimate (95 % CI)", "chance", "n")]
        for each in self.figures:
            found = "too few windows" if each.estimate is None else str(each.estimate)
            chance = "" if each.chance is None else f"{each.chance:.3f}"
            rows.append((each.attack, each.target, each.measure, found, chance,
                         "" if each.estimate is None else str(each.estimate.n)))  # fmt: skip
        return rows


def audit(
    model: AnchorInvClassifier,
    members: People,
    others: People,
    *,
    shadows: int | None = None,
    invert: bool = True,
    seed: int = 0,
) -> Audit:
    """Run every attack on a model, and return what each of them reached.

    Parameters
    ----------
    model : AnchorInvClassifier
        Fitted.
    members : People
        What it was trained on.
    others : People
        Recorded in the same way, and not trained on. If they are of the same people, on other days or in
        other trials, whether what the model keeps can be linked to them is told, too.
    shadows : int or None, default=None
        Shadow models for the likelihood ratio of confidence, each trained on half of all windows; None takes
        32 for the methods discriminant and lda, which are computed in an instant, and none for others. 0
        also leaves out the likelihood ratio of class means, which trains nothing.
    invert : bool, default=True
        Whether to invert features to signals, for re-identification and reconstruction; it takes longest.
    seed : int, default=0
        Of what is drawn.

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
    >>> found = audit(model, everybody.of(here), everybody.of(~here), shadows=4)
    >>> found.figures[0].attack, found.figures[0].measure, found.figures[0].chance
    ('membership', 'AUROC', 0.5)
    """
    # As anybody has it who opens the file, wherever it was trained.
    model = AnchorInvClassifier.from_bundle(model.to_bundle(), device="cpu")
    members, others, notes = _known(model, members, others)
    figures = [*_membership(model, members, others, shadows, seed, notes)]
    kept = kept_of(model, members, invert=invert)
    figures += linking(model, kept, members, others, notes, seed=seed)
    if invert:
        figures += reconstruction(model, kept, members, notes)
    return Audit(model.to_bundle().memory, tuple(figures), tuple(notes))


def _known(model: AnchorInvClassifier, members: People, others: People) -> tuple[People, People, list[str]]:
    """Return the windows of classes that the model knows, and a remark on the others."""
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


def _membership(
    model: AnchorInvClassifier,
    members: People,
    others: People,
    shadows: int | None,
    seed: int,
    notes: list[str],
) -> Iterator[Figure]:
    signals, labels = (
        np.concatenate([getattr(data, name) for data in (members, others)]) for name in ("signals", "labels")
    )
    inside = np.arange(len(labels)) < len(members)
    units, unit = _units(members, others, notes)
    whole = People(signals, labels, units)
    scores = _scores(model, whole, shadows, seed, notes, by_unit=bool(unit))
    for by, values in scores.items():
        yield from membership_figures(values, inside, units, unit, by)


def membership_figures(
    scores: np.ndarray, inside: np.ndarray, units: np.ndarray | None, unit: str, by: str
) -> Iterator[Figure]:
    """Measure scores (n,) of windows, inside (n,) or not; and of whole units (n,) if these have a name."""
    grouped = None if units is None else (units[inside], units[~inside])
    yield from _lines(f"window, by {by}", Membership.of(scores[inside], scores[~inside], grouped))
    if units is not None and unit:
        first, second = (_by_unit(scores[part], units[part]) for part in (inside, ~inside))
        if min(len(first), len(second)) >= 3:
            yield from _lines(f"{unit}, by {by}", Membership.of(first, second))


def _lines(target: str, found: Membership) -> Iterator[Figure]:
    yield Figure("membership", target, "AUROC", found.auroc, 0.5)
    for rate, share in found.found.items():
        if share is not None or target.startswith("window"):
            yield Figure("membership", target, f"TPR at {100 * rate:g} % FPR", share, rate)


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
    columns = torch.from_numpy(np.searchsorted(model.classes_, whole.labels))
    signals = standardised(model, whole)
    tick("membership", 0, 2)
    own = torch.log_softmax(model._logits_of(signals), 1).gather(1, columns[:, None]).squeeze(1)
    scores = {"loss": own.double().numpy(), **_distances(model, signals, whole.labels)}
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
    # Half of them learned each window: what they tell members by is the split, not what the model remembers.
    theirs = [
        torch.log_softmax(each, 1).gather(1, columns[:, None]).squeeze(1).double().numpy()
        for each in shadowed.logits
    ]
    scores[CONTROL] = np.mean(theirs, axis=0)
    ways: dict[str, Callable[[Tensor], np.ndarray]] = {"confidence": lambda z: confidence_of(z, columns)}
    if isinstance(model.state_.head, Discriminant):  # whose logits are densities, with a meaning of their own
        ways["density"] = lambda z: z.gather(1, columns[:, None]).squeeze(1).double().numpy()
    for name, way in ways.items():
        of_shadows = np.stack([way(each) for each in shadowed.logits])
        ratios = likelihood_ratios(way(shadowed.target), of_shadows, shadowed.inside)
        scores[f"likelihood ratio of {name}"] = ratios
    tick("membership", 2, 2)
    return scores


def _units(members: People, others: People, notes: list[str]) -> tuple[np.ndarray | None, str]:
    """Return which windows belong together (n,), and what that is called if it is a member as a whole.

    A person, or a session where people are on both sides; "" where sessions are on both sides, too.
    """
    if members.people is None or others.people is None:
        notes.append("Whose the windows are is not known: intervals take each window by itself.")
        return None, ""
    shared = bool(set(map(str, members.people)) & set(map(str, others.people)))
    first, second = (each.units(with_sessions=shared) for each in (members, others))
    if first is None or second is None:
        notes.append(
            "The same people are on both sides, and sessions are not known: nothing is told by person."
        )
        first, second = (each.units(with_sessions=False) for each in (members, others))
        assert first is not None and second is not None
        return np.concatenate([first, second]), ""
    if set(first) & set(second):
        notes.append("The same sessions are on both sides: membership is told of windows, not of sessions.")
        return np.concatenate([first, second]), ""
    return np.concatenate([first, second]), "session" if shared else "person"


def _by_unit(values: np.ndarray, units: np.ndarray) -> np.ndarray:
    names, places = np.unique(units, return_inverse=True)
    return np.bincount(places, values, len(names)) / np.bincount(places)


def _distances(model: AnchorInvClassifier, signals: Tensor, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return minus the distance of each window to the nearest of its class that the model holds (n,)."""
    state, names = model.state_, np.array(model._names)
    features = model._features(signals)
    classes = np.array(state.classes)[np.array([int(np.flatnonzero(names == label)[0]) for label in labels])]
    found = {}
    held = {"recordings": (state.recordings, signals.flatten(1)), "anchors": (state.anchors, features)}
    if (name := replay_name(model)) is not None:
        held[name] = (state.replay, encode(state.trunk, signals).flatten(1))
    for name, (batch, values) in held.items():
        if batch is None or not batch.values.shape[1]:
            continue
        score = np.full(len(labels), -np.inf)
        for label in set(classes.tolist()):
            near = torch.cdist(values[classes == label], batch.of(label).values.flatten(1).to(values))
            score[classes == label] = -near.min(1).values.double().numpy()
        found[f"distance to {name}"] = score
    head = state.head
    if isinstance(head, StatisticalHead | PrototypeHead):
        with torch.no_grad():
            if isinstance(head, StatisticalHead):
                near = head.similarity(head.embedded(features), head.prototypes)
            else:
                near = torch.cosine_similarity(features[:, None], head.prototypes, dim=2)
        columns = state.columns(torch.from_numpy(classes))
        found["distance to class means"] = near.gather(1, columns[:, None]).squeeze(1).double().numpy()
    return found


def audit_forgetting(model: AnchorInvClassifier, label: Any, members: People, others: People) -> Audit:
    """Tell whether windows of a class are told from others after the class was forgotten.

    Three models are asked: as it is, after ``forget_class``, and one trained by the same settings that never
    had the class. Windows are scored by the nearest class, or the largest logit, whatever class that is.

    Parameters
    ----------
    model : AnchorInvClassifier
        That knows the class.
    label : object
        The class.
    members, others : People
        As in :func:`audit`; both need windows of the class.

    Returns
    -------
    Audit
    """
    without = members.of(members.labels != label)
    base = np.isin(without.labels, model.base_classes_)
    never = AnchorInvClassifier(
        **model.get_params(deep=False) | {"random_state": model.seed_, "verbose": False}
    )
    groups = without.people[base] if without.people is not None and model.privacy is not None else None
    never.fit(without.signals[base], without.labels[base], groups)
    for name in [each for each in model._names.tolist() if each in set(without.labels[~base].tolist())]:
        new = without.labels == name
        never.partial_fit(without.signals[new], without.labels[new])
    after = AnchorInvClassifier.from_bundle(model.to_bundle()).forget_class(label)
    figures = []
    for name, each in {"before": model, "after": after, "never taught": never}.items():
        scores, groups_of = [], []
        for data in (members, others):
            own = data.of(data.labels == label)
            with torch.no_grad():
                features = each._features(standardised(each, own))
                statistics, _ = each.state_.head.novelty(features)
            # Of a discriminant's statistics the second is the distance to the nearest class.
            scores.append(-statistics[:, min(1, statistics.shape[1] - 1)].double().numpy())
            groups_of.append(own.units(with_sessions=own.sessions is not None))
        grouped = None if groups_of[0] is None or groups_of[1] is None else (groups_of[0], groups_of[1])
        figures.append(
            Figure("forgetting", name, "AUROC", Membership.of(scores[0], scores[1], grouped).auroc, 0.5)
        )
    return Audit(model.to_bundle().memory, tuple(figures))


def read_people(model: AnchorInvClassifier, path: Path, *, split: str) -> People:
    """Return labelled windows of an ``.npz`` file or of a part of a prepared folder, and whose they are."""
    file = open_windows(path, split=split)
    if file.labels is None:
        raise missing_labels(path)
    channels = channels_for(file, model.n_chans_, model.ch_names_, model.sfreq_)
    if file.shape[2] != model.n_times_:
        raise ValueError(f"{path} has windows of {file.shape[2]} samples, the model takes {model.n_times_}")
    return People(file.all()[:, channels], file.labels, file.people, file.sessions)
