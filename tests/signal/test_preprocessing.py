"""Filters and resampling are scipy's, whatever the shape; nonsense is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal
from scipy.io import loadmat

from anchorinv.signal.pipeline import process
from anchorinv.signal.preprocessing import (
    Filter,
    Preprocessing,
    facts_of,
    parse_band,
    preprocessing_from,
    preprocessing_of,
)
from tests.datasets.genuine import shared

RNG = np.random.default_rng(0)


def filtered(values, sfreq, band):
    return process(Preprocessing(filter=band), values, sfreq).samples.T


def resampled(values, sfreq, to, how="fourier"):
    return process(Preprocessing(sfreq=to, resampling=how), values, sfreq).samples.T


@pytest.mark.parametrize("zero_phase", [False, True])
@pytest.mark.parametrize(
    ("low", "high", "kind"), [(0.5, 30, "bandpass"), (None, 20, "lowpass"), (1, None, "highpass")]
)
def test_butterworth_is_scipys(low, high, kind, zero_phase):
    values = RNG.normal(size=(3, 700))
    edges = [edge for edge in (low, high) if edge is not None]
    sections = signal.butter(4, edges if len(edges) > 1 else edges[0], kind, fs=128, output="sos")
    run = signal.sosfiltfilt if zero_phase else signal.sosfilt
    ours = filtered(values, 128, Filter(low, high, order=4, causal=not zero_phase, from_rest=True))
    np.testing.assert_allclose(ours, run(sections, values, axis=1), atol=1e-6)


def matlabs_filtfilt(b, a, x):
    """The documented rule of MATLAB's filtfilt, written out: mirrored ends, steady start, there and back."""
    n = len(a)
    reach = 3 * (n - 1)
    before = [2 * x[0] - x[i] for i in range(reach, 0, -1)]
    after = [2 * x[-1] - x[-1 - i] for i in range(1, reach + 1)]
    # The state that a constant 1 leaves unchanged: z = A z + B.
    step = np.eye(n - 1, k=1)
    step[:, 0] -= a[1:]
    steady = np.linalg.solve(np.eye(n - 1) - step, b[1:] - a[1:] * b[0])

    def run(values):
        state, out = steady * values[0], []
        for value in values:
            out.append(b[0] * value + state[0])
            state = np.append(state[1:], 0.0) + b[1:] * value - a[1:] * out[-1]
        return np.array(out)

    there = run(np.concatenate([before, x, after]))
    back = run(there[::-1])[::-1]
    return back[reach:-reach]


def test_the_conformers_filter_is_matlabs():
    b, a = signal.cheby2(6, 60, [4, 40], "bandpass", fs=250)
    assert len(a) == 13 and parse_band("conformer").padlen(250) == 36
    values = np.random.default_rng(1).normal(size=(3, 300)) + np.linspace(0, 5, 300)
    wanted = np.stack([matlabs_filtfilt(b, a, channel) for channel in values])
    np.testing.assert_allclose(filtered(values, 250, parse_band("conformer")), wanted, atol=1e-5)


def test_how_far_ends_are_mirrored_matters_at_the_ends_alone():
    # scipy's 39 samples against MATLAB's 36, in standard deviations of the filtered windows.
    values = np.random.default_rng(2).normal(size=(50, 1000))
    sections = signal.cheby2(6, 60, [4, 40], "bandpass", fs=250, output="sos")
    assert 3 * (2 * len(sections) + 1) == 39
    ours = filtered(values, 250, parse_band("conformer"))
    away = np.abs(ours - signal.sosfiltfilt(sections, values, padlen=39)).max(0) / ours.std()
    assert 0.24 < away.max() < 1 and away.max() == max(away[:20].max(), away[-20:].max())
    assert away[250:-250].max() < 2e-3


def test_how_far_ends_are_mirrored_matters_on_genuine_windows():
    windows = loadmat(shared("bci2b_mat") / "B0101T.mat")["data"].transpose(2, 1, 0).reshape(-1, 1000)
    sections = signal.cheby2(6, 60, [4, 40], "bandpass", fs=250, output="sos")
    ours = filtered(windows, 250, parse_band("conformer"))
    away = np.abs(ours - signal.sosfiltfilt(sections, windows, padlen=39)) / ours.std(1, keepdims=True)
    assert len(windows) == 360 and 0.24 < away.max() < 0.5
    assert 0.05 < np.median(away.max(1)) < 0.1 and away[:, 250:-250].max() < 0.002


@pytest.mark.parametrize(
    ("band", "reach"),
    [
        (Filter(1, 40, order=4, causal=False), 27),
        (Filter(None, 40, order=4, causal=False), 15),
        (Filter(4, 40, order=6, causal=False, attenuation=60), 36),
        (Filter(None, 40, order=5, causal=False, attenuation=60), 15),
    ],
)
def test_a_filter_of_both_ways_mirrors_as_scipy_or_matlab(band, reach):
    assert band.padlen(250) == reach


