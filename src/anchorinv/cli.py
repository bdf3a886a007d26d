"""The command line. Heavy imports wait until a command runs, so that help is instant."""

import sys
import warnings
from typing import Annotated

import typer

from anchorinv._version import __version__
from anchorinv.commands import data, demo, download, prepare, report, study, teach, use

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


for command in (
    demo.demo,
    download.download,
    data.data,
    study.run,
    study.status,
    report.report,
    teach.train,
    teach.learn,
    teach.forget,
    use.predict,
    use.evaluate,
    use.info,
):
    app.command()(command)
app.add_typer(prepare.app, name="prepare")


def _plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"anchorinv: warning: {message}\n"


def main() -> None:
    """Run the command line; a mistake ends in one sentence and exit code 1, wrong usage in 2."""
    warnings.formatwarning = _plain_warning  # to a user the line of code says nothing
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"anchorinv: {error}", file=sys.stderr)
        sys.exit(1)
