"""Own recordings: files of any format into one folder; every mistake in a table is told, all at once."""

import numpy as np
import pytest
from scipy import signal

from anchorinv.datasets.dataset import Dataset
from anchorinv.datasets.own import plan_manifest, plan_npz, read_manifest
from anchorinv.datasets.own_files import OwnOptions, is_clipped
from anchorinv.datasets.prepare import prepare
from anchorinv.errors import Problems
from anchorinv.signal.preprocessing import Filter
from tests.datasets import making
from tests.datasets.genuine import shared

NAMES = ["Fz", "Cz", "Pz"]
EASY = OwnOptions(at_least=1)


def noise(n=1000, seed=0, n_chans=3):
    return np.random.default_rng(seed).normal(size=(n_chans, n)) * 20


def table(folder, n=4, **columns):
    """Four recordings of 10 s at 100 Hz, two classes, one subject each, two for testing."""
    lines = []
    for i in range(n):
        values = noise(seed=i)
        making.table_xz(folder / f"{i}.csv", values, NAMES, 100)
        side = "test" if i >= n // 2 else "train"
        lines.append({"path": f"{i}.csv", "label": ("rest", "move")[i % 2], "subject": f"s{i}", "split": side}
                     | {key: value[i] for key, value in columns.items()})  # fmt: skip
    return making.rows(folder / "table.csv", *lines)


def problems_of(manifest, options=EASY):
    with pytest.raises((Problems, ValueError)) as error:
        plan_manifest(manifest, options)
    return str(error.value)


def test_files_are_filtered_resampled_and_cut(tmp_path):
    options = OwnOptions(
        band=Filter(1, 20, order=3), resample=50, window=2, overlap=0.5, channels=("Pz", "Fz"), at_least=2
    )
    data = prepare(plan_manifest(table(tmp_path), options), tmp_path / "out")
    assert (data.n_times, data.sfreq, data.ch_names) == (100, 50, ("Pz", "Fz"))
    assert len(data) == 4 * 9 and data.class_names == ("move", "rest")
    sections = signal.butter(3, [1, 20], "bandpass", fs=100, output="sos")
    values = np.round(noise(seed=1), 6)[[2, 0]]
    steady = signal.sosfilt_zi(sections)[:, None, :] * values[None, :, :1]
    filtered = signal.sosfilt(sections, values, axis=1, zi=steady)[0]
    wanted = signal.resample_poly(np.pad(filtered, ((0, 0), (40, 40)), "edge"), 1, 2, axis=1)[:, 20:-20]
    mine = np.flatnonzero(data.subjects == "s1")
    for k, window in enumerate(data.signals(mine)):
        np.testing.assert_allclose(window, wanted[:, 50 * k : 50 * k + 100], atol=1e-3)
    # Windows overlap, samples are there once.
    assert len(data.samples) == 4 * 500
    assert data.meta["steps"] == [
        "filtered: 1-20 Hz, Butterworth of order 3, causal", "resampled to 50 Hz",
        "windows of 2 s, 50 % overlap",
    ]  # fmt: skip
    # A model trained on this folder filters recordings in the same way.
    assert data.preprocessing.filter == Filter(1, 20, order=3) and data.preprocessing.not_live is None


def test_rows_cut_a_recording_into_trials(tmp_path):
    for i in range(2):
        making.edf(
            tmp_path / f"{i}.edf", np.random.default_rng(i).integers(-9999, 9999, (3, 1000)), NAMES, sfreq=100
        )
    lines = [
        {
            "path": f"{i}.edf",
            "label": label,
            "start": start,
            "stop": start + 1.5,
            "split": ("train", "test")[i],
        }
        for i in range(2)
        for label, start in (("left", 0.5), ("right", 4), ("left", 8.5))
    ]
    data = prepare(plan_manifest(making.rows(tmp_path / "t.csv", *lines), EASY), tmp_path / "out")
    assert data.n_times == 150 and data.starts.tolist() == [50, 400, 850, 1050, 1400, 1850]
    assert data.recordings.tolist() == ["0.edf"] * 3 + ["1.edf"] * 3
    digital = np.random.default_rng(1).integers(-9999, 9999, (3, 1000))
    np.testing.assert_allclose(data.signals([4])[0], making.edf_values(digital)[:, 400:550], atol=1e-3)
    assert data.meta["unit"] == "µV"


