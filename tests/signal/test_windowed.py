"""Windows in files: whose they are."""

import numpy as np
import pytest

from anchorinv.data.dataset import Dataset
from anchorinv.data.windowed import open_windows


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
