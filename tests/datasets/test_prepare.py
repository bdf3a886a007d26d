"""A prepared folder is whole or not there, the same bytes for the same input, and made in little memory."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorinv.datasets.dataset import Dataset
from anchorinv.datasets.prepare import (
    DatasetPlan,
    LabelledWindow,
    PreparedRecording,
    RecordingSource,
    prepare,
)
from anchorinv.signal.pipeline import window_starts
from anchorinv.signal.preprocessing import Preprocessing


def piece(path: Path) -> PreparedRecording:
    samples = np.frombuffer(path.read_bytes(), "<i2").reshape(-1, 3) / 7
    starts = range(0, len(samples) - 9, 5)
    rows = [LabelledWindow(s, "up" if s % 2 else "down", path.stem, "1", "train", s > 20) for s in starts]
    return PreparedRecording(samples, rows, {"seen": len(samples)}, [f"read {path.stem}"])


def plan_of(folder: Path, *, n=6, read=piece) -> DatasetPlan:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{i}.bin" for i in range(n)]
    for i, path in enumerate(paths):
        if not path.exists():
            path.write_bytes(
                np.random.default_rng(i).integers(-99, 99, size=(30 + i, 3)).astype("<i2").tobytes()
            )
    sources = [RecordingSource(path.stem, (path,), partial(read, path)) for path in paths]
    how = Preprocessing(("a", "b", "c"), sfreq=100.0, n_times=10)
    return DatasetPlan(folder, sources, how, ("down", "up"), {"name": "toy"})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Killed(BaseException):
    """Like a signal: nobody catches it."""


def killed_at(name: str, path: Path) -> PreparedRecording:
    if path.stem == name:
        raise Killed
    return piece(path)


def test_recordings_come_one_after_the_other(tmp_path):
    plan = plan_of(tmp_path / "raw")
    data = prepare(plan, tmp_path / "out")
    pieces = [source.read() for source in plan.sources]
    assert np.array_equal(data.samples, np.concatenate([p.samples for p in pieces]).astype(np.float32))
    windows = [p.samples[row.start : row.start + 10].T for p in pieces for row in p.windows]
    assert np.array_equal(data.signals(np.arange(len(data))), np.array(windows, dtype=np.float32))
    assert data.meta["counts"] == {"seen": sum(len(p.samples) for p in pieces)}
    assert data.meta["notes"] == [f"read {i}" for i in range(6)]
    assert data.rejected.tolist() == [row.rejected for p in pieces for row in p.windows]
    assert isinstance(data.samples, np.memmap) and sorted(data.meta["sources"]) == [
        f"{i}.bin" for i in range(6)
    ]
    assert sorted(contents(tmp_path / "out")) == ["index.csv", "meta.json", "samples.npy"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_streamed_folder_is_the_one_that_a_dataset_writes(tmp_path):
    data = prepare(plan_of(tmp_path / "raw"), tmp_path / "out")
    in_memory = replace(data, samples=np.array(data.samples))
    in_memory.write(tmp_path / "again")
    one, other = contents(tmp_path / "again"), contents(tmp_path / "out")
    assert json.loads(one.pop("meta.json")) == json.loads(other.pop("meta.json")) and one == other
    assert Dataset.open(tmp_path / "again").fingerprint == data.fingerprint == in_memory.fingerprint


def test_the_same_input_gives_the_same_bytes(tmp_path):
    prepare(plan_of(tmp_path / "raw"), tmp_path / "one")
    prepare(plan_of(tmp_path / "raw"), tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("at", ["0", "3", "5"])
def test_a_killed_preparation_goes_on_where_it_stopped(tmp_path, at):
    whole = prepare(plan_of(tmp_path / "raw"), tmp_path / "whole")
    with pytest.raises(Killed):
        prepare(plan_of(tmp_path / "raw", read=partial(killed_at, at)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="not a prepared data set"):
        Dataset.open(tmp_path / ".out.unfinished")
    seen = []

    def counted(path):
        seen.append(path.stem)
        return piece(path)

    again = prepare(plan_of(tmp_path / "raw", read=counted), tmp_path / "out")
    assert seen == [str(i) for i in range(int(at), 6)]
    assert (
        contents(tmp_path / "out") == contents(tmp_path / "whole") and again.fingerprint == whole.fingerprint
    )


def _half(tmp_path):
    with pytest.raises(Killed):
        prepare(plan_of(tmp_path / "raw", read=partial(killed_at, "4")), tmp_path / "out")
    return tmp_path / ".out.unfinished"


def _cut_samples(unfinished):
    path = unfinished / "set" / "samples.npy"
    path.write_bytes(path.read_bytes()[:-10])


def _flip_a_sample(unfinished):
    path = unfinished / "set" / "samples.npy"
    found = bytearray(path.read_bytes())
    found[200] ^= 255
    path.write_bytes(found)


def _cut_journal(unfinished):
    path = unfinished / "journal.jsonl"
    path.write_text(path.read_text()[:-30])


def _other_plan(unfinished):
    (unfinished / "plan.json").write_text('{"plan": "another"}')


def _torn_plan(unfinished):
    (unfinished / "plan.json").write_text('{"pl')


def _more_samples(unfinished):
    with (unfinished / "set" / "samples.npy").open("ab") as file:
        file.write(b"half a recording")


def _lost_samples(unfinished):
    (unfinished / "set" / "samples.npy").unlink()


@pytest.mark.parametrize(
    "damage",
    [_cut_samples, _flip_a_sample, _cut_journal, _other_plan, _torn_plan, _more_samples, _lost_samples],
)
def test_whatever_a_crash_leaves_behind_the_result_is_the_same(tmp_path, damage):
    prepare(plan_of(tmp_path / "raw"), tmp_path / "whole")
    damage(_half(tmp_path))
    prepare(plan_of(tmp_path / "raw"), tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_source_that_changed_meanwhile_is_read_again(tmp_path):
    _half(tmp_path)
    (tmp_path / "raw" / "2.bin").write_bytes(np.arange(90, dtype="<i2").tobytes())
    prepare(plan_of(tmp_path / "raw"), tmp_path / "out")
    prepare(plan_of(tmp_path / "raw"), tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


KILLED = """
import os, signal, sys
from pathlib import Path
from anchorinv.progress import listening
from anchorinv.datasets.paper_sets import plan_nhie
from anchorinv.datasets.prepare import prepare

