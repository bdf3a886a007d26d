"""The figures as a table, and in a sentence each what falls short."""

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Figure


def show(figures: list[Figure]) -> None:
    """Print the table."""
    peak = max(figure.peak_gflops for figure in figures)
    copy = max(figure.copy_gbytes for figure in figures)
    table = Table(
        title=f"Textbook twin against ours; {torch.get_num_threads()} threads, "
        f"matrix products at {peak:.0f} GFLOP/s, copies at {copy:.0f} GB/s"
    )
    table.add_column("name", no_wrap=True)
    table.add_column("what")
    for header in ("twin", "ours", "", "ratio", "spread", "must", "aim", "GFLOP", "MB", "of limit"):
        table.add_column(header, justify="right", no_wrap=True)
    for figure in figures:
        table.add_row(
            figure.name,
            figure.what,
            f"{figure.twin:.0f}",
            f"{figure.ours:.0f}",
            figure.unit,
            _coloured(figure),
            _number(figure.spread, ".1f"),
            _number(figure.must, "g"),
            _number(figure.aim, "g"),
            _number(figure.gflop, ".2f"),
            _number(figure.mbytes, ".0f"),
            _number(figure.of_limit, ".0%"),
        )
    # As wide as it needs to be, also into a file.
    console = Console(width=max(140, Console().width))
    console.print(table)
    console.print(
        "GFLOP and MB: the least that the work needs. Of limit: the time they take at best, over ours."
    )
    for figure in figures:
        if figure.must is not None and figure.ratio < figure.must:
            console.print(
                f"{figure.name}: {figure.ratio:.2f} is below {figure.must:g}; was the machine busy?"
            )


def _coloured(figure: Figure) -> str:
    if figure.must is None:
        return f"{figure.ratio:.1f}"
    colour = "green" if figure.ratio >= figure.must else "red"
    return f"[{colour}]{figure.ratio:.1f}[/]"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
