import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from sklearn.utils import resample

from anchorinv.study.scores import compare, confidence_interval, holm, rank_biserial, wilcoxon_p

differences = st.lists(st.integers(-20, 20), min_size=6, max_size=30).map(lambda d: np.array(d) / 4)


untied = st.lists(st.integers(1, 200), min_size=6, max_size=30, unique=True).flatmap(
    lambda sizes: st.tuples(*(st.sampled_from([size, -size]) for size in sizes))
)


@settings(max_examples=40)
@given(differences.map(lambda d: d[:7]) | untied.map(np.array))  # with ties scipy permutes, all ways if few
def test_wilcoxon_is_symmetric_and_scipys(found):
    assert wilcoxon_p(found) == pytest.approx(wilcoxon_p(-found))
    if found.any():
        assert wilcoxon_p(found) == scipy_stats.wilcoxon(found).pvalue


def test_no_difference_at_all_is_no_evidence():
    assert wilcoxon_p(np.zeros(8)) == 1.0 and rank_biserial(np.zeros(8)) == 0.0


@settings(max_examples=50)
@given(differences)
def test_effect_is_bounded_odd_and_blind_to_scale(found):
    effect = rank_biserial(found)
    assert -1 <= effect <= 1
    assert rank_biserial(-found) == pytest.approx(-effect)
    assert rank_biserial(found * 7) == pytest.approx(effect)


def test_effect_by_hand():
    # Ranks of |1|, |-2|, |3| are 1, 2, 3: (1 - 2 + 3) / 6.
    assert rank_biserial(np.array([1.0, -2.0, 3.0])) == pytest.approx(2 / 6)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_is_a_naive_step_down(p_values):
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    naive, running = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, p_values[i] * (len(p_values) - rank)))
        naive[i] = running
    assert holm(p_values) == pytest.approx(naive)


def test_interval_against_scipy_and_bootstrap():
    found = np.random.default_rng(0).normal(0.5, 1, 40)
    low, high = confidence_interval(found)
    oracle = scipy_stats.t.interval(0.95, 39, loc=found.mean(), scale=scipy_stats.sem(found))
    assert (low, high) == pytest.approx(oracle)
    means = [resample(found, random_state=i).mean() for i in range(500)]
    assert np.percentile(means, [2.5, 97.5]) == pytest.approx([low, high], abs=0.1)
    assert confidence_interval(np.array([1.0])) == (-np.inf, np.inf)


def test_compare():
    rng = np.random.default_rng(1)
    base = rng.normal(60, 2, 20)
    found = compare({"better": base + 3 + rng.normal(0, 0.5, 20), "ours": base, "same": base}, "ours")
    better, same = found
    assert [c.method for c in found] == ["better", "same"]
    assert better.difference == pytest.approx(3, abs=0.4) and better.low < 3 < better.high + 0.5
    assert better.effect == 1 and better.p_holm == pytest.approx(2 * better.p) and better.n == 20
    assert (same.difference, same.p, same.p_holm, same.effect) == (0, 1, 1, 0)


def test_mistakes():
    with pytest.raises(ValueError, match="no results of 'c' to compare with; there are a, b"):
        compare({"a": [1], "b": [2]}, "c")
    with pytest.raises(ValueError, match="same trials of all methods"):
        compare({"a": [1, 2], "b": [2]}, "a")
