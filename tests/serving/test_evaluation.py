"""``anchorinv evaluate``: calibration of base and new classes, and what is known of unknown ones."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss

from anchorinv import AnchorInvClassifier
from anchorinv.core.metrics import Reliability
from anchorinv.serving import evaluation
from anchorinv.serving.evaluation import detect, evaluate_file
from tests.models import RATE, again, fitted, windows

CLASSES = ("left", "right", "tongue", "other")
PICTURES = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.fixture
def data(tmp_path):
    """Windows of two base classes, one that was taught, and one that the model does not know."""
    X, y = windows(80, classes=CLASSES, seed=3)
    np.savez(tmp_path / "data.npz", X=X, y=y, sfreq=RATE)
    fitted().save(tmp_path / "m")
    return tmp_path / "data.npz"


def known(model):
    """Windows of known classes, their columns and probabilities, by the estimator itself."""
    X, y = windows(80, classes=CLASSES, seed=3)
    keep = y != "other"
    columns = np.array([model.classes_.tolist().index(label) for label in y[keep]])
    return y[keep], columns, model.predict_proba(X[keep])


def test_base_and_new_classes_apart_and_together(data):
    model = fitted()
    found = evaluate_file(model, data)
    y, columns, p = known(model)
    assert found.unknown == {"other": 20} and found.detection is None
    predicted = model.classes_[p.argmax(1)]
    assert found.counts.tolist() == confusion_matrix(y, predicted, labels=found.classes).tolist()
    facts = found.facts()["calibration"]
    for part, classes in (("base", ["left", "right"]), ("new", ["tongue"]), ("all", CLASSES)):
        asked = np.isin(y, classes)
        wanted = Reliability.of(p[asked], columns[asked])
        assert facts[part]["windows"] == asked.sum()
        assert facts[part]["accuracy"] == accuracy_score(y[asked], predicted[asked])
        assert facts[part]["ece"] == pytest.approx(wanted.ece, abs=1e-6)
        assert facts[part]["brier"] == pytest.approx(wanted.brier, abs=1e-6)
        assert sum(facts[part]["bins"]["counts"]) == asked.sum()
    assert facts["all"]["log_loss"] == pytest.approx(log_loss(columns, p, labels=range(3)), abs=1e-5)


def test_base_classes_are_base_classes_wherever_the_alphabet_puts_them(tmp_path):
    model = again(fitted(taught=False)).partial_fit(*windows(10, classes=("able",), seed=1))
    X, y = windows(60, classes=("left", "right", "able"), seed=3)
    np.savez(tmp_path / "data.npz", X=X, y=y, sfreq=RATE)
    found, predicted = evaluate_file(model, tmp_path / "data.npz"), model.predict(X)
    assert found.classes == ("left", "right", "able") and found.n_base == 2
    assert found.counts.tolist() == confusion_matrix(y, predicted, labels=found.classes).tolist()
    for part, each in (("base", y != "able"), ("new", y == "able")):
        assert getattr(found.reliability, part).accuracy == accuracy_score(y[each], predicted[each])


def test_numbers_in_names_are_in_their_order(tmp_path):
    names = ("motion 1", "motion 10", "motion 2")
    X, y = windows(24, classes=("left", "right", "tongue"), seed=3)
    y = np.array(names)[np.unique(y, return_inverse=True)[1]]
    model = AnchorInvClassifier(method="lda", random_state=0).fit(X, y)
    np.savez(tmp_path / "data.npz", X=X, y=y)
    found = evaluate_file(model, tmp_path / "data.npz")
    assert model.classes_.tolist() == list(names)
    assert found.classes == ("motion 1", "motion 2", "motion 10")
    assert found.counts.tolist() == confusion_matrix(y, model.predict(X), labels=found.classes).tolist()


def test_the_lines_say_so(run, data):
    code, out, _ = run("evaluate", data.parent / "m", data, "-q")
    lines = [line.split() for line in out.splitlines()]
    facts = evaluate_file(fitted(), data).facts()["calibration"]
    assert code == 0 and ["calibration", "windows", "accuracy", "confidence", "ECE", "Brier"] in lines
    for part, each in facts.items():
        shown = [f"{each[key]:.1%}" for key in ("accuracy", "mean_confidence")]
        numbers = [f"{each[key]:.3f}" for key in ("ece", "brier")]
        assert [part, "classes", str(each["windows"]), *shown, *numbers] in lines
    assert json.loads(run("evaluate", data.parent / "m", data, "-q", "--json")[1])["detection"] is None


def test_a_class_without_windows_has_no_f1(run, data):
    X, y = windows(40, classes=("left", "right"), seed=3)
    np.savez(data, X=X, y=y, sfreq=RATE)
    _, out, _ = run("evaluate", data.parent / "m", data, "-q")
    (row,) = (line.split() for line in out.splitlines() if line.startswith("tongue"))
    assert row == ["tongue", "0", "0", "0", "–"]
    facts = json.loads(run("evaluate", data.parent / "m", data, "-q", "--json")[1])
    assert facts["f1"]["tongue"] is None
    assert facts["macro_f1"] == pytest.approx((facts["f1"]["left"] + facts["f1"]["right"]) / 2)


def test_a_model_without_new_classes_has_no_line_for_them(data):
    found = evaluate_file(fitted(taught=False), data)
    assert set(found.facts()["calibration"]) == {"base", "all"}
    assert not any(line.startswith("new classes") for line in found.lines())


class TestNovelty:
    """By predictions as a model that has a novelty would make them."""

    @pytest.fixture
    def rejecting(self, monkeypatch):
        honest = evaluation.classify

        def with_novelty(model, windows):
            for i, each in enumerate(honest(model, windows)):
                p = 0.01 if i % 4 == 3 else (i + 1) / 80  # every fourth is of the unknown class
                label = "unknown" if p <= 0.05 else each.label
                yield SimpleNamespace(label=label, probabilities=each.probabilities, novelty=p)

        monkeypatch.setattr(evaluation, "classify", with_novelty)

    def test_is_measured_and_rejected_windows_are_still_scored(self, data, rejecting):
        found = evaluate_file(fitted(), data)
        assert found.counts.sum() == 60  # labels that say "unknown" are in no matrix
        facts = found.facts()["detection"]
        assert facts["known_windows"] == 60 and facts["unknown_windows"] == 20 and facts["threshold"] == 0.05
        assert facts["false_rejections"] == pytest.approx(3 / 60)  # 1/80 to 3/80; the fourth is unknown
        assert facts["false_acceptances"] == 0 and facts["auroc"] == 1
        lines = found.lines()
        words = "3 of 60 windows of known classes count as unknown (5.0%)"
        assert f"at a rejection threshold of 0.05, {words}" in lines
        assert (
            "0 of 20 windows of unknown classes as known (0.0%); AUROC of known against unknown 1.000"
            in lines[-1]
        )

    def test_by_the_models_own_threshold(self, data):
        assert evaluate_file(fitted("discriminant", reject=0.1), data).detection.threshold == 0.1

    def test_without_unknown_windows_there_are_no_acceptances(self):
        found = detect([0.5, 0.04], [True, True])
        assert found.n_rejected == 1 and evaluation._detection_facts(found)["auroc"] is None
        assert len(evaluation._detection_lines(found)) == 1

    def test_without_p_values_there_is_nothing(self):
        assert detect([None, None], [True, False]) is None
        assert detect([0.5, None], [True, False]).n_unknown == 0


class TestFigure:
    @pytest.mark.parametrize("ending", PICTURES)
    def test_is_a_picture(self, run, data, ending):
        path = data.parent / "deep" / f"reliability{ending.upper()}"
        code, _, err = run("evaluate", data.parent / "m", data, "-q", "--figure", path)
        assert code == 0 and err == f"Wrote {path}\n", err
        assert path.read_bytes().startswith(PICTURES[ending])

    def test_is_refused_before_anything_is_computed(self, run, data):
        code, _, err = run("evaluate", data.parent / "m", data, "--figure", data.parent / "x.jpg")
        assert code == 1 and "a figure must be a .png, .pdf or .svg file, got 'x.jpg'" in err
        code, _, err = run("evaluate", data.parent / "m", data, "--figure", data)
        assert code == 1 and ".png" in err and data.exists()
