"""The format of a model file: packed states, the header, and the container.

A state is packed into named tensors and plain values; the header has types and bounds; the container has a
magic word, sizes and a digest.
"""

import hashlib
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from torch import Tensor, nn

from anchorinv import __version__
from anchorinv.backbones import Backbone, BackboneFor, NotGiven, as_backbone
from anchorinv.core.blocks import TrunkWithViews, add_views, without_views
from anchorinv.core.confidence import Confidence
from anchorinv.core.encoder import NETWORK, Encoder, FeatureNetwork
from anchorinv.core.heads import HEADS, Count
from anchorinv.core.networks import Geometry, frozen
from anchorinv.core.privacy import privacy_from
from anchorinv.core.registry import METHODS, Keeps
from anchorinv.core.types import Batch, Curve, State
from anchorinv.errors import LONGEST_NAME, check_names
from anchorinv.files import check_model_path, replacing
from anchorinv.persistence import limits
from anchorinv.persistence.limits import Name, as_value_error, unpack_head, with_prefix
from anchorinv.persistence.provenance import Origin
from anchorinv.signal.preprocessing import Preprocessing

_BATCHES = ("anchors", "replay", "recordings", "signals")


def packed(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Pack a state into tensors by name and plain JSON values."""
    trunk, tail = without_views(state)
    head, head_facts = state.head.packed()
    parts = {"trunk": trunk.state_dict(), "tail": tail.state_dict(), "head": head}
    tensors = {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
    for name in _BATCHES:
        if batch := getattr(state, name):
            tensors |= {f"{name}.values": batch.values, f"{name}.labels": batch.labels}
    tensors |= {f"curves.{i}": curve.values for i, curve in enumerate(state.curves)}
    if state.confidence is not None:
        tensors |= {f"confidence.{name}": tensor for name, tensor in state.confidence.packed().items()}
    facts = {
        "head": head_facts,
        "classes": list(state.classes),
        "n_base": state.n_base,
        "shape": list(state.shape),
        "seed": state.seed,
        "session": state.session,
        "views": list(state.trunk.names) if isinstance(state.trunk, TrunkWithViews) else [],
        "curves": [[curve.name, curve.session] for curve in state.curves],
    }
    if isinstance(state.trunk, Encoder):
        facts["encoder"] = _encoder_facts(state.trunk)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, facts


def _encoder_facts(encoder: Encoder) -> dict[str, Any]:
    n_components, n_random = encoder.random.shape
    facts = {"blocks": list(encoder.names), "n_components": n_components, "n_random": n_random}
    return facts | ({"network_dim": encoder.networks[0].dim} if encoder.networks else {})


def unpacked(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], backbone: Callable[[], nn.Module]
) -> State:
    """Return the state that was packed; tensors and facts are not trusted.

    ``backbone`` builds a network of the same architecture; its weights are replaced and never initialised.
    """
    with as_value_error():
        shape = (facts["shape"][0], facts["shape"][1])
        with torch.device("meta"):
            trunk, tail = _network_like(facts, shape, backbone)
        for part, module in {"trunk": trunk, "tail": tail}.items():
            values = with_prefix(part, tensors)
            _check_kinds(module, values)
            module.load_state_dict(values, assign=True)
        head = unpack_head(tensors, facts["head"])
        head.prepare()
        if views := tuple(facts.get("views", ())):
            trunk, tail = add_views(frozen(trunk), frozen(tail), views, shape)
        batches = {
            name: Batch(tensors[f"{name}.values"], tensors[f"{name}.labels"])
            for name in _BATCHES
            if f"{name}.values" in tensors
        }
        scores, n_base = with_prefix("confidence", tensors), facts["n_base"]
        confidence = (
            Confidence.unpacked(scores, n_base=n_base, n_statistics=head.n_statistics) if scores else None
        )
        curves = [
            Curve(name, session, tensors[f"curves.{i}"]) for i, (name, session) in enumerate(facts["curves"])
        ]
        return State(
            trunk=frozen(trunk),
            tail=frozen(tail),
            head=frozen(head),
            classes=tuple(facts["classes"]),
            n_base=n_base,
            shape=shape,
            seed=facts["seed"],
            session=facts["session"],
            curves=tuple(curves),
            confidence=confidence,
            **batches,
        )


def _check_kinds(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, expected in module.state_dict().items():
        dtype = tensors[name].dtype
        if dtype != expected.dtype and not (dtype.is_floating_point and expected.dtype.is_floating_point):
            raise TypeError(f"{name[:60]!r} is {dtype}, {expected.dtype} was expected")


def _network_like(
    facts: Mapping[str, Any], shape: tuple[int, int], backbone: Callable[[], nn.Module]
) -> tuple[nn.Module, nn.Module]:
    """Return trunk and tail of the packed sizes, without values."""
    if encoder := facts.get("encoder"):
        networks = [
            FeatureNetwork(*_halves(backbone()), encoder["network_dim"])
            for name in encoder["blocks"]
            if name == NETWORK
        ]
        sizes = encoder["n_components"], encoder["n_random"]
        return Encoder(shape, encoder["blocks"], *sizes, networks), nn.Identity()
    return _halves(backbone())


def _halves(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    return network.get_submodule("trunk"), network.get_submodule("tail")


#: A class label. Strict: True is not 1, and 1 is not "1".
Label = Name | bool | Annotated[int, Field(ge=-(2**63), lt=2**63)]
#: Sizes of a network; their combination is bounded in ``limits.py``.
Size = Annotated[int, Field(ge=1, le=2**24)]
Positive = Annotated[float, Field(gt=0, le=1e30)]
Steps = Annotated[int, Field(ge=0, le=limits.MOST_STEPS)]
Seed = Annotated[int, Field(ge=limits.SEEDS.start, lt=limits.SEEDS.stop)]


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


_SIZES: dict[str, Any] = {f.name: (Size if f.type is int else float, ...) for f in fields(Geometry)}


class GeometryFacts(create_model("_Sizes", __base__=_Facts, **_SIZES)):  # type: ignore[misc]
    """All fields of a :class:`~anchorinv.Geometry`."""


class PrivacyFacts(_Facts):
    """Fields of a :class:`~anchorinv.Privacy`, which checks itself when a file is read."""

    epsilon: float
    delta: float
    clip: float
    unit: Literal["window", "person"]
    n_features: Count


def _checked_privacy(facts: PrivacyFacts) -> PrivacyFacts:
    privacy_from(facts.model_dump())
    return facts


class SettingsFacts(_Facts):
    """Parameters of the estimator; missing ones keep their defaults."""

    epochs: Annotated[int, Field(ge=1, le=limits.MOST_STEPS)] | None = None
    batch_size: Annotated[int, Field(ge=1, le=limits.MOST_BATCH)] = 1
    lr: Positive = 1
    n_anchors: Annotated[int, Field(ge=1, le=limits.MOST_ANCHORS)] = 1
    inversion_steps: Steps = 0
    inversion_lr: Positive = 1
    finetune_steps: Steps | None = None
    finetune_lr: Positive = 1
    replay_weight: Annotated[float, Field(ge=0, le=1e30)] = 0
    new_prototype: Literal["mean", "random"] = "mean"
    per_channel: bool = True
    network: Literal["never", "rehearse", "always"] = "never"
    reject: Annotated[float, Field(gt=0, lt=1)] | None = None
    reject_label: Label | None = None
    group_by: Name | None = None
    privacy: Literal["aggregate"] | Annotated[PrivacyFacts, AfterValidator(_checked_privacy)] | None = None
    random_state: Seed | None = None
    verbose: bool = False


def _checked_head(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a head under its present name, checked by its class."""
    kind = facts.get("kind")
    if not isinstance(kind, str) or kind not in HEADS:
        raise ValueError(f"there is no head {kind!r:.60}; known are {', '.join(HEADS)}")
    kind = HEADS.name_of(kind)
    settings = {name: value for name, value in facts.items() if name != "kind"}
    return {"kind": kind, **validate_facts(HEADS[kind].Facts, settings).model_dump(exclude_none=True)}


#: Metadata of a head: ``kind`` and the settings of its class.
HeadFacts = Annotated[dict[Name, bool | int | float | Name], AfterValidator(_checked_head)]


class EncoderFacts(_Facts):
    """Metadata of an encoder."""

    blocks: Annotated[tuple[Name, ...], Field(min_length=1, max_length=32)]
    n_components: Annotated[int, Field(ge=1, le=limits.MOST_COLUMNS)]
    n_random: Annotated[int, Field(ge=0, le=limits.MOST_COLUMNS)]
    network_dim: Size | None = None


class StateFacts(_Facts):
    """Metadata of a state."""

    head: HeadFacts
    classes: Annotated[tuple[Count, ...], Field(min_length=2, max_length=limits.MOST_CLASSES)]
    n_base: Count
    shape: tuple[Size, Size]
    seed: Seed
    session: Count
    views: tuple[Literal["spectrum", "covariance"], ...] = ()
    curves: tuple[tuple[Name, Count], ...]
    encoder: EncoderFacts | None = None


class BackboneFacts(_Facts):
    """A network that is not this package's: its name, never its code."""

    kind: Literal["braindecode", "own"]
    network: Name
    version: Name | None
    tail: Name | None
    classifier: Name | None
    n_classes: Annotated[int, Field(ge=2, le=limits.MOST_CLASSES)]
    sfreq: Annotated[float, Field(ge=limits.LOWEST_RATE, le=limits.HIGHEST_RATE)] | None

    @staticmethod
    def facts(spec: BackboneFor) -> dict[str, Any]:
        """Return a backbone as plain JSON."""
        custom, backbone = spec.backbone.model is None, spec.backbone
        return {
            "kind": "own" if custom else "braindecode",
            "network": backbone.name[:LONGEST_NAME] if custom else spec.backbone.model,
            "version": spec.version,
            "tail": backbone.tail,
            "classifier": backbone.classifier,
            "n_classes": spec.n_classes,
            "sfreq": spec.sfreq,
        }

    def spec(self, geometry: Geometry, custom: Any) -> BackboneFor:
        """Return the backbone for signals of a shape; a custom one has to be passed."""
        network = as_backbone(custom)
        if self.kind == "braindecode":
            network = Backbone(self.network)
        elif network is None:
            network = Backbone(NotGiven(self.network))
        backbone = Backbone(network.network, self.tail, self.classifier)
        sizes = geometry.n_chans, geometry.n_times, self.n_classes
        return BackboneFor(backbone, *sizes, self.sfreq, self.version)


class Entry(_Facts):
    """An entry of the history; samples are pairs, as JSON keys are always text."""

    kind: Name
    session: Count
    samples: tuple[tuple[Label, Count], ...]
    seconds: float
    numbers: dict[Name, Annotated[int, Field(ge=-(2**53), le=2**53)] | float | None]
    origin: Origin = Origin()

    @staticmethod
    def facts(line: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entry of the history as plain JSON; NaN becomes None."""
        named = ("kind", "session", "seconds")
        others = (*named, "samples", "curves", *Origin.model_fields)  # curves are among the tensors
        numbers = {key: value for key, value in line.items() if key not in others}
        return {
            **{key: line[key] for key in named},
            "samples": list(line["samples"].items()),
            "numbers": {key: value if math.isfinite(value) else None for key, value in numbers.items()},
            "origin": Origin.facts(line),
        }

    @property
    def line(self) -> dict[str, Any]:
        """The entry in the form of the estimator's ``history_``."""
        numbers = {key: math.nan if value is None else value for key, value in self.numbers.items()}
        plain = {"kind": self.kind, "session": self.session, "samples": dict(self.samples)}
        return {**plain, "seconds": self.seconds, **numbers, **self.origin.model_dump(exclude_none=True)}


class Header(_Facts):
    """The header: everything but tensors."""

    package: Name = __version__
    method: Annotated[Name, AfterValidator(METHODS.name_of)]
    memory: Keeps
    geometry: GeometryFacts
    state: StateFacts
    classes: Annotated[tuple[Label, ...], Field(max_length=limits.MOST_CLASSES)]
    counts: Annotated[tuple[Count, ...], Field(max_length=limits.MOST_CLASSES)]
    seed: Seed
    sfreq: Annotated[float, Field(ge=limits.LOWEST_RATE, le=limits.HIGHEST_RATE)] | None
    ch_names: Annotated[tuple[Name, ...], Field(max_length=limits.MOST_CHANNELS)] | None
    settings: SettingsFacts
    geometry_given: bool
    preprocessing: Preprocessing | None
    history: tuple[Entry, ...]
    backbone: BackboneFacts | None = None


Some = TypeVar("Some")
# pydantic's names for members of a union, at the end of an error's location.
_KIND = re.compile(r"function-\w+\[.*\]|(constrained-)?(str|int|float|bool)|\[key\]", re.DOTALL)


def validate_facts(kind: type[Some], facts: Any) -> Some:
    """Validate facts, as JSON or as values; a ValueError names the first wrong one."""
    try:
        adapter = TypeAdapter(kind)
        return adapter.validate_json(facts) if isinstance(facts, bytes) else adapter.validate_python(facts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # It may contain a key of the file, which is escaped.
        where = [str(part) for part in first["loc"]]
        if len(where) > 1 and _KIND.fullmatch(where[-1]):
            del where[-1]
        place = repr(".".join(where))[1:-1][:80] or "header"
        raise ValueError(f"its {place} is wrong ({first['msg'].removeprefix('Value error, ')})") from None


def parse_header(text: bytes) -> Header:
    """Return the header; a ValueError names the first wrong fact."""
    header = validate_facts(Header, text)
    if len({type(label) for label in header.classes}) > 1 or len(set(header.classes)) < len(header.classes):
        raise ValueError("its classes are wrong (names must differ and be of one kind)")
    prepared = header.preprocessing.ch_names if header.preprocessing else None
    if prepared is not None and prepared != header.ch_names:
        raise ValueError("its ch_names are wrong (they are not those of its preprocessing)")
    check_names(header.classes)
    check_names(header.ch_names or ())
    return header


MAGIC = b"ANCHRINV"
FORMAT = 1
_FRONT = struct.Struct("<8sIIQ")
_DIGEST = 32
_START = _FRONT.size + _DIGEST


def assemble(header: bytes, payload: bytes) -> bytes:
    """Return the bytes of a model file."""
    if len(header) > limits.MOST_HEADER or len(payload) > limits.MOST_BYTES:
        raise ValueError(
            f"the model is too large for a file: {len(header)} bytes of facts ({limits.MOST_HEADER} at the "
            f"most), {len(payload)} of tensors ({limits.MOST_BYTES} at most); leave out signals "
            f"(with_signals), or train with a smaller n_anchors (--anchors), shorter windows or a lower "
            f"sampling rate"
        )
    front = _FRONT.pack(MAGIC, FORMAT, len(header), len(payload))
    return front + _digest(front, header, payload) + header + payload


def read_container(path: Path) -> tuple[int, bytes, bytes]:
    """Return the version, header and payload of a model file; any problem is one sentence."""
    check_model_path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size > limits.MOST_HEADER + limits.MOST_BYTES + _START:
                raise ValueError(f"{path} is too large for a model file ({size} bytes)")
            start = file.read(_START)
            n_header = _header_length(path, start, size)
            header, payload = file.read(n_header), file.read(size - _START - n_header)
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror or error}") from None
    front, digest = start[: _FRONT.size], start[_FRONT.size :]
    if _digest(front, header, payload) != digest:
        raise ValueError(f"{path} is damaged: its contents do not match its digest; copy it again")
    return _FRONT.unpack(front)[1], header, payload


def write_container(path: Path, header: bytes, payload: bytes) -> None:
    """Write a model file, atomically."""
    content = assemble(header, payload)
    try:
        with replacing(path) as beside:
            beside.write_bytes(content)
    except OSError as error:
        if error.errno is None:  # already a full sentence
            raise
        was = "; the existing file is untouched" if path.is_file() else ""
        raise OSError(f"{path} cannot be written: {error.strerror or error}{was}") from None


def _header_length(path: Path, start: bytes, size: int) -> int:
    """Check the first bytes of a file of this size; return the length of the header."""
    if start[:8] != MAGIC:
        foreign = start[8:9] == b"{" and int.from_bytes(start[:8], "little") < size
        kind = "a safetensors file of another program" if foreign else "no anchorinv model"
        raise ValueError(f"{path} is {kind}; pass a file that `anchorinv train` or model.save wrote")
    if len(start) < _START:
        raise ValueError(f"{path} is cut short: it ends within its first {_START} bytes; copy it again")
    _, version, n_header, n_payload = _FRONT.unpack(start[: _FRONT.size])
    if version > FORMAT:
        raise ValueError(
            f"{path} has format {version}, and this anchorinv reads up to {FORMAT}; update anchorinv"
        )
    if version < 1 or n_header > limits.MOST_HEADER:
        raise ValueError(f"{path} is damaged: format {version}, header of {n_header} bytes; copy it again")
    if size != _START + n_header + n_payload:
        state = "cut short" if size < _START + n_header + n_payload else "longer than it says"
        raise ValueError(f"{path} is {state}: {size} bytes instead of {_START + n_header + n_payload}")
    return int(n_header)


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        digest.update(part)
    return digest.digest()
