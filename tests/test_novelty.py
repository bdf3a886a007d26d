"""Unknown classes from the outside: p-values, rejection and sets of classes, in memory, live and on disk."""

import csv
import json
import math
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from anchorinv import AnchorInvClassifier, Smoothing, StreamingPredictor, settings
from anchorinv.persistence.bundle import read_facts
from anchorinv.persistence.manifest import manifest, manifest_lines
from tests.models import CHANNELS, RATE, SMALL, again, fitted, windows

NAMES = ("left", "right", "up")  # each loud on another channel; "feet" on the one that is left
NOT_MEASURED = r"has no novelty scores.*train it again with method='discriminant' and at least 6 windows"
GOLDEN = Path(__file__).parent / "golden"
# Silence and windows in another unit are told of, too.
FAR = pytest.mark.filterwarnings("ignore:.*(spread|flat|spectr|correlat).*")


@lru_cache
def base(numbers=False, **changes):
    """A model of three classes, called by text or by numbers. Shared: tests that change it take `again`."""
    X, y = windows(240, classes=NAMES)
    y = np.searchsorted(NAMES, y) if numbers else y
    return AnchorInvClassifier(random_state=0, sfreq=RATE, **changes).fit(X, y)


@lru_cache
def taught():
    return again(base()).partial_fit(*windows(10, classes=("feet",), seed=1))


def fresh(n=60, *, classes=NAMES, seed=5):
    return windows(n, classes=classes, seed=seed)[0]


def odd():
    """What is no such signal at all, each kind of it twice as often as needed."""
    noise = np.random.default_rng(0).normal(size=(8, 4, 64))
    off = fresh(8) * np.array([0.0, 1, 1, 1])[:, None]
    return {"noise": noise, "silence": np.zeros((8, 4, 64)), "loud": 1e3 * fresh(8), "off": off}


class TestPValues:
    @pytest.mark.parametrize("reject", [0.05, 0.2])
    def test_known_windows_are_rejected_about_as_often_as_asked(self, reject):
        """Windows of the same kind as those of training, which were 240."""
        p = base().novelty(fresh(900))
        assert p.shape == (900,) and ((p > 0) & (p <= 1)).all()
        model = again(base()).set_params(reject=reject)
        rejected = model.predict(fresh(900)) == "unknown"
        assert np.array_equal(rejected, p <= reject)
        assert abs(rejected.mean() - reject) < 3 * math.sqrt(reject * (1 - reject) * (1 / 900 + 1 / 240))

    def test_p_values_of_known_windows_are_spread_evenly(self):
        p = np.sort(base().novelty(fresh(900)))
        assert np.abs(p - (np.arange(900) + 0.5) / 900).max() < 0.16  # Kolmogorov and Smirnov's distance

    @FAR
    @pytest.mark.parametrize("kind", odd())
    @pytest.mark.parametrize("model", [base, taught])
    def test_what_is_no_such_signal_is_rejected(self, model, kind):
        assert (model().novelty(odd()[kind]) <= 0.05).all() and (model().novelty(odd()[kind]) > 0).all()

    def test_another_class_is_rejected_until_it_is_taught(self):
        feet = fresh(40, classes=("feet",))
        assert (base().novelty(feet) <= 0.05).mean() > 0.9
        assert (taught().novelty(feet) <= 0.05).mean() < 0.2
        assert (taught().predict(feet) == "feet").mean() > 0.9

    def test_taught_classes_are_judged_by_classes_that_were_taught(self):
        """With a table by which everything is unusual, windows near a taught class are; others stay."""
        model, feet = again(taught()), fresh(20, classes=("feet",))
        table = model.state_.confidence.taught
        strict = replace(model.state_.confidence, taught=replace(table, values=table.values - 100))
        before = model.novelty(np.concatenate([feet, fresh()]))
        model.state_ = replace(model.state_, confidence=strict)
        after = model.novelty(np.concatenate([feet, fresh()]))
        assert (after[:20] < 0.05).all() and (before[:20] > 0.05).mean() > 0.8
        assert np.array_equal(after[20:], before[20:])

    def test_all_that_is_not_rejected_is_predicted_as_ever(self):
        model = again(base()).set_params(reject=0.3)
        labels, before = model.predict(fresh()), base().predict(fresh())
        assert 0 < (labels == "unknown").mean() < 0.6
        assert np.array_equal(labels[labels != "unknown"], before[labels != "unknown"])
        assert np.array_equal(model.predict_proba(fresh()), base().predict_proba(fresh()))

    @pytest.mark.parametrize("ask", [AnchorInvClassifier().novelty, AnchorInvClassifier().predict_set])
    def test_before_fit(self, ask):
        with pytest.raises(NotFittedError, match="call fit"):
            ask(fresh())


