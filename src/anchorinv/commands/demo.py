"""``anchorinv demo``: see it work."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def demo(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A smaller network, trained and inverted for less time: half a minute."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for results.jsonl.")] = Path("runs/demo"),
) -> None:
    """See it work on synthetic recordings: base training, then three new classes from ten examples each."""
    from anchorinv.show import show_demo

    try:
        show_demo(out, quick=quick)
    except KeyboardInterrupt:
        print(f"\nanchorinv: stopped; finished trials are in {out}/results.jsonl.unfinished", file=sys.stderr)
        raise typer.Exit(130) from None
