"""The tables of a report: scores in the paper's layout, differences from the paper, tests, costs."""

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from anchorinv.report.formats import SIGNIFICANT, Cell, Column, Number, Table
from anchorinv.report.gather import LEVEL, Group, Run, groups_of, varied
from anchorinv.study.scores import PARTS, TRIAL, assumptions, method_title

#: Scores over classes, and their names in columns and panels.
CLASSES = {part: f"{words} classes" for part, words in PARTS.items()}


#: In the authors' code, runs of at most this many trials search for the number of steps.
MOST_CHOOSING = 10
CHOSEN_BY_TEST = (
    "In the authors' code a run of at most ten trials scores the test set every 50 iterations of finetuning, "
    "and each trial keeps the iteration that was best there. This table has ten trials, so the paper's "
    "numbers of methods that finetune may have been chosen by the test set, trial by trial; ours never are."
)


def run_tables(run: Run) -> list[Table]:
    """Return all tables of a run."""
    made = [scores_table(run), selection_table(run), pairs_table(run), n_base_table(run), paper_table(run),
            comparisons_table(run), cost_table(run)]  # fmt: skip
    return [table for table in made if table]


def score(
    group: Group, line: str, session: int, part: str = "f1_all", *, digits: int = 2,
    marked: Collection[tuple[str, int]] = (),
) -> Cell:  # fmt: skip
    """Return a line's score as a cell, the best in bold; empty where there is none.

    ``marked`` are the lines and sessions of :func:`significant`.
    """
    cell = group.cell(line, session, part) if line in group.lines else None
    if cell is None:
        return ""
    mark = SIGNIFICANT if (line, session) in marked else ""
    return Number(cell.mean, cell.std, digits, best=group.best(session, part) == line, mark=mark)


def scores_table(run: Run) -> Table:
    """Return macro-F1 over all, base and new classes per session: the paper's main table."""
    groups = groups_of(run)
    last = max(group.last for group in groups)
    shown = [(part, s) for part in CLASSES for s in range(0 if part == "f1_all" else 1, last + 1)]
    heads = [
        Column("Base session" if s == 0 else f"Session {s}", f"Macro-F1 ({CLASSES[p]})") for p, s in shown
    ]
    rows: list[list[Cell]] = []
    for group in groups:
        marked = {part: significant(group, part) for part in CLASSES}
        for line in group.lines:
            cells = [score(group, line, session, part, marked=marked[part]) for part, session in shown]
            rows.append([*of_group(group, groups), line, *cells])
    title = f"{run.study.title}: macro-F1 in percent"
    notes = [averaged_over(run), *test_notes(run, groups)]
    return Table(f"{run.slug}-scores", title, [*line_columns(groups), *heads], rows, notes)


def significant(group: Group, part: str = "f1_all") -> set[tuple[str, int]]:
    """Return the lines and sessions that differ significantly from the reference, by the corrected test."""
    return {
        (each.comparison.method, each.session)
        for each in group.compared(part)
        if each.over == "trials" and each.comparison.p_holm < LEVEL
    }


def test_notes(run: Run, groups: Sequence[Group]) -> list[str]:
    """Explain the marks and the assumptions of the test, if there was one."""
    tested = [each for group in groups for each in group.compared()]
    if not tested:
        return []
    n = min(each.comparison.n for each in tested if each.over == "trials")
    reference = next(group.reference for group in groups if group.reference)
    notes = [
        f"{SIGNIFICANT} differs from {reference} with p < {LEVEL}: two-sided Wilcoxon signed-rank test over "
        f"{n} paired {'trial' if n == 1 else 'trials'}, Holm-corrected over the comparisons of a session.",
        assumptions(run.results),
    ]
    if 2.0 ** (1 - n) >= LEVEL:
        notes.insert(1, f"With {n} pairs p cannot fall below {2.0 ** (1 - n):.2g}, so nothing can be marked.")
    return notes


