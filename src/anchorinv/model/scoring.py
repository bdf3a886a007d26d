"""How well a model does on labelled windows, derived from a confusion matrix."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.core.metrics import Scores, confusion, macro_f1, scores
from anchorinv.data.labelling import Labelling
from anchorinv.data.windowed import open_windows
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.mistaken import likeness
from anchorinv.model.names import looks_like
from anchorinv.model.serving import noted
from anchorinv.model.sources import AS_IT_IS, Reading, from_events, from_windows
from anchorinv.model.streaming import classified
from anchorinv.signal.kinds import unlabelled
from anchorinv.signal.pipeline import Window


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A confusion matrix and what it stands for.

    Parameters
    ----------
    classes : of the rows (true) and columns (predicted) of ``counts``.
    n_base : base classes among them, the first ones.
    counts : (n_classes, n_classes)
    unknown : windows of each class that the model does not know; they are in no row.
    """

    classes: tuple[Any, ...]
    n_base: int
    counts: np.ndarray
    unknown: dict[str, int]

    @property
    def scores(self) -> Scores:
        """All that is derived from the matrix."""
        return scores(self.counts, self.n_base)

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that occur; one without a window says nothing about the model."""
        return macro_f1(self.counts, np.flatnonzero(self.counts.sum(axis=1)).tolist())

    def facts(self) -> dict[str, Any]:
        """Return plain JSON values."""
        found = self.scores
        return {
            "windows": int(self.counts.sum()),
            "accuracy": found.accuracy,
            "balanced_accuracy": found.balanced_accuracy,
            "macro_f1": self.macro_f1,
            "f1": dict(zip(map(str, self.classes), found.f1, strict=True)),
            "confusion": self.counts.tolist(),
            "unknown": self.unknown,
        }

    def told(self) -> list[str]:
        """Return lines to read."""
        found = self.scores
        lines = [
            f"{self.counts.sum()} windows: accuracy {found.accuracy:.1%}, balanced "
            f"{found.balanced_accuracy:.1%}, macro-F1 {self.macro_f1:.1%}",
            f"{'true / predicted':<16} " + " ".join(f"{name!s:>8}" for name in self.classes) + f" {'F1':>7}",
        ]
        for name, row, f1 in zip(self.classes, self.counts, found.f1, strict=True):
            lines.append(f"{name!s:<16} " + " ".join(f"{count:>8}" for count in row) + f" {f1:>7.1%}")
        for name, n in self.unknown.items():
            known = looks_like(name, self.classes)
            shown, like = (name, "") if known is None else (repr(name), f", which looks like {known!r}")
            lines.append(f"not known to the model, left out: {shown} ({n}){like}")
        return lines


def scored(
    model: AnchorInvClassifier,
    path: Path,
    reading: Reading = AS_IT_IS,
    *,
    labelling: Labelling | None = None,
    note: Callable[[np.ndarray], None] | None = None,
) -> Evaluation:
    """Score a model on labelled windows.

    Parameters
    ----------
    path : a prepared folder (its test part), an ``.npz``, or a recording.
    labelling : which events of a recording are which classes.
    reading : what a user says of it.
    note : is shown all windows.
    """
    windows: Iterable[Window]
    if labelling is not None:
        ((_, values, labels),) = from_events(model, [path], labelling, reading)
        truth = labels.tolist() if model.classes_.dtype.kind == "U" else _as_classes(model, labels.tolist())
        windows = (Window(i, each, True) for i, each in enumerate(values))
    else:
        told = open_windows(path, split="test").labels
        if told is None:
            raise unlabelled(path)
        truth = told.tolist()
        windows = from_windows(model, path, reading, split="test")
    classes = model.classes_.tolist()
    unknown = {str(label): truth.count(label) for label in dict.fromkeys(truth) if label not in classes}
    if sum(unknown.values()) == len(truth):
        raise ValueError(
            f"the model knows none of the classes in {path}; it knows {', '.join(map(str, classes))}"
            f"{likeness(unknown, classes)}"
        )
    found = [p.label for p in classified(model, windows if note is None else noted(windows, note))]
    known = [i for i, label in enumerate(truth) if label in classes]
    counts = confusion([truth[i] for i in known], np.array(found)[known].tolist(), classes)
    return Evaluation(tuple(classes), model.state_.n_base, counts, unknown)


def _as_classes(model: AnchorInvClassifier, names: list[str]) -> list[Any]:
    """Return names as the model's own classes, which are no text, where they read the same."""
    by_name = {str(label): label for label in model.classes_.tolist()}
    return [by_name.get(name, name) for name in names]
