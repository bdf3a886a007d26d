"""Dataclasses of options: a command takes their fields as options of its own."""

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from anchorinv.cli import app as anchorinv
from anchorinv.cli.options import option, with_options


@dataclass(frozen=True)
class Size:
    width: Annotated[int, typer.Argument()]
    height: int = option(2, "Height.", min=1)


@with_options
def area(unit: str = "m", *, size: Size, quiet: bool = False) -> None:
    """Tell an area."""
    if not quiet:
        typer.echo(f"{size.width * size.height} {unit}")


def test_required_ones_come_first_and_the_rest_as_written():
    assert list(inspect.signature(area).parameters) == ["width", "unit", "height", "quiet"]
    assert area.__doc__ == "Tell an area."


@pytest.mark.parametrize(
    ("words", "shown"),
    [(["3"], "6 m"), (["3", "--height", "5", "--unit", "km"], "15 km"), (["3", "--quiet"], "")],
)
def test_on_the_command_line(words, shown):
    app = typer.Typer()
    app.command()(area)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and done.output.strip() == shown
    assert CliRunner().invoke(app, ["3", "--height", "0"]).exit_code == 2


def test_from_python_by_position_and_by_name(capsys):
    area(3, height=4)
    area(3, "cm", 1)
    assert capsys.readouterr().out.splitlines() == ["12 m", "3 cm"]
    with pytest.raises(TypeError, match="width"):
        area()


@pytest.mark.parametrize("command", [[], ["demo"], ["train"], ["audit"], ["prepare"], ["prepare", "own"]])
def test_help_shows_no_type_for_flags(command):
    shown = CliRunner().invoke(anchorinv, [*command, "--help"], env={"COLUMNS": "120"}).output
    assert "--help" in shown and "<bool>" not in shown


@pytest.mark.parametrize(
    ("command", "default"), [("demo", "runs/demo"), ("run", "runs/CONFIG"), ("report", "RUN/report")]
)
def test_help_names_defaults_that_depend_on_other_options(command, default):
    assert default in CliRunner().invoke(anchorinv, [command, "--help"], env={"COLUMNS": "200"}).output


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("train", "Stored in the model; default: no rejection."),
        ("predict", "Default: the model's; else no rejection in files, 0.05 in a stream."),
        ("live", "Default: the model's, or 0.05."),
        ("suggest", "Default: the model's, or 0.05."),
    ],
)
def test_help_says_what_is_rejected_by_default(command, default):
    shown = CliRunner().invoke(anchorinv, [command, "--help"], env={"COLUMNS": "300"}).output
    assert default in shown
