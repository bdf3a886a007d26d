"""Windows in files: whose they are, and what holds none."""

import os

import numpy as np
import pytest

from anchorinv.datasets.dataset import Dataset, open_windows
from anchorinv.signal.readers import is_windowed


@pytest.mark.parametrize(("n_people", "wanted"), [(5, 5), (3, 6)])
def test_a_prepared_folder_tells_people_or_their_sessions_where_people_are_few(tmp_path, n_people, wanted):
    people = np.array([f"P{i}" for i in range(n_people)] * 4)
    sessions = np.repeat(["1", "2"], 2 * n_people)
    labels = np.repeat(["a", "b", "a", "b"], n_people)
    split = np.array(["train"] * (len(labels) - 1) + ["test"])
    windows = np.random.default_rng(0).normal(size=(len(labels), 2, 20)).astype(np.float32)
    data = Dataset.from_arrays(windows, labels, sfreq=100, split=split, subjects=people, sessions=sessions)
    data.write(tmp_path / "made")
    file = open_windows(tmp_path / "made", split="train")
    assert file.groups is not None and len(file.groups) == len(labels) - 1
    assert len(set(file.groups.tolist())) == wanted
    np.save(tmp_path / "plain.npy", windows)
    assert open_windows(tmp_path / "plain.npy").groups is None


def test_endings_in_any_case(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.ones((2, 3, 4)))
    (tmp_path / "a.npz").rename(tmp_path / "A.NPZ")
    assert is_windowed(tmp_path / "A.NPZ") and open_windows(tmp_path / "A.NPZ").shape == (2, 3, 4)


@pytest.mark.parametrize("name", ["day.edf", "day.EDF", "day.fif.gz", "day.hea", "day"])
def test_a_recording_has_no_labels_and_one_that_is_not_there_is_not_there(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"there is no .*{name}"):
        open_windows(tmp_path / name)
    (tmp_path / ("day.hea" if name == "day" else name)).write_bytes(b"0")  # a record goes by its bare name
    with pytest.raises(ValueError, match="has no labels of its windows; name its events with --events"):
        open_windows(tmp_path / name)


def test_a_pipe_is_not_waited_for(tmp_path):
    for name in ("a.npz", "a.npy"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match="a device or a pipe"):
            open_windows(tmp_path / name)
