"""The work of a study that is left: legs with the same samples, their pending parts, and who does them."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from anchorinv._version import __version__
from anchorinv.core.geometry import Geometry
from anchorinv.core.protocol import Protocol
from anchorinv.core.recipe import Foundation, Method
from anchorinv.core.runner import SessionResult
from anchorinv.data.dataset import Dataset
from anchorinv.study.config import Experiment
from anchorinv.study.environment import peak_mb
from anchorinv.study.identity import digest
from anchorinv.study.methods import foundation_of, methods_of
from anchorinv.study.parts import Part
from anchorinv.study.samples import Samples, geometry_of, protocol_of, samples_of
from anchorinv.study.shelf import DiskShelf

#: Makes a method of one's own from the study's foundation.
Own = Callable[[Foundation], Method]


@dataclass(frozen=True, slots=True)
class Leg:
    """A stretch of a study with the same samples: one variant, one base seed, one person or all.

    It holds settings alone, no recordings: it is small, and can be sent to where it is computed.
    """

    variant: str
    person: str
    experiment: Experiment
    protocol: Protocol
    geometry: Geometry

    @classmethod
    def of(cls, variant: str, experiment: Experiment, data: Dataset, seed: int, person: str) -> "Leg":
        """Return a leg of a variant on its data set."""
        protocol = protocol_of(experiment, data, seed)
        return cls(variant, person, experiment, protocol, geometry_of(experiment, data))

    @property
    def where(self) -> str:
        """What stands before a method's name in messages of progress."""
        return "".join(f"{name}, " for name in (self.variant, self.person) if name)

    def part(self, method: str, trial: int | None) -> Part:
        """Return a part of the leg."""
        return Part(self.variant, self.person, self.protocol.seed, method, trial)

    def methods(self, own: Mapping[str, Own]) -> dict[str, Method]:
        """Return the study's methods and one's own, by name and in order."""
        base_classes = self.protocol.base_classes
        foundation = foundation_of(self.experiment, self.geometry, base_classes)
        made: dict[str, Method] = {**methods_of(self.experiment, self.geometry, base_classes)}
        return made | {name: make(foundation) for name, make in own.items()}

    def samples(self, data: Dataset) -> Samples:
        """Return the leg's training and test windows."""
        return samples_of(self.experiment, data, self.person, self.protocol)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What is left of a study.

    Parameters
    ----------
    legs : in order, each with its pending parts, in order.
    data : data set of each variant.
    shelf : folder of base models and replay.
    own : methods of one's own by name.
    seconds : at most so much of a base training is lost when the process is killed.
    """

    legs: Sequence[tuple[Leg, Sequence[Part]]]
    data: Mapping[str, Dataset]
    shelf: Path
    own: Mapping[str, Own] = field(default_factory=dict)
    seconds: float = 60.0

    def shelf_of(self, leg: Leg, samples: Samples) -> DiskShelf:
        """Return the shelf of what the leg's methods and trials share."""
        base = samples.train.of(*leg.protocol.base_classes)
        return DiskShelf(
            self.shelf,
            digest(base.values, base.labels),
            leg.protocol.seed,
            leg.experiment.threads,
            torch.__version__,
            __version__,
            seconds=self.seconds,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of a part: all its results, or none and why.

    Parameters
    ----------
    error : kind and message, in a line.
    details : where it happened, in lines.
    """

    part: Part
    results: Sequence[SessionResult]
    error: str = ""
    details: str = ""

    @classmethod
    def of(cls, part: Part, results: Sequence[SessionResult]) -> "Outcome":
        """Return what a part came to, computed just now in this process, with the memory that it took."""
        peak = peak_mb()
        named = [replace(each, variant=part.variant, person=part.person, peak_mb=peak) for each in results]
        return cls(part, named)


@dataclass(frozen=True, slots=True)
class AtWork:
    """Said now and then: how many parts are being computed at the same time."""

    running: int


#: Does the work: yields what became of each part as soon as it is known, in any order.
Executor = Callable[[Work], Generator["Outcome | AtWork", None, None]]


class Unfinished(ValueError):  # noqa: N818 (it is what it is called)
    """Some parts failed; the others are in the folder."""

    def __init__(self, failed: Sequence[Outcome], n_parts: int) -> None:
        first = failed[0]
        more = f", and {len(failed) - 1} more (all are in run.log)" if len(failed) > 1 else ""
        super().__init__(
            f"{len(failed)} of {n_parts} parts failed: {first.part}: {first.error}{more}. The others are "
            f"finished; run the same command again to try the failed ones anew"
        )


def described(error: BaseException) -> str:
    """Return an error in a line: its kind, and what it says."""
    told = " ".join(str(error).split())
    return f"{type(error).__name__}: {told}" if told else type(error).__name__
