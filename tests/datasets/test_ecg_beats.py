"""Heartbeats: windows as they are, records divided in time, no sample of a record on both sides."""

import numpy as np
import pytest

from anchorinv.datasets.npz_sets import ECG_BEATS, split_values
from anchorinv.datasets.prepare import prepare, sha256
from anchorinv.signal.arrays import load_arrays
from tests.datasets import making
from tests.datasets.genuine import shared

NAME = "ecg_beats.npz"
LAYOUT = ECG_BEATS
BORDER = LAYOUT.test[0]


def sides_of(raw, data):
    """The side of each (record, sample), found by the signals."""
    found = {}
    for window, side, subject in zip(data.signals(range(len(data))), data.split, data.subjects, strict=True):
        (place,) = [
            i for i, beat in enumerate(raw["X"]) if np.array_equal((beat * 0.1).astype("<f4"), window)
        ]
        assert raw["subject"][place] == int(subject)
        found[int(subject), int(raw["sample"][place])] = str(side)
    return found


def test_windows_are_as_they_are_and_records_are_divided_in_time(tmp_path):
    raw = making.ecg_beats(tmp_path / NAME)
    data = prepare(ECG_BEATS.plan(tmp_path), tmp_path / "out")
    assert (len(data), data.n_chans, data.n_times, data.sfreq) == (12, 2, 256, 360)
    assert data.class_names == LAYOUT.classes and set(data.labels.tolist()) == {0, 5}
    assert sides_of(raw, data) == {
        (subject, sample): "train" if sample < BORDER else "test"
        for subject, sample in zip(raw["subject"].tolist(), raw["sample"].tolist(), strict=True)
    }
    names = {"subject101_train", "subject101_test", "subject223_train", "subject223_test"}
    assert set(data.recordings.tolist()) == names, "no recording is on both sides"
    assert all(name.endswith(side) for name, side in zip(data.recordings, data.split, strict=True))
    assert data.meta["split"] == "by sample: 0-433332 train, 433333-649999 test"


def test_held_out_samples_test_and_later_ones_are_nowhere(tmp_path):
    raw = making.ecg_beats(tmp_path / NAME)
    data = prepare(ECG_BEATS.plan(tmp_path, hold_out="290000-433332"), tmp_path / "out")
    # The beat at 289822 trains no more: its window overlaps that of the one at 290008, which tests.
    sides = {300: "train", 290_008: "test", 433_332: "test"}
    assert sides_of(raw, data) == {
        (subject, at): side for subject in (101, 223) for at, side in sides.items()
    }
    assert len(data.samples) == 256 * len(data)
    assert "433333-649999 left out" in data.meta["split"] and data.meta["hold_out"] == "290000-433332"


@pytest.mark.parametrize(("gap", "kept"), [(255, False), (256, True)])
def test_windows_overlap_on_one_side_alone(tmp_path, gap, kept):
    samples = (300, 400, BORDER - 1, BORDER - 1 + gap, BORDER + 300)  # 300 and 400 overlap, and both train
    raw = making.ecg_beats(tmp_path / NAME, samples=samples)
    found = sides_of(raw, prepare(ECG_BEATS.plan(tmp_path), tmp_path / "out"))
    assert {sample for _, sample in found} == {*samples} - (set() if kept else {BORDER - 1})
    for subject, sample in found:
        near = {side for (s, at), side in found.items() if s == subject and abs(at - sample) < 256}
        assert len(near) == 1


def test_a_record_without_a_test_part_keeps_all_of_its_training_part(tmp_path):
    raw = making.ecg_beats(tmp_path / NAME)
    first = raw["subject"] == 101
    moved = np.where(first, raw["sample"] // 2, raw["sample"])  # all before the border
    making.ecg_beats(tmp_path / NAME, sample=moved)
    data = prepare(ECG_BEATS.plan(tmp_path), tmp_path / "out")
    assert set(data.recordings.tolist()) == {"subject101_train", "subject223_train", "subject223_test"}
    assert np.count_nonzero(data.subjects == "101") == np.count_nonzero(first)


def test_meta_says_where_it_is_from(tmp_path):
    making.ecg_beats(tmp_path / NAME)
    meta = prepare(ECG_BEATS.plan(tmp_path), tmp_path / "out").meta
    assert meta["sources"] == {NAME: sha256(tmp_path / NAME)} and meta["unit"] == "mV"
    assert meta["licence"] == "ODC-BY 1.0" and meta["origin"].startswith("MIT-BIH Arrhythmia Database 1.0.0")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sample": None}, "sample is missing"),
        ({"sample": np.full(12, 650_000)}, "sample has 650000, expected 0-649999"),
        ({"subject": np.full(12, 99)}, "subject has 99, expected 100-234"),
        ({"y": np.full(12, 7)}, "y has 7, expected 0-6"),
        ({"X": np.zeros((12, 2, 200), dtype=np.int16)}, "expected int16 (n, 2, 256)"),
        ({"subject": np.full(12, 101), "y": np.zeros(12, dtype=int)}, "has 6 trials twice, the first y 0"),
    ],
)
def test_another_file_is_refused_in_a_sentence(tmp_path, change, said):
    making.ecg_beats(tmp_path / NAME, **change)
    with pytest.raises(ValueError) as error:
        ECG_BEATS.plan(tmp_path)
    assert said in str(error.value) and str(tmp_path / NAME) in str(error.value)


@pytest.mark.parametrize("asked", ["290000-433333", "500000-600000", "0-433332", "5-4", "1000000", "all"])
def test_what_cannot_be_held_out_is_told(asked):
    with pytest.raises(ValueError, match=r"--hold-out takes a sample of 0-433332, or a range or list"):
        split_values(LAYOUT, asked)


def test_the_genuine_file_has_what_it_says():
    inside = load_arrays(shared(NAME), ("y", "scale", "sfreq", *LAYOUT.columns))  # not X: headers and counts
    assert np.bincount(inside["y"]).tolist() == [5400, 600, 685, 2310, 727, 342, 16]
    train = inside["sample"] < BORDER
    assert np.bincount(inside["y"][train]).tolist() == [3608, 442, 483, 1546, 459, 269, 10]
    assert len(np.unique(inside["subject"])) == 22 and set(inside["subject"].tolist()) <= set(range(100, 235))
    places = np.stack([inside["subject"].astype(int), inside["sample"]], axis=1)
    assert len(np.unique(places, axis=0)) == len(places) == 10_080
    assert inside["sfreq"] == 360 and np.isclose(inside["scale"], 0.005)
