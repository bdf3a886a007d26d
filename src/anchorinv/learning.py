"""What learning needs around it: one lesson at a time, finite outputs, a line of history for each."""

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

# One for all models of a process: torch's global generator, which dropout draws from, is one for all, too.
_turn = threading.RLock()

_NOT_MEASURED = (
    "how far windows of its own classes lie from what this model knows has not been measured, since none "
    "were held out when it was trained; train it anew by method='discriminant' with 6 windows of each class "
    "or more, or by a method with a network on 200 windows or more without a fixed number of epochs; or "
    "leave out reject"
)


def one_at_a_time(learn: Callable[Given, Learned]) -> Callable[Given, Learned]:
    """Let a function that learns wait until no other thread is learning; ``torch.inference_mode`` is left."""

    @wraps(learn)
    def alone(*args: Given.args, **kwargs: Given.kwargs) -> Learned:
        # Gradients need ordinary tensors, and so does a model that somebody will teach later.
        with _turn, torch.inference_mode(False):
            return learn(*args, **kwargs)

    return alone


def _after_fork() -> None:
    """Start anew in a child process, which has one thread: nobody else there would ever give up the lock.

    Nor do torch's own threads live on in a child: with more than one, OpenMP would wait for them for ever.
    """
    global _turn
    _turn = threading.RLock()
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=_after_fork)


def logits_of(state: State, signals: Tensor) -> Tensor:
    """Return finite calibrated logits (n, n_classes) of standardised signals (n, n_chans, n_times)."""
    return answers_of(state, signals)[0]


def answers_of(state: State, signals: Tensor, *, novelty: bool = False) -> tuple[Tensor, Tensor | None]:
    """Return what a model says of standardised signals (n, n_chans, n_times).

    Parameters
    ----------
    novelty : bool, default=False
        Whether to compute p-values, too.

    Returns
    -------
    logits : Tensor, shape (n, n_classes)
        Calibrated, where windows were held out.
    p_values : Tensor, shape (n,), or None
        Of each signal being of a known class.
    """
    features = encode(nn.Sequential(state.trunk, state.tail), signals)
    if not novelty:
        return check_finite(state.calibrated(encode(state.head, features))), None
    confidence = known_confidence(state)
    with torch.no_grad():
        parts = [state.head.answers(chunk) for chunk in torch.split(features, CHUNK)]
    # Of a live source each window is one: there is nothing to join.
    logits, statistics, nearest = (
        parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))
    )
    p_values = confidence.p_values(statistics, nearest >= state.n_base)
    return check_finite(state.calibrated(logits)), p_values


@torch.no_grad()
def novelty_of(state: State, features: Tensor) -> Tensor:
    """Return p-values (n,) of features (n, dim) being of a known class, or say why there are none."""
    confidence = known_confidence(state)
    statistics, nearest = state.head.novelty(features)
    return confidence.p_values(statistics, nearest >= state.n_base)


def known_confidence(state: State) -> Confidence:
    """Return what is known of how sure a model may be, or say why nothing is."""
    if state.confidence is None:
        raise ValueError(_NOT_MEASURED)
    return state.confidence


def check_held_out(recipe: Recipe, samples: Batch, *, needed: bool, rng: torch.Generator) -> None:
    """Refuse samples of which a training would hold out none, if some are needed, before it begins."""
    spec = recipe.base_spec
    if needed and isinstance(spec, BaseSpec) and not _held_out(spec, samples, rng).any():
        raise ValueError(_NOT_MEASURED)


def _held_out(spec: BaseSpec, samples: Batch, rng: torch.Generator) -> Tensor:
    """Return which samples (n,) a training keeps aside to tell when to end."""
    if spec.training.patience is None:
        return torch.zeros(len(samples), dtype=torch.bool)
    return holdout(columns(samples.labels, samples.classes), samples.groups, rng=rng)


def with_confidence(
    recipe: Recipe, state: State, samples: Batch, *, needed: bool, rng: torch.Generator
) -> State:
    """Return a base model with the confidence that windows held out from its training give, if any were.

    Closed forms have theirs already. Without any, a model that needs it is refused.
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
    """Return logits (n, n_classes), if they are numbers."""
    wrong = int((~logits.isfinite()).any(1).sum())
    if wrong:
        raise ValueError(
            f"the model's outputs for {wrong} of {len(logits)} signals are not finite, so they say nothing: "
            f"its weights are damaged or far too large; use an earlier copy of the model, or train it anew"
        )
    return logits


def by_class(names: np.ndarray, counts: np.ndarray, n_base: int) -> dict[str, np.ndarray]:
    """Return what is known of classes that come in the order learned, in that of ``classes_``.

    ``_columns`` says where each of ``classes_`` is among the columns of the state's head.
    """
    order = np.argsort(names, kind="stable")
    return {
        "classes_": names[order],
        "base_classes_": np.sort(names[:n_base]),
        "counts_": counts[order],
        "_columns": order,
    }


# What was chosen without a descent.
_CHOICES = {
    "rehearsed macro-F1": "rehearsed_f1",
    "shrinkage": "shrinkage",
    "base macro-F1 without a network": "classical_base_f1",
    "base macro-F1 of networks": "network_base_f1",
}


def check_converged(state: State, *, before: State | None = None) -> State:
    """Return what was learned, if the losses since an earlier state are numbers."""
    for curve in state.curves[len(before.curves) if before else 0 :]:
        if curve.name in DESCENTS and not curve.values.isfinite().all():
            *_, setting = DESCENTS[curve.name]
            raise ValueError(f"learning diverged: its loss is not finite; lower {setting}")
    return state


def count_labels(labels: np.ndarray) -> dict[Any, int]:
    """Return how many samples of each class there are among labels (n,)."""
    names, counts = np.unique(labels, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def history_entry(
    kind: str, session: int, samples: dict[Any, int], curves: tuple[Curve, ...], began: float
) -> dict[str, Any]:
    """Return one line of an estimator's history.

    Parameters
    ----------
    kind : str
        ``"base"``, ``"session"``, ``"shots"`` or ``"forgotten"``.
    samples : dict of Any to int
        How many of each class were learned.
    curves : tuple of Curve
        The descents that learning took.
    began : float
        By ``time.perf_counter``.
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
        if curve.name not in DESCENTS:  # what priors weighed
            continue
        steps, loss, _ = DESCENTS[curve.name]
        # An inversion's curve ends with the error that it reached.
        line[steps] = len(curve.values) - (curve.name == "invert")
        line[loss] = float(curve.values[-1]) if len(curve.values) else float("nan")
    return {**line, "curves": loss_curves(curves)}
