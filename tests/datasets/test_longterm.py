"""Long-term EMG: windows as they are, days on their sides, test days nowhere when others are held out."""

import numpy as np
import pytest

from anchorinv.datasets.dataset import Dataset
from anchorinv.datasets.npz_sets import EMG_LONGTERM
from anchorinv.datasets.prepare import prepare, sha256
from anchorinv.signal.arrays import load_arrays
from tests.datasets import making
from tests.datasets.genuine import shared

NAME = "emg_longterm.npz"
LAYOUT = EMG_LONGTERM


def test_windows_are_as_they_are_and_days_split(tmp_path):
    raw = making.emg_longterm(tmp_path / NAME)
    data = prepare(EMG_LONGTERM.plan(tmp_path), tmp_path / "out")
    assert (len(data), data.n_chans, data.n_times, data.sfreq) == (28, 8, 300, 200)
    assert data.class_names == LAYOUT.classes
    facts = [data.labels, data.subjects.astype(int), data.sessions.astype(int)]
    for i, (label, subject, day) in enumerate(zip(*facts, strict=True)):
        (place,) = np.flatnonzero((raw["y"] == label) & (raw["subject"] == subject) & (raw["day"] == day))
        np.testing.assert_array_equal(data.signals([i])[0], (raw["X"][place] * 0.1).astype(np.float32))
        assert data.split[i] == ("train" if day <= 20 else "test")
        assert data.recordings[i] == f"subject{subject}_day{day}"


def test_held_out_days_test_and_later_days_are_nowhere(tmp_path):
    raw = making.emg_longterm(tmp_path / NAME)
    data = prepare(EMG_LONGTERM.plan(tmp_path, hold_out="16-20"), tmp_path / "out")
    sides = {int(day): str(side) for day, side in zip(data.sessions, data.split, strict=True)}
    assert sides == {1: "train", 2: "train", 15: "train", 16: "test", 20: "test"}
    assert len(data.samples) == 300 * len(data) == 300 * np.count_nonzero(raw["day"] <= 20)
    assert data.meta["hold_out"] == "16-20" and "21-30 left out" in data.meta["split"]


def test_meta_says_where_it_is_from(tmp_path):
    making.emg_longterm(tmp_path / NAME)
    meta = prepare(EMG_LONGTERM.plan(tmp_path), tmp_path / "out").meta
    assert meta["sources"] == {NAME: sha256(tmp_path / NAME)}
    assert meta["licence"] == "Apache-2.0" and meta["origin"].startswith("Suguru55/")
    assert meta["split"] == "by day: 1-20 train, 21-30 test" and meta["hold_out"] is None


def test_the_same_file_gives_the_same_bytes_and_another_one_is_noticed(tmp_path):
    making.emg_longterm(tmp_path / "a" / NAME)
    made = {}
    for place in ("b", "c"):
        (tmp_path / place).mkdir()
        (tmp_path / place / NAME).write_bytes((tmp_path / "a" / NAME).read_bytes())
        prepare(EMG_LONGTERM.plan(tmp_path / place), tmp_path / place / "out")
        made[place] = {path.name: path.read_bytes() for path in (tmp_path / place / "out").iterdir()}
    assert made["b"] == made["c"] and len(made["b"]) == 3
    making.emg_longterm(tmp_path / "a" / NAME, scale=np.array(0.2))
    other = prepare(EMG_LONGTERM.plan(tmp_path / "a"), tmp_path / "a" / "out")
    assert other.fingerprint != Dataset.open(tmp_path / "b" / "out").fingerprint


def test_a_file_that_changed_halfway_is_read_anew(tmp_path, monkeypatch):
    making.emg_longterm(tmp_path / NAME)
    plan = EMG_LONGTERM.plan(tmp_path)

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("anchorinv.datasets.prepare._assemble", stop)
        prepare(plan, tmp_path / "out")
    raw = making.emg_longterm(tmp_path / NAME, scale=np.array(0.2))
    data = prepare(EMG_LONGTERM.plan(tmp_path), tmp_path / "out")
    assert np.abs(data.samples).max() == np.float32(np.abs(raw["X"].astype(int)).max() * 0.2)


def test_the_genuine_file_has_what_it_says():
    path = shared(NAME)
    inside = load_arrays(
        path, ("y", "subject", "scale", "sfreq", *LAYOUT.columns)
    )  # not X: headers and counts
    counted = np.stack([inside[name] for name in ("y", *LAYOUT.columns)], axis=1)
    assert len(np.unique(counted, axis=0)) == len(counted) == 22 * 3 * 30 * 4
    for name, allowed in LAYOUT.columns.items():
        assert set(inside[name].tolist()) == set(allowed)
    assert inside["sfreq"] == 200 and 0 < inside["scale"] < 1