class TestSets:
    @staticmethod
    def hard():
        X, y = windows(900, classes=NAMES, seed=5)
        return X + 1.2 * np.random.default_rng(1).normal(size=X.shape), y

    @classmethod
    @lru_cache
    def unsure(cls):
        X, y = cls.hard()
        return AnchorInvClassifier(random_state=0).fit(X[:300], y[:300])

    @pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
    def test_they_hold_the_right_class_about_as_often_as_asked(self, coverage):
        noisy, y = self.hard()
        sets = self.unsure().predict_set(noisy[300:], coverage=coverage)
        right = sets[np.arange(600), np.searchsorted(NAMES, y[300:])]
        assert right.mean() > coverage - 3 * math.sqrt(coverage * (1 - coverage) * (1 / 600 + 1 / 300))

    @pytest.mark.parametrize("model", [base, taught])
    def test_they_are_nested_and_hold_the_predicted_class(self, model):
        X = np.concatenate([fresh(), np.random.default_rng(0).normal(size=(20, 4, 64))])
        sets = [model().predict_set(X, coverage=share) for share in (0.01, 0.5, 0.9, 0.999)]
        columns = np.searchsorted(model().classes_, model().predict(X))
        assert all((a <= b).all() for a, b in pairwise(sets))
        assert sets[0][np.arange(len(X)), columns].all() and sets[0].dtype == bool
        assert sets[0].shape == (len(X), len(model().classes_))

    def test_columns_follow_the_classes_after_a_lesson(self):
        """The class that was learned last comes first by its name."""
        sets = taught().predict_set(fresh(30, classes=("feet",)), coverage=0.5)
        assert taught().classes_[0] == "feet" and sets[:, 0].mean() > 0.9 > 0.2 > sets[:, 1:].mean()

    @pytest.mark.parametrize("coverage", [0, 1, 1.5, -0.1, float("nan"), "most", None, True])
    def test_a_coverage_that_is_none(self, coverage):
        with pytest.raises(ValueError, match=r"coverage \(=.*must be a share between 0 and 1"):
            base().predict_set(fresh(3), coverage=coverage)


class TestLabels:
    def test_whole_numbers_have_minus_one(self):
        noise = odd()["noise"]
        labels = again(base(numbers=True)).set_params(reject=0.05).predict(np.concatenate([noise, fresh(3)]))
        assert labels.dtype.kind == "i" and labels.tolist()[:8] == [-1] * 8 and labels.max() > 0
        other = again(base(numbers=True)).set_params(reject=0.05, reject_label=99)
        assert other.predict(noise).tolist() == [99] * 8 and other.reject_label_ == 99

    def test_text_of_any_length(self):
        model = again(base()).set_params(reject=0.05, reject_label="nothing of what I know")
        assert model.predict(odd()["noise"]).tolist() == ["nothing of what I know"] * 8

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"reject_label": "left"}, r"'left' is a class, so .*; set another reject_label"),
            ({"reject_label": 7}, r"reject_label \(=7\) must be text, as the classes are"),
            ({"reject": 0}, r"reject \(=0\) must be a share between 0 and 1"),
            ({"reject": 1.0}, r"reject \(=1.0\) must be a share"),
            ({"reject": "often"}, r"reject \(='often'\) must be a share"),
            ({"reject": float("nan")}, r"reject \(=nan\) must be a share"),
            ({"reject_label": 0.5}, r"reject_label \(=0.5\) must be text, a whole number or None"),
            ({"reject_label": True}, r"reject_label \(=True\) must be text, a whole number or None"),
        ],
    )
    def test_settings_that_cannot_be_are_refused_before_anything_is_learned(self, change, words):
        model = AnchorInvClassifier(**{"reject": 0.05, **change})
        with pytest.raises(ValueError, match=words):
            model.fit(*windows())
        assert not hasattr(model, "state_")

    def test_booleans_leave_no_label(self):
        X, y = windows(60)
        model = AnchorInvClassifier(random_state=0, reject=0.05)
        with pytest.raises(ValueError, match=r"booleans leave no label.*or call novelty\(\)"):
            model.fit(X, y == "left")
        model.set_params(reject=None).fit(X, y == "left")
        assert model.novelty(X).shape == (60,)
        with pytest.raises(ValueError, match="leave no label"):
            model.set_params(reject=0.05).predict(X)

    def test_a_taught_class_may_not_have_that_name(self):
        model = again(base()).set_params(reject=0.05)
        shots = fresh(5, classes=("feet",))
        with pytest.raises(
            ValueError, match="'unknown' is a class, so it cannot be the label of rejected windows"
        ):
            model.partial_fit(shots, ["unknown"] * 5)
        assert model.classes_.tolist() == list(NAMES)
        again(base()).partial_fit(shots, ["unknown"] * 5)  # as nothing is rejected


