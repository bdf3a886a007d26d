"""The tables of the paper's ablations: anchor selection, pairs of base classes, number of base classes."""

from anchorinv.report.cells import SIGNIFICANT, Cell, Column, Number, Table
from anchorinv.report.gather import Run
from anchorinv.report.groups import Group, groups_of, varied
from anchorinv.report.tables import significant, test_notes
from anchorinv.study.names import selection_name


def ablation_tables(run: Run) -> list[Table]:
    """Return those tables that the run's variants make up."""
    made = [selection_table(run), pairs_table(run), n_base_table(run)]
    return [table for table in made if table]


def selection_table(run: Run) -> Table | None:
    """Return the last session's macro-F1 by selection (rows) and data set (columns): the paper's Table 3."""
    groups = [group for group in groups_of(run) if group.of == "variants" and _varies(run, group) == "select"]
    if not groups:
        return None
    lines = list(dict.fromkeys(line for group in groups for line in group.lines))
    rows: list[list[Cell]] = [[line, *(_last(group, line) for group in groups)] for line in lines]
    names = [run.study.variants[group.variant].data.name for group in groups]
    notes = ["Macro-F1 over all classes after the last session, in percent.", *test_notes(run, groups)]
    columns = [Column("Anchor selection"), *(Column(name) for name in names)]
    return Table(f"{run.slug}-selection", "Anchor selection", columns, rows, notes)


def pairs_table(run: Run) -> Table | None:
    """Return the last session's macro-F1 by method (rows) and base classes (columns): the paper's Table 9."""
    courses = [experiment.protocol for experiment in run.variants().values()]
    sizes = {len(course.base_classes) for course in courses}
    if len({course.base_classes for course in courses}) < 2 or len(sizes) > 1:
        return None
    groups = groups_of(run)
    if groups[0].of == "variants":
        return None
    lines = list(dict.fromkeys(line for group in groups for line in group.lines))
    rows: list[list[Cell]] = [[line, *(_last(group, line) for group in groups)] for line in lines]
    columns = [Column("Method"), *(Column(group.title, "Base classes") for group in groups)]
    notes = ["Macro-F1 over all classes after the last session, in percent.", *test_notes(run, groups)]
    return Table(f"{run.slug}-pairs", "Choice of base classes", columns, rows, notes)


def n_base_table(run: Run) -> Table | None:
    """Return new classes' macro-F1 by number of base classes, and chance: the paper's Table 1."""
    variants = run.variants()
    sizes = {name: len(each.protocol.base_classes) for name, each in variants.items()}
    if len(set(sizes.values())) < 2 or len({each.data.name for each in variants.values()}) > 1:
        return None
    groups = groups_of(run)
    lines = list(dict.fromkeys(line for group in groups for line in group.lines))
    rows: list[list[Cell]] = []
    for group in groups:
        for line in group.lines:
            results = group.lines[line]
            last = max(group.sessions(line))
            found = group.cell(line, last, "f1_new")
            n_classes = max(len(result.classes) for result in results)
            rows.append([
                *([line] if group.of == "methods" else []),
                Number(results[0].n_base, digits=0),
                Number(found.mean, found.std) if found else "",
                Number(100 / n_classes),
            ])  # fmt: skip
    head = [Column("Method")] if groups[0].of == "methods" and lines else []
    columns = [*head, Column("Base classes"), Column("Macro-F1 (new classes)"), Column("Chance")]
    notes = [
        "After the last session, in percent, over new classes; predictions among all classes known then."
    ]
    return Table(f"{run.slug}-base-classes", "Number of base classes", columns, rows, notes)


def _varies(run: Run, group: Group) -> str:
    experiments = [run.study.variants[results[0].variant] for results in group.lines.values()]
    keys = varied(experiments)
    if keys == ["anchors.select"] or (
        len(group.lines) == 1 and next(iter(group.lines)) == selection_name(experiments[0].anchors.select)
    ):
        return "select"
    return keys[0] if len(keys) == 1 else ""


def _last(group: Group, line: str) -> Cell:
    if line not in group.lines:
        return ""
    found = group.cell(line, group.last, "f1_all")
    if found is None:
        return ""
    means = {each: cell.mean for each in group.lines if (cell := group.cell(each, group.last, "f1_all"))}
    best = found.mean == max(means.values()) and list(means.values()).count(found.mean) == 1
    mark = SIGNIFICANT if (line, group.last) in significant(group) else ""
    return Number(found.mean, found.std, best=best and len(means) > 1, mark=mark)
