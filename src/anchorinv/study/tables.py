"""All scores of a run, and all comparisons, as plain rows: what tables, files and figures are made of."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TypeVar

import numpy as np

from anchorinv.core.metrics import forgetting, scores
from anchorinv.core.runner import SessionResult
from anchorinv.quoting import csv_line
from anchorinv.study.stats import ASSUMPTION, Comparison, compare
from anchorinv.study.summary import methods_of, over_trials_or_people, place

Key = TypeVar("Key", bound=Hashable)

#: Scores of one session, in the order of the columns; ``forgetting`` is the fall of base macro-F1.
SCORES = ("f1_all", "f1_base", "f1_new", "harmonic", "accuracy", "balanced_accuracy", "kappa", "forgetting")
#: Whose mean is a row: a person's, or that over people or all pooled.
EVERYBODY = "all"


@dataclass(frozen=True, slots=True)
class Row:
    """One score of one method after one session: mean and population standard deviation, in percent.

    Parameters
    ----------
    person : or "all"; where people were studied one by one, "all" is over their means.
    score : one of SCORES, or "f1 of" a class.
    n : trials (over all base seeds), or people.
    """

    variant: str
    person: str
    method: str
    session: int
    score: str
    mean: float
    std: float
    n: int


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison with the reference method after one session, over trials, base seeds or people."""

    variant: str
    session: int
    reference: str
    over: str
    comparison: Comparison


ROW = [field.name for field in fields(Row)]
COMPARED = [f.name for f in fields(Compared)[:-1]] + [f.name for f in fields(Comparison)]


def rows(
    results: Sequence[SessionResult], class_names: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Row]:
    """Yield every score of a run; ``class_names`` are those of each variant."""
    bases = {_line(r): r for r in results if r.session == 0}
    for variant, some in _by(results, lambda r: r.variant).items():
        people = list(dict.fromkeys(result.person for result in some))
        for person in [EVERYBODY, *(people if len(people) > 1 else [])]:
            own = some if person == EVERYBODY else [r for r in some if r.person == person]
            for (method, session), group in _by(own, lambda r: (r.method, r.session)).items():
                n = len(people) if person == EVERYBODY and len(people) > 1 else len(group)
                for score in (*SCORES, *(f"f1 of {c}" for c in group[0].classes)):
                    found = over_trials_or_people(group, _valued(score, bases))
                    named = _named(score, (class_names or {}).get(variant, ()))
                    if session == 0 and np.isnan(found.mean):
                        continue  # there are no new classes yet
                    yield Row(variant, person, method, session, named, found.mean, found.std or 0.0, n)


def comparisons(
    results: Sequence[SessionResult], reference: str, score: str = "f1_all"
) -> Iterator[Compared]:
    """Yield the paired comparison of every method with a reference, per variant and session.

    Over trials; and, where there are several base seeds or people, over their means too.
    """
    valued = _valued(score, {_line(r): r for r in results if r.session == 0})
    for variant, some in _by(results, lambda r: r.variant).items():
        methods = methods_of(some)
        if reference not in methods or len(methods) < 2:
            continue
        for session in range(1, max((r.session for r in some), default=0) + 1):
            now = [r for r in some if r.session == session]
            by_method = {m: sorted((r for r in now if r.method == m), key=place) for m in methods}
            for over, key in _UNITS.items():
                groups = {m: _by(each, key) for m, each in by_method.items()}
                shared = [k for k in groups[reference] if all(k in g for g in groups.values())]
                if len(shared) < (1 if over == "trials" else 2):
                    continue
                columns = {m: [float(valued(g[k]).mean()) for k in shared] for m, g in groups.items()}
                for each in compare(columns, reference):
                    yield Compared(variant, session, reference, over, each)


#: What may be paired, and what tells one pair from another.
_UNITS: dict[str, Callable[[SessionResult], tuple[object, ...]]] = {
    "trials": lambda r: place(r),
    "base seeds": lambda r: (r.base_seed,),
    "people": lambda r: (r.person,),
}


def assumptions(results: Sequence[SessionResult]) -> str:
    """Say what the tests assume, given how many base models and people there are."""
    seeds, people = ({getattr(r, name) for r in results} for name in ("base_seed", "person"))
    further = [
        f"{len(some)} {what}" for some, what in ((seeds, "base seeds"), (people, "people")) if len(some) > 1
    ]
    if not further:
        return ASSUMPTION
    return (
        f"Trials of one base model share it and its test set. The test over trials, pooled over "
        f"{' and '.join(further)}, counts them as if they did not: it speaks of other draws of the shots. "
        f"The test over {' and over '.join(further)} asks whether it holds for other ones, with as few pairs "
        f"as there are."
    )


def as_csv(table: Sequence[Row] | Sequence[Compared], header: Sequence[str] = ROW) -> str:
    """Return rows as a table with a header, which an empty table has too."""
    flat = [_flat(row) for row in table]
    names = list(flat[0]) if flat else list(header)
    return "".join(csv_line(cells) for cells in (names, *(row.values() for row in flat)))


def _flat(row: Row | Compared) -> dict[str, object]:
    plain = asdict(row)
    plain |= plain.pop("comparison", {})
    return {key: round(v, 6) if isinstance(v, float) else v for key, v in plain.items()}


def _valued(
    score: str, bases: dict[tuple[str, str, int, str], SessionResult]
) -> Callable[[Sequence[SessionResult]], np.ndarray]:
    def one(result: SessionResult) -> float:
        if score == "forgetting":
            base = bases.get(_line(result))
            if base is None:
                return float("nan")
            return forgetting(base.confusion, result.confusion, result.n_base)
        found = scores(result.confusion, result.n_base)
        if score.startswith("f1 of "):
            return found.f1[result.classes.index(int(score.removeprefix("f1 of ")))]
        return float(getattr(found, score))

    return lambda results: np.array([100 * one(result) for result in sorted(results, key=place)])


def _named(score: str, class_names: Sequence[str]) -> str:
    number = score.removeprefix("f1 of ")
    known = number != score and int(number) < len(class_names)
    return f"f1 of {class_names[int(number)]}" if known else score


def _line(result: SessionResult) -> tuple[str, str, int, str]:
    return result.variant, result.person, result.base_seed, result.method


def _by(
    results: Sequence[SessionResult], key: Callable[[SessionResult], Key]
) -> dict[Key, list[SessionResult]]:
    groups: dict[Key, list[SessionResult]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups
