"""Parts of the estimator's lessons: a lock, logits and p-values, checks, entries of the history."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from anchorinv.core.confidence import Confidence
from anchorinv.core.confidence_rehearsal import held_out_confidence
from anchorinv.core.networks import CHUNK, encode
from anchorinv.core.recipe import BaseSpec, Recipe
from anchorinv.core.training import holdout
from anchorinv.core.types import Batch, Curve, State, columns
from anchorinv.persistence.provenance import DESCENTS, loss_curves

Given = ParamSpec("Given")
Learned = TypeVar("Learned")

# One lock for all models of a process, as dropout draws from torch's global generator.
_turn = threading.RLock()

_NOT_MEASURED = (
    "this model has no novelty scores, since no windows were held out when it was trained; train it again "
    "with method='discriminant' and at least 6 windows of each class, or with a method that has a network, "
    "at least 200 windows and no fixed number of epochs; or "
    "leave out reject"
)


def one_at_a_time(learn: Callable[Given, Learned]) -> Callable[Given, Learned]:
    """Let a function that learns wait for other threads; ``torch.inference_mode`` is switched off in it."""

    @wraps(learn)
    def alone(*args: Given.args, **kwargs: Given.kwargs) -> Learned:
        # Gradients, now or in a later lesson, need ordinary tensors.
        with _turn, torch.inference_mode(False):
            return learn(*args, **kwargs)

    return alone


def _after_fork() -> None:
    """Replace the lock in a forked child, where no other thread would ever release it.

    torch's threads do not survive a fork either: with more than one, OpenMP would wait for them forever.
    """
    global _turn
    _turn = threading.RLock()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


def logits_of(state: State, signals: Tensor) -> Tensor:
    """Return finite calibrated logits (n, n_classes) of standardised signals (n, n_chans, n_times)."""
    return answers_of(state, signals)[0]


def answers_of(state: State, signals: Tensor, *, novelty: bool = False) -> tuple[Tensor, Tensor | None]:
    """Return logits, and p-values of novelty, of standardised signals (n, n_chans, n_times).

    Parameters
    ----------
    novelty : bool, default=False
        Whether to compute p-values.

    Returns
    -------
    logits : Tensor, shape (n, n_classes)
        Calibrated, where windows were held out.
    p_values : Tensor, shape (n,), or None
        Under the hypothesis that a signal is of a known class.
    """
    features = encode(nn.Sequential(state.trunk, state.tail), signals)
    if not novelty:
        return check_finite(state.calibrated(encode(state.head, features))), None
    confidence = known_confidence(state)
    with torch.no_grad():
        parts = [state.head.answers(chunk) for chunk in torch.split(features, CHUNK)]
    # Live windows come one at a time: nothing to concatenate.
    logits, statistics, nearest = (
        parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))
    )
    p_values = confidence.p_values(statistics, nearest >= state.n_base)
    return check_finite(state.calibrated(logits)), p_values


@torch.no_grad()
def novelty_of(state: State, features: Tensor) -> Tensor:
    """Return p-values (n,) of novelty of features (n, dim); an error says why there are none."""
    confidence = known_confidence(state)
    statistics, nearest = state.head.novelty(features)
    return confidence.p_values(statistics, nearest >= state.n_base)


def known_confidence(state: State) -> Confidence:
    """Return the model's confidence measures; an error says why there are none."""
    if state.confidence is None:
        raise ValueError(_NOT_MEASURED)
    return state.confidence


def check_held_out(recipe: Recipe, samples: Batch, *, needed: bool, rng: torch.Generator) -> None:
    """Refuse, before training, samples of which none would be held out, if some are needed."""
    spec = recipe.base_spec
    if needed and isinstance(spec, BaseSpec) and not _held_out(spec, samples, rng).any():
        raise ValueError(_NOT_MEASURED)


def _held_out(spec: BaseSpec, samples: Batch, rng: torch.Generator) -> Tensor:
    """Return which samples (n,) training holds out for early stopping."""
    if spec.training.patience is None:
        return torch.zeros(len(samples), dtype=torch.bool)
    return holdout(columns(samples.labels, samples.classes), samples.groups, rng=rng)


def with_confidence(
    recipe: Recipe, state: State, samples: Batch, *, needed: bool, rng: torch.Generator
) -> State:
    """Return a base model with confidence measured on held-out windows, if any were held out.

    Closed forms have theirs already. A model that needs one and has none is refused.
    """
    spec, targets = recipe.base_spec, state.columns(samples.labels)
    none = torch.zeros(len(samples), dtype=torch.bool)
    aside = _held_out(spec, samples, rng) if isinstance(spec, BaseSpec) else none
    if state.confidence is not None or not aside.any():
        if needed:
            known_confidence(state)
        return state
    features = encode(nn.Sequential(state.trunk, state.tail), samples.values[aside])
    with torch.no_grad():
        statistics, nearest = state.head.novelty(features)
        logits = state.head(features)
    confidence = held_out_confidence(logits, statistics, nearest, targets[aside], state.n_base)
    return replace(state, confidence=confidence)


def check_finite(logits: Tensor) -> Tensor:
    """Return logits (n, n_classes) if they are finite."""
    wrong = int((~logits.isfinite()).any(1).sum())
    if wrong:
        raise ValueError(
            f"the model's outputs for {wrong} of {len(logits)} signals are not finite: "
            f"its weights are damaged or far too large; use an earlier copy of the model, or train it again"
        )
    return logits


def by_class(names: np.ndarray, counts: np.ndarray, n_base: int) -> dict[str, np.ndarray]:
    """Sort names and counts of classes, given in the order learned, as attributes of the estimator.

    ``_columns`` has the column of each of ``classes_`` in the state's head.
    """
    order = np.argsort(names, kind="stable")
    return {
        "classes_": names[order],
        "base_classes_": np.sort(names[:n_base]),
        "counts_": counts[order],
        "_columns": order,
    }


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
        if curve.name in DESCENTS and not curve.values.isfinite().all():
            *_, setting = DESCENTS[curve.name]
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

    Parameters
    ----------
    kind : str
        ``"base"``, ``"session"``, ``"shots"`` or ``"forgotten"``.
    samples : dict of Any to int
        Number of samples of each class.
    curves : tuple of Curve
        Loss curves of the lesson.
    began : float
        Start time, from ``time.perf_counter``.
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
        if curve.name not in DESCENTS:  # weights of priors
            continue
        steps, loss, _ = DESCENTS[curve.name]
        # The last value of an inversion's curve is its final error, not a step.
        line[steps] = len(curve.values) - (curve.name == "invert")
        line[loss] = float(curve.values[-1]) if len(curve.values) else float("nan")
    return {**line, "curves": loss_curves(curves)}
