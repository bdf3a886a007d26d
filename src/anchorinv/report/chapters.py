"""What a run's part of the page holds: its warnings, verdicts, tables and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anchorinv.core.progress import tick
from anchorinv.data.dataset import Dataset
from anchorinv.report.ablations import ablation_tables
from anchorinv.report.cells import Table
from anchorinv.report.departures import Departure, departures, not_published
from anchorinv.report.figures import cost_figure
from anchorinv.report.gallery import Absent, portraits, score_plates
from anchorinv.report.gather import Run
from anchorinv.report.honesty import Honesty, honesty
from anchorinv.report.plates import Plate
from anchorinv.report.tables import comparisons_table, cost_table, paper_table, scores_table
from anchorinv.report.verdict import Verdict, leaders, verdicts


@dataclass(frozen=True, slots=True, eq=False)
class Chapter:
    """All that the page says of one run."""

    run: Run
    warnings: list[str]
    verdicts: list[Verdict]
    leaders: str
    tables: list[Table]
    plates: list[Plate]
    absent: list[Absent]
    departures: list[Departure] | None
    not_published: list[str]
    honesty: Honesty


def chapter(
    run: Run, asked: str, folders: Mapping[str, Dataset], bases: Path | None, selections: Sequence[str]
) -> Chapter:
    """Make a run's tables and figures.

    Parameters
    ----------
    asked : the command that makes the report.
    folders : data sets by name, for figures that need recordings.
    bases : where base models are, if not in the run folder.
    selections : of anchors to show in the feature space; the usual ones where none are named.
    """
    tables: list[Table] = []
    plates: list[Plate] = []
    absent: list[Absent] = []
    if run.results:
        made = [
            scores_table(run),
            *ablation_tables(run),
            paper_table(run),
            comparisons_table(run),
            cost_table(run),
        ]
        tables = [table for table in made if table]
        plates = score_plates(run)
        tick(f"report of {run.label}", 1, 3)
        more, absent = portraits(run, folders, bases, selections)
        plates += [*more, cost_figure(f"{run.slug}-cost", run)]
        plates.sort(key=lambda plate: plate.wide)  # those of a column first, so that they fill both
        tick(f"report of {run.label}", 3, 3)
    return Chapter(
        run,
        _warnings(run),
        verdicts(run),
        leaders(run),
        tables,
        plates,
        absent,
        departures(run),
        not_published(run),
        honesty(run, asked),
    )


def _warnings(run: Run) -> list[str]:
    """Say in plain words why a run's numbers are not to be trusted, or not complete."""
    told = []
    if run.study.scale != "full":
        told.append(
            f"{run.label} is a {run.study.scale} run: few epochs, steps and trials on synthetic recordings. "
            "It shows that everything runs. Its numbers mean nothing."
        )
    elif run.synthetic:
        told.append(
            f"{run.label} is on synthetic recordings: nobody's data, and no evidence about real people."
        )
    if run.damage:
        told.append(
            f"{run.file.name} of {run.label} has {run.damage}; only parts that are whole are shown. "
            "The same run command mends it."
        )
    if run.missing:
        done = run.n_parts - len(run.missing)
        told.append(f"{run.label} is not finished: {done} of {run.n_parts} parts are there. {_left(run)}")
    return told


def _left(run: Run) -> str:
    counts: dict[str, int] = {}
    for part in run.missing:
        named = f"{part.method}{f' ({part.variant})' if part.variant else ''}"
        counts[named] = counts.get(named, 0) + 1
    listed = [f"{name}: {count}" for name, count in list(counts.items())[:8]]
    more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
    return f"Missing parts: {'; '.join(listed)}{more}."
