"""A model in one file (``*.anchorinv``): all it needs to predict and to go on learning, and no code."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from anchorinv._version import __version__
from anchorinv.core.catalogue import CATALOGUE
from anchorinv.core.conformer import Conformer
from anchorinv.core.geometry import Geometry
from anchorinv.core.heads import Cosine
from anchorinv.core.network_block import NETWORK
from anchorinv.core.packing import packed, unpacked
from anchorinv.core.recipe import Foundation
from anchorinv.core.standardise import Standardisation
from anchorinv.core.training import Training
from anchorinv.core.types import State
from anchorinv.model.container import read_container, write_container
from anchorinv.model.header import Header, Kind, Label, history_facts, history_line, parse_header
from anchorinv.model.limits import MOST_TOLD
from anchorinv.model.small_anchors import with_small_anchors, with_whole_anchors
from anchorinv.model.soundness import check_parts, check_tensors
from anchorinv.model.statistics import SHAPES, BaseStatistics, Typical
from anchorinv.signal.facts import facts_of
from anchorinv.signal.preprocessing import Preprocessing

#: What each method replays, in the words of the manifest.
MEMORY: dict[str, Kind] = {
    "finetune": "none",
    "protonet": "none",
    "teen": "none",
    "anchorinv": "synthetic",
    "deepdream": "synthetic",
    "deepinv": "synthetic",
    "nc-fscil": "features of real samples",
    "latent-replay": "features of real samples",
    "real-replay": "real recordings",
    "ridge": "features of real samples",
    "whitened": "features of real samples",
    "fecam": "features of real samples",
    "anchorinv-plus": "features of real samples",
    "ranpac": "class statistics",
    "lda": "class statistics",
    "mdm": "class statistics",
    "discriminant": "class statistics",
}


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A model as a value.

    Parameters
    ----------
    method : its name in the catalogue.
    geometry : of the Conformer.
    state : what was learned.
    classes : the names of ``state.classes``: all text, all whole numbers or all booleans.
    standardisation : of signals, before the network.
    statistics : of the base data, in the unit of the signals.
    counts : examples behind each class.
    seed : from which sessions to come draw.
    settings : of the estimator, but its geometry, sfreq and preprocessing.
    geometry_given : whether the estimator's user chose the geometry.
    history : of the estimator, a dict per session.
    sfreq, ch_names, preprocessing : of the signals, where known.
    package : version that wrote it.
    """

    method: str
    geometry: Geometry
    state: State
    classes: tuple[Label, ...]
    standardisation: Standardisation
    statistics: BaseStatistics
    counts: tuple[int, ...]
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    geometry_given: bool = False
    history: tuple[dict[str, Any], ...] = ()
    sfreq: float | None = None
    ch_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    package: str = __version__

    @property
    def memory(self) -> Kind:
        """What is replayed; whatever the method, signals of people are real recordings."""
        return "real recordings" if self.state.recordings else MEMORY[self.method]


def save_bundle(
    path: Path | str, bundle: Bundle, *, with_signals: bool = False, allow_recordings: bool = False
) -> None:
    """Write a model to one file, whole or not at all.

    Parameters
    ----------
    with_signals : include the inverted signals that are at hand; nothing but eyes needs them.
    allow_recordings : write a model that holds recordings of people.
    """
    path = Path(path)
    if bundle.memory == "real recordings" and not allow_recordings:
        raise ValueError(
            f"this model ({bundle.method}) holds real recordings, which would be in {path} for everybody to "
            f"read; pass allow_recordings=True (--allow-recordings) if they may be"
        )
    header, tensors = _facts_of(bundle, with_signals=with_signals)
    try:
        _bundle_of(parse_header(header), tensors)  # what cannot be read back is not written
    except _ODD as error:
        was = "; the file that was there is untouched" if path.is_file() else ""
        raise ValueError(
            f"{path} is not written, as it could not be read: {_first_line(error)}{was}"
        ) from None
    # Equal tensors in memory are written twice: nothing may hang on what shares memory.
    payload = save({name: tensor.clone() for name, tensor in sorted(tensors.items())})
    write_container(path, header, payload)


