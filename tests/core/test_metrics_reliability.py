"""Calibration and detection, against scikit-learn, a textbook loop, and what must hold of them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from anchorinv.core.metrics import N_BINS, Detection, Reliability, SplitReliability, auroc


def drawn(seed: int, n: int = 400, k: int = 4, sharp: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and true columns that often agree with them."""
    rng = np.random.default_rng(seed)
    logits = sharp * rng.normal(size=(n, k))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return p, (logits + 2 * rng.gumbel(size=(n, k))).argmax(axis=1)


def textbook_ece(p: np.ndarray, true: np.ndarray) -> float:
    """Guo et al. (2017), equation 3, in their words."""
    error, n = 0.0, len(p)
    for m in range(1, N_BINS + 1):
        inside = [i for i in range(n) if (m - 1) / N_BINS < max(p[i]) <= m / N_BINS]
        if inside:
            accuracy = sum(p[i].argmax() == true[i] for i in inside) / len(inside)
            confidence = sum(max(p[i]) for i in inside) / len(inside)
            error += len(inside) / n * abs(accuracy - confidence)
    return error


some = st.integers(0, 2**16), st.integers(0, 60), st.integers(2, 6), st.floats(0.1, 20)


def same(one: Reliability, other: Reliability) -> None:
    assert one.counts.tolist() == other.counts.tolist()
    assert one.correct.tolist() == other.correct.tolist()
    np.testing.assert_allclose(one.confidence, other.confidence, atol=1e-9)
    np.testing.assert_allclose([one.sum_brier, one.sum_nll], [other.sum_brier, other.sum_nll], atol=1e-9)


class TestReliability:
    @pytest.mark.parametrize("sharp", [0.3, 2.0, 8.0])
    def test_as_scikit_learn_and_the_textbook(self, sharp):
        p, true = drawn(1, sharp=sharp)
        found = Reliability.of(p, true)
        assert found.ece == pytest.approx(textbook_ece(p, true))
        assert found.brier == pytest.approx(brier_score_loss(true, p, labels=range(4)))
        assert found.nll == pytest.approx(log_loss(true, p, labels=range(4)))
        right, top = p.argmax(1) == true, p.max(1)
        accuracy, confidence = calibration_curve(right, top, n_bins=N_BINS)
        there = found.counts > 0
        np.testing.assert_allclose(found.correct[there] / found.counts[there], accuracy)
        np.testing.assert_allclose(found.confidence[there] / found.counts[there], confidence)
        assert found.n == 400
        assert found.accuracy == pytest.approx(right.mean())
        assert found.mean_confidence == pytest.approx(top.mean())

    def test_a_limit_belongs_to_the_bin_below_it(self):
        p = np.array([[0.6, 0.4], [0.6 + 1e-9, 0.4 - 1e-9], [1, 0]])  # 0.6 is 9/15
        assert Reliability.of(p, [0, 0, 0]).counts.nonzero()[0].tolist() == [8, 9, 14]

    def test_by_hand(self):
        found = Reliability.of([[0.9, 0.1], [0.9, 0.1]], [0, 1])
        assert found.ece == pytest.approx(0.4)
        assert found.brier == pytest.approx((0.02 + 1.62) / 2)
        assert found.nll == pytest.approx(-np.log([0.9, 0.1]).mean())

    @given(*some)
    def test_parts_add_up_in_any_order(self, seed, n, k, sharp):
        p, true = drawn(seed, n, k, sharp)
        order = np.random.default_rng(seed).permutation(n)
        whole, half = Reliability.of(p, true), n // 2
        same(whole, Reliability.of(p[order], true[order]))
        same(whole, Reliability.of(p[:half], true[:half]) + Reliability.of(p[half:], true[half:]))
        names = np.random.default_rng(seed + 1).permutation(k)  # classes in another order
        same(whole, Reliability.of(p[:, names], np.argsort(names)[true]))

    @given(*some)
    def test_bounds(self, seed, n, k, sharp):
        found = Reliability.of(*drawn(seed, n + 1, k, sharp))
        assert 0 <= found.ece <= 1
        assert 0 <= found.brier <= 2
        assert found.nll >= 0
        assert abs(found.accuracy - found.mean_confidence) <= found.ece + 1e-12

    def test_perfect_predictions_have_no_error(self):
        found = Reliability.of(np.eye(3), [0, 1, 2])
        assert (found.ece, found.brier, found.nll, found.accuracy) == (0, 0, 0, 1)

    def test_certain_and_wrong_is_finite(self):
        found = Reliability.of([[1.0, 0.0]], [1])
        assert (found.ece, found.brier) == (1, 2)
        assert 30 < found.nll < 40

    def test_without_windows_there_is_no_score(self):
        nothing = Reliability.of(np.empty((0, 3)), np.empty(0, dtype=int))
        assert nothing.n == 0
        assert np.isnan([nothing.ece, nothing.brier, nothing.nll, nothing.accuracy]).all()
        same(nothing + nothing, nothing)

    @given(*some)
    def test_json_there_and_back(self, seed, n, k, sharp):
        p, true = drawn(seed, n, k, sharp)
        both = SplitReliability.of(p, true, np.arange(k) < 2)
        back = SplitReliability.from_dict(json.loads(json.dumps(both.to_dict())))
        assert back.to_dict() == both.to_dict()
        if n:
            assert back.all.ece == pytest.approx(both.all.ece, abs=1e-3)

    @pytest.mark.parametrize(
        ("p", "true", "words"),
        [
            ([[2.0, 3.0]], [0], "softmax"),
            ([[np.nan, 1.0]], [0], "softmax"),
            ([[0.5, 0.5]], [2], "from 0 to 1"),
            ([[0.5, 0.5]], [-1], "from 0 to 1"),
            ([[0.5, 0.5]], [0, 1], "shapes"),
            ([[0.5, 0.5]], [0.5], "whole numbers"),
        ],
    )
    def test_what_is_no_prediction_is_refused(self, p, true, words):
        with pytest.raises(ValueError, match=words):
            Reliability.of(p, true)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"counts": [1]},
            {"correct": [2, *[0] * 14]},
            {"confidence": [-1, *[0] * 14]},
            {"brier": 9},
            {"nll": -1},
        ],
    )
    def test_what_cannot_be_one_is_refused(self, wrong):
        plain = Reliability.of([[0.51, 0.49]], [0]).to_dict()
        with pytest.raises(ValueError, match=r"bins|bin|sums"):
            Reliability.from_dict(plain | wrong)


