"""Sets in one .npz file: what is wrong with it is told at once; parts are held out of training alone."""

import numpy as np
import pytest

from anchorinv.datasets.npz_sets import EEG_STRESS, EMG_LONGTERM, split_values
from anchorinv.errors import Problems
from tests.datasets import making

NAME = "emg_longterm.npz"


def told(path, plan=EMG_LONGTERM.plan) -> str:
    with pytest.raises(ValueError) as error:
        plan(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_everything_wrong_is_told_together(tmp_path):
    n = 28
    making.emg_longterm(
        tmp_path / NAME, X=np.zeros((n, 8, 200)), scale=np.array(np.nan), sfreq=np.array([200.0, 200.0]),
        y=np.full(n, 22), subject=None, day=np.arange(n) + 10.5, repetition=np.ones(3, dtype=int),
    )  # fmt: skip
    with pytest.raises(Problems) as error:
        EMG_LONGTERM.plan(tmp_path)
    assert error.value.problems == (
        "subject is missing",
        "X is float64 (28, 8, 200), expected int16 (n, 8, 300)",
        "scale is nan, expected one number above 0",
        "sfreq is float64 (2,), expected 200 (Hz)",
        "y has 22, expected 0-21",
        "day is float64 (28,), expected a whole number for each trial",
        "repetition has 3 values for 28 trials",
    )
    assert NAME in str(error.value) and "docs/data.md" in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"X": None}, "X is missing"),
        ({"X": np.array(3, dtype=np.int16)}, "X is int16 (), expected int16 (n, 8, 300)"),
        ({"X": np.empty((0, 8, 300), dtype=np.int16)}, "X is int16 (0, 8, 300)"),
        ({"scale": np.array(0.0)}, "scale is 0.0, expected one number above 0"),
        ({"scale": np.array("large")}, "scale is large, expected one number above 0"),
        ({"sfreq": np.array(250)}, "sfreq is 250, expected 200 (Hz)"),
        ({"day": np.zeros(28, dtype=int)}, "day has 0, expected 1-30"),
        ({"day": np.array([{}] * 28, dtype=object)}, "day holds Python objects"),
    ],
)
def test_each_fault_has_its_sentence(tmp_path, change, said):
    making.emg_longterm(tmp_path / NAME, **change)
    assert said in told(tmp_path / NAME)


def test_a_trial_that_is_there_twice_is_refused(tmp_path):
    # It could be on both sides of a split otherwise, or two recordings under one name.
    making.emg_longterm(tmp_path / NAME, y=np.zeros(28, dtype=int))
    said = told(tmp_path / NAME)
    assert "has 14 trials twice, the first y 0, subject " in said and "repetition 4" in said


def test_files_that_are_none_or_another_set(tmp_path):
    assert "does not exist; pass emg_longterm.npz" in told(tmp_path / "away")
    assert "holds no emg_longterm.npz" in told(tmp_path)
    (tmp_path / NAME).write_bytes(b"PK\x03\x04 but not really")
    assert "is cut short or damaged" in told(tmp_path / NAME)
    making.eeg_stress(tmp_path / "eeg.npz", subjects=[1])
    said = told(tmp_path / "eeg.npz")
    assert "day is missing" in said and "X is int16 (12, 32, 3200)" in said and "sfreq is 128" in said
    whole = (tmp_path / "eeg.npz").read_bytes()
    (tmp_path / "eeg.npz").write_bytes(whole[: len(whole) // 2])
    assert "is cut short or damaged" in told(tmp_path / "eeg.npz", EEG_STRESS.plan)


def test_a_file_is_found_below_a_folder(tmp_path):
    making.emg_longterm(tmp_path / "some" / "where" / NAME)
    assert EMG_LONGTERM.plan(tmp_path).sources[0].files == (tmp_path / "some" / "where" / NAME,)


def test_a_side_without_trials_is_told(tmp_path):
    making.emg_longterm(tmp_path / NAME, days=(1, 2))
    assert "no trial of day 21-30, which test" in told(tmp_path / NAME)


@pytest.mark.parametrize("layout", [EMG_LONGTERM, EEG_STRESS])
def test_whatever_is_held_out_the_test_part_stays_away(layout):
    for first in layout.train:
        for last in layout.train:
            asked = f"{first}-{last}"
            if first > last or last - first + 1 == len(layout.train):
                with pytest.raises(ValueError, match="--hold-out takes a "):
                    split_values(layout, asked)
                continue
            sides, words = split_values(layout, asked)
            assert set(sides) == set(layout.train)
            assert [part for part, side in sides.items() if side == "test"] == list(range(first, last + 1))
            assert "left out" in words
    assert set(split_values(layout, None)[0]) == {*layout.train, *layout.test}


@pytest.mark.parametrize("asked", ["", "0", "3", "1-2", "1-3", "two", "-1", "1,2", "1-", "9" * 30])
def test_what_cannot_be_held_out_is_told(asked):
    with pytest.raises(
        ValueError, match=r"--hold-out takes a trial of 1-2, or a range or list that leaves some"
    ):
        split_values(EEG_STRESS, asked)
