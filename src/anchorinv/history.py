"""What learning leaves behind for the user to read, and whether it went well."""

import time
from typing import Any

import numpy as np

from anchorinv.core.types import Curve, State

# Of each descent: what its steps and its last loss are called, and the setting that tames it.
_NAMES = {
    "base": ("training_steps", "training_loss", "lr"),
    "invert": ("inversion_steps", "inversion_error", "inversion_lr"),
    "finetune": ("finetuning_steps", "finetuning_loss", "finetune_lr"),
}

# What was chosen without a descent.
_CHOICES = {
    "rehearsed macro-F1": "rehearsed_f1",
    "shrinkage": "shrinkage",
    "gain of a network": "network_gain",
}


def sound(state: State, *, before: State | None = None) -> State:
    """Return what was learned, if the losses since an earlier state are numbers."""
    for curve in state.curves[len(before.curves) if before else 0 :]:
        if curve.name in _NAMES and not curve.values.isfinite().all():
            *_, setting = _NAMES[curve.name]
            raise ValueError(f"learning diverged: its loss is not finite; lower {setting}")
    return state


def counted(labels: np.ndarray) -> dict[Any, int]:
    """Return how many samples of each class there are among labels (n,)."""
    names, counts = np.unique(labels, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def entry(
    kind: str, session: int, samples: dict[Any, int], curves: tuple[Curve, ...], began: float
) -> dict[str, Any]:
    """Return one line of an estimator's history.

    Parameters
    ----------
    kind : ``"base"``, ``"session"``, ``"shots"`` or ``"forgotten"``.
    samples : how many of each class were learned.
    curves : the descents that learning took.
    began : by ``time.perf_counter``.
    """
    line: dict[str, Any] = {
        "kind": kind,
        "session": session,
        "samples": samples,
        "seconds": time.perf_counter() - began,
    }
    for curve in curves:
        if curve.name in _CHOICES:
            line[_CHOICES[curve.name]] = float(curve.values[-1])
        if curve.name not in _NAMES:  # what priors weighed
            continue
        steps, loss, _ = _NAMES[curve.name]
        # An inversion's curve ends with the error that it reached.
        line[steps] = len(curve.values) - (curve.name == "invert")
        line[loss] = float(curve.values[-1]) if len(curve.values) else float("nan")
    return line
