"""What a study consists of: parts that are computed, written or lost as a whole, in a fixed order."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anchorinv.core.runner import SessionResult
from anchorinv.study.config import Study


@dataclass(frozen=True, slots=True)
class Part:
    """What is finished or lost as a whole: a method's base session (``trial`` None) or one of its trials."""

    variant: str
    person: str
    seed: int
    method: str
    trial: int | None

    def __str__(self) -> str:
        where = ", ".join(str(each) for each in (self.variant, self.person) if each)
        what = "base session" if self.trial is None else f"trial {self.trial}"
        return f"{self.method}, {what}, seed {self.seed}" + (f" ({where})" if where else "")

    @classmethod
    def of(cls, result: SessionResult) -> "Part":
        """Return the part that a result belongs to."""
        return cls(result.variant, result.person, result.base_seed, result.method, result.trial)


def parts(study: Study, variant: str, people: Sequence[str], own: Sequence[str]) -> Iterator[Part]:
    """Yield all that a variant consists of, in order: base seeds, people, methods, trials."""
    experiment = study.variants[variant]
    for seed in experiment.protocol.seeds:
        for person in people:
            for method in (*experiment.methods, *own):
                for trial in (None, *range(experiment.protocol.trials)):
                    yield Part(variant, person, seed, method, trial)


def all_parts(study: Study, about: Mapping[str, Any]) -> list[Part]:
    """Return all that a run consists of, in order; ``about`` is what ``config.json`` holds."""
    return [
        part
        for variant in study.variants
        for part in parts(study, variant, about["people"][variant], about["own"])
    ]


def whole_parts(results: Sequence[SessionResult], study: Study) -> list[SessionResult]:
    """Return the results of parts that have all their sessions."""
    counts = Counter(Part.of(result) for result in results)

    def wanted(part: Part) -> int:
        course = study.variants[part.variant].protocol
        return 1 if part.trial is None else len(course.sessions) // course.ways

    return [result for result in results if counts[Part.of(result)] == wanted(Part.of(result))]
