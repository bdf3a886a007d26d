"""The estimator's parameters: checked together, and turned into the method they describe."""

import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError

from anchorinv.backbones import architecture_for, as_backbone, problem_of
from anchorinv.core.adaptation import Adaptation, CrossValidatedFinetune, Finetune
from anchorinv.core.devices import PATTERN, WORDS
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion
from anchorinv.core.minimise import OneCycle
from anchorinv.core.networks import Geometry
from anchorinv.core.privacy import Privacy, private
from anchorinv.core.prototypes import Placement, mean_of_shots, random_rows
from anchorinv.core.recipe import BaseSpec, Recipe
from anchorinv.core.registry import METHODS
from anchorinv.core.training import Training
from anchorinv.persistence.format import parsed
from anchorinv.persistence.limits import (
    HIGHEST_RATE,
    LOWEST_RATE,
    MOST_ANCHORS,
    MOST_BATCH,
    MOST_STEPS,
    SEEDS,
    Architecture,
    check_geometry,
    check_names,
    inverted_at_once,
    network_of,
)
from anchorinv.signal.preprocessing import Preprocessing
from anchorinv.validation import check_order

PLACEMENTS: dict[str, Placement] = {"mean": mean_of_shots, "random": random_rows}

#: Epochs by default, or as many as keep the number of steps within these bounds: a network needs more epochs
#: on few windows and fewer on many.
EPOCHS = 24
STEPS = range(300, 10_001)

#: Random gain of channels in training (data augmentation).
GAIN = 0.3

#: Of networks whose sizes are derived from the signals: shallower than the paper's, with half its dropout;
#: trained in a quarter of the time to the same scores (docs/method.md).
DEPTH, DROPOUT = 2, 0.25

#: For methods that cannot choose by cross-validation, as they replay nothing or have no prototypes.
FINETUNE_STEPS = 100


def _wanted(kind: Any, words: str) -> tuple[TypeAdapter[Any], str]:
    return TypeAdapter(kind, config=ConfigDict(strict=True, arbitrary_types_allowed=True)), words


def _whole(least: int, most: int) -> tuple[Any, str]:
    return Annotated[int, Field(ge=least, le=most)], f"a whole number, {least} or more, at most {most}"


def _above_zero(most: float) -> tuple[Any, str]:
    return Annotated[float, Field(gt=0, le=most, allow_inf_nan=False)], f"a number above 0, at most {most:g}"


def _or_none(kind: Any, words: str) -> tuple[Any, str]:
    return kind | None, words


_SEED = Annotated[int, Field(ge=SEEDS[0], le=SEEDS[-1])] | InstanceOf[np.random.RandomState] | None
_WEIGHT = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]

