"""The estimator's parameters: checked together, turned into a method, and what that will cost."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError

from anchorinv.backbones import architecture_for, as_backbone, problem_of
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion
from anchorinv.core.minimise import OneCycle
from anchorinv.core.networks import DEVICE_PATTERN, DEVICE_WORDS, MIN_TIMES, Geometry
from anchorinv.core.privacy import Privacy, private
from anchorinv.core.prototypes import Placement, mean_of_shots, random_rows
from anchorinv.core.recipe import BaseSpec, Recipe
from anchorinv.core.registry import METHODS
from anchorinv.core.rehearsal import FOLDS
from anchorinv.core.training import SHARE, Adaptation, CrossValidatedFinetune, Finetune, Training
from anchorinv.core.types import Batch, stream
from anchorinv.errors import check_names
from anchorinv.persistence.format import SettingsFacts, validate_facts
from anchorinv.persistence.limits import (
    HIGHEST_RATE,
    LOWEST_RATE,
    MOST_ANCHORS,
    MOST_BATCH,
    MOST_STEPS,
    SEEDS,
    Architecture,
    check_geometry,
    inversion_batch,
    network_of,
)
from anchorinv.progress import has_listener, listening, tell
from anchorinv.signal.preprocessing import AS_GIVEN, Preprocessing
from anchorinv.terminal import duration
from anchorinv.validation import SWAP, Signals, warn

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


_SEED = Annotated[int, Field(ge=SEEDS[0], le=SEEDS[-1])] | InstanceOf[np.random.RandomState] | None
_RATE = f"a number above 0, at most {1e30:g}"


def _steps(least: int, most: int = MOST_STEPS) -> str:
    return f"a whole number, {least} or more, at most {most}"


#: What parameters must be, in words; their types are those of a file's header.
_WORDS = {
    "epochs": _steps(1),
    "batch_size": _steps(1, MOST_BATCH),
    "n_anchors": _steps(1, MOST_ANCHORS),
    "inversion_steps": _steps(0),
    "finetune_steps": _steps(0),
    **dict.fromkeys(("lr", "inversion_lr", "finetune_lr"), _RATE),
    "per_channel": "True or False",
    "replay_weight": "a number, 0 or more",
    "new_prototype": "'mean' or 'random'",
    "network": "one of never, rehearse, always",
    "reject": "a share between 0 and 1, such as 0.05, or None",
}
#: Types and words of parameters that a file stores in another form, or not at all.
_OTHERS: dict[str, tuple[Any, str]] = {
    "random_state": (_SEED, "a whole number between -2**63 and 2**64, a RandomState or None"),
    "verbose": (bool | int, "True or False"),
    "sfreq": (
        Annotated[float, Field(gt=0, le=HIGHEST_RATE)] | None,
        f"a number above 0, at most {HIGHEST_RATE:g}",
    ),
    "reject_label": (str | int | None, "text, a whole number or None"),
    "device": (Annotated[str, Field(pattern=f"^({DEVICE_PATTERN})$")], DEVICE_WORDS),
    "group_by": (str | None, "the name of a column, or None"),
    "geometry": (InstanceOf[Geometry] | None, "a Geometry or None"),
    "preprocessing": (InstanceOf[Preprocessing] | None, "a Preprocessing or None"),
    "privacy": (InstanceOf[Privacy] | Literal["aggregate"] | None, "'aggregate', a Privacy or None"),
}
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
_FIELDS = SettingsFacts.model_fields
_SETTINGS = {
    name: (TypeAdapter(kind, config=_STRICT), words)
    for name, (kind, words) in {
        **{name: (_FIELDS[name].rebuild_annotation(), words) for name, words in _WORDS.items()},
        **_OTHERS,
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
        validate_facts(Preprocessing, preprocessing)


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
        "inversion": replace(inversion, chunk=inversion_batch(geometry, inversion.chunk)),
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


class Resolved(NamedTuple):
    """What parameters leave to the signals."""

    geometry: Geometry
    architecture: Architecture  # what networks are built from: the geometry, or another backbone
    ch_names: tuple[str, ...] | None
    sfreq: float | None


def resolve(settings: Mapping[str, Any], signals: Signals, n_classes: int) -> Resolved:
    """Return sizes, network, channels and rate, as the parameters or else the signals say."""
    _, n_chans, n_times = signals.values.shape
    preprocessing: Preprocessing = settings["preprocessing"] or AS_GIVEN
    geometry = resolve_geometry(settings["geometry"], n_chans, n_times)
    ch_names = _ch_names(preprocessing, signals.ch_names, n_chans)
    sfreq = _rate(settings["sfreq"], preprocessing.sfreq or signals.sfreq)
    return Resolved(geometry, _architecture(settings, geometry, n_classes, sfreq), ch_names, sfreq)


def resolve_geometry(chosen: Geometry | None, n_chans: int, n_times: int) -> Geometry:
    """Return the chosen sizes, if they fit the signals, or sizes derived from them."""
    if chosen is None and n_times < MIN_TIMES <= n_chans:
        raise ValueError(
            f"signals have {n_chans} channels of {n_times} samples, and {MIN_TIMES} samples at least are "
            f"needed; use longer windows or, if channels come last, {SWAP}"
        )
    geometry = chosen or replace(Geometry.for_shape(n_chans, n_times), depth=DEPTH, dropout=DROPOUT)
    if (shape := (geometry.n_chans, geometry.n_times)) != (n_chans, n_times):
        remedy = SWAP if shape == (n_times, n_chans) else "leave it out, and it is derived from them"
        raise ValueError(
            f"geometry is for {shape[0]} channels of {shape[1]} samples, signals have {n_chans} of "
            f"{n_times}; {remedy}"
        )
    check_geometry(geometry)
    return geometry


def _architecture(
    settings: Mapping[str, Any], geometry: Geometry, n_classes: int, sfreq: float | None
) -> Architecture:
    backbone = as_backbone(settings["backbone"])
    spec, network = METHODS[settings["method"]], settings["network"]
    if backbone is None:
        return geometry
    if not (spec.network or ("network" in spec.options and network != "never")):
        method = f"{spec.name} with network='never'" if "network" in spec.options else spec.name
        warn(f"{method} has no network, so the backbone {backbone.name} is not used")
        return geometry
    architecture = architecture_for(backbone, geometry, n_classes, sfreq)
    check_geometry(architecture)
    return architecture


def _rate(chosen: float | None, of_signals: float | None) -> float | None:
    rate = of_signals if chosen is None else float(chosen)
    if rate is not None and not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise ValueError(f"sfreq (={rate:g} Hz) must be from {LOWEST_RATE:g} to {HIGHEST_RATE:g} Hz")
    return rate


def _ch_names(
    preprocessing: Preprocessing, of_signals: Sequence[str] | None, n_chans: int
) -> tuple[str, ...] | None:
    names = preprocessing.ch_names
    if names and len(names) != n_chans:
        raise ValueError(f"preprocessing names {len(names)} channels, signals have {n_chans}")
    check_names(names or of_signals or ())
    return names or (tuple(of_signals) if of_signals else None)


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


#: Seconds below which no forecast is shown.
MIN_FORECAST = 5.0
#: Seconds that closed forms take for each value of the windows, and for each window if settings are
#: rehearsed; on a core on which the product of two 512 x 512 matrices takes the third number.
PER_VALUE, PER_WINDOW, PRODUCT = 0.33e-6, 2.3e-3, 3.0e-3
#: Cost of a sample in an inversion step, which has no weight gradients, relative to a training step.
INVERTING = 0.4
#: Memory in addition to the data: copies of the windows during standardisation, and features.
BYTES_PER_VALUE, BYTES_PER_WINDOW = 12, 20_000

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cost of a training.

    Examples
    --------
    >>> print(Forecast(40.0, 600.0, 250_000_000))
    about 40 s, up to 10 min more only if classical features fail, and 250 MB of memory beside the data
    """

    seconds: float  # of everything that is computed in any case, without early stopping
    maybe: float  # more, of networks that are trained only if needed
    n_bytes: int  # of memory beside the data

    def __str__(self) -> str:
        more = f", up to {duration(self.maybe)} more only if classical features fail," if self.maybe else ""
        size = f"{self.n_bytes / 1e9:.1f} GB" if self.n_bytes >= 1e9 else f"{self.n_bytes / 1e6:.0f} MB"
        return f"about {duration(self.seconds)}{more} and {size} of memory beside the data"


