"""The tables of a report: scores in the paper's layout, differences from it, tests, costs, calibration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import pandas as pd

from anchorinv.core.metrics import N_BINS
from anchorinv.report.formats import SIGNIFICANT, Cell, Column, Number, Table
from anchorinv.report.gather import LEVEL, Group, Run, groups_of, of_the_paper, only_best, varied_keys
from anchorinv.study.scores import CALIBRATION, PARTS, TRIAL, assumptions, method_title, summarise

#: Scores over classes, and their names in columns and panels.
CLASSES = {part: f"{words} classes" for part, words in PARTS.items()}
#: Columns of the comparison with the paper, and their short headers.
_COMPARED = {"ours": "", "paper": "", "difference": "diff."}
#: In the authors' code, runs of at most this many trials search for the number of steps.
MOST_CHOOSING = 10
CHOSEN_BY_TEST = (
    "In the authors' code a run of at most ten trials scores the test set every 50 iterations of finetuning, "
    "and each trial keeps the iteration that was best there. This table has ten trials, so the paper's "
    "numbers of methods that finetune may have been chosen by the test set, trial by trial; ours never are."
)


def score_tables(run: Run) -> list[Table]:
    """Return the tables of a run's scores."""
    tables = [scores_table(run), selection_table(run), pairs_table(run), n_base_table(run), paper_table(run)]
    return [table for table in tables if table]


def detail_tables(run: Run) -> list[Table]:
    """Return a run's tables of paired tests, costs and calibration."""
    tables = [comparisons_table(run), cost_table(run), calibration_table(run)]
    return [table for table in tables if table]


def _score(
    group: Group, line: str, session: int, part: str = "f1_all", *, digits: int = 2, tested: bool = True
) -> Cell:
    """Return a line's score as a cell, the best in bold; empty where there is none."""
    cell = group.cell(line, session, part) if line in group.lines else None
    if cell is None:
        return ""
    mark = SIGNIFICANT if tested and (line, session) in _significant(group, part) else ""
    return Number(cell.mean, cell.std, digits, best=group.best(session, part) == line, mark=mark)


@lru_cache(maxsize=256)
def _significant(group: Group, part: str) -> set[tuple[str, int]]:
    """Return the lines and sessions that differ significantly from the reference, by the corrected test."""
    return {(c.method, c.session) for c in group.comparisons(part) if c.over == "trials" and c.p_holm < LEVEL}


def _line_columns(groups: Sequence[Group]) -> list[Column]:
    """Return the columns that identify a line, and its group where there are several."""
    methods = groups[0].of == "methods"
    first = [Column("Variant" if methods else "Data")] if len(groups) > 1 else []
    return [*first, Column("Method" if methods else "Variant")]


def _lines_table(
    run: Run, slug: str, title: str, heads: Sequence[Column], cells: Callable[[Group, str], list[Cell]],
    notes: Sequence[str],
) -> Table:  # fmt: skip
    """Return a table with a row for each line of each group."""
    groups = groups_of(run)
    rows = [
        [*_group_cells(group, groups), line, *cells(group, line)] for group in groups for line in group.lines
    ]
    return Table(f"{run.slug}-{slug}", title, [*_line_columns(groups), *heads], rows, notes)


def _group_cells(group: Group, groups: Sequence[Group]) -> list[Cell]:
    return [group.title] if len(groups) > 1 else []


def scores_table(run: Run) -> Table:
    """Return macro-F1 over all, base and new classes per session: the paper's main table."""
    last = max(group.last for group in groups_of(run))
    scores = [(s, part) for part in CLASSES for s in range(0 if part == "f1_all" else 1, last + 1)]
    heads = [
        Column(_session(s), f"Macro-F1 ({CLASSES[part]})", str(s) if s else "base") for s, part in scores
    ]
    title = f"{run.study.title}: macro-F1 in percent"
    notes = [averaged_over(run), *test_notes(run)]

    def cells(group: Group, line: str) -> list[Cell]:
        return [_score(group, line, session, part) for session, part in scores]

    return _lines_table(run, "scores", title, heads, cells, notes)


