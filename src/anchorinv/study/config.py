"""The configuration of a study: every key with its type and default; hashes of settings and arrays."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_serializer,
    model_validator,
)

from anchorinv.backbones import OWN, problem_of
from anchorinv.core.inversion import Inversion
from anchorinv.core.networks import Geometry
from anchorinv.core.prototypes import SELECTIONS
from anchorinv.core.registry import METHODS
from anchorinv.core.training import CrossValidatedFinetune
from anchorinv.signal.preprocessing import facts_of, preprocessing_from
from anchorinv.study.runner import Protocol

#: Keys that were renamed, by their dotted names; the old ones are still read.
RENAMED_KEYS = {"inversion.swift": "inversion.lbfgs"}

Count = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0, lt=10)]
Beta = Annotated[float, Field(ge=0, lt=1)]
ClassName = Annotated[int, Field(ge=0)] | str


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the closest word, or list all."""
    words = list(known)
    close = get_close_matches(word, words, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(words)}"


def _one_of(name: str, known: Mapping[str, Any] | Iterable[str], what: str) -> str:
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}; {nearest(name, known)}")
    return name


class _Table(BaseModel):
    """A table of a config: immutable, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Table):
    """The prepared data set; it is checked against these values.

    Parameters
    ----------
    name : str, default="own"
        Its name in ``--data NAME=FOLDER``.
    kind : {"eeg", "emg", "ecg"}, default="eeg"
        Which synthetic recordings replace it at small scales; for ECG those of EMG.
    sfreq : float or None, default=None
        Sampling rate in Hz that it must have.
    filtered : bool, default=False
        Whether it must have been filtered, by any filter.
    preprocessing : dict or None, default=None
        Preprocessing that it must have, with the keys of prepared folders and model files.
    """

    name: str = "own"
    kind: Literal["eeg", "emg", "ecg"] = "eeg"
    sfreq: Annotated[float, Field(gt=0)] | None = None
    filtered: bool = False
    preprocessing: dict[str, Any] | None = None

    @field_validator("preprocessing")
    @classmethod
    def _known(cls, facts: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if facts is None else facts_of(preprocessing_from(facts))

    @model_serializer(mode="wrap")
    def _as_before(self, facts: Callable[["DataConfig"], dict[str, Any]]) -> dict[str, Any]:
        """Leave out later keys that are not set, so that hashes of earlier runs stay the same."""
        return {key: value for key, value in facts(self).items() if (key, value) != ("preprocessing", None)}


class SyntheticConfig(_Table):
    """Synthetic recordings in place of a data set; each subject's last session is the test part.

    A session has ``n_per_class`` windows of each class; ``difficulty`` starts at 0, easy.
    """

    n_subjects: Count = 2
    n_sessions: Annotated[int, Field(ge=2)] = 2
    n_per_class: Count = 10
    difficulty: Annotated[float, Field(ge=0)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 5


class ProtocolConfig(_Table):
    """The protocol: classes, sessions, shots, trials, seeds and subjects.

    Parameters
    ----------
    base_classes, sessions : tuple of int or str
        Base classes, and new classes in order, by number or name.
    shots, trials, ways : int
        As in :class:`~anchorinv.study.runner.Protocol`.
    seeds : tuple of int, default=(5,)
        One base model for each; everything random is drawn from it.
    per_subject : bool, default=False
        Study each subject separately.
    leave_one_out : bool, default=False
        Test on each subject with a model trained on all others.
    """

    base_classes: tuple[ClassName, ...]
    sessions: tuple[ClassName, ...]
    shots: Count = 10
    trials: Count = 100
    ways: Count = 1
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (5,)
    per_subject: bool = False
    leave_one_out: bool = False

    @model_validator(mode="after")
    def _possible(self) -> "ProtocolConfig":
        if len(self.base_classes) < 2:
            raise ValueError(f"base_classes must name two classes at least, got {list(self.base_classes)}")
        if both := sorted({str(n) for n in self.base_classes} & {str(n) for n in self.sessions}):
            raise ValueError(f"class {both[0]} is both a base and a new class; name it once")
        numbers = {name: i for i, name in enumerate(dict.fromkeys([*self.base_classes, *self.sessions]))}
        base, new = (tuple(map(numbers.__getitem__, names)) for names in (self.base_classes, self.sessions))
        Protocol(base, new, self.shots, self.trials, ways=self.ways)
        if self.per_subject and self.leave_one_out:
            raise ValueError("per_subject and leave_one_out are two kinds of study; choose one")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} are not distinct; name each once")
        return self


class StandardiseConfig(_Table):
    """Mean and standard deviation by which signals are standardised, one for all or for each channel.

    ``by`` "base" takes the training windows of the base classes, "paper" of all, future ones included.
    """

    by: Literal["base", "paper"] = "base"
    per_channel: bool = False


class TrainingConfig(_Table):
    """Training in the base session.

    Parameters
    ----------
    epochs, batch_size, lr, betas
        Of Adam.
    class_weights : bool or tuple of int, default=False
        Weigh classes inversely to their number of windows, or to these sizes, one per base class.
    schedule : {"constant", "one-cycle"}, default="constant"
        Of the learning rate; constant in the paper.
    """

    epochs: Count = 1500
    batch_size: Count = 72
    lr: Rate = 2e-4
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    class_weights: bool | tuple[Count, ...] = False
    schedule: Literal["constant", "one-cycle"] = "constant"


class AnchorConfig(_Table):
    """Anchors: what is kept of each class.

    Parameters
    ----------
    per_class : int, default=50
        Number of anchors, samples or labels.
    select : str, default="random"
        Which samples become anchors.
    measure : {"cosine", "euclidean"}, default="cosine"
        Distance to the prototype where ``select`` needs one; the paper does not say which.
    """

    per_class: Count = 50
    select: str = "random"
    measure: Literal["cosine", "euclidean"] = "cosine"

    @field_validator("select")
    @classmethod
    def _known(cls, name: str) -> str:
        return _one_of(name, SELECTIONS, "selection")


class InversionConfig(_Table):
    """Inversion of replay signals; other defaults are those of ``core.inversion.Inversion``.

    Parameters
    ----------
    lbfgs : bool, default=False
        Take L-BFGS steps and stop each sample by its own error curve. Off in the paper; labels are inverted
        by Adam in any case. Formerly called ``swift``.
    smoothness : float, default=0.0
        Weight of a penalty on second differences.
    noise : {"trial", "shared"}, default="trial"
        Whether new classes start from noise of their trial, or from the same in all trials, as in the
        authors' runs.
    new_batch : int, default=100
        Number of samples to which Adam's eps is scaled where new classes are inverted.
    l2 : {"square", "norm"}, default="square"
        Whether DeepDream and DeepInv keep signals small by their mean square or by their norm.
    """

    steps: Steps = Inversion().steps
    lr: Rate = Inversion().lr
    betas: tuple[Beta, Beta] = Inversion().betas
    from_zeros: bool = Inversion().from_zeros
    chunk: Count = Inversion().chunk
    lbfgs: bool = Field(default=Inversion().use_lbfgs, validation_alias=AliasChoices("lbfgs", "swift"))
    smoothness: Annotated[float, Field(ge=0)] = 0.0
    noise: Literal["trial", "shared"] = "trial"
    new_batch: Count = Inversion().new_batch
    l2: Literal["square", "norm"] = "square"


class FinetuningConfig(_Table):
    """Finetuning in the incremental sessions.

    Parameters
    ----------
    start : {"mean", "random"}, default="random"
        Where new prototypes start: at the mean of their shots, or at random.
    lr, betas
        Of Adam.
    replay_weight : float, default=1.0
        Of the loss on replayed samples.
    scope : {"last-block", "all"}, default="last-block"
        What the method ``finetune`` trains in addition to its head.
    steps : dict of str to tuple of int
        Steps in each session by method; the last number holds for all later sessions.
    select : {"fixed", "validation"}, default="fixed"
        With "validation", methods that replay choose the number of steps and the rate in each session, from
        ``lengths`` and ``lrs``, by cross-validation over shots and replay. Off in the paper.
    lengths, lrs, folds
        The candidates, and the number of folds.
    refresh : bool, default=False
        Let old prototypes follow their replay where the network has moved. Off in the paper.
    """

    start: Literal["mean", "random"] = "random"
    lr: Rate = 2e-5
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    replay_weight: Annotated[float, Field(ge=0)] = 1.0
    scope: Literal["last-block", "all"] = "last-block"
    steps: dict[str, Annotated[tuple[Steps, ...], Field(min_length=1)]] = Field(default_factory=dict)
    select: Literal["fixed", "validation"] = "fixed"
    lengths: Annotated[tuple[Steps, ...], Field(min_length=1)] = CrossValidatedFinetune().lengths
    lrs: Annotated[tuple[Rate, ...], Field(min_length=1)] = CrossValidatedFinetune().lrs
    folds: Annotated[int, Field(ge=2)] = CrossValidatedFinetune().folds
    refresh: bool = False

    @field_validator("steps")
    @classmethod
    def _known(cls, steps: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        finetuned = [name for name, spec in METHODS.items() if spec.finetunes]
        for name in steps:
            _one_of(name, finetuned, "method with finetuning steps")
        return steps


class Experiment(_Table):
    """One variant of a study, complete.

    Parameters
    ----------
    data, synthetic, geometry, protocol, standardise, training, anchors, inversion, finetuning
        The tables of a config; without ``geometry`` the network's sizes follow from the data.
    backbone : str, default="conformer"
        The network, or a model of braindecode by its name.
    methods : tuple of str
        Names of registered methods; by default those of the paper and its appendix.
    threads : int, default=2
        Of each process.
    not_published : tuple of str, default=()
        Dotted keys whose values the paper does not state.
    """

    data: DataConfig = DataConfig()
    synthetic: SyntheticConfig | None = None
    geometry: Geometry | None = None
    backbone: str = OWN
    protocol: ProtocolConfig
    standardise: StandardiseConfig = StandardiseConfig()
    training: TrainingConfig = TrainingConfig()
    anchors: AnchorConfig = AnchorConfig()
    inversion: InversionConfig = InversionConfig()
    finetuning: FinetuningConfig = FinetuningConfig()
    methods: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        default_factory=lambda: tuple(name for name, spec in METHODS.items() if spec.published)
    )
    threads: Count = 2
    not_published: tuple[str, ...] = ()

    @field_validator("methods")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        methods = tuple(map(METHODS.name_of, names))
        for name in methods:
            _one_of(name, METHODS, "method")
        if len(set(methods)) < len(methods):
            raise ValueError(f"methods {', '.join(methods)} are not distinct; name each once")
        return methods

    @field_validator("backbone")
    @classmethod
    def _a_network(cls, name: str) -> str:
        if wrong := problem_of(name):
            raise ValueError(f"{name!r} {wrong}")
        return name

    @field_validator("not_published")
    @classmethod
    def _by_new_keys(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(RENAMED_KEYS.get(key, key) for key in keys)

    @model_validator(mode="after")
    def _complete(self) -> "Experiment":
        missing = [n for n in self.methods if METHODS[n].finetunes and n not in self.finetuning.steps]
        if missing:
            raise ValueError(
                f"finetuning.steps lacks {', '.join(missing)}; add {missing[0]} = [100], say, or "
                f"drop the method"
            )
        weights, n_base = self.training.class_weights, len(self.protocol.base_classes)
        if isinstance(weights, tuple) and len(weights) != n_base:
            raise ValueError(f"training.class_weights has {len(weights)} sizes for {n_base} base classes")
        keys = dotted(self.model_dump())
        for key in self.not_published:
            if key not in keys:
                raise ValueError(f"not_published names {key!r}, which is not a key; {nearest(key, keys)}")
        return self


class Study(_Table):
    """A table or figure: its variants by name; a study without variants has one, called ``""``.

    ``name`` is that of the config file, ``title`` is printed above tables, ``paper`` is the table or figure
    of the paper; ``scale`` is how far it was scaled down, ``reference`` the method that others are tested
    against.
    """

    name: str
    title: str
    paper: str = ""
    scale: Literal["full", "tiny", "smoke"] = "full"
    reference: str = "anchorinv"
    variants: dict[str, Experiment]

    @field_validator("reference")
    @classmethod
    def _known(cls, name: str) -> str:
        return _one_of(METHODS.name_of(name), METHODS, "method")


def dotted(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to dotted keys, as ``{"a": {"b": 1}}`` to ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{prefix}{key}"
        flat |= dotted(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return flat


_SELECTIONS = ("random_anchors", "Closest", "RandomClosest", "KMeans")
_MEASURES = ("cosine_distance", "euclidean_distance")
_PRIORS = ("Prior", "energy", "length", "roughness", "total_variation", "statistics")
#: Former names of classes, functions and fields by their present ones, so that hashes, and what was cached
#: under them, stay valid.
FORMER_DOTTED_NAMES = {
    "anchorinv.core.recipe.BaseSpec": "anchorinv.core.recipe.Foundation",
    "anchorinv.core.memory.NoMemory": "anchorinv.core.memory.Nothing",
    "anchorinv.core.memory.InvertedAnchors": "anchorinv.core.inverted.InvertedAnchors",
    "anchorinv.core.memory.InvertedLabels": "anchorinv.core.inverted.InvertedLabels",
    "anchorinv.core.ridge.RidgeStatistics": "anchorinv.core.ranpac.RidgeStatistics",
    "anchorinv.core.networks.Geometry": "anchorinv.core.geometry.Geometry",
    "anchorinv.core.minimise.OneCycle": "anchorinv.core.schedule.OneCycle",
    "anchorinv.core.minimise.EarlyStopping": "anchorinv.core.descend.Plateau",
    **{
        f"anchorinv.core.prototypes.{name}": f"anchorinv.core.anchors.{name}"
        for name in _SELECTIONS + _MEASURES
    },
    **{f"anchorinv.core.inversion.{name}": f"anchorinv.core.priors.{name}" for name in _PRIORS},
    "anchorinv.core.inversion.Inversion.use_lbfgs": "curvature",
}


def described(value: Any) -> Any:
    """Return settings as plain JSON values: data classes by their fields, functions by their names.

    Examples
    --------
    >>> from anchorinv.core.training import NoAdaptation
    >>> described(partial(round, ndigits=2))
    {'call': 'builtins.round', 'args': [], 'options': {'ndigits': 2}}
    >>> described(NoAdaptation())
    {'type': 'anchorinv.core.training.NoAdaptation'}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, dict):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, partial):
        options = described(dict(sorted(value.keywords.items())))
        return {"call": described(value.func), "args": described(value.args), "options": options}
    if is_dataclass(value) and not isinstance(value, type):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        settings = {
            FORMER_DOTTED_NAMES.get(f"{kind}.{field.name}", field.name): described(getattr(value, field.name))
            for field in fields(value)
            # A setting that was added later is left out at its default, so that hashes stay the same.
            if not ("later" in field.metadata and getattr(value, field.name) == field.default)
        }
        return {"type": described(type(value)), **settings}
    name = getattr(value, "__qualname__", None)
    if name is None or "<" in name:
        raise TypeError(
            f"{value!r} has no stable hash; use a function or a data class with a name of its own"
        )
    dotted = f"{value.__module__}.{name}"
    return FORMER_DOTTED_NAMES.get(dotted, dotted)


def digest(*parts: Any) -> str:
    """Return a short hash of settings and arrays, equal on all machines."""
    hasher = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().numpy()
        if isinstance(part, np.ndarray):
            hasher.update(f"{part.dtype.str}{part.shape}".encode())
            hasher.update(np.ascontiguousarray(part).data)
        else:
            hasher.update(json.dumps(described(part), sort_keys=True).encode())
        hasher.update(b"\0")
    return hasher.hexdigest()