#: The type of each parameter, for pydantic and in words for messages.
_SETTINGS = {
    name: _wanted(*kind)
    for name, kind in {
        "random_state": (_SEED, "a whole number between -2**63 and 2**64, a RandomState or None"),
        "per_channel": (bool, "True or False"),
        "verbose": (bool | int, "True or False"),
        "epochs": _or_none(*_whole(1, MOST_STEPS)),
        "batch_size": _whole(1, MOST_BATCH),
        "n_anchors": _whole(1, MOST_ANCHORS),
        "inversion_steps": _whole(0, MOST_STEPS),
        "finetune_steps": _or_none(*_whole(0, MOST_STEPS)),
        "lr": _above_zero(1e30),
        "inversion_lr": _above_zero(1e30),
        "finetune_lr": _above_zero(1e30),
        "sfreq": _or_none(*_above_zero(HIGHEST_RATE)),
        "replay_weight": (_WEIGHT, "a number, 0 or more"),
        "new_prototype": (Literal["mean", "random"], "'mean' or 'random'"),
        "network": (Literal["never", "rehearse", "always"], "one of never, rehearse, always"),
        "reject": (
            Annotated[float, Field(gt=0, lt=1)] | None,
            "a share between 0 and 1, such as 0.05, or None",
        ),
        "reject_label": (str | int | None, "text, a whole number or None"),
        "device": (Annotated[str, Field(pattern=f"^({PATTERN})$")], WORDS),
        "group_by": (str | None, "the name of a column, or None"),
        "geometry": (InstanceOf[Geometry] | None, "a Geometry or None"),
        "preprocessing": (InstanceOf[Preprocessing] | None, "a Preprocessing or None"),
        "privacy": (InstanceOf[Privacy] | Literal["aggregate"] | None, "'aggregate', a Privacy or None"),
    }.items()
}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse invalid parameters; one error names all of them."""
    problems = []
    for name, (kind, words) in _SETTINGS.items():
        value = settings[name]
        try:
            kind.validate_python(value.item() if isinstance(value, np.generic) else value)
        except ValidationError:
            problems.append(f"{name} (={value!r}) must be {words}")
    method = settings["method"]
    if not (isinstance(method, str) and method in METHODS):
        near = get_close_matches(str(method).lower(), METHODS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        problems.append(f"method (={method!r}) must be one of {', '.join(METHODS)}{hint}")
    if wrong := problem_of(settings["backbone"]):
        problems.append(f"backbone (={settings['backbone']!r:.60}) {wrong}")
    elif as_backbone(settings["backbone"]) is not None and settings["geometry"] is not None:
        problems.append(
            "geometry applies to this package's network only, and another backbone is given; leave it out"
        )
    if problems:
        raise ValueError("; ".join(problems))
    if (preprocessing := settings["preprocessing"]) is not None:
        parsed(Preprocessing, preprocessing)


def recipe_of(
    settings: Mapping[str, Any], geometry: Architecture, n_samples: int, device: str = "cpu"
) -> Recipe:
    """Return the method that the parameters describe, on a device; each method uses those it knows."""
    training = training_of(settings["epochs"], settings["batch_size"], settings["lr"], n_samples)
    base_spec = BaseSpec(network_of(geometry), Cosine.start, training, device)
    spec = METHODS[settings["method"]]
    inversion = Inversion.lbfgs(settings["inversion_steps"], lr=settings["inversion_lr"])
    options = {
        "start": PLACEMENTS[settings["new_prototype"]],
        "adapt": _adaptation(settings),
        "per_class": settings["n_anchors"],
        "network": settings["network"],
        "inversion": replace(inversion, chunk=inverted_at_once(geometry, inversion.chunk)),
    }
    recipe: Recipe = spec.build(base_spec, **{name: options[name] for name in spec.options & set(options)})
    recipe = replace(recipe, refresh=getattr(recipe.adapt, "chooses_steps", False))
    recipe = private(recipe, settings["privacy"])
    if spec.memory.inverts:
        # They are small compared with the training data, and a user may want to inspect them.
        memory: Any = recipe.memory
        return replace(recipe, memory=replace(memory, with_signals=True))
    return recipe


def _adaptation(settings: Mapping[str, Any]) -> Adaptation:
    steps, lr, weight = (settings[name] for name in ("finetune_steps", "finetune_lr", "replay_weight"))
    if steps is None and METHODS[settings["method"]].replays:
        from_mean = settings["new_prototype"] == "mean"
        return CrossValidatedFinetune(lrs=(lr,), from_mean=from_mean, refresh=True, replay_weight=weight)
    return Finetune((FINETUNE_STEPS if steps is None else steps,), lr, replay_weight=weight)


def resolve_geometry(asked: Geometry | None, n_chans: int, n_times: int) -> Geometry:
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


def resolve_backbone(
    settings: Mapping[str, Any], geometry: Geometry, n_classes: int, sfreq: float | None
) -> Architecture:
    """Return what networks are built from: the geometry, or another backbone, built once as a check."""
    backbone = as_backbone(settings["backbone"])
    spec, network = METHODS[settings["method"]], settings["network"]
    if backbone is None:
        return geometry
    if not (spec.network or ("network" in spec.options and network != "never")):
        how = f"{spec.name} with network='never'" if "network" in spec.options else spec.name
        warnings.warn(f"{how} has no network, so the backbone {backbone.name} is not used", stacklevel=3)
        return geometry
    made = architecture_for(backbone, geometry, n_classes, sfreq)
    check_geometry(made)
    return made


def resolve_rate(asked: float | None, of_signals: float | None) -> float | None:
    """Return the sampling rate in Hz, as passed or of the signals; None where unknown."""
    rate = of_signals if asked is None else float(asked)
    if rate is not None and not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise ValueError(f"sfreq (={rate:g} Hz) must be from {LOWEST_RATE:g} to {HIGHEST_RATE:g} Hz")
    return rate


def resolve_ch_names(
    how: Preprocessing | None, of_signals: Sequence[str] | None, n_chans: int
) -> tuple[str, ...] | None:
    """Return the channel names, of the signals or of their preprocessing."""
    given = how.ch_names if how else None
    if given and len(given) != n_chans:
        raise ValueError(f"preprocessing names {len(given)} channels, signals have {n_chans}")
    check_names(given or of_signals or ())
    return given or (tuple(of_signals) if of_signals else None)


def resolve_seed(random_state: int | np.random.RandomState | None) -> int:
    """Return a seed, drawn if none was passed."""
    if random_state is None:
        return secrets.randbits(31)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    return int(random_state)


def training_of(epochs: int | None, batch_size: int, lr: float, n_samples: int) -> Training:
    """Return how to train: a fixed number of epochs, or early stopping; ``lr`` is the maximum rate."""
    plan = Training(epochs or EPOCHS, batch_size, lr, schedule=OneCycle(), gain=GAIN)
    if epochs is not None:
        return plan
    n_batches = -(-n_samples // batch_size)
    least, most = -(-STEPS[0] // n_batches), max(1, STEPS[-1] // n_batches)
    n_epochs = min(max(EPOCHS, least), most)
    # While the rate is high, the held-out loss is high for a while; that is no reason to stop.
    return replace(plan, epochs=n_epochs, patience=max(3, n_epochs // 3))