class TestLater:
    def test_more_shots_and_forgetting_keep_it_working(self):
        X = fresh(200)
        model = again(taught()).set_params(reject=0.05)
        model.add_shots(*windows(5, classes=("feet",), seed=8))
        assert (model.novelty(X) <= 0.05).mean() < 0.15
        model.forget_class("feet")
        assert np.array_equal(model.novelty(X), base().novelty(X))
        model.forget_class("up")
        up, others = fresh(30, classes=("up",)), fresh(60, classes=("left", "right"))
        assert (model.novelty(up) <= 0.05).mean() > 0.9 and (model.novelty(others) <= 0.05).mean() < 0.25
        assert model.predict_set(others).shape == (60, 2)
        assert (model.predict(up) == "unknown").mean() > 0.9

    @pytest.mark.parametrize("model", [base, taught])
    def test_a_file_says_the_same_bits(self, model, tmp_path):
        path = tmp_path / "m.anchorinv"
        mine = again(model()).set_params(reject=0.07, reject_label="no idea")
        mine.save(path)
        other, X = AnchorInvClassifier.load(path), np.concatenate([fresh(), *odd().values()])
        with pytest.warns(UserWarning):
            assert np.array_equal(other.novelty(X), mine.novelty(X))
            assert np.array_equal(other.predict(X), mine.predict(X)) and "no idea" in other.predict(X)
            assert np.array_equal(other.predict_set(X), mine.predict_set(X))
            assert np.array_equal(other.predict_proba(X), mine.predict_proba(X))

    @pytest.mark.parametrize("name", ["format1.anchorinv", "heads/discriminant.anchorinv"])
    def test_a_file_of_a_former_version_predicts_and_says_what_to_do(self, name):
        model = AnchorInvClassifier.load(GOLDEN / name)
        X = np.random.default_rng(0).normal(size=(6, model.n_chans_, model.n_times_))
        labels = model.predict(X)
        for ask in (model.novelty, model.predict_set, again(model).set_params(reject=0.05).predict):
            with pytest.raises(ValueError, match=NOT_MEASURED) as told:
                ask(X)
            assert "\n" not in str(told.value)
        assert model.reject is None and np.array_equal(model.predict(X), labels)

    def test_settings_are_scikit_learns(self):
        model = AnchorInvClassifier(reject=0.1, reject_label="?")
        assert clone(model).get_params() == model.get_params()
        known = again(base()).set_params(reject=0.05)
        assert "unknown" in known.predict(odd()["noise"])
        assert "unknown" not in known.set_params(reject=None).predict(odd()["noise"])
        assert not hasattr(clone(known.set_params(reject=0.5)), "state_") and clone(known).reject == 0.5


class TestMethods:
    @pytest.fixture
    def short(self, monkeypatch):
        monkeypatch.setattr(settings, "STEPS", range(10, 61))

    def test_a_network_by_the_windows_that_it_held_out(self, short, tmp_path):
        model = AnchorInvClassifier(
            geometry=SMALL, method="anchorinv", inversion_steps=2, n_anchors=3, reject=0.05, random_state=0
        ).fit(*windows(240))
        X = fresh(40, classes=("left", "right"))
        p = model.novelty(X)
        assert ((p > 0) & (p <= 1)).all() and (p > 0.05).mean() > 0.5 and len(set(p)) > 10
        model.partial_fit(*windows(10, classes=("tongue",), seed=1))
        assert set(model.predict(X)) <= {"left", "right", "tongue", "unknown"}
        assert model.predict_set(X).shape == (40, 3)
        model.save(tmp_path / "m")
        assert np.array_equal(AnchorInvClassifier.load(tmp_path / "m").novelty(X), model.novelty(X))

    def test_a_network_that_held_out_none_says_so(self):
        model = fitted()
        with pytest.raises(ValueError, match=NOT_MEASURED):
            model.novelty(fresh(3))

    @pytest.mark.parametrize(
        "change",
        [
            {"method": "anchorinv", "geometry": SMALL, "epochs": 10**5},
            {"method": "mdm"},
            {"n_each": 5},
        ],
    )
    def test_who_wants_to_reject_is_told_before_there_is_a_model(self, change):
        """Before a network is trained, too: a hundred thousand epochs would take a while."""
        n_each = change.pop("n_each", 12)
        model = AnchorInvClassifier(**change, reject=0.05, random_state=0)
        with pytest.raises(ValueError, match=NOT_MEASURED):
            model.fit(*windows(2 * n_each))
        assert not hasattr(model, "state_")

    def test_the_textbooks_discriminant_rehearses_nothing(self):
        model = AnchorInvClassifier(method="lda", random_state=0).fit(*windows(60))
        with pytest.raises(ValueError, match=NOT_MEASURED):
            model.novelty(fresh(3))


