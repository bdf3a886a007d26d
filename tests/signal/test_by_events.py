"""Labels from the recording itself: the same windows for prepare, train, learn and evaluate."""

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier, Filter
from anchorinv.datasets.own import Labelling, plan_bids, plan_manifest, plan_recordings
from anchorinv.datasets.own_files import ManifestRow, OwnOptions
from anchorinv.datasets.prepare import prepare, prepare_in_memory
from anchorinv.serving.files import ReadOptions, from_events
from anchorinv.signal.events import read_events
from anchorinv.signal.readers import open_recording
from tests.datasets import making
from tests.datasets.genuine import shared

pytest.importorskip("mne")
FISTS = Labelling({"T1": "left", "T2": "right"}, 0.0, 3.0)
OPTIONS = OwnOptions(
    channels=("C3", "Cz", "C4"), band=Filter(2, 40), resample=128, window=3, at_least=1,
    allow=frozenset({"few"}),
)  # fmt: skip


@pytest.fixture(scope="module")
def sample():
    return shared("eegmmidb_sample")


@pytest.fixture(scope="module")
def fists(sample):
    """The genuine recording of imagined fists, by its own annotations."""
    return prepare_in_memory(plan_recordings([sample / "S001R04.edf"], OPTIONS, FISTS, split="train"))


def test_trials_of_a_genuine_recording(fists, sample, tmp_path):
    counts = {name: int((fists.labels == i).sum()) for i, name in enumerate(fists.class_names)}
    assert counts == {"left": 8, "right": 7} and (fists.n_times, fists.sfreq) == (384, 128)
    assert fists.preprocessing.not_live is None and set(fists.split) == {"train"}
    # A table says the same, with what is known of each file beside.
    table = making.rows(
        tmp_path / "t.csv", {"path": str(sample / "S001R04.edf"), "subject": "1", "split": "train"}
    )
    written = prepare(plan_manifest(table, OPTIONS, FISTS), tmp_path / "out")
    assert np.array_equal(written.signals(np.arange(15)), fists.signals(np.arange(15)))
    assert set(written.subjects) == {"1"}


def test_a_model_sees_the_windows_that_prepare_writes(fists, sample):
    windows = fists.signals(np.arange(len(fists)))
    labels = np.array(fists.class_names)[fists.labels]
    model = AnchorInvClassifier(method="lda", preprocessing=fists.preprocessing).fit(windows, labels)
    ((_, cut, named),) = from_events(model, [sample / "S001R04.edf"], FISTS)
    assert named.tolist() == labels[np.argsort(fists.starts)].tolist()
    ordered = windows[np.argsort(fists.starts)]
    np.testing.assert_allclose(cut, ordered, atol=1e-5 * windows.std())
    # A longer stretch gives several windows.
    far = Labelling({"T1": "left"}, 0, 4.1)
    ((_, more, _),) = from_events(model, [sample / "S001R04.edf"], far, ReadOptions(step=0.5))
    assert len(more) == 3 * 8
    with pytest.raises(ValueError, match="no segment is as long as a window of the model, 3 s"):
        list(from_events(model, [sample / "S001R04.edf"], Labelling({"T1": "left"}, 0, 2)))
    with pytest.raises(ValueError, match=r"has no event T9.*it has T0 \(15\)"):
        list(from_events(model, [sample / "S001R04.edf"], Labelling({"T9": "left"}, 0, 3)))


def test_a_row_bounds_the_events_of_its_file(sample):
    from anchorinv.datasets.own import rows_of_events

    path = sample / "S001R04.edf"
    every, _ = rows_of_events([ManifestRow(1, "r", path)], FISTS)
    some, _ = rows_of_events([ManifestRow(1, "r", path, start=10.0, stop=60.0)], FISTS)
    inside = [row for row in every if row.start >= 10 and row.stop <= 60]
    assert [(row.start, row.label) for row in some] == [(row.start, row.label) for row in inside]
    assert 0 < len(some) < len(every)


def test_labels_in_the_table_and_from_events_are_too_many(sample, tmp_path):
    table = making.rows(tmp_path / "t.csv", {"path": str(sample / "S001R04.edf"), "label": "left"})
    with pytest.raises(ValueError, match="has a label, and --events takes labels from events"):
        plan_manifest(table, OPTIONS, FISTS)


def test_a_bids_folder(sample, tmp_path):
    pytest.importorskip("mne_bids")
    for i, run in enumerate(("S001R04", "S001R06"), start=1):
        folder = tmp_path / "bids" / f"sub-{i:02d}" / "eeg"
        folder.mkdir(parents=True)
        (folder / f"sub-{i:02d}_task-fists_eeg.edf").write_bytes((sample / f"{run}.edf").read_bytes())
    data = prepare_in_memory(plan_bids(tmp_path / "bids", OPTIONS, FISTS, task="fists"))
    assert set(data.subjects) == {"01", "02"} and len(data) == 30
    assert set(data.split) == {"train", "test"}, "divided by subject"


def test_beats_of_a_genuine_record():
    pytest.importorskip("wfdb")
    path = shared("mitdb_sample") / "100.hea"
    options = OwnOptions(at_least=1, allow=frozenset({"few", "duplicates"}))
    around = Labelling({"N": "N", "A": "A"}, -0.25, 0.45)
    with pytest.warns(UserWarning, match="2 of 2272 segments reach beyond"):
        data = prepare_in_memory(plan_recordings([path], options, around, split="train"))
    counts = {name: int((data.labels == i).sum()) for i, name in enumerate(data.class_names)}
    assert counts == {"A": 33, "N": 2237} and data.n_times == 252


def test_a_record_is_named_by_its_annotator():
    pytest.importorskip("wfdb")
    folder = shared("mitdb_sample")
    for name in ("100", "100.atr", "100.hea", "100.dat"):
        assert open_recording(folder / name).ch_names == ("MLII", "V5")
    assert len(read_events(folder / "100.atr")) == len(read_events(folder / "100")) == 2274
