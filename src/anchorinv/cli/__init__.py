"""The command line. Heavy imports wait until a command runs, so that help is instant."""

import io
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import anchorinv.cli.data as data
import anchorinv.cli.live as live
import anchorinv.cli.model as model
import anchorinv.cli.study as study
import anchorinv.cli.train as train
from anchorinv import __version__
from anchorinv.cli.options import check_inputs, interruptible
from anchorinv.errors import shown
from anchorinv.terminal import complain, say

#: What typer raises for wrong usage; typer does not export it.
_WrongUsage: Any = typer.BadParameter.__base__


_RESUMED = "run the same command again to continue"
#: What Ctrl-C leaves behind, by command. Others write whole files at their end, or none.
_LEFT_BEHIND = {
    **dict.fromkeys(("run", "demo", "download"), _RESUMED),
    "report": "run the same command again to complete the report",
    "predict": "no file was written",  # rows may have been printed
    "live": "run the same command again to go on",
}


class _PlainFlags:
    """A command whose help shows no type for flags, which take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class _Command(_PlainFlags, TyperCommand):
    """A command; missing inputs and Ctrl-C end it in a sentence."""

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        prepares = ctx.parent is not None and ctx.parent.info_name == "prepare"
        left = _RESUMED if prepares else _LEFT_BEHIND.get(ctx.info_name, "nothing was written")
        with interruptible(left):
            check_inputs(ctx.params)
            return super().invoke(ctx)


class _Commands(_PlainFlags, TyperGroup):
    """The commands; messages about wrong arguments show them escaped."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the arguments before the command."""
        with _escape_messages():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's arguments, and run it."""
        with _escape_messages():
            return super().invoke(ctx)


@contextmanager
def _escape_messages() -> Iterator[None]:
    try:
        yield
    except _WrongUsage as error:
        error.message = shown(error.message)
        raise


app = typer.Typer(
    name="anchorinv",
    cls=_Commands,
    help="Teach a biosignal classifier new classes from ten examples, without keeping recordings of anyone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"anchorinv {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


# In the order of the help.
_COMMANDS: list[Callable[..., None]]
_COMMANDS = [study.demo, data.download, data.data, data.events, study.run, study.status, study.report]
_COMMANDS += [train.train, train.learn, train.add, train.forget, train.calibrate]
_COMMANDS += [model.check, model.predict, model.suggest, model.evaluate, live.live, model.export, model.info]
_COMMANDS += [model.audit]
for command in _COMMANDS:
    app.command()(command)
app.add_typer(data.prepare_app, name="prepare", cls=_Commands)
for registered in [*app.registered_commands, *data.prepare_app.registered_commands]:
    registered.cls = _Command


def _plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"anchorinv: warning: {shown(' '.join(str(message).split()))}\n"


def main() -> None:
    """Run the command line; errors end in one sentence and exit code 1, wrong usage in 2."""
    warnings.formatwarning = _plain_warning  # without the line of code, which does not help users
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # characters that the terminal cannot encode
    try:
        app()
    except (ValueError, OSError) as error:
        first, *more = getattr(error, "lines", [str(error)])
        complain(f"anchorinv: {first}", *more)
        sys.exit(1)