def test_notes(run: Run) -> list[str]:
    """Explain the marks and the assumptions of the test, if there was one."""
    groups = groups_of(run)
    tested = [c for group in groups for c in group.comparisons()]
    if not tested:
        return []
    n = min(c.n for c in tested if c.over == "trials")
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
        for c in group.comparisons():
            rows.append([
                *_group_cells(group, groups),
                c.method,
                Number(c.session, digits=0),
                Number(c.difference, signed=True),
                *(Number(limit, signed=True) if c.n > 1 else "" for limit in (c.low, c.high)),
                Number(c.p, digits=4),
                Number(c.p_holm, digits=4, mark=SIGNIFICANT if c.p_holm < LEVEL else ""),
                Number(c.effect, signed=True),
                f"{c.n} {c.over if c.n > 1 else c.over.removesuffix('s')}",
            ])  # fmt: skip
    if not rows:
        return None
    reference = next(group.reference for group in groups if group.reference)
    columns = [
        *_line_columns(groups),
        *map(Column, ("Session", "Difference")),
        *(Column(name, "95 % interval") for name in ("from", "to")),
        *map(Column, ("p", "p (Holm)", "Effect", "Over")),
    ]
    notes = [
        f"Line minus {reference}, macro-F1 over all classes in points. Effect: matched-pairs rank-biserial "
        f"correlation, from −1 (always worse) to 1 (always better).",
        *test_notes(run),
    ]
    return Table(f"{run.slug}-tests", f"Paired differences from {reference}", columns, rows, notes)


def paper_table(run: Run) -> Table | None:
    """Return our scores, the paper's and their difference for each session; None where the paper has none."""
    lines = {
        (group.variants[line], frame["method"].iloc[0]): (group, line)
        for group in groups_of(run)
        for line, frame in group.lines.items()
    }
    numbers = published(run.study.name)
    cells: dict[tuple[str, str, str], dict[str, list[Cell]]] = {}
    doubts: list[str] = []
    for number in numbers:
        group, line = lines.get((number.variant, number.method), (None, ""))
        if group is None:
            continue
        session = number.session if number.session >= 0 else group.last
        if (ours := group.cell(line, session, number.score)) is None:
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
        *(Column(name, session, short) for session in sessions for name, short in _COMPARED.items()),
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
    title = f"Comparison with the paper ({numbers[0].table}): macro-F1 in percent"
    return Table(f"{run.slug}-paper", title, columns, rows, [*_paper_notes(run, numbers), *doubts])


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
    for table in of_the_paper()["tables"]:
        if config not in table["configs"]:
            continue
        doubts = {(row, column): why for row, column, why in table.get("misprints", [])}
        by_session = "columns" in table
        for method, row in table["rows"].items():
            columns = table["columns"] if by_session else table["variants"]
            for column, text in zip(columns, row.split("|"), strict=True):
                mean, *rest = text.split()
                score, session = column.split() if by_session else (table["score"], -1)
                std = next((float(word) for word in rest if word != "†"), None)
                variant, doubt = "" if by_session else column, doubts.get((method, column), "")
                numbers.append(Published(
                    table["name"], variant, method, int(session), score, float(mean), std,
                    table.get("trials"), "†" in rest, doubt,
                ))  # fmt: skip
    return tuple(numbers)


def _paper_notes(run: Run, numbers: Sequence[Published]) -> list[str]:
    notes = [f"The paper's numbers are as printed in its {numbers[0].table}; difference is ours − paper."]
    if any(number.marked for number in numbers):
        notes.append(f"{SIGNIFICANT} in the paper: differs from random sampling with p < 0.05, uncorrected.")
    if any(number.trials and number.trials <= MOST_CHOOSING for number in numbers):
        notes.append(CHOSEN_BY_TEST)
    if run.synthetic:
        notes.insert(0, "This run is on synthetic recordings: the differences mean nothing.")
    return notes


def selection_table(run: Run) -> Table | None:
    """Return the last session's macro-F1 by selection (rows) and data set (columns): the paper's Table 3."""
    experiments = run.study.variants
    groups = {
        experiments[group.variant].data.name: group
        for group in groups_of(run)
        if group.of == "variants"
        and varied_keys([experiments[name] for name in group.variants.values()]) == ["anchors.select"]
    }
    return _last_session_table(run, "selection", "Anchor selection", "Anchor selection", groups)


def pairs_table(run: Run) -> Table | None:
    """Return the last session's macro-F1 by method (rows) and base classes (columns): the paper's Table 9."""
    choices = {experiment.protocol.base_classes for experiment in run.variants().values()}
    if len(choices) < 2 or len({len(choice) for choice in choices}) > 1:
        return None
    groups = {group.title: group for group in groups_of(run) if group.of == "methods"}
    return _last_session_table(run, "pairs", "Choice of base classes", "Method", groups, "Base classes")


