"""Scores of a model on files, drift from its base data, and what a lesson did to it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.metrics import (
    REJECT,
    Detection,
    Reliability,
    Scores,
    SplitReliability,
    confusion,
    macro_f1,
    scores,
)
from anchorinv.core.networks import encode
from anchorinv.core.types import Batch, State, stream
from anchorinv.datasets.dataset import open_windows
from anchorinv.datasets.own import Labelling
from anchorinv.errors import looks_like, natural_order
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.novelty import embedded, known_means, nearest_rivals, similarity
from anchorinv.serving.files import (
    DEFAULTS,
    Observer,
    ReadOptions,
    from_events,
    from_windows,
    observed,
    read_windows,
)
from anchorinv.serving.streaming import DriftMonitor, classify, probabilities
from anchorinv.signal.drift import Drift
from anchorinv.signal.headers import missing_labels
from anchorinv.signal.pipeline import Window
from anchorinv.validation import similar_names

#: Maximum number of channels in a table; those that differ most.
MOST_SHOWN = 12


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The confusion matrix of a model on labelled windows, its calibration, and detection of unknown ones."""

    classes: tuple[Any, ...]  # of the rows (true) and columns (predicted) of ``counts``, base classes first
    n_base: int
    counts: np.ndarray  # of windows, (n_classes, n_classes)
    unknown: dict[str, int]  # windows of each unknown class, which are in no row
    reliability: SplitReliability  # calibration on the same windows, of base and new classes
    detection: Detection | None  # of windows of unknown classes; None if the model has no novelty

    @property
    def scores(self) -> Scores:
        """All scores derived from the matrix."""
        return scores(self.counts, self.n_base)

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that occur; classes without windows are left out."""
        return macro_f1(self.counts, np.flatnonzero(self.counts.sum(axis=1)).tolist())

    @property
    def f1(self) -> tuple[float | None, ...]:
        """F1 of each class; None for classes without windows."""
        occur = np.flatnonzero(self.counts.sum(axis=1)).tolist()
        return tuple(f1 if i in occur else None for i, f1 in enumerate(self.scores.f1))

    def facts(self) -> dict[str, Any]:
        """Return plain JSON values; the F1 of a class without windows is None."""
        derived = self.scores
        return {
            "windows": int(self.counts.sum()),
            "accuracy": derived.accuracy,
            "balanced_accuracy": derived.balanced_accuracy,
            "macro_f1": self.macro_f1,
            "f1": dict(zip(map(str, self.classes), self.f1, strict=True)),
            "confusion": self.counts.tolist(),
            "unknown": self.unknown,
            "calibration": _calibration_facts(self.reliability),
            "detection": None if self.detection is None else _detection_facts(self.detection),
        }

    def lines(self) -> list[str]:
        """Return the scores and the matrix as lines of text."""
        derived = self.scores
        lines = [
            f"{self.counts.sum()} windows: accuracy {derived.accuracy:.1%}, balanced "
            f"{derived.balanced_accuracy:.1%}, macro-F1 {self.macro_f1:.1%}",
            f"{_row('true / predicted', self.classes, width=8)} {'F1':>7}",
        ]
        for name, row, f1 in zip(self.classes, self.counts, self.f1, strict=True):
            lines.append(f"{_row(name, row, width=8)} {'–' if f1 is None else f'{f1:.1%}':>7}")
        for name, n in self.unknown.items():
            known = looks_like(name, self.classes)
            shown, like = (name, "") if known is None else (repr(name), f", which looks like {known!r}")
            lines.append(f"not known to the model, left out: {shown} ({n}){like}")
        lines += _calibration_lines(self.reliability)
        return lines if self.detection is None else lines + _detection_lines(self.detection)


def evaluate_file(
    model: AnchorInvClassifier,
    path: Path,
    reading: ReadOptions = DEFAULTS,
    *,
    labelling: Labelling | None = None,
    note: Observer | None = None,
) -> Evaluation:
    """Score a fitted model on the labelled windows of a file; ``note`` is called with all of them.

    The file is a prepared folder (its test part), an ``.npz`` file, or a recording with a ``labelling``.
    """
    windows: Iterable[Window]
    if labelling is not None:
        ((_, values, labels),) = from_events(model, [path], labelling, reading)
        # Classes may be numbers or booleans.
        by_name = {str(label): label for label in model.classes_.tolist()}
        truth = [by_name.get(name, name) for name in labels.tolist()]
        windows = (Window(i, window, True) for i, window in enumerate(values))
    else:
        if (stored := open_windows(path, split="test").labels) is None:
            raise missing_labels(path)
        truth = stored.tolist()
        windows = from_windows(model, path, reading, split="test")
    in_order = model.classes_.tolist()
    base = natural_order(model.base_classes_.tolist())
    classes = [*base, *natural_order([label for label in in_order if label not in base])]
    unknown = {str(label): truth.count(label) for label in dict.fromkeys(truth) if label not in classes}
    if sum(unknown.values()) == len(truth):
        raise ValueError(
            f"the model knows none of the classes in {path}; it knows {', '.join(map(str, classes))}"
            f"{similar_names(unknown, classes)}"
        )
    predictions = list(classify(model, windows if note is None else observed(windows, note)))
    known = [i for i, label in enumerate(truth) if label in classes]
    # By probabilities: a label may mean that a window was rejected, which is counted separately. None of them
    # is missing: labelled windows with gaps were refused.
    rows = [row for i in known if (row := predictions[i].probabilities) is not None]
    ordered = np.stack(rows)[:, [in_order.index(label) for label in classes]]  # (n_known, n_classes)
    columns = np.array([classes.index(truth[i]) for i in known])
    counts = confusion(columns, ordered.argmax(axis=1), range(len(classes)))
    reliability = SplitReliability.of(ordered, columns, np.arange(len(classes)) < len(base))
    novelty = [prediction.novelty for prediction in predictions]
    detection = detect(novelty, [label in classes for label in truth], model.reject)
    return Evaluation(tuple(classes), len(base), counts, unknown, reliability, detection)


def detect(
    novelty: Sequence[float | None], known: Sequence[bool], threshold: float | None = None
) -> Detection | None:
    """Measure how well p-values of novelty detect unknown classes; None without p-values.

    Windows are rejected up to the threshold, :data:`~anchorinv.core.metrics.REJECT` where it is None.
    """
    measured = [(p, is_known) for p, is_known in zip(novelty, known, strict=True) if p is not None]
    if not measured:
        return None
    of_known, of_unknown = (
        [p for p, is_known in measured if is_known],
        [p for p, is_known in measured if not is_known],
    )
    return Detection.of(of_known, of_unknown, REJECT if threshold is None else threshold)


def check_picture(path: Path) -> None:
    """Refuse an unsupported figure format, before anything is computed."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"a figure must be a .png, .pdf or .svg file, got {path.name!r}")