def test_the_whole_chain_of_nhie_is_scipys_in_one_go():
    values = RNG.normal(size=(8, 256 * 20)) * 50
    sections = signal.butter(5, [0.5, 30], "bandpass", fs=256, output="sos")
    wanted = signal.resample(signal.sosfilt(sections, values, axis=1), 64 * 20, axis=1)
    ours = resampled(filtered(values, 256, Filter(0.5, 30, order=5, from_rest=True)), 256, 64)
    np.testing.assert_allclose(ours, wanted, atol=2e-5)


def test_a_short_signal_is_filtered_without_a_word():
    assert filtered(RNG.normal(size=(2, 12)), 250, parse_band("conformer")).shape == (2, 12)


def test_resampling_keeps_a_slow_sine_and_loses_a_fast_one():
    seconds = np.arange(2048) / 256
    slow, fast = np.sin(2 * np.pi * 5 * seconds), np.sin(2 * np.pi * 50 * seconds)
    ours = resampled(np.stack([slow, fast]), 256, 64)
    np.testing.assert_allclose(ours[0], np.sin(2 * np.pi * 5 * np.arange(512) / 64), atol=1e-6)
    assert np.abs(ours[1]).max() < 1e-6
    assert np.array_equal(resampled(slow[None], 256, 256), slow[None].astype(np.float32))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Filter(None, None), "lower one first"),
        (lambda: Filter(-1, 5), "above 0 Hz"),
        (lambda: Filter(30, 5), "lower one first"),
        (lambda: Filter(1, 5, order=0), "between 1 and 20"),
        (lambda: Filter(1, 50).sections(90), "more than 100 Hz is needed"),
        (lambda: parse_band("fast"), "a filter is written 0.5-40"),
        (lambda: parse_band("-"), "a filter is written"),
        (lambda: resampled(np.zeros((1, 4)), 100, 0), "sfreq .=0. must lie above 0"),
        (lambda: resampled(np.zeros((1, 4)), 100, 1e5), "100 Hz cannot be brought to 100000 Hz"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bands_in_words():
    assert str(parse_band("1-")) == "1- Hz, Butterworth of order 5, causal"
    words = "4-40 Hz, Chebyshev II, 60 dB of order 6, zero phase, not causal, ends as in MATLAB"
    assert str(parse_band("conformer")) == words


class TestPreprocessing:
    @pytest.mark.parametrize("edges", [(None, None), (40, 4), (4, 4), (-1, 4), (0, None), (1, float("inf"))])
    def test_edges_that_make_no_filter(self, edges):
        with pytest.raises(ValueError, match="lower one first"):
            Filter(*edges)

    def test_what_a_folder_of_a_former_version_tells(self):
        meta = {"filter": {"low": 0.5, "high": 30, "order": 5, "causal": False}, "unit": "uV"}
        assert preprocessing_of(meta, ch_names=("C3",)) == Preprocessing(
            ("C3",), "µV", Filter(0.5, 30, 5, causal=False)
        )
        assert preprocessing_of({}) == Preprocessing()
        # They filtered from rest, resampled by the spectrum, put zeros into gaps, cut .npz trials before.
        own = {"form": "own", "filter": {"low": 1, "high": 40, "order": 5, "causal": True}}
        how = preprocessing_of({**own, "options": {"resample": 64}, "sources": {"a.edf": "x"}})
        assert how.filter.from_rest and how.resampling == "fourier" and how.gaps == "zero"
        assert how.not_live and not how.not_repeatable
        assert preprocessing_of({**own, "sources": {"a.npz": "x"}}).not_repeatable
        odd = preprocessing_of({"filter": "conformer", "unit": "furlong"})
        assert odd == Preprocessing(unrepeatable="conformer")

    @given(
        st.builds(
            Preprocessing,
            st.none() | st.just(("C3-Cz", "C4-Cz")),
            unit=st.sampled_from([None, "uV", "MV", "V"]),
            filter=st.none() | st.builds(Filter, st.floats(0.1, 5), st.floats(6, 90), causal=st.booleans()),
            reference=st.sampled_from([None, "average"]),
            limit=st.none() | st.floats(1, 1e6),
            gaps=st.sampled_from(["hold", "zero"]),
            sfreq=st.none() | st.floats(1, 1e4),
            resampling=st.sampled_from(["polyphase", "fourier"]),
            by_trial=st.booleans(),
            n_times=st.none() | st.integers(1, 9999),
        )
    )
    def test_what_is_written_is_what_is_read(self, how):
        assert preprocessing_from(facts_of(how)) == how

    def test_mistakes(self):
        with pytest.raises(ValueError, match="'C3' is named twice"):
            Preprocessing(("C3", "C3"))
        with pytest.raises(ValueError, match="must be one of V, mV"):
            Preprocessing(unit="parsec")
        with pytest.raises(ValueError, match="order"):
            Filter(4, 40, order=0)
