"""Teach a model and report the effect: of new classes on old ones, and of more examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.networks import encode
from anchorinv.core.types import Batch, State, stream
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.serving.streaming import probabilities
from anchorinv.suggestion import embedded, known_means, nearest_rivals, similarity

#: A new class is similar to others if this share of its examples is nearer to one of them.
ALIKE = 1 / 3
#: Features drawn for each class without kept samples.
DRAWN = 50


@dataclass(frozen=True, slots=True)
class Separation:
    """Separation of the examples of a new class from other classes, in the features before learning.

    Examples
    --------
    >>> Separation("new", 10, 3, "left", 4).alike
    True
    """

    name: Any
    shots: int
    own: int  # examples nearer to the mean of the others of their class than to any other class
    rival: Any  # the class that most of the remaining ones are nearest to; None if there is none
    nearer: int  # their number

    @property
    def alike(self) -> bool:
        """Whether the new class looks like another one."""
        return self.rival is not None and self.shots - self.own >= ALIKE * self.shots


@dataclass(frozen=True, slots=True)
class LearningReport:
    """Effect of learning new classes.

    Examples
    --------
    >>> LearningReport(12, 1.0, 0.75, ()).lines()
    ['Old classes: 100.0% of 12 samples kept of them classified correctly before, 75.0% after.']
    """

    n_known: int  # samples kept of the old classes: replay or, if the network has not changed, anchors
    before: float | None  # accuracy on them; None if none are kept
    after: float | None
    apart: tuple[Separation, ...]  # of each new class; empty if the method knows no class means
    #: Each old class with its accuracy before and after, where samples are kept or can be drawn.
    by_class: tuple[tuple[Any, float, float], ...] = ()
    #: Whether samples were drawn from the statistics of classes, for lack of kept ones.
    drawn: bool = False
    #: The old class that is most similar to the mean of each new one; empty if no class means are known.
    nearest: tuple[Any, ...] = ()

    def lines(self) -> list[str]:
        """Return the report as sentences."""
        if self.before is None or self.after is None:
            lines = ["Old classes: this method keeps no samples, so the effect on them cannot be measured."]
        else:
            whose = "samples drawn from their statistics" if self.drawn else "samples kept of them"
            lines = [
                f"Old classes: {self.before:.1%} of {self.n_known} {whose} classified correctly "
                f"before, {self.after:.1%} after."
            ]
        for each in self.apart:
            if each.shots == 1:
                lines.append(f"Class {each.name!r}: a single example, so its separation cannot be measured.")
            else:
                lines.append(
                    f"Class {each.name!r}: {each.own} of {each.shots} examples are nearer to the others of "
                    f"their class than to any other class."
                )
        return lines

    def warnings(self) -> list[str]:
        """Return a sentence for each new class that looks like another one."""
        return [
            f"class {each.name!r} looks like {each.rival!r}: {each.shots - each.own} of {each.shots} "
            f"examples are nearer to another class, {each.nearer} of them to {each.rival!r}; expect mix-ups"
            for each in self.apart
            if each.alike
        ]


@dataclass(frozen=True, slots=True)
class AddedShots:
    """Effect of more examples of a known class.

    Examples
    --------
    >>> AddedShots("left", 1, 11, 0, 1).line()
    "Class 'left': 1 more example, 11 in all; 0 of the 1 were classified correctly before, 1 are now."
    """

    name: Any
    shots: int  # new ones
    total: int  # all examples of the class
    before: int  # new ones classified correctly before learning them
    after: int

    def line(self) -> str:
        """Return the report as a sentence."""
        some = "example" if self.shots == 1 else "examples"
        return (
            f"Class {self.name!r}: {self.shots} more {some}, {self.total} in all; {self.before} of the "
            f"{self.shots} were classified correctly before, {self.after} are now."
        )


def learn_classes(
    model: AnchorInvClassifier, signals: np.ndarray, labels: list[Any], *, force: bool = False
) -> LearningReport:
    """Teach a model new classes from examples (n, n_chans, n_times), and report the effect.

    The model learns in place, by :meth:`~anchorinv.AnchorInvClassifier.partial_fit`; after an error it is
    unchanged. With ``force`` it also learns from examples whose scale is far from that of the base data.
    """
    before = model.state_
    model.partial_fit(signals, labels, force=force)
    names = model._names.tolist()  # in the order of the state's columns
    columns = torch.tensor([names.index(label) for label in labels])
    standardised = torch.from_numpy(model.standardisation_(signals))
    apart, nearest = _separations(before, standardised, columns, names)
    drawn = drawn_features(before)
    kept = drawn or _kept(before, before), drawn or _kept(model.state_, before)
    if kept[0] is None or kept[1] is None:
        return LearningReport(0, None, None, tuple(apart), nearest=nearest)
    was, now = _accuracies(before, kept[0]), _accuracies(model.state_, kept[1])
    by_class = tuple(
        (name, was[n], now[n])
        for name, n in zip(names, before.classes, strict=False)
        if n in was and n in now
    )
    n_known = len(kept[1])
    return LearningReport(n_known, was[None], now[None], tuple(apart), by_class, drawn is not None, nearest)


def drawn_features(state: State) -> Batch | None:
    """Draw features from the class means and the covariance of a discriminant.

    It keeps no samples; the drawn ones show which classes a new one is close to.
    """
    head = state.head
    if not isinstance(head, Discriminant):
        return None
    whitening = head.posterior.whitening
    noise = torch.randn(DRAWN, len(whitening), generator=stream(state.seed, "report")).to(whitening)
    # Solving with the triangular whitening turns noise into draws from the covariance.
    spread = torch.linalg.solve_triangular(whitening, noise, upper=True, left=False)
    values = torch.cat([mean + spread for mean in head.means])
    return Batch(values, torch.tensor(state.classes).repeat_interleave(DRAWN))


def add_examples(
    model: AnchorInvClassifier, signals: np.ndarray, labels: list[Any], *, force: bool = False
) -> list[AddedShots]:
    """Give a model more examples of known classes, and report the effect on each class.

    As :func:`learn_classes`, by :meth:`~anchorinv.AnchorInvClassifier.add_shots`.
    """
    before = _correct(model, signals, labels)
    model.add_shots(signals, labels, force=force)
    after = _correct(model, signals, labels)
    given = np.array(labels)
    return [
        AddedShots(name, int(own.sum()), int(total), int(before[own].sum()), int(after[own].sum()))
        for name, total in zip(model.classes_.tolist(), model.counts_.tolist(), strict=True)
        if (own := given == name).any()
    ]


def _correct(model: AnchorInvClassifier, signals: np.ndarray, labels: list[Any]) -> np.ndarray:
    """Return which examples are classified correctly (n,)."""
    best = model.classes_[probabilities(model, signals)[0].argmax(1)].tolist()
    return np.array([guess == label for guess, label in zip(best, labels, strict=True)], dtype=bool)


def _kept(state: State, before: State) -> Batch | None:
    """Return features of the samples kept of old classes, as a state's network computes them."""
    if state.replay:
        replay = state.replay.of(*before.classes)
        return replay.with_values(encode(state.tail, replay.values)) if len(replay) else None
    # Anchors are features of the old network: valid only if it has not changed.
    if state.anchors and state.anchors.values.shape[1] and state.tail is before.tail:
        return state.anchors.of(*before.classes)
    return None


