"""A cache of base models and replay on disk, keyed by a hash of everything that determines them."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.memory import Memory
from anchorinv.core.minimise import Checkpoint
from anchorinv.core.recipe import BaseLearner, placed
from anchorinv.core.types import State
from anchorinv.files import HERE, read_tensors, write_tensors
from anchorinv.persistence.format import packed, unpacked

logger = logging.getLogger(__name__)

#: A state as :func:`~anchorinv.persistence.format.packed` returns it.
Packed = tuple[dict[str, Tensor], dict[str, Any]]

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
_NAME = "[0-9a-f]" * 24
#: Patterns of files that a killed process may have left partially written.
HALVES = tuple(
    f"{kind}-{_NAME}.{end}.{HERE}" for kind in ("base", "replay") for end in ("safetensors", "unfinished")
)


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
        own = {
            FORMER_DOTTED_NAMES.get(f"{kind}.{field.name}", field.name): described(getattr(value, field.name))
            for field in fields(value)
            # A setting that was added later is left out at its default, so that hashes stay the same.
            if not ("later" in field.metadata and getattr(value, field.name) == field.default)
        }
        return {"type": described(type(value)), **own}
    name = getattr(value, "__qualname__", None)
    if name is None or "<" in name:
        raise TypeError(
            f"{value!r} has no stable hash; use a function or a data class with a name of its own"
        )
    dotted = f"{value.__module__}.{name}"
    return FORMER_DOTTED_NAMES.get(dotted, dotted)


def digest(*parts: Any) -> str:
    """Return a short hash of settings and arrays, equal on all machines.

    Examples
    --------
    >>> digest({"a": 1}, torch.zeros(2)) == digest({"a": 1}, torch.zeros(2))
    True
    """
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


class ModelCache:
    """Stores base models and replay in a folder, for all methods, trials and runs that share them.

    What was made is read back before it is used, so that runs with and without a cached model are identical
    to the last bit. ``determined_by`` is what determines a model in addition to its settings (data, seed,
    versions), ``seconds`` the time between two checkpoints of a training.
    """

    def __init__(self, folder: Path, *determined_by: Any, seconds: float = 60.0) -> None:
        self._folder, self._by, self._seconds = folder, digest(list(determined_by)), seconds
        self._bases: dict[BaseLearner, tuple[State, float]] = {}

    def base(self, base_spec: BaseLearner, make: Callable[[Checkpoint | None], State]) -> tuple[State, float]:
        """Return a base model and the seconds its training took, training it if it is missing."""
        if base_spec not in self._bases:
            path = self.base_path(base_spec)
            checkpoint = self.checkpoint(path)
            self._bases[base_spec] = self._kept(path, base_spec, lambda: make(checkpoint), lambda _: True)
            checkpoint.drop()
        return self._bases[base_spec]

    def recalled(self, base_spec: BaseLearner, memory: Memory, make: Callable[[], State]) -> State:
        """Return the base model with a memory's replay of the base classes, making it if it is missing.

        Only inversion takes long; other memories are computed each time, and recordings are never written.
        """
        return self._kept(self.replay_path(base_spec, memory), base_spec, make, inverted)[0]

    def find(self, base_spec: BaseLearner, memory: Memory | None = None) -> State | None:
        """Return a base model, or with a memory its replay, if it is cached; a damaged file is an error."""
        path = self.replay_path(base_spec, memory) if memory else self.base_path(base_spec)
        return unpacked(*read_tensors(path), base_spec.backbone) if path.exists() else None

    def base_path(self, base_spec: BaseLearner) -> Path:
        """Return the path of a base model, cached or not."""
        return self._folder / f"base-{digest('base', self._by, base_spec)}.safetensors"

    def replay_path(self, base_spec: BaseLearner, memory: Memory) -> Path:
        """Return the path of a memory's replay of the base classes, cached or not."""
        return self._folder / f"replay-{digest('replay', self._by, base_spec, memory)}.safetensors"

    def checkpoint(self, path: Path) -> "FileCheckpoint":
        """Return the checkpoint of the training whose model will be at ``path``."""
        return FileCheckpoint(path.with_suffix(".unfinished"), seconds=self._seconds)

    def write(self, path: Path, packed_state: Packed, seconds: float) -> None:
        """Store a packed state and the seconds it took."""
        tensors, facts = packed_state
        write_tensors(path, tensors, {**facts, "seconds": round(seconds, 3)})
        logger.info("made %s in %.1f s", path.name, seconds)

    def read(self, path: Path, base_spec: BaseLearner) -> Packed | None:
        """Return a packed state with its seconds, or None if it is missing or damaged (logged)."""
        if not path.exists():
            return None
        try:
            tensors, facts = read_tensors(path)
            unpacked(tensors, facts, base_spec.backbone)
        except ValueError as error:
            logger.warning("%s; it is made again", error)
            return None
        logger.info("found %s", path.name)
        return tensors, facts

    def _kept(
        self,
        path: Path,
        base_spec: BaseLearner,
        make: Callable[[], State],
        worth_keeping: Callable[[State], bool],
    ) -> tuple[State, float]:
        stored = self.read(path, base_spec)
        if stored is None:
            began = time.perf_counter()
            state = make()
            seconds = time.perf_counter() - began
            if not worth_keeping(state):
                return state, seconds
            self.write(path, packed(state), seconds)
            stored = read_tensors(path)
        tensors, facts = stored
        return restored(tensors, facts, base_spec), float(facts["seconds"])


def restored(tensors: Mapping[str, Tensor], facts: Mapping[str, Any], base_spec: BaseLearner) -> State:
    """Unpack a state, its networks on the learner's device."""
    # Learners without a network, or of other packages, may have no device.
    return placed(unpacked(tensors, facts, base_spec.backbone), getattr(base_spec, "device", "cpu"))


def inverted(state: State) -> bool:
    """Return whether a state has inverted replay, which takes long to make."""
    return any(curve.name == "invert" for curve in state.curves)


class FileCheckpoint:
    """A checkpoint of a training in a file, written every so many seconds."""

    def __init__(self, path: Path, *, seconds: float) -> None:
        self.path, self._seconds, self._last = path, seconds, time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """Return the values of the last checkpoint, or None."""
        if not self.path.exists():
            return None
        try:
            values, _ = read_tensors(self.path)
        except ValueError as error:
            logger.warning("%s; training starts again", error)
            return None
        logger.info("training resumes after %d steps", len(values["curve"]))
        return values

    @property
    def due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return time.monotonic() - self._last >= self._seconds

    def save(self, values: Callable[[], dict[str, Tensor]]) -> None:
        """Write the values if that is due."""
        if self.due:
            self.write(values())

    def write(self, values: dict[str, Tensor]) -> None:
        """Write the values."""
        write_tensors(self.path, values, {})
        self._last = time.monotonic()

    def drop(self) -> None:
        """Remove the file: the training is finished."""
        self.path.unlink(missing_ok=True)
