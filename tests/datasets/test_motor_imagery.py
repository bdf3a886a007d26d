"""Imagined movements: windows filtered by themselves, clipped, re-referenced; never a run on both sides."""

import numpy as np
import pytest

from anchorinv.datasets.npz_sets import EEG_MOTOR_IMAGERY, split_values
from anchorinv.datasets.prepare import prepare
from anchorinv.signal.arrays import load_arrays
from anchorinv.signal.preprocessing import parse_band
from tests.datasets import making
from tests.datasets.genuine import shared
from tests.naive import filtered

NAME = "eeg_motor_imagery.npz"
LAYOUT = EEG_MOTOR_IMAGERY


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    return folder, making.eeg_motor_imagery(folder / NAME, scale=np.array(0.2))


def prepared_by_hand(signals, band=None):
    """The textbook way, a window at a time: filter, clip, take the mean over channels away."""
    found = []
    for window in signals * 0.2:
        clipped = np.clip(window if band is None else filtered(window, 160, band), -200, 200)
        found.append(np.stack([at - sum(at) / 22 for at in clipped.T], axis=1))
    return np.stack(found)


def windows_of_a_run(inside, data, subject, run):
    """What the file and the prepared set have of a run, in the order of the file."""
    there = (inside["subject"] == subject) & (inside["run"] == run)
    here = (data.subjects == str(subject)) & (data.sessions == str(run))
    assert data.labels[here].tolist() == inside["y"][there].tolist()
    return inside["X"][there], data.signals(here)


@pytest.mark.parametrize(
    ("hold_out", "train", "test"),
    [(None, {4, 6, 8, 10}, {12, 14}), ("8,10", {4, 6}, {8, 10}), (" 4, 10 ", {6, 8}, {4, 10})],
)
def test_no_run_is_on_both_sides(raw, tmp_path, hold_out, train, test):
    data = prepare(EEG_MOTOR_IMAGERY.plan(raw[0], hold_out=hold_out), tmp_path / "out")
    runs = set(zip(data.sessions.astype(int).tolist(), data.split.tolist(), strict=True))
    assert runs == {(run, "train") for run in train} | {(run, "test") for run in test}
    assert len(data) == 2 * 2 * 2 * len(train | test)
    assert len(data.samples) == 480 * len(data), "nothing of a run that is left out"
    names = set(data.recordings.tolist())
    pairs = set(zip(data.recordings.tolist(), data.split.tolist(), strict=True))
    assert len(pairs) == len(names) == 2 * len(train | test) and "subject20_run4" in names
    assert sorted(data.starts.tolist()) == list(range(0, 480 * len(data), 480)), (
        "no window has a part of another"
    )
    for side in ("train", "test"):
        assert set(data.labels[data.split == side].tolist()) == {0, 1, 2, 3}


def test_windows_are_clipped_and_referenced(raw, tmp_path):
    folder, inside = raw
    data = prepare(EEG_MOTOR_IMAGERY.plan(folder), tmp_path / "out")
    assert data.class_names == LAYOUT.classes and (data.n_times, data.sfreq, data.n_chans) == (480, 160, 22)
    assert data.ch_names == LAYOUT.ch_names and data.ch_names[:2] == ("Fz", "FC3")
    for subject, run in ((1, 4), (20, 14)):
        given, found = windows_of_a_run(inside, data, subject, run)
        np.testing.assert_allclose(found, prepared_by_hand(given), rtol=1e-6, atol=1e-5)
    beyond = int((np.abs(inside["X"] * 0.2) > 200).sum())
    assert data.meta["counts"] == {"clipped samples": beyond} and beyond > 0
    assert data.preprocessing.filter is None and data.preprocessing.not_live is None
    assert data.meta["licence"] == "ODC-BY 1.0"
    assert data.meta["origin"].startswith("EEG Motor Movement/Imagery 1.0.0 (PhysioNet")


@pytest.mark.parametrize("causal", [True, False])
def test_each_window_is_filtered_by_itself(raw, tmp_path, causal):
    folder, inside = raw
    band = parse_band("8-30", causal=causal)
    data = prepare(EEG_MOTOR_IMAGERY.plan(folder, band=band), tmp_path / "out")
    given, found = windows_of_a_run(inside, data, 1, 6)
    np.testing.assert_allclose(found, prepared_by_hand(given, band), rtol=1e-6, atol=1e-5)
    assert data.meta["steps"][0] == f"each trial filtered: {band}" and data.preprocessing.filter == band
    assert "one by one" in data.preprocessing.not_repeatable


def test_a_filter_beyond_the_rate_is_told_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match="more than 160 Hz is needed"):
        EEG_MOTOR_IMAGERY.plan(tmp_path / "away", band=parse_band("1-80"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ch_names": None}, "ch_names is missing"),
        ({"ch_names": np.array(["Cz", "C3"])}, "ch_names are others than Fz, FC3, FC1"),
        ({"ch_names": np.array(3)}, "C3, C1, Cz and 12 more"),
        ({"ch_names": np.frombuffer(b"\xff" * 12 * 22, dtype="<U3")}, "ch_names contains invalid text"),
        ({"run": np.full(48, 5)}, "run has 5, expected 4, 6, 8, 10, 12, 14"),
        ({"subject": np.full(48, 110)}, "subject has 110, expected 1-109"),
        ({"sfreq": np.array(128.0)}, "sfreq is 128.0, expected 160 (Hz)"),
    ],
)
def test_another_file_is_refused_in_a_sentence(tmp_path, change, said):
    making.eeg_motor_imagery(tmp_path / NAME, **change)
    with pytest.raises(ValueError) as error:
        EEG_MOTOR_IMAGERY.plan(tmp_path)
    assert said in str(error.value) and str(tmp_path / NAME) in str(error.value)


def test_trials_alike_in_all_columns_are_told_apart_by_their_signals(tmp_path):
    inside = making.eeg_motor_imagery(tmp_path / NAME)  # two of each
    EEG_MOTOR_IMAGERY.plan(tmp_path)
    first, second = np.flatnonzero((inside["subject"] == 1) & (inside["run"] == 4) & (inside["y"] == 0))
    twice = inside["X"].copy()
    twice[second] = twice[first]
    making.eeg_motor_imagery(tmp_path / NAME, X=twice)
    with pytest.raises(
        ValueError, match="has 1 trials twice, the first y 0, subject 1, run 4; keep one of each"
    ):
        EEG_MOTOR_IMAGERY.plan(tmp_path)


@pytest.mark.parametrize("asked", ["12", "5", "4-10", "4,6,8,10", "8,", "8;10", "8,12", ""])
def test_what_cannot_be_held_out_is_told(asked):
    with pytest.raises(ValueError, match=r"--hold-out takes a run of 4, 6, 8, 10, or a range or list"):
        split_values(LAYOUT, asked)


def test_the_genuine_file_has_what_it_says():
    inside = load_arrays(shared(NAME), ("y", "scale", "sfreq", "ch_names", *LAYOUT.columns))  # not X
    assert np.bincount(inside["y"]).tolist() == [455, 445, 451, 449]
    assert set(inside["subject"].tolist()) == set(range(1, 21))
    assert set(inside["run"].tolist()) == {*LAYOUT.train, *LAYOUT.test}
    assert ((inside["y"] < 2) == (inside["run"] % 4 == 0)).all(), "fists in some runs, both or feet in others"
    assert tuple(inside["ch_names"].tolist()) == LAYOUT.ch_names
    assert inside["sfreq"] == 160 and inside["scale"] == 1
