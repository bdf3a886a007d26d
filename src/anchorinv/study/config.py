"""What a study is, in full: every setting by its key, checked. Files are read in ``study/loading.py``."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_serializer, model_validator

from anchorinv.core.anchors import SELECTIONS
from anchorinv.core.catalogue import CATALOGUE, CLOSED_FORM, JUDGED, PUBLISHED, SUMMED, current_name
from anchorinv.core.geometry import Geometry
from anchorinv.core.protocol import Protocol
from anchorinv.core.selection import Validated
from anchorinv.signal.facts import facts_of, preprocessing_from

#: Methods whose sessions have a length.
FINETUNED = tuple(
    name for name in CATALOGUE if name not in ("protonet", "teen", *JUDGED, *SUMMED, *CLOSED_FORM)
)

Count = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0, lt=10)]
Beta = Annotated[float, Field(ge=0, lt=1)]
ClassName = Annotated[int, Field(ge=0)] | str


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question after the likeliest word meant, or a list of what there is.

    Examples
    --------
    >>> nearest("protonett", ["protonet", "teen"])
    "did you mean 'protonet'?"
    """
    words = list(known)
    close = get_close_matches(word, words, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(words)}"


def _one_of(name: str, known: Mapping[str, Any] | Iterable[str], what: str) -> str:
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}; {nearest(name, known)}")
    return name


class _Table(BaseModel):
    """A table of a config: no keys but these, and nothing changes after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Table):
    """Which prepared data set; what the config says of it is checked against it.

    ``preprocessing`` names what its signals must have gone through, as prepared folders and model files do;
    ``filtered`` asks for any filter. ``kind`` says which synthetic recordings stand in for it: for ECG those
    of EMG, as short as beats are.
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
    def _as_before(self, facts: Callable[["Data"], dict[str, Any]]) -> dict[str, Any]:
        """Leave out what came later and is not set: runs of former versions stay the same."""
        return {key: value for key, value in facts(self).items() if (key, value) != ("preprocessing", None)}


