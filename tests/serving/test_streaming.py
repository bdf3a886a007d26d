"""Live predictions: those of the whole recording at once, whatever the chunks."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import sosfilt, sosfilt_zi

from anchorinv import AnchorInvClassifier, Filter, Preprocessing, StreamingPredictor
from anchorinv.signal.drift import Statistics
from tests.models import CHANNELS, RATE, fitted, windows

SIGNAL = np.random.default_rng(5).normal(size=(4, 700)) + 2


def batch(model, signal, step):
    """All at once: filter the whole recording, cut, predict."""
    if model.preprocessing and model.preprocessing.filter:
        sections = model.preprocessing.filter.sections(RATE)
        start = sosfilt_zi(sections)[:, None, :] * signal[None, :, :1]
        signal, _ = sosfilt(sections, signal, axis=1, zi=start)
    starts = range(0, signal.shape[1] - 64 + 1, step)
    return list(starts), model.predict_proba(np.stack([signal[:, s : s + 64] for s in starts]))


# The base windows of these models never went through the filter, which the spectrum gives away.
UNFILTERED = pytest.mark.filterwarnings("ignore:.*the spectrum of")


@UNFILTERED
@pytest.mark.parametrize("how", [None, Preprocessing(CHANNELS, filter=Filter(1, 40))])
@given(st.lists(st.integers(0, 700), max_size=10), st.integers(1, 90))
@settings(max_examples=12)
def test_streaming_is_the_batch_result(how, places, step):
    model = fitted(preprocessing=how)
    starts, expected = batch(model, SIGNAL, step)
    live = StreamingPredictor(model, step=step)
    predictions = [p for chunk in np.split(SIGNAL, sorted(places), axis=1) for p in live.feed(chunk)]
    assert [p.start for p in predictions] == starts
    np.testing.assert_allclose([p.probabilities for p in predictions], expected, atol=1e-5)
    sure = np.sort(expected)[:, -1] - np.sort(expected)[:, -2] > 1e-4
    labels = np.array([p.label for p in predictions])
    assert (labels == model.classes_[expected.argmax(1)])[sure].all()


def test_a_filter_that_looks_ahead_is_refused_with_the_remedy():
    model = fitted(preprocessing=Preprocessing(filter=Filter(1, 40, causal=False)))
    with pytest.raises(ValueError, match=r"look ahead.*train it on recordings filtered causally.*or predict"):
        StreamingPredictor(model, step=10)


@UNFILTERED
def test_gaps_have_no_class_and_pass():
    signal = SIGNAL.copy()
    signal[2, 100:110] = np.nan
    predictions = StreamingPredictor(fitted(preprocessing=Preprocessing(filter=Filter(1, 40))), step=64).feed(
        signal
    )
    assert [p.start for p in predictions if p.label is None] == [64]
    assert all(np.isfinite(p.probabilities).all() for p in predictions if p.label is not None)


def test_memory_is_constant():
    live = StreamingPredictor(fitted(), step=64)
    for _ in range(100):
        live.feed(SIGNAL[:, :33])
        assert live._windows._held.nbytes < 4 * 8 * (64 + 33)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m: StreamingPredictor(m, step=0), "step"),
        (lambda m: StreamingPredictor(m, step=1.5), "step"),
        (lambda m: StreamingPredictor(m, step=5, sfreq=1e6), "cannot be brought to 128 Hz"),
        (lambda m: StreamingPredictor(AnchorInvClassifier(), step=5), "call fit"),
        (lambda m: StreamingPredictor(m, step=5).feed(SIGNAL[:3]), r"shape \(4, n\), channels first, got"),
        (lambda m: StreamingPredictor(m, step=5).feed(SIGNAL[0]), "channels first"),
        (
            lambda m: StreamingPredictor(fitted(preprocessing=Preprocessing(unrepeatable="magic")), step=5),
            "processed by magic, which cannot be repeated",
        ),
        (
            lambda m: StreamingPredictor(
                fitted(sfreq=None, preprocessing=Preprocessing(filter=Filter(1))), step=5
            ),
            "a filter needs a rate",
        ),
    ],
)
def test_mistakes(make, words):
    with pytest.raises(ValueError, match=words):
        make(fitted())


class TestUnits:
    """A source that is nothing like the base data is told of once, as files are."""

    def fed(self, signal, chunk=32):
        live = StreamingPredictor(fitted(), step=16)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for start in range(0, signal.shape[1], chunk):
                live.feed(signal[:, start : start + chunk])
        return caught

    def test_another_unit_is_told_at_the_first_window_and_never_again(self):
        live = StreamingPredictor(fitted(), step=16)
        live.feed(1e3 * SIGNAL[:, :63])
        with pytest.warns(UserWarning, match=r"about 1000 times its spread.*--scale 0.001") as caught:
            live.feed(1e3 * SIGNAL[:, 63:64])
        assert len(caught) == 1 and caught[0].filename == __file__
        live.feed(1e3 * SIGNAL)  # warnings are errors

    def test_a_dead_channel_is_told_once_there_are_enough_windows(self):
        signal = SIGNAL.copy()
        signal[1] = 2.0
        caught = self.fed(signal)
        assert len(caught) == 1 and "flat and was not in the base data; is an electrode off?" in str(
            caught[0].message
        )
        assert not self.fed(signal[:, : 4 * 64 + 48])

    def test_an_artefact_in_one_window_is_none(self):
        signal = SIGNAL.copy()
        signal[0, 5] = 4000.0
        assert not self.fed(signal[:, :64])

    def test_the_base_data_are_not_told_of(self):
        assert not self.fed(np.concatenate(list(windows(200, seed=9)[0]), axis=1))

    def test_windows_that_overlap_are_passed_over(self, monkeypatch):
        looked = []
        of = Statistics.of
        monkeypatch.setattr(Statistics, "of", lambda *a, **k: (looked.append(1), of(*a, **k))[1])
        assert not self.fed(np.concatenate(list(windows(250, seed=9)[0]), axis=1), chunk=640)
        assert len(looked) == 250