def die(tick):
    if tick.task == "preparing recordings" and tick.done == 2:
        os.kill(os.getpid(), signal.SIGKILL)

with listening(die):
    prepare(plan_nhie(Path(sys.argv[1])), Path(sys.argv[2]))
"""


def test_kill_9_in_the_middle_and_resumed_gives_the_same_bytes(tmp_path):
    from anchorinv.datasets.paper_sets import plan_nhie
    from tests.datasets.test_nhie import small_set

    small_set(tmp_path / "raw", seconds=60)
    prepare(plan_nhie(tmp_path / "raw"), tmp_path / "whole")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "raw"), str(tmp_path / "out")]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -9
    assert not (tmp_path / "out").exists()
    journal = (tmp_path / ".out.unfinished" / "journal.jsonl").read_text()
    assert len(journal.splitlines()) == 2
    prepare(plan_nhie(tmp_path / "raw"), tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_problems_of_all_recordings_are_told_together_and_what_was_done_stays(tmp_path):
    def troubled(path):
        if path.stem in "24":
            raise ValueError(f"{path.name} is broken")
        return piece(path)

    with pytest.raises(ValueError, match="2 problems") as error:
        prepare(plan_of(tmp_path / "raw", read=troubled), tmp_path / "out")
    assert "2.bin is broken" in str(error.value) and "4.bin is broken" in str(error.value)
    assert len((tmp_path / ".out.unfinished" / "journal.jsonl").read_text().splitlines()) == 2


def test_a_place_that_is_taken_is_left_alone(tmp_path):
    plan = plan_of(tmp_path / "raw")
    with pytest.raises(ValueError, match="not a prepared data set; choose another"):
        prepare(plan, tmp_path / "raw")
    prepare(plan, tmp_path / "out")
    with pytest.raises(ValueError, match="--replace"):
        prepare(plan, tmp_path / "out")
    before = contents(tmp_path / "out")
    prepare(plan_of(tmp_path / "raw", n=3), tmp_path / "out", replace=True)
    assert contents(tmp_path / "out") != before
    with pytest.raises(ValueError, match="nothing to prepare"):
        prepare(replace(plan, sources=[]), tmp_path / "new")


def test_two_processes_do_not_mix(tmp_path):
    def intruding(path):
        prepare(plan_of(tmp_path / "raw"), tmp_path / "out")
        return piece(path)

    with pytest.raises(ValueError, match="another process is preparing"):
        prepare(plan_of(tmp_path / "raw", read=intruding), tmp_path / "out")


# The peak of this process: that of getrusage begins with what the process that started it had.
MEASURED = """
import sys
from functools import partial
from pathlib import Path
import numpy as np
from anchorinv.datasets.prepare import DatasetPlan, LabelledWindow, PreparedRecording
from anchorinv.datasets.prepare import RecordingSource, prepare
from anchorinv.signal.preprocessing import Preprocessing

def read(i):
    rows = [LabelledWindow(0, "a", "1", "1", "train"), LabelledWindow(5, "a", "1", "1", "test")]
    return PreparedRecording(np.full((250_000, 8), i, dtype=np.float32), rows)

sources = [RecordingSource(str(i), (), partial(read, i)) for i in range(int(sys.argv[2]))]
how = Preprocessing(tuple("abcdefgh"), sfreq=64.0, n_times=100)
prepare(DatasetPlan(Path("."), sources, how, ("a",), {}), Path(sys.argv[1]))
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
print(int(peak.split()[1]) // 1024)
"""


def test_memory_does_not_grow_with_the_set(tmp_path):
    peaks = []
    for n in (4, 40):  # 32 and 320 MB
        command = [sys.executable, "-c", MEASURED, str(tmp_path / str(n)), str(n)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ})
        peaks.append(int(done.stdout))
    assert (tmp_path / "40" / "samples.npy").stat().st_size > 320e6
    assert peaks[1] < peaks[0] + 60 and peaks[1] < 1500, peaks


@given(st.integers(0, 60), st.integers(1, 20), st.floats(0, 0.95))
def test_windows_start_where_a_naive_loop_finds_them(n_samples, n_times, overlap):
    step = max(1, round(n_times * (1 - overlap)))
    found, start = [], 0
    while start + n_times <= n_samples:
        found.append(start)
        start += step
    assert window_starts(n_samples, n_times, overlap=overlap).tolist() == found


@pytest.mark.parametrize(
    ("n_times", "overlap", "told"), [(0, 0, "at least one"), (4, 1, "from 0 to below 1")]
)
def test_windows_that_make_no_sense(n_times, overlap, told):
    with pytest.raises(ValueError, match=told):
        window_starts(10, n_times, overlap=overlap)
