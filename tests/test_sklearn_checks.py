"""scikit-learn's own checks of estimators, and its conventions that they do not reach."""

import pickle

import numpy as np
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from anchorinv import AnchorInvClassifier
from tests.models import again, fitted, windows


def as_signals(X):
    """Make tables (n, n_features) windows (n, n_features, 32): each number is the loudness of a channel."""
    table = np.asarray(X)
    if table.ndim != 2 or 0 in table.shape or table.dtype.kind not in "fiub":
        return X
    carriers = np.random.default_rng(0).normal(size=(table.shape[1], 32))
    return (table + np.hypot(1.0, table))[:, :, None] * carriers  # exp(arcsinh(x)), whose logarithm counts


class Tabular(AnchorInvClassifier):
    """The estimator for tables: scikit-learn has no checks of estimators for three axes."""

    @property
    def partial_fit(self):
        raise AttributeError("it teaches classes that fit has not seen; the checks mean fit in parts")

    def _read(self, X, known=None):
        return super()._read(as_signals(X), known)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = True, False
        return tags


SINGLE = "equal to single precision, which features are computed in; 1e-7 is asked for"
EXPECTED = {
    "check_dtype_object": "what is no number is refused with a ValueError, not a TypeError",
    "check_estimators_empty_data_messages": "the sentence names a shape of three axes, two are asked for",
    "check_sample_weight_equivalence_on_dense_data": SINGLE,
    "check_methods_sample_order_invariance": SINGLE,
}


@pytest.mark.filterwarnings("ignore")  # the checks hand in single examples, flat channels and the like
@parametrize_with_checks(
    [Tabular(method="lda", random_state=0)],
    expected_failed_checks=lambda estimator: EXPECTED,
    xfail_strict=False,  # rounding may be kind
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "check_transformer_get_feature_names_out",
        "check_get_feature_names_out_error",
        "check_set_output_transform",
        "check_set_output_transform_pandas",
        "check_global_output_transform_pandas",
    ],
)
def test_names_of_features_and_tables_of_them(name):
    getattr(estimator_checks, name)("Tabular", Tabular(method="lda", random_state=0))


def test_features_of_windows_come_as_a_table_where_one_is_asked_for():
    model, (X, _) = again(fitted("lda")), windows()
    table = model.set_output(transform="pandas").transform(X)
    assert table.columns.tolist() == model.get_feature_names_out().tolist()
    assert table.columns[0] == "anchorinvclassifier0"
    assert np.array_equal(table.to_numpy(), fitted("lda").transform(X))
    assert model.n_features_in_ == X.shape[1]


def test_decisions_and_logarithms_follow_the_probabilities():
    X, _ = windows(12, seed=4)
    two, three = fitted("protonet", taught=False), fitted("protonet")
    assert two.decision_function(X).shape == (12,)
    odds = np.log(two.predict_proba(X))
    np.testing.assert_allclose(two.decision_function(X), odds[:, 1] - odds[:, 0], rtol=1e-4, atol=1e-5)
    logits = three.decision_function(X)
    assert logits.shape == (12, 3)
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(
        exponentials / exponentials.sum(1, keepdims=True), three.predict_proba(X), rtol=1e-4
    )
    np.testing.assert_allclose(np.exp(three.predict_log_proba(X)), three.predict_proba(X), rtol=1e-5)
    # Of what is sure, too: the logarithm of a probability that is 0 in single precision is finite.
    assert np.isfinite(fitted("lda").predict_log_proba(X)).all()


def test_a_pickle_of_ones_own_goes_on_learning():
    model, (X, _) = fitted("discriminant"), windows()
    other = pickle.loads(pickle.dumps(model))
    assert np.array_equal(other.predict_proba(X), model.predict_proba(X))
    assert "feet" in other.partial_fit(*windows(4, classes=("feet",), seed=3)).classes_


def test_metadata_reach_the_estimator_through_a_pipeline():
    X, y = windows(24)
    groups, weights = np.arange(24) // 4, np.arange(24) % 2 + 1.0
    seen = []

    class Noted(AnchorInvClassifier):
        def fit(self, X, y, groups=None, sample_weight=None):
            seen.append((groups, sample_weight))
            return super().fit(X, y, groups=groups, sample_weight=sample_weight)

    with sklearn.config_context(enable_metadata_routing=True):
        model = Noted(method="lda", random_state=0).set_fit_request(groups=True, sample_weight=True)
        pipeline = make_pipeline(FunctionTransformer(), model.set_score_request(sample_weight=True))
        params = {"groups": groups, "sample_weight": weights}
        scores = cross_validate(pipeline, X, y, cv=GroupKFold(2), params=params, error_score="raise")
    assert len(scores["test_score"]) == len(seen) == 2
    for got, weighed in seen:
        assert len(set(got.tolist())) == 3 and len(weighed) == 12


