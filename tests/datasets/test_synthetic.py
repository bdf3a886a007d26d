"""The synthetic generator: reproducible, shaped as documented, and as hard as it says."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from anchorinv.datasets.synthetic import SyntheticRecordings, eeg, emg

Generate = Callable[..., SyntheticRecordings]
both = pytest.mark.parametrize("generate", [eeg, emg])
SMALL = {"n_classes": 3, "n_subjects": 2, "n_sessions": 2, "n_per_class": 3, "n_chans": 4, "n_times": 120}


def log_power(recordings: SyntheticRecordings) -> np.ndarray:
    """Log power per channel and band: (n, n_bands * n_chans)."""
    spectrum = np.abs(np.fft.rfft(recordings.signals)) ** 2
    freqs = np.fft.rfftfreq(recordings.signals.shape[2], 1 / recordings.sfreq)
    bands = {"eeg": [(4, 8), (8, 14), (16, 27)], "emg": [(20, 300)]}[recordings.kind]
    inside = [(freqs >= low) & (freqs <= high) for low, high in bands]
    return np.hstack([np.log(spectrum[..., band].sum(axis=2)) for band in inside])


def last_session_accuracy(recordings: SyntheticRecordings) -> float:
    last = recordings.sessions.max()
    train, test = (
        recordings.select(mask) for mask in (recordings.sessions < last, recordings.sessions == last)
    )
    model = make_pipeline(StandardScaler(), LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"))
    return float(model.fit(log_power(train), train.labels).score(log_power(test), test.labels))


def mean_spectrum(recordings: SyntheticRecordings) -> tuple[np.ndarray, np.ndarray]:
    power = (np.abs(np.fft.rfft(recordings.signals)) ** 2).mean(axis=(0, 1))
    return np.fft.rfftfreq(recordings.signals.shape[2], 1 / recordings.sfreq), power


@both
def test_same_seed_same_recordings_and_another_seed_others(generate: Generate) -> None:
    first, again, other = generate(**SMALL, seed=3), generate(**SMALL, seed=3), generate(**SMALL, seed=4)
    np.testing.assert_array_equal(first.signals, again.signals)
    assert np.abs(first.signals - other.signals).mean() > 1


@both
def test_global_random_state_is_neither_read_nor_changed(generate: Generate) -> None:
    numpy_before, python_before = np.random.get_state(legacy=False), random.getstate()
    first = generate(**SMALL, seed=3)
    numpy_after = np.random.get_state(legacy=False)
    np.testing.assert_equal(numpy_after, numpy_before)
    assert random.getstate() == python_before
    random.random(), np.random.random()
    np.testing.assert_array_equal(generate(**SMALL, seed=3).signals, first.signals)


@both
@pytest.mark.parametrize("more", ["n_classes", "n_subjects", "n_sessions", "n_per_class"])
def test_asking_for_more_keeps_what_was_there(generate: Generate, more: str) -> None:
    few, many = generate(**SMALL, seed=3), generate(**(SMALL | {more: 5}), seed=3)
    repetition = np.arange(len(many)) % (5 if more == "n_per_class" else SMALL["n_per_class"])
    kept = many.select(
        (many.labels < SMALL["n_classes"])
        & (many.subjects < SMALL["n_subjects"])
        & (many.sessions < SMALL["n_sessions"])
        & (repetition < SMALL["n_per_class"])
    )
    for field in ("signals", "labels", "subjects", "sessions"):
        np.testing.assert_array_equal(getattr(kept, field), getattr(few, field))


@settings(max_examples=25)
@given(
    generate=st.sampled_from([eeg, emg]),
    counts=st.tuples(st.integers(2, 4), *[st.integers(1, 3)] * 3),
    n_chans=st.integers(1, 9),
    n_times=st.integers(100, 160),
    difficulty=st.floats(0, 1e12),
    seed=st.integers(0, 2**80),
)
def test_shapes_types_and_finite_values(
    generate: Generate, counts: tuple[int, ...], n_chans: int, n_times: int, difficulty: float, seed: int
) -> None:
    names = ("n_classes", "n_subjects", "n_sessions", "n_per_class")
    asked = dict(zip(names, counts, strict=True))
    result = generate(**asked, n_chans=n_chans, n_times=n_times, sfreq=250, difficulty=difficulty, seed=seed)
    assert result.signals.shape == (np.prod(counts), n_chans, n_times)
    assert result.signals.dtype == np.float32
    assert np.isfinite(result.signals).all()
    assert 1 < result.signals.std() < 1000  # microvolts
    assert len(set(result.ch_names)) == n_chans
    fields = np.stack([result.labels, result.subjects, result.sessions])
    assert fields.dtype == np.int64
    cells, sizes = np.unique(fields, axis=1, return_counts=True)
    assert cells.shape[1] == np.prod(counts[:3])
    assert (sizes == counts[3]).all()


def test_the_eeg_background_falls_as_one_over_f() -> None:
    recordings = eeg(n_classes=2, n_per_class=20, n_times=1000, difficulty=0, seed=0)
    freqs, power = mean_spectrum(recordings)
    quiet = ((freqs > 0.5) & (freqs < 3)) | ((freqs > 33) & (freqs < 60))  # where no rhythm reaches
    slope, _ = np.polyfit(np.log(freqs[quiet]), np.log(power[quiet]), 1)
    assert -1.2 < slope < -0.7


@pytest.mark.parametrize(
    ("generate", "low", "peak", "high"),
    [(eeg, 3, 6, 8), (eeg, 8, 10.5, 15), (eeg, 15, 21, 30), (emg, 20, 100, 220)],
)
def test_rhythms_stand_out_of_the_background(
    generate: Generate, low: float, peak: float, high: float
) -> None:
    recordings = generate(n_per_class=5, n_times=1000, seed=0)
    freqs, power = mean_spectrum(recordings)
    below, top, above = (power[np.abs(freqs / freq - 1) < 0.05].mean() for freq in (low, peak, high))
    assert top > 2 * max(below, above)


@both
def test_volume_conduction_makes_neighbours_alike(generate: Generate) -> None:
    recordings = generate(n_classes=2, n_subjects=1, n_sessions=1, n_chans=8, seed=0)
    centred = recordings.signals - recordings.signals.mean(axis=2, keepdims=True)
    correlation = np.corrcoef(np.hstack(list(centred)))
    near, far = (np.mean([correlation[i, (i + step) % 8] for i in range(8)]) for step in (1, 4))
    assert near > 0.2
    assert abs(far) < 0.1


@both
def test_sessions_differ_in_gain_and_offset(generate: Generate) -> None:
    recordings = generate(n_classes=2, n_subjects=1, n_sessions=4, n_per_class=30, seed=0)
    recordings = recordings.select(recordings.labels == 0)
    for value in (np.log(recordings.signals.std(axis=2)), recordings.signals.mean(axis=2)):  # (n, n_chans)
        sessions = [value[recordings.sessions == session] for session in range(4)]
        between = np.var([part.mean(axis=0) for part in sessions], axis=0)
        by_chance = np.mean([part.var(axis=0) / len(part) for part in sessions], axis=0)
        assert np.mean(between / by_chance) > 5  # about 1 if sessions were alike


@both
def test_accuracy_falls_with_difficulty_from_easy_to_above_chance(generate: Generate) -> None:
    levels = (0, 0.75, 2, 50)
    accuracies = [last_session_accuracy(generate(n_subjects=1, difficulty=level, seed=0)) for level in levels]
    assert accuracies == sorted(accuracies, reverse=True)
    easy, usual, hard, hardest = accuracies
    assert easy > 0.85
    assert easy - usual > 0.05
    assert usual - hard > 0.1
    assert hardest < 2 / 8  # chance is one in eight


@both
def test_every_pair_of_classes_can_be_told_apart(generate: Generate) -> None:
    recordings = generate(n_subjects=1, n_per_class=10, difficulty=0, seed=1)
    pairs = [(a, b) for a in range(8) for b in range(a)]
    accuracies = [
        last_session_accuracy(recordings.select(np.isin(recordings.labels, pair))) for pair in pairs
    ]
    assert min(accuracies) > 0.7


@both
def test_no_two_trials_share_their_noise(generate: Generate) -> None:
    recordings = generate(n_classes=2, n_subjects=2, n_sessions=2, n_per_class=2, n_times=1000, seed=0)
    centred = recordings.signals - recordings.signals.mean(axis=2, keepdims=True)  # offsets repeat
    alike = np.abs(np.corrcoef(centred.reshape(16, -1)) - np.eye(16))
    assert alike.max() < 0.2


def test_select_keeps_what_the_mask_names() -> None:
    recordings = eeg(**SMALL, seed=0)
    mask = recordings.subjects == 1
    chosen = recordings.select(mask)
    assert len(chosen) == mask.sum()
    np.testing.assert_array_equal(chosen.signals, recordings.signals[mask])
    assert set(chosen.subjects) == {1}
    assert (chosen.sfreq, chosen.ch_names, chosen.kind) == (250.0, recordings.ch_names, "eeg")


@pytest.mark.parametrize("mask", [[True], [0, 1], np.ones((36, 1), dtype=bool)])
def test_select_refuses_anything_but_a_mask(mask: object) -> None:
    with pytest.raises(ValueError, match=r"boolean mask of shape \(36,\).*recordings\.sessions == 0"):
        eeg(**SMALL, seed=0).select(mask)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_classes": 1}, r"n_classes \(=1\).* pass 2 or more"),
        ({"n_subjects": 0}, r"n_subjects \(=0\).* pass 1 or more"),
        ({"n_per_class": 2.5}, r"n_per_class \(=2\.5\) must be a whole number"),
        ({"difficulty": -0.1}, r"difficulty \(=-0\.1\).* pass 0 \(very easy\) or more"),
        ({"difficulty": float("nan")}, r"difficulty \(=nan\) must be finite"),
        ({"n_times": 99}, r"n_times \(=99\).* pass 100 or more"),
        ({"sfreq": 50}, r"sfreq \(=50\) is too low for eeg; pass 60 Hz or more"),
        ({"seed": -1}, r"seed \(=-1\).* pass 0 or more"),
        ({"n_chans": 0, "n_sessions": 0}, r"n_sessions.*; n_chans"),
    ],
)
def test_bad_requests_say_what_to_do(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eeg(**({"seed": 0} | wrong))


def test_the_shortest_trial_depends_on_rate_and_kind() -> None:
    assert emg(n_times=100, seed=0, n_per_class=1).signals.shape[2] == 100
    with pytest.raises(ValueError, match=r"n_times \(=99\).* pass 100 or more"):
        emg(n_times=99, seed=0)
