"""The tables of a report: scores in the paper's layout, the paper beside ours, tests, costs."""

from collections.abc import Sequence

from anchorinv.core.runner import SessionResult
from anchorinv.report.cells import SIGNIFICANT, Cell, Column, Number, Table
from anchorinv.report.gather import Run
from anchorinv.report.groups import PARTS, Group, groups_of
from anchorinv.report.paper import caveat, published
from anchorinv.study.names import method_name
from anchorinv.study.summary import place
from anchorinv.study.tables import assumptions

LEVEL = 0.05


def scores_table(run: Run) -> Table:
    """Return macro-F1 over all, base and new classes per session: the paper's main table."""
    groups = groups_of(run)
    last = max(group.last for group in groups)
    spans = {part: range(1 if part != "f1_all" else 0, last + 1) for part in PARTS}
    columns = [
        *([Column(_first_head(run, groups))] if len(groups) > 1 else []),
        Column("Method" if groups[0].of == "methods" else "Variant"),
        *(
            Column("Base session" if session == 0 else f"Session {session}", f"Macro-F1 ({words})")
            for part, words in PARTS.items()
            for session in spans[part]
        ),
    ]
    rows: list[list[Cell]] = []
    for group in groups:
        marks = {part: significant(group, part) for part in PARTS}
        best = {(part, s): leader(group, part, s) for part in PARTS for s in spans[part]}
        for line in group.lines:
            numbers: list[Cell] = []
            for part in PARTS:
                for session in spans[part]:
                    found = group.cell(line, session, part)
                    mark = SIGNIFICANT if (line, session) in marks[part] else ""
                    leads = best[part, session] == line
                    numbers.append(
                        Number(found.mean, found.std, best=leads, mark=mark) if found else ""
                    )  # fmt: skip
            rows.append([*([group.title] if len(groups) > 1 else []), line, *numbers])
    title = f"{run.study.title}: macro-F1 in percent"
    return Table(f"{run.slug}-scores", title, columns, rows, [over(run), *test_notes(run, groups)])


def significant(group: Group, part: str = "f1_all") -> set[tuple[str, int]]:
    """Return the lines and sessions that differ from the reference, by the corrected test over trials."""
    return {
        (each.comparison.method, each.session)
        for each in group.compared(part)
        if each.over == "trials" and each.comparison.p_holm < LEVEL
    }


def test_notes(run: Run, groups: Sequence[Group]) -> list[str]:
    """Say what marks mean and what the test assumes; nothing where nothing was tested."""
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
    """Return every paired test against the reference; None where there is nothing to compare."""
    groups = groups_of(run)
    rows: list[list[Cell]] = []
    for group in groups:
        for each in group.compared():
            c = each.comparison
            interval: list[Cell] = ["", ""]
            if c.n > 1:
                interval = [Number(c.low, signed=True), Number(c.high, signed=True)]
            mark = SIGNIFICANT if c.p_holm < LEVEL else ""
            rows.append([
                *([group.title] if len(groups) > 1 else []),
                c.method,
                Number(each.session, digits=0),
                Number(c.difference, signed=True),
                *interval,
                Number(c.p, digits=4),
                Number(c.p_holm, digits=4, mark=mark),
                Number(c.effect, signed=True),
                f"{c.n} {each.over if c.n > 1 else each.over.removesuffix('s')}",
            ])  # fmt: skip
    if not rows:
        return None
    reference = next(group.reference for group in groups if group.reference)
    columns = [
        *([Column(_first_head(run, groups))] if len(groups) > 1 else []),
        Column("Method" if groups[0].of == "methods" else "Variant"),
        Column("Session"),
        Column("Difference"),
        Column("from", "95 % interval"),
        Column("to", "95 % interval"),
        *(Column(name) for name in ("p", "p (Holm)", "Effect", "Over")),
    ]
    notes = [
        f"Line minus {reference}, macro-F1 over all classes in points. Effect: matched-pairs rank-biserial "
        f"correlation, from −1 (always worse) to 1 (always better).",
        *test_notes(run, groups),
    ]
    return Table(f"{run.slug}-tests", f"Paired differences from {reference}", columns, rows, notes)