def comparisons_table(run: Run) -> Table | None:
    """Return all paired tests against the reference; None where there is nothing to compare."""
    groups = groups_of(run)
    rows: list[list[Cell]] = []
    for group in groups:
        for each in group.compared():
            c = each.comparison
            interval = [Number(limit, signed=True) if c.n > 1 else "" for limit in (c.low, c.high)]
            rows.append([
                *of_group(group, groups),
                c.method,
                Number(each.session, digits=0),
                Number(c.difference, signed=True),
                *interval,
                Number(c.p, digits=4),
                Number(c.p_holm, digits=4, mark=SIGNIFICANT if c.p_holm < LEVEL else ""),
                Number(c.effect, signed=True),
                f"{c.n} {each.over if c.n > 1 else each.over.removesuffix('s')}",
            ])  # fmt: skip
    if not rows:
        return None
    reference = next(group.reference for group in groups if group.reference)
    columns = [
        *line_columns(groups),
        *map(Column, ("Session", "Difference")),
        *(Column(name, "95 % interval") for name in ("from", "to")),
        *map(Column, ("p", "p (Holm)", "Effect", "Over")),
    ]
    notes = [
        f"Line minus {reference}, macro-F1 over all classes in points. Effect: matched-pairs rank-biserial "
        f"correlation, from −1 (always worse) to 1 (always better).",
        *test_notes(run, groups),
    ]
    return Table(f"{run.slug}-tests", f"Paired differences from {reference}", columns, rows, notes)


def paper_table(run: Run) -> Table | None:
    """Return our scores, the paper's and their difference for each session; None where the paper has none."""
    numbers = published(run.study.name)
    lines = {
        (group.variants[line], frame["method"].iloc[0]): (group, line)
        for group in groups_of(run)
        for line, frame in group.lines.items()
    }
    cells: dict[tuple[str, str, str], dict[str, list[Cell]]] = {}
    doubts: list[str] = []
    for number in numbers:
        if (number.variant, number.method) not in lines:
            continue
        group, line = lines[number.variant, number.method]
        ours = group.cell(line, number.session if number.session >= 0 else group.last, number.score)
        if ours is None:
            continue
        column = _session(number.session)
        if number.doubt:
            place = number.variant or column.lower()
            doubts.append(f"‡ {method_title(number.method)}, {place}: {number.doubt}.")
        mark = "‡" if number.doubt else SIGNIFICANT if number.marked else ""
        cells.setdefault((number.variant, number.method, number.score), {})[column] = [
            Number(ours.mean, ours.std),
            Number(number.mean, number.std, mark=mark),
            Number(round(ours.mean, 2) - number.mean, signed=True),
        ]
    if not cells:
        return None
    sessions = list(dict.fromkeys(_session(number.session) for number in numbers))
    several = len(run.study.variants) > 1
    columns = [
        *map(Column, (*(["Variant"] if several else []), "Method", "Classes")),
        *(Column(name, session) for session in sessions for name in ("ours", "paper", "difference")),
    ]
    rows: list[list[Cell]] = [
        [
            *([variant] if several else []),
            method_title(method),
            PARTS[part],
            *(cell for session in sessions for cell in by_session.get(session, ["", "", ""])),
        ]
        for (variant, method, part), by_session in cells.items()
    ]
    notes = [f"The paper's numbers are as printed in its {numbers[0].table}; difference is ours − paper."]
    if any(number.marked for number in numbers):
        notes.append(f"{SIGNIFICANT} in the paper: differs from random sampling with p < 0.05, uncorrected.")
    if warning := caveat(run.study.name):
        notes.append(warning)
    if run.synthetic:
        notes.insert(0, "This run is on synthetic recordings: the differences mean nothing.")
    title = f"Comparison with the paper ({numbers[0].table}): macro-F1 in percent"
    return Table(f"{run.slug}-paper", title, columns, rows, [*notes, *doubts])


@dataclass(frozen=True, slots=True)
class Published:
    """A number of the paper, in percent; likely misprints have a ``doubt``, and are not corrected.

    Session -1 is the last one. ``marked`` says whether the paper marks it as different from its reference.

    Examples
    --------
    >>> [n.mean for n in published("bci2a") if (n.method, n.score) == ("anchorinv", "f1_all")]
    [77.17, 50.7, 37.04]
    """

    table: str
    variant: str
    method: str
    session: int
    score: str
    mean: float
    std: float | None
    trials: int | None
    marked: bool
    doubt: str


