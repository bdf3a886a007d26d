"""Scale, spectra and covariances against the base data: what is found, what is not, and what it is called."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from anchorinv import AnchorInvClassifier
from anchorinv.signal.drift import (
    MAX_CORRELATED,
    MIN_BASE_WINDOWS,
    BaseStatistics,
    Drift,
    Moments,
    Statistics,
    band_edges,
    correlations,
    drift,
    n_bands,
    shapes_of,
    spectra,
    standardise,
)
from tests.datasets.genuine import shared
from tests.models import SMALL, fitted, windows

RATE = 128.0
NAMES = tuple(f"E{i}" for i in range(6))


def brain(n=60, *, seed=0):
    """Windows (n, 6, 128) of channels that go together with their neighbours, weaker at high frequencies."""
    rng = np.random.default_rng(seed)
    sources = lfilter([1], [1, -0.96], rng.normal(size=(n, 8, 228)), axis=2)[:, :, 100:]
    mixing = np.exp(-0.5 * (np.arange(6)[:, None] - np.linspace(-1, 6, 8)) ** 2)
    return mixing @ sources + 0.1 * rng.normal(size=(n, 6, 128))


BASE = BaseStatistics.of(brain(400))


def drift_of(signals, base=BASE) -> Drift:
    return drift(Statistics.of(signals), base, NAMES, n_times=signals.shape[2], sfreq=RATE)


def white(like, *, seed=3):
    rng = np.random.default_rng(seed)
    mean, std = like.mean(axis=(0, 2), keepdims=True), like.std(axis=(0, 2), keepdims=True)
    return mean + std * rng.normal(size=like.shape)


def shapes(X):
    return Statistics.of(X).shapes


class TestShapes:
    def test_a_tone_is_in_its_band(self):
        tone = np.sin(2 * np.pi * 20 / RATE * np.arange(128))[None, None] + np.zeros((1, 1, 1))
        shares = spectra(standardise(tone))[0, 0]
        assert shares.shape == (8,) and shares.argmax() == 2  # 16 to 24 of 64 Hz
        assert shares[2] == pytest.approx(0, abs=0.01) and shares[7] == pytest.approx(np.log(1e-3), abs=0.01)
        np.testing.assert_allclose(band_edges(128), np.arange(0, 65, 8))

    def test_correlations_are_those_of_numpy(self):
        X = brain(3)
        pairs, share = correlations(standardise(X))
        for i, window in enumerate(X):
            each = np.corrcoef(window)
            np.testing.assert_allclose(np.tanh(pairs[i]), each[np.triu_indices(6, 1)], atol=1e-5)
            others = (each**2).sum(axis=1) - 1
            np.testing.assert_allclose(share[i], np.log(others / 5 + 0.01), atol=1e-4)

    @given(st.integers(-25, 25), st.floats(-10, 10))
    @settings(max_examples=30)
    def test_neither_unit_nor_offset_matter(self, power, offset):
        X = brain(4)
        once, other = shapes(X), shapes(10.0**power * (X + offset))
        np.testing.assert_allclose(other["spectra"].mean, once["spectra"].mean, atol=1e-3)
        np.testing.assert_allclose(other["pairs"].mean, once["pairs"].mean, atol=1e-3)

    @pytest.mark.parametrize("shape", [(12, 1, 64), (12, 2, 2), (12, 2, 7), (11, MAX_CORRELATED + 1, 8)])
    def test_odd_shapes_have_what_they_can_have(self, shape):
        X = np.random.default_rng(0).normal(size=shape)
        base = BaseStatistics.of(X)
        wanted = shapes_of(*shape[1:])
        for name in ("spectra", "pairs", "shared"):
            part = getattr(base, name)
            assert (part is None) == (name not in wanted)
            assert part is None or part.mean.shape == part.std.shape == wanted[name]
        assert found_level(X, base) == "like"
        assert n_bands(3) == 0 and n_bands(7) == 3

    def test_pieces_add_up(self, monkeypatch):
        X = brain(30)
        whole = shapes(X)
        monkeypatch.setattr("anchorinv.signal.drift._AT_ONCE", 7 * 6 * 128)
        sizes, moments = [], Moments.of
        monkeypatch.setattr(Moments, "of", lambda block: sizes.append(len(block)) or moments(block))
        parts = Statistics.of(X), Statistics.of(X[:4]) + Statistics.of(X[4:])
        assert max(sizes) == 7  # windows that are in memory at once, in double precision
        for part in parts:
            assert part.n == 30
            pairs = [(part.samples, moments(X))]
            pairs += [(part.shapes[name], whole[name]) for name in ("spectra", "pairs", "shared")]
            for one, other in pairs:
                np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9, atol=1e-12)
                np.testing.assert_allclose(one.variance, other.variance, rtol=1e-6)

    def test_of_few_base_windows_nothing_is_kept_but_means_and_spreads(self):
        base = BaseStatistics.of(brain(MIN_BASE_WINDOWS - 1))
        assert not base.has_shapes and BaseStatistics.of(brain(MIN_BASE_WINDOWS)).has_shapes
        assert "has no spectra" in drift_of(brain(20), base).verdict


def found_level(X, base):
    return drift(Statistics.of(X), base, None, n_times=X.shape[2]).level


class TestDistances:
    @pytest.mark.parametrize("n", [5, 20, 200])
    def test_windows_of_the_same_kind_are_like_the_base_data(self, n):
        one = drift_of(brain(n, seed=7))
        assert one.level == "like" and one.verdict == "the recordings are like the base data in every channel"

    def test_white_noise_of_the_right_mean_and_spread_is_found(self):
        one = drift_of(white(brain(20)))
        assert one.far and not one.extreme and (one.distance < 2).all()
        assert "the spectrum of every channel is" in one.verdict
        assert "Hz, and as even as noise: is an electrode off?" in one.verdict

    def test_hum_is_named(self):
        X = brain(20, seed=1)
        X += 2 * X.std() * np.sin(2 * np.pi * 50 / RATE * np.arange(128))
        one = drift_of(X)
        assert one.level != "like" and "more of its power at 48-56 Hz: is it mains hum" in one.verdict

    def test_a_low_pass_is_noticed(self):
        X = brain(20, seed=1)
        kernel = np.ones(9) / 9
        smooth = np.apply_along_axis(lambda x: np.convolve(x, kernel, "same"), 2, white(X))
        base = BaseStatistics.of(white(brain(50)))
        assert "is it filtered as the base data were?" in drift_of(smooth, base).verdict

    def test_without_a_rate_bands_are_shares_of_it(self):
        one = drift(Statistics.of(white(brain(20))), BASE, None, n_times=128)
        assert "% of the sampling rate" in one.verdict and "Hz" not in one.verdict

    def test_one_channel_of_noise_is_named(self):
        X = brain(20, seed=1)
        X[:, 2] = white(X)[:, 2]
        one = drift_of(X)
        assert one.far and "the spectrum of E2 is" in one.verdict and "E2: far less in" in one.verdict

    def test_a_channel_that_lost_the_others_is_named_whatever_its_spectrum(self):
        X = brain(20, seed=1)
        X[:, 2] = brain(20, seed=2)[:, 2]
        one = drift_of(X)
        assert one.covariance.isolation.argmax() == 2
        assert "E2: " in one.verdict and "less in common with the other channels" in one.verdict

    def test_channels_that_are_shorted_are_named(self):
        X = brain(20, seed=1)
        X[:, 4] = X[:, 1]
        one = drift_of(X)
        assert one.covariance.shorted == ((1, 4),)
        assert "E1 and E4 carry one signal: are they shorted?" in one.verdict

    @pytest.mark.parametrize(("i", "j"), [(0, 3), (1, 5), (2, 4)])
    def test_channels_that_are_swapped_are_named(self, i, j):
        X = brain(40, seed=1)
        X[:, [i, j]] = X[:, [j, i]]
        one = drift_of(X)
        assert one.covariance.swapped == (i, j) and one.level != "like"
        assert f"E{i} and E{j} correlate with the others as if they were swapped" in one.verdict

    def test_a_dead_channel_is_told_as_that_alone(self):
        X = brain(20, seed=1)
        X[:, 2] = 0
        one = drift_of(X)
        assert (
            one.extreme
            and one.verdict.startswith("E2 is flat and was not in the base data")
            and "E2" not in one.verdict[10:]
        )
        assert one.spectrum.distance[2] == one.covariance.distance[2] == 0

    def test_of_few_windows_spectra_are_not_judged(self):
        one = drift_of(white(brain(4)))
        assert one.spectrum is None and one.level == "like"
        assert one.verdict.endswith("spectra and covariances are not compared with fewer than 5 windows")


class TestUnits:
    @pytest.mark.parametrize("factor", [1e-9, 1e-6, 1e-4, 1e-3, 1e2, 1e3, 1e4, 1e6, 1e9])
    def test_a_factor_is_named_with_the_remedy(self, factor):
        one = drift_of(1.4 * factor * brain(20, seed=1))
        assert one.unit_factor == pytest.approx(factor)
        assert f"every channel: far from the base data, about {factor:g} times its spread" in one.verdict
        assert f"another unit? multiply it by {1 / factor:g} (--scale {1 / factor:g})" in one.verdict

    @pytest.mark.parametrize("strength", [0.3, 3])
    def test_people_differ_and_units_are_named_all_the_same(self, strength):
        X = strength * brain(20, seed=1) * np.linspace(0.5, 2, 6)[:, None]
        assert drift_of(1e3 * X).unit_factor == 1e3

    def test_a_factor_that_is_no_unit_has_no_remedy(self):
        one = drift_of(40 * brain(20, seed=1))
        assert one.unit_factor is None and one.factor == pytest.approx(40, rel=0.1)
        assert "or at another gain?" in one.verdict and "multiply" not in one.verdict

    def test_channels_that_vary_are_no_unit(self):
        one = drift_of(brain(20, seed=1) * np.array([1, 1e3, 1, 1, 1e3, 1])[:, None])
        assert one.factor is None and one.verdict.startswith("E1, E4: far")

    def test_nine_of_ten_decide(self):
        X = 1e3 * brain(20, seed=1)
        X[:, 0] *= 30
        assert drift_of(X).unit_factor == 1e3


class TestGenuine:
    """White noise is found on every kind of signal, and people who were not seen are not taken for it."""

    @pytest.mark.parametrize("name", ["emg_longterm", "ecg_beats", "eeg_motor_imagery", "eeg_stress"])
    def test_other_people_are_not_far_and_white_noise_is(self, name):
        with np.load(shared(f"{name}.npz")) as file:
            people, rate = file["subject"], float(file["sfreq"])
            X = float(file["scale"]) * file["X"][:, :, :512].astype(np.float32)
        names = np.unique(people)
        known = np.isin(people, names[::2] if len(names) > 3 else names[:-1])
        base = BaseStatistics.of(X[known])
        for person in np.unique(people[~known]):
            theirs = X[people == person][:100]
            assert found_far(theirs, base, rate) == (False, False)
            assert found_far(white(theirs).astype(np.float32), base, rate) == (True, False)
            assert found_far(1e3 * theirs, base, rate)[1]


def found_far(X, base, rate):
    one = drift(Statistics.of(X), base, None, n_times=X.shape[2], sfreq=rate)
    return one.far, one.extreme


class TestFiles:
    def test_statistics_are_kept_in_a_file(self, tmp_path):
        fitted().save(tmp_path / "m")
        loaded = AnchorInvClassifier.load(tmp_path / "m")
        for name in ("spectra", "pairs", "shared"):
            one, other = getattr(fitted().statistics_, name), getattr(loaded.statistics_, name)
            np.testing.assert_array_equal(one.mean, other.mean)
            np.testing.assert_array_equal(one.std, other.std)
        assert loaded.check(windows()[0]).level == "like"

    def test_a_file_without_them_compares_what_there_is(self):
        model = AnchorInvClassifier(geometry=SMALL, epochs=1, inversion_steps=1, random_state=0)
        X, y = windows(8)
        model.fit(X, y)
        assert not model.statistics_.has_shapes
        verdict = model.check(windows()[0]).verdict
        assert "like the base data in every channel; the model has no spectra" in verdict
        assert model.check(1e3 * X).unit_factor == 1e3


class TestArtefact:
    @pytest.mark.parametrize("fault", ["noise", "hum", "flat channel", "gain"])
    def test_faults_of_recordings_are_told_from_classes(self, fault):
        X = brain(20, seed=3)
        flat = X.copy()
        flat[:, 2] = 0
        hum = X + 5 * X.std() * np.sin(2 * np.pi * 50 * np.arange(128) / RATE)
        noise = np.random.default_rng(0).normal(size=X.shape) * X.std()
        found = {"noise": noise, "hum": hum, "flat channel": flat, "gain": 10 * X}[fault]
        assert drift(Statistics.of(found), BASE, NAMES).artefact

    def test_loud_and_quiet_channels_and_other_correlations_are_a_class(self):
        X = brain(20, seed=3)
        assert not drift(Statistics.of(X), BASE, NAMES).artefact
        loud, mixed = X.copy(), X.copy()
        loud[:, :2] *= 8
        loud[:, 4:] *= 0.2
        mixed[:, ::2] = brain(20, seed=4)[:, ::2]
        assert not drift(Statistics.of(loud), BASE, NAMES).artefact
        assert not drift(Statistics.of(mixed), BASE, NAMES).artefact


class TestFlatChannels:
    def verdict(self, change):
        windows = np.random.default_rng(0).normal(size=(40, 4, 64))
        base = BaseStatistics.of(windows)
        change(windows)
        return drift(Statistics.of(windows), base, ("C3", "Cz", "C4", "Pz")).units

    def test_one_says_just_that(self):
        def change(windows):
            windows[:, 2] = 7.1

        assert self.verdict(change) == "C4 is flat and was not in the base data; is an electrode off?"

    def test_others_are_told_apart(self):
        def change(windows):
            windows[:, 1:3] = 0
            windows[:, 3] *= 50

        flat, loud = self.verdict(change).split("?; ")
        assert flat == "Cz, C4 are flat and were not in the base data; is an electrode off"
        assert loud.startswith("Pz: far from the base data (a spread of 50); ")
