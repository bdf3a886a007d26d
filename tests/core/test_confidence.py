"""Calibrated logits, p-values and conformal sets: against textbooks, in order, within (0, 1], never torn."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from anchorinv.core.confidence import FEWEST, MOST_SCORES, SHARES, Confidence, Scores, misfits_of
from anchorinv.core.discriminant import held_out_confidence
from tests.core.small import randn

few_numbers = st.lists(st.integers(-20, 20).map(lambda i: i / 4), min_size=1, max_size=200)


def normal(*shape: int, seed: int) -> Tensor:
    return randn(*shape, seed=seed, dtype=torch.float32)


def tail(scores: Scores, new: Tensor) -> Tensor:
    return torch.from_numpy(np.exp(scores.log_p(new.double().numpy()))).float()


def textbook(scores: Tensor, new: Tensor) -> Tensor:
    """(1 + how many are as high) / (n + 1), one by one."""
    return torch.tensor([(1 + sum(float(s) >= float(x) for s in scores)) / (len(scores) + 1) for x in new])


@lru_cache
def made(n: int = 600, *, n_base: int = 3, n_statistics: int = 3, seed: int = 0) -> Confidence:
    """Of a head whose logits speak for the right class, and whose statistics are normal."""
    logits, targets = answers(n, n_base, seed=seed)
    nearest = torch.zeros(n, dtype=torch.int64)
    return held_out_confidence(logits, normal(n, n_statistics, seed=seed + 1), nearest, targets, n_base)


def answers(n: int, n_classes: int, *, seed: int) -> tuple[Tensor, Tensor]:
    targets = torch.arange(n) % n_classes
    return normal(n, n_classes, seed=seed) + 1.5 * torch.eye(n_classes)[targets], targets


def within(share: float, asked: float, n: int, n_calibration: int) -> bool:
    """Whether a share of n is what chance makes of the one asked for, of as many in calibration."""
    return abs(share - asked) <= 4 * math.sqrt(asked * (1 - asked) * (1 / n + 1 / n_calibration)) + 1 / n


class TestScores:
    def test_by_hand(self) -> None:
        scores = Scores.of(torch.arange(200.0))
        assert scores.values.tolist() == list(range(200)) and int(scores.counts) == 200
        p = scores.share_above(torch.tensor([-5.0, 0.0, 100.0, 199.0, 1e9, torch.inf, -torch.inf]))
        wanted = [1, 1, 1 - (100 / 199) * 200 / 201, 1 / 201, 1 / 201, 1 / 201, 1]
        torch.testing.assert_close(p, torch.tensor(wanted))

    @given(few_numbers, few_numbers)
    def test_of_few_it_is_the_textbooks_p_value(self, seen: list[float], new: list[float]) -> None:
        scores, asked = torch.tensor(seen), torch.tensor(new)
        p, n = Scores.of(scores).share_above(asked), len(seen)
        # In between it is interpolated, by a table that need not hold the scores themselves.
        assert (p - textbook(scores, asked)).abs().max() <= (1 + n / (MOST_SCORES - 1)) / (n + 1) + 1e-5

    def test_of_many_quantiles_say_the_same(self) -> None:
        scores, asked = normal(5000, seed=0), torch.linspace(-3, 3, 50)
        kept = Scores.of(scores)
        assert kept.values.shape == (MOST_SCORES,) and int(kept.counts) == 5000
        assert (kept.share_above(asked) - textbook(scores, asked)).abs().max() < 1 / MOST_SCORES

    @given(few_numbers, st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=20))
    def test_never_0_never_above_1_and_falling(self, seen: list[float], new: list[float]) -> None:
        scores, asked = Scores.of(torch.tensor(seen)), torch.tensor(new).sort().values
        for p in (scores.share_above(asked), tail(scores, asked)):
            assert (p >= 0).all() and (p <= 1).all() and (p.diff() <= 1e-6).all()

    def test_the_tail_of_an_exponential_is_its_own(self) -> None:
        scores = Scores.of(-torch.log1p(-torch.linspace(0, 1, 20_001)[:-1].double()))
        asked = torch.tensor([0.2, 1.0, 3.0, 6.0, 12.0, 40.0])
        expected = stats.expon.sf(asked.double().numpy())
        ours = tail(scores, asked).double().numpy()
        assert ours[:2] == pytest.approx(expected[:2], rel=0.01)
        # Far out, the highest score stands for more than itself: on the safe side, and not by much.
        assert (ours >= 0.99 * expected).all() and (np.log(ours) <= 0.75 * np.log(expected)).all()

    def test_of_nothing_nothing_is_unusual(self) -> None:
        none = Scores.of(torch.zeros(0))
        asked = torch.tensor([-1.0, 0.0, 1e9])
        assert none.share_above(asked).tolist() == tail(none, asked).tolist() == [1, 1, 1]

    def test_of_equal_scores_only_higher_ones_are_unusual(self) -> None:
        same = Scores.of(torch.full((80,), 2.0))
        p = tail(same, torch.tensor([1.0, 2.0, 2.5]))
        torch.testing.assert_close(p, torch.tensor([1, 1, 1 / 81]))


class TestCalibratedLogits:
    factors = st.tuples(*[st.floats(0.01, 100)] * 4).map(sorted)
    rows = st.lists(st.lists(st.integers(-50, 50), min_size=4, max_size=4, unique=True), min_size=1)

    def of(self, *factors: float) -> Confidence:
        none = Scores.of(torch.zeros(0))
        return Confidence(torch.tensor(factors), none, none, none)

    @given(factors, rows, st.lists(st.integers(1, 500), min_size=4, max_size=4), st.integers(0, 4))
    def test_the_order_of_classes_stays(
        self, factors: list[float], rows: list[list[int]], counts: list[int], n_base: int
    ) -> None:
        logits = torch.tensor(rows) / 4
        scaled = self.of(*factors).scaled(logits, torch.tensor(counts), n_base=n_base)
        assert torch.equal(scaled.argsort(1), logits.argsort(1))

    def test_factors_go_by_the_logarithm_of_shots(self) -> None:
        counts = torch.tensor([1, 3, math.sqrt(30), 10, math.sqrt(1000), 100, 5000]).double()
        each = self.of(1.0, 2.0, 4.0, 3.0).factors_of(7, counts, 0)
        expected = torch.tensor([1, 1, math.sqrt(2), 2, math.sqrt(8), 4, 4]).double()
        torch.testing.assert_close(each, expected)

    @given(factors, st.lists(st.integers(1, 1000), min_size=2, max_size=9))
    def test_nobody_is_less_sure_of_more_shots(self, factors: list[float], counts: list[int]) -> None:
        each = self.of(*factors).factors_of(len(counts), torch.tensor(sorted(counts)), 0)
        assert (each.diff() >= -1e-9).all() and (each <= factors[-2] * (1 + 1e-6)).all()

    def test_base_classes_have_the_last_factor_whatever_their_number(self) -> None:
        each = self.of(1.0, 2.0, 4.0, 3.0).factors_of(3, torch.tensor([2, 50, 10]), 2)
        assert each.tolist() == pytest.approx([3, 3, 2])
        without_counts = self.of(1.0, 2.0, 4.0, 3.0).factors_of(3, None, 2)
        assert without_counts.tolist() == pytest.approx([3, 3, 2])  # as of ten shots

    @pytest.mark.parametrize("n", [0, 1, 20])
    def test_windows_are_scaled_one_by_one_as_together(self, n: int) -> None:
        sure, counts = self.of(1.0, 2.0, 4.0, 3.0), torch.tensor([50, 50, 3, 10])
        logits = 5 * torch.randn(n, 4, generator=torch.Generator().manual_seed(5))
        together = sure.scaled(logits, counts, n_base=2)
        assert together.shape == (n, 4)
        for row, expected in zip(logits, together, strict=True):
            assert torch.equal(sure.scaled(row[None], counts, n_base=2)[0], expected)
        each = sure.factors_of(4, counts, 2)[logits.argmax(1), None]
        torch.testing.assert_close(together, logits * each.float())

    def test_a_window_takes_the_factor_of_its_likeliest_class(self) -> None:
        """One base class and one of three shots; before that was taught, the base class has another."""
        sure, logits = self.of(1.0, 1.0, 3.0, 2.0), torch.tensor([[9.0, -9.0], [-9.0, 9.0]])
        scaled = sure.scaled(logits, torch.tensor([100, 3]), n_base=1)
        assert scaled.tolist() == [[18, -18], [-9, 9]]
        assert sure.scaled(logits, torch.tensor([100, 100]), n_base=2).tolist() == [[27, -27], [-27, 27]]


class TestNovelty:
    three = st.lists(st.floats(-30, 30, width=32), min_size=3, max_size=3)

    @given(three, st.integers(0, 2), st.floats(0, 1e6, width=32), st.booleans())
    def test_larger_statistics_are_never_more_usual(
        self, row: list[float], which: int, more: float, taught: bool
    ) -> None:
        statistics = torch.tensor([row, row])
        statistics[1, which] += more
        less, p = made().p_values(statistics, torch.tensor([taught] * 2)).flip(0).tolist()
        assert 0 < less <= p <= 1

    @given(st.lists(st.floats(-60, 60), min_size=5, max_size=5), st.booleans(), st.sampled_from([1, 3, 5]))
    def test_of_one_window_it_is_what_it_is_of_many(
        self, row: list[float], taught: bool, n_statistics: int
    ) -> None:
        sure = made(n_statistics=n_statistics)
        statistics = torch.tensor([row[:n_statistics]], dtype=torch.float64)
        one = statistics.new_tensor(sure.p_value(*statistics.tolist(), taught=taught))
        two = sure.p_values(statistics.expand(2, -1), torch.tensor([taught] * 2))
        torch.testing.assert_close(one.expand(2), two, rtol=1e-9, atol=0)

    @pytest.mark.parametrize("n_statistics", sorted(SHARES))
    @pytest.mark.parametrize("together", [0.0, 0.8])
    def test_of_windows_alike_p_values_are_uniform(self, n_statistics: int, together: float) -> None:
        """However statistics hang together."""

        def drawn(seed: int) -> Tensor:
            own, common = normal(3000, n_statistics, seed=seed), normal(3000, 1, seed=seed + 1)
            return (1 - together) * own + together * common

        logits, targets = answers(3000, 3, seed=0)
        sure = held_out_confidence(logits, drawn(10), torch.zeros(3000).long(), targets, 3)
        p = sure.p_values(drawn(20), torch.zeros(3000, dtype=torch.bool))
        for asked in (0.01, 0.05, 0.1, 0.3, 0.7):
            assert within(float((p <= asked).float().mean()), asked, 3000, 3000)

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_one_statistic_is_enough_if_it_is_far_off(self, which: int) -> None:
        row = torch.zeros(2, 3)
        row[1, which] = 12.0
        usual, odd = made().p_values(row, torch.zeros(2, dtype=torch.bool)).tolist()
        assert usual > 0.3 and odd < 1e-4

    def test_several_looks_cost_as_sidak_says(self) -> None:
        """The first statistic has six tenths of the risk; the second speaks up once it is surer than 1 %."""
        sure = made()
        rows = torch.tensor([[1.0, 0, 0], [0, 1.8, 0], [-9, 4.0, 0]])
        p = [tail(sure.base.rows[i], rows[:, i]).double() for i in range(2)]
        assert 0.01 < p[1][1] < 0.1 and p[1][2] < 0.01
        wanted = torch.stack([1 - (1 - p[0][:2]) ** (1 / 0.6), 1 - (1 - p[0][:2]) ** (1 / 0.6)])[0].tolist()
        wanted.append(float(p[1][2] / 0.2))
        ours = sure.surprise(rows, torch.zeros(3, dtype=torch.bool)).neg().exp()
        assert ours.tolist() == pytest.approx(wanted, rel=1e-4)

    def test_what_is_far_off_is_told_from_what_is_further(self) -> None:
        """p-values have an end, that of float32; what they are made of does not end so soon."""
        sure = made()
        far = torch.tensor([[10.0, 0, 0], [50.0, 0, 0], [200.0, 0, 0]])
        assert (sure.surprise(far, torch.zeros(3, dtype=torch.bool)).diff() > 5).all()
        p = sure.p_values(1e6 * far, torch.zeros(3, dtype=torch.bool))
        assert p.dtype == torch.float32 and (p > 0).all()

    def test_taught_classes_are_judged_by_taught_ones(self) -> None:
        narrow, wide = made(), made(seed=7)
        wider = [Scores(3 * table.values, table.counts) for table in (wide.taught, wide.base)]
        sure = Confidence(narrow.factors, narrow.base, wider[0], narrow.misfits)
        statistics = torch.tensor([[3.5, 0.0, 0.0]] * 2)
        of_base, of_taught = sure.p_values(statistics, torch.tensor([False, True])).tolist()
        assert of_base < 0.01 < 0.1 < of_taught
        assert of_base == pytest.approx(float(narrow.p_values(statistics[:1], torch.tensor([False]))))


class TestConformalSets:
    rows = st.lists(st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3), min_size=1, max_size=5)

    @settings(max_examples=50)
    @given(rows, st.lists(st.floats(0.01, 0.99), min_size=2, max_size=2).map(sorted), st.integers(0, 2))
    def test_more_coverage_holds_less_and_always_the_predicted_class(
        self, rows: list[list[float]], coverages: list[float], n_taught: int
    ) -> None:
        logits = torch.cat([torch.tensor(rows), torch.zeros(len(rows), n_taught)], dim=1)
        p = made(60).conformal(logits, n_base=3)
        smaller, larger = (p > 1 - coverage for coverage in coverages)
        assert (smaller <= larger).all() and smaller.gather(1, logits.argmax(1, keepdim=True)).all()
        assert (p >= 0).all() and (p <= 1).all()

    @pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
    def test_sets_of_windows_alike_hold_the_right_class_as_often_as_asked(self, coverage: float) -> None:
        """In each class, since each has a table of its own; class 0 is far harder than the others."""
        bias = torch.tensor([-1.5, 0.0, 0.5])
        (logits, targets), (new, truth) = answers(3000, 3, seed=1), answers(3000, 3, seed=2)
        sure = held_out_confidence(
            logits + bias, normal(3000, 1, seed=3), torch.zeros(3000).long(), targets, 3
        )
        sets = sure.conformal(sure.scaled(new + bias, None, n_base=3), n_base=3) > 1 - coverage
        right = sets.gather(1, truth[:, None]).squeeze(1).float()
        for column in range(3):
            share = float(right[truth == column].mean())
            # The predicted class is always there, so that an easy class is covered more often.
            assert share > coverage or within(share, coverage, 1000, 1000)

    def test_p_values_are_the_textbooks_class_by_class(self) -> None:
        logits, targets = answers(450, 3, seed=4)
        sure = held_out_confidence(logits, normal(450, 1, seed=5), torch.zeros(450).long(), targets, 3)
        new = sure.scaled(answers(40, 3, seed=6)[0], None, n_base=3)
        before = misfits_of(sure.scaled(logits, None, n_base=3))
        p = sure.conformal(new, n_base=3)
        for column in range(3):
            expected = textbook(before[targets == column, column], misfits_of(new)[:, column])
            assert (p[:, column] - expected).abs().max() < 2 / 151

    def test_who_is_compared_with_whom(self) -> None:
        """Before lessons each base class with its own, if it had windows enough; after them with all."""
        each = [Scores.of(torch.linspace(0, top, FEWEST)) for top in (1, 2, 3, 4, 5)]
        few = Scores.of(torch.linspace(0, 9, FEWEST - 1))
        some = Scores.stack(each[:2])
        sure = Confidence(torch.ones(3), some, some, Scores.stack([each[0], few, each[1], each[2], each[3]]))
        logits = torch.tensor([[0.0, -0.5]])
        with_own, with_all = sure.conformal(logits, n_base=2), each[1].share_above(torch.tensor([0.5]))
        assert with_own[0, 1] == with_all  # the second class had too few
        first = sure.conformal(torch.tensor([[-0.5, 0.0]]), n_base=2)[0, 0]
        assert first == each[0].share_above(torch.tensor([0.5]))
        later = sure.conformal(torch.tensor([[-0.5, -0.5, 0.0, -0.5]]), n_base=2)[0]
        tops = [2, 2, 3, 3]  # all base classes afterwards, and taught ones
        assert later.tolist() == pytest.approx(
            [
                # Three rivals, where there was one in rehearsal.
                1 - (1 - float(each[top].share_above(torch.tensor([x])))) ** 3
                for top, x in zip(tops, [0.5, 0.5, 0, 0.5], strict=True)
            ]
        )

    def test_more_rivals_than_in_rehearsal_are_reckoned_with(self) -> None:
        """Of eleven classes alike five were rehearsed with; the right one is behind more often."""
        rehearsed, fresh = (answers(4000, 11, seed=seed)[0] for seed in (1, 2))
        targets = torch.arange(4000) % 11
        first = [misfits_of(logits[targets < 5][:, :n]) for logits, n in ((rehearsed, 5), (fresh, 11))]
        right = [each.gather(1, targets[targets < 5, None]).squeeze(1) for each in first]
        table = Scores.of(right[0])
        sure = Confidence(torch.ones(4), table, table, Scores.stack([table] * 8))
        p = sure.conformal(fresh[targets < 5], n_base=5).gather(1, targets[targets < 5, None])
        plain = float((table.share_above(right[1]) > 0.2).float().mean())
        assert plain < 0.75 and abs(float((p > 0.2).float().mean()) - 0.8) < abs(plain - 0.8) / 2

    def test_a_forgotten_base_class_leaves_no_table_of_its_own(self) -> None:
        sure = made()
        left = sure.without(1, 3)
        assert torch.equal(left.misfits.values, sure.misfits.values[[0, 2, 3, 4, 5]])
        assert len(left.misfits.counts) == 5 and sure.without(3, 3) is sure
        assert left.conformal(torch.zeros(1, 2), n_base=2).shape == (1, 2)


class TestPacked:
    def test_what_is_packed_comes_back(self) -> None:
        sure = made()
        back = Confidence.unpacked(sure.packed(), n_base=3, n_statistics=3)
        assert all(
            torch.equal(a, b) for a, b in zip(sure.packed().values(), back.packed().values(), strict=True)
        )

    def test_of_a_former_version_lessons_change_nothing_for_base_classes(self) -> None:
        """It had three factors: those of taught classes by their shots, and that of base classes."""
        former = {**made().packed(), "factors": torch.tensor([0.5, 1.0, 2.0])}
        back = Confidence.unpacked(former, n_base=3, n_statistics=3)
        logits, counts = answers(50, 4, seed=3)[0], torch.tensor([90, 90, 90, 10])
        assert torch.equal(back.scaled(logits[:, :3], counts[:3], n_base=3), 2 * logits[:, :3])
        scaled = back.scaled(logits, counts, n_base=3)
        factors = torch.where(logits.argmax(1) < 3, 2.0, 1.0)[:, None]
        torch.testing.assert_close(scaled, factors * logits)

    @pytest.mark.parametrize(
        ("name", "change", "words"),
        [
            ("factors", lambda t: t[2:], "does not fit its classes"),
            ("factors", lambda t: 0 * t, "no windows give"),
            ("factors", lambda t: -t, "no windows give"),
            ("factors", lambda t: 1e30 * t, "no windows give"),
            ("base.values", lambda t: t.flip(1), "no windows give"),
            ("base.values", lambda t: t + 1e35, "no windows give"),
            ("base.values", lambda t: t[:, 1:], "does not fit its classes"),
            ("base.counts", lambda t: t[1:], "does not fit its classes"),
            ("base.counts", lambda t: t[0], "does not fit its classes"),
            ("base.counts", lambda t: -1 - t, "no windows give"),
            ("misfits.values", lambda t: t - 1, "no windows give"),
            ("misfits.values", lambda t: t[1:], "does not fit its classes"),
        ],
    )
    def test_what_no_windows_give_is_refused(self, name: str, change: object, words: str) -> None:
        packed = made().packed()
        assert callable(change)
        with pytest.raises(ValueError, match=words):
            Confidence.unpacked({**packed, name: change(packed[name])}, n_base=3, n_statistics=3)

    def test_of_a_former_version_that_had_three_statistics_the_first_three_are_looked_at(self) -> None:
        back = Confidence.unpacked(made().packed(), n_base=3, n_statistics=5)
        statistics, taught = 2 * normal(30, 5, seed=1), torch.arange(30) % 2 == 0
        wanted = made().p_values(statistics[:, :3], taught)
        assert back.n_statistics == 3 and torch.equal(back.p_values(statistics, taught), wanted)
        assert torch.equal(back.p_values(statistics[:1], taught[:1]), wanted[:1])

    @pytest.mark.parametrize("sizes", [{"n_base": 4, "n_statistics": 3}, {"n_base": 3, "n_statistics": 1}])
    def test_another_heads_is_refused(self, sizes: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="does not fit"):
            Confidence.unpacked(made().packed(), **sizes)

    @pytest.mark.parametrize("name", sorted(made(30).packed()))
    def test_a_part_that_is_missing_is_named(self, name: str) -> None:
        packed = {key: value for key, value in made(30).packed().items() if key != name}
        with pytest.raises(ValueError, match=f"lacks {name}$"):
            Confidence.unpacked(packed, n_base=3, n_statistics=3)