def _last_session_table(
    run: Run, slug: str, title: str, head: str, groups: Mapping[str, Group], over: str = ""
) -> Table | None:
    if not groups:
        return None
    notes = ["Macro-F1 over all classes after the last session, in percent.", *test_notes(run)]
    columns = [Column(head), *(Column(name, over) for name in groups)]
    return Table(f"{run.slug}-{slug}", title, columns, _last_scores(list(groups.values())), notes)


def _last_scores(groups: Sequence[Group]) -> list[list[Cell]]:
    lines = dict.fromkeys(line for group in groups for line in group.lines)
    return [[line, *(_score(group, line, group.last) for group in groups)] for line in lines]


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


def calibration_table(run: Run) -> Table | None:
    """Return calibration error and Brier score of base and of new classes after the last session.

    None where no result has probabilities.
    """
    groups = groups_of(run)
    last = pd.concat([group.scores[group.scores["session"] == group.last] for group in groups])
    n_missing = int(last["reliability"].isna().sum())
    if n_missing == len(last):
        return None
    notes = [
        "After the last session, separately for windows of base and of new classes (true class); lower is "
        f"better. {averaged_over(run)}",
        f"Expected calibration error: {N_BINS} bins of equal width of the largest probability; with few "
        "windows it is above 0 by chance alone. Brier score: squared error of the probabilities, summed over "
        "classes, from 0 to 2.",
    ]
    if n_missing:
        notes.append(
            f"{n_missing} of {len(last)} results have no probabilities and are left out: their method gives "
            "none, or they were computed by an earlier version."
        )
    measures = ("Expected calibration error", "Brier score")
    heads = [Column(part, measure) for measure in measures for part in ("base classes", "new classes")]
    cells = {group.title: _calibration(group) for group in groups}
    return _lines_table(run, "calibration", "Calibration", heads, lambda g, line: cells[g.title][line], notes)


def _calibration(group: Group) -> dict[str, list[Cell]]:
    """Return the cells of each line, a unique lowest value in bold."""
    cells = summarise(group.measured, ["line"], CALIBRATION)
    rows: dict[str, list[Cell]] = {line: [] for line in group.lines}
    for name in CALIBRATION:
        present = {line: c for line in rows if (c := cells.get((line, name))) and not pd.isna(c.mean)}
        best = only_best({line: round(cell.mean, 3) for line, cell in present.items()}, min)
        for line, row in rows.items():
            cell = present.get(line)
            row.append(Number(cell.mean, cell.std, 3, best=line == best) if cell else "")
    return rows


def averaged_over(run: Run) -> str:
    """Describe what a table's means are over."""
    if (n_people := run.scores["subject"].nunique()) > 1:
        return f"Mean ± population standard deviation over {n_people} people; best in bold."
    lines = run.scores.groupby(["variant", "method"]).size().index
    done = run.scores[run.scores["trial"] >= 0].drop_duplicates(["variant", "method", *TRIAL])
    n = done.groupby(["variant", "method"]).size()
    least, most = n.reindex(lines, fill_value=0).agg(["min", "max"])
    n_trials = f"{most}" if least == most else f"{least} to {most}"
    trials = "trial" if most == 1 else "trials"
    return f"Mean ± population standard deviation over {n_trials} {trials}; best in bold."


def _session(number: int) -> str:
    return {-1: "Last session", 0: "Base session"}.get(number, f"Session {number}")


def choices_table(run: Run) -> Table:
    """Return macro-F1 over all, base and new classes after the last session, for every variant and method."""
    if not run.results or not any(group.last for group in groups_of(run)):
        raise ValueError(f"{run.path} has no results of a session; run the study first")

    def cells(group: Group, line: str) -> list[Cell]:
        frame = group.lines[line]
        seconds = frame.loc[frame["session"] > 0, "seconds"]
        return [
            *(_score(group, line, group.last, part, digits=1, tested=False) for part in CLASSES),
            Number(int((frame["session"] == group.last).sum()), digits=0),
            Number(seconds.mean(), digits=1) if len(seconds) else "",
        ]

    heads = [*map(Column, (*CLASSES.values(), "Trials", "Seconds a session"))]
    note = "Macro-F1 in percent after the last session: mean ± population standard deviation; best in bold."
    return _lines_table(run, "choices", f"{run.study.title}: after the last session", heads, cells, [note])


