"""The plain facts at the front of a model file, each with its type and bounds: nothing in them is trusted."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from anchorinv._version import __version__
from anchorinv.core.catalogue import current_name
from anchorinv.model.limits import (
    HIGHEST_RATE,
    LOWEST_RATE,
    MOST_ANCHORS,
    MOST_BATCH,
    MOST_CHANNELS,
    MOST_CLASSES,
    MOST_COLUMNS,
    MOST_STEPS,
    SEEDS,
)
from anchorinv.model.names import Name, check_names
from anchorinv.signal.facts import PreprocessingFacts

#: A class as its user named it. Strict: True is no 1, and 1 is no "1".
Label = Name | bool | Annotated[int, Field(ge=-(2**63), lt=2**63)]
Kind = Literal["none", "synthetic", "class statistics", "features of real samples", "real recordings"]
Count = Annotated[int, Field(ge=0, le=2**53)]
#: Of a network; what they amount to together is bounded in ``limits.py``.
Size = Annotated[int, Field(ge=1, le=2**24)]
Positive = Annotated[float, Field(gt=0, le=1e30)]
Rate = Annotated[float, Field(ge=LOWEST_RATE, le=HIGHEST_RATE)]
Steps = Annotated[int, Field(ge=0, le=MOST_STEPS)]
Seed = Annotated[int, Field(ge=SEEDS.start, lt=SEEDS.stop)]
Channels = Annotated[tuple[Name, ...], Field(max_length=MOST_CHANNELS)]


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class GeometryFacts(_Facts):
    """Of a :class:`~anchorinv.Geometry`."""

    n_chans: Size
    n_times: Size
    kernel: Size
    stride: Size
    pool: Size
    pool_stride: Size
    width: Size
    heads: Size
    depth: Size
    dropout: float


class SettingsFacts(_Facts):
    """Of an estimator; those that are not named keep their defaults."""

    epochs: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = None
    batch_size: Annotated[int, Field(ge=1, le=MOST_BATCH)] = 1
    lr: Positive = 1
    n_anchors: Annotated[int, Field(ge=1, le=MOST_ANCHORS)] = 1
    inversion_steps: Steps = 0
    inversion_lr: Positive = 1
    finetune_steps: Steps | None = None
    finetune_lr: Positive = 1
    replay_weight: Annotated[float, Field(ge=0, le=1e30)] = 0
    new_prototype: Literal["mean", "random"] = "mean"
    per_channel: bool = True
    network: Literal["never", "rehearse", "always"] = "never"
    random_state: Seed | None = None
    verbose: bool = False


class HeadFacts(_Facts):
    """What a head is beside its tensors."""

    kind: Literal[
        "cosine",
        "mahalanobis",
        "whitened",
        "linear",
        "mlp",
        "dot-regression",
        "discriminant",
        "riemannian-means",
        "projected-ridge",
    ]
    scale: Annotated[float, Field(gt=0, le=1e6)] | None = None
    n_classes: Count | None = None
    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None
    n_base: Count | None = None
    shrinkage: Annotated[float, Field(ge=0, le=1)] | None = None
    prior: bool | None = None
    penalty: Annotated[float, Field(gt=0, le=1e12)] | None = None
    centring: Annotated[float, Field(ge=-1, le=1)] | None = None

    @field_validator("kind", mode="before")
    @classmethod
    def _present(cls, kind: Any) -> Any:
        return "mahalanobis" if kind == "spread" else kind  # as files of former versions say


class EncoderFacts(_Facts):
    """What an encoder of blocks is beside its tensors."""

    blocks: Annotated[tuple[Name, ...], Field(min_length=1, max_length=32)]
    n_components: Annotated[int, Field(ge=1, le=MOST_COLUMNS)]
    n_random: Annotated[int, Field(ge=0, le=MOST_COLUMNS)]
    network_dim: Size | None = None


class StateFacts(_Facts):
    """What a state is beside its tensors."""

    head: HeadFacts
    classes: Annotated[tuple[Count, ...], Field(min_length=2, max_length=MOST_CLASSES)]
    n_base: Count
    shape: tuple[Size, Size]
    seed: Seed
    session: Count
    views: tuple[Literal["spectrum", "covariance"], ...] = ()
    curves: tuple[tuple[Name, Count], ...]
    encoder: EncoderFacts | None = None


class Entry(_Facts):
    """A line of the history; samples as pairs, because a JSON key is always text."""

    kind: Name
    session: Count
    samples: tuple[tuple[Label, Count], ...]
    seconds: float
    numbers: dict[Name, Annotated[int, Field(ge=-(2**53), le=2**53)] | float | None]


class Header(_Facts):
    """All of a model but its tensors."""

    package: Name = __version__
    method: Name
    memory: Kind
    geometry: GeometryFacts
    state: StateFacts
    classes: Annotated[tuple[Label, ...], Field(max_length=MOST_CLASSES)]
    counts: Annotated[tuple[Count, ...], Field(max_length=MOST_CLASSES)]
    seed: Seed
    sfreq: Rate | None
    ch_names: Channels | None
    settings: SettingsFacts
    geometry_given: bool
    preprocessing: PreprocessingFacts | None
    history: tuple[Entry, ...]

    @field_validator("method")
    @classmethod
    def _present(cls, method: str) -> str:
        return current_name(method)


Some = TypeVar("Some", bound=BaseModel)


# How pydantic calls one of several types that a fact may have, at the end of its place.
_KIND = re.compile(r"function-\w+\[.*\]|(constrained-)?(str|int|float|bool)|\[key\]", re.DOTALL)


def parsed(kind: type[Some], facts: bytes | Mapping[str, Any]) -> Some:
    """Return facts, from JSON or as they are, or a ValueError that names the first that is wrong."""
    try:
        return kind.model_validate_json(facts) if isinstance(facts, bytes) else kind.model_validate(facts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # A key of the file may be in it: shown, but not as it is.
        where = [str(part) for part in first["loc"]]
        if len(where) > 1 and _KIND.fullmatch(where[-1]):
            del where[-1]
        place = repr(".".join(where))[1:-1][:80] or "header"
        raise ValueError(f"its {place} is wrong ({first['msg'].removeprefix('Value error, ')})") from None


def parse_header(text: bytes) -> Header:
    """Return the header, or a ValueError that names the first fact that is wrong."""
    header = parsed(Header, text)
    if len({type(label) for label in header.classes}) > 1 or len(set(header.classes)) < len(header.classes):
        raise ValueError("its classes are wrong (names must differ and be of one kind)")
    told = header.preprocessing.ch_names if header.preprocessing else None
    if told is not None and told != header.ch_names:
        raise ValueError("its ch_names are wrong (they are not those of its preprocessing)")
    check_names(header.classes)
    check_names(header.ch_names or ())
    if header.preprocessing is not None:
        try:
            _ = header.preprocessing.value
        except ValueError as error:
            raise ValueError(f"its preprocessing is wrong ({error})") from None
    return header


def history_facts(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of an estimator's history as plain JSON; a number that is none becomes None."""
    named = ("kind", "session", "seconds")
    numbers = {key: value for key, value in line.items() if key not in (*named, "samples")}
    return {
        **{key: line[key] for key in named},
        "samples": list(line["samples"].items()),
        "numbers": {key: value if math.isfinite(value) else None for key, value in numbers.items()},
    }


def history_line(entry: Entry) -> dict[str, Any]:
    """Return an estimator's line of history from facts."""
    numbers = {key: math.nan if value is None else value for key, value in entry.numbers.items()}
    return {
        "kind": entry.kind,
        "session": entry.session,
        "samples": dict(entry.samples),
        "seconds": entry.seconds,
        **numbers,
    }
