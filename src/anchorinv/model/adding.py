"""More examples of known classes, and what they did to a model."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorinv.estimator import AnchorInvClassifier
from anchorinv.model.streaming import probabilities


@dataclass(frozen=True, slots=True)
class Added:
    """What a class was given.

    Parameters
    ----------
    shots, total : its new examples, and all that it has learned from.
    before, after : how many of the new ones are classified rightly without and with them.
    """

    name: Any
    shots: int
    total: int
    before: int
    after: int

    def told(self) -> str:
        """Return it as a sentence."""
        some = "example" if self.shots == 1 else "examples"
        return (
            f"Class {self.name!r}: {self.shots} more {some}, {self.total} in all; {self.before} of the "
            f"{self.shots} were classified rightly before, {self.after} are now."
        )


def added(
    model: AnchorInvClassifier, signals: np.ndarray, labels: list[Any], *, force: bool = False
) -> list[Added]:
    """Give a model more examples of classes that it knows; one that cannot take them stays as it was."""
    before = _right(model, signals, labels)
    model.add_shots(signals, labels, force=force)
    after = _right(model, signals, labels)
    given = np.array(labels)
    return [
        Added(
            name,
            int((given == name).sum()),
            int(total),
            int(before[given == name].sum()),
            int(after[given == name].sum()),
        )
        for name, total in zip(model.classes_.tolist(), model.counts_.tolist(), strict=True)
        if (given == name).any()
    ]


def _right(model: AnchorInvClassifier, signals: np.ndarray, labels: list[Any]) -> np.ndarray:
    """Return which examples are classified rightly (n,); odd labels are for the model to refuse."""
    best = model.classes_[probabilities(model, signals).argmax(1)]
    return np.array([found == label for found, label in zip(best.tolist(), labels, strict=True)], dtype=bool)
