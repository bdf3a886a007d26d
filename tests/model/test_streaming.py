"""Live predictions: those of the whole recording at once, whatever the chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import sosfilt, sosfilt_zi

from anchorinv import AnchorInvClassifier, Filter, Preprocessing, StreamingPredictor
from tests.models import CHANNELS, RATE, fitted

SIGNAL = np.random.default_rng(5).normal(size=(4, 700)) + 2


def batch(model, signal, step):
    """All at once: filter the whole recording, cut, predict."""
    if model.preprocessing and model.preprocessing.filter:
        sections = model.preprocessing.filter.sections(RATE)
        start = sosfilt_zi(sections)[:, None, :] * signal[None, :, :1]
        signal, _ = sosfilt(sections, signal, axis=1, zi=start)
    starts = range(0, signal.shape[1] - 64 + 1, step)
    return list(starts), model.predict_proba(np.stack([signal[:, s : s + 64] for s in starts]))


@pytest.mark.parametrize("how", [None, Preprocessing(CHANNELS, filter=Filter(1, 40))])
@given(st.lists(st.integers(0, 700), max_size=10), st.integers(1, 90))
@settings(max_examples=12)
def test_streaming_is_the_batch_result(how, places, step):
    model = fitted(preprocessing=how)
    starts, expected = batch(model, SIGNAL, step)
    live = StreamingPredictor(model, step=step)
    found = [p for chunk in np.split(SIGNAL, sorted(places), axis=1) for p in live.feed(chunk)]
    assert [p.start for p in found] == starts
    np.testing.assert_allclose([p.probabilities for p in found], expected, atol=1e-5)
    sure = np.sort(expected)[:, -1] - np.sort(expected)[:, -2] > 1e-4
    labels = np.array([p.label for p in found])
    assert (labels == model.classes_[expected.argmax(1)])[sure].all()


def test_a_filter_that_looks_ahead_is_refused_with_the_remedy():
    model = fitted(preprocessing=Preprocessing(filter=Filter(1, 40, causal=False)))
    with pytest.raises(ValueError, match=r"look ahead.*train it on recordings filtered causally.*or predict"):
        StreamingPredictor(model, step=10)


def test_gaps_have_no_class_and_pass():
    signal = SIGNAL.copy()
    signal[2, 100:110] = np.nan
    found = StreamingPredictor(fitted(preprocessing=Preprocessing(filter=Filter(1, 40))), step=64).feed(
        signal
    )
    assert [p.start for p in found if p.label is None] == [64]
    assert all(np.isfinite(p.probabilities).all() for p in found if p.label is not None)


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