def _facts_of(bundle: Bundle, *, with_signals: bool) -> tuple[bytes, dict[str, Tensor]]:
    state = bundle.state if with_signals else replace(bundle.state, signals=None)
    tensors, facts = packed(state)
    kept: dict[str, Standardisation | BaseStatistics | Typical] = {
        "standardisation": bundle.standardisation,
        "statistics": bundle.statistics,
    }
    shapes = {name: getattr(bundle.statistics, name) for name in SHAPES}
    kept |= {f"statistics.{name}": value for name, value in shapes.items() if value is not None}
    tensors = _with_short_curves(with_small_anchors(tensors)) | {
        f"{name}.{part}": torch.from_numpy(np.array(getattr(value, part), dtype=np.float64))
        for name, value in kept.items()
        for part in ("mean", "std")
    }
    facts = {
        "package": bundle.package,
        "method": bundle.method,
        "memory": bundle.memory,
        "geometry": asdict(bundle.geometry),
        "state": facts,
        "classes": bundle.classes,
        "counts": bundle.counts,
        "seed": bundle.seed,
        "sfreq": bundle.sfreq,
        "ch_names": bundle.ch_names,
        "settings": dict(bundle.settings),
        "geometry_given": bundle.geometry_given,
        "preprocessing": facts_of(bundle.preprocessing) if bundle.preprocessing else None,
        "history": [history_facts(line) for line in bundle.history],
    }
    return json.dumps(facts, ensure_ascii=False, allow_nan=False).encode(), tensors


def _with_short_curves(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out values of long curves, evenly, so that a file holds a picture of them and little more."""
    names = [name for name in tensors if name.startswith("curves.")]
    each = MOST_TOLD // max(1, len(names))
    return tensors | {name: tensors[name][:: -(-len(tensors[name]) // each) or 1].clone() for name in names}


#: What odd facts or tensors make of the code that reads them.
_ODD = (
    SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    IndexError,
    OverflowError,
    MemoryError,
)


def read_facts(path: Path | str) -> tuple[Header, dict[str, Tensor]]:
    """Return the facts and tensors of a model file, whole and checked: a model can be made of them."""
    header, tensors, _ = _read(Path(path))
    return header, tensors


def load_bundle(path: Path | str, *, allow_recordings: bool = False) -> Bundle:
    """Return the model in a file, or refuse the file in one sentence; nothing in it is run or trusted."""
    *_, bundle = _read(Path(path))
    if bundle.memory == "real recordings" and not allow_recordings:
        raise ValueError(
            f"{path} holds real recordings of people; pass allow_recordings=True (--allow-recordings) if you "
            f"may have them"
        )
    return bundle


@torch.inference_mode(False)
def _read(path: Path) -> tuple[Header, dict[str, Tensor], Bundle]:
    """Read and check a model file: the one way in, whether it is to be used or to be looked at."""
    _, text, payload = read_container(path)
    try:
        header, tensors = parse_header(text), load(payload)
        del payload  # as large as the tensors, which are copies
        return header, tensors, _bundle_of(header, tensors)
    except _ODD as error:
        raise ValueError(f"{path} is damaged: {_first_line(error)}") from None


def _bundle_of(header: Header, tensors: dict[str, Tensor]) -> Bundle:
    """Return the model that facts and tensors of a file describe, if they describe one."""
    check_tensors(tensors)
    geometry = Geometry(**header.geometry.model_dump())
    tensors = dict(with_whole_anchors(tensors))
    check_parts(header, geometry, tensors)
    standardisation = Standardisation(*_popped(tensors, "standardisation"))
    mean, std = _popped(tensors, "statistics")
    names = [f"statistics.{name}" for name in SHAPES]
    shapes = [Typical(*_popped(tensors, name)) if f"{name}.mean" in tensors else None for name in names]
    # Only the shape of the network is taken from the recipe, so its training does not matter.
    foundation = Foundation(partial(Conformer, geometry), Cosine.start, Training())
    encoder = header.state.encoder
    options = {"network": "always"} if encoder and NETWORK in encoder.blocks else {}
    backbone = CATALOGUE[header.method](foundation, **options).foundation.backbone
    state = unpacked(tensors, header.state.model_dump(exclude_none=True), backbone)
    if odd := sorted(tensors.keys() - packed(state)[0].keys()):
        raise ValueError(f"it holds {odd[0][:60]!r}, which is no part of a model")
    found = Bundle(
        method=header.method,
        geometry=geometry,
        state=state,
        classes=header.classes,
        standardisation=standardisation,
        statistics=BaseStatistics(mean, std, *shapes),
        counts=header.counts,
        seed=header.seed,
        settings=header.settings.model_dump(exclude_unset=True),
        geometry_given=header.geometry_given,
        history=tuple(history_line(entry) for entry in header.history),
        sfreq=header.sfreq,
        ch_names=header.ch_names,
        preprocessing=None if header.preprocessing is None else header.preprocessing.value,
        package=header.package,
    )
    if found.memory != header.memory:
        raise ValueError(f"it says that its memory is {header.memory}, and holds {found.memory}")
    return found


def _popped(tensors: dict[str, Tensor], name: str) -> tuple[np.ndarray, np.ndarray]:
    return tensors.pop(f"{name}.mean").numpy(), tensors.pop(f"{name}.std").numpy()


def _first_line(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return str(error).splitlines()[0][:400] if str(error) else type(error).__name__
