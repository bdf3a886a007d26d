"""The tables of a page of results: short enough to be read in a row."""

from anchorinv.core.catalogue import current_name
from anchorinv.report.cells import SIGNIFICANT, Cell, Column, Number, Table
from anchorinv.report.gather import Run
from anchorinv.report.groups import PARTS, Group, groups_of
from anchorinv.report.tables import LEVEL, leader, over, significant, test_notes
from anchorinv.study.names import method_name


def brief_scores(run: Run) -> Table:
    """Return macro-F1 over all classes after each session; over base and new classes after the last."""
    group = only_group(run)
    last = group.last
    shown = [
        *(("f1_all", session, str(session) if session else "base") for session in range(last + 1)),
        ("f1_base", last, f"base classes after {last}"),
        ("f1_new", last, f"new classes after {last}"),
    ]
    marks = significant(group)
    rows: list[list[Cell]] = []
    for line in group.lines:
        cells: list[Cell] = [line]
        for part, session, _ in shown:
            found = group.cell(line, session, part)
            mark = SIGNIFICANT if part == "f1_all" and (line, session) in marks else ""
            best = leader(group, part, session) == line
            cells.append(Number(found.mean, found.std, 1, best=best, mark=mark) if found else "")
        rows.append(cells)
    columns = [Column("Method"), *(Column(name) for _, _, name in shown)]
    notes = [
        "Macro-F1 in percent after each session, over all classes seen so far unless the column says "
        f"otherwise. {over(run)} The base session is one for each base seed.",
        *test_notes(run, [group])[:-1],  # the table of differences tells what that means
    ]
    return Table(f"{run.slug}-brief-scores", f"{run.study.title}: macro-F1", columns, rows, notes)


def choices(run: Run) -> Table:
    """Return macro-F1 over all, base and new classes after the last session, for every variant and method."""
    groups = groups_of(run) if run.results else []
    if not any(group.last for group in groups):
        raise ValueError(f"{run.path} has no results of a session; run the study first")
    rows: list[list[Cell]] = []
    for group in groups:
        for line, results in group.lines.items():
            cells = [group.cell(line, group.last, part) for part in PARTS]
            best = [leader(group, part, group.last) == line for part in PARTS]
            numbers = [
                Number(c.mean, c.std, 1, best=b) if c else "" for c, b in zip(cells, best, strict=True)
            ]
            n = sum(result.session == group.last for result in results)
            seconds = [result.seconds for result in results if result.session]
            cost = Number(sum(seconds) / len(seconds), digits=1) if seconds else ""
            before = [group.title] if len(groups) > 1 else []
            rows.append([*before, line, *numbers, Number(n, digits=0), cost])
    columns = [
        *([Column("Variant")] if len(groups) > 1 else []),
        Column("Method" if groups[0].of == "methods" else "Variant"),
        *(Column(words) for words in PARTS.values()),
        Column("Trials"),
        Column("Seconds a session"),
    ]
    notes = [
        "Macro-F1 in percent after the last session: mean ± population standard deviation; best in bold."
    ]
    return Table(f"{run.slug}-choices", f"{run.study.title}: after the last session", columns, rows, notes)


def differences(run: Run, reference: str = "", *, turned: bool = False) -> Table:
    """Return the paired differences between one method and each other after the last session.

    Parameters
    ----------
    reference : the one method; the study's reference where it is not named.
    turned : whether a difference is the one minus the other, not the other minus the one.
    """
    group = only_group(run)
    one = line_of(run, group, reference)
    tested = [e for e in group.compared(reference=one) if (e.session, e.over) == (group.last, "trials")]
    sign = -1 if turned else 1
    seeds = list(
        dict.fromkeys(seed for e in tested for seed in group.by_seed(e.comparison.method, one, e.session))
    )
    rows: list[list[Cell]] = []
    for each in tested:
        c = each.comparison
        means = {seed: sign * d for seed, d in group.by_seed(c.method, one, each.session).items()}
        signs = {(mean > 0) - (mean < 0) for mean in means.values()}
        low, high = sorted((sign * c.low, sign * c.high))
        rows.append([
            c.method,
            Number(sign * c.difference, signed=True),
            f"{Number(low, signed=True)} to {Number(high, signed=True)}" if c.n > 1 else "",
            _p(c.p_holm),
            Number(c.n, digits=0),
            *(Number(means[seed], signed=True) if seed in means else "" for seed in seeds),
            "yes" if len(signs) == 1 and 0 not in signs else "no",
        ])  # fmt: skip
    columns = [
        Column(f"{one} minus" if turned else "Method"),
        *(Column(name) for name in ("Difference", "95 % interval", "p (Holm)", "Pairs")),
        *(Column(f"Seed {seed}") for seed in seeds),
        Column("Same sign for every seed"),
    ]
    said = f"{one} minus each other method" if turned else f"Each method minus {one}"
    notes = [
        f"{said}: macro-F1 over all classes after session {group.last}, in points. A pair is a trial with "
        "the same base seed and the same shots for both; interval by Student's t, p by the two-sided "
        f"Wilcoxon signed-rank test, Holm-corrected over the {len(rows)} comparisons; "
        f"{SIGNIFICANT} p < {LEVEL}. Trials of a base seed share base model and test set: interval and p "
        "speak of other draws of the shots; the seeds' own means, of other base models."
    ]
    kind = "advantage" if turned else "differences"
    return Table(f"{run.slug}-{kind}", f"Paired differences: {one}", columns, rows, notes)


def _p(p: float) -> Cell:
    mark = SIGNIFICANT if p < LEVEL else ""
    return Number(p, digits=4, mark=mark) if p >= 1e-4 else f"< 0.0001{mark}"


def only_group(run: Run) -> Group:
    """Return what is compared in a run, where that is one group of methods after a first session."""
    groups = groups_of(run) if run.results else []
    if len(groups) != 1 or groups[0].of != "methods" or not groups[0].last:
        raise ValueError(f"{run.path} does not compare methods in one variant; make its own report instead")
    return groups[0]


def line_of(run: Run, group: Group, method: str = "") -> str:
    """Return what a method is called in a group; the reference where none is named."""
    called = method_name(method) if method else group.reference
    if called not in group.lines and method:
        called = method_name(current_name(method))
    if called is None or called not in group.lines or group.last not in group.sessions(called):
        there = ", ".join(group.methods[line] for line in group.lines)
        raise ValueError(f"{run.path} has no results of {method or run.study.reference}; it has {there}")
    return called
