"""What is left of a study: for each method in each leg its base model first, then its trials."""

import copyreg
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from anchorinv.cluster.library import ray
from anchorinv.cluster.messages import to_arrays
from anchorinv.core.recipe import Method, Recipe
from anchorinv.study.parts import Part
from anchorinv.study.samples import Samples
from anchorinv.study.shelf import DiskShelf, Packed
from anchorinv.study.work import Leg, Own, Work


@dataclass(eq=False)
class PendingRun:
    """One method in one leg, and what is left of it.

    Parameters
    ----------
    name : str
        No other one has it.
    pending : deque of Part
        In order; those handed out are taken from here.
    samples : ObjectRef
        The leg's windows.
    base, replay : ObjectRef or None
        Once they are known.
    base_path, replay_path : Path or None
        Where they lie on the shelf; None for a method that is no recipe.
    """

    name: str
    leg: Leg
    method: str
    what: Method
    pending: deque[Part]
    shelf: DiskShelf
    samples: Any
    base: Any = None
    replay: Any = None
    opened: bool = False
    base_path: Path | None = None
    replay_path: Path | None = None

    def __post_init__(self) -> None:
        if isinstance(self.what, Recipe):
            self.base_path = self.shelf.base_path(self.what.foundation)
            self.replay_path = self.shelf.replay_path(self.what.foundation, self.what.memory)
            self.base = placed(self.shelf.read(self.base_path, self.what.foundation))
            if self.base is not None:
                self.find_replay()

    def find_replay(self) -> None:
        """Take the replay from the shelf, if it is there; nothing is opened that need not be."""
        if isinstance(self.what, Recipe) and self.replay_path is not None and self.trials:
            self.replay = placed(self.shelf.read(self.replay_path, self.what.foundation))
            self.opened = self.replay is not None and not self.base_session

    @property
    def base_session(self) -> bool:
        """Whether the base session is still to be scored."""
        return bool(self.pending) and self.pending[0].trial is None

    @property
    def trials(self) -> bool:
        """Whether trials are left."""
        return bool(self.pending) and self.pending[-1].trial is not None

    @property
    def needs_base(self) -> bool:
        """Whether its base model has to be made first."""
        return self.base is None and isinstance(self.what, Recipe)


def placed(packed: Packed | None) -> Any:
    """Put a packed state into the object store, from which each node that needs it fetches it once."""
    if packed is None:
        return None
    tensors, facts = packed
    return ray().put((to_arrays(tensors), facts))


def placed_methods(own: Mapping[str, Own]) -> Any:
    """Put methods of one's own into the object store; one that cannot be sent is named."""
    odd: tuple[Any, ...] = (torch.classes, torch.ops)
    for module in odd:
        # Modules of a kind of their own, which go along with a function of a script that says ``.classes``.
        copyreg.pickle(type(module), lambda each: (import_module, (each.__name__,)))
    for name, make in own.items():
        try:
            ray().put(make)
        except TypeError as error:
            why = error.__cause__ or error
            raise ValueError(
                f"the method {name!r} cannot be sent to workers ({str(why).strip().splitlines()[0]}); "
                f"make it of plain functions and values, or run it without --workers and --cluster"
            ) from None
    return ray().put(dict(own))


class Legs:
    """Opens legs one by one, as there is room for their work; samples of legs alike are placed once."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._left = deque(work.legs)
        self._samples: tuple[tuple[Any, ...], Samples, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._left)

    def open(self) -> Iterator[PendingRun]:
        """Yield the methods of the next leg that are not finished."""
        leg, parts = self._left.popleft()
        samples, placed_samples = self._placed(leg)
        shelf = self._work.shelf_of(leg, samples)
        for name, method in leg.methods(self._work.own).items():
            pending = deque(part for part in parts if part.method == name)
            if pending:
                where = f"{leg.where}{name}, seed {leg.protocol.seed}"
                yield PendingRun(where, leg, name, method, pending, shelf, placed_samples)

    def _placed(self, leg: Leg) -> tuple[Samples, Any]:
        settings = leg.experiment.model_dump(
            include={"data": True, "synthetic": True, "standardise": True, "protocol": {"leave_one_out"}}
        )
        classes = leg.protocol.base_classes, leg.protocol.sessions
        kind = (id(self._work.data[leg.variant]), leg.person, settings, classes)
        if self._samples is None or self._samples[0] != kind:
            samples = leg.samples(self._work.data[leg.variant])
            batches = (samples.train, samples.test)
            arrays = [
                tuple(part.numpy() for part in (batch.values, batch.labels, batch.groups) if part is not None)
                for batch in batches
            ]
            self._samples = kind, samples, ray().put(arrays)
        _, found, reference = self._samples
        return found, reference
