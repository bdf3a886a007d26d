"""Run a study in a folder: whatever is finished there is left alone, the rest is computed."""

import json
import logging
import traceback
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path

import torch

from anchorinv.core.progress import tick
from anchorinv.core.runner import chunks
from anchorinv.data.dataset import Dataset
from anchorinv.study.config import Study
from anchorinv.study.environment import reset_peak
from anchorinv.study.folder import RunFolder
from anchorinv.study.identity import digest
from anchorinv.study.parts import Part, check_number
from anchorinv.study.samples import check_samples, opened, people, protocol_of
from anchorinv.study.shelf import in_use
from anchorinv.study.work import AtWork, Executor, Leg, Outcome, Own, Unfinished, Work, described

logger = logging.getLogger(__name__)


def run_study(
    study: Study,
    out: Path,
    folders: Mapping[str, Dataset] | None = None,
    *,
    shelf: Path | None = None,
    own: Mapping[str, Own] | None = None,
    seconds: float = 60.0,
    executor: Executor | None = None,
    verify: bool = False,
) -> None:
    """Compute all of a study that is not in the folder yet.

    A part that fails does not stop the others; in the end it is an error that names it.

    Parameters
    ----------
    out : the run folder, new or of the same study.
    folders : data sets by name.
    shelf : where base models are kept; in the run folder, unless several studies share them.
    own : methods of one's own by name, beside the study's.
    seconds : at most so much of a base training is lost when the process is killed.
    executor : who computes; this process, unless ``anchorinv.cluster`` is asked to.
    verify : read all of the prepared recordings to see whether they changed, however large they are.
    """
    own = own or {}
    folder = RunFolder(out)
    data = _opened(study, folders or {})
    whom = {variant: people(study.variants[variant], data[variant]) for variant in study.variants}
    check_number(study, whom, list(own))
    for variant, experiment in study.variants.items():
        check_samples(experiment, data[variant], whom[variant])
        if both := sorted(set(own) & set(experiment.methods)):
            raise ValueError(f"a method of your own is called {both[0]!r}, as one of the study; rename it")
    folder.check_free()
    for each in {id(each): each for each in data.values()}.values():
        each.check(whole=verify)
    bases = shelf or out / "bases"
    with folder.locked(), in_use(bases):
        known = {
            study.variants[variant].data.name: {"fingerprint": each.fingerprint, "classes": each.class_names}
            for variant, each in data.items()
        }
        folder.prepare(study, data=json.loads(json.dumps(known)), people=whom, own=tuple(own))
        done = {Part.of(result) for result in folder.read().results}
        everything = folder.parts()
        logger.info("%s: %d of %d parts are finished", study.name, len(done), len(everything))
        work = Work(
            _legs(study, data, [p for p in everything if p not in done]),
            data,
            bases,
            own,
            seconds,
        )
        failed = _do(work, executor or in_process, folder, done=len(done), total=len(everything))
        folder.put_in_order()
    if failed:
        raise Unfinished(failed, len(everything))


def _do(work: Work, executor: Executor, folder: RunFolder, *, done: int, total: int) -> list[Outcome]:
    """Write results as they come, a part at a time, and return what failed."""
    failed: list[Outcome] = []
    running = ""
    with closing(executor(work)) as outcomes:
        tick("whole study", done, total)
        for outcome in outcomes:
            if isinstance(outcome, AtWork):
                running = f"{outcome.running} at work"
            elif outcome.error:
                failed.append(outcome)
                logger.error("%s failed: %s", outcome.part, outcome.error)
                logger.info("%s", outcome.details)
            else:
                folder.add(outcome.results)
                logger.info("finished %s", outcome.part)
                done += 1
            tick("whole study", done, total, note=running if done < total else "")
    return failed


def _legs(study: Study, data: Mapping[str, Dataset], pending: list[Part]) -> list[tuple[Leg, list[Part]]]:
    found: dict[tuple[str, int, str], list[Part]] = {}
    for part in pending:
        found.setdefault((part.variant, part.seed, part.person), []).append(part)
    return [
        (Leg.of(variant, study.variants[variant], data[variant], seed, person), parts)
        for (variant, seed, person), parts in found.items()
    ]


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


def in_process(work: Work) -> Generator[Outcome, None, None]:
    """Do the work here, part by part, in order."""
    for leg, parts in work.legs:
        yield from _run_leg(work, leg, set(parts))


def _run_leg(work: Work, leg: Leg, pending: set[Part]) -> Generator[Outcome, None, None]:
    torch.set_num_threads(leg.experiment.threads)
    samples = leg.samples(work.data[leg.variant])

    def skip(method: str, trial: int | None) -> bool:
        return leg.part(method, trial) not in pending

    for chunk in chunks(
        leg.methods(work.own),
        samples.train,
        samples.test,
        leg.protocol,
        shelf=work.shelf_of(leg, samples),
        skip=skip,
        where=leg.where,
    ):
        part = leg.part(chunk.method, chunk.trial)
        reset_peak()
        try:
            results = list(chunk.results)
        except OSError:
            raise  # a full disk is no fault of the method
        except Exception as error:
            yield Outcome(part, [], described(error), traceback.format_exc())
            continue
        yield Outcome.of(part, results)
