"""From recordings to windows: whatever the chunks, the same as all at once; and little is held."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import resample_poly, sosfilt, sosfilt_zi, sosfiltfilt

from anchorinv.signal.pipeline import BLOCK, CausalFilter, Pipeline, Windows, filtering, resampling
from anchorinv.signal.preprocessing import AS_GIVEN, Filter, Preprocessing

RNG = np.random.default_rng(0)
SIGNAL = RNG.normal(size=(3, 60_000)).cumsum(axis=1) / 50 + RNG.normal(size=(3, 60_000))


ZERO_PHASE = Filter(4, 40, causal=False)


def chunks_of(signal, cuts):
    return np.split(signal, sorted(cuts), axis=1)


def through(stage, chunks):
    done = [stage.push(chunk) for chunk in chunks]
    rest = stage.finish()
    return np.concatenate(done if rest is None else [*done, rest], axis=1)


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
    @pytest.mark.parametrize(
        "how", [Filter(0.5, 30, 5, causal=False), Filter(high=40, causal=False), Filter(low=4, causal=False)]
    )
    def test_a_zero_phase_filter_is_that_of_the_whole_recording(self, n_chunks, how):
        sections = how.sections(256)
        ours = through(filtering(how, 256), np.array_split(SIGNAL, n_chunks, axis=1))
        np.testing.assert_allclose(ours, sosfiltfilt(sections, SIGNAL, axis=1), atol=1e-4)

    @pytest.mark.parametrize("n_chunks", [1, 7, 60])
    @pytest.mark.parametrize(
        ("source", "target", "up", "down"),
        [(250, 128, 64, 125), (128, 256, 2, 1), (2048, 256, 1, 8), (200, 256, 32, 25)],
    )
    def test_a_change_of_rate_is_that_of_the_whole_recording(self, n_chunks, source, target, up, down):
        ours = through(resampling(source, target), np.array_split(SIGNAL, n_chunks, axis=1))
        # Before its first sample as if that had always been there, and so at the end.
        wanted = resample_poly(np.pad(SIGNAL, ((0, 0), (down * 40,) * 2), "edge"), up, down, axis=1)
        wanted = wanted[:, up * 40 : up * 40 + ours.shape[1]]
        np.testing.assert_allclose(ours, wanted, atol=1e-9)

    @pytest.mark.parametrize("stage", [lambda: filtering(ZERO_PHASE, 250), lambda: resampling(250, 128)])
    def test_little_is_held(self, stage):
        stage = stage()
        for _ in range(40):
            stage.push(SIGNAL[:, :5000])
            assert stage._held.nbytes < 3 * 8 * 4 * BLOCK and stage._held.base is None

    def test_short_recordings_pass(self):
        for n in (1, 5, 40):
            assert through(filtering(ZERO_PHASE, 250), [SIGNAL[:, :n]]).shape == (3, n)
            assert through(resampling(250, 125), [SIGNAL[:, :n]]).shape == (3, -(-n // 2))

    def test_filter_comes_before_the_change_of_rate(self):
        kinds = [
            type(s).__name__ for s in Pipeline(Preprocessing(filter=Filter(4, 40), sfreq=100), 250)._stages
        ]
        assert kinds == ["CausalFilter", "_Overlapping"]
        assert Pipeline(Preprocessing(sfreq=250), 250)._stages == []
        with pytest.raises(
            ValueError, match="a filter to 40 Hz is above the Nyquist frequency of a rate of 64 Hz"
        ):
            Pipeline(Preprocessing(filter=Filter(4, 40), sfreq=250), 64)


class TestWindows:
    @given(cuts, st.integers(1, 150), st.integers(5, 120))
    @settings(max_examples=60)
    def test_windows_are_those_of_a_naive_loop(self, places, step, n_times):
        signal = SIGNAL[:, :2000]
        cutter = Windows(Pipeline(AS_GIVEN), n_times, step)
        windows = [window for chunk in chunks_of(signal, places) for window in cutter.push(chunk)]
        windows += cutter.finish()
        starts = [start for start in range(0, 2000, step) if start + n_times <= 2000]
        assert [window.start for window in windows] == starts
        for window in windows:
            assert window.complete
            assert np.array_equal(window.values, signal[:, window.start : window.start + n_times])

    @given(cuts, st.lists(st.tuples(st.integers(0, 1999), st.integers(1, 60)), max_size=4))
    @settings(max_examples=60)
    def test_windows_with_gaps_are_marked_and_no_others(self, places, gaps):
        signal = SIGNAL[:, :2000].copy()
        for start, length in gaps:
            signal[1, start : start + length] = np.nan
        cutter = Windows(Pipeline(Preprocessing(filter=Filter(4, 40)), 250), 100, 30)
        windows = [window for chunk in chunks_of(signal, places) for window in cutter.push(chunk)]
        for window in windows:
            gap = np.isnan(signal[:, window.start : window.start + 100]).any()
            assert window.complete == (not gap) and np.isfinite(window.values).all()

    def test_gaps_are_found_through_a_change_of_rate(self):
        signal = SIGNAL[:, :4000].copy()
        signal[0, 1000] = np.nan
        cutter = Windows(Pipeline(Preprocessing(sfreq=100), 200), 50, 50)
        windows = [*cutter.push(signal), *cutter.finish()]
        assert [window.start for window in windows if not window.complete] == [500] and len(windows) == 40

    def test_memory_is_constant(self):
        cutter = Windows(Pipeline(AS_GIVEN), 100, 350)  # steps longer than windows, too
        for _ in range(50):
            for _window in cutter.push(SIGNAL[:, :997]):
                pass
            assert cutter._held.shape[1] < 100 + 997 and cutter._held.base is None
        broken = np.full((3, 1000), np.nan)
        for _ in range(50):
            list(cutter.push(broken))
            assert len(cutter._pipeline.gaps.runs) < 5


@pytest.mark.parametrize(("source", "target"), [(1e7, 128), (0.01, 128)])
def test_rates_too_far_apart_are_told(source, target):
    with pytest.raises(ValueError, match="cannot be brought to 128 Hz"):
        resampling(source, target)