class Synthetic(_Table):
    """Synthetic recordings in place of a data set; each person's last session is the test part."""

    n_subjects: Count = 2
    n_sessions: Annotated[int, Field(ge=2)] = 2
    n_per_class: Count = 10
    difficulty: Annotated[float, Field(ge=0)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 5


class Sizes(_Table):
    """The network, as :class:`~anchorinv.Geometry`; without it, sizes follow from the data's shape."""

    n_chans: int
    n_times: int
    kernel: int = 25
    stride: int = 1
    pool: int = 75
    pool_stride: int = 15
    width: int = 40
    heads: int = 10
    depth: int = 6
    dropout: float = 0.5

    @model_validator(mode="after")
    def _possible(self) -> "Sizes":
        Geometry(**self.model_dump())
        return self


class Course(_Table):
    """The protocol: which classes come when, with how many shots, how often, and for whom.

    ``per_subject`` studies each person alone, ``leave_one_out`` each person with a model of all others.
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
    def _possible(self) -> "Course":
        numbers = {name: i for i, name in enumerate(dict.fromkeys([*self.base_classes, *self.sessions]))}
        if len(self.base_classes) < 2:
            raise ValueError(f"base_classes must name two classes at least, got {list(self.base_classes)}")
        base, new = ([numbers[name] for name in names] for names in (self.base_classes, self.sessions))
        try:
            Protocol(tuple(base), tuple(new), self.shots, self.trials, ways=self.ways)
        except ValueError:
            both = sorted({str(n) for n in self.base_classes} & {str(n) for n in self.sessions})
            if both:
                raise ValueError(f"class {both[0]} is both a base and a new class; name it once") from None
            raise
        if self.per_subject and self.leave_one_out:
            raise ValueError("per_subject and leave_one_out are two kinds of study; choose one")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} are not distinct; name each once")
        return self


class Standardise(_Table):
    """Statistics by the base classes' training part, or (``paper``) by all of it, future classes too."""

    by: Literal["base", "paper"] = "base"
    per_channel: bool = False


class BaseTraining(_Table):
    """The base session; ``class_weights`` may be sizes, one per base class, to weigh inversely to.

    ``schedule = "one-cycle"`` lets the rate rise to ``lr`` and fall to almost nothing; in the paper it stays.
    """

    epochs: Count = 1500
    batch_size: Count = 72
    lr: Rate = 2e-4
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    class_weights: bool | tuple[Count, ...] = False
    schedule: Literal["constant", "one-cycle"] = "constant"


class Anchors(_Table):
    """What is kept of each base class: how many anchors, samples or labels, and which anchors.

    ``measure`` says what close to the prototype means where ``select`` asks for it: the paper does not.
    """

    per_class: Count = 50
    select: str = "random"
    measure: Literal["cosine", "euclidean"] = "cosine"

    @field_validator("select")
    @classmethod
    def _known(cls, name: str) -> str:
        return _one_of(name, SELECTIONS, "selection")


class Inverting(_Table):
    """How replay signals are made; ``smoothness`` weighs a penalty on second differences.

    ``swift`` takes quasi-Newton steps and stops each sample by its own error curve, ``steps`` at the most;
    off in the paper, and where something else than anchors is inverted. Three keys are for the authors' runs:
    ``noise``, whether a new class starts from noise of its trial or from noise that all trials share;
    ``new_batch``, to how many samples Adam's eps is scaled where new classes are inverted; ``l2``, whether
    DeepDream and DeepInv keep signals small by their mean square or by their norm.
    """

    steps: Steps = 4000
    lr: Rate = 1e-2
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    from_zeros: bool = False
    chunk: Count = 50
    swift: bool = False
    smoothness: Annotated[float, Field(ge=0)] = 0.0
    noise: Literal["trial", "shared"] = "trial"
    new_batch: Count = 100
    l2: Literal["square", "norm"] = "square"


class Finetuning(_Table):
    """How sessions learn: steps per method and session, the last number holding for all later ones.

    ``start`` says where a new prototype starts; ``scope`` what the method ``finetune`` trains beside its
    head: the last block, or all. With ``select = "validation"`` methods that replay choose number of steps
    and rate themselves in each session, from ``lengths`` and ``lrs``, by ``folds`` of shots and replay.
    ``refresh`` lets old prototypes follow their replay where the network has moved. Both are off in the
    paper.
    """

    start: Literal["mean", "random"] = "random"
    lr: Rate = 2e-5
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    replay_weight: Annotated[float, Field(ge=0)] = 1.0
    scope: Literal["last-block", "all"] = "last-block"
    steps: dict[str, Annotated[tuple[Steps, ...], Field(min_length=1)]] = Field(default_factory=dict)
    select: Literal["fixed", "validation"] = "fixed"
    lengths: Annotated[tuple[Steps, ...], Field(min_length=1)] = Validated().lengths
    lrs: Annotated[tuple[Rate, ...], Field(min_length=1)] = Validated().lrs
    folds: Annotated[int, Field(ge=2)] = Validated().folds
    refresh: bool = False

    @field_validator("steps")
    @classmethod
    def _known(cls, steps: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        for name in steps:
            _one_of(name, FINETUNED, "method with finetuning steps")
        return steps


class Experiment(_Table):
    """One variant of a study, complete."""

    data: Data = Data()
    synthetic: Synthetic | None = None
    geometry: Sizes | None = None
    protocol: Course
    standardise: Standardise = Standardise()
    training: BaseTraining = BaseTraining()
    anchors: Anchors = Anchors()
    inversion: Inverting = Inverting()
    finetuning: Finetuning = Finetuning()
    methods: Annotated[tuple[str, ...], Field(min_length=1)] = PUBLISHED
    threads: Count = 2
    not_published: tuple[str, ...] = ()

    @field_validator("methods")
    @classmethod
    def _known(cls, asked: tuple[str, ...]) -> tuple[str, ...]:
        methods = tuple(map(current_name, asked))
        for name in methods:
            _one_of(name, CATALOGUE, "method")
        if len(set(methods)) < len(methods):
            raise ValueError(f"methods {', '.join(methods)} are not distinct; name each once")
        return methods

    @model_validator(mode="after")
    def _complete(self) -> "Experiment":
        missing = [n for n in self.methods if n in FINETUNED and n not in self.finetuning.steps]
        if missing:
            raise ValueError(
                f"finetuning.steps says nothing of {', '.join(missing)}; add {missing[0]} = [100], say, or "
                f"drop the method"
            )
        weights, n_base = self.training.class_weights, len(self.protocol.base_classes)
        if isinstance(weights, tuple) and len(weights) != n_base:
            raise ValueError(f"training.class_weights has {len(weights)} sizes for {n_base} base classes")
        keys = dotted(self.model_dump())
        for key in self.not_published:
            if key not in keys:
                raise ValueError(f"not_published names {key!r}, which is no key; {nearest(key, keys)}")
        return self


class Study(_Table):
    """A table or figure: its variants, each under its name; a study without variants has one, ``""``."""

    name: str
    title: str
    paper: str = ""
    scale: Literal["full", "tiny", "smoke"] = "full"
    reference: str = "anchorinv"
    variants: dict[str, Experiment]

    @field_validator("reference")
    @classmethod
    def _known(cls, name: str) -> str:
        return _one_of(current_name(name), CATALOGUE, "method")


def dotted(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, by dotted keys.

    Examples
    --------
    >>> dotted({"a": {"b": 1, "c": {"d": 2}}, "e": [3]})
    {'a.b': 1, 'a.c.d': 2, 'e': [3]}
    """
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{prefix}{key}"
        flat |= dotted(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return flat
