"""Run a study in a folder: whatever is finished there is left alone, the rest is computed."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from anchorinv._version import __version__
from anchorinv.core.progress import tick
from anchorinv.core.recipe import Foundation, Method
from anchorinv.core.runner import chunks
from anchorinv.data.dataset import Dataset
from anchorinv.study.config import Experiment, Study
from anchorinv.study.environment import peak_mb, reset_peak
from anchorinv.study.folder import RunFolder
from anchorinv.study.identity import digest
from anchorinv.study.methods import foundation_of, methods_of
from anchorinv.study.parts import Part
from anchorinv.study.samples import check_samples, geometry_of, opened, people, protocol_of, samples_of
from anchorinv.study.shelf import DiskShelf

logger = logging.getLogger(__name__)

#: Makes a method of one's own from the study's foundation.
Own = Callable[[Foundation], Method]


@dataclass(frozen=True, slots=True)
class Leg:
    """A stretch of a study with the same samples: one variant, one base seed, one person or all."""

    variant: str
    experiment: Experiment
    data: Dataset
    seed: int
    person: str


def run_study(
    study: Study,
    out: Path,
    folders: Mapping[str, Dataset] | None = None,
    *,
    shelf: Path | None = None,
    own: Mapping[str, Own] | None = None,
    seconds: float = 60.0,
) -> None:
    """Compute all of a study that is not in the folder yet.

    Parameters
    ----------
    out : the run folder, new or of the same study.
    folders : data sets by name.
    shelf : where base models are kept; in the run folder, unless several studies share them.
    own : methods of one's own by name, beside the study's.
    seconds : at most so much of a base training is lost when the process is killed.
    """
    own = own or {}
    folder = RunFolder(out)
    data = _opened(study, folders or {})
    whom = {variant: people(study.variants[variant], data[variant]) for variant in study.variants}
    for variant, experiment in study.variants.items():
        check_samples(experiment, data[variant], whom[variant])
        if both := sorted(set(own) & set(experiment.methods)):
            raise ValueError(f"a method of your own is called {both[0]!r}, as one of the study; rename it")
    folder.check_free()
    with folder.locked():
        known = {
            study.variants[variant].data.name: {"fingerprint": each.fingerprint, "classes": each.class_names}
            for variant, each in data.items()
        }
        folder.prepare(study, data=json.loads(json.dumps(known)), people=whom, own=tuple(own))
        done = {Part.of(result) for result in folder.read().results}
        everything = folder.parts()
        logger.info("%s: %d of %d parts are finished", study.name, len(done), len(everything))
        pending = dict.fromkeys((p.variant, p.seed, p.person) for p in everything if p not in done)
        for variant, seed, person in pending:
            tick("whole study", len(done), len(everything))
            leg = Leg(variant, study.variants[variant], data[variant], seed, person)
            for part in _run_leg(leg, folder, shelf or out / "bases", done, own, seconds):
                done.add(part)
                tick("whole study", len(done), len(everything))


def _opened(study: Study, folders: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return the data set of each variant; classes and shapes that do not fit are found out here."""
    found: dict[str, Dataset] = {}
    alike: dict[str, Dataset] = {}
    for variant, experiment in study.variants.items():
        made_from = digest(experiment.model_dump(include={"data", "synthetic", "geometry", "protocol"}))
        if made_from not in alike:
            alike[made_from] = opened(experiment, folders)
        found[variant] = alike[made_from]
        protocol_of(experiment, found[variant], experiment.protocol.seeds[0])
    return found


def _run_leg(
    leg: Leg, folder: RunFolder, shelf: Path, done: set[Part], own: Mapping[str, Own], seconds: float
) -> Iterator[Part]:
    experiment, data = leg.experiment, leg.data
    torch.set_num_threads(experiment.threads)
    protocol = protocol_of(experiment, data, leg.seed)
    samples = samples_of(experiment, data, leg.person, protocol)
    geometry = geometry_of(experiment, data)
    foundation = foundation_of(experiment, geometry, protocol.base_classes)
    methods: dict[str, Method] = {**methods_of(experiment, geometry, protocol.base_classes)}
    methods |= {name: make(foundation) for name, make in own.items()}
    base = samples.train.of(*protocol.base_classes)
    kept = DiskShelf(
        shelf,
        digest(base.values, base.labels),
        leg.seed,
        experiment.threads,
        torch.__version__,
        __version__,
        seconds=seconds,
    )

    def skip(method: str, trial: int | None) -> bool:
        return Part(leg.variant, leg.person, leg.seed, method, trial) in done

    reset_peak()
    where = "".join(f"{name}, " for name in (leg.variant, leg.person) if name)
    for chunk in chunks(methods, samples.train, samples.test, protocol, shelf=kept, skip=skip, where=where):
        results = list(chunk.results)
        peak = peak_mb()
        folder.add(
            [replace(result, variant=leg.variant, person=leg.person, peak_mb=peak) for result in results]
        )
        part = Part(leg.variant, leg.person, leg.seed, chunk.method, chunk.trial)
        logger.info("finished %s", part)
        yield part
        reset_peak()
