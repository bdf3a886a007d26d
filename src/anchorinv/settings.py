"""The estimator's settings, checked together: one error names every problem."""

import inspect
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from anchorinv.core.catalogue import CATALOGUE, FORMER_NAMES, NETWORKS, current_name
from anchorinv.core.conformer import Conformer
from anchorinv.core.geometry import Geometry
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion
from anchorinv.core.inverted import InvertedAnchors, InvertedLabels
from anchorinv.core.prototypes import Placement, mean_of_shots, random_rows
from anchorinv.core.recipe import Foundation, Recipe
from anchorinv.core.schedule import OneCycle
from anchorinv.core.selection import Validated
from anchorinv.core.training import Adaptation, Finetune, Training
from anchorinv.mistaken import check_order
from anchorinv.model.header import parsed
from anchorinv.model.limits import (
    HIGHEST_RATE,
    LOWEST_RATE,
    MOST_ANCHORS,
    MOST_BATCH,
    MOST_STEPS,
    SEEDS,
    check_geometry,
    inverted_at_once,
)
from anchorinv.model.names import check_names
from anchorinv.signal.facts import PreprocessingFacts
from anchorinv.signal.preprocessing import Preprocessing

PLACEMENTS: dict[str, Placement] = {"mean": mean_of_shots, "random": random_rows}

#: Without a number of epochs there are so many, or as many as keep the number of steps within bounds: a few
#: windows need more rounds until a network has learned anything, and very many teach it in fewer.
EPOCHS = 24
STEPS = range(300, 10_001)

#: How much channels are made louder or softer in training.
GAIN = 0.3

#: Of networks whose sizes follow from the signals: shallower than the paper's, with half its dropout, which
#: learns in a quarter of the time what the paper's sizes learn (docs/method.md).
DEPTH, DROPOUT = 2, 0.25

#: Of methods that cannot choose for themselves, because they replay nothing or classify without prototypes.
FINETUNE_STEPS = 100

