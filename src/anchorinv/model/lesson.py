"""What a lesson did: what it cost the old classes, and how well its examples stand apart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core.heads import Cosine, StatisticalHead, class_means
from anchorinv.core.networks import mapped
from anchorinv.core.types import Batch, State

#: A class looks like others if this share of its examples is nearer to one of them.
ALIKE = 1 / 3


@dataclass(frozen=True, slots=True)
class Apart:
    """How a new class's examples stand to the other classes, in the features before the lesson.

    Parameters
    ----------
    name : of the new class.
    shots : number of its examples.
    own : examples nearer to the mean of the others than to any other class.
    rival : the class that most of the remaining are nearest to, None where there is none.
    nearer : number of these.
    """

    name: Any
    shots: int
    own: int
    rival: Any
    nearer: int

    @property
    def alike(self) -> bool:
        """Whether the new class looks like an old one."""
        return self.rival is not None and self.shots - self.own >= ALIKE * self.shots


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson in numbers.

    Parameters
    ----------
    n_known : samples of the old classes that are kept: replay or, of a network that does not move, anchors.
    before, after : share of them that is classified rightly, None where none are kept.
    apart : of each new class, where that can be told.
    """

    n_known: int
    before: float | None
    after: float | None
    apart: tuple[Apart, ...]

    def told(self) -> list[str]:
        """Return the lesson as sentences."""
        if self.before is None or self.after is None:
            lines = ["Old classes: this method keeps no samples, so the effect on them cannot be told."]
        else:
            lines = [
                f"Old classes: {self.before:.1%} of {self.n_known} samples kept of them classified rightly "
                f"before, {self.after:.1%} after."
            ]
        for each in self.apart:
            if each.shots == 1:
                lines.append(f"Class {each.name!r}: a single example, so how it stands apart cannot be told.")
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


def lesson_of(before: State, after: State, signals: Tensor, columns: Tensor, names: Sequence[Any]) -> Lesson:
    """Return what a lesson did.

    Parameters
    ----------
    before, after : the states around it.
    signals : (n, n_chans, n_times) of its examples, standardised.
    columns : (n,) their classes, as columns of ``after``.
    names : of the classes of ``after``.
    """
    known = [_known(state, before) for state in (before, after)]
    rates = [
        _accuracy(state, features) if features else None
        for state, features in zip((before, after), known, strict=True)
    ]
    centres = _centres(before)
    apart: list[Apart] = []
    if centres is not None:
        features = mapped(before.tail, mapped(before.trunk, signals))
        if isinstance(before.head, StatisticalHead):
            features = before.head.embedded(features)
        alike = _likeness(before)
        apart = [
            _apart(features, columns, centres, number, names, alike)
            for number in sorted(set(columns.tolist()))
        ]
    return Lesson(len(known[1]) if known[1] else 0, rates[0], rates[1], tuple(apart))


def _known(state: State, before: State) -> Batch | None:
    """Return features of old classes' samples as a state's network sees them, if any are kept."""
    if state.replay:
        replay = state.replay.of(*before.classes)
        return replay.with_values(mapped(state.tail, replay.values)) if len(replay) else None
    # Anchors are where features were, and still are if the network has not moved.
    if state.anchors and state.anchors.values.shape[1] and state.tail is before.tail:
        return state.anchors.of(*before.classes)
    return None


def _likeness(state: State) -> Callable[[Tensor, Tensor], Tensor]:
    if isinstance(state.head, Cosine | StatisticalHead):
        return state.head.likeness
    return lambda some, others: F.normalize(some) @ F.normalize(others).T


def _accuracy(state: State, features: Batch) -> float:
    best = mapped(state.head, features.values).argmax(1)
    return float((best == state.columns(features.labels)).float().mean())


def _centres(state: State) -> Tensor | None:
    """Return the old classes' places among the features (n_classes, dim), if they are known."""
    if isinstance(state.head, Cosine | StatisticalHead):
        return state.head.prototypes
    if state.replay and set(state.replay.classes) == set(state.classes):
        features = mapped(state.tail, state.replay.values)
        return class_means(features, state.columns(state.replay.labels))
    return None


def _apart(
    features: Tensor,
    columns: Tensor,
    centres: Tensor,
    number: int,
    names: Sequence[Any],
    alike: Callable[[Tensor, Tensor], Tensor],
) -> Apart:
    own = features[columns == number]
    others = sorted(set(columns.tolist()) - {number})
    rivals = torch.stack([*centres, *(features[columns == c].mean(0) for c in others)])
    rival_names = [*names[: len(centres)], *(names[c] for c in others)]
    if len(own) == 1:
        return Apart(names[number], 1, 0, None, 0)
    rest = (own.sum(0) - own) / (len(own) - 1)  # each example's fellows, without itself
    to_own = alike(own, rest).diagonal()
    best, which = alike(own, rivals).max(1)
    lost = which[best >= to_own]
    rival = int(lost.bincount().argmax()) if len(lost) else None
    name = None if rival is None else rival_names[rival]
    nearer = 0 if rival is None else int((lost == rival).sum())
    return Apart(names[number], len(own), len(own) - len(lost), name, nearer)
