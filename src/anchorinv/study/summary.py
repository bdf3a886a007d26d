"""From results to what a person reads: mean and spread of each score, and a sentence of what they say."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from anchorinv.core.metrics import scores
from anchorinv.core.runner import SessionResult
from anchorinv.study.results import select

#: The scores of a table and how its columns call them.
PARTS = {"f1_all": "all", "f1_base": "base", "f1_new": "new"}


#: Results of one method and session -> a value for each, in the order of :func:`place` (n,).
Valued = Callable[[Sequence[SessionResult]], np.ndarray]


@dataclass(frozen=True, slots=True)
class Cell:
    """Mean and population standard deviation, in percent; no spread where there is a single value."""

    mean: float
    std: float | None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


def values(results: Sequence[SessionResult], method: str, session: int, part: str) -> np.ndarray:
    """Return a score in percent for each trial, ordered by person, base seed and trial (n,)."""
    chosen = sorted(select(results, method=method, session=session), key=place)
    return np.array([100 * getattr(scores(r.confusion, r.n_base), part) for r in chosen])


def cell(results: Sequence[SessionResult], method: str, session: int, part: str) -> Cell:
    """Return one cell of a table: over trials, or over people where they were studied one by one."""
    return over_trials_or_people(results, lambda some: values(some, method, session, part))


def over_trials_or_people(results: Sequence[SessionResult], valued: Valued) -> Cell:
    """Return mean and spread of values over trials; of each person's mean where there are several people."""
    people = list(dict.fromkeys(result.person for result in results))
    if len(people) > 1:
        found = np.array([valued([r for r in results if r.person == one]).mean() for one in people])
    else:
        found = valued(results)
    return Cell(float(found.mean()), float(found.std()) if len(found) > 1 else None)


def methods_of(results: Sequence[SessionResult]) -> list[str]:
    """Return the methods in the order they appear."""
    return list(dict.fromkeys(result.method for result in results))


def in_words(results: Sequence[SessionResult]) -> str:
    """Say what the last session shows: who is best, who forgot, who learned the new classes."""
    methods, last = methods_of(results), max(result.session for result in results)

    def mean(method: str, part: str, session: int = last) -> float:
        return cell(results, method, session, part).mean

    ranked = sorted(methods, key=lambda m: -mean(m, "f1_all"))
    best, second = ranked[0], ranked[1]
    won = values(results, best, last, "f1_all") - values(results, second, last, "f1_all")
    falls = {m: mean(m, "f1_base", 0) - mean(m, "f1_base") for m in methods}
    forgot = sorted(falls, key=lambda m: -falls[m])
    learned = sorted(methods, key=lambda m: -mean(m, "f1_new"))
    lost = [f"{falls[m]:.1f} ({m})" for m in forgot]
    new = [f"{mean(m, 'f1_new'):.1f} ({m})" for m in learned]
    n_new = max(len(result.classes) - result.n_base for result in results)
    return (
        f"After {n_new} new {'class' if n_new == 1 else 'classes'} {best} is best over all classes with a "
        f"macro-F1 of {mean(best, 'f1_all'):.1f}, {won.mean():.1f} points above {second} and ahead of it in "
        f"{int((won > 0).sum())} of {len(won)} trials. The base classes fell since the base session by "
        f"{_listed(lost)} points. The new classes were learned to "
        f"{_listed(new)}."
    )


def place(result: SessionResult) -> tuple[str, int, int]:
    """Return what is paired over methods: person, base seed and trial; the base session comes first."""
    return result.person, result.base_seed, -1 if result.trial is None else result.trial


def _listed(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last