def brief_scores(run: Run, *, between: bool = True) -> Table:
    """Return macro-F1 after each session, or without those ``between``; of base and new ones at the end."""
    last = only_group(run).last
    columns = [
        *((s, "f1_all", str(s) if s else "base") for s in range(last + 1) if between or s in (0, last)),
        *((last, part, f"{CLASSES[part]} after {last}") for part in ("f1_base", "f1_new")),
    ]
    when = "each session" if between else "the base session and the last"
    notes = [
        f"Macro-F1 in percent after {when}, over all classes seen so far unless the column says otherwise. "
        f"{averaged_over(run)} The base session is one for each base seed.",
        *test_notes(run)[:-1],  # the table of differences says what that means
    ]

    def cells(group: Group, line: str) -> list[Cell]:
        return [_score(group, line, s, p, digits=1, tested=p == "f1_all") for s, p, _ in columns]

    heads = [Column(name) for _, _, name in columns]
    return _lines_table(run, "brief-scores", f"{run.study.title}: macro-F1", heads, cells, notes)


def differences_table(run: Run, method: str = "", *, flipped: bool = False) -> Table:
    """Return the paired differences between one method and each other after the last session.

    By default the method is the study's reference; ``flipped`` is that method minus the other.
    """
    group = only_group(run)
    reference, sign = line_of(run, group, method), -1 if flipped else 1
    tested = [
        c for c in group.comparisons(reference=reference) if (c.session, c.over) == (group.last, "trials")
    ]
    differences = {c.method: sign * group.differences(c.method, reference, group.last) for c in tested}
    by_seed = pd.DataFrame({name: values.groupby("seed").mean() for name, values in differences.items()})
    rows: list[list[Cell]] = []
    for c in tested:
        means = by_seed[c.method]
        low, high = sorted((sign * c.low, sign * c.high))
        mark = SIGNIFICANT if c.p_holm < LEVEL else ""
        rows.append([
            c.method,
            Number(sign * c.difference, signed=True),
            f"{Number(low, signed=True)} to {Number(high, signed=True)}" if c.n > 1 else "",
            Number(c.p_holm, digits=4, mark=mark) if c.p_holm >= 1e-4 else f"< 0.0001{mark}",
            Number(c.n, digits=0),
            *("" if pd.isna(mean) else Number(mean, signed=True) for mean in means),
            "yes" if (means.dropna() > 0).all() or (means.dropna() < 0).all() else "no",
        ])  # fmt: skip
    first = f"{reference} minus" if flipped else "Method"
    names = (first, "Difference", "95 % interval", "p (Holm)", "Pairs",
             *(f"Seed {seed}" for seed in by_seed.index), "Same sign for every seed")  # fmt: skip
    what = f"{reference} minus each other method" if flipped else f"Each method minus {reference}"
    note = (
        f"{what}: macro-F1 over all classes after session {group.last}, in points. A pair is a trial with "
        "the same base seed and the same shots for both; interval by Student's t, p by the two-sided "
        f"Wilcoxon signed-rank test, Holm-corrected over the {len(rows)} comparisons; "
        f"{SIGNIFICANT} p < {LEVEL}. Trials of a base seed share base model and test set: interval and p "
        "generalise to other draws of the shots; the seeds' means, to other base models."
    )
    slug = f"{run.slug}-{'advantage' if flipped else 'differences'}"
    return Table(slug, f"Paired differences: {reference}", [*map(Column, names)], rows, [note])


def only_group(run: Run) -> Group:
    """Return the group of methods compared in a run, if it is the only one and has a first session."""
    groups = groups_of(run) if run.results else []
    if len(groups) != 1 or groups[0].of != "methods" or not groups[0].last:
        raise ValueError(f"{run.path} does not compare methods in one variant; make its own report instead")
    return groups[0]


def line_of(run: Run, group: Group, method: str = "") -> str:
    """Return the line of a method in a group; the reference where none is named."""
    line = method_title(method) if method else group.reference
    if line is None or line not in group.lines or group.last not in group.sessions(line):
        methods = ", ".join(frame["method"].iloc[0] for frame in group.lines.values())
        raise ValueError(f"{run.path} has no results of {method or run.study.reference}; it has {methods}")
    return line