def draw_reliability(evaluation: Evaluation, path: Path, name: str = "") -> None:
    """Draw the reliability diagram of an evaluation into a file; ``name`` is its title."""
    from anchorinv.report.score_figures import reliability_figure  # takes a second, and is rarely used

    check_picture(path)
    reliability_figure("reliability", evaluation.reliability, name).write_to(path)


def _parts(both: SplitReliability) -> dict[str, Reliability]:
    parts = {"base": both.base, "new": both.new, "all": both.all}
    return {name: part for name, part in parts.items() if part.n}


def _calibration_facts(both: SplitReliability) -> dict[str, Any]:
    return {
        name: {
            "windows": part.n,
            "accuracy": part.accuracy,
            "mean_confidence": part.mean_confidence,
            "ece": part.ece,
            "brier": part.brier,
            "log_loss": part.nll,
            "bins": {key: part.to_dict()[key] for key in ("counts", "correct", "confidence")},
        }
        for name, part in _parts(both).items()
    }


def _calibration_lines(both: SplitReliability) -> list[str]:
    lines = [_row("calibration", ("windows", "accuracy", "confidence", "ECE", "Brier"))]
    for name, part in _parts(both).items():
        shares = (f"{part.accuracy:.1%}", f"{part.mean_confidence:.1%}")
        lines.append(_row(f"{name} classes", [part.n, *shares, f"{part.ece:.3f}", f"{part.brier:.3f}"]))
    return lines


def _row(first: object, cells: Iterable[object], *, column: int = 16, width: int = 10) -> str:
    return f"{first!s:<{column}} " + " ".join(f"{cell!s:>{width}}" for cell in cells)


