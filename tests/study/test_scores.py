"""Every score recomputed another way, some by hand; comparisons over trials, base seeds and people."""

import csv
import io
import subprocess
import sys
import warnings
from itertools import product

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from anchorinv.study.runner import SessionResult
from anchorinv.study.scores import (
    ASSUMPTION,
    COMPARED,
    SCORES,
    as_csv,
    assumptions,
    by_session,
    comparisons,
    in_words,
    method_title,
    methods_of,
    paired,
    rows,
    tidy,
)


def matrix(rng, k):
    return rng.integers(0, 9, (k, k)) + 3 * np.eye(k, dtype=int)


def study(*, seeds=(5,), people=("",), methods=("a", "b", "c"), trials=6, sessions=2):
    rng = np.random.default_rng(0)
    steps = [(None, 0), *((t, s) for t in range(trials) for s in range(1, sessions + 1))]
    results = []
    for person, seed, method, (trial, session) in product(people, seeds, methods, steps):
        k = 2 + session
        counts = matrix(rng, k)
        result = SessionResult(method, seed, trial, session, tuple(range(k)), 2, counts, 1.0, person=person)
        results.append(result)
    return results


def macro_f1(results, **facts):
    """In percent, of the results of which these facts hold."""
    chosen = [r for r in results if all(getattr(r, name) == value for name, value in facts.items())]
    return [100 * metrics.f1_score(*truth(r.confusion), average="macro") for r in chosen]


def truth(confusion):
    """The samples that a confusion matrix counts."""
    pairs = [(i, j) for i, row in enumerate(confusion) for j, n in enumerate(row) for _ in range(n)]
    return tuple(np.array(pairs).T)


