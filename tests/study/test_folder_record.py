"""A run as one file: all that its tables are made of, and nothing of the machine."""

import json
import socket

import pytest

from anchorinv.study.folder import Record, RunFolder, write_record
from anchorinv.study.results import to_line
from tests.report.made import made, smoke


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return RunFolder(made(tmp_path_factory.mktemp("made") / "run", smoke("eeg-stress", trials=2)))


def test_a_record_reads_as_the_run_it_was_made_from(run, tmp_path):
    record = write_record(run, tmp_path / "new" / "mine.jsonl")
    assert record.study() == run.study() and record.jobs() == run.jobs() and record.name == "mine"
    found = record.read()
    assert not found.damage and len(found.results) == 17 * 2 * (1 + 2 * 2)
    assert [to_line(r) for r in found.results] == [to_line(r) for r in run.read().results]
    about = {key: value for key, value in record.about().items() if key != "starts"}
    assert about == run.about()


def test_it_is_smaller_and_tells_nothing_of_the_machine(run, tmp_path):
    path = write_record(run, tmp_path / "mine.jsonl").path
    text = path.read_text()
    assert len(text) < run.results.stat().st_size + len(json.dumps(run.about()))
    for secret in (
        str(run.path),
        str(tmp_path),
        socket.gethostname(),
        '"pid"',
        '"processor"',
        "/home",
        "/tmp",
    ):
        assert secret not in text, secret
    (start,) = Record(path).starts()
    assert start["cores"] and start["torch"] and start["started"].endswith("Z")


def test_facts_are_rounded_and_counts_are_not(run, tmp_path):
    first, *rest = run.read().results
    other = RunFolder(tmp_path / "run")
    made(other.path, smoke("eeg-stress", trials=2), skip=lambda part: True)
    object.__setattr__(first, "facts", {"base": 0.123456789, "steps": 1250.0})
    other.add([first, *rest])
    read = write_record(other, tmp_path / "mine.jsonl").read().results
    assert read[0].facts == {"base": 0.1235, "steps": 1250.0}
    assert (read[0].confusion == first.confusion).all()


def test_what_is_no_record_is_told_in_a_sentence(run, tmp_path):
    bad = tmp_path / "bad.jsonl"
    for text in ("", "[1]\n", '{"method": "anchorinv"}\n', "\xff"):
        bad.write_text(text)
        with pytest.raises(ValueError, match=r"bad\.jsonl is not a record of a run.*--export bad\.jsonl"):
            Record(bad).study()
    bad.write_text('{"study": {"name": 3}}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl is damaged"):
        Record(bad).study()
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        Record(tmp_path / "away.jsonl").study()


def test_a_torn_run_is_not_recorded_and_a_torn_record_says_where(run, tmp_path):
    path = write_record(run, tmp_path / "mine.jsonl").path
    path.write_text(path.read_text()[:-9])
    n = len(run.read().results)
    assert f"line {n + 1}: cut off" in Record(path).read().damage
    torn = RunFolder(made(tmp_path / "run", smoke("eeg-stress", trials=2)))
    torn.results.write_text(torn.results.read_text()[:-9])
    with pytest.raises(
        ValueError, match=rf"results\.jsonl has 1 damaged line \(line {n}: cut off\).*the same run command"
    ):
        write_record(torn, tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()
