"""From recordings to windows: whatever the chunks, the same as all at once; and little is held."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import resample_poly, sosfilt, sosfilt_zi, sosfiltfilt

from anchorinv.data.filters import Filter
from anchorinv.streams.cutting import Windows
from anchorinv.streams.preprocessing import Preprocessing, preprocessing_of
from anchorinv.streams.stages import BLOCK, CausalFilter, resampled, stages_of, zero_phase

RNG = np.random.default_rng(0)
SIGNAL = RNG.normal(size=(3, 60_000)).cumsum(axis=1) / 50 + RNG.normal(size=(3, 60_000))


def chunks_of(signal, cuts):
    return np.split(signal, sorted(cuts), axis=1)


def through(stage, chunks):
    return np.concatenate([*(stage.push(chunk) for chunk in chunks), stage.finish()], axis=1)


cuts = st.lists(st.integers(0, 2000), max_size=8)


class TestStages:
    @given(cuts)
    @settings(max_examples=30)
    def test_a_causal_filter_does_not_see_the_chunks(self, places):
        sections, signal = Filter(4, 40).sections(250), SIGNAL[:, :2000]
        start = sosfilt_zi(sections)[:, None, :] * signal[None, :, :1]
        whole, _ = sosfilt(sections, signal, axis=1, zi=start)
        assert np.array_equal(through(CausalFilter(sections), chunks_of(signal, places)), whole)

    @pytest.mark.parametrize("n_chunks", [1, 7, 60])
    @pytest.mark.parametrize("how", [Filter(0.5, 30, 5), Filter(high=40), Filter(low=4)])
    def test_a_zero_phase_filter_is_that_of_the_whole_recording(self, n_chunks, how):
        sections = how.sections(256)
        found = through(zero_phase(how, 256), np.array_split(SIGNAL, n_chunks, axis=1))
        np.testing.assert_allclose(found, sosfiltfilt(sections, SIGNAL, axis=1), atol=1e-4)

    @pytest.mark.parametrize("n_chunks", [1, 7, 60])
    @pytest.mark.parametrize(
        ("source", "target", "up", "down"),
        [(250, 128, 64, 125), (128, 256, 2, 1), (2048, 256, 1, 8), (200, 256, 32, 25)],
    )
    def test_a_change_of_rate_is_that_of_the_whole_recording(self, n_chunks, source, target, up, down):
        found = through(resampled(source, target), np.array_split(SIGNAL, n_chunks, axis=1))
        np.testing.assert_allclose(found, resample_poly(SIGNAL, up, down, axis=1), atol=1e-9)

    @pytest.mark.parametrize("stage", [lambda: zero_phase(Filter(4, 40), 250), lambda: resampled(250, 128)])
    def test_little_is_held(self, stage):
        stage = stage()
        for _ in range(40):
            stage.push(SIGNAL[:, :5000])
            assert stage._held.nbytes < 3 * 8 * 4 * BLOCK and stage._held.base is None

    def test_short_recordings_pass(self):
        for n in (1, 5, 40):
            assert through(zero_phase(Filter(4, 40), 250), [SIGNAL[:, :n]]).shape == (3, n)
            assert through(resampled(250, 125), [SIGNAL[:, :n]]).shape == (3, -(-n // 2))

    def test_filter_comes_before_the_change_of_rate(self):
        kinds = [type(stage).__name__ for stage in stages_of(Filter(4, 40), source=250, target=100)]
        assert kinds == ["CausalFilter", "Overlapping"]
        assert stages_of(None, source=250, target=250) == []
        with pytest.raises(ValueError, match="a filter to 40 Hz reaches beyond what a rate of 64 Hz holds"):
            stages_of(Filter(4, 40), source=64, target=250)


class TestWindows:
    @given(cuts, st.integers(1, 150), st.integers(5, 120))
    @settings(max_examples=60)
    def test_windows_are_those_of_a_naive_loop(self, places, step, n_times):
        signal = SIGNAL[:, :2000]
        cutter = Windows([], n_times, step)
        found = [window for chunk in chunks_of(signal, places) for window in cutter.push(chunk)]
        found += cutter.finish()
        starts = [start for start in range(0, 2000, step) if start + n_times <= 2000]
        assert [window.start for window in found] == starts
        for window in found:
            assert window.whole
            assert np.array_equal(window.values, signal[:, window.start : window.start + n_times])

    @given(cuts, st.lists(st.tuples(st.integers(0, 1999), st.integers(1, 60)), max_size=4))
    @settings(max_examples=60)
    def test_windows_with_gaps_are_marked_and_no_others(self, places, gaps):
        signal = SIGNAL[:, :2000].copy()
        for start, length in gaps:
            signal[1, start : start + length] = np.nan
        cutter = Windows([CausalFilter(Filter(4, 40).sections(250))], 100, 30)
        found = [window for chunk in chunks_of(signal, places) for window in cutter.push(chunk)]
        for window in found:
            gap = np.isnan(signal[:, window.start : window.start + 100]).any()
            assert window.whole == (not gap) and np.isfinite(window.values).all()

    def test_gaps_are_found_through_a_change_of_rate(self):
        signal = SIGNAL[:, :4000].copy()
        signal[0, 1000] = np.nan
        cutter = Windows(stages_of(None, source=200, target=100), 50, 50, ratio=0.5)
        found = [*cutter.push(signal), *cutter.finish()]
        assert [window.start for window in found if not window.whole] == [500] and len(found) == 40

    def test_memory_is_constant(self):
        cutter = Windows([], 100, 350)  # steps longer than windows, too
        for _ in range(50):
            for _window in cutter.push(SIGNAL[:, :997]):
                pass
            assert cutter._held.shape[1] < 100 + 997 and cutter._held.base is None
        broken = np.full((3, 1000), np.nan)
        for _ in range(50):
            list(cutter.push(broken))
            assert len(cutter._gaps) < 5


class TestPreprocessing:
    @pytest.mark.parametrize("edges", [(None, None), (40, 4), (4, 4), (-1, 4), (0, None), (1, float("inf"))])
    def test_edges_that_make_no_filter(self, edges):
        with pytest.raises(ValueError, match="lower one first"):
            Filter(*edges)

    def test_what_a_prepared_folder_tells(self):
        told = {"filter": {"low": 0.5, "high": 30, "order": 5, "causal": False}, "unit": "uV"}
        assert preprocessing_of(("C3",), told) == Preprocessing(
            ("C3",), "uV", Filter(0.5, 30, 5, causal=False)
        )
        assert preprocessing_of(None, {}) == Preprocessing()
        odd = preprocessing_of(None, {"filter": "conformer", "unit": "furlong"})
        assert odd == Preprocessing(unrepeatable="conformer")

    def test_mistakes(self):
        with pytest.raises(ValueError, match="'C3' is named twice"):
            Preprocessing(("C3", "C3"))
        with pytest.raises(ValueError, match="must be one of V, mV"):
            Preprocessing(unit="parsec")
        with pytest.raises(ValueError, match="order"):
            Filter(4, 40, order=0)


@pytest.mark.parametrize(("source", "target"), [(1e7, 128), (0.01, 128)])
def test_rates_too_far_apart_are_told(source, target):
    with pytest.raises(ValueError, match="cannot be brought to 128 Hz"):
        resampled(source, target)