def test_formats_mix_when_rate_channels_and_units_agree(tmp_path):
    from tests.signal.test_readers import written

    lines = []
    for i, kind in enumerate(("edf", "bdf", "fif", "vhdr", "hea")):
        (tmp_path / kind).mkdir()
        path, _ = written(tmp_path / kind, kind)
        lines.append(
            {"path": path.relative_to(tmp_path), "label": i % 2, "split": "test" if i > 2 else "train"}
        )
    options = OwnOptions(at_least=1, allow=frozenset({"duplicates", "scale"}))
    data = prepare(plan_manifest(making.rows(tmp_path / "t.csv", *lines), options), tmp_path / "out")
    assert len(data) == 5 and data.class_names == ("0", "1") and data.n_times == 512
    assert {"hea/rec.dat", "vhdr/rec.eeg", "edf/rec.edf"} <= set(data.meta["sources"])


def test_npz_directly_and_in_a_table(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2, 50)).astype(np.float32)
    y = np.array(["up", "down"] * 20)
    subject = np.repeat([1.0, 2, 3, 4], 10)
    np.savez(tmp_path / "all.npz", X=X, y=y, sfreq=100, ch_names=["a", "b"], subject=subject)
    data = prepare(plan_npz(tmp_path / "all.npz", EASY), tmp_path / "out")
    assert np.array_equal(data.signals(np.arange(40)), X) and data.ch_names == ("a", "b")
    assert [data.class_names[i] for i in data.labels] == y.tolist()
    assert data.subjects.tolist() == [str(int(s)) for s in subject]
    assert data.meta["split"].startswith("80-20 by subject")
    sides = {s: set(data.split[data.subjects == s]) for s in set(data.subjects)}
    assert all(len(side) == 1 for side in sides.values()) and {"train", "test"} == set(data.split)
    manifest = making.rows(tmp_path / "t.csv", {"path": "all.npz", "label": ""})
    again = prepare(plan_manifest(manifest, EASY), tmp_path / "again")
    assert np.array_equal(again.samples, data.samples) and again.split.tolist() == data.split.tolist()
    halved = prepare(plan_npz(tmp_path / "all.npz", OwnOptions(at_least=1, resample=50)), tmp_path / "halved")
    np.testing.assert_allclose(
        halved.signals([7])[0],
        signal.resample_poly(np.pad(X[7], ((0, 0), (40, 40)), "edge"), 1, 2, axis=1)[:, 20:-20],
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"X": None}, "needs an array X"),
        ({"X": np.zeros((3, 4))}, r"must hold windows \(n, channels, times\), got shape \(3, 4\)"),
        ({"X": np.full((12, 2, 50), "1")}, r"X is <U1 \(12, 2, 50\); expected numbers"),
        ({"y": None}, "has no y"),
        ({"y": np.zeros(3, int)}, "12 trials but y 3 values"),
        ({"ch_names": ["a"]}, "2 channels in X and 1 names in ch_names"),
        ({"ch_names": ["a", "a"]}, "ch_names are not distinct"),
        ({"sfreq": None}, "has no sampling rate; pass it with --sfreq"),
        ({"split": ["dev"] * 12}, "split 'dev' is neither"),
    ],
)
def test_what_an_npz_lacks_is_told(tmp_path, change, told):
    rng = np.random.default_rng(0)
    whole = {
        "X": rng.normal(size=(12, 2, 50)),
        "y": np.arange(12) % 2,
        "sfreq": 100,
        "subject": np.arange(12),
    }
    np.savez(tmp_path / "a.npz", **{k: v for k, v in (whole | change).items() if v is not None})
    with pytest.raises(ValueError, match=told):
        plan_npz(tmp_path / "a.npz", EASY)


def test_an_npz_too_large_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr("anchorinv.signal.headers.MAX_VALUES", 1000)
    np.savez(tmp_path / "a.npz", X=np.zeros((12, 2, 50)), y=np.arange(12) % 2, sfreq=100)
    with pytest.raises(ValueError, match="holds 1200 values, and at most"):
        plan_npz(tmp_path / "a.npz", EASY)


