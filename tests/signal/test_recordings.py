"""Continuous recordings through a model: formats, channels, rates, units, gaps, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from scipy.signal import resample_poly, sosfilt, sosfilt_zi

from anchorinv import AnchorInvClassifier, Filter, Preprocessing
from anchorinv.serving.files import ReadOptions, from_recording, predict_file, read_shots
from anchorinv.serving.streaming import DriftMonitor
from anchorinv.signal.preprocessing import AS_GIVEN, pick_channels
from anchorinv.signal.readers import PIECE, Recording, open_recording, select_inputs
from tests.models import CHANNELS, RATE, SMALL, windows
from tests.recording_files import write_edf, write_fif, write_gdf, write_wfdb

# The models here were fitted to noise that did not go through the filter that they name.
pytestmark = pytest.mark.filterwarnings("ignore:.*the spectrum of every channel is far")
pytest.importorskip("mne")
pytest.importorskip("wfdb")
SIGNAL = 30e-6 * np.random.default_rng(2).normal(size=(4, 128 * 12))  # volts, twelve seconds
FORMATS = {
    "edf": lambda folder, *what: write_edf(folder / "r.edf", *what),
    "gdf": lambda folder, *what: write_gdf(folder / "r.gdf", *what),
    "fif": lambda folder, *what: write_fif(folder / "r_raw.fif", *what),
    "wfdb": lambda folder, *what: write_wfdb(folder / "r", *what),
}


@pytest.fixture(scope="module")
def model():
    """Trained in microvolts on causally filtered signals."""
    X, y = windows()
    how = Preprocessing(CHANNELS, "uV", Filter(2, 30))
    settings = {"geometry": SMALL, "epochs": 2, "inversion_steps": 1, "finetune_steps": 1, "random_state": 0}
    return AnchorInvClassifier(sfreq=RATE, preprocessing=how, **settings).fit(30 * X, y)


def rows(model, path, **options):
    return list(predict_file(model, path, ReadOptions(**options), note=DriftMonitor(model)))


def by_hand(model, volts, rate, step):
    """All at once: microvolts, filter, change of rate, windows."""
    values = 1e6 * volts
    sections = model.preprocessing.filter.sections(rate)
    values, _ = sosfilt(sections, values, axis=1, zi=sosfilt_zi(sections)[:, None, :] * values[None, :, :1])
    if rate != RATE:
        # As if the first sample had always been there, and the last one stayed.
        held = np.pad(values, ((0, 0), (40, 40)), "edge")
        values = resample_poly(held, int(RATE), int(rate), axis=1)[:, 20:-20]
    starts = range(0, values.shape[1] - 63, step)
    return starts, model.predict_proba(np.stack([values[:, s : s + 64] for s in starts]))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rate", [128, 256])
def test_every_format_gives_what_one_computes_by_hand(kind, rate, model, tmp_path):
    path = FORMATS[kind](tmp_path, SIGNAL, CHANNELS, rate)
    starts, expected = by_hand(model, SIGNAL, rate, 32)
    predictions = rows(model, path, step=0.25)
    assert [place.time for place, _ in predictions] == [start / RATE for start in starts]
    # All but FIF hold 16 bits.
    np.testing.assert_allclose([row.probabilities for _, row in predictions], expected, atol=2e-3)


def test_channels_are_found_by_name_and_put_in_order(model, tmp_path):
    mixed = np.concatenate([SIGNAL, SIGNAL[:1]])[[2, 4, 0, 3, 1]]
    path = write_edf(tmp_path / "r.edf", mixed, ["EEG CZ", "EOG", "EEG C3-REF", "pz.", "EEG C4"], 128)
    plain = write_edf(tmp_path / "p.edf", SIGNAL, CHANNELS, 128)
    for (_, one), (_, other) in zip(rows(model, path), rows(model, plain), strict=True):
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=2e-3)


def test_missing_channels_are_listed(model, tmp_path):
    path = write_edf(tmp_path / "r.edf", SIGNAL[:3], ["C3", "A1", "Cz"], 128)
    with pytest.raises(ValueError, match=r"r\.edf lacks 2 of 4 channels: C4, Pz; it has C3, A1, Cz"):
        rows(model, path)


def test_names_that_could_be_two_channels_are_not_guessed():
    with pytest.raises(ValueError, match="lacks 1 of 1 channels: c3"):
        pick_channels(["c3"], ["EEG C3", "C3-REF"], source="r")
    assert pick_channels(["C3"], ["C3", "EEG C3"], source="r") == [0]
    two = Recording(Path("r"), ("a", "b"), ("V", "V"), 100.0, 10, lambda *_: np.zeros((2, 10)))
    with pytest.raises(ValueError, match="has 2 channels, the model takes 3 and does not know their names"):
        select_inputs(two, AS_GIVEN, n_chans=3)


def test_gaps_have_no_class(model, tmp_path):
    broken = SIGNAL.copy()
    broken[1, 300:310] = np.nan
    path = write_fif(tmp_path / "r_raw.fif", broken, CHANNELS, 128)
    predictions = rows(model, path)
    assert [place.window for place, row in predictions if row.label is None] == [4]
    windows_, labels = read_shots(model, path)
    assert labels is None and len(windows_) == len(predictions) - 1 and np.isfinite(windows_).all()


def test_too_short_a_recording(model, tmp_path):
    path = write_fif(tmp_path / "r_raw.fif", SIGNAL[:, :40], CHANNELS, 128)
    with pytest.raises(ValueError, match=r"lasts 0\.312 s, a window of the model 0\.5 s; a longer recording"):
        rows(model, path)


def test_a_rate_too_low_for_the_filter(model, tmp_path):
    path = write_fif(tmp_path / "r_raw.fif", SIGNAL, CHANNELS, 50)
    with pytest.raises(
        ValueError, match="a filter to 30 Hz is above the Nyquist frequency of a rate of 50 Hz"
    ):
        rows(model, path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sfreq": None}, "has no sampling rate"),
        ({"preprocessing": Preprocessing(unrepeatable="a paper filter")}, "processed by a paper filter"),
    ],
)
def test_models_that_know_too_little(settings, words, tmp_path):
    short = {"geometry": SMALL, "epochs": 1, "inversion_steps": 1, "random_state": 0}
    model = AnchorInvClassifier(**{"sfreq": RATE, **short, **settings}).fit(*windows())
    with pytest.raises(ValueError, match=words):
        rows(model, write_fif(tmp_path / "r_raw.fif", SIGNAL, CHANNELS, 128))


@pytest.mark.parametrize("name", ["r.edf", "r.gdf", "r.fif", "r.hea", "r.xyz", "r"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 1000, b"hello" * 200])
def test_damaged_recordings_are_one_sentence(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "r.hea").write_bytes(content)
    message = r"cannot be read|holds no samples|damaged|cut short|is not a |has an unknown format"
    with pytest.raises(ValueError, match=message) as caught:
        open_recording(tmp_path / name)
    assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="there is no"):
        open_recording(tmp_path / "other.edf")


def test_memory_is_bounded_however_long_the_recording(model, monkeypatch):
    asked = []

    def read(start, stop, channels):
        asked.append(stop - start)
        return 30e-6 * np.random.default_rng(start).normal(size=(len(channels), stop - start))

    n_times = 5_000_000  # eleven hours
    endless = Recording(Path("r"), (*CHANNELS, "EOG"), ("V",) * 5, 256.0, n_times, read)
    monkeypatch.setattr("anchorinv.serving.files.open_recording", lambda path: endless)
    n = 0
    for window in from_recording(model, Path("r"), ReadOptions(step=1.0)):
        assert window.start == 128 * n and window.values.shape == (4, 64)
        n += 1
    assert n == 5_000_000 // 256 and max(asked) * 5 <= PIECE and sum(asked) == n_times


def test_a_file_that_breaks_while_it_is_read(model, monkeypatch):
    def read(start, stop, channels):
        raise IndexError("beyond\nthe end")

    monkeypatch.setattr(
        "anchorinv.serving.files.open_recording",
        lambda path: Recording(Path("r"), CHANNELS, ("V",) * 4, 128.0, 999, read),
    )
    with pytest.raises(ValueError, match=r"r cannot be read \(beyond the end\)"):
        rows(model, Path("r.edf"))
