"""The estimator in MOABB's evaluations: arrays, epochs with metadata, and groups by either way."""

import numpy as np
import pytest

pytest.importorskip("moabb", reason="the extra moabb is not installed")

from moabb.evaluations import CrossSessionEvaluation, CrossSubjectEvaluation, WithinSessionEvaluation
from moabb.paradigms import MotorImagery
from sklearn import config_context
from sklearn.pipeline import make_pipeline

import anchorinv.estimator
from anchorinv import AnchorInvClassifier
from tests.moabb_fakes import TinyImagery


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """Scores of an estimator in one of MOABB's evaluations, and the number of groups of each fit."""
    monkeypatch.setenv("_MNE_FAKE_HOME_DIR", str(tmp_path))
    seen = []
    read = anchorinv.estimator.read_groups

    def spied(groups, n_signals):
        numbers = read(groups, n_signals)
        seen.append(None if numbers is None else len(np.unique(numbers)))
        return numbers

    monkeypatch.setattr(anchorinv.estimator, "read_groups", spied)

    def scores(kind, model, **options):
        dataset = TinyImagery(n_subjects=3, n_runs=1, n_events=18, duration=36)
        paradigm = MotorImagery(n_classes=3, tmax=0.5)
        evaluation = kind(
            paradigm=paradigm, datasets=[dataset], hdf5_path=str(tmp_path), random_state=1, **options
        )
        return evaluation.process({"anchorinv": model}), seen

    return scores


@pytest.mark.parametrize(
    ("kind", "n_rows"),
    [(WithinSessionEvaluation, 6), (CrossSessionEvaluation, 6), (CrossSubjectEvaluation, 6)],
)
def test_every_evaluation_with_arrays(evaluate, kind, n_rows):
    results, seen = evaluate(kind, AnchorInvClassifier(method="lda", random_state=0))
    assert len(results) == n_rows and results["score"].min() > 0.6 and results["score"].mean() > 0.9
    assert set(seen) == {None}  # MOABB hands fit no groups


@pytest.mark.parametrize(
    ("kind", "n_groups"),
    [(WithinSessionEvaluation, 1), (CrossSessionEvaluation, 1), (CrossSubjectEvaluation, 2)],
)
def test_every_evaluation_with_groups_by_metadata(evaluate, kind, n_groups):
    model = AnchorInvClassifier(method="lda", group_by="session", random_state=0)
    results, seen = evaluate(kind, model, return_epochs=True)
    assert results["score"].mean() > 0.9 and set(seen) == {n_groups}


def test_epochs_bring_their_metadata(evaluate):
    model = AnchorInvClassifier(network="never", group_by="subject", random_state=0)
    results, seen = evaluate(CrossSubjectEvaluation, model, return_epochs=True)
    assert results["score"].mean() > 0.9 and seen == [2, 2, 2]


def test_subjects_by_metadata_routing(evaluate):
    with config_context(enable_metadata_routing=True):
        model = AnchorInvClassifier(method="lda", random_state=0).set_fit_request(groups="subjects")
    results, seen = evaluate(CrossSubjectEvaluation, make_pipeline(model))
    assert results["score"].mean() > 0.9 and seen == [2, 2, 2]


def test_metadata_that_are_not_there_are_missed(evaluate):
    with pytest.raises(
        ValueError, match=r"group_by \(='subject'\).*these signals have no metadata.*return_epochs"
    ):
        evaluate(CrossSubjectEvaluation, AnchorInvClassifier(method="lda", group_by="subject"))
