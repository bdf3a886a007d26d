"""What runs on a model whose classes were learned in another order than that of their names."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from anchorinv import AnchorInvClassifier, StreamingPredictor
from anchorinv.serving.evaluation import add_examples, evaluate_file, learn_classes
from tests.models import again, fitted, windows

NEW = windows(10, classes=("a_new",), seed=1)


@pytest.fixture
def model():
    return again(fitted("lda", taught=False)).partial_fit(*NEW)


def test_a_file_has_the_order_learned_and_comes_back_sorted(model, tmp_path):
    assert model.to_bundle().classes == ("left", "right", "a_new")
    assert model.to_bundle().counts == (12, 12, 10)
    model.save(tmp_path / "m.anchorinv")
    loaded, X = AnchorInvClassifier.load(tmp_path / "m.anchorinv"), windows()[0]
    assert loaded.classes_.tolist() == ["a_new", "left", "right"]
    assert loaded.counts_.tolist() == [10, 12, 12] and loaded.base_classes_.tolist() == ["left", "right"]
    assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_a_stream_gives_the_classes_and_columns_of_the_batch(model):
    X, _ = windows(9, classes=("left", "a_new", "right"), seed=3)
    rows = StreamingPredictor(model, step=64).feed(np.concatenate(list(X), axis=1))
    assert [row.label for row in rows] == model.predict(X).tolist()
    np.testing.assert_allclose([row.probabilities for row in rows], model.predict_proba(X), rtol=1e-5)


def test_evaluation_has_base_classes_first_and_their_scores_apart(model, tmp_path):
    X, y = windows(30, classes=("left", "a_new", "right"), seed=3)
    np.savez(tmp_path / "test.npz", X=X, y=y)
    result = evaluate_file(model, tmp_path / "test.npz")
    assert result.classes == ("left", "right", "a_new") and result.n_base == 2
    truth, said = (
        np.array([result.classes.index(label) for label in some]) for some in (y, model.predict(X))
    )
    expected = np.zeros((3, 3), dtype=int)
    np.add.at(expected, (truth, said), 1)
    assert np.array_equal(result.counts, expected)
    said = model.predict(X)
    assert result.scores.f1_new == pytest.approx(f1_score(y, said, labels=["a_new"], average="macro"))
    assert result.scores.f1_base == pytest.approx(
        f1_score(y, said, labels=["left", "right"], average="macro")
    )


def test_reports_name_the_right_classes(model):
    X, _ = windows(12, classes=("left",), seed=11)
    report = learn_classes(model, X, ["b_left"] * 12)
    assert [each.rival for each in report.separations] == ["left"]
    (added,) = add_examples(model, *(NEW[0], NEW[1].tolist()))
    assert (added.name, added.shots, added.total) == ("a_new", 10, 20)
