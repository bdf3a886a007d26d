"""Lines of results: written, read back, and held against the run that they are said to be of."""

import errno
import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorinv.core.metrics import Reliability
from anchorinv.report.gather import gather
from anchorinv.report.tables import calibration_table
from anchorinv.study import results as store
from anchorinv.study.execute import run_study
from anchorinv.study.folder import RunFolder, write_record
from anchorinv.study.results import ExpectedResults, Job
from anchorinv.study.runner import SessionResult
from tests.report.made import drawn, made, smoke
from tests.study.little import little


def result(method="AnchorInv", trial=0, session=1, confusion=((3, 1, 0), (0, 4, 0), (2, 0, 2))):
    confusion = np.array(confusion)
    return SessionResult(method, 5, trial, session, tuple(range(len(confusion))), 2, confusion, 1.23456)


def test_a_line_holds_a_result_and_gives_it_back():
    line = store.to_line(result(trial=None, session=0))
    assert "\n" not in line
    back = store.from_line(line)
    assert (back.method, back.trial, back.session, back.n_base) == ("AnchorInv", None, 0, 2)
    assert back.classes == (0, 1, 2) and back.confusion.dtype == np.int64
    assert np.array_equal(back.confusion, result().confusion)


def test_a_reliability_comes_back_and_a_line_without_is_as_it_was():
    plain = result()
    assert "reliability" not in store.to_line(plain)
    assert store.from_line(store.to_line(plain)).reliability is None
    line = store.to_line(replace(plain, reliability=drawn(plain)))
    back = store.from_line(line)
    assert back.reliability.base.n == 8 and back.reliability.new.n == 4
    assert store.to_line(back) == line
    assert len(line) - len(store.to_line(plain)) < 700  # a run has tens of thousands of lines


def without_reliability(folder: RunFolder) -> list[str]:
    """Leave the lines that a former version wrote, and return them."""
    records = [json.loads(line) for line in folder.results.read_text().splitlines()]
    lines = [json.dumps({k: v for k, v in each.items() if k != "reliability"}) for each in records]
    folder.results.write_text("".join(line + "\n" for line in lines))
    return lines


def test_a_run_of_a_former_version_goes_on(tmp_path):
    """What it has stays byte by byte, what is missing is computed with a reliability, and all is reported."""
    study, folder = little(methods=["protonet", "mdm"]), RunFolder(tmp_path / "run")
    run_study(study, folder.path)
    whole = [each.confusion.tolist() for each in folder.read().results]
    kept = [line for line in without_reliability(folder) if json.loads(line)["method"] == "protonet"]
    folder.results.write_text("".join(line + "\n" for line in kept))
    run_study(study, folder.path)
    found = folder.read()
    assert not found.damage and [each.confusion.tolist() for each in found.results] == whole
    assert folder.results.read_text().splitlines()[: len(kept)] == kept
    assert {(each.method, each.reliability is None) for each in found.results} == {
        ("protonet", True),
        ("mdm", False),
    }
    (read,) = gather([write_record(folder, tmp_path / "record.jsonl").path])
    table = calibration_table(read)
    assert [bool(row[1]) for row in table.rows] == [False, True]
    assert "have no probabilities" in table.notes[-1]


def test_a_descent_that_ended_in_nan_is_no_damage():
    line = store.to_line(replace(result(), facts={"finetune": float("nan"), "invert": float("inf")}))
    assert store.to_line(store.from_line(line)) == line


def test_classes_in_any_order_are_read_back(tmp_path):
    """A network knows the classes of a session in the order of their numbers, however a config names them."""
    course = {"base_classes": [2, 0, 1], "sessions": [12, 10, 11, 13], "ways": 2, "trials": 1}
    run_study(little(methods=["protonet"], protocol=course), tmp_path / "run")
    found = RunFolder(tmp_path / "run").read()
    assert not found.damage and len(found.results) == 3
    assert found.results[-1].classes == (0, 1, 2, 10, 12, 11, 13)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    """A finished run of 2 methods in 3 variants, each with a base session and 2 trials of 2 sessions."""
    study = smoke("bci2a-shots", trials=2)
    few = {
        name: each.model_copy(update={"methods": ("protonet", "anchorinv")})
        for name, each in list(study.variants.items())[:3]
    }
    path = tmp_path_factory.mktemp("made") / "run"
    return RunFolder(made(path, study.model_copy(update={"variants": few})))


