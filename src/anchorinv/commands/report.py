"""``anchorinv report``: look instead of read."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several make one report.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the report.  [default: RUN/report, or runs/report for several]"),
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
) -> None:
    """Make a page, tables and figures from run folders, finished or not."""
    from rich.console import Console

    from anchorinv.bars import progress_bars
    from anchorinv.commands.study import folders_of
    from anchorinv.core.anchors import SELECTIONS
    from anchorinv.report.write import make_report
    from anchorinv.study.config import nearest
    from anchorinv.study.folder import RunFolder

    chosen = [name.strip() for name in selections.split(",") if name.strip()]
    for name in chosen:
        if name not in SELECTIONS:
            raise ValueError(f"unknown selection {name!r}; {nearest(name, SELECTIONS)}")
    target = out or (runs[0] / "report" if len(runs) == 1 else Path("runs") / "report")
    folders = folders_of([RunFolder(run).study() for run in runs], data or [])
    with progress_bars(Console(stderr=True)):
        page = make_report(runs, target, folders, bases=bases, selections=chosen)
    Console().print(f"Report: {page}", highlight=False, soft_wrap=True)
