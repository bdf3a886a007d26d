"""EEG under stress: clipped, re-referenced, cut after the split, never a trial on both sides."""

import numpy as np
import pytest

from anchorinv.datasets.npz_sets import EEG_STRESS
from anchorinv.datasets.prepare import prepare
from anchorinv.signal.arrays import load_arrays
from anchorinv.signal.preprocessing import parse_band
from tests.datasets import making
from tests.datasets.genuine import shared
from tests.naive import filtered

NAME = "eeg_stress.npz"
LAYOUT = EEG_STRESS


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    loud = making.eeg_stress(folder / NAME, scale=np.array(0.2))
    return folder, loud


def of(raw, data, i):
    """The trial in the file that a window was cut from."""
    subject, trial = int(data.subjects[i]), int(data.sessions[i])
    here = (raw["y"] == data.labels[i]) & (raw["subject"] == subject) & (raw["trial"] == trial)
    (place,) = np.flatnonzero(here)
    return raw["X"][place] * 0.2


def referenced(signals):
    """The textbook way: clip, then take the mean over channels away, sample by sample."""
    signals = np.clip(signals, -200, 200)
    return np.stack([at - sum(at) / 32 for at in signals.T], axis=1)


@pytest.mark.parametrize(
    ("hold_out", "sides"),
    [(None, {"1": "train", "2": "train", "3": "test"}), ("2", {"1": "train", "2": "test"}),
     ("1", {"1": "test", "2": "train"})],
)  # fmt: skip
def test_no_trial_is_on_both_sides(raw, tmp_path, hold_out, sides):
    data = prepare(EEG_STRESS.plan(raw[0], hold_out=hold_out), tmp_path / "out")
    assert set(zip(data.sessions.tolist(), data.split.tolist(), strict=True)) == set(sides.items())
    assert len(data) == 2 * 4 * len(sides) * 6
    assert len(data.samples) == 2 * 4 * len(sides) * 3200, "nothing of a trial that is left out"
    names = set(data.recordings.tolist())
    pairs = set(zip(data.recordings.tolist(), data.split.tolist(), strict=True))
    assert len(pairs) == len(names) == 2 * 4 * len(sides) and "subject20_stroop_trial1" in names
    # Windows neither overlap nor reach into another recording.
    assert (np.diff(np.sort(data.starts)) >= 512).all()
    assert set(data.starts % 3200) == set(range(0, 3072, 512))


def test_windows_are_clipped_and_referenced_pieces_of_their_trial(raw, tmp_path):
    folder, inside = raw
    data = prepare(EEG_STRESS.plan(folder), tmp_path / "out")
    assert data.class_names == LAYOUT.classes and (data.n_times, data.sfreq, data.n_chans) == (512, 128, 32)
    for i in (0, 7, len(data) - 1):
        at = int(data.starts[i] % 3200)
        wanted = referenced(of(inside, data, i))[:, at : at + 512]
        np.testing.assert_allclose(data.signals([i])[0], wanted, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(data.signals([3])[0].mean(axis=0), 0, atol=1e-4)
    beyond = int((np.abs(inside["X"] * 0.2) > 200).sum())
    assert data.meta["counts"] == {"clipped samples": beyond} and beyond > 0
    assert data.meta["steps"][:2] == ["clipped at ±200 µV", "common average reference"]
    # A recording is a trial here, so a model can bring others to the same, live too.
    how = data.preprocessing
    assert (how.limit, how.reference, how.filter, how.not_live) == (200, "average", None, None)


@pytest.mark.parametrize("causal", [True, False])
def test_a_recording_is_filtered_as_a_whole_and_then_clipped(raw, tmp_path, causal):
    folder, inside = raw
    band = parse_band("1-40", causal=causal)
    data = prepare(EEG_STRESS.plan(folder, band=band), tmp_path / "out")
    i = 100
    at = int(data.starts[i] % 3200)
    wanted = referenced(filtered(of(inside, data, i), 128, band))[:, at : at + 512]
    np.testing.assert_allclose(data.signals([i])[0], wanted, rtol=1e-6, atol=1e-5)
    assert data.meta["steps"][0] == f"filtered: {band}" and data.preprocessing.filter == band
    assert data.preprocessing.not_repeatable is None and (data.preprocessing.not_live is None) == causal


def test_a_filter_beyond_the_rate_is_told_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match="more than 160 Hz is needed"):
        EEG_STRESS.plan(tmp_path / "away", band=parse_band("1-80"))


def test_the_genuine_file_has_what_it_says():
    inside = load_arrays(shared(NAME), ("y", "scale", "sfreq", *LAYOUT.columns))  # not X: headers and counts
    counted = np.stack([inside[name] for name in ("y", *LAYOUT.columns)], axis=1)
    assert len(np.unique(counted, axis=0)) == len(counted) == 4 * 20 * 3
    assert inside["sfreq"] == 128 and inside["scale"] == 0.1
