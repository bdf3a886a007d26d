"""Numbers by hand: two methods, two trials, one session of one new class after two base classes."""

import numpy as np
import pytest

from anchorinv.core.runner import SessionResult
from anchorinv.study.summary import cell, in_words, methods_of, values

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


def test_values_come_in_the_order_of_the_trials():
    np.testing.assert_allclose(values(RESULTS, "A", 1, "f1_all"), [100 * 5 / 9, 100])


@pytest.mark.parametrize(
    ("part", "mean", "std"), [("f1_all", 700 / 9, 200 / 9), ("f1_base", 75, 25), ("f1_new", 250 / 3, 50 / 3)]
)
def test_a_cell_is_mean_and_population_spread(part, mean, std):
    found = cell(RESULTS, "A", 1, part)
    assert (found.mean, found.std) == (pytest.approx(mean), pytest.approx(std))


def test_the_base_session_has_no_spread():
    assert str(cell(RESULTS, "A", 0, "f1_all")) == "100.0"
    assert str(cell(RESULTS, "B", 1, "f1_base")) == "50.0 ± 0.0"


def test_methods_in_their_order():
    assert methods_of(RESULTS) == ["A", "B"]


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
