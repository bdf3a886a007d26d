"""The command line. Heavy imports wait until a command runs, so that help is instant."""

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from anchorinv._version import __version__
from anchorinv.commands import check, data, demo, download, events, prepare, report, study, teach, train, use
from anchorinv.quoting import shown

#: What typer raises for wrong usage; it has no name of its own there.
_WrongUsage: Any = typer.BadParameter.__base__


class _Commands(TyperGroup):
    """The commands; what typer says of wrong arguments shows them quoted."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the arguments before the command."""
        with _quoted():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's arguments, and run it."""
        with _quoted():
            return super().invoke(ctx)


@contextmanager
def _quoted() -> Iterator[None]:
    try:
        yield
    except _WrongUsage as error:
        error.message = shown(error.message)
        raise


app = typer.Typer(
    name="anchorinv",
    cls=_Commands,
    help="Teach a biosignal classifier new classes from ten examples, without keeping anybody's recordings.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from anchorinv.terminal import say

        say(f"anchorinv {__version__}")
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
    events.events,
    study.run,
    study.status,
    report.report,
    train.train,
    teach.learn,
    teach.add,
    teach.forget,
    teach.calibrate,
    check.check,
    use.predict,
    use.evaluate,
    use.info,
):
    app.command()(command)
app.add_typer(prepare.app, name="prepare")


def _plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"anchorinv: warning: {shown(' '.join(str(message).split()))}\n"


def main() -> None:
    """Run the command line; a mistake ends in one sentence and exit code 1, wrong usage in 2."""
    warnings.formatwarning = _plain_warning  # to a user the line of code says nothing
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # letters that a terminal does not know
    try:
        app()
    except (ValueError, OSError) as error:
        from anchorinv.terminal import complain

        first, *more = getattr(error, "lines", [str(error)])
        complain(f"anchorinv: {first}", *more)
        sys.exit(1)
