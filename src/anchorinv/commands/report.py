"""``anchorinv report``: look instead of read."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or records of runs (--export); several make one report."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the report.  [default: RUN/report; runs/report for several, or a record]"
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Prepared folder, or NAME=FOLDER for each data set: figures of features and signals."
        ),
    ] = None,
    bases: Annotated[
        Path | None, typer.Option(help="Folder of base models, if the runs shared one.  [default: RUN/bases]")
    ] = None,
    selections: Annotated[
        str, typer.Option(help="Anchor selections to show in the feature space: random,closest,kmeans …")
    ] = "",
    export: Annotated[
        Path | None,
        typer.Option(help="No report: write the run as one small file, fit to be published and reported on."),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="No report: fill the marked tables and figures of this Markdown page."),
    ] = None,
) -> None:
    """Make a page, tables and figures from run folders, finished or not."""
    if export is not None and into is not None:
        raise typer.BadParameter("--export and --into are two steps; do one after the other")
    if export is not None:
        _export(runs, export)
    elif into is not None:
        _fill(runs, into)
    else:
        _report(runs, out, data or [], bases, selections)


def _report(runs: list[Path], out: Path | None, data: list[str], bases: Path | None, selections: str) -> None:
    from anchorinv.bars import progress_bars
    from anchorinv.commands.study import folders_of
    from anchorinv.core.anchors import SELECTIONS
    from anchorinv.report.gather import source_at
    from anchorinv.report.write import make_report
    from anchorinv.study.config import nearest
    from anchorinv.terminal import say

    chosen = [name.strip() for name in selections.split(",") if name.strip()]
    for name in chosen:
        if name not in SELECTIONS:
            raise ValueError(f"unknown selection {name!r}; {nearest(name, SELECTIONS)}")
    own = len(runs) == 1 and not runs[0].is_file()
    target = out or (runs[0] / "report" if own else Path("runs") / "report")
    folders = folders_of([source_at(run).study() for run in runs], data)
    with progress_bars():
        page = make_report(runs, target, folders, bases=bases, selections=chosen)
    say(f"Report: {page}")


def _export(runs: list[Path], to: Path) -> None:
    from anchorinv.study.folder import RunFolder
    from anchorinv.study.record import write_record
    from anchorinv.terminal import say

    if len(runs) != 1:
        raise typer.BadParameter(f"--export takes one run, got {len(runs)}; export each to a file of its own")
    if to.suffix != ".jsonl":
        raise typer.BadParameter(f"--export writes a .jsonl file, got {to}")
    record = write_record(RunFolder(runs[0]), to)
    results = record.read().results
    size = f"{to.stat().st_size / 1e6:.2f} MB"
    say(f"{to}: {len(results)} results, {size}")


def _fill(runs: list[Path], page: Path) -> None:
    from anchorinv.report.gather import gather
    from anchorinv.report.into import fill
    from anchorinv.terminal import say

    read = gather(runs)
    found = fill(page, read)
    told = [f"{page}: filled from {', '.join(run.name for run in read)}, with {len(found.plates)} figures"]
    told += [
        f"{run.name} is not finished: {len(run.missing)} parts are missing" for run in read if run.missing
    ]
    told += [
        f"left alone: {mark.what} of {', '.join(mark.runs)}, not among the runs" for mark in found.waiting
    ]
    say(*told)
