"""What stands beside what: the methods of a variant, or, where there is one method, its variants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from anchorinv.core.metrics import scores
from anchorinv.core.runner import SessionResult
from anchorinv.report.gather import Run
from anchorinv.study.config import Experiment, dotted
from anchorinv.study.names import method_name, selection_name
from anchorinv.study.summary import Cell, methods_of, over_trials_or_people, place
from anchorinv.study.tables import Compared, comparisons

#: Scores over classes and what columns and panels call them.
PARTS = {"f1_all": "all classes", "f1_base": "base classes", "f1_new": "new classes"}
#: The paper's own value where a study varies it: what other values are compared with.
USUAL = {"anchors.select": "random", "anchors.per_class": 50, "protocol.shots": 10}


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Lines that are compared with each other.

    Parameters
    ----------
    title : what the lines have in common; empty where a run has one group.
    of : "methods" or "variants".
    lines : results of one method and one variant each, by what the line is called.
    methods : the method of each line.
    reference : the line that others are tested against; None where their classes differ.
    variant : a variant of the group, for its settings.
    """

    title: str
    of: str
    lines: dict[str, list[SessionResult]]
    methods: dict[str, str]
    reference: str | None
    variant: str

    @property
    def last(self) -> int:
        """Return the last session that any line has reached."""
        return max(result.session for results in self.lines.values() for result in results)

    def sessions(self, line: str) -> list[int]:
        """Return the sessions that a line has results of."""
        return sorted({result.session for result in self.lines[line]})

    def cell(self, line: str, session: int, part: str) -> Cell | None:
        """Return mean and spread of a score in percent; None where there is none."""
        some = [result for result in self.lines[line] if result.session == session]
        if not some or (part == "f1_new" and session == 0):
            return None
        return over_trials_or_people(some, lambda each: line_values(each, part))

    def compared(self, part: str = "f1_all", reference: str | None = None) -> list[Compared]:
        """Return the paired comparisons of all lines that have reached the last session."""
        return _compared(self, part, reference or self.reference)

    def differences(self, line: str, reference: str, session: int, part: str = "f1_all") -> np.ndarray:
        """Return line minus reference in percent for each trial that both have (n,)."""
        columns = [
            {place(r): 100 * getattr(scores(r.confusion, r.n_base), part) for r in self.lines[name]
             if r.session == session}
            for name in (line, reference)
        ]  # fmt: skip
        return np.array([columns[0][key] - columns[1][key] for key in columns[0] if key in columns[1]])

    def by_seed(self, line: str, reference: str, session: int, part: str = "f1_all") -> dict[int, float]:
        """Return the mean of line minus reference in percent for each base seed."""
        seeds = sorted({result.base_seed for result in self.lines[line]})
        found = {}
        for seed in seeds:
            own = {name: [r for r in self.lines[name] if r.base_seed == seed] for name in (line, reference)}
            differences = replace(self, lines=own).differences(line, reference, session, part)
            if len(differences):
                found[seed] = float(differences.mean())
        return found


@lru_cache(maxsize=256)
def _compared(group: Group, part: str, reference: str | None) -> list[Compared]:
    there = [name for name in group.lines if group.last in group.sessions(name)]
    if reference not in there or group.last == 0:
        return []
    renamed = [
        replace(result, method=name, variant=group.title) for name in there for result in group.lines[name]
    ]
    return list(comparisons(renamed, reference, part))


def line_values(results: Sequence[SessionResult], part: str) -> np.ndarray:
    """Return a score in percent for each result, in the order of trials (n,)."""
    chosen = sorted(results, key=place)
    return np.array([100 * getattr(scores(r.confusion, r.n_base), part) for r in chosen])


@lru_cache(maxsize=16)  # asked for by every table and figure
def groups_of(run: Run) -> list[Group]:
    """Return what is compared in a run."""
    variants = run.variants()
    several = {name for result in run.results for name in [result.method]}
    if len(several) > 1 or len(variants) == 1:
        return [_methods(run, name, title=name if len(variants) > 1 else "") for name in variants]
    data = list(dict.fromkeys(each.data.name for each in variants.values()))
    return [
        _variants(run, {n: e for n, e in variants.items() if e.data.name == name}, name if data[1:] else "")
        for name in data
    ]


def varied(experiments: Sequence[Experiment]) -> list[str]:
    """Return the keys in which experiments differ, by their dotted names."""
    plain = [dotted(each.model_dump(exclude={"not_published"})) for each in experiments]
    keys = dict.fromkeys(key for each in plain for key in each)
    return [key for key in keys if len({repr(each.get(key)) for each in plain}) > 1]


def _methods(run: Run, variant: str, title: str) -> Group:
    results = run.of(variant)
    methods = {method_name(method): method for method in methods_of(results)}
    lines = {shown: [r for r in results if r.method == method] for shown, method in methods.items()}
    reference = method_name(run.study.reference)
    return Group(title, "methods", lines, methods, reference if reference in lines else None, variant)


def _variants(run: Run, variants: dict[str, Experiment], title: str) -> Group:
    keys = varied(list(variants.values()))
    select = keys == ["anchors.select"]
    called = {name: selection_name(e.anchors.select) if select else name for name, e in variants.items()}
    reference = None
    if len(keys) == 1 and keys[0] in USUAL:
        usual = [n for n, e in variants.items() if dotted(e.model_dump())[keys[0]] == USUAL[keys[0]]]
        reference = called[usual[0]] if usual else None
    lines = {called[name]: run.of(name) for name in variants}
    methods = {label: results[0].method for label, results in lines.items()}
    return Group(title, "variants", lines, methods, reference, next(iter(variants)))
