import math
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorinv.live.sources import LONGEST_GAP, Board, Iterated, Replay, Timeline
from anchorinv.signal.readers import Recording, open_recording


def filled(line, stamps, n_chans=2):
    """Samples that count from 0, and what a timeline makes of them."""
    samples = np.arange(len(stamps), dtype=float) * np.ones((n_chans, 1))
    return list(line.filled(samples, np.asarray(stamps)))


class TestTimeline:
    @given(
        sfreq=st.sampled_from([100.0, 250.0, 1000.0]),
        ppm=st.floats(-300, 300),
        jitter=st.floats(0, 0.05),
        seed=st.integers(0, 2**16),
    )
    def test_jitter_and_drift_are_no_gaps(self, sfreq, ppm, jitter, seed):
        rng = np.random.default_rng(seed)
        stamps = np.arange(int(20 * sfreq)) / (sfreq * (1 + ppm * 1e-6))
        line, n = Timeline(sfreq), 0
        for part in np.array_split(stamps, 100):
            chunks = filled(line, part + rng.uniform(-jitter, jitter))
            assert not any(np.isnan(chunk.samples).any() for chunk in chunks)
            n += sum(chunk.samples.shape[1] for chunk in chunks)
        assert n == len(stamps)

    @given(lost=st.integers(30, 900), at=st.integers(1, 199), cut=st.integers(1, 199))
    def test_lost_samples_are_marked_where_they_were(self, lost, at, cut):
        stamps = np.r_[np.arange(at), at + lost + np.arange(200 - at)] / 100
        line = Timeline(100.0)
        values = np.concatenate(
            [c.samples for part in (stamps[:cut], stamps[cut:]) for c in filled(line, part)], axis=1
        )
        missing = np.isnan(values).all(axis=0)
        # The clock is followed a little, so a gap may be a sample longer or shorter.
        assert abs(int(missing.sum()) - lost) <= 1
        assert not missing[:at].any() and missing[at] and values.shape[1] == 200 + missing.sum()

    @pytest.mark.parametrize("jump", [LONGEST_GAP + 1, -5.0])
    def test_a_long_gap_or_a_clock_set_back_is_a_new_beginning(self, jump):
        chunks = filled(Timeline(100.0), np.r_[np.arange(50) / 100, 0.5 + jump + np.arange(50) / 100])
        assert [chunk.begins for chunk in chunks] == [True, True]
        assert not any(np.isnan(chunk.samples).any() for chunk in chunks)

    def test_time_of_the_last_sample(self):
        early, gap, late = filled(Timeline(100.0), np.r_[np.arange(50), 150 + np.arange(50)] / 100)
        assert late.time - early.time == pytest.approx(1.5) and early.time < gap.time < late.time


class TestReplay:
    @pytest.fixture
    def path(self, tmp_path):
        np.save(tmp_path / "day.npy", np.random.default_rng(0).normal(size=(3, 250)).astype("float32"))
        return tmp_path / "day.npy"

    def test_it_is_the_recording(self, path):
        source = Replay(open_recording(path), speed=math.inf, sfreq=100)
        values = np.concatenate([chunk.samples for chunk in source.chunks(Event())], axis=1)
        assert np.array_equal(values, np.load(path).astype(float))
        assert source.ch_names == ("ch1", "ch2", "ch3") and source.sfreq == 100

    def test_a_loop_begins_anew_and_ends_when_stopped(self, path):
        stopped, begins = Event(), []
        for chunk in Replay(open_recording(path), speed=math.inf, sfreq=100, loop=True).chunks(stopped):
            begins.append(chunk.begins)
            if sum(begins) == 2:
                stopped.set()
        assert begins == [False] * 3 + [True, False, False, True]

    def test_an_empty_recording_is_refused(self, tmp_path):
        """Looped it would be begun again and again, without a pause."""
        empty = Recording(tmp_path / "a.edf", ("C3",), ("V",), 100.0, 0, lambda *_: np.zeros((1, 0)))
        with pytest.raises(ValueError, match=r"a\.edf holds no samples"):
            Replay(empty, loop=True)

    def test_what_cannot_be(self, path):
        with pytest.raises(ValueError, match="--sfreq"):
            Replay(open_recording(path))
        with pytest.raises(ValueError, match="above 0"):
            Replay(open_recording(path), sfreq=100, speed=0)


class TestIterated:
    def test_a_chunk_of_another_shape_is_refused(self):
        source = Iterated([np.zeros((2, 5)), np.zeros((3, 5))], sfreq=100)
        with pytest.raises(ValueError, match=r"\(2, n\), got \(3, 5\)"):
            list(source.chunks(Event()))

    def test_nothing_at_all_is_refused(self):
        with pytest.raises(ValueError, match="n_chans, n"):
            Iterated([], sfreq=100)


class TestBoard:
    @pytest.fixture(autouse=True)
    def _brainflow(self):
        pytest.importorskip("brainflow", reason="needs the extra boards")

    def test_the_synthetic_board_in_volts(self):
        source, stopped, n = Board("synthetic"), Event(), 0
        assert source.sfreq == 250 and len(source.ch_names) == len(source.units) == 16
        for chunk in source.chunks(stopped):
            n += chunk.samples.shape[1]
            assert np.abs(chunk.samples).max() < 0.01  # a few hundred microvolts
            if n > 50:
                stopped.set()
        assert n > 50

    def test_one_that_cannot_be_started_is_released(self, monkeypatch):
        source = Board("synthetic")

        def busy(*_):
            raise source._flow.BrainFlowError("busy", 7)

        monkeypatch.setattr(source._shim, "start_stream", busy)
        with pytest.raises(OSError, match=r"synthetic board does not answer .*busy"):
            list(source.chunks(Event()))
        assert not source._shim.is_prepared()

    def test_one_that_is_lost_is_an_error_in_a_sentence(self, monkeypatch):
        source = Board("synthetic")

        def gone(*_):
            raise source._flow.BrainFlowError("unplugged", 7)

        monkeypatch.setattr(source._shim, "get_board_data", gone)
        with pytest.raises(OSError, match=r"synthetic board was lost .*unplugged"):
            list(source.chunks(Event()))
        assert not source._shim.is_prepared()  # released, whatever happened

    def test_one_that_cannot_be_stopped_is_released_all_the_same(self, monkeypatch):
        source = Board("synthetic")

        def gone(*_):
            raise source._flow.BrainFlowError("unplugged", 7)

        monkeypatch.setattr(source._shim, "get_board_data", gone)
        monkeypatch.setattr(source._shim, "stop_stream", gone)
        with pytest.raises(OSError, match="was lost"):
            list(source.chunks(Event()))
        assert not source._shim.is_prepared()

    def test_an_unknown_one_is_named(self):
        with pytest.raises(ValueError, match=r"no board 'cytno'; it knows .*cyton"):
            Board("cytno")


def test_a_missing_library_is_named(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "brainflow.board_shim", raising=False)
    monkeypatch.setitem(sys.modules, "brainflow", None)
    with pytest.raises(ValueError, match=r"anchorinv\[boards\]"):
        Board("synthetic")