def test_what_leaks_inside_an_npz_is_told(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2, 50))
    X[6:9], X[9, 0] = X[:3], 1.0
    split = ["train"] * 6 + ["test"] * 6
    columns = {"y": np.arange(12) % 2, "session": ["one"] * 12, "split": split}
    np.savez(tmp_path / "a.npz", X=X, sfreq=100, **columns)
    with pytest.raises(ValueError) as error:
        plan_npz(tmp_path / "a.npz", EASY)
    told = str(error.value)
    assert "3 trials twice, the first 0 and 6" in told and "1 trials with a flat channel" in told
    assert "session one is in train and in test" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sfreq": -5}, "one rate in Hz above 0"),
        ({"sfreq": "fast"}, "one rate in Hz above 0"),
        ({"y": [0.0, np.nan] * 6}, "y has NaN"),
        ({"ch_names": ["a", "a"]}, "not distinct"),
        ({"X": np.zeros((0, 2, 50))}, r"windows .*got shape \(0, 2, 50\)"),
    ],
)
def test_values_of_an_npz_that_mean_nothing(tmp_path, change, told):
    whole = {"X": np.random.default_rng(0).normal(size=(12, 2, 50)), "y": np.arange(12) % 2, "sfreq": 100}
    np.savez(tmp_path / "a.npz", **(whole | change))
    with pytest.raises(ValueError, match=told):
        plan_npz(tmp_path / "a.npz", EASY)


def test_an_npz_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        plan_npz(tmp_path / "a.npz", EASY)
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 but not really")
    with pytest.raises(ValueError, match=r"a\.npz is cut short or damaged"):
        plan_npz(tmp_path / "a.npz", EASY)
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"is not an \.npz file"):
        plan_npz(tmp_path / "a.npy", EASY)
    np.savez(tmp_path / "b.npz", X=np.zeros((2, 2, 50)), y=np.array([{}, {}], dtype=object), sfreq=1)
    with pytest.raises(ValueError, match=r"b\.npz: y holds Python objects; save it as numbers or text"):
        plan_npz(tmp_path / "b.npz", EASY)


def test_every_problem_of_a_table_is_told_at_once(tmp_path):
    making.table_xz(tmp_path / "good.csv", noise(), NAMES, 100)
    (tmp_path / "broken.edf").write_bytes(b"0" * 300)
    manifest = making.rows(
        tmp_path / "t.csv",
        {"path": "good.csv", "label": "a", "splitt": "train"},
        {"path": "away.csv", "label": "a"},
        {"path": "notes.docx", "label": "a"},
        {"path": "good.csv", "label": ""},
        {"path": "good.csv", "label": "a", "start": "soon"},
        {"path": "good.csv", "label": "a", "start": 5, "stop": 4},
        {"path": "good.csv", "label": "a", "start": 5, "stop": 400},
        {"path": "broken.edf", "label": "b"},
        {"path": "", "label": "b"},
    )
    told = problems_of(manifest)
    for sentence in (
        "did you mean 'split'?", "line 3: away.csv does not exist", "notes.docx has an unknown format",
        "line 5: good.csv has no label", "line 6: start must be a number of seconds, got 'soon'",
        "line 7: start must be at least 0 and before stop", "good.csv is 10 s long, 5 to 400 s asked",
        "broken.edf has a damaged header", "line 10: path is empty",
    ):  # fmt: skip
        assert sentence in told
    assert "problems" in told.splitlines()[0]


def test_recordings_that_do_not_fit_together(tmp_path):
    manifest = table(tmp_path, n=6)
    making.table_xz(tmp_path / "1.csv", noise(2000, seed=1), NAMES, 200)
    making.table_xz(tmp_path / "2.csv", noise(seed=2), ["Fz", "Cz", "Oz"], 100)
    making.table_xz(tmp_path / "3.csv", noise(seed=3) * 1e-6, NAMES, 100)
    making.table_xz(tmp_path / "4.csv", noise(900, seed=4), NAMES, 100)
    told = problems_of(manifest)
    assert "1.csv has 200 Hz; 5 others have 100 Hz; bring them to one rate with --resample" in told
    assert "2.csv has channels Fz, Cz, Oz; 5 others have channels Fz, Cz, Pz" in told
    assert "3.csv has" in told and "another unit?" in told and "--allow scale" in told
    assert "4.csv has a part of 9 s, most have 10 s" in told


def test_units_that_differ(tmp_path):
    making.table_xz(tmp_path / "0.csv", noise(), NAMES, 100)
    making.edf(tmp_path / "1.edf", (noise(seed=1) * 30).astype(int), NAMES, sfreq=100)
    making.edf(tmp_path / "2.edf", (noise(seed=2) * 30).astype(int), NAMES, sfreq=100)
    lines = [{"path": name, "label": "a"} for name in ("0.csv", "1.edf", "2.edf")]
    assert "0.csv has unit unknown; 2 others have unit µV" in problems_of(
        making.rows(tmp_path / "t.csv", *lines)
    )


