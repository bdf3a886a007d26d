"""The estimator's settings, checked together: one error names every problem."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorinv.core.descend import Plateau
from anchorinv.core.geometry import Geometry
from anchorinv.core.prototypes import Placement, mean_of_shots, random_rows
from anchorinv.core.training import Training

PLACEMENTS: dict[str, Placement] = {"mean": mean_of_shots, "random": random_rows}

#: Without a number of epochs training ends when it has converged, and here at the latest.
MOST_EPOCHS = 200

WHOLE = int | np.integer
NUMBER = int | float | np.integer | np.floating
_WHOLE = {"epochs": 1, "batch_size": 1, "n_anchors": 1, "inversion_steps": 0, "finetune_steps": 0}
_POSITIVE = ("lr", "inversion_lr", "finetune_lr", "sfreq")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that cannot work; None is allowed where it means that we choose."""
    problems = []
    seed = settings["random_state"]
    if not (seed is None or isinstance(seed, WHOLE | np.random.RandomState)):
        problems.append(f"random_state (={seed!r}) must be a whole number, a RandomState or None")
    if not isinstance(settings["per_channel"], bool | np.bool_):
        problems.append(f"per_channel (={settings['per_channel']!r}) must be True or False")
    open_ones = {name for name in ("epochs", "sfreq", "geometry") if settings[name] is None}
    for name, least in _WHOLE.items():
        value = settings[name]
        whole = isinstance(value, WHOLE) and not isinstance(value, bool)
        if name not in open_ones and not (whole and value >= least):
            problems.append(f"{name} (={value!r}) must be a whole number, {least} or more")
    for name in _POSITIVE:
        value = settings[name]
        if name not in open_ones and not (isinstance(value, NUMBER) and 0 < value < math.inf):
            problems.append(f"{name} (={value!r}) must be a number above 0")
    weight = settings["replay_weight"]
    if not (isinstance(weight, NUMBER) and 0 <= weight < math.inf):
        problems.append(f"replay_weight (={weight!r}) must be a number, 0 or more")
    if settings["new_prototype"] not in list(PLACEMENTS):  # a list, because anything can be asked of it
        allowed = " or ".join(map(repr, PLACEMENTS))
        problems.append(f"new_prototype (={settings['new_prototype']!r}) must be {allowed}")
    if "geometry" not in open_ones and not isinstance(settings["geometry"], Geometry):
        problems.append(f"geometry (={settings['geometry']!r}) must be a Geometry or None")
    if problems:
        raise ValueError("; ".join(problems))


def training_of(epochs: int | None, batch_size: int, lr: float, n_samples: int) -> Training:
    """Return how to train: for so many epochs, or until the loss has stopped falling."""
    if epochs is not None:
        return Training(epochs, batch_size, lr)
    n_batches = -(-n_samples // batch_size)
    # A window of at least 10 steps and 3 epochs: the loss of fewer is too noisy to compare.
    stop = Plateau(window=max(3, -(-10 // n_batches)), tolerance=0.02, patience=5, enough=0.1)
    return Training(MOST_EPOCHS, batch_size, lr, converged=stop)