@pytest.fixture
def other(run, tmp_path) -> RunFolder:
    for name in ("config.json", "environment.json", "results.jsonl"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    return RunFolder(tmp_path)


BINS = Reliability.of([[0.6, 0.4]], [0]).to_dict()
WRONG: dict[str, dict[str, Any]] = {
    "a session that there is not": {"session": 1_000_000},
    "a session of another part": {"trial": None, "session": 1},
    "an unknown variant": {"variant": "17 shots"},
    "an unknown method": {"method": "\x1b[2Jprotonet"},
    "an unknown person": {"person": "anna"},
    "another seed": {"base_seed": 77},
    "a trial too many": {"trial": 2},
    "a list for a number": {"session": [1]},
    "a flag for a number": {"session": True},
    "text for a number": {"base_seed": "5"},
    "a broken number": {"trial": 1.0},
    "a negative number": {"trial": -1},
    "a number beyond 64 bits": {"base_seed": 10**30},
    "seconds that are none": {"seconds": float("nan")},
    "endless memory": {"peak_mb": float("inf")},
    "facts that are none": {"facts": {"base": "low"}},
    "facts in facts": {"facts": {"base": {"a": [1]}}},
    "other classes": {"classes": [0, 1, 3]},
    "classes twice": {"classes": [0, 1, 1]},
    "no classes": {"classes": [], "confusion": []},
    "another base": {"n_base": 3},
    "no base": {"n_base": 0},
    "a matrix of another size": {"confusion": [[1, 2], [3, 4]]},
    "a matrix with a short row": {"confusion": [[1, 2, 3], [1, 2], [1, 2, 3]]},
    "a matrix in a matrix": {"confusion": [[[1], 2, 3]] * 3},
    "negative counts": {"confusion": [[1, 2, -3]] * 3},
    "counts whose sum is too large": {"confusion": [[2**62, 2**62, 2**62]] * 3},
    "counts that are none": {"confusion": [[1.5, 2, 3]] * 3},
    "a stowaway": {"recordings": [0.1, 0.2]},
    "a reliability of other samples": {"reliability": {"base": BINS, "new": BINS}},
    "a reliability without bins": {"reliability": {"base": {**BINS, "counts": []}, "new": BINS}},
    "a reliability of one part": {"reliability": {"base": BINS}},
    "a reliability beyond bounds": {"reliability": {"base": {**BINS, "brier": 1e300}, "new": BINS}},
    "nothing but a name": {"method": "protonet", "classes": None},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_line_that_cannot_be_of_the_run_is_damaged_and_the_others_stay(run, other, wrong):
    lines = run.results.read_text().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if json.loads(line)["session"] == 1)
    changed = json.dumps({**json.loads(lines[place]), **WRONG[wrong]}) + "\n"
    check(
        run, other, "".join([*lines[:place], changed, *lines[place + 1 :]]).encode(), n_damaged=1, n_loose=1
    )


@pytest.mark.parametrize(
    "text",
    [b"", b"[1]", b"null", b"\xff\xfe{}", b"[" * 100_000, b'{"facts":' * 50_000, b"9" * 10_000, b"{}"],
)
def test_what_is_no_line_at_all(run, other, text):
    first, *rest = run.results.read_bytes().splitlines(keepends=True)
    check(run, other, b"".join([first, text, b"\n", *rest]), n_damaged=1, n_loose=0)


def test_a_line_that_is_there_twice_counts_once(run, other):
    lines = run.results.read_bytes().splitlines(keepends=True)
    check(run, other, b"".join([*lines, lines[3]]), n_damaged=1, n_loose=0)


def test_a_line_without_an_end_does_not_fill_the_memory(run, other):
    """80 MB without a line's end: passed over piece by piece, and put aside as it is."""
    with other.results.open("ab") as file:
        for _ in range(10):
            file.write(b'{"method": ["' * ((8 << 20) // 13))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = other.read()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000, "kB"
    assert found.n_damaged == 1 and "over 4194304 bytes" in found.damage
    assert len(found.results) == len(run.read().results)


def check(run: RunFolder, other: RunFolder, content: bytes, *, n_damaged: int, n_loose: int) -> None:
    """Read a file of results, mend it, and see that nothing that was whole is lost."""
    other.results.write_bytes(content)
    found, everything = other.read(), run.read()
    assert (found.n_damaged, found.n_loose) == (n_damaged, n_loose)
    there = {store.to_line(each) for each in found.results}
    lost = [each for each in everything.results if store.to_line(each) not in there]
    assert len(lost) <= 2 and len({Job.of(each) for each in lost}) <= 1
    assert "\x1b" not in found.damage and len(found.damage) < 1000
    about = other.about()
    with other.locked():
        other.prepare(other.study(), data=about["data"], people=about["people"])
    assert not other.read().damage
    assert [store.to_line(each) for each in other.read().results] == [store.to_line(x) for x in found.results]
    aside = (other.path / "results.damaged.jsonl").read_bytes()
    assert sorted((other.results.read_bytes() + aside).splitlines()) == sorted(content.splitlines())


def test_two_lines_that_contradict_each_other_are_both_damaged(run, other):
    lines = run.results.read_bytes().splitlines(keepends=True)
    value = json.loads(lines[0])
    value["confusion"][0] = value["confusion"][0][::-1]
    check(run, other, b"".join([*lines, json.dumps(value).encode() + b"\n"]), n_damaged=2, n_loose=0)


def claimed(line: bytes) -> list[Job]:
    try:
        return [Job.of(store.from_line(line))]
    except ValueError:
        return []


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_bytes_change_the_parts_that_were_not_hit_are_kept(run, tmp_path, data):
    before = run.results.read_bytes().splitlines()
    content = bytearray(run.results.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path, aside = tmp_path / "results.jsonl", tmp_path / "aside"
    path.write_bytes(content)
    found = store.read_lines(path, ExpectedResults(run.study(), run.about()))
    after = bytes(content).split(b"\n")
    touched = {part for line in {*before} ^ {*after} for part in claimed(line)}
    kept = {store.to_line(each).encode() for each in found.results}
    assert all(line in kept for line in before if not touched.intersection(claimed(line)))
    aside.unlink(missing_ok=True)
    store.move_damaged(path, found.places, aside)
    whole = b"".join(bytes(content)[start:stop] for start, stop in found.places)
    assert sorted((whole + aside.read_bytes()).splitlines()) == sorted(bytes(content).splitlines())


class FullDisk:
    """A file that takes a few more bytes and then no more."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, piece: memoryview) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self._file.write(piece[: self._room])
        self._room -= taken
        return int(taken)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@pytest.mark.parametrize("room", [0, 1, 100, 300])
def test_a_disk_that_is_full_inside_a_line_takes_all_of_a_part_or_nothing(tmp_path, monkeypatch, room):
    path = tmp_path / "results.jsonl"
    store.append(path, result(trial=0))
    before, real = path.read_bytes(), Path.open
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *args, **kwargs: FullDisk(real(*args, **kwargs), room))
        with pytest.raises(OSError, match="No space left"):
            store.append(path, result(trial=1), result(trial=1, session=2))
    assert path.read_bytes() == before
    store.append(path, result(trial=1))
    assert [store.from_line(line).trial for line in path.read_text().splitlines()] == [0, 1]