WHOLE = int | np.integer
NUMBER = int | float | np.integer | np.floating
_WHOLE = {
    "epochs": (1, MOST_STEPS),
    "batch_size": (1, MOST_BATCH),
    "n_anchors": (1, MOST_ANCHORS),
    "inversion_steps": (0, MOST_STEPS),
    "finetune_steps": (0, MOST_STEPS),
}
_POSITIVE = {"lr": 1e30, "inversion_lr": 1e30, "finetune_lr": 1e30, "sfreq": HIGHEST_RATE}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that cannot work; None is allowed where it means that we choose."""
    problems = []
    seed = settings["random_state"]
    if not (seed is None or isinstance(seed, WHOLE | np.random.RandomState)):
        problems.append(f"random_state (={seed!r}) must be a whole number, a RandomState or None")
    if isinstance(seed, WHOLE) and int(seed) not in SEEDS:
        problems.append(f"random_state (={seed!r}) must lie between -2**63 and 2**64")
    if not isinstance(settings["per_channel"], bool | np.bool_):
        problems.append(f"per_channel (={settings['per_channel']!r}) must be True or False")
    if not isinstance(settings["verbose"], bool | np.bool_ | WHOLE):
        problems.append(f"verbose (={settings['verbose']!r}) must be True or False")
    may_be_open = ("epochs", "finetune_steps", "sfreq", "geometry")
    open_ones = {name for name in may_be_open if settings[name] is None}
    for name, (least, most) in _WHOLE.items():
        value = settings[name]
        whole = isinstance(value, WHOLE) and not isinstance(value, bool)
        if name not in open_ones and not (whole and least <= value <= most):
            problems.append(f"{name} (={value!r}) must be a whole number, {least} or more, at most {most}")
    for name, highest in _POSITIVE.items():
        value = settings[name]
        if name not in open_ones and not (_number(value) and 0 < value <= highest):
            problems.append(f"{name} (={value!r}) must be a number above 0, at most {highest:g}")
    weight = settings["replay_weight"]
    if not (_number(weight) and 0 <= weight <= 1e30):
        problems.append(f"replay_weight (={weight!r}) must be a number, 0 or more")
    if settings["new_prototype"] not in list(PLACEMENTS):  # a list, because anything can be asked of it
        allowed = " or ".join(map(repr, PLACEMENTS))
        problems.append(f"new_prototype (={settings['new_prototype']!r}) must be {allowed}")
    if settings["network"] not in list(NETWORKS):
        problems.append(f"network (={settings['network']!r}) must be one of {', '.join(NETWORKS)}")
    if "geometry" not in open_ones and not isinstance(settings["geometry"], Geometry):
        problems.append(f"geometry (={settings['geometry']!r}) must be a Geometry or None")
    how = settings["preprocessing"]
    if how is not None and not isinstance(how, Preprocessing):
        problems.append(f"preprocessing (={how!r}) must be a Preprocessing or None")
    elif how is not None:
        parsed(PreprocessingFacts, asdict(how))
    if settings["method"] not in [*CATALOGUE, *FORMER_NAMES]:
        problems.append(f"method (={settings['method']!r}) must be one of {', '.join(CATALOGUE)}")
    if problems:
        raise ValueError("; ".join(problems))


def _number(value: Any) -> bool:
    return isinstance(value, NUMBER) and not isinstance(value, bool)


def recipe_of(settings: Mapping[str, Any], geometry: Geometry, n_samples: int) -> Recipe:
    """Return the method that the settings describe; each takes those that it knows."""
    training = training_of(settings["epochs"], settings["batch_size"], settings["lr"], n_samples)
    foundation = Foundation(partial(Conformer, geometry), Cosine.start, training)
    make = CATALOGUE[current_name(settings["method"])]
    known = inspect.signature(make).parameters
    inversion = Inversion.swift(settings["inversion_steps"], lr=settings["inversion_lr"])
    options = {
        "start": PLACEMENTS[settings["new_prototype"]],
        "adapt": _adaptation(settings),
        "per_class": settings["n_anchors"],
        "network": settings["network"],
        "inversion": replace(inversion, chunk=inverted_at_once(geometry, inversion.chunk)),
    }
    recipe = make(foundation, **{name: value for name, value in options.items() if name in known})
    recipe = replace(recipe, refresh=isinstance(recipe.adapt, Validated))
    if isinstance(recipe.memory, InvertedAnchors | InvertedLabels):
        # They are small beside the training data, and a user may want to look at them.
        return replace(recipe, memory=replace(recipe.memory, with_signals=True))
    return recipe


def _adaptation(settings: Mapping[str, Any]) -> Adaptation:
    steps, lr, weight = (settings[name] for name in ("finetune_steps", "finetune_lr", "replay_weight"))
    if steps is None and settings["method"] not in ("finetune", "nc-fscil"):
        from_mean = settings["new_prototype"] == "mean"
        return Validated(lrs=(lr,), from_mean=from_mean, refresh=True, replay_weight=weight)
    return Finetune((FINETUNE_STEPS if steps is None else steps,), lr, replay_weight=weight)


def geometry_of(asked: Geometry | None, n_chans: int, n_times: int) -> Geometry:
    """Return the sizes asked for, if they fit the signals, or sizes derived from them."""
    check_order(n_chans, n_times, (asked.n_chans, asked.n_times) if asked else None)
    geometry = asked or replace(Geometry.for_shape(n_chans, n_times), depth=DEPTH, dropout=DROPOUT)
    if (geometry.n_chans, geometry.n_times) != (n_chans, n_times):
        raise ValueError(
            f"geometry is for {geometry.n_chans} channels of {geometry.n_times} samples, "
            f"signals have {n_chans} of {n_times}; leave it out, and it is derived from them"
        )
    check_geometry(geometry)
    return geometry


def rate_of(asked: float | None, found: float | None) -> float | None:
    """Return the sampling rate in Hz, as told or as found, None where nobody knows."""
    rate = found if asked is None else float(asked)
    if rate is not None and not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise ValueError(f"a rate of {rate:g} Hz is beyond {LOWEST_RATE:g} to {HIGHEST_RATE:g} Hz")
    return rate


def names_of(how: Preprocessing | None, found: Sequence[str] | None, n_chans: int) -> tuple[str, ...] | None:
    """Return the channels' names, from the signals themselves or from what is known of their recordings."""
    told = how.ch_names if how else None
    if told and len(told) != n_chans:
        raise ValueError(f"preprocessing names {len(told)} channels, signals have {n_chans}")
    check_names(told or found or ())
    return told or (tuple(found) if found else None)


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """Return a seed, drawn where none was given."""
    if random_state is None:
        return secrets.randbits(31)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    return int(random_state)


def training_of(epochs: int | None, batch_size: int, lr: float, n_samples: int) -> Training:
    """Return how to train: for so many epochs, or as far as windows kept aside say; ``lr`` is the highest."""
    plan = Training(epochs or EPOCHS, batch_size, lr, schedule=OneCycle(), gain=GAIN)
    if epochs is not None:
        return plan
    n_batches = -(-n_samples // batch_size)
    least, most = -(-STEPS[0] // n_batches), max(1, STEPS[-1] // n_batches)
    n_epochs = min(max(EPOCHS, least), most)
    # While the rate is high the windows kept aside are told badly for a while; that is no reason to end.
    return replace(plan, epochs=n_epochs, patience=max(3, n_epochs // 3))