def test_signals_that_are_not_sound(tmp_path):
    manifest = table(tmp_path, n=4)
    gaps, flat, clipped = noise(seed=0), noise(seed=1), noise(seed=2)
    gaps[1, 5:8] = np.nan
    flat[2] = 3
    clipped[0] = np.clip(np.cumsum(clipped[0]), -50, 50)
    for i, values in enumerate((gaps, flat, clipped)):
        making.table_xz(tmp_path / f"{i}.csv", values, NAMES, 100)
    told = problems_of(manifest)
    assert "0.csv has 3 NaN or infinite samples" in told
    assert "1.csv is flat in Pz" in told and "2.csv is clipped in Fz" in told
    allowed = OwnOptions(at_least=1, allow=frozenset({"nan", "flat", "clipped", "few"}))
    data = prepare(plan_manifest(manifest, allowed), tmp_path / "out")
    assert np.isfinite(data.samples).all() and data.meta["counts"] == {"missing samples": 3}
    assert len(data.meta["accepted"]) == 4
    assert "0.csv" not in data.recordings, "its one window has missing samples"


def test_sides_that_share_what_they_should_not(tmp_path):
    told = problems_of(table(tmp_path, n=4, subject=["a", "b", "a", "c"]))
    assert "subject a is in train and in test" in told and "--allow shared-subjects" in told
    lines = [
        {"path": "0.csv", "label": label, "start": start, "stop": start + 1, "split": side}
        for start, label, side in ((0, "a", "train"), (1, "b", "train"), (2, "a", "test"), (3, "b", "test"))
    ]
    told = problems_of(making.rows(tmp_path / "parts.csv", *lines))
    assert "0.csv has parts in train and in test" in told
    lenient = OwnOptions(at_least=1, allow=frozenset({"shared-recordings"}))
    assert len(plan_manifest(tmp_path / "parts.csv", lenient).sources) == 1


def test_duplicates(tmp_path):
    manifest = table(tmp_path, n=4)
    (tmp_path / "3.csv").write_bytes((tmp_path / "1.csv").read_bytes())
    assert "3.csv is the same recording as 1.csv; list it once" in problems_of(manifest)
    lines = [{"path": "0.csv", "label": "a", "start": s, "stop": s + 2} for s in (0, 1)]
    assert "0.csv is listed twice around 1 s" in problems_of(making.rows(tmp_path / "twice.csv", *lines))


def test_classes_with_too_few_samples(tmp_path):
    told = problems_of(table(tmp_path), OwnOptions())
    assert "class 'move' has 1 training samples, 10 needed" in told
    told = problems_of(table(tmp_path, label=["a", "b", "a", "a"]))
    assert "class 'b' has no test samples" in told


def test_without_a_split_recordings_are_divided_by_subject_then_session_then_file(tmp_path):
    blank = {"split": [""] * 8, "label": ["a", "b"] * 4}
    by_subject = plan_manifest(table(tmp_path, n=8, subject=list("wwxxyyzz"), **blank), EASY)
    assert by_subject.meta["split"] == "80-20 by subject, first fold"
    sessions = {"subject": ["w"] * 8, "session": list("11223344")}
    by_session = plan_manifest(table(tmp_path, n=8, **sessions, **blank), EASY)
    assert by_session.meta["split"].startswith("80-20 by session")
    by_file = plan_manifest(table(tmp_path, n=8, subject=[""] * 8, **blank), OwnOptions(at_least=1, seed=3))
    assert by_file.meta["split"] == "80-20 by file, seed 3"
    lines = [{"path": "0.csv", "label": label, "start": i, "stop": i + 1} for i, label in enumerate("abab")]
    one = making.rows(tmp_path / "one.csv", *lines)
    told = problems_of(one)
    assert (
        "0.csv is the only recording, and its trials would be in train and in test; add another (or" in told
    )
    shared = OwnOptions(at_least=1, allow=frozenset({"shared-recordings", "duplicates"}))
    by_trial = plan_manifest(one, shared)
    assert by_trial.meta["split"] == "80-20 by trial, first fold" and len(by_trial.meta["accepted"]) == 1
    whole = [{"path": "0.csv", "label": label, "start": 0, "stop": 2} for label in "abab"]
    assert "(subjects, sessions, files or trials), got 1" in problems_of(
        making.rows(tmp_path / "whole.csv", *whole), shared
    )
    pairs = [
        {"path": "0.csv", "label": label, "start": i, "stop": i + 1}
        for i, label in ((0, "a"), (0.5, "b"), (2, "a"), (2.5, "b"))
    ]
    data = prepare(plan_manifest(making.rows(tmp_path / "pairs.csv", *pairs), shared), tmp_path / "pairs")
    sides = dict(zip((data.starts / data.sfreq).tolist(), data.split.tolist(), strict=True))
    assert sides[0.0] == sides[0.5] != sides[2.0] == sides[2.5], "trials that share samples stay together"
    halves = [{"path": f"{i}.csv", "label": "a", "split": side} for i, side in enumerate(("train", ""))]
    assert "give it in all or none" in problems_of(making.rows(tmp_path / "halves.csv", *halves))


