"""The plain facts at the front of a model file, each with its type and bounds: nothing in them is trusted."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anchorinv._version import __version__

#: A class as its user named it. Strict: True is no 1, and 1 is no "1".
Label = str | bool | int
Kind = Literal["none", "synthetic", "features of real samples", "real recordings"]
Count = Annotated[int, Field(ge=0, le=2**53)]
Size = Annotated[int, Field(ge=1, le=2**20)]
Positive = Annotated[float, Field(gt=0)]


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class GeometryFacts(_Facts):
    """Of a :class:`~anchorinv.Geometry`; bounded, because a network of these sizes will be made."""

    n_chans: Size
    n_times: Annotated[int, Field(ge=1, le=2**24)]
    kernel: Size
    stride: Size
    pool: Size
    pool_stride: Size
    width: Annotated[int, Field(ge=1, le=4096)]
    heads: Size
    depth: Annotated[int, Field(ge=1, le=64)]
    dropout: float


class FilterFacts(_Facts):
    """Of a :class:`~anchorinv.data.filters.Filter`."""

    low: Positive | None
    high: Positive | None
    order: int
    causal: bool
    attenuation: Positive | None = None


class PreprocessingFacts(_Facts):
    """Of a :class:`~anchorinv.streams.preprocessing.Preprocessing`."""

    ch_names: tuple[str, ...] | None = None
    unit: str | None = None
    filter: FilterFacts | None = None
    unrepeatable: str | None = None


class HeadFacts(_Facts):
    """What a head is beside its tensors."""

    kind: Literal["cosine", "spread", "whitened", "linear", "mlp", "dot-regression"]
    scale: Annotated[float, Field(gt=0, le=1e6)] | None = None
    n_classes: Count | None = None
    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None


class StateFacts(_Facts):
    """What a state is beside its tensors."""

    head: HeadFacts
    classes: tuple[Count, ...]
    n_base: Count
    shape: tuple[Size, Annotated[int, Field(ge=1, le=2**24)]]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)]
    session: Count
    views: tuple[Literal["spectrum", "covariance"], ...] = ()
    curves: tuple[tuple[str, Count], ...]


class Entry(_Facts):
    """A line of the history; samples as pairs, because a JSON key is always text."""

    kind: str
    session: Count
    samples: tuple[tuple[Label, Count], ...]
    seconds: float
    numbers: dict[str, int | float | None]


class Header(_Facts):
    """All of a model but its tensors."""

    package: str = __version__
    method: str
    memory: Kind
    geometry: GeometryFacts
    state: StateFacts
    classes: tuple[Label, ...]
    counts: tuple[Count, ...]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)]
    sfreq: Positive | None
    ch_names: tuple[str, ...] | None
    settings: dict[str, bool | int | float | str | None]
    geometry_given: bool
    preprocessing: PreprocessingFacts | None
    history: tuple[Entry, ...]


def parse_header(text: bytes) -> Header:
    """Return the header, or a ValueError that names the first fact that is wrong."""
    try:
        header = Header.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "header"
        raise ValueError(f"its {place} is wrong ({first['msg']})") from None
    kinds = {type(label) for label in header.classes}
    if len(kinds) > 1 or len(set(header.classes)) < len(header.classes) or "" in header.classes:
        raise ValueError("its classes are wrong (names must differ and be of one kind)")
    if any(isinstance(label, int) and not -(2**63) <= label < 2**63 for label in header.classes):
        raise ValueError("its classes are wrong (a number is too large)")
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