def announce(recipe: Recipe, samples: Batch, *, clock: Clock | None = None) -> None:
    """Report the forecast of a training to progress listeners, if it takes more than a few seconds."""
    if has_listener():
        forecast = forecast_of(recipe, samples, clock=clock)
        if forecast.seconds + forecast.maybe >= MIN_FORECAST:
            shape = " x ".join(map(str, samples.values.shape[1:]))
            tell(f"training on {len(samples)} windows of {shape}: {forecast}")


def forecast_of(recipe: Recipe, samples: Batch, *, clock: Clock | None = None) -> Forecast:
    """Forecast the training of a method on base signals (n, n_chans, n_times).

    A few steps of a network are timed on some of the signals and discarded; no random state changes. The
    number of steps assumes no early stopping. Closed forms take the times measured for the default method.
    All are times on a machine that does nothing else.
    """
    spec: Any = recipe.base_spec
    n, n_values = len(samples), samples.values[:1].numel()
    n_bytes = BYTES_PER_VALUE * n * n_values + BYTES_PER_WINDOW * n
    if isinstance(spec, BaseSpec):
        step, inversion = step_time(spec, samples, clock), getattr(recipe.memory, "inversion", None)
        n_kept = recipe.memory.n_kept(samples.labels.bincount().tolist())
        n_inverted = n_kept * inversion.steps if inversion else 0  # samples times steps, at most
        inverting = INVERTING * step / spec.training.batch_size * n_inverted
        return Forecast(step * n_steps(spec, n) + inverting, 0.0, n_bytes)
    rehearsed = PER_WINDOW if getattr(spec, "rehearsed", False) else 0.0
    seconds = n * (PER_VALUE * n_values + rehearsed) * _product_time(clock) / PRODUCT
    network = getattr(spec, "network", None)
    if not isinstance(network, BaseSpec):
        return Forecast(seconds, 0.0, n_bytes)
    steps = FOLDS * n_steps(network, n - n // FOLDS)
    networks = step_time(network, samples, clock) * steps
    always = bool(getattr(spec, "always", False))
    return Forecast(seconds + always * networks, 0.0 if always else networks, n_bytes)


def step_time(spec: BaseSpec, samples: Batch, clock: Clock | None = None) -> float:
    """Return the seconds of a step of base training, from fits of one step and of three."""
    if clock is None:
        # Three steps are so short that other programs on the cores would be most of the time on the wall.
        clock = time.thread_time if spec.device == "cpu" else time.perf_counter
    size = spec.training.batch_size
    # Sorted by class, so that at least two classes are in it.
    order = samples.labels.argsort()
    some = order[torch.linspace(0, len(samples) - 1, 3 * size).round().long()]
    rng = stream(0, "trial")
    trial = replace(spec, training=replace(spec.training, epochs=1, patience=None, converged=None))
    times = [clock()]
    with listening(lambda tick: None):
        for part in (some[::3], some[::3], some):  # the first is a warm-up
            trial.fit(samples[part], rng=rng)
            times.append(clock())
    _, one, three = (after - before for before, after in pairwise(times))
    # On a busy machine a single step can take longer than three.
    return (three - one) / 2 if three > one else three / 3


def n_steps(spec: BaseSpec, n_samples: int) -> int:
    """Return the number of steps of base training, without early stopping."""
    learned = n_samples - int(SHARE * n_samples) if spec.training.patience else n_samples
    return spec.training.optimiser(-(-learned // spec.training.batch_size)).steps


def _product_time(clock: Clock | None) -> float:
    clock, matrix = clock or time.thread_time, torch.ones(512, 512)
    began = clock()
    for _ in range(10):
        _ = matrix @ matrix
    return (clock() - began) / 10