@cache
def published(config: str) -> tuple[Published, ...]:
    """Return the paper's numbers for a shipped config; none for other studies."""
    numbers: list[Published] = []
    for table in tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))["tables"]:
        if config not in table["configs"]:
            continue
        doubts = {(row, column): why for row, column, why in table.get("misprints", [])}
        by_session = "columns" in table
        for method, row in table["rows"].items():
            columns = table["columns"] if by_session else table["variants"]
            for column, text in zip(columns, row.split("|"), strict=True):
                mean, *rest = text.split()
                score, session = column.split() if by_session else (table["score"], -1)
                std = next((float(each) for each in rest if each != "†"), None)
                variant, doubt = "" if by_session else column, doubts.get((method, column), "")
                numbers.append(Published(
                    table["name"], variant, method, int(session), score, float(mean), std,
                    table.get("trials"), "†" in rest, doubt,
                ))  # fmt: skip
    return tuple(numbers)


def caveat(config: str) -> str:
    """Return caveats of the comparison with the paper's numbers."""
    chosen = any(number.trials and number.trials <= MOST_CHOOSING for number in published(config))
    return CHOSEN_BY_TEST if chosen else ""


def selection_table(run: Run) -> Table | None:
    """Return the last session's macro-F1 by selection (rows) and data set (columns): the paper's Table 3."""
    groups = [group for group in groups_of(run) if group.of == "variants"]
    keys = [varied([run.study.variants[name] for name in group.variants.values()]) for group in groups]
    groups = [group for group, key in zip(groups, keys, strict=True) if key == ["anchors.select"]]
    columns = [Column(run.study.variants[group.variant].data.name) for group in groups]
    return _last_session_table(run, groups, "selection", "Anchor selection", "Anchor selection", columns)


def pairs_table(run: Run) -> Table | None:
    """Return the last session's macro-F1 by method (rows) and base classes (columns): the paper's Table 9."""
    choices = {experiment.protocol.base_classes for experiment in run.variants().values()}
    groups = [group for group in groups_of(run) if group.of == "methods"]
    if len(choices) < 2 or len({len(choice) for choice in choices}) > 1:
        return None
    columns = [Column(group.title, "Base classes") for group in groups]
    return _last_session_table(run, groups, "pairs", "Choice of base classes", "Method", columns)


def _last_session_table(
    run: Run, groups: Sequence[Group], slug: str, title: str, head: str, columns: Sequence[Column]
) -> Table | None:
    if not groups:
        return None
    notes = ["Macro-F1 over all classes after the last session, in percent.", *test_notes(run, groups)]
    return Table(f"{run.slug}-{slug}", title, [Column(head), *columns], _last_scores(groups), notes)


def _last_scores(groups: Sequence[Group]) -> list[list[Cell]]:
    lines = dict.fromkeys(line for group in groups for line in group.lines)
    marked = [significant(group) for group in groups]
    return [
        [line, *(score(g, line, g.last, marked=m) for g, m in zip(groups, marked, strict=True))]
        for line in lines
    ]


def n_base_table(run: Run) -> Table | None:
    """Return new classes' macro-F1 by number of base classes, and chance: the paper's Table 1."""
    variants = run.variants().values()
    sizes = {len(experiment.protocol.base_classes) for experiment in variants}
    if len(sizes) < 2 or len({experiment.data.name for experiment in variants}) > 1:
        return None
    groups = groups_of(run)
    methods = groups[0].of == "methods"
    rows: list[list[Cell]] = []
    for group in groups:
        for line, frame in group.lines.items():
            cell = group.cell(line, max(group.sessions(line)), "f1_new")
            rows.append([
                *([line] if methods else []),
                Number(frame["n_base"].iloc[0], digits=0),
                Number(cell.mean, cell.std) if cell else "",
                Number(100 / frame["classes"].map(len).max()),
            ])  # fmt: skip
    heads = (*(["Method"] if methods else []), "Base classes", "Macro-F1 (new classes)", "Chance")
    note = "After the last session, in percent, over new classes; predictions among all classes known then."
    title = "Number of base classes"
    return Table(f"{run.slug}-base-classes", title, [*map(Column, heads)], rows, [note])


def runs_table(groups: dict[str, Group]) -> Table:
    """Return the last session's macro-F1 of several runs side by side."""
    note = (
        "Macro-F1 over all classes after each run's last session, in percent; mean ± standard deviation "
        f"over trials. {SIGNIFICANT} differs from the run's reference; the run's tables say how that is "
        "tested."
    )
    columns = [Column("Method"), *map(Column, groups)]
    return Table("together", "Runs side by side", columns, _last_scores(list(groups.values())), [note])


