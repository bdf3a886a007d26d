"""The history of a model: date, author, data, scores and loss curves of each lesson."""

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from anchorinv import __version__
from anchorinv.core.rehearsal import FOLDS, SHOTS
from anchorinv.core.types import Curve, State
from anchorinv.errors import LONGEST_NAME
from anchorinv.persistence.limits import Name
from anchorinv.signal.preprocessing import Text

_DATE = "%Y-%m-%dT%H:%M:%SZ"
#: Version of the fingerprint; another one would give other digests.
_RULE = b"anchorinv data 1"
#: For each optimisation: the names of its steps and final loss in the history, and its learning rate setting.
OPTIMISATIONS = {
    "base": ("training_steps", "training_loss", "lr"),
    "invert": ("inversion_steps", "inversion_error", "inversion_lr"),
    "finetune": ("finetuning_steps", "finetuning_loss", "finetune_lr"),
    **{f"network {i}": (f"network_{i}_steps", f"network_{i}_loss", "lr") for i in range(1, FOLDS + 1)},
}


def utc_date(clock: Callable[[], float] = time.time) -> str:
    """Return the date and time to the second, in UTC."""
    return datetime.fromtimestamp(clock(), UTC).strftime(_DATE)


def _check_date(text: str) -> str:
    datetime.strptime(text, _DATE)
    return text


class Origin(BaseModel):
    """Date, author, data and software versions of a lesson; all optional in a file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    date: Annotated[str, Field(max_length=20), AfterValidator(_check_date)] | None = None
    author: Name | None = None
    note: Text | None = None
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None
    versions: Annotated[dict[Name, Name], Field(max_length=16)] | None = None

    @staticmethod
    def facts(line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the provenance in an entry of an estimator's history."""
        return {name: line[name] for name in Origin.model_fields if line.get(name) is not None}


def versions() -> dict[str, str]:
    """Return the versions of anchorinv, Python and the libraries that compute."""
    libraries = {name: version(name) for name in ("torch", "numpy", "scikit-learn")}
    return {"anchorinv": __version__, "python": platform.python_version(), **libraries}


