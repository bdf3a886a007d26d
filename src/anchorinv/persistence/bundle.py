"""Save and load a model as one file (``*.anchorinv``), which contains no code."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from anchorinv import __version__
from anchorinv.backbones import BackboneFor, MissingBackbone, backbone_setting, braindecode_version
from anchorinv.core.cut import BackboneError
from anchorinv.core.networks import Geometry
from anchorinv.core.privacy import privacy_facts, privacy_from
from anchorinv.core.registry import METHODS, Keeps
from anchorinv.core.types import Standardisation, State
from anchorinv.errors import MissingExtra, pip_install
from anchorinv.persistence.format import (
    BackboneFacts,
    Entry,
    Header,
    Label,
    packed,
    parse_header,
    read_container,
    unpacked,
    write_container,
)
from anchorinv.persistence.limits import (
    MOST_CURVE_VALUES,
    Architecture,
    check_parts,
    check_tensors,
    needs_network,
    recipe_for,
)
from anchorinv.signal.drift import SHAPES, BaseStatistics, MeanStd
from anchorinv.signal.preprocessing import Preprocessing, facts_of


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A fitted model as a value: what was learned, and the metadata of the signals."""

    method: str
    geometry: Geometry
    state: State
    classes: tuple[Label, ...]  # names of ``state.classes``, all of one type
    standardisation: Standardisation
    statistics: BaseStatistics  # of the base data, in the unit of the signals
    counts: tuple[int, ...]  # examples behind each class
    seed: int = 0  # for later sessions
    settings: Mapping[str, Any] = field(default_factory=dict)  # parameters of the estimator, as stored
    geometry_given: bool = False  # whether the estimator's user chose the geometry
    history: tuple[dict[str, Any], ...] = ()
    sfreq: float | None = None
    ch_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    package: str = __version__  # version that wrote it
    backbone: BackboneFor | None = None  # the network, where it is not this package's own

    @property
    def memory(self) -> Keeps:
        """What it stores about people; recordings are named even if the method usually stores none."""
        return "real recordings" if self.state.recordings else METHODS[self.method].keeps


# Fields of a bundle that are copied to the header.
_SAME = ("package", "method", "classes", "counts", "seed", "sfreq", "ch_names", "geometry_given")
# Parameters that a model file stores in another form, or that depend on the machine.
_STORED_APART = {"method", "geometry", "backbone", "preprocessing", "sfreq", "device", "privacy"}