def oracle(result, base, score):
    true, predicted = truth(result.confusion)
    k, n_base = len(result.classes), result.n_base
    f1 = metrics.f1_score(true, predicted, labels=range(k), average=None, zero_division=0)
    if score.startswith("f1 of "):
        return f1[int(score[6:])]
    before = metrics.f1_score(*truth(base.confusion), average=None, zero_division=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # there may be no new class
        return {
            "f1_all": f1.mean(),
            "f1_base": f1[:n_base].mean(),
            "f1_new": f1[n_base:].mean(),
            "harmonic": stats.hmean([f1[:n_base].mean(), f1[n_base:].mean()]) if k > n_base else np.nan,
            "accuracy": metrics.accuracy_score(true, predicted),
            "balanced_accuracy": metrics.balanced_accuracy_score(true, predicted),
            "kappa": metrics.cohen_kappa_score(true, predicted),
            "forgetting": before[:n_base].mean() - f1[:n_base].mean(),
        }[score]


def test_every_score_of_every_method_and_session_against_scikit_learn():
    results = study()
    bases = {r.method: r for r in results if r.session == 0}
    found = {(row.method, row.session, row.score): row for row in rows(results)}
    for method in "abc":
        for session in (0, 1, 2):
            own = [r for r in results if (r.method, r.session) == (method, session)]
            for score in [*SCORES, *(f"f1 of {c}" for c in range(2 + session))]:
                expected = [100 * oracle(r, bases[method], score) for r in own]
                row = found.pop((method, session, score), None)
                if row is None:
                    assert session == 0 and np.isnan(expected).all()
                    continue
                assert row.mean == pytest.approx(np.mean(expected))
                assert row.std == pytest.approx(np.std(expected), abs=1e-9) and row.n == len(own)
    assert not found


def test_people_one_by_one_and_the_mean_over_them():
    results = study(people=("anna", "bob", "eve"), methods=("a",))
    found = {(row.person, row.score): row for row in rows(results) if row.session == 2}
    each = [found[name, "f1_all"].mean for name in ("anna", "bob", "eve")]
    everybody = found["all", "f1_all"]
    assert everybody.mean == pytest.approx(np.mean(each)) and everybody.std == pytest.approx(np.std(each))
    assert everybody.n == 3 and found["anna", "f1_all"].n == 6


def test_class_names_in_the_rows():
    names = {row.score for row in rows(study(), {"": ["left", "right", "feet", "tongue"]})}
    assert {"f1 of left", "f1 of tongue"} <= names and "f1 of 0" not in names


class TestComparisons:
    def test_over_trials_per_session_are_wilcoxons(self):
        results = study(trials=8)
        found = [c for c in comparisons(results, "b") if c.over == "trials"]
        assert [(c.session, c.method) for c in found] == [(1, "a"), (1, "c"), (2, "a"), (2, "c")]
        for each in found:
            ours, theirs = (macro_f1(results, method=m, session=each.session) for m in (each.method, "b"))
            assert each.difference == pytest.approx(np.mean(ours) - np.mean(theirs))
            assert each.p == pytest.approx(stats.wilcoxon(ours, theirs).pvalue)
            assert each.n == 8

    def test_over_base_seeds_and_people_are_of_their_means(self):
        results = study(seeds=(1, 2, 3), people=("x", "y"), trials=2, sessions=1)
        found = {(c.over, c.method): c for c in comparisons(results, "a")}
        assert {over: found[over, "b"].n for over in ("trials", "base seeds", "people")} == {
            "trials": 12,
            "base seeds": 3,
            "people": 2,
        }
        means = {
            m: [np.mean(macro_f1(results, method=m, base_seed=s, session=1)) for s in (1, 2, 3)] for m in "ab"
        }
        expected = np.subtract(means["b"], means["a"])
        assert found["base seeds", "b"].difference == pytest.approx(expected.mean())
        assert found["base seeds", "b"].p == pytest.approx(stats.wilcoxon(expected).pvalue)

    def test_unfinished_methods_are_compared_on_the_trials_they_share(self):
        results = [r for r in study() if not (r.method == "c" and r.trial == 5)]
        assert {c.n for c in comparisons(results, "a") if c.over == "trials"} == {5}

    def test_none_without_the_reference_or_another_method(self):
        assert not list(comparisons(study(), "z"))
        assert not list(comparisons(study(methods=("a",)), "a"))

    def test_what_is_assumed(self):
        assert assumptions(study()) == ASSUMPTION
        told = assumptions(study(seeds=(1, 2), people=("x", "y", "z")))
        assert "2 base seeds" in told and "3 people" in told and ASSUMPTION not in told


def test_csv_holds_the_same_numbers():
    table = list(rows(study()))
    read = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert len(read) == len(table)
    for line, row in zip(read, table, strict=True):
        assert line["score"] == row.score and float(line["mean"]) == pytest.approx(row.mean, abs=1e-6)
    compared = list(comparisons(study(), "a"))
    header = as_csv(compared, COMPARED).splitlines()[0].split(",")
    assert {"variant", "session", "reference", "over", "method", "difference", "p_holm", "effect"} <= set(
        header
    )
    assert as_csv([]).count("\n") == 1 and as_csv([], COMPARED).splitlines()[0].split(",") == header


# By hand: two methods, two trials, one session of one new class after two base classes.
PERFECT = ((4, 0, 0), (0, 4, 0), (0, 0, 4))
# Base class 0 is all taken for the new class: F1 of 0, 1 and 2·4/(8+4) = 2/3.
FORGOT = ((0, 0, 4), (0, 4, 0), (0, 0, 4))


def result(method, trial, confusion, session=1):
    confusion = np.array(confusion)
    return SessionResult(method, 5, trial, session, tuple(range(len(confusion))), 2, confusion, 0.0)


RESULTS = [
    result("A", None, ((4, 0), (0, 4)), session=0),
    result("A", 1, PERFECT),
    result("A", 0, FORGOT),
    result("B", None, ((4, 0), (0, 4)), session=0),
    result("B", 0, FORGOT),
    result("B", 1, FORGOT),
]


def test_the_tidy_table_has_a_row_for_each_result_in_percent():
    frame = tidy(RESULTS)
    assert frame["trial"].tolist() == [-1, 1, 0, -1, 0, 1] and frame["method"].tolist() == list("AAABBB")
    np.testing.assert_allclose(frame["f1 of 0"], [100, 100, 0, 100, 0, 0])
    np.testing.assert_allclose(frame["forgetting"], [0, 0, 50, 0, 50, 50])
    assert frame["f1_new"].isna().tolist() == [True, False, False, True, False, False]
    assert not len(tidy([])) and "f1_all" in tidy([])


def test_pairs_come_in_the_order_of_the_trials():
    frame = tidy(RESULTS)
    values = paired(frame[frame["session"] == 1], "f1_all")
    np.testing.assert_allclose(values["A"], [100 * 5 / 9, 100])
    assert [trial for *_, trial in values.index] == [0, 1]


@pytest.mark.parametrize(
    ("part", "mean", "std"), [("f1_all", 700 / 9, 200 / 9), ("f1_base", 75, 25), ("f1_new", 250 / 3, 50 / 3)]
)
def test_a_cell_is_mean_and_population_spread(part, mean, std):
    found = by_session(RESULTS)["A", 1, part]
    assert (found.mean, found.std) == (pytest.approx(mean), pytest.approx(std))


def test_the_base_session_has_no_spread():
    assert str(by_session(RESULTS)["A", 0, "f1_all"]) == "100.0"
    assert str(by_session(RESULTS)["B", 1, "f1_base"]) == "50.0 ± 0.0"


def test_methods_in_their_order_and_by_their_titles():
    assert methods_of(RESULTS) == ["A", "B"]
    assert [method_title(name) for name in ("fecam", "spread", "mine")] == ["FeCAM", "FeCAM", "mine"]


def test_in_words_says_what_the_numbers_say():
    words = in_words(RESULTS)
    assert "A is best over all classes with a macro-F1 of 77.8, 22.2 points above B" in words
    assert "ahead of it in 1 of 2 trials" in words
    assert "base classes fell since the base session by 50.0 (B) and 25.0 (A) points" in words
    assert "new classes were learned to 83.3 (A) and 66.7 (B)" in words


def test_in_words_turns_with_the_numbers():
    turned = [r for r in RESULTS if r.method == "B"] + [
        result("C", None, ((4, 0), (0, 4)), session=0),
        result("C", 0, PERFECT),
        result("C", 1, PERFECT),
    ]
    assert in_words(turned).startswith("After 1 new class")
    assert "C is best" in in_words(turned)


def test_pandas_is_imported_only_where_scores_are_computed():
    modules = "anchorinv, anchorinv.cli, anchorinv.study.scores, anchorinv.study.folder"
    check = f"import sys, {modules}; sys.exit('pandas' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
