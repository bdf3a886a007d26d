"""Base models and their replay on disk, each under the name of all that determines it."""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from anchorinv.core.checkpoint import Checkpoint
from anchorinv.core.memory import Memory
from anchorinv.core.packing import packed, unpacked
from anchorinv.core.recipe import BaseLearner
from anchorinv.core.types import State
from anchorinv.files import HERE, half_written
from anchorinv.study.identity import digest
from anchorinv.tensors import read_tensors, write_tensors

logger = logging.getLogger(__name__)

#: A state as :func:`~anchorinv.core.packing.packed` returns it.
Packed = tuple[dict[str, Tensor], dict[str, Any]]


_NAME = "[0-9a-f]" * 24
_HALVES = tuple(
    f"{kind}-{_NAME}.{end}.{HERE}" for kind in ("base", "replay") for end in ("safetensors", "unfinished")
)


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Say that a process uses a folder of base models inside the block; the first to do so sweeps it.

    What killed processes have half written lies there for ever otherwise. Several runs may share the folder:
    it is swept only where nobody else has said to use it, and of what this machine has written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Where a file system knows no locks of folders nothing is swept.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in half_written(folder, *_HALVES):
                path.unlink()
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


class DiskShelf:
    """Keeps what methods and trials share, over runs.

    What was made is read back before it is used, so that a run that found it and one that made it continue
    from the same bits.

    Parameters
    ----------
    folder : where files lie; several studies may share one.
    determined_by : names of whatever determines a model beside its foundation: data, seed, versions.
    seconds : at most so much training is lost when the process is killed.
    """

    def __init__(self, folder: Path, *determined_by: Any, seconds: float = 60.0) -> None:
        self._folder, self._by, self._seconds = folder, digest(list(determined_by)), seconds
        self._bases: dict[BaseLearner, tuple[State, float]] = {}

    def base(
        self, foundation: BaseLearner, make: Callable[[Checkpoint | None], State]
    ) -> tuple[State, float]:
        """Return a base model and the seconds it took, making it if nobody did."""
        if foundation not in self._bases:
            path = self.base_path(foundation)
            checkpoint = self.checkpoint(path)
            self._bases[foundation] = self._kept(path, foundation, lambda: make(checkpoint), lambda _: True)
            checkpoint.drop()
        return self._bases[foundation]

    def recalled(self, foundation: BaseLearner, memory: Memory, make: Callable[[], State]) -> State:
        """Return the base model with a memory's replay of the base classes, making it if nobody did.

        Only inversion takes long; other memories are recalled anew, and recordings are never written.
        """
        return self._kept(self.replay_path(foundation, memory), foundation, make, inverted)[0]

    def find(self, foundation: BaseLearner, memory: Memory | None = None) -> State | None:
        """Return a base model, or with a memory its replay, if it is here; a damaged file is an error."""
        path = self.replay_path(foundation, memory) if memory else self.base_path(foundation)
        return unpacked(*read_tensors(path), foundation.backbone) if path.exists() else None

    def base_path(self, foundation: BaseLearner) -> Path:
        """Return where a base model is, or would be."""
        return self._folder / f"base-{digest('base', self._by, foundation)}.safetensors"

    def replay_path(self, foundation: BaseLearner, memory: Memory) -> Path:
        """Return where a memory's replay of the base classes is, or would be."""
        return self._folder / f"replay-{digest('replay', self._by, foundation, memory)}.safetensors"

    def checkpoint(self, path: Path) -> "FileCheckpoint":
        """Return where the training of what will be at ``path`` is left and taken up."""
        return FileCheckpoint(path.with_suffix(".unfinished"), seconds=self._seconds)

    def write(self, path: Path, packed_state: Packed, seconds: float) -> None:
        """Keep a packed state that took so many seconds."""
        tensors, facts = packed_state
        write_tensors(path, tensors, {**facts, "seconds": round(seconds, 3)})
        logger.info("made %s in %.1f s", path.name, seconds)

    def read(self, path: Path, foundation: BaseLearner) -> Packed | None:
        """Return a packed state with its seconds, or None where it is missing or damaged, which is said."""
        if not path.exists():
            return None
        try:
            tensors, facts = read_tensors(path)
            unpacked(tensors, facts, foundation.backbone)
        except ValueError as error:
            logger.warning("%s; it is made again", error)
            return None
        logger.info("found %s", path.name)
        return tensors, facts

    def _kept(
        self,
        path: Path,
        foundation: BaseLearner,
        make: Callable[[], State],
        worth_keeping: Callable[[State], bool],
    ) -> tuple[State, float]:
        found = self.read(path, foundation)
        if found is None:
            began = time.perf_counter()
            state = make()
            seconds = time.perf_counter() - began
            if not worth_keeping(state):
                return state, seconds
            self.write(path, packed(state), seconds)
            found = self.read(path, foundation)
            assert found is not None, "what was just written can be read"
        tensors, facts = found
        return unpacked(tensors, facts, foundation.backbone), float(facts["seconds"])


def inverted(state: State) -> bool:
    """Say whether a state holds inverted replay, which takes long to make."""
    return any(curve.name == "invert" for curve in state.curves)


class FileCheckpoint:
    """A training's last position, in a file.

    Parameters
    ----------
    seconds : between two writings.
    """

    def __init__(self, path: Path, *, seconds: float) -> None:
        self._path, self._seconds, self._last = path, seconds, time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """Return what was left, or None."""
        if not self._path.exists():
            return None
        try:
            values, _ = read_tensors(self._path)
        except ValueError as error:
            logger.warning("%s; training starts again", error)
            return None
        logger.info("training goes on after %d steps", len(values["curve"]))
        return values

    def save(self, values: Callable[[], dict[str, Tensor]]) -> None:
        """Write the values if the last writing is long ago."""
        if time.monotonic() - self._last >= self._seconds:
            self.write(values())

    def write(self, values: dict[str, Tensor]) -> None:
        """Write the values."""
        write_tensors(self._path, values, {})
        self._last = time.monotonic()

    def drop(self) -> None:
        """Remove the file: the training is finished."""
        self._path.unlink(missing_ok=True)
