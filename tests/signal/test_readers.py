"""Every format comes back as it was written; damaged files end in a sentence that names them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.datasets import making
from tests.reading_whole import read_recording

NAMES = ["Fz", "Cz", "Pz"]


def digital(n=512, seed=0, n_chans=3, most=3000):
    return np.random.default_rng(seed).integers(-most, most, size=(n_chans, n))


def fif(path, values, sfreq=128.0):
    import mne

    raw = mne.io.RawArray(values * 1e-6, mne.create_info(NAMES, sfreq, "eeg"), verbose="ERROR")
    raw.save(path, verbose="ERROR", fmt="double")


def written(folder, kind):
    """Write a recording of three channels at 128 Hz; return its path and its samples in µV."""
    counts = digital()
    path = folder / f"rec.{kind}"
    if kind == "edf":
        making.edf(path, counts, NAMES, sfreq=128)
        return path, making.edf_values(counts)
    if kind == "bdf":
        making.edf(path, counts, NAMES, sfreq=128, bdf=True)
        return path, making.edf_values(counts, bdf=True)
    if kind == "gdf":
        making.gdf(path, counts, [(3, 768)], sfreq=128)
        return path, making.microvolts(counts)
    if kind == "hea":
        making.wfdb_record(folder, "rec", counts, NAMES, [100.0, 50.0, 7.0], [3, -4, 0], sfreq=128, unit="uV")
        return path, (counts - np.array([[3], [-4], [0]])) / np.array([[100.0], [50.0], [7.0]])
    values = counts / 10
    if kind in ("csv", "csv.xz"):
        making.table_xz(path, values, NAMES, 128)
    elif kind == "npy":
        np.save(path, values)
    elif kind == "fif":
        path = folder / "rec_raw.fif"
        fif(path, values)
    else:
        making.brainvision(path, values, NAMES)
    return path, values


KINDS = ["edf", "bdf", "gdf", "fif", "vhdr", "hea", "csv", "csv.xz", "npy"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_comes_back_in_microvolts(tmp_path, kind):
    path, values = written(tmp_path, kind)
    recording = read_recording(path)
    np.testing.assert_allclose(recording.signals, values, atol=1e-6)
    if kind != "npy":
        assert recording.sfreq == 128
    if kind not in ("npy", "gdf"):
        assert recording.ch_names == tuple(NAMES)
        swapped = read_recording(path, channels=["pz", "Fz"])
        np.testing.assert_allclose(swapped.signals, values[[2, 0]], atol=1e-6)
        assert swapped.ch_names == ("Pz", "Fz")
        with pytest.raises(ValueError, match="lacks 1 of 1 channels: Oz; it has Fz, Cz, Pz"):
            read_recording(path, channels=["Oz"])
    assert set(recording.units) == ({""} if kind in ("csv", "csv.xz", "npy") else {"µV"})


@pytest.mark.parametrize("unit", ["mV", "V"])
def test_other_units_become_microvolts(tmp_path, unit):
    making.wfdb_record(tmp_path, "rec", digital(), NAMES, [100.0] * 3, [0] * 3, sfreq=128, unit=unit)
    recording = read_recording(tmp_path / "rec.hea")
    np.testing.assert_allclose(recording.signals, digital() / 100 * {"mV": 1e3, "V": 1e6}[unit])
    making.edf(tmp_path / "rec.edf", digital(), NAMES, sfreq=128, unit=unit)
    np.testing.assert_allclose(
        read_recording(tmp_path / "rec.edf").signals,
        making.edf_values(digital()) * {"mV": 1e3, "V": 1e6}[unit],
        rtol=1e-6,
        atol=1e-3,
    )


def test_a_unit_that_is_no_voltage_stays(tmp_path):
    making.edf(tmp_path / "rec.edf", digital(), NAMES, sfreq=128, unit="degC")
    recording = read_recording(tmp_path / "rec.edf")
    np.testing.assert_allclose(recording.signals, making.edf_values(digital()), atol=1e-6)
    assert "µV" not in recording.units


def test_a_table_with_gaps_and_without_times(tmp_path):
    (tmp_path / "a.csv").write_text("Fz,Cz\n1,2\n,4\n5,nan\n")
    recording = read_recording(tmp_path / "a.csv")
    assert recording.sfreq is None
    np.testing.assert_array_equal(recording.signals, [[1, np.nan, 5], [2, 4, np.nan]])
    (tmp_path / "b.csv").write_text("time,Fz\n0,1\n0.1,2\n0.5,4\n")
    with pytest.raises(ValueError, match="not evenly spaced"):
        read_recording(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("time,Fz\n0,1\n0.1,left\n")
    with pytest.raises(ValueError, match=r"c\.csv cannot be read"):
        read_recording(tmp_path / "c.csv")


def test_what_is_no_recording(tmp_path):
    (tmp_path / "a.docx").write_text("x")
    with pytest.raises(ValueError, match="an unknown format; known formats"):
        read_recording(tmp_path / "a.docx")
    with pytest.raises(FileNotFoundError, match="there is no"):
        read_recording(tmp_path / "a.edf")
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match=r"expected numbers \(channels, times\)"):
        read_recording(tmp_path / "cube.npy")
    np.save(tmp_path / "text.npy", np.array([["a"]]))
    with pytest.raises(ValueError, match=r"expected numbers \(channels, times\)"):
        read_recording(tmp_path / "text.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"objects\.npy holds Python objects"):
        read_recording(tmp_path / "objects.npy")
    making.edf(tmp_path / "b.gdf", digital(), NAMES, sfreq=128)
    with pytest.raises(ValueError, match="is not a GDF file"):
        read_recording(tmp_path / "b.gdf")


def test_a_fif_file_that_leads_back_is_no_endless_loop(tmp_path):
    path, _ = written(tmp_path, "fif")
    whole = bytearray(path.read_bytes())
    first = 16 + int.from_bytes(whole[8:12], "big")
    whole[first + 12 : first + 16] = (first).to_bytes(4, "big")
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=f"a tag at {first} points to"):
        read_recording(path)


def test_too_much_at_once_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("anchorinv.signal.headers.MAX_VALUES", 1000)
    for kind in ("edf", "hea", "csv", "npy"):
        path, _ = written(tmp_path, kind)
        with pytest.raises(ValueError, match="are read at once; choose fewer channels"):
            read_recording(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_short_is_named(tmp_path, kind):
    path, _ = written(tmp_path, kind)
    victim = path.with_suffix({"hea": ".dat", "vhdr": ".eeg"}[kind]) if kind in ("hea", "vhdr") else path
    whole = victim.read_bytes()
    for share in (0.0, 0.03, 0.5, 0.98):
        victim.write_bytes(whole[: int(share * len(whole))])
        if kind in (
            "csv",
            "vhdr",
        ):  # text cut at any line is still a table, samples at any sample still samples
            try:
                read_recording(path)
            except ValueError as error:
                assert str(path) in str(error)
            continue
        with pytest.raises(ValueError, match="rec") as error:
            read_recording(path)
        assert str(path) in str(error.value)


@pytest.mark.parametrize("kind", ["edf", "bdf", "gdf", "hea", "npy", "vhdr", "fif", "csv.xz"])
def test_damaged_headers_end_in_a_sentence_or_in_a_recording(tmp_path, kind):
    path, _ = written(tmp_path, kind)
    whole = path.read_bytes()
    header = len(whole) if kind in ("hea", "vhdr") else min(len(whole), 1100)

    @settings(max_examples=40)
    @given(st.lists(st.tuples(st.integers(0, header - 1), st.integers(0, 255)), min_size=1, max_size=6))
    def damaged(changes):
        path.write_bytes(making.damaged(whole, changes))
        try:
            recording = read_recording(path)
        except ValueError as error:
            assert str(path) in str(error)
        else:
            assert recording.signals.ndim == 2 and len(recording.signals) == len(recording.ch_names)

    damaged()


def test_wfdb_signals_without_a_name_go_by_their_number(tmp_path):
    path, values = written(tmp_path, "hea")
    path.write_text(path.read_text().replace(" Cz", ""))
    recording = read_recording(path)
    assert recording.ch_names == ("Fz", "ch2", "Pz")
    np.testing.assert_allclose(recording.signals, values, atol=1e-6)