def _detection_facts(detection: Detection) -> dict[str, Any]:
    facts = {
        "threshold": detection.threshold,
        "known_windows": detection.n_known,
        "unknown_windows": detection.n_unknown,
        "auroc": detection.auroc,
        "false_rejections": detection.false_rejections,
        "false_acceptances": detection.false_acceptances,
    }
    return {name: None if np.isnan(value) else value for name, value in facts.items()}


def _detection_lines(detection: Detection) -> list[str]:
    lines = [
        f"at a rejection threshold of {detection.threshold:g}, {detection.n_rejected} of {detection.n_known} "
        f"windows of known classes count as unknown ({detection.false_rejections:.1%})"
    ]
    if detection.n_unknown:
        lines.append(
            f"and {detection.n_accepted} of {detection.n_unknown} windows of unknown classes as known "
            f"({detection.false_acceptances:.1%}); AUROC of known against unknown {detection.auroc:.3f}"
        )
    return lines


@dataclass(frozen=True, slots=True, eq=False)
class FileCheck:
    """Drift of a file from the base data."""

    path: Path
    n_windows: int  # that were compared
    n_gaps: int  # windows with missing samples, not compared
    drift: Drift

    def facts(self) -> dict[str, Any]:
        """Return plain JSON values; what was not compared is None."""
        drift = self.drift
        return {
            "file": str(self.path),
            "windows": self.n_windows,
            "windows_with_gaps": self.n_gaps,
            "level": drift.level,
            "far": drift.far,
            "verdict": drift.verdict,
            "factor": drift.factor,
            "channels": [
                {"name": name, **{k: None if v is None else float(v[i]) for k, v in _columns(drift).items()}}
                for i, name in enumerate(drift.channels)
            ],
        }

    def lines(self) -> list[str]:
        """Return a table of the channels and the verdict, as lines of text."""
        drift, columns = self.drift, _columns(self.drift)
        gaps = f" ({self.n_gaps} more have missing samples)" if self.n_gaps else ""
        lines = [f"{self.path}: {self.n_windows} windows{gaps}"]
        width = max(8, *(len(name[:24]) for name in drift.channels))
        lines.append(_row("channel", columns, column=width))
        shown = _most_unlike(drift)[:MOST_SHOWN]
        for i in sorted(shown.tolist()):
            cells = ["-" if values is None else f"{values[i]:.3g}" for values in columns.values()]
            lines.append(_row(drift.channels[i][:24], cells, column=width))
        if len(drift.channels) > MOST_SHOWN:
            lines.append(f"and {len(drift.channels) - MOST_SHOWN} channels that differ less")
        return [*lines, f"{drift.level}: {drift.verdict}"]


def check_file(model: AnchorInvClassifier, path: Path, reading: ReadOptions = DEFAULTS) -> FileCheck:
    """Compare a file of windows or a recording with a fitted model's base data, in bounded memory."""
    monitor = DriftMonitor(model)
    windows = observed(read_windows(model, path, reading, task="checking"), monitor)
    n_gaps = sum(not window.complete for window in windows)
    if (drift := monitor.drift) is None:
        raise ValueError(f"{path} has gaps (NaN) in every window; there is nothing to compare")
    return FileCheck(path, monitor.n_seen, n_gaps, replace(drift, scaled=reading.scale))


def _columns(drift: Drift) -> Mapping[str, np.ndarray | None]:
    """Return the distances of all channels (n_chans,); None where they were not compared."""
    return {
        "scale": drift.scale,
        "shift": drift.shift,
        "spectrum": None if drift.spectrum is None else drift.spectrum.distance,
        "covariance": None if drift.covariance is None else drift.covariance.distance,
    }


def _most_unlike(drift: Drift) -> np.ndarray:
    """Return the channels, those that differ most first."""
    # In multiples of the unusual level; flat channels come first.
    worst = np.nan_to_num(np.log(drift.distance), posinf=1e3)
    for part in (drift.spectrum, drift.covariance):
        if part is not None:
            worst = np.maximum(worst, part.distance)
    return np.argsort(-worst, kind="stable")


#: A new class is similar to others if this share of its examples is nearer to one of them.
ALIKE = 1 / 3
#: Examples below which more are advised.
FEW = 5
#: Features drawn for each class without kept samples.
DRAWN = 50