class TestSplit:
    def test_by_true_class(self):
        p, true = drawn(3)
        is_base = np.array([True, False, True, False])
        both = SplitReliability.of(p, true, is_base)
        base = np.isin(true, [0, 2])
        same(both.base, Reliability.of(p[base], true[base]))
        same(both.new, Reliability.of(p[~base], true[~base]))
        same(both.all, Reliability.of(p, true))
        same((both + both).all, both.all + both.all)


levels = arrays(np.float64, st.integers(1, 30), elements=st.sampled_from([0.0, 0.02, 0.05, 0.3, 0.7, 1.0]))


class TestDetection:
    @given(levels, levels)
    def test_as_scikit_learn_with_ties(self, known, unknown):
        truth = np.repeat([1, 0], [len(known), len(unknown)])
        wanted = roc_auc_score(truth, np.concatenate([known, unknown]))
        assert auroc(known, unknown) == pytest.approx(wanted)
        assert auroc(known, unknown) + auroc(unknown, known) == pytest.approx(1)

    @given(levels, levels, st.sampled_from([0.01, 0.05, 0.3]))
    def test_rejections_by_counting(self, known, unknown, threshold):
        found = Detection.of(known, unknown, threshold)
        assert found.false_rejections == sum(p <= threshold for p in known) / len(known)
        assert found.false_acceptances == sum(p > threshold for p in unknown) / len(unknown)

    def test_bounds(self):
        assert auroc([0.9, 0.8], [0.1]) == 1
        assert auroc([0.1], [0.9, 0.8]) == 0
        assert auroc([0.5] * 3, [0.5] * 2) == 0.5

    def test_p_values_that_are_one_reject_as_many_as_asked(self):
        # A rank among n others is a p-value: its share up to a level is that level.
        ranks = np.arange(1, 101) / 100
        assert Detection.of(ranks, [], 0.05).false_rejections == 0.05

    def test_without_unknown_windows_only_rejections_are_known(self):
        found = Detection.of([0.01, 0.5], [])
        assert np.isnan([found.auroc, found.false_acceptances]).all()
        assert found.false_rejections == 0.5

    def test_what_is_no_score_is_refused(self):
        with pytest.raises(ValueError, match="nan"):
            auroc([np.nan], [0.5])