class TestStreams:
    @pytest.fixture
    def signal(self):
        """Ten windows of left, five of loud noise, ten of right; of one of them samples are missing."""
        noise = np.random.default_rng(0).normal(size=(5, 4, 64), scale=4)
        parts = [fresh(10, classes=("left",)), noise, fresh(10, classes=("right",))]
        signal = np.concatenate([w for part in parts for w in part], axis=1)
        signal[0, 64 * 20 + 3] = np.nan
        return signal

    def fed(self, model, signal, **options):
        live = StreamingPredictor(model, step=64, **options)
        return [p for chunk in np.array_split(signal, 17, axis=1) for p in live.feed(chunk)]

    def test_each_window_as_predict_has_it(self, signal):
        model = again(base()).set_params(reject=0.01)
        predictions = self.fed(model, signal)
        whole = np.delete(np.stack(np.split(signal, 25, axis=1)), 20, axis=0)
        gap = predictions.pop(20)
        assert gap.label is gap.novelty is gap.raw_label is None
        assert [p.label for p in predictions] == model.predict(whole).tolist()
        np.testing.assert_allclose([p.novelty for p in predictions], model.novelty(whole), rtol=1e-3)
        assert [p.label for p in predictions[10:15]] == ["unknown"] * 5

    def test_without_rejection_there_are_p_values_where_the_model_can_tell(self, signal):
        predictions = self.fed(base(), signal)
        assert all(p.novelty <= 0.05 and p.label != "unknown" for p in predictions[10:15])
        assert {p.novelty for p in self.fed(fitted(), signal)} == {None}
        with pytest.raises(ValueError, match=NOT_MEASURED):
            self.fed(again(fitted()).set_params(reject=0.05), signal)

    @pytest.mark.parametrize(("numbers", "label"), [(False, "unknown"), (True, -1)])
    @pytest.mark.parametrize("late", [False, True])
    def test_steadied_streams_reject(self, signal, numbers, label, late):
        """With a dwell of one window: each change comes a window later, that to unknown and back as well."""
        model = again(base(numbers=numbers)).set_params(reject=None if late else 0.001)
        live = StreamingPredictor(model, step=64, steady=Smoothing(dwell=64 / RATE))
        model.set_params(reject=0.001)  # also where it was asked for after the stream began
        predictions = live.feed(signal)
        raw, steady = ([getattr(p, name) for p in predictions] for name in ("raw_label", "label"))
        left, right = (0, 1) if numbers else ("left", "right")
        assert raw[10:15] == [label] * 5 and raw.count(label) == 5
        assert steady[:20] == [left] * 11 + [label] * 5 + [right] * 4
        assert steady[20] is None and steady[22:] == [right] * 3

    def test_a_single_rejected_window_is_bridged(self, signal):
        model = again(base()).set_params(reject=0.001)
        signal = np.delete(signal, slice(64 * 11, 64 * 15), axis=1)
        predictions = self.fed(model, signal, steady=Smoothing(time_constant=1.0, hysteresis=0.2))
        assert predictions[10].raw_label == "unknown" and predictions[10].label == "left"
        assert predictions[10].novelty <= 0.001


