"""A recording has the same windows prepared, predicted and live: whatever it is, however it comes."""

from math import floor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anchorinv import StreamingPredictor
from anchorinv.datasets.own_files import OwnOptions
from anchorinv.signal.pipeline import rate_ratio, resampled_length
from anchorinv.signal.preprocessing import Filter
from tests.three_paths import EASY, Trained, assert_agree, predicted, prepared, streamed

MOST = 60_000  # values of a recording: some are longer than the blocks they are processed in
ONE_BY_ONE = 2500  # samples of a recording that comes sample by sample


@st.composite
def filters(draw, sfreq, *, causal=True):
    low = draw(st.none() | st.floats(0.3, 8))
    high = draw((st.none() if low else st.nothing()) | st.floats(10, min(0.45 * sfreq, 300)))
    way = {"causal": causal, "from_rest": causal and draw(st.booleans())}
    return Filter(low, high, draw(st.integers(1, 5)), **way)


@st.composite
def recordings(draw, *, causal=True):
    """Draw a recording (n_chans, n) with its rate, and what is to be done to it."""
    n_chans, sfreq = draw(st.integers(1, 16)), float(draw(st.integers(100, 2000)))
    slowest = max(20.0, sfreq / 20)
    rate = draw(st.none() | st.sampled_from([64.0, 128.0, 250.0, sfreq / 2, 2 * sfreq]) | st.floats(50, 500))
    rate = rate if rate is None or rate > slowest else slowest
    names = [f"ch{i}" for i in range(1, n_chans + 1)]
    kept = draw(st.permutations(names).flatmap(lambda p: st.integers(1, n_chans).map(lambda k: p[:k])))
    reference = draw(st.sampled_from([None, None, "average", "bipolar", draw(st.sampled_from(names))]))
    if reference == "bipolar":
        assume(n_chans > 1)
        ends = st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True).map("-".join)
        kept = draw(st.lists(ends, min_size=1, max_size=5, unique=True))
    n_times = draw(st.integers(10, 200))
    overlap = draw(st.sampled_from([0.0, 0.3, 0.5, 0.9]))
    # Some end with the very last sample that a window needs, some are longer than a block.
    ratio = rate_ratio(sfreq, rate or sfreq)
    step = max(1, round(n_times * (1 - overlap)))
    n_out = n_times + draw(st.integers(0, 12)) * step + draw(st.integers(0, 1)) * draw(st.integers(0, step))
    n_samples = floor((n_out - 1) / ratio) + 1
    if draw(st.integers(0, 7)) == 0:
        n_samples = max(n_samples, min(draw(st.integers(17_000, 40_000)), MOST // n_chans))
    options = OwnOptions(
        channels=tuple(kept),
        band=draw(st.none() | filters(sfreq)) if causal else draw(filters(sfreq, causal=False)),
        resample=rate,
        sfreq=sfreq,
        window=n_times / (rate or sfreq),
        overlap=overlap,
        reference=reference,
        **EASY,
    )
    edges = [n / ratio for n in (n_times, step, n_times + step, 2 * n_times) if n / ratio < n_samples]
    return signal(draw, n_chans, n_samples, list(map(round, edges))), options


def signal(draw, n_chans, n_samples, edges):
    """Draw a recording whose gaps are anywhere, or begin or end where a window does."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spreads = 10.0 ** draw(st.integers(-6, 3)) * rng.uniform(0.3, 3, size=(n_chans, 1))
    signals = rng.normal(size=(n_chans, n_samples))
    signals += 20 * rng.choice([-1, 0, 1], size=(n_chans, 1))  # an electrode's offset
    signals += np.linspace(0, draw(st.sampled_from([0, 5, -20])), n_samples)
    if draw(st.booleans()):
        signals += rng.normal(size=signals.shape).cumsum(axis=1) / 30
    ends = st.integers(0, n_samples) | st.sampled_from([0, *edges])
    for first, last, everywhere in draw(st.lists(st.tuples(ends, ends, st.booleans()), max_size=3)):
        channels = slice(None) if everywhere else rng.integers(n_chans)
        last = last if last > first else first + 1 + (first - last) // 20
        signals[channels, first:last] = rng.choice([np.nan, np.nan, np.inf])
    return spreads * signals


@st.composite
def chunks(draw, n_samples):
    """Draw where a recording of so many samples is cut, from one sample up."""
    if n_samples < ONE_BY_ONE and draw(st.integers(0, 3)) == 0:
        return np.arange(1, n_samples)
    if draw(st.booleans()):
        size = draw(st.integers(max(1, n_samples // 500), 5000))
        return np.arange(size, n_samples, size)
    return np.array(sorted(draw(st.lists(st.integers(0, n_samples), max_size=12))), dtype=int)


def by_file(signals, options):
    """Return the folder of a recording, a model that was trained on it, and its windows as a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rec.npy"
        np.save(path, signals)
        data = prepared(path, options)
        model = Trained(data.preprocessing)
        return data, model, predicted(model, path, step=data.preprocessing.step, sfreq=options.sfreq)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_prepared_predicted_and_live_windows_agree(drawn):
    signals, options = drawn.draw(recordings())
    data, model, windows = by_file(signals, options)
    order = drawn.draw(st.permutations(range(len(signals))))
    cuts = drawn.draw(chunks(signals.shape[1]))
    source = {"ch_names": [f"EEG CH{i + 1}-REF" for i in order], "sfreq": options.sfreq}
    pieces = np.split(signals[list(order)], cuts, axis=1)
    during, after = streamed(model, pieces, step=data.preprocessing.step, **source)
    assert_agree(data, windows, [*during, *after])
    live = [(window.start, window.complete) for window in [*during, *after]]
    assert live == [(window.start, window.complete) for window in windows]
    n_out = resampled_length(signals.shape[1], options.sfreq, data.sfreq)
    starts = range(0, n_out - data.n_times + 1, data.preprocessing.step)
    assert [window.start for window in windows] == list(starts)
    assert not after or options.resample  # nothing is held back but by a change of rate


@settings(max_examples=20, deadline=None)
@given(recordings(causal=False))
def test_zero_phase_prepared_and_predicted_windows_agree(drawn):
    signals, options = drawn
    data, model, windows = by_file(signals, options)
    assert_agree(data, windows)
    with pytest.raises(ValueError, match="filtered with a look ahead"):
        StreamingPredictor(model, step=5)


@pytest.mark.parametrize(("sfreq", "rate"), [(150, 64), (110, 250), (150, 128)])
def test_gaps_that_begin_or_end_with_a_window_touch_no_other(sfreq, rate):
    options = OwnOptions(sfreq=sfreq, resample=rate, window=32 / rate, **EASY)
    for first in range(1, 7):
        edges = [floor(32 * k * sfreq / rate) for k in (first, first + 1)]
        assert rate_ratio(sfreq, rate) * edges[0] <= 32 * first
        signals = np.random.default_rng(0).normal(size=(2, 10 * sfreq))
        signals[1, slice(*edges)] = np.nan
        data, _, windows = by_file(signals, options)
        assert_agree(data, windows)
        exact = [rate_ratio(sfreq, rate) * edge for edge in edges]
        touched = [w.start for w in windows if w.start < exact[1] and w.start + 32 > exact[0]]
        assert [w.start for w in windows if not w.complete] == touched