def _accuracies(state: State, features: Batch) -> dict[int | None, float]:
    """Return how many features of each class, and under None of all, are classified correctly."""
    right = (encode(state.head, features.values).argmax(1) == state.columns(features.labels)).float()
    shares: dict[int | None, float] = {None: float(right.mean())}
    return shares | {n: float(right[features.labels == n].mean()) for n in features.classes}


def _separations(
    before: State, signals: Tensor, columns: Tensor, names: Sequence[Any]
) -> tuple[list[Separation], tuple[Any, ...]]:
    """Return how well examples (n, n_chans, n_times) of new classes are separated, if that is known.

    Also return the old class that is most similar to each.
    """
    if (means := known_means(before)) is None:
        return [], ()
    features = embedded(before, encode(before.tail, encode(before.trunk, signals)))
    new = sorted(set(columns.tolist()))
    centres = torch.stack([features[columns == each].mean(0) for each in new])
    nearest = tuple(names[i] for i in similarity(before, centres, means).argmax(1).tolist())
    return [_separation(before, features, columns, means, each, names) for each in new], nearest


def _separation(
    before: State, features: Tensor, columns: Tensor, means: Tensor, new: int, names: Sequence[Any]
) -> Separation:
    own = features[columns == new]
    if len(own) == 1:
        return Separation(names[new], 1, 0, None, 0)
    others = sorted(set(columns.tolist()) - {new})
    rivals = torch.stack([*means, *(features[columns == c].mean(0) for c in others)])
    rival_names = [*names[: len(means)], *(names[c] for c in others)]
    apart, nearest = nearest_rivals(before, own, rivals)
    lost = nearest[~apart]
    if not len(lost):
        return Separation(names[new], len(own), len(own), None, 0)
    rival = int(lost.bincount().argmax())
    nearer = int((lost == rival).sum())
    return Separation(names[new], len(own), len(own) - len(lost), rival_names[rival], nearer)
