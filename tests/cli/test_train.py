"""``anchorinv train``: what it makes of windows, says, and refuses."""

import json
import re

import numpy as np
import pytest
from scipy.signal import sosfilt

from anchorinv import AnchorInvClassifier
from anchorinv.datasets.dataset import Dataset
from anchorinv.signal.preprocessing import Filter
from tests.models import CHANNELS, RATE, windows

SHORT = ("--epochs", 2, "--inversion-steps", 1, "--finetune-steps", 2, "--seed", 0, "--anchors", 4)


class TestTrain:
    def test_from_npz(self, run, files):
        code, out, _ = run("train", "base.npz", "-o", "new/m", *SHORT, "--unit", "uV", "--band", 4, 40)
        assert code == 0 and "24 windows of 2 classes: left, right" in out
        model = AnchorInvClassifier.load(files / "new" / "m")
        assert model.sfreq_ == RATE and model.ch_names_ == CHANNELS and model.preprocessing.unit == "µV"
        assert (model.preprocessing.filter.low, model.preprocessing.filter.causal) == (4, True)
        assert model.method == "discriminant" and model.random_state == 0

    def test_windows_that_were_not_filtered_as_told(self, run, files):
        noise, y = np.random.default_rng(0).normal(size=(24, 2, 200)), ["left", "right"] * 12
        noise[::2] *= 3
        filtered = sosfilt(Filter(4, 20).sections(200), noise, axis=-1)
        words = ("-o", "m", "--overwrite", "--network", "never", "--band", 4, 20, "-q")
        for name, X in {"raw": noise, "filtered": filtered}.items():
            np.savez(files / f"{name}.npz", X=X, y=y, sfreq=200)
            code, _, err = run("train", f"{name}.npz", *words)
            told = "--band says that the windows were filtered to 4-20 Hz, but 6" in err
            assert code == 0 and told == (name == "raw"), err

    def test_with_anchors(self, run, files):
        code, _, _ = run("train", "base.npz", "-o", "m", *SHORT, "--method", "anchorinv-plus")
        assert code == 0
        assert len(AnchorInvClassifier.load(files / "m").state_.anchors) == 6  # as large as 8 without views

    def test_for_people_who_are_not_there(self, run, files):
        code, _, err = run("train", "base.npz", "-o", "m", *SHORT, "--new-people")
        assert code == 1 and "has no groups" in err
        X, y = windows(120)
        np.savez(files / "people.npz", X=X, y=y, sfreq=RATE, groups=np.arange(120) // 12)
        assert run("train", "people.npz", "-o", "m", *SHORT, "--new-people")[0] == 0
        assert np.isfinite(AnchorInvClassifier.load(files / "m").state_.head.centring)
        code, _, _ = run("calibrate", "m", "people.npz", "--force", "-o", "theirs")
        assert code == 0 and (files / "theirs").exists()

    def test_from_a_prepared_folder_its_training_part(self, run, files):
        X, y = windows(30, classes=("a", "b", "c"))
        split = ["train"] * 18 + ["test"] * 12
        design = {"low": 0.5, "high": 30.0, "order": 5, "causal": False}
        made = Dataset.from_arrays(X, y, sfreq=RATE, split=split, ch_names=CHANNELS, filter=design, unit="uV")
        made.write(files / "data")
        code, out, _ = run("train", "data", "-o", "m", *SHORT, "--classes", "a,c")
        assert code == 0 and "12 windows of 2 classes: a, c" in out
        assert not AnchorInvClassifier.load(files / "m").preprocessing.filter.causal
        code, out, _ = run("evaluate", "m", "data", "--json")
        scores = json.loads(out)
        assert code == 0 and scores["windows"] == 8 and scores["unknown"] == {"b": 4}
        assert "not known to the model, left out: b (4)" in run("evaluate", "m", "data")[1]

    def test_recordings_must_be_allowed(self, run, files):
        words = ("train", "base.npz", "-o", "m", *SHORT, "--method", "real-replay")
        code, _, err = run(*words)
        assert code == 1 and "--allow-recordings" in err and not (files / "m").exists()
        assert run(*words, "--allow-recordings")[0] == 0
        for refused in (
            ("predict", "m", "base.npz"),
            ("evaluate", "m", "base.npz"),
            ("forget", "m", "left", "-o", "n"),
        ):
            code, _, err = run(*refused)
            assert code == 1 and "contains recordings of people" in err
        assert run("predict", "m", "base.npz", "--allow-recordings")[0] == 0
        code, out, _ = run("info", "m")
        assert code == 0 and "IT CONTAINS REAL RECORDINGS" in out

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("shots.npy", "-o", "m"), "no labels"),
            (("none.npz", "-o", "m"), "there is no none.npz"),
            (("base.npz", "-o", "."), "is a folder"),
            (("base.npz", "-o", "base.npz/m"), "cannot be written"),
            (("base.npz", "-o", "m", "--method", "magic"), "method .* must be one of"),
            (("base.npz", "-o", "m", "--method", "anchorinvplus"), r"did you mean 'anchorinv-plus'\?"),
            (("base.npz", "-o", "m", "--classes", "left,feet"), "no class 'feet'; it has left, right"),
            (("base.npz", "-o", "m", "--unit", "parsec"), "must be one of V"),
            (("base.npz", "-o", "m", "--band", "40", "4"), "lower one first"),
        ],
    )
    def test_mistakes(self, words, message, run, files):
        code, _, err = run("train", *words)
        assert code == 1 and err.startswith("anchorinv: ") and err.count("\n") == 1
        assert re.search(message, err) and not (files / "m").exists()