def origin(
    signals: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray | None = None,
    *,
    with_fingerprint: bool = True,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Return the provenance of a lesson, now: windows (n, n_chans, n_times), labels and groups (n,)."""
    facts: dict[str, Any] = {"date": utc_date(clock), "versions": versions()}
    if with_fingerprint:
        facts["fingerprint"] = fingerprint(signals, labels)
    if groups is not None:
        facts["groups"] = len(np.unique(groups))
    return facts


def fingerprint(signals: np.ndarray, labels: Sequence[Any] | np.ndarray) -> str:
    """Return 32 hexadecimal digits that identify windows and their labels.

    They depend neither on the order of the windows nor on their number type, up to single precision. The
    data cannot be recovered from them, but whoever has the same windows can confirm that they are the same.

    Parameters
    ----------
    signals : ndarray, shape (n, n_chans, n_times)
    labels : sequence, shape (n,)
        Text, whole numbers or booleans; ``1`` and ``"1"`` are different classes.

    Examples
    --------
    >>> X = np.arange(24).reshape(2, 3, 4)
    >>> fingerprint(X, ["left", "right"]) == fingerprint(X[::-1].astype(float), ["right", "left"])
    True
    >>> fingerprint(X, ["left", "right"]) == fingerprint(X, ["left", "left"])
    False
    """
    digests = []
    for window, label in zip(signals, np.asarray(labels).tolist(), strict=True):
        # Adding 0 turns -0.0 into 0.0.
        values = np.ascontiguousarray(window, dtype="<f4") + np.float32(0)
        digest = hashlib.blake2b(json.dumps([label, *values.shape]).encode(), digest_size=32, person=_RULE)
        digest.update(values.data)
        digests.append(digest.digest())
    return hashlib.blake2b(b"".join(sorted(digests)), digest_size=16, person=_RULE).hexdigest()


def check_words(*, note: str | None, author: str | None) -> None:
    """Refuse a note or author that a file cannot hold, before anything is computed."""
    for what, text, most in (("note", note, 1000), ("author", author, LONGEST_NAME)):
        try:
            Origin.model_validate({what: text})
        except ValidationError:
            raise ValueError(
                f"{what} must be text of 1 to {most} characters on one line, got {text!r:.60}"
            ) from None


def annotate(
    history: Iterable[Mapping[str, Any]], *, note: str | None, author: str | None
) -> list[dict[str, Any]]:
    """Return a history with the note and author in its last entry; None leaves them unchanged."""
    check_words(note=note, author=author)
    lines = [dict(line) for line in history]
    words = {"note": note, "author": author}
    if lines:
        lines[-1] |= {name: text for name, text in words.items() if text is not None}
    return lines


def without_fingerprint(history: Iterable[Mapping[str, Any]], label: Any) -> list[dict[str, Any]]:
    """Return a history without the fingerprints of lessons with a forgotten class."""
    return [
        {name: value for name, value in line.items() if name != "fingerprint" or label not in line["samples"]}
        for line in history
    ]


def loss_curves(curves: Iterable[Curve]) -> dict[str, list[float]]:
    """Return the loss curves of a lesson, under the names of their final values in the history."""
    return {
        OPTIMISATIONS[curve.name][1]: curve.values.tolist()
        for curve in curves
        if curve.name in OPTIMISATIONS and len(curve.values)
    }


def with_curves(history: Iterable[Mapping[str, Any]], curves: Iterable[Curve]) -> list[dict[str, Any]]:
    """Return a history with the curves of each entry, which a file stores in one list, in order."""
    by_name: dict[str, list[Curve]] = {name: [] for name in OPTIMISATIONS}
    for curve in curves:
        by_name.setdefault(curve.name, []).append(curve)
    lines = []
    for line in history:
        # An entry has at most one curve of each kind, and then its final loss.
        names = [name for name, (_, loss, _) in OPTIMISATIONS.items() if loss in line and by_name[name]]
        lines.append({**line, "curves": loss_curves(by_name[name].pop(0) for name in names)})
    return lines


def subsample(values: Sequence[float], most: int) -> list[float]:
    """Return at most ``most`` values of a curve, evenly spaced from its first to its last."""
    indices = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[index] for index in indices.tolist()]


def loss_lines(line: Mapping[str, Any]) -> list[str]:
    """Return a line for each loss curve in a history entry: five values and the number of steps.

    Examples
    --------
    >>> loss_lines({"training_steps": 9, "curves": {"training_loss": [9.0, 8, 7, 6, 5, 4, 3, 2, 1]}})
    ['training loss 9, 7, 5, 3, 1 over 9 steps']
    """
    lines = []
    for steps, loss, _ in OPTIMISATIONS.values():
        if values := line.get("curves", {}).get(loss):
            some = ", ".join(f"{value:.3g}" for value in subsample(values, 5))
            lines.append(f"{loss.replace('_', ' ')} {some} over {line.get(steps, len(values))} steps")
    return lines


def score_lines(line: Mapping[str, Any]) -> list[str]:
    """Return a line for each score of base training: what was measured, and on what."""
    groups = int(line.get("groups", 1))
    held_out = "on base windows held out in turn, of the same recordings as those learned from"
    if groups > 1:
        held_out = f"on whole groups of base windows, held out in turn ({groups} groups)"
    as_new = f"; a third of the classes at a time taught from {SHOTS} windows each"
    scores = {
        "classical_base_f1": f"of base classes by classical features, {held_out}",
        "network_base_f1": f"of base classes by networks, {held_out}",
        "rehearsed_f1": f"in rehearsal, which also chose settings, {held_out}"
        + (as_new if len(line["samples"]) > 2 else ""),
    }
    known = {name: words for name, words in scores.items() if line.get(name) is not None}
    return [f"{100 * line[name]:.1f} % macro-F1 {words}" for name, words in known.items()]


# Curves that are scores or choices, not losses.
_CHOICES = {
    "rehearsed macro-F1": "rehearsed_f1",
    "shrinkage": "shrinkage",
    "base macro-F1 without a network": "classical_base_f1",
    "base macro-F1 of networks": "network_base_f1",
}


def check_converged(state: State, *, before: State | None = None) -> State:
    """Return a state if its losses since an earlier state are finite."""
    for curve in state.curves[len(before.curves) if before else 0 :]:
        if curve.name in OPTIMISATIONS and not curve.values.isfinite().all():
            *_, setting = OPTIMISATIONS[curve.name]
            raise ValueError(f"training diverged (the loss is not finite); lower {setting}")
    return state


def count_labels(labels: np.ndarray) -> dict[Any, int]:
    """Return the number of samples of each class in labels (n,)."""
    names, counts = np.unique(labels, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def history_entry(
    kind: str, session: int, samples: dict[Any, int], curves: tuple[Curve, ...], began: float
) -> dict[str, Any]:
    """Return an entry of the estimator's history.

    The kind is ``"base"``, ``"session"``, ``"shots"`` or ``"forgotten"``; the lesson ``began`` at this
    ``time.perf_counter()``.
    """
    line: dict[str, Any] = {
        "kind": kind,
        "session": session,
        "samples": samples,
        "seconds": time.perf_counter() - began,
    }
    for curve in curves:  # others are weights of priors
        if curve.name in _CHOICES:
            line[_CHOICES[curve.name]] = float(curve.values[-1])
        elif curve.name in OPTIMISATIONS:
            steps, loss, _ = OPTIMISATIONS[curve.name]
            # The last value of an inversion's curve is its final error, not a step.
            line[steps] = len(curve.values) - (curve.name == "invert")
            line[loss] = float(curve.values[-1]) if len(curve.values) else float("nan")
    return {**line, "curves": loss_curves(curves)}
