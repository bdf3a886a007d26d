"""Run folders without running: the confusion matrices are drawn, all else is as a run leaves it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from anchorinv.core.metrics import SplitReliability
from anchorinv.study.config import Study
from anchorinv.study.folder import RunFolder
from anchorinv.study.loading import load, scaled
from anchorinv.study.results import Job
from anchorinv.study.runner import SessionResult

SKILL = {"anchorinv": 0.7, "finetune": 0.2}


def smoke(config: str, trials: int | None = None) -> Study:
    """A shipped config at the smallest scale, with as many trials as asked for."""
    study = scaled(load(config), "smoke")
    if trials is None:
        return study
    variants = {
        name: each.model_copy(update={"protocol": each.protocol.model_copy(update={"trials": trials})})
        for name, each in study.variants.items()
    }
    return study.model_copy(update={"variants": variants})


def alone(study: Study) -> Study:
    """The same study of each person alone."""
    variants = {
        name: each.model_copy(update={"protocol": each.protocol.model_copy(update={"per_subject": True})})
        for name, each in study.variants.items()
    }
    return study.model_copy(update={"variants": variants})


def made(
    path: Path,
    study: Study,
    *,
    people: tuple[str, ...] = ("",),
    skip: Callable[[Job], bool] = lambda part: False,
    measured: Callable[[Job], bool] = lambda part: True,
) -> Path:
    """A run folder of a study, but for the parts to skip; those measured have probabilities."""
    folder, rng = RunFolder(path), np.random.default_rng(0)
    names = {each.data.name: [f"class {number}" for number in range(16)] for each in study.variants.values()}
    data = {name: {"fingerprint": "0" * 24, "classes": classes} for name, classes in names.items()}
    with folder.locked():
        folder.prepare(study, data=data, people={name: list(people) for name in study.variants})
        found = [r for part in folder.jobs() for r in _results(part, study, rng) if not skip(part)]
        folder.add([replace(r, reliability=drawn(r)) if measured(Job.of(r)) else r for r in found])
    return path


def drawn(result: SessionResult) -> SplitReliability:
    """Probabilities that fit a confusion matrix, and are too sure of new classes."""
    k, rng = len(result.classes), np.random.default_rng(result.confusion.sum())
    true, predicted = (
        np.repeat(each, result.confusion.ravel()) for each in np.indices((k, k)).reshape(2, -1)
    )
    low = 1 / k + 0.05
    top = rng.uniform(np.where(true < result.n_base, low, 0.9), 1.0)  # (n,)
    p = np.repeat((1 - top)[:, None] / (k - 1), k, axis=1)
    p[np.arange(len(p)), predicted] = top
    return SplitReliability.of(p, true, np.arange(k) < result.n_base)


def _results(part: Job, study: Study, rng: np.random.Generator) -> list[SessionResult]:
    course = study.variants[part.variant].protocol
    base, new = [int(c) for c in course.base_classes], [int(c) for c in course.sessions]
    found = []
    for session in [0] if part.trial is None else range(1, len(new) + 1):
        classes = (*base, *new[:session])
        k = len(classes)
        right = SKILL.get(part.method, 0.5)
        shares = np.full((k, k), (1 - right) / k) + right * np.eye(k)
        counts = np.array([rng.multinomial(25, row / row.sum()) for row in shares])
        found.append(
            SessionResult(
                part.method,
                part.seed,
                part.trial,
                session,
                classes,
                len(base),
                counts,
                0.25 * session + 0.1,
                {"finetune": 0.5},
                part.variant,
                part.person,
                300.0 + session,
            )
        )
    return found
