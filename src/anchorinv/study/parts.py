"""What a study consists of: parts that are computed, written or lost as a whole, in a fixed order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anchorinv.core.catalogue import current_name
from anchorinv.core.runner import SessionResult
from anchorinv.study.config import Study

#: More would not be listed in half a gigabyte, nor computed in a lifetime.
_MOST = 2_000_000


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


def check_number(study: Study, people: Mapping[str, Sequence[str]], own: Sequence[str]) -> None:
    """Refuse a study of more parts than anybody could list or compute."""
    n = sum(
        len(each.protocol.seeds)
        * len(people[variant])
        * (len(each.methods) + len(own))
        * (each.protocol.trials + 1)
        for variant, each in study.variants.items()
    )
    if n > _MOST:
        raise ValueError(f"the study has {n} parts, {_MOST} at most; lower trials, or divide it")


def all_parts(study: Study, about: Mapping[str, Any]) -> list[Part]:
    """Return all that a run consists of, in order; ``about`` is what ``config.json`` holds."""
    return [
        part
        for variant in study.variants
        for part in parts(study, variant, about["people"][variant], about["own"])
    ]


class Outline:
    """Which results a run can have: of its parts, with the classes that are known after each session.

    Parameters
    ----------
    about : what ``config.json`` holds, checked.
    """

    def __init__(self, study: Study, about: Mapping[str, Any]) -> None:
        self._parts = frozenset(all_parts(study, about))
        self._courses = {variant: each.protocol for variant, each in study.variants.items()}
        #: Of the base session, then of each session: in which order a method knows them is its affair.
        self._classes: dict[str, list[set[int]]] = {}
        for variant, each in study.variants.items():
            names, course = about["data"][each.data.name]["classes"], each.protocol
            new = [course.sessions[i : i + course.ways] for i in range(0, len(course.sessions), course.ways)]
            self._classes[variant] = [
                {c if isinstance(c, int) else names.index(c) for c in asked}
                for asked in (course.base_classes, *new)
            ]

    def n_sessions(self, part: Part) -> int:
        """Return how many results a part has."""
        course = self._courses[part.variant]
        return 1 if part.trial is None else len(course.sessions) // course.ways

    def named(self, result: SessionResult) -> SessionResult:
        """Return a result under its method's present name, unless a method of the run has the former one."""
        if Part.of(result) in self._parts:
            return result
        return replace(result, method=current_name(result.method))

    def check(self, result: SessionResult) -> None:
        """Refuse what cannot be a result of the run; the error says why."""
        part = Part.of(result)
        if part not in self._parts:
            raise ValueError(f"of {str(part)!r}, which is no part of this run")
        last = self.n_sessions(part)
        first = 0 if part.trial is None else 1
        if not first <= result.session < first + last:
            raise ValueError(f"of session {result.session}, where there are {first} to {first + last - 1}")
        wanted, left = self._classes[part.variant][: result.session + 1], list(result.classes)
        n_base = len(wanted[0])
        for classes in wanted:
            if classes != set(left[: len(classes)]):
                raise ValueError(f"its classes are not {list(map(sorted, wanted))}, session by session")
            del left[: len(classes)]
        if left or result.n_base != n_base:
            raise ValueError(f"it has {len(left)} classes too many, or not {n_base} of the base")