def cost_table(run: Run) -> Table:
    """Return seconds and memory per method and variant."""
    several = run.scores["variant"].nunique() > 1
    digits = {"base": 1, "session": 2, "trial": 2, "peak_mb": 0}
    rows: list[list[Cell]] = [
        [
            *([variant] if several else []),
            method_title(method),
            *("" if pd.isna(cost[name]) else Number(cost[name], digits=d) for name, d in digits.items()),
        ]
        for (variant, method), cost in costs(run.scores, ["variant", "method"]).iterrows()
    ]
    heads = ("Method", "Base training (s)", "A session (s)", "A trial (s)", "Peak memory (MB)")
    columns = [*map(Column, (*(["Variant"] if several else []), *heads))]
    notes = [
        "Means over trials. Methods that share a base model show the same training time. Inverting the base "
        "classes is done once and not in these times. Peak memory is that of the whole process."
    ]
    return Table(f"{run.slug}-cost", "Seconds and memory", columns, rows, notes)


def costs(scores: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return mean seconds of the base session, of a later session and of a trial, and peak memory in MB.

    The scores are a table of :func:`anchorinv.study.scores.tidy`; a row for each group of the columns ``by``,
    with columns base, session, trial and peak_mb; nan where there is none.
    """
    base, later = (scores[(scores["session"] == 0) == is_base] for is_base in (True, False))
    trials = later.groupby(list(dict.fromkeys([*by, "variant", *TRIAL])))["seconds"].sum()
    columns = {
        "base": base.groupby(by)["seconds"].mean(),
        "session": later.groupby(by)["seconds"].mean(),
        "trial": trials.groupby(by).mean(),
        "peak_mb": scores.groupby(by)["peak_mb"].max(),
    }
    return pd.DataFrame(columns).reindex(scores.groupby(by, sort=False).size().index)


def averaged_over(run: Run) -> str:
    """Describe what a table's means are over."""
    if (n_people := run.scores["subject"].nunique()) > 1:
        return f"Mean ± population standard deviation over {n_people} people; best in bold."
    lines = run.scores.groupby(["variant", "method"]).size().index
    done = run.scores[run.scores["trial"] >= 0].drop_duplicates(["variant", "method", *TRIAL])
    n = done.groupby(["variant", "method"]).size()
    least, most = n.reindex(lines, fill_value=0).agg(["min", "max"])
    shown = f"{most}" if least == most else f"{least} to {most}"
    trials = "trial" if most == 1 else "trials"
    return f"Mean ± population standard deviation over {shown} {trials}; best in bold."


def _session(number: int) -> str:
    return {-1: "Last session", 0: "Base session"}.get(number, f"Session {number}")


def of_group(group: Group, groups: Sequence[Group]) -> list[Cell]:
    """Return the first cell of a group's rows, where there are several groups."""
    return [group.title] if len(groups) > 1 else []


def line_columns(groups: Sequence[Group]) -> list[Column]:
    """Return the columns that identify a row's line."""
    methods = groups[0].of == "methods"
    first = [Column("Variant" if methods else "Data")] if len(groups) > 1 else []
    return [*first, Column("Method" if methods else "Variant")]


def choices_table(run: Run) -> Table:
    """Return macro-F1 over all, base and new classes after the last session, for every variant and method."""
    groups = groups_of(run) if run.results else []
    if not any(group.last for group in groups):
        raise ValueError(f"{run.path} has no results of a session; run the study first")
    several = len(groups) > 1
    rows: list[list[Cell]] = []
    for group in groups:
        for line, frame in group.lines.items():
            seconds = frame.loc[frame["session"] > 0, "seconds"]
            rows.append([
                *([group.title] if several else []),
                line,
                *(score(group, line, group.last, part, digits=1) for part in CLASSES),
                Number(int((frame["session"] == group.last).sum()), digits=0),
                Number(seconds.mean(), digits=1) if len(seconds) else "",
            ])  # fmt: skip
    names = (*(["Variant"] if several else []), "Method" if groups[0].of == "methods" else "Variant",
             *CLASSES.values(), "Trials", "Seconds a session")  # fmt: skip
    note = "Macro-F1 in percent after the last session: mean ± population standard deviation; best in bold."
    title = f"{run.study.title}: after the last session"
    return Table(f"{run.slug}-choices", title, [*map(Column, names)], rows, [note])
