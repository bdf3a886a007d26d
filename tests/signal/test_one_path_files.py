"""The three ways to a model agree through every format and for true models, or it is said why not."""

import contextlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import sosfilt, sosfilt_zi
from typer.testing import CliRunner

from anchorinv import AnchorInvClassifier, Filter, StreamingPredictor
from anchorinv.cli import app
from anchorinv.datasets.dataset import Dataset
from anchorinv.datasets.own import plan_manifest, plan_npz
from anchorinv.datasets.own_files import OwnOptions
from anchorinv.datasets.prepare import prepare
from anchorinv.serving import files
from anchorinv.serving.files import ReadOptions, from_recording, from_windows
from anchorinv.signal.preprocessing import UNITS, Preprocessing
from anchorinv.signal.readers import open_recording
from tests.datasets import making
from tests.recording_files import write_edf, write_fif, write_gdf, write_wfdb
from tests.three_paths import EASY, Trained, assert_agree, predicted, prepared, streamed

NAMES = ["Fz", "C3", "Cz", "C4", "Pz"]


def write_brainvision(path, signals, ch_names, rate):
    making.brainvision(path, 1e6 * signals, ch_names, sfreq=rate)
    return path


def write_csv(path, signals, ch_names, rate):
    table = np.column_stack([np.arange(signals.shape[1]) / rate, signals.T])
    np.savetxt(path, table, delimiter=",", fmt="%.17g", header=",".join(["time", *ch_names]), comments="")
    return path


#: How each is written, whether it can have gaps, and its least step: a share of its range, or volts.
FORMATS = {
    "r.edf": (write_edf, False, 1 / 32767),
    "r.gdf": (write_gdf, False, 1 / 32767),
    "r_raw.fif": (write_fif, True, 2**-23),
    "r": (write_wfdb, True, 1 / 32767),
    "r.vhdr": (write_brainvision, False, 1e-7),
    "r.csv": (write_csv, True, 0.0),
}


