"""``anchorinv prepare moabb``: MOABB's trials and labels, our signals, and no leak between train and test."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("moabb", reason="the extra moabb is not installed")

from moabb.datasets.base import BaseDataset
from moabb.datasets.utils import dataset_dict

from anchorinv.datasets.dataset import Dataset
from anchorinv.datasets.moabb_sets import _paradigm, find_set, plan_moabb
from anchorinv.datasets.paper_sets import plan_bci2a
from anchorinv.datasets.prepare import prepare_in_memory
from anchorinv.signal.preprocessing import Filter
from anchorinv.study.loading import load, open_data
from tests.datasets import making
from tests.moabb_fakes import CLASSES, TinyImagery

EVENTS = {"imagery": CLASSES, "p300": ("Target", "NonTarget"), "ssvep": ("13", "15"), "cvep": ("1.0", "0.0")}


class ByRun(TinyImagery):
    """As PhysionetMI: one session, and runs that have some of the classes each."""

    def _generate_events(self, n_events, duration):
        events = super()._generate_events(n_events, duration)
        self.made = getattr(self, "made", -1) + 1
        events[:, 2] = 1 + np.arange(n_events) % 2 if self.made // 2 % 2 else 3
        return events


class Failing(TinyImagery):
    """A server that fails for the second person, until it is up again."""

    up = False

    def _get_single_subject_data(self, subject):
        type(self).asked.append(subject)
        if subject == 2 and not self.up:
            raise ConnectionError("no route\nto host")
        return super()._get_single_subject_data(subject)


@pytest.fixture(autouse=True)
def _registered(monkeypatch, tmp_path):
    """Fakes by name, as MOABB knows its data sets; what MNE keeps of a user is not that of the tester."""
    Failing.asked, Failing.up = [], False
    for kind in (TinyImagery, Failing, ByRun):
        monkeypatch.setitem(dataset_dict, kind.__name__, kind)
    for name in ("HOME", "_MNE_FAKE_HOME_DIR", "MNE_DATA"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.mark.parametrize("paradigm", EVENTS)
def test_trials_and_signals_are_those_of_moabbs_paradigm(paradigm):
    dataset = TinyImagery(EVENTS[paradigm], paradigm=paradigm, n_subjects=1, duration=30, n_events=8)
    found = prepare_in_memory(plan_moabb(dataset, causal=False))
    X, y, about = _paradigm(dataset, None, None).get_data(dataset)
    assert [found.class_names[label] for label in found.labels] == y.tolist()
    assert found.sessions.tolist() == about["session"].tolist()
    assert found.recordings.tolist() == [f"1_{row.session}_{row.run}" for row in about.itertuples()]
    ours = found.signals(np.arange(len(found)))
    # One sample less: MOABB's windows have both ends. The middle: filters begin and end in their own ways.
    for run in range(4):
        middle = slice(8 * run + 3, 8 * run + 5)
        np.testing.assert_allclose(ours[middle], X[middle, :, :-1], atol=1e-3 * X.std())


def test_the_competitions_files_give_what_prepare_bci2a_gives(tmp_path, monkeypatch):
    monkeypatch.setattr(BaseDataset, "_prefetch_nemar_sourcedata", lambda *_: None)  # asks a server first
    rng = np.random.default_rng(0)
    raw = tmp_path / "MNE-bnci-data/~bci/database/001-2014"
    for session in "TE":
        trials = {"trial": np.arange(8) * 1600 + 101, "y": rng.permutation([1, 2, 3, 4] * 2)}
        eyes = {"X": rng.normal(size=(500, 25)), "trial": [], "y": []}
        making.bnci(raw / f"A01{session}.mat", [eyes, {"X": rng.normal(size=(13_000, 25)), **trials}])
    theirs = prepare_in_memory(plan_moabb("bnci2014-001", subjects="1", band=None))
    ours = prepare_in_memory(plan_bci2a(raw, allow_missing=True))
    every = np.arange(16)
    np.testing.assert_array_equal(theirs.signals(every), ours.signals(every))
    assert theirs.ch_names == ours.ch_names and theirs.class_names == (
        "left_hand",
        "right_hand",
        "feet",
        "tongue",
    )
    assert (theirs.labels == ours.labels).all() and (theirs.split == ours.split).all()
    study = load("bnci2014-001").variants[""]
    filtered = prepare_in_memory(plan_moabb("BNCI2014_001", subjects="1"))
    assert (
        open_data(study, {"bnci2014-001": filtered}).n_times == 1000
    )  # what the study asks for, as it comes
    with pytest.raises(ValueError, match="prepare it accordingly"):
        open_data(study, {"bnci2014-001": theirs})
    assert theirs.meta["licence"] == "CC-BY-ND-4.0" and theirs.preprocessing.not_live is None


class TestSplit:
    def test_last_session_by_default(self):
        found = prepare_in_memory(plan_moabb(TinyImagery()))
        assert set(zip(found.sessions, found.split, strict=True)) == {("0", "train"), ("1", "test")}

    def test_runs_until_both_sides_have_every_class(self):
        found = prepare_in_memory(plan_moabb(ByRun(n_sessions=1, n_runs=4, n_subjects=1)))
        assert found.meta["split"].startswith("the last runs of each person")
        sides = {(name[-1], side) for name, side in zip(found.recordings, found.split, strict=True)}
        assert sides == {("0", "train"), ("1", "train"), ("2", "test"), ("3", "test")}

    def test_people_where_there_is_one_run(self):
        found = prepare_in_memory(plan_moabb(TinyImagery(n_subjects=5, n_sessions=1, n_runs=1, n_events=6)))
        assert set(found.subjects[found.split == "test"]) == {"4", "5"}
        assert not set(found.subjects[found.split == "train"]) & {"4", "5"}

    def test_one_run_of_one_person_is_refused(self):
        with pytest.raises(ValueError, match="one run cannot be split; add people with --subjects"):
            plan_moabb(TinyImagery(n_subjects=1, n_sessions=1, n_runs=1))
        with pytest.raises(ValueError, match="cannot be split by subject"):
            plan_moabb(TinyImagery(), subjects="2", split="subject")

    def test_a_person_who_cannot_be_split_trains(self):
        dataset = TinyImagery(n_sessions=1)
        whole = dataset._get_single_subject_data
        dataset._get_single_subject_data = lambda subject: (
            whole(1) if subject == 1 else {"0": {"0": whole(2)["0"]["0"]}}
        )
        found = prepare_in_memory(plan_moabb(dataset))
        assert set(found.split[found.subjects == "2"]) == {"train"}
        assert found.meta["notes"] == [
            "subject 2 cannot be split by run with all classes in both parts; used for training only"
        ]


def test_options(tmp_path):
    plan = plan_moabb(
        TinyImagery(), subjects="2", band=Filter(4, 30), resample=64, channels=(("C4", "C3"), {}), start=0.5,
        stop=1.5, reference="average",
    )  # fmt: skip
    found = prepare_in_memory(plan)
    assert (found.ch_names, found.sfreq, found.n_times, set(found.subjects)) == (("C4", "C3"), 64, 64, {"2"})
    assert found.meta["steps"][-1] == "0.5 to 1.5 s from each event"
    assert np.abs(found.signals([0]).sum(axis=1)).max() < 1e-4


def test_trials_with_missing_samples_are_left_out():
    dataset = TinyImagery(n_subjects=1)
    whole = dataset._get_single_subject_data

    def gappy(subject):
        found = whole(subject)
        found["0"]["0"]._data[1, 10:20] = np.nan  # in the first trial
        return found

    dataset._get_single_subject_data = gappy
    found = prepare_in_memory(plan_moabb(dataset))
    assert len(found) == 4 * 12 - 1
    assert found.meta["counts"]["missing samples"] == 10 and np.isfinite(found.samples).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subjects": "1,9"}, "TinyImagery has no subject 9; it has 1, 2, and --subjects takes 1,2 or 1-3"),
        ({"split": "trial"}, "--split is one of session, run, subject, got 'trial'"),
        ({"start": 2.0, "stop": 1.0}, "a window from 2 to 1 s after the event is empty"),
        ({"channels": (("C3", "Oz"), {})}, "lacks 1 of 2 channels: Oz"),
        ({"band": Filter(8, 80)}, "a filter to 80 Hz is above the Nyquist frequency of a rate of 128 Hz"),
    ],
)
def test_what_cannot_be_is_said(options, sentence):
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        prepare_in_memory(plan_moabb("TinyImagery", **options))


class TestCommand:
    def test_folder_and_study(self, run):
        code, out, _ = run("prepare", "moabb", "TinyImagery", "--out", "fake", "--to", "1")
        assert code == 0 and "filtered: 8-32 Hz, Butterworth of order 4, causal" in out
        assert "read by MOABB" in out
        study = {
            "base_classes": list(CLASSES[:2]),
            "sessions": ["feet"],
            "shots": 4,
            "trials": 2,
            "seeds": [1],
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in study.items()]
        text = "\n".join(['methods = ["lda"]', "[data]", 'name = "fake"', "[protocol]", *lines])
        Path("mine.toml").write_text(text, encoding="utf-8")
        code, out, err = run("run", "mine.toml", "--data", "fake", "--out", "r")
        assert code == 0, err
        code, out, _ = run("status", "r", "--results")
        assert code == 0 and "LDA" in out

    def test_names(self, run):
        code, _, err = run("prepare", "moabb", "BNCI2014_0001", "--out", "x")
        assert code == 1 and "did you mean BNCI2014_001" in err and "--list shows all" in err
        code, out, _ = run("prepare", "moabb", "--list")
        assert code == 0 and "BNCI2014_001" in out and "TinyImagery" in out
        assert run("prepare", "moabb", "TinyImagery")[0] == 2
        assert type(find_set("tiny-imagery")) is TinyImagery

    def test_a_download_that_fails_is_a_sentence_and_goes_on_later(self, run, tmp_path):
        code, _, err = run("prepare", "moabb", "Failing", "--out", "fake", "--split", "session")
        assert code == 1 and Failing.asked == [1, 2]
        assert "MOABB could not provide subject 2 of Failing: no route to host; if it was the network" in err
        assert "Traceback" not in err and not (tmp_path / "fake").exists()
        Failing.up = True
        assert run("prepare", "moabb", "Failing", "--out", "fake", "--split", "session")[0] == 0
        again = Dataset.open(tmp_path / "fake")
        whole = prepare_in_memory(plan_moabb(TinyImagery()))
        np.testing.assert_array_equal(again.samples, whole.samples)

    def test_without_moabb(self, run, monkeypatch):
        monkeypatch.setitem(sys.modules, "moabb", None)
        code, _, err = run("prepare", "moabb", "TinyImagery", "--out", "fake")
        assert code == 1 and "pip install 'anchorinv[moabb]'" in err
