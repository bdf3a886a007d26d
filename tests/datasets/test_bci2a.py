"""BCI IV 2a: three forms of one set; what they share must agree, what they lack is listed."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal
from scipy.io import savemat

from anchorinv.datasets.paper_sets import (
    CLASSES,
    plan_bci2a,
    read_bnci,
    read_converted,
    read_gdf,
    read_labels,
)
from anchorinv.datasets.prepare import prepare
from anchorinv.errors import Problems
from anchorinv.signal.preprocessing import CONFORMER
from tests.datasets import making
from tests.datasets.genuine import shared

STARTS = (300, 2050, 3801, 5600)
LABELS = (2, 4, 1, 3)


def session(name: str, seed: int = 0):
    """Digital samples (25, n) and events of a session, in two runs."""
    rng = np.random.default_rng([seed, sum(name.encode())])
    digital = rng.integers(-20000, 20000, size=(25, 7500))
    digital[3, 900:950] = -32768  # a gap in the first trial's window
    digital[5, 2700] = 32767  # a saturated sample in the second
    digital[7, 10:20] = -32768  # outside all windows
    events = [(0, 276), (0, 32766), (100, 277), (200, 32766), (3700, 32766), (250, 1072)]
    for start, label in zip(STARTS, LABELS, strict=True):
        events += [(start, 768), (start + 500, 768 + label if name.endswith("T") else 783)]
    events += [(STARTS[1], 1023)]
    return digital, sorted(events)


def write_gdf(folder: Path, name: str, **options) -> None:
    digital, events = session(name)
    making.gdf(folder / f"{name}.gdf", digital, events, **options)


def write_bnci(folder: Path, name: str) -> None:
    digital, _ = session(name)
    values = making.microvolts(digital).T  # (samples, 25)
    values[digital.T == -32768] = np.nan
    cut = 3700
    making.bnci(
        folder / f"{name}.mat",
        [
            {"X": values[:250], "trial": [], "y": []},  # eye movements
            {"X": values[:cut], "trial": [s + 1 for s in STARTS[:2]], "y": LABELS[:2], "artifacts": [0, 1]},
            {
                "X": values[cut:],
                "trial": [s + 1 - cut for s in STARTS[2:]],
                "y": LABELS[2:],
                "artifacts": [0, 0],
            },
        ],
    )


@pytest.mark.parametrize("version", ["1.25", "2.10"])
def test_a_gdf_written_byte_by_byte_gives_its_trials(tmp_path, version):
    write_gdf(tmp_path, "A01T", version=version)
    trials = read_gdf(tmp_path / "A01T.gdf")
    digital, _ = session("A01T")
    assert trials.labels.tolist() == [label - 1 for label in LABELS]
    assert trials.rejected.tolist() == [False, True, False, False]
    assert trials.missing == 51
    for window, start in zip(trials.windows, STARTS, strict=True):
        piece = digital[:22, start + 500 : start + 1500]
        wanted = np.where(np.isin(piece, (-32768, 32767)), 0, making.microvolts(piece))
        np.testing.assert_allclose(window, wanted, atol=1e-9)


def test_gdf_and_bnci_forms_agree(tmp_path):
    write_gdf(tmp_path / "gdf", "A01T")
    write_bnci(tmp_path / "bnci", "A01T")
    ours, theirs = read_gdf(tmp_path / "gdf" / "A01T.gdf"), read_bnci(tmp_path / "bnci" / "A01T.mat")
    np.testing.assert_allclose(ours.windows, theirs.windows, atol=1e-3)
    assert ours.labels.tolist() == theirs.labels.tolist()
    assert ours.rejected.tolist() == theirs.rejected.tolist()
    assert ours.missing == theirs.missing


def test_evaluation_sessions_take_their_labels_from_the_label_files(tmp_path):
    for name in ("A01T", "A01E"):
        write_gdf(tmp_path / "raw", name)
        making.labels(tmp_path / "raw" / "true_labels" / f"{name}.mat", LABELS)
    data = prepare(plan_bci2a(tmp_path / "raw", allow_missing=True), tmp_path / "out")
    assert len(data) == 8 and data.n_times == 1000 and data.n_chans == 22 and data.sfreq == 250
    assert [data.class_names[i] for i in data.labels] == [CLASSES[label - 1] for label in LABELS] * 2
    assert data.split.tolist() == ["train"] * 4 + ["test"] * 4
    assert data.sessions.tolist() == ["T"] * 4 + ["E"] * 4 and set(data.subjects) == {"A01"}
    assert data.rejected.tolist() == [False, True, False, False] * 2
    assert data.recordings.tolist() == ["A01T"] * 4 + ["A01E"] * 4
    assert data.meta["counts"] == {"missing samples": 102, "rejected trials": 2}
    assert "A09E is missing" in data.meta["missing"] and len(data.meta["missing"]) == 16
    assert set(data.meta["sources"]) >= {"A01E.gdf", "true_labels/A01E.mat"}
    assert "A01T has 4 trials, 288 expected" in data.meta["notes"]
    wanted = read_gdf(tmp_path / "raw" / "A01E.gdf").windows.astype(np.float32)
    assert np.array_equal(data.signals(np.arange(4, 8)), wanted)


def test_the_whole_set_from_either_form(tmp_path):
    for name in [f"A{i:02d}{s}" for i in range(1, 10) for s in "TE"]:
        write_bnci(tmp_path / "bnci", name)
        write_gdf(tmp_path / "gdf", name)
        making.labels(tmp_path / "gdf" / "true_labels" / f"{name}.mat", LABELS)
    one = prepare(plan_bci2a(tmp_path / "bnci"), tmp_path / "one")
    other = prepare(plan_bci2a(tmp_path / "gdf"), tmp_path / "other")
    everything = np.arange(len(one))
    assert len(one) == 72
    np.testing.assert_allclose(one.signals(everything), other.signals(everything), atol=1e-3)
    for column in ("labels", "subjects", "sessions", "split", "rejected"):
        assert getattr(one, column).tolist() == getattr(other, column).tolist()


def test_the_conformer_filter_is_scipys_with_matlabs_ends_on_each_window(tmp_path):
    write_gdf(tmp_path / "raw", "A01T")
    data = prepare(plan_bci2a(tmp_path / "raw", band=CONFORMER, allow_missing=True), tmp_path / "out")
    sections = signal.cheby2(6, 60, [4, 40], "bandpass", fs=250, output="sos")
    for window, plain in zip(
        data.signals(np.arange(4)), read_gdf(tmp_path / "raw/A01T.gdf").windows, strict=True
    ):
        np.testing.assert_allclose(window, signal.sosfiltfilt(sections, plain, padlen=36), atol=1e-4)
    assert any("Chebyshev" in step for step in data.meta["steps"])


def test_a_converted_file_is_taken_as_it_is_and_flagged(tmp_path):
    rng = np.random.default_rng(0)
    cube = rng.normal(size=(1000, 22, 5))
    cube[3, 2, 1] = np.nan
    (tmp_path / "raw").mkdir()
    for name in ("A02T", "A02E"):
        savemat(tmp_path / "raw" / f"{name}.mat", {"data": cube, "label": np.array([1, 2, 3, 4, 1])[:, None]})
    data = prepare(plan_bci2a(tmp_path / "raw", allow_missing=True), tmp_path / "out")
    assert np.array_equal(data.signals([0])[0], cube[:, :, 0].T.astype(np.float32))
    assert data.meta["form"] == "converted" and "filter and order unknown" in data.meta["steps"][0]
    assert data.meta["counts"]["missing samples"] == 2
    with pytest.raises(ValueError, match="already filtered"):
        plan_bci2a(tmp_path / "raw", band=CONFORMER, allow_missing=True)


def test_what_is_missing_is_listed(tmp_path):
    for name in ("A01T", "A01E", "A02E"):
        write_gdf(tmp_path, name)
    making.labels(tmp_path / "A02E.mat", LABELS)
    with pytest.raises(Problems) as error:
        plan_bci2a(tmp_path)
    found = "\n".join(error.value.problems)
    assert "A02T is missing" in found and "A09E is missing" in found and "A01T" not in found
    assert "A01E has no true labels" in found and "A02E" not in found
    assert "--allow-missing" in str(error.value)


def test_mistakes_are_told(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        plan_bci2a(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="anchorinv download bci2a"):
        plan_bci2a(tmp_path)
    write_gdf(tmp_path / "both", "A01T")
    write_bnci(tmp_path / "both", "A02T")
    with pytest.raises(ValueError, match="holds bnci, gdf files; choose one with --form"):
        plan_bci2a(tmp_path / "both")
    assert plan_bci2a(tmp_path / "both", form="bnci", allow_missing=True).sources[0].name == "A02T"
    with pytest.raises(ValueError, match="one of gdf, bnci, converted"):
        plan_bci2a(tmp_path / "both", form="edf")


def test_label_files_that_do_not_fit(tmp_path):
    write_gdf(tmp_path, "A01E")
    making.labels(tmp_path / "A01E.mat", LABELS[:3])
    with pytest.raises(ValueError, match=r"4 trials but .* 3 labels"):
        prepare(plan_bci2a(tmp_path, allow_missing=True), tmp_path / "out")
    write_gdf(tmp_path / "t", "A01T")
    making.labels(tmp_path / "t" / "A01T.mat", [1, 1, 1, 1])
    with pytest.raises(ValueError, match="disagree in 3 trials"):
        prepare(plan_bci2a(tmp_path / "t", allow_missing=True), tmp_path / "out2")


def test_genuine_labels_and_a_genuine_converted_file():
    for path in sorted(shared("bci2a_true_labels").glob("*.mat")):
        assert np.bincount(read_labels(path)).tolist() == [72] * 4, path.name
    trials = read_converted(shared("bci2b_mat") / "B0101T.mat")
    assert trials.windows.shape == (120, 3, 1000)
    assert set(trials.labels.tolist()) == {0, 1}


@pytest.mark.parametrize(
    "events",
    [
        [(300, 768), (2050, 768), (800, 769)],  # a cue is missing
        [(300, 769), (2050, 769)],  # no trial starts
        [(300, 768), (800, 769), (2050, 768), (4000, 770)],  # a cue outside its trial
        [],
    ],
)
def test_events_that_make_no_trials(tmp_path, events):
    making.gdf(tmp_path / "A01T.gdf", session("A01T")[0], events)
    with pytest.raises(ValueError, match="one in each is wanted; is it whole"):
        read_gdf(tmp_path / "A01T.gdf")


def test_a_trial_beyond_the_end_is_told(tmp_path):
    making.gdf(tmp_path / "A01T.gdf", session("A01T")[0], [(6500, 768), (7000, 769)])
    with pytest.raises(ValueError, match="cut short: its last trial ends after the file"):
        read_gdf(tmp_path / "A01T.gdf")


def test_damaged_mat_files_are_named_together(tmp_path):
    for name in ("A01T", "A02T", "A03T"):
        write_bnci(tmp_path, name)
        if name != "A03T":
            path = tmp_path / f"{name}.mat"
            path.write_bytes(path.read_bytes()[: 60 if name == "A01T" else 1000])
    with pytest.raises(Problems, match="2 problems") as error:
        plan_bci2a(tmp_path)
    assert "A01T.mat is not a MATLAB file" in str(error.value) and "A02T.mat cannot be read" in str(
        error.value
    )


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("read", [read_bnci, read_labels, read_converted])
def test_damaged_mat_files_end_in_a_sentence(tmp_path, read, compressed):
    path = tmp_path / "A01T.mat"
    if read is read_bnci:
        X = np.random.default_rng(0).normal(size=(1600, 25))
        making.bnci(path, [{"X": X, "trial": [1], "y": [2], "artifacts": [0]}], compressed=compressed)
    elif read is read_labels:
        savemat(path, {"classlabel": np.array([[1], [2], [3]])}, do_compression=compressed)
    else:
        inside = {"data": np.zeros((10, 2, 3)), "label": np.array([[1], [2], [3]])}
        savemat(path, inside, do_compression=compressed)
    whole = path.read_bytes()
    read(path)

    @settings(max_examples=60)
    @given(
        st.lists(
            st.tuples(st.integers(100, min(len(whole), 900) - 1), st.integers(0, 255)), min_size=1, max_size=5
        )
    )
    def damaged(changes):
        path.write_bytes(making.damaged(whole, changes))
        try:
            read(path)
        except ValueError as error:
            assert str(path) in str(error)

    damaged()
    for end in range(0, len(whole), max(1, len(whole) // 50)):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"A01T\.mat"):
            read(path)