@st.composite
def sources(draw, *, gaps):
    """Draw a recording in volts with its rate, what is to be done to it, and how it comes live."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rate, n_chans = draw(st.sampled_from([100, 128, 250, 500])), draw(st.integers(2, 5))
    n_seconds = draw(st.integers(3, 5))
    signals = 1e-5 * (rng.normal(size=(n_chans, n_seconds * rate)) + 20 * rng.normal(size=(n_chans, 1)))
    if gaps and draw(st.booleans()):
        at = draw(st.integers(0, signals.shape[1] - 1))
        signals[draw(st.integers(0, n_chans - 1)), at : at + draw(st.integers(1, rate))] = np.nan
    names = NAMES[:n_chans]
    reference = draw(st.sampled_from([None, "average", "Fz", "bipolar"]))
    kept = {"bipolar": ("C3-Fz", "Fz-C3"), "Fz": tuple(names[:0:-1])}.get(reference, tuple(names[::-1]))
    options = OwnOptions(
        channels=kept,
        band=draw(st.sampled_from([None, Filter(1, 40), Filter(0.5, order=2), Filter(high=30)])),
        resample=draw(st.sampled_from([None, 100.0, 160.0, 256.0])),
        window=draw(st.sampled_from([0.25, 0.5, 1.0])),
        overlap=draw(st.sampled_from([0.0, 0.5])),
        reference=reference,
        **EASY,
    )
    cuts = sorted(draw(st.lists(st.integers(0, signals.shape[1]), max_size=6)))
    return (
        signals,
        rate,
        options,
        cuts,
        draw(st.permutations(range(n_chans))),
        draw(st.sampled_from([*UNITS])),
    )


@pytest.mark.parametrize("name", FORMATS)
def test_windows_agree_through_files(name):
    write, gaps, digit = FORMATS[name]

    @settings(max_examples=8)
    @given(sources(gaps=gaps))
    def agree(drawn):
        signals, rate, options, cuts, order, unit = drawn
        with TemporaryDirectory() as folder:
            path = write(Path(folder) / name, signals, NAMES[: len(signals)], rate)
            recording = open_recording(path)
            stored = recording.load(range(len(signals)))
            data = prepared(path, options)
            model, step = Trained(data.preprocessing), data.preprocessing.step
            windows = predicted(model, path, step=step)
        # Of a table nobody knows the unit: prepared and live samples are its numbers.
        assert model.preprocessing_.unit == (None if name == "r.csv" else "µV")
        factor, unit = (1.0, None) if name == "r.csv" else (UNITS[unit], unit)
        names = [f"eeg {NAMES[i].upper()}-Ref" for i in order]
        source = {"step": step, "ch_names": names, "sfreq": rate, "unit": unit}

        def live(values):
            chunks = np.split(factor * values[list(order)], cuts, axis=1)
            during, after = streamed(model, chunks, **source)
            return [*during, *after]

        assert_agree(data, windows, live(stored))
        # As it was before the file rounded it: nothing else was done to it on the way.
        most = 1.0 if name == "r.vhdr" else np.nanmax(np.abs(signals))
        spread = data.samples.std(axis=0).min() / (1e6 if name != "r.csv" else 1)
        assert_agree(data, live(signals), atol=1e-5 + 8 * digit * most / spread)

    agree()


class TestMeasuredFailures:
    def test_an_offset_of_twenty_spreads_leaves_no_trace_in_the_first_window(self, tmp_path):
        signals = np.random.default_rng(0).normal(size=(3, 2000))
        options = OwnOptions(band=Filter(1, 40), sfreq=250, window=1.0, **EASY)
        sections = options.band.sections(250)
        np.save(tmp_path / "r.npy", signals + 20)
        data = prepared(tmp_path / "r.npy", options)
        model = Trained(data.preprocessing)
        during, _ = streamed(model, np.split(signals + 20, 20, axis=1), step=250)
        assert_agree(data, predicted(model, tmp_path / "r.npy", step=250, sfreq=250), during)
        steady = sosfilt_zi(sections)[:, None, :] * signals[None, :, :1]
        expected, _ = sosfilt(sections, signals, axis=1, zi=steady)
        np.testing.assert_allclose(data.signals([0])[0], expected[:, :250], atol=1e-5)

    def test_trials_filtered_one_by_one_cannot_be_repeated_live(self, tmp_path):
        rng = np.random.default_rng(0)
        spectrum = np.fft.rfft(rng.normal(size=(24, 2, 256))) / np.sqrt(np.arange(1, 130))
        pink = np.fft.irfft(spectrum)
        np.savez(tmp_path / "t.npz", X=pink, y=np.arange(24) % 2, sfreq=128.0)
        prepare(plan_npz(tmp_path / "t.npz", OwnOptions(band=Filter(1, 40), **EASY)), tmp_path / "set")
        data = Dataset.open(tmp_path / "set")
        model = AnchorInvClassifier(network="never", preprocessing=data.preprocessing, random_state=0)
        model.fit(data.signals(np.arange(24)), data.labels).save(tmp_path / "m")
        model = AnchorInvClassifier.load(tmp_path / "m")
        assert model.preprocessing_.by_trial
        words = r"trials that were cut first and then processed one by one \(filtered, 1-40 Hz"
        with pytest.raises(ValueError, match=rf"{words}.*which is impossible live; train it on recordings"):
            StreamingPredictor(model, step=64)
        np.save(tmp_path / "r.npy", pink.transpose(1, 0, 2).reshape(2, -1))
        with pytest.raises(
            ValueError, match=rf"{words}.*predict its windows \(\.npz or \.npy\), or train on"
        ):
            list(from_recording(model, tmp_path / "r.npy"))
        windows = np.stack([window.values for window in from_windows(model, tmp_path / "set")])
        np.testing.assert_array_equal(windows, data.signals(np.arange(24)))

    def test_trials_as_they_are_can_be_had_live(self, tmp_path):
        X = np.random.default_rng(0).normal(size=(20, 2, 64))
        np.savez(tmp_path / "t.npz", X=X, y=np.arange(20) % 2, sfreq=128.0)
        prepare(plan_npz(tmp_path / "t.npz", OwnOptions(reference="average", **EASY)), tmp_path / "set")
        how = Dataset.open(tmp_path / "set").preprocessing
        assert how.not_live is None and not how.by_trial


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model file of recordings in EDF that went through everything, by the commands; and a recording."""
    folder, rng = tmp_path_factory.mktemp("trained"), np.random.default_rng(0)
    for label, loud in (("left", 1), ("right", 3)):
        spreads = np.ones((5, 1))
        spreads[loud] = 4
        signals = 1e-5 * (spreads * rng.normal(size=(5, 40 * 250)) + 20)
        write_edf(folder / f"{label}.edf", signals, NAMES, 250)
    rows = [
        {"path": f"{label}.edf", "label": label, "split": side, "start": start, "stop": start + 20}
        for label in ("left", "right")
        for side, start in (("train", 0), ("test", 20))
    ]
    making.rows(folder / "table.csv", *rows)
    for words in (
        "prepare own --manifest table.csv --out set --allow shared-recordings --filter 1-40 --resample 100 "
        "--reference average --window 1 --overlap 0.5",
        "train set --out m.anchorinv --seed 0 -q",
    ):
        with contextlib.chdir(folder):
            made = CliRunner().invoke(app, words.split())
        assert made.exit_code == 0, made.output
    return folder


