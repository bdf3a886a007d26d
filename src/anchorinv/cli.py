"""The command line. Heavy imports wait until a command runs, so that help is instant."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from anchorinv._version import __version__

app = typer.Typer(
    name="anchorinv",
    help="Teach a biosignal classifier new classes from ten examples, without keeping anybody's recordings.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"anchorinv {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
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


def main() -> None:
    """Run the command line; a mistake ends in one sentence and exit code 1, wrong usage in 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"anchorinv: {error}", file=sys.stderr)
        sys.exit(1)