def stored_params(params: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the parameters that a model file stores unchanged; a RandomState becomes the seed drawn."""
    stored = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in params.items()
        if name not in _STORED_APART
    }
    if isinstance(stored["random_state"], np.random.RandomState):
        stored["random_state"] = seed
    stored["verbose"] = bool(stored["verbose"])
    privacy = privacy_facts(params["privacy"])
    # Earlier versions read files without this key.
    return stored if privacy is None else {**stored, "privacy": privacy}


def params_of(bundle: Bundle) -> dict[str, Any]:
    """Return the parameters of the estimator that a bundle was made from."""
    return {
        **bundle.settings,
        "method": bundle.method,
        "geometry": bundle.geometry if bundle.geometry_given else None,
        "preprocessing": bundle.preprocessing,
        "sfreq": bundle.sfreq,
        "privacy": privacy_from(bundle.settings.get("privacy")),
        "backbone": backbone_setting(bundle.backbone),
    }


def save_bundle(
    path: Path | str, bundle: Bundle, *, with_signals: bool = False, allow_recordings: bool = False
) -> None:
    """Write a model to one file, atomically; an existing file is replaced once the new one is complete.

    The inverted signals are for inspection only; recordings of people are written if they are allowed.
    """
    path = Path(path)
    if bundle.memory == "real recordings" and not allow_recordings:
        raise ValueError(
            f"this model ({bundle.method}) contains real recordings, which anyone with {path} could "
            f"read; pass allow_recordings=True (--allow-recordings) to permit it"
        )
    header, tensors = _facts_of(bundle, with_signals=with_signals)
    try:
        backbone = bundle.backbone.backbone if bundle.backbone else None
        custom = backbone if backbone and backbone.model is None else None
        _bundle_of(parse_header(header), tensors, custom)  # nothing is written that cannot be read back
    except _MALFORMED as error:
        was = "; the existing file is untouched" if path.is_file() else ""
        raise ValueError(
            f"{path} is not written, as it could not be read back: {_first_line(error)}{was}"
        ) from None
    # Tensors that share memory are written twice, as safetensors refuses shared memory.
    payload = save({name: tensor.clone() for name, tensor in sorted(tensors.items())})
    write_container(path, header, payload)


def _facts_of(bundle: Bundle, *, with_signals: bool) -> tuple[bytes, dict[str, Tensor]]:
    state = bundle.state if with_signals else replace(bundle.state, signals=None)
    tensors, facts = packed(state)
    kept: dict[str, Standardisation | BaseStatistics | MeanStd] = {
        "standardisation": bundle.standardisation,
        "statistics": bundle.statistics,
    }
    shapes = {name: getattr(bundle.statistics, name) for name in SHAPES}
    kept |= {f"statistics.{name}": value for name, value in shapes.items() if value is not None}
    tensors = _with_short_curves(_compress_anchors(tensors)) | {
        f"{name}.{part}": torch.from_numpy(np.array(getattr(value, part), dtype=np.float64))
        for name, value in kept.items()
        for part in ("mean", "std")
    }
    facts = {name: getattr(bundle, name) for name in _SAME} | {
        "memory": bundle.memory,
        "geometry": asdict(bundle.geometry),
        "state": facts,
        "settings": dict(bundle.settings),
        "preprocessing": facts_of(bundle.preprocessing) if bundle.preprocessing else None,
        "history": [Entry.facts(line) for line in bundle.history],
    }
    if bundle.backbone is not None:
        facts["backbone"] = BackboneFacts.facts(bundle.backbone)
    return json.dumps(facts, ensure_ascii=False, allow_nan=False).encode(), tensors


def _with_short_curves(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Thin out long curves evenly, to bound the size of a file."""
    names = [name for name in tensors if name.startswith("curves.")]
    most = MOST_CURVE_VALUES // max(1, len(names))
    return tensors | {name: tensors[name][:: -(-len(tensors[name]) // most) or 1].clone() for name in names}


#: Errors that malformed facts or tensors may raise in the code that reads them.
_MALFORMED = (SafetensorError, ValueError, TypeError, RuntimeError, LookupError, OverflowError, MemoryError)


def read_facts(path: Path | str) -> tuple[Header, dict[str, Tensor]]:
    """Return the checked facts and tensors of a model file."""
    header, tensors, _ = _read(Path(path))
    return header, tensors


def load_bundle(path: Path | str, *, allow_recordings: bool = False, backbone: Any = None) -> Bundle:
    """Return the model in a file, or refuse the file in one sentence; nothing in it is run or trusted.

    ``backbone`` is the custom network of the model, or its factory, if it has one.
    """
    *_, bundle = _read(Path(path), backbone)
    if bundle.memory == "real recordings" and not allow_recordings:
        raise ValueError(
            f"{path} contains recordings of people; pass allow_recordings=True (--allow-recordings) if you "
            f"may have them"
        )
    return bundle


@torch.inference_mode(False)
def _read(path: Path, backbone: Any = None) -> tuple[Header, dict[str, Tensor], Bundle]:
    """Read and check a model file; every use of a file goes through here."""
    _, text, payload = read_container(path)
    try:
        header, tensors = parse_header(text), load(payload)
        del payload  # as large as the tensors, which are copies
        return header, tensors, _bundle_of(header, tensors, backbone)
    except (MissingExtra, MissingBackbone, BackboneError) as error:
        raise type(error)(f"{path} cannot be used here: {error}") from None
    except _MALFORMED as error:
        raise ValueError(f"{path} is damaged: {_first_line(error)}") from None


def _architecture(header: Header, geometry: Geometry, custom: Any) -> Architecture:
    """Return the factory of the network: this package's, the one named in the file, or a custom one."""
    facts = header.backbone
    if custom is not None and (facts is None or facts.kind != "own"):
        raise BackboneError("its network is built by its name; leave backbone out")
    return geometry if facts is None else facts.spec(geometry, custom)


def _bundle_of(header: Header, tensors: dict[str, Tensor], custom: Any = None) -> Bundle:
    """Return the model that the facts and tensors of a file describe."""
    check_tensors(tensors, own=header.backbone is None)
    geometry = Geometry(**header.geometry.model_dump())
    architecture = _architecture(header, geometry, custom)
    tensors = dict(_restore_anchors(tensors))
    with _or_another_version(header):
        check_parts(header, architecture, tensors)
    standardisation = Standardisation(*_pop_mean_std(tensors, "standardisation"))
    mean, std = _pop_mean_std(tensors, "statistics")
    shapes = {
        name: MeanStd(*_pop_mean_std(tensors, f"statistics.{name}"))
        for name in SHAPES
        if f"statistics.{name}.mean" in tensors
    }
    network = "always" if needs_network(header) else "never"
    backbone = recipe_for(header.method, architecture, network=network).base_spec.backbone
    with _or_another_version(header):
        state = unpacked(tensors, header.state.model_dump(exclude_none=True), backbone)
    if unknown := sorted(tensors.keys() - packed(state)[0].keys()):
        raise ValueError(f"it contains {unknown[0][:60]!r}, which does not belong to a model")
    bundle = Bundle(
        **{name: getattr(header, name) for name in _SAME},
        geometry=geometry,
        state=state,
        standardisation=standardisation,
        statistics=BaseStatistics(mean, std, **shapes),
        settings=header.settings.model_dump(exclude_unset=True),
        history=tuple(entry.line for entry in header.history),
        preprocessing=header.preprocessing,
        backbone=architecture if isinstance(architecture, BackboneFor) else None,
    )
    if bundle.memory != header.memory:
        raise ValueError(f"it claims to store {header.memory}, but stores {bundle.memory}")
    return bundle


def _compress_anchors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store inverted anchors in half precision: nothing is computed from them any more."""
    if "anchors.values" not in tensors:
        return tensors
    values, inverted = tensors["anchors.values"], _has_replay(tensors)
    small = values[inverted].half()
    if not small.isfinite().all():  # beyond the range of half precision
        small = values[inverted]
    rest = {name: tensor for name, tensor in tensors.items() if name != "anchors.values"}
    return rest | {"anchors.inverted": small, "anchors.pending": values[~inverted]}


def _restore_anchors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file as a state packs them."""
    if "anchors.labels" not in tensors:
        return tensors
    inverted = _has_replay(tensors)
    rest = dict(tensors)
    small, pending = rest.pop("anchors.inverted"), rest.pop("anchors.pending")
    counts = (int(inverted.sum()), int((~inverted).sum()))
    if (len(small), len(pending)) != counts or small.shape[1:] != pending.shape[1:]:
        raise ValueError(
            f"anchors of shape {tuple(small.shape)} and {tuple(pending.shape)} do not fit {counts}"
        )
    values = torch.empty(len(inverted), *pending.shape[1:], dtype=torch.float32)
    values[inverted], values[~inverted] = small.float(), pending
    return rest | {"anchors.values": values}


def _has_replay(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return which anchors (n,) have replay: the first ones of each class."""
    labels = tensors["anchors.labels"].numpy()
    replayed = np.sort(tensors["replay.labels"].numpy()) if "replay.labels" in tensors else labels[:0]
    order = np.argsort(labels, kind="stable")
    rank = np.empty(len(labels), dtype=np.int64)  # of each anchor within its class
    rank[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    n_replay = np.searchsorted(replayed, labels, "right") - np.searchsorted(replayed, labels, "left")
    return torch.from_numpy(rank < n_replay)


@contextmanager
def _or_another_version(header: Header) -> Iterator[None]:
    """Explain weights that do not fit, by another version of braindecode or another custom network."""
    try:
        yield
    except (MissingExtra, MissingBackbone):
        raise
    except ValueError as error:
        facts = header.backbone
        if facts is None or not needs_network(header):
            raise
        if facts.kind == "own":
            raise BackboneError(
                f"{error}; pass the backbone that it was trained with, {facts.network}"
            ) from None
        if facts.version == (installed := braindecode_version()):
            raise
        raise BackboneError(
            f"{error}; it was written with braindecode {facts.version}, here is {installed}: "
            f"{pip_install(f'braindecode=={facts.version}')}"
        ) from None


def _pop_mean_std(tensors: dict[str, Tensor], name: str) -> tuple[np.ndarray, np.ndarray]:
    return tensors.pop(f"{name}.mean").numpy(), tensors.pop(f"{name}.std").numpy()


def _first_line(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return str(error).splitlines()[0][:400] if str(error) else type(error).__name__