def test_tables_in_other_dialects(tmp_path):
    making.table_xz(tmp_path / "0.csv", noise(), NAMES, 100)
    (tmp_path / "t.csv").write_text("\ufeffPath;Label;Age\n0.csv;a;7\n;;\n", encoding="utf-8")
    entries, problems = read_manifest(tmp_path / "t.csv")
    assert [(entry.name, entry.label) for entry in entries] == [("0.csv", "a")] and not problems


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "does not exist"), (b"", "has no column path, label"), (b"path,label\n", "has no rows"),
     (b"\xff\xfe\x00p", "not UTF-8 text")],
)  # fmt: skip
def test_a_table_that_is_none(tmp_path, content, told):
    if content is not None:
        (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=told):
        plan_manifest(tmp_path / "t.csv", EASY)


def test_unknown_kinds_of_problems_cannot_be_allowed(tmp_path):
    with pytest.raises(ValueError, match="--allow takes nan, flat"):
        plan_manifest(table(tmp_path), OwnOptions(allow=frozenset({"everything"})))


def test_clipping_is_told_from_coarse_steps():
    rng = np.random.default_rng(0)
    wave = 100 * np.sin(np.arange(3000) / 40) + rng.normal(size=3000)
    assert not is_clipped(wave) and is_clipped(np.minimum(wave, 80))
    assert not is_clipped(np.round(wave / 20))
    assert not is_clipped(rng.normal(size=2))


def test_epochs_become_a_data_set(tmp_path):
    import mne

    values = noise(600, n_chans=3).reshape(3, 6, 100).transpose(1, 0, 2)
    info = mne.create_info(["C3", "C4", "STI"], 100.0, ["eeg", "eeg", "stim"])
    events = np.column_stack([np.arange(6) * 100, np.zeros(6, int), [1, 2, 1, 2, 1, 2]])
    epochs = mne.EpochsArray(values * 1e-6, info, events, event_id={"right": 2, "left": 1}, verbose="ERROR")
    data = Dataset.from_epochs(epochs)
    np.testing.assert_allclose(data.signals(np.arange(6)), values[:, :2], rtol=1e-5)
    assert data.class_names == ("left", "right") and data.labels.tolist() == [0, 1] * 3
    assert data.ch_names == ("C3", "C4") and data.sfreq == 100 and set(data.split) == {"train"}
    sides = ["train", "test"] * 3
    data = Dataset.from_epochs(epochs, split=sides, subjects=list("aabbcc"))
    data.write(tmp_path / "out")
    assert Dataset.open(tmp_path / "out").split.tolist() == sides
    with pytest.raises(ValueError, match="NaN"):
        Dataset.from_epochs(mne.EpochsArray(values * np.nan, info, events, verbose="ERROR"))


def test_genuine_trials_through_npz(tmp_path):
    with np.load(shared("emg_longterm.npz")) as file:
        few = (file["subject"] == file["subject"][0]) & (file["day"] % 10 == 1)
        day = file["day"][few]
        np.savez(
            tmp_path / "emg.npz",
            X=file["X"][few], y=file["y"][few], sfreq=file["sfreq"], session=day,
            split=np.where(day > 20, "test", "train"),
        )  # fmt: skip
    plan = plan_npz(tmp_path / "emg.npz", OwnOptions(at_least=8, allow=frozenset({"clipped"})))
    data = prepare(plan, tmp_path / "out")
    assert data.n_chans == 8 and data.n_times == 300 and len(data.class_names) == 22
    assert data.class_names[:3] == ("0", "1", "2")
