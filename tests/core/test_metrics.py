"""Metrics against scikit-learn, by hand, and by their invariances."""

import math
import warnings
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle

from anchorinv.core.metrics import Scores, confusion, forgetting, macro_f1, per_class_f1, scores

Case = tuple[list[str], list[str], list[str]]  # true, predicted, classes
CLASSES = ["left", "right", "feet", "tongue"]
HAND = [[6, 2, 0], [2, 6, 0], [1, 1, 2]]  # two base classes, one new; 20 samples


few = settings(max_examples=40)


@st.composite
def labelled(draw: st.DrawFn) -> Case:
    """True and predicted labels over two to four classes, some of which may never occur."""
    classes = CLASSES[: draw(st.integers(2, 4))]
    label = st.sampled_from(classes)
    pairs = draw(st.lists(st.tuples(label, label), min_size=1, max_size=40))
    return [true for true, _ in pairs], [predicted for _, predicted in pairs], classes


class TestAgainstScikitLearn:
    """Its functions take milliseconds each."""

    @few
    @given(labelled())
    def test_confusion(self, case: Case) -> None:
        true, predicted, classes = case
        expected = oracle.confusion_matrix(true, predicted, labels=classes)
        np.testing.assert_array_equal(confusion(true, predicted, classes), expected)

    @few
    @given(labelled())
    def test_f1(self, case: Case) -> None:
        true, predicted, classes = case
        counts = confusion(true, predicted, classes)
        each = oracle.f1_score(true, predicted, labels=classes, average=None, zero_division=0)
        np.testing.assert_allclose(per_class_f1(counts), each, atol=1e-12)
        for subset in (slice(None), slice(1), slice(1, None)):
            macro = oracle.f1_score(true, predicted, labels=classes[subset], average="macro", zero_division=0)
            assert macro_f1(counts, subset) == pytest.approx(macro, abs=1e-12)

    @few
    @given(labelled())
    def test_accuracies_and_kappa(self, case: Case) -> None:
        true, predicted, classes = case
        ours = scores(confusion(true, predicted, classes), n_base=1)
        with warnings.catch_warnings():
            # It warns of predictions that never occur in the truth and of an undefined κ.
            warnings.simplefilter("ignore")
            balanced = oracle.balanced_accuracy_score(true, predicted)
            kappa = oracle.cohen_kappa_score(true, predicted, labels=classes)
        assert ours.accuracy == pytest.approx(oracle.accuracy_score(true, predicted), abs=1e-12)
        assert ours.balanced_accuracy == pytest.approx(balanced, abs=1e-12)
        assert ours.kappa == pytest.approx(kappa, abs=1e-12, nan_ok=True)


class TestByHand:
    def test_scores(self) -> None:
        third, seventeen = Fraction(2, 3), Fraction(12, 17)
        result = scores(np.array(HAND), n_base=2)
        assert result.f1 == pytest.approx([seventeen, seventeen, third])  # 2·6/(8+9), twice; 2·2/(4+2)
        assert result.f1_base == pytest.approx(seventeen)
        assert result.f1_new == pytest.approx(third)
        assert result.f1_all == pytest.approx((2 * seventeen + third) / 3)
        assert result.harmonic == pytest.approx(2 * seventeen * third / (seventeen + third))
        assert result.accuracy == pytest.approx(14 / 20)
        assert result.balanced_accuracy == pytest.approx((0.75 + 0.75 + 0.5) / 3)
        assert result.kappa == pytest.approx((14 * 20 - 152) / (400 - 152))  # 152 = 8·9 + 8·9 + 4·2

    def test_forgetting_is_the_drop_of_base_f1(self) -> None:
        perfect = [[8, 0], [0, 8]]
        assert forgetting(perfect, HAND, n_base=2) == pytest.approx(1 - 12 / 17)
        assert forgetting(HAND, perfect, n_base=2) == pytest.approx(12 / 17 - 1)
        assert forgetting(HAND, HAND, n_base=2) == 0

    def test_a_class_never_predicted_has_f1_zero(self) -> None:
        assert per_class_f1([[4, 0], [4, 0]]).tolist() == pytest.approx([2 / 3, 0])

    def test_a_class_that_does_not_occur_has_f1_zero_but_no_recall(self) -> None:
        result = scores([[4, 0], [0, 0]], n_base=1)
        assert result.f1 == (1.0, 0.0)
        assert result.balanced_accuracy == 1.0
        assert math.isnan(result.kappa)

    def test_harmonic_is_zero_if_either_is(self) -> None:
        assert scores([[4, 0], [4, 0]], n_base=1).harmonic == 0
        assert scores([[0, 4], [0, 4]], n_base=1).harmonic == 0
        assert scores([[0, 4], [4, 0]], n_base=1).harmonic == 0

    def test_without_new_classes_there_is_no_new_f1(self) -> None:
        result = scores(HAND, n_base=3)
        assert math.isnan(result.f1_new)
        assert math.isnan(result.harmonic)
        assert result.f1_base == result.f1_all
        # Not even when the base classes score 0: there is nothing to be harmonic with.
        assert math.isnan(scores([[0, 4], [4, 0]], n_base=2).harmonic)

    def test_numpy_labels_of_any_kind(self) -> None:
        expected = [[1, 0], [1, 1]]
        assert confusion(np.array([5, 7, 7]), np.array([5, 5, 7]), [5, 7]).tolist() == expected
        assert (
            confusion(np.array(["a", "b", "b"]), ["a", "a", "b"], np.array(["a", "b"])).tolist() == expected
        )
        assert (
            confusion([False, True, True], np.array([False, False, True]), [False, True]).tolist() == expected
        )