@dataclass(frozen=True, slots=True)
class Separation:
    """Separation of the examples of a new class from other classes, in the features before learning."""

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
    separations: tuple[Separation, ...]  # of each new class; empty if the method knows no class means
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
        for new in self.separations:
            if new.shots == 1:
                lines.append(f"Class {new.name!r}: a single example, so its separation cannot be measured.")
            else:
                lines.append(
                    f"Class {new.name!r}: {new.own} of {new.shots} examples are nearer to the others of "
                    f"their class than to any other class."
                )
            if 1 < new.shots < FEW:
                lines.append(
                    f"Class {new.name!r}: {new.shots} examples are few, and ten are better; add more with "
                    f"anchorinv add."
                )
        return lines

    def warnings(self) -> list[str]:
        """Return a sentence for each new class that looks like another one."""
        return [
            f"class {new.name!r} looks like {new.rival!r}: {new.shots - new.own} of {new.shots} "
            f"examples are nearer to another class, {new.nearer} of them to {new.rival!r}; expect mix-ups"
            for new in self.separations
            if new.alike
        ]


@dataclass(frozen=True, slots=True)
class AddedShots:
    """Effect of more examples of a known class.

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
    separations, nearest = _separations(before, standardised, columns, names)
    drawn = drawn_features(before)
    first, second = drawn or _kept(before, before), drawn or _kept(model.state_, before)
    if first is None or second is None:
        return LearningReport(0, None, None, separations, nearest=nearest)
    old, new = _accuracies(before, first), _accuracies(model.state_, second)
    by_class = tuple(
        (name, old[n], new[n])
        for name, n in zip(names, before.classes, strict=False)
        if n in old and n in new
    )
    drawn_only = drawn is not None
    return LearningReport(len(second), old[None], new[None], separations, by_class, drawn_only, nearest)


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
    truth = np.array(labels)
    return [
        AddedShots(name, int(own.sum()), int(total), int(before[own].sum()), int(after[own].sum()))
        for name, total in zip(model.classes_.tolist(), model.counts_.tolist(), strict=True)
        if (own := truth == name).any()
    ]


def _correct(model: AnchorInvClassifier, signals: np.ndarray, labels: list[Any]) -> np.ndarray:
    """Return which examples are classified correctly (n,)."""
    predicted = model.classes_[probabilities(model, signals)[0].argmax(1)].tolist()
    return np.array([name == label for name, label in zip(predicted, labels, strict=True)], dtype=bool)


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
    """Return the accuracy on features of each class, and under None on all."""
    correct = (encode(state.head, features.values).argmax(1) == state.columns(features.labels)).float()
    overall: dict[int | None, float] = {None: float(correct.mean())}
    return overall | {n: float(correct[features.labels == n].mean()) for n in features.classes}


def _separations(
    before: State, signals: Tensor, columns: Tensor, names: Sequence[Any]
) -> tuple[tuple[Separation, ...], tuple[Any, ...]]:
    """Return how well examples (n, n_chans, n_times) of each new class are separated, and its nearest class.

    Both are empty if the method knows no class means.
    """
    if (means := known_means(before)) is None:
        return (), ()
    features = embedded(before, encode(before.tail, encode(before.trunk, signals)))
    new = sorted(set(columns.tolist()))
    centres = torch.stack([features[columns == column].mean(0) for column in new])
    nearest = tuple(names[i] for i in similarity(before, centres, means).argmax(1).tolist())
    return tuple(_separation(before, features, columns, means, column, names) for column in new), nearest


def _separation(
    before: State, features: Tensor, columns: Tensor, means: Tensor, new: int, names: Sequence[Any]
) -> Separation:
    own = features[columns == new]
    if len(own) == 1:
        return Separation(names[new], 1, 0, None, 0)
    others = sorted(set(columns.tolist()) - {new})
    rivals = torch.stack([*means, *(features[columns == c].mean(0) for c in others)])
    rival_names = [*names[: len(means)], *(names[c] for c in others)]
    separate, nearest = nearest_rivals(before, own, rivals)
    confused = nearest[~separate]  # the rivals of the others
    if not len(confused):
        return Separation(names[new], len(own), len(own), None, 0)
    rival = int(confused.bincount().argmax())
    nearer = int((confused == rival).sum())
    return Separation(names[new], len(own), len(own) - len(confused), rival_names[rival], nearer)
