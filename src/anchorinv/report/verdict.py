"""First what matters: which is best, by how much, and how sure that is."""

from dataclasses import dataclass

import numpy as np

from anchorinv.report.gather import Run
from anchorinv.report.groups import Group, groups_of
from anchorinv.report.tables import LEVEL


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a group of lines shows after its last session.

    Parameters
    ----------
    best, score : who leads, and with which macro-F1 over all classes ("37.0 ± 1.2").
    margin : by how much, in words.
    sure : how sure that is, in words.
    clear : whether the test says that it would hold for other draws of the shots.
    further : what it costs: base classes forgotten, new ones learned.
    """

    title: str
    best: str
    score: str
    margin: str
    sure: str
    clear: bool
    further: str


def verdicts(run: Run) -> list[Verdict]:
    """Return a verdict for each group of a run that has come to a new class."""
    found = [_verdict(group) for group in groups_of(run)] if run.results else []
    return [verdict for verdict in found if verdict]


def leaders(run: Run) -> str:
    """Say who leads in how many variants, where there are several groups of methods."""
    found = verdicts(run)
    if len(found) < 2:
        return ""
    names = ["nobody alone" if v.margin.startswith("level") else v.best for v in found]
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    clear = sum(v.clear for v in found)
    listed = ", ".join(f"{name} in {count}" for name, count in ranked)
    return f"Best over all classes: {listed} of {len(found)}; clearly so in {clear} of {len(found)}."


def _verdict(group: Group) -> Verdict | None:
    last = group.last
    cells = {line: cell for line in group.lines if (cell := group.cell(line, last, "f1_all"))}
    if last == 0 or not cells:
        return None
    ranked = sorted(cells, key=lambda line: -cells[line].mean)
    best = ranked[0]
    margin, sure, clear = _against_next(group, ranked)
    return Verdict(group.title, best, str(cells[best]), margin, sure, clear, _further(group, best))


def _against_next(group: Group, ranked: list[str]) -> tuple[str, str, bool]:
    best, last = ranked[0], group.last
    if len(ranked) < 2:
        return "", "There is nothing to compare it with.", False
    second = ranked[1]
    if group.reference is None and group.of == "variants":
        return f"next is {second}", "Their classes differ, so they are not tested against each other.", False
    found = [each.comparison for each in group.compared(reference=best)
             if (each.session, each.over, each.comparison.method) == (last, "trials", second)]  # fmt: skip
    won = -group.differences(second, best, last)
    if not found or not len(won):
        return f"next is {second}", "No trial is finished in both, so they cannot be compared.", False
    c = found[0]
    margin = (
        f"{-c.difference:.1f} points above {second}, ahead in {int((won > 0).sum())} of {len(won)} trials"
    )
    if abs(c.difference) < 0.05:
        return f"level with {second}", "There is no difference to be sure of.", False
    if c.n < 2:
        return margin, "One trial says nothing about how sure that is.", False
    interval = f"95 % interval {-c.high:+.1f} to {-c.low:+.1f} points".replace("-", "−")
    tests = len(ranked) - 1
    tested = f"{interval}; p = {c.p_holm:.2g}" + (
        f", Holm-corrected over {tests} comparisons" if tests > 1 else ""
    )
    if c.p_holm < LEVEL:
        return margin, f"Clear, for other draws of the shots: {tested}.", True
    return margin, f"Not sure: {tested}. Chance alone may put another first.", False


def _further(group: Group, best: str) -> str:
    last = group.last
    new, base, before = (
        group.cell(best, session, part)
        for session, part in ((last, "f1_new"), (last, "f1_base"), (0, "f1_base"))
    )
    if new is None or base is None or np.isnan(new.mean):
        return ""
    fell = f", {before.mean - base.mean:.1f} less than in the base session" if before else ""
    return f"New classes {new}; base classes {base}{fell}."
