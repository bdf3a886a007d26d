"""``anchorinv demo``: see it work."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A smaller network, trained and inverted for less time: half a minute."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Run folder.  [default: runs/demo, with --quick runs/demo-quick]")
    ] = None,
) -> None:
    """See it work on synthetic recordings: base training, three new classes of ten examples, a report."""
    from anchorinv.show_demo import show_demo
    from anchorinv.terminal import complain

    folder = out or Path("runs") / ("demo-quick" if quick else "demo")
    try:
        show_demo(folder, quick=quick)
    except KeyboardInterrupt:
        complain(
            "", f"anchorinv: stopped; finished trials are in {folder}. Run the same command again to go on."
        )
        raise typer.Exit(130) from None