class TestCommands:
    @pytest.fixture
    def place(self, tmp_path):
        about = {"sfreq": RATE, "ch_names": CHANNELS}
        X, y = windows(240, classes=NAMES)
        np.savez(tmp_path / "base.npz", X=X, y=y, **about)
        X, y = windows(120, classes=(*NAMES, "feet"), seed=5)
        np.savez(tmp_path / "test.npz", X=X, y=y, **about)
        np.save(tmp_path / "noise.npy", odd()["noise"])
        base().save(tmp_path / "m.anchorinv")
        return tmp_path

    def rows(self, shown):
        return list(csv.DictReader(shown.splitlines()))

    def test_predict_has_a_column_and_rejects(self, place, run):
        for options, labels in (([], set(NAMES)), (["--reject", 0.05], {*NAMES, "unknown"})):
            code, out, _ = run("predict", "m.anchorinv", "test.npz", *options)
            rows = self.rows(out)
            assert code == 0 and list(rows[0])[-1] == "novelty" and {row["class"] for row in rows} == labels
            p = base().novelty(np.load("test.npz")["X"])
            np.testing.assert_allclose([float(row["novelty"]) for row in rows], p, rtol=1e-3)
        assert all((row["class"] == "unknown") == (float(row["novelty"]) <= 0.05) for row in rows)
        code, out, _ = run("predict", "m.anchorinv", "noise.npy", "--reject", 0.05)
        assert code == 0 and {row["class"] for row in self.rows(out)} == {"unknown"}

    @pytest.mark.parametrize("share", [0, 1, -0.1, 5, "nan"])
    def test_a_share_that_is_none(self, place, run, share):
        for words in (["predict", "m.anchorinv", "test.npz"], ["train", "base.npz", "-o", "new"]):
            code, out, told = run(*words, "--reject", share)
            assert code == 1 and not out and "must be a share between 0 and 1, such as 0.05" in told
        assert not Path("new").exists()

    def test_a_model_that_cannot_tell_has_no_column_and_rejects_nothing(self, place, run):
        fitted().save("old.anchorinv")
        code, out, _ = run("predict", "old.anchorinv", "noise.npy")
        assert code == 0 and "novelty" not in out
        code, out, told = run("predict", "old.anchorinv", "noise.npy", "--reject", 0.05)
        assert code == 1 and not out and "has no novelty scores" in told and "noise.npy" not in told

    def test_evaluate_tells_known_from_unknown(self, place, run):
        code, out, _ = run("evaluate", "m.anchorinv", "test.npz")
        assert code == 0 and "not known to the model, left out: feet (30)" in out
        assert "at a rejection threshold of 0.05, " in out and "of 90 windows of known classes" in out
        assert "of 30 windows of unknown classes" in out and "AUROC of known against unknown" in out
        facts = json.loads(run("evaluate", "m.anchorinv", "test.npz", "--json")[1])["detection"]
        p, known = base().novelty(np.load("test.npz")["X"]), np.load("test.npz")["y"] != "feet"
        assert facts["false_rejections"] == pytest.approx((p[known] <= 0.05).mean())
        assert facts["false_acceptances"] == pytest.approx((p[~known] > 0.05).mean())
        assert facts["auroc"] > 0.95

    def test_train_keeps_it_in_the_model_and_info_says_so(self, place, run):
        code, _, _ = run("train", "base.npz", "-o", "new.anchorinv", "--reject", 0.1, "--seed", 0, "-q")
        model = AnchorInvClassifier.load("new.anchorinv")
        assert code == 0 and model.reject == 0.1
        code, out, _ = run("predict", "new.anchorinv", "noise.npy")
        assert code == 0 and {row["class"] for row in self.rows(out)} == {"unknown"}
        code, out, _ = run("info", "new.anchorinv")
        assert code == 0 and "windows with a novelty up to 0.1 are rejected" in out
        assert "200 quantiles each of distances and logits of held-out base windows" in out
        facts = json.loads(run("info", "new.anchorinv", "--json")[1])
        assert facts["tells_unknown"] is True and facts["reject"] == 0.1
        code, out, told = run("train", "base.npz", "-o", "x", "--reject", 0.1, "--method", "mdm", "-q")
        assert code == 1 and "has no novelty scores" in told and not Path("x").exists()

    def test_info_of_others(self, place, run):
        shown = run("info", "m.anchorinv")[1]
        assert "detected by novelty, and rejected on request (--reject)" in shown
        facts = manifest(*read_facts(GOLDEN / "format1.anchorinv"))
        assert facts["tells_unknown"] is False and facts["reject"] is None
        lines = manifest_lines(facts)
        assert any("unknown classes are not detected" in line for line in lines)
        assert not any("quantiles" in line for line in lines)
