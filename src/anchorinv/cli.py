"""The command line. Heavy imports wait until a command runs, so that help is instant."""

import sys
from typing import Annotated

import typer

from anchorinv._version import __version__
from anchorinv.commands import demo, report, study

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


app.command()(demo.demo)
app.command()(study.run)
app.command()(study.status)
app.command()(report.report)


def main() -> None:
    """Run the command line; a mistake ends in one sentence and exit code 1, wrong usage in 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"anchorinv: {error}", file=sys.stderr)
        sys.exit(1)