def paper_table(run: Run) -> Table | None:
    """Return ours, the paper's numbers and the difference for each session; None where the paper has none."""
    numbers = published(run.study.name)
    lines = {
        (results[0].variant, group.methods[line]): (group, line)
        for group in groups_of(run)
        for line, results in group.lines.items()
    }
    cells: dict[tuple[str, str, str], dict[str, list[Cell]]] = {}
    notes: list[str] = []
    for number in numbers:
        if (number.variant, number.method) not in lines:
            continue
        group, line = lines[number.variant, number.method]
        found = group.cell(line, number.session if number.session >= 0 else group.last, number.score)
        if found is None:
            continue
        column = _session(number.session)
        if number.doubt:
            notes.append(
                f"‡ {method_name(number.method)}, {number.variant or column.lower()}: {number.doubt}."
            )
        mark = "‡" if number.doubt else SIGNIFICANT if number.marked else ""
        cells.setdefault((number.variant, number.method, number.score), {})[column] = [
            Number(found.mean, found.std),
            Number(number.mean, number.std, mark=mark),
            Number(round(found.mean, 2) - number.mean, signed=True),
        ]
    if not cells:
        return None
    sessions = list(dict.fromkeys(_session(number.session) for number in numbers))
    several = len(run.study.variants) > 1
    columns = [
        *([Column("Variant")] if several else []),
        Column("Method"),
        Column("Classes"),
        *(Column(name, session) for session in sessions for name in ("ours", "paper", "difference")),
    ]
    rows: list[list[Cell]] = [
        [
            *([variant] if several else []),
            method_name(method),
            PARTS[score].removesuffix(" classes"),
            *(cell for session in sessions for cell in found.get(session, ["", "", ""])),
        ]
        for (variant, method, score), found in cells.items()
    ]
    about = [f"The paper's numbers are as printed in its {numbers[0].table}; difference is ours − paper."]
    if any(number.marked for number in numbers):
        about.append(f"{SIGNIFICANT} in the paper: differs from random sampling with p < 0.05, uncorrected.")
    if told := caveat(run.study.name):
        about.append(told)
    if run.synthetic:
        about.insert(0, "This run is on synthetic recordings: the differences mean nothing.")
    title = f"Beside the paper ({numbers[0].table}): macro-F1 in percent"
    return Table(f"{run.slug}-paper", title, columns, rows, [*about, *notes])


def cost_table(run: Run) -> Table:
    """Return seconds and memory per method and variant."""
    variants = list(run.variants())
    rows: list[list[Cell]] = []
    for variant in variants:
        for method in dict.fromkeys(result.method for result in run.of(variant)):
            base, session, trial, peak = costs([r for r in run.of(variant) if r.method == method])
            cells = [("" if value is None else Number(value, digits=digits)) for value, digits in
                     ((base, 1), (session, 2), (trial, 2), (peak, 0))]  # fmt: skip
            rows.append([*([variant] if len(variants) > 1 else []), method_name(method), *cells])
    heads = ("Method", "Base training (s)", "A session (s)", "A trial (s)", "Peak memory (MB)")
    columns = [*([Column("Variant")] if len(variants) > 1 else []), *(Column(name) for name in heads)]
    notes = [
        "Means over trials. Methods that share a base model show the same training time. Inverting the base "
        "classes is done once and not in these times. Peak memory is that of the whole process."
    ]
    return Table(f"{run.slug}-cost", "Seconds and memory", columns, rows, notes)


def costs(
    results: Sequence[SessionResult],
) -> tuple[float | None, float | None, float | None, float | None]:
    """Return mean seconds of the base session, of a later one and of a trial, and the peak memory in MB."""
    base = [r.seconds for r in results if r.session == 0]
    later = [r.seconds for r in results if r.session > 0]
    trials = {(r.variant, place(r)) for r in results if r.session > 0}
    peaks = [r.peak_mb for r in results if r.peak_mb is not None]
    return (
        sum(base) / len(base) if base else None,
        sum(later) / len(later) if later else None,
        sum(later) / len(trials) if trials else None,
        max(peaks) if peaks else None,
    )


def leader(group: Group, part: str, session: int) -> str:
    """Return the line with the highest mean as printed; nothing where several have it, or one is alone."""
    found = {line: group.cell(line, session, part) for line in group.lines}
    means = {line: round(cell.mean, 2) for line, cell in found.items() if cell}
    leaders = [line for line, mean in means.items() if mean == max(means.values())]
    return leaders[0] if len(leaders) == 1 and len(means) > 1 else ""


def _session(number: int) -> str:
    return {-1: "Last session", 0: "Base session"}.get(number, f"Session {number}")


def _first_head(run: Run, groups: Sequence[Group]) -> str:
    return "Variant" if groups[0].of == "methods" else "Data"


def over(run: Run) -> str:
    """Say over what a table's means are."""
    people = {result.person for result in run.results}
    if len(people) > 1:
        return f"Mean ± population standard deviation over {len(people)} people; best in bold."
    counts: dict[tuple[str, str], set[tuple[str, int, int]]] = {}
    for result in run.results:
        counts.setdefault((result.variant, result.method), set())
        if result.trial is not None:
            counts[result.variant, result.method].add(place(result))
    lengths = sorted({len(trials) for trials in counts.values()})
    shown = str(lengths[-1]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    one = lengths[-1] == 1
    return f"Mean ± population standard deviation over {shown} {'trial' if one else 'trials'}; best in bold."