class TestWeights:
    @pytest.mark.parametrize("method", ["lda", "mdm", "discriminant"])
    def test_each_counting_as_one_is_none_bit_by_bit(self, method):
        (X, y), (new, label) = windows(), windows(6, classes=("feet",), seed=3)
        plain, ones = AnchorInvClassifier(method=method, random_state=0), None
        ones = sklearn.base.clone(plain).fit(X, y, sample_weight=np.ones(24))
        ones.partial_fit(new, label, sample_weight=[1] * 6).add_shots(new, label, sample_weight=np.ones(6))
        plain.fit(X, y).partial_fit(new, label).add_shots(new, label)
        assert np.array_equal(ones.predict_proba(X), plain.predict_proba(X))

    @pytest.mark.parametrize("method", ["lda", "mdm"])
    @settings(max_examples=8)
    @given(weights=st.lists(st.integers(0, 3), min_size=20, max_size=20))
    def test_whole_weights_in_fit_are_repeated_windows(self, method, weights):
        X, y = windows(24)
        weights = np.array([*weights, 1, 2, 2, 1])
        weighted, repeated = (AnchorInvClassifier(method=method, random_state=0) for _ in range(2))
        weighted.fit(X, y, sample_weight=weights)
        repeated.fit(X.repeat(weights, axis=0), y.repeat(weights))
        np.testing.assert_allclose(
            weighted.decision_function(X), repeated.decision_function(X), rtol=2e-3, atol=2e-3
        )

    @pytest.mark.parametrize("method", ["lda", "mdm", "discriminant"])
    def test_whole_weights_of_shots_are_repeated_windows(self, method, tmp_path):
        X, y = windows(12, classes=("feet", "hands"), seed=3)
        weights, base = np.array([1, 3, 2, 0, 2, 1, 1, 2, 3, 1, 2, 2]), fitted(method, taught=False)
        weighted = again(base).partial_fit(X, y, sample_weight=weights)
        weighted.add_shots(X[1:], y[1:], sample_weight=weights[1:])
        repeated = again(base).partial_fit(X.repeat(weights, axis=0), y.repeat(weights))
        repeated.add_shots(X[1:].repeat(weights[1:], axis=0), y[1:].repeat(weights[1:]))
        np.testing.assert_allclose(
            weighted.decision_function(X), repeated.decision_function(X), rtol=1e-3, atol=1e-3
        )
        assert weighted.counts_.tolist() == [11, 10, 12, 12], "windows, whatever they weigh"
        weighted.save(tmp_path / "m.anchorinv")
        loaded = AnchorInvClassifier.load(tmp_path / "m.anchorinv")
        assert np.array_equal(loaded.predict_proba(X), weighted.predict_proba(X))
        assert "knee" in loaded.partial_fit(*windows(4, classes=("knee",), seed=8)).classes_

    def test_a_fraction_weighs_less_and_none_is_as_if_not_there(self):
        X, y = windows()
        wrong = y.copy()
        wrong[:4] = y[1:5]
        model = AnchorInvClassifier(method="lda", random_state=0)
        gone = sklearn.base.clone(model).fit(X, wrong, sample_weight=np.arange(24) >= 4)
        assert np.array_equal(gone.predict_proba(X), model.fit(X[4:], y[4:]).predict_proba(X))
        whole, half, tenth = (
            sklearn.base.clone(model).fit(X, wrong, sample_weight=np.where(np.arange(24) < 4, weight, 1))
            for weight in (1, 0.5, 0.1)
        )
        distances = [(each.state_.head.means - whole.state_.head.means).abs().sum() for each in (half, tenth)]
        assert 0 < distances[0] < distances[1]

    @pytest.mark.parametrize("method", ["protonet", "ranpac"])
    def test_methods_that_cannot_say_so(self, method):
        model, (X, y) = again(fitted(method, taught=False)), windows()
        words = f"method '{method}' only takes sample_weight of 0 and 1.*lda, mdm, discriminant"
        for call in (model.fit, model.add_shots):
            with pytest.raises(ValueError, match=words):
                call(X, y, sample_weight=np.arange(24) + 1)
        few = model.add_shots(X, y, sample_weight=np.arange(24) < 3)
        assert few.counts_.tolist() == [14, 13]

    @pytest.mark.parametrize(
        ("weights", "words"),
        [
            (np.ones(23), r"shape \(24,\), got \(23,\)"),
            (-np.ones(24), "below 0"),
            (np.full(24, np.nan), "NaN"),
            (np.zeros(24), "zero for all"),
            (["a"] * 24, "must be numbers"),
        ],
    )
    def test_odd_ones_are_refused(self, weights, words):
        with pytest.raises(ValueError, match=words):
            AnchorInvClassifier(method="lda").fit(*windows(), sample_weight=weights)
