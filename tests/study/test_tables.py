"""Every number of a table, recomputed another way; comparisons over trials, base seeds and people."""

import csv
import io
import warnings
from itertools import product

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from anchorinv.core.runner import SessionResult
from anchorinv.study.stats import ASSUMPTION
from anchorinv.study.tables import COMPARED, SCORES, as_csv, assumptions, comparisons, rows


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
        assert [(c.session, c.comparison.method) for c in found] == [(1, "a"), (1, "c"), (2, "a"), (2, "c")]
        for each in found:
            ours, theirs = (
                macro_f1(results, method=m, session=each.session) for m in (each.comparison.method, "b")
            )
            assert each.comparison.difference == pytest.approx(np.mean(ours) - np.mean(theirs))
            assert each.comparison.p == pytest.approx(stats.wilcoxon(ours, theirs).pvalue)
            assert each.comparison.n == 8

    def test_over_base_seeds_and_people_are_of_their_means(self):
        results = study(seeds=(1, 2, 3), people=("x", "y"), trials=2, sessions=1)
        found = {(c.over, c.comparison.method): c.comparison for c in comparisons(results, "a")}
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
        assert {c.comparison.n for c in comparisons(results, "a") if c.over == "trials"} == {5}

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
    header = as_csv(compared).splitlines()[0].split(",")
    assert {"variant", "session", "reference", "over", "method", "difference", "p_holm", "effect"} <= set(
        header
    )
    assert as_csv([]).count("\n") == 1 and as_csv([], COMPARED).splitlines()[0].split(",") == header