class TestProperties:
    @given(labelled(), st.randoms(use_true_random=False))
    def test_order_of_samples_does_not_matter(self, case: Case, random: Random) -> None:
        true, predicted, classes = case
        pairs = list(zip(true, predicted, strict=True))
        random.shuffle(pairs)
        shuffled = confusion([true for true, _ in pairs], [predicted for _, predicted in pairs], classes)
        np.testing.assert_array_equal(shuffled, confusion(true, predicted, classes))

    @given(labelled(), st.permutations(range(4)))
    def test_order_of_classes_only_reorders(self, case: Case, order: list[int]) -> None:
        true, predicted, classes = case
        permutation = [i for i in order if i < len(classes)]
        before = scores(confusion(true, predicted, classes), len(classes))
        after = scores(confusion(true, predicted, [classes[i] for i in permutation]), len(classes))
        assert after.f1 == tuple(before.f1[i] for i in permutation)
        for name in ("f1_all", "accuracy", "balanced_accuracy", "kappa"):
            assert getattr(after, name) == pytest.approx(getattr(before, name), nan_ok=True)

    @given(labelled())
    def test_bounds(self, case: Case) -> None:
        result = scores(confusion(*case), n_base=1)
        for value in (*result.f1, result.f1_all, result.harmonic, result.accuracy, result.balanced_accuracy):
            assert 0 <= value <= 1
        assert math.isnan(result.kappa) or -1 <= result.kappa <= 1
        low, high = sorted([result.f1_base, result.f1_new])
        assert low - 1e-12 <= result.harmonic <= high + 1e-12

    @given(labelled())
    def test_all_is_the_weighted_mean_of_base_and_new(self, case: Case) -> None:
        n = len(case[2])
        for n_base in range(1, n):
            result = scores(confusion(*case), n_base)
            weighted = (n_base * result.f1_base + (n - n_base) * result.f1_new) / n
            assert result.f1_all == pytest.approx(weighted, abs=1e-12)

    @given(labelled())
    def test_perfect_exactly_when_diagonal(self, case: Case) -> None:
        true, _, classes = case
        assume(set(true) == set(classes))
        result = scores(confusion(true, true, classes), n_base=1)
        ones = (1.0,) * len(classes)
        assert result == Scores(ones, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)

    def test_the_input_stays_as_it_was(self) -> None:
        counts = np.array(HAND)
        scores(counts, n_base=2)
        assert counts.tolist() == HAND


class TestErrors:
    def test_unknown_labels_are_named(self) -> None:
        with pytest.raises(
            ValueError, match=r"true label 'hand' is not among the classes \['left', 'feet'\]"
        ):
            confusion(["left", "hand"], ["left", "left"], ["left", "feet"])
        with pytest.raises(ValueError, match=r"predicted label 7 is not among the classes \[0, 1\]"):
            confusion([0, 1], np.array([0, 7]), [0, 1])

    def test_lengths_that_differ(self) -> None:
        with pytest.raises(ValueError, match="2 true labels but 1 predicted"):
            confusion(["left", "left"], ["left"], ["left"])

    def test_repeated_classes(self) -> None:
        with pytest.raises(ValueError, match="not distinct"):
            confusion(["left"], ["left"], ["left", "left"])

    @pytest.mark.parametrize("counts", [[1, 2], [[1, 2, 3], [4, 5, 6]], [[]]])
    def test_not_square(self, counts: list[object]) -> None:
        with pytest.raises(ValueError, match="got shape"):
            per_class_f1(counts)

    @pytest.mark.parametrize("counts", [[[0.5]], [[-1]]])
    def test_not_counts(self, counts: list[object]) -> None:
        with pytest.raises(ValueError, match="holds counts"):
            per_class_f1(counts)

    @pytest.mark.parametrize("n_base", [0, 4])
    def test_n_base_out_of_range(self, n_base: int) -> None:
        with pytest.raises(ValueError, match=rf"n_base \(={n_base}\)"):
            scores(HAND, n_base)
        with pytest.raises(ValueError, match=rf"n_base \(={n_base}\)"):
            forgetting(HAND, HAND, n_base)

    def test_nothing_scored(self) -> None:
        with pytest.raises(ValueError, match="no sample"):
            scores([[0, 0], [0, 0]], n_base=1)

    def test_no_class_selected(self) -> None:
        assert math.isnan(macro_f1(HAND, []))
        assert macro_f1(HAND, [2]) == macro_f1(HAND, slice(2, 3))