class TestModels:
    def test_a_model_knows_all_that_its_folder_says(self, trained):
        model = AnchorInvClassifier.load(trained / "m.anchorinv")
        data = Dataset.open(trained / "set")
        assert model.preprocessing_ == data.preprocessing
        assert model.preprocessing_.reference == "average" and model.preprocessing_.unit == "µV"

    def test_predicted_rows_are_the_live_predictions(self, trained):
        model = AnchorInvClassifier.load(trained / "m.anchorinv")
        signals = open_recording(trained / "left.edf").load(range(5))
        signals[2, 2000:2100] = np.nan
        write_csv(trained / "gap.csv", 1e6 * signals, NAMES, 250)
        shown = []
        rows = list(files.predict_file(model, trained / "gap.csv", ReadOptions(step=0.5), note=shown.append))
        times, rows = [place.time for place, _ in rows], [row for _, row in rows]
        live = StreamingPredictor(model, step=50, sfreq=250, ch_names=NAMES[::-1], unit="V")
        chunks = np.array_split(signals[::-1], 100, axis=1)
        answers = [answer for chunk in chunks for answer in live.feed(chunk)] + live.finish()
        assert [row.label for row in rows] == [answer.label for answer in answers]
        assert times == [answer.start / 100 for answer in answers]
        gaps = [time for time, row in zip(times, rows, strict=True) if row.label is None]
        assert gaps == [7.5, 8.0] and len(shown) == len(rows) - 2
        both = [(r.probabilities, f.probabilities) for r, f in zip(rows, answers, strict=True) if r.label]
        np.testing.assert_allclose(*np.swapaxes(both, 0, 1), atol=1e-4)

    def test_windows_of_the_folder_are_those_of_the_file(self, trained):
        model, data = AnchorInvClassifier.load(trained / "m.anchorinv"), Dataset.open(trained / "set")
        windows = list(from_recording(model, trained / "left.edf", ReadOptions(step=0.5)))
        first = data.starts[(data.recordings == "left.edf") & (data.split == "train")]
        by_start = {window.start: window.values for window in windows}
        spread = data.samples.std(axis=0)[:, None]
        assert len(first) == 39
        for start in first.tolist():
            away = np.abs(by_start[start] - data.samples[start : start + 100].T)
            assert (away <= 1e-5 * spread).all()


def test_a_file_that_does_not_say_its_rate_is_told_it(tmp_path):
    signals = np.random.default_rng(0).normal(size=(2, 4000))
    np.save(tmp_path / "r.npy", signals)
    options = OwnOptions(sfreq=1000, resample=250, window=0.5, **EASY)
    data = prepared(tmp_path / "r.npy", options)
    model = Trained(data.preprocessing)
    assert_agree(data, predicted(model, tmp_path / "r.npy", step=125, sfreq=1000))
    table = making.rows(tmp_path / "table.csv", {"path": "r.npy", "label": "a", "split": "train"})
    with pytest.raises(ValueError, match="has no sampling rate; pass it with --sfreq"):
        plan_manifest(table, replace(options, sfreq=None))


@pytest.mark.parametrize(
    ("done", "unit", "band", "unrepeatable"),
    [
        ({"low": 1, "high": 40, "order": 4, "causal": True, "attenuation": None}, "µV", Filter(1, 40), None),
        ("none", "µV", None, None),
        (None, None, None, None),
        ("4-40 Hz by MATLAB", "µV", None, "4-40 Hz by MATLAB"),
        ({"low": 1, "wavelet": "db4"}, "µV", None, "{'low': 1, 'wavelet': 'db4'}"),
    ],
)
def test_a_folder_of_a_former_version_is_understood(tmp_path, done, unit, band, unrepeatable):
    X = np.random.default_rng(0).normal(size=(8, 2, 64))
    meta = {} if done is None else {"filter": done, "unit": "uV"}
    made = Dataset.from_arrays(X, [0, 1] * 4, sfreq=128, split=["train"] * 8, ch_names=("C3", "C4"), **meta)
    made.write(tmp_path / "set")
    how = Dataset.open(tmp_path / "set").preprocessing
    known = {"ch_names": ("C3", "C4"), "sfreq": 128.0, "n_times": 64}
    assert how == Preprocessing(unit=unit, filter=band, unrepeatable=unrepeatable, **known)
    if unrepeatable is None:  # recordings and live sources are brought to it
        signals = X.transpose(1, 0, 2).reshape(2, -1)
        np.save(tmp_path / "r.npy", signals)
        model = Trained(replace(how, ch_names=("ch1", "ch2")))
        windows = predicted(model, tmp_path / "r.npy", step=64, sfreq=128)
        during, _ = streamed(model, np.split(signals, 16, axis=1), step=64)
        assert len(windows) == 8
        for window, other in zip(windows, during, strict=True):
            np.testing.assert_array_equal(window.values, other.values)
