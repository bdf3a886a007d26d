"""What files say of a run is checked: whatever stands in them, a sentence and no traceback."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from anchorinv.cli import app
from anchorinv.files import read_json
from anchorinv.study.folder import Record, RunFolder, write_record
from tests.report.made import made, smoke


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    return RunFolder(made(tmp_path_factory.mktemp("made") / "run", smoke("bci2a", trials=1)))


@pytest.fixture
def other(run, tmp_path) -> RunFolder:
    for path in run.path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return RunFolder(tmp_path)


def experiment(about: dict[str, Any]) -> dict[str, Any]:
    return about["study"]["variants"][""]


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "no study": lambda about: about.pop("study"),
    "a list as study": lambda about: about.update(study=[1]),
    "variants in a list": lambda about: about["study"].update(variants=[1]),
    "another format": lambda about: about.update(format=2),
    "no people": lambda about: about.pop("people"),
    "people of other variants": lambda about: about.update(people={"x": [""]}),
    "nobody": lambda about: about.update(people={"": []}),
    "somebody twice": lambda about: about.update(people={"": ["a", "a"]}),
    "a number as person": lambda about: about.update(people={"": [1]}),
    "own methods that are none": lambda about: about.update(own={"a": 1}),
    "an own method as one of the study": lambda about: about.update(own=["protonet"]),
    "data in a list": lambda about: about.update(data=[1]),
    "no data": lambda about: about.update(data={}),
    "classes that are none": lambda about: about["data"]["bci2a"].update(classes=[1, 2]),
    "a class of another name": lambda about: experiment(about)["protocol"].update(sessions=["tongue"]),
    "trials for ever": lambda about: experiment(about)["protocol"].update(trials=10**15),
    "an unknown method": lambda about: experiment(about).update(methods=["\x1b[2J"]),
    "a stowaway": lambda about: about.update(stowaway=json.loads("[" * 400 + "]" * 400)),
    "no hash": lambda about: about.update(hash=None),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_config_or_record_that_cannot_be_is_damaged(run, other, wrong):
    about = run.about()
    WRONG[wrong](about)
    (other.path / "config.json").write_text(json.dumps(about))
    (other.path / "record.jsonl").write_text(json.dumps(about) + "\n")
    for ask in (other.study, other.about, other.jobs, other.read, Record(other.path / "record.jsonl").read):
        with pytest.raises(
            ValueError, match=r"config\.json is damaged|record\.jsonl is (damaged|not a record)"
        ) as told:
            ask()
        assert "\x1b" not in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["", "[1]", "3", '{"study": ' * 5000, "[" * 100_000, "\0" * 100, "NaN"])
@pytest.mark.parametrize("name", ["config.json", "environment.json"])
def test_commands_say_so_and_change_nothing(other, text, name):
    (other.path / name).write_text(text)
    before = {path: path.read_bytes() for path in other.path.iterdir()}
    for args in (["status", "--results"], ["report", "--out", "new"], ["report", "--export", "new.jsonl"]):
        done = CliRunner().invoke(app, [args[0], str(other.path), *args[1:]])
        if name == "config.json" or args[0] == "report":
            assert isinstance(done.exception, ValueError), done.output
            assert f"{name} is damaged" in str(done.exception)
    assert {path: path.read_bytes() for path in other.path.iterdir()} == before


@pytest.mark.parametrize("starts", [{}, [1], [{"torch": [1]}], [{"torch": {"a": "b"}}]])
def test_starts_that_are_none(other, starts):
    (other.path / "environment.json").write_text(json.dumps(starts))
    with pytest.raises(ValueError, match=r"environment\.json is damaged.*move it away"):
        other.starts()


def test_a_pipe_is_not_waited_for(other):
    for name in ("results.jsonl", "environment.json"):
        (other.path / name).unlink()
        os.mkfifo(other.path / name)
    for ask in (other.read, other.starts):
        with pytest.raises(ValueError, match="is a folder, a device or a pipe, not a file"):
            ask()


def test_a_status_of_a_damaged_run_says_so_and_changes_nothing(other, tmp_path):
    lines = other.results.read_bytes().splitlines(keepends=True)
    far = lines[1].replace(b'"session": 1', b'"session": 1000000')
    other.results.write_bytes(b"".join([lines[0], far, b"\xff\n", *lines[2:]]))
    before = {path: path.read_bytes() for path in other.path.iterdir()}
    shown = CliRunner().invoke(app, ["status", str(other.path), "--results"], env={"COLUMNS": "300"})
    assert shown.exit_code == 0 and "has 2 damaged lines (line 2: of session 1000000" in shown.output
    with pytest.raises(ValueError, match="has 2 damaged lines"):
        write_record(other, tmp_path / "new.jsonl")
    assert {path: path.read_bytes() for path in other.path.iterdir()} == before


def test_a_file_of_json_without_end_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(40 << 20)
    with pytest.raises(ValueError, match="over 32 MiB"):
        read_json(path)
