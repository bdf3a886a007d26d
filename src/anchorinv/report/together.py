"""Several runs in one report: data sets side by side, and fewer or more base classes of one data set."""

from collections.abc import Sequence

from anchorinv.report.cells import SIGNIFICANT, Cell, Column, Number, Table
from anchorinv.report.figures import small_sessions_figure, sweep_figure
from anchorinv.report.gather import Run
from anchorinv.report.groups import Group, groups_of
from anchorinv.report.plates import Plate
from anchorinv.report.tables import significant


def side_by_side(runs: Sequence[Run]) -> tuple[list[Table], list[Plate]]:
    """Return what compares runs with each other; nothing for a single one."""
    groups = {run.label: found[0] for run in runs if run.results and len(found := groups_of(run)) == 1}
    if len(groups) < 2:
        return [], []
    titled = [_titled(group, label) for label, group in groups.items()]
    tables = [_table(groups)]
    plates = [small_sessions_figure("together-sessions", titled)]
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        if run.label in groups:
            by_data.setdefault(run.study.variants[groups[run.label].variant].data.name, []).append(run)
    for data, some in by_data.items():
        sizes = {float(run.results[0].n_base): groups[run.label] for run in some}
        if len(sizes) > 1:
            points: dict[str, dict[float, Group]] = {}
            for n_base, group in sizes.items():
                for line in group.lines:
                    points.setdefault(line, {})[n_base] = group
            plates.append(sweep_figure(f"together-base-classes-{data}", "number of base classes", points))
    return tables, plates


def _titled(group: Group, title: str) -> Group:
    return Group(title, group.of, group.lines, group.methods, group.reference, group.variant)


def _table(groups: dict[str, Group]) -> Table:
    lines = list(dict.fromkeys(line for group in groups.values() for line in group.lines))
    marks = {label: significant(group) for label, group in groups.items()}
    rows: list[list[Cell]] = []
    for line in lines:
        cells: list[Cell] = [line]
        for label, group in groups.items():
            found = group.cell(line, group.last, "f1_all") if line in group.lines else None
            means = [c.mean for each in group.lines if (c := group.cell(each, group.last, "f1_all"))]
            best = found is not None and len(means) > 1 and found.mean == max(means)
            mark = SIGNIFICANT if (line, group.last) in marks[label] else ""
            cells.append(Number(found.mean, found.std, best=best, mark=mark) if found else "")
        rows.append(cells)
    notes = [
        "Macro-F1 over all classes after each run's last session, in percent; mean ± standard deviation "
        f"over trials. {SIGNIFICANT} differs from the run's reference; the run's own tables say how that is "
        "tested."
    ]
    columns = [Column("Method"), *(Column(label) for label in groups)]
    return Table("together", "Runs side by side", columns, rows, notes)
