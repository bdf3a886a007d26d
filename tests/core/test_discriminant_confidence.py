"""Confidence by rehearsal: folds of neighbours, nothing leaks, and what is said of fresh windows holds."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

from anchorinv.core.closed_form import _features_without
from anchorinv.core.confidence import Confidence
from anchorinv.core.discriminant import (
    FOLDS,
    STRETCHES,
    Answers,
    Discriminant,
    _Fold,
    _Rounds,
    held_out_confidence,
    neighbouring_folds,
    rehearse_confidence,
)
from anchorinv.core.encoder import fit_encoder
from anchorinv.core.networks import encode
from anchorinv.core.types import stream
from tests.core.small import randn, same, toy, untouched_generators

DIM = 6
EMPTY = Discriminant.empty(DIM, n_base=5, shrinkage=0.05)


def windows(n: int, *, n_classes: int = 5, seed: int = 0, apart: float = 1.6) -> tuple[Tensor, Tensor]:
    """Features of classes around the same means, whatever the seed."""
    targets = torch.arange(n) % n_classes
    means = apart * randn(n_classes, DIM, seed=99, dtype=torch.float32)
    return means[targets] + randn(n, DIM, seed=seed, dtype=torch.float32), targets


def as_they_are(features: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda known: features


def rehearsed(features: Tensor, targets: Tensor, groups: Tensor | None = None) -> Confidence:
    confidence = rehearse_confidence(as_they_are(features), targets, groups, EMPTY, rng=stream(0))
    assert confidence is not None
    return confidence


class TestFolds:
    labels = st.lists(st.integers(0, 2), min_size=0, max_size=60).map(lambda more: [0, 1, 2] * 6 + more)

    @given(labels)
    def test_of_each_class_neighbours_are_kept_aside_together(self, labels: list[int]) -> None:
        targets = torch.tensor(labels)
        folds = list(neighbouring_folds(targets, None))
        assert len(folds) == FOLDS and torch.equal(sum(fold.int() for fold in folds), torch.ones(len(labels)))
        for column in range(3):
            places = [fold[targets == column].nonzero().flatten() for fold in folds]
            assert torch.equal(torch.cat(places).sort().values, torch.arange(labels.count(column)))
            assert max(map(len, places)) - min(map(len, places)) <= STRETCHES
            assert all(int((place.diff() > 1).sum()) < STRETCHES for place in places)  # in so many pieces

    def test_by_hand(self) -> None:
        targets = torch.zeros(60, dtype=torch.int64)
        first, second, *_, last = neighbouring_folds(targets, None)
        places = [fold.nonzero().flatten().tolist() for fold in (first, second, last)]
        starts = torch.arange(0, 60, 10).tolist()  # of stretches of two
        assert places == [[start + i for start in starts for i in (k, k + 1)] for k in (0, 2, 8)]
        by_group = next(neighbouring_folds(targets[:20], torch.arange(20) // 3))  # seven groups
        assert by_group.nonzero().flatten().tolist() == [0, 1, 2, 15, 16, 17]

    @given(labels, st.data())
    def test_groups_are_never_divided_nor_all_kept_aside(
        self, labels: list[int], data: st.DataObject
    ) -> None:
        sizes = data.draw(st.lists(st.integers(1, 30), min_size=2, max_size=12))
        names = data.draw(st.permutations(range(len(sizes))))
        groups = [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
        labels = (labels * -(-len(groups) // len(labels)))[: len(groups)]
        labels = [i % 2 for i in range(len(groups))] if min(map(labels.count, range(3))) < 6 else labels
        if min(map(labels.count, set(labels))) < 6:
            return
        folds = list(neighbouring_folds(torch.tensor(labels), torch.tensor(groups)))
        assert len(folds) == min(FOLDS, len(sizes))
        assert torch.equal(sum(fold.int() for fold in folds), torch.ones(len(groups)))
        for fold in folds:
            inside = set(torch.tensor(groups)[fold].tolist())
            assert not inside & set(torch.tensor(groups)[~fold].tolist())

    def test_groups_that_come_mixed_are_whole_all_the_same(self) -> None:
        groups = torch.arange(60) % 6
        for fold in neighbouring_folds(torch.arange(60) % 2, groups):
            assert not set(groups[fold].tolist()) & set(groups[~fold].tolist())

    def test_one_group_is_none(self) -> None:
        targets = torch.arange(40) % 2
        pairs = zip(
            neighbouring_folds(targets, torch.zeros(40)), neighbouring_folds(targets, None), strict=True
        )
        assert all(torch.equal(a, b) for a, b in pairs)

    def test_with_few_windows_of_a_class_there_are_none(self) -> None:
        features, targets = windows(5 * 6)
        assert rehearse_confidence(as_they_are(features), targets, None, EMPTY, rng=stream(0)) is not None
        few = (features[1:], targets[1:])
        assert not list(neighbouring_folds(few[1], None))
        assert rehearse_confidence(as_they_are(few[0]), few[1], None, EMPTY, rng=stream(0)) is None


class TestNothingLeaks:
    def test_a_window_changed_beyond_recognition_changes_no_model_that_is_asked_about_it(self) -> None:
        features, targets = windows(100)
        aside = next(neighbouring_folds(targets, None))
        other = features.clone()
        first = int(aside.nonzero()[0])
        other[first] = 1e4
        for taught in ([], [2]):
            asked = [
                _Fold(each, targets, aside, EMPTY).answers([0, 1, 2, 3, 4], taught, 10, stream(0))
                for each in (features, other)
            ]
            for part in ("logits", "statistics"):
                a, b = (getattr(each, part) for each in asked)
                assert not torch.equal(a[0], b[0]) and torch.equal(a[1:], b[1:])

    def test_features_are_asked_for_without_the_windows_kept_aside(self) -> None:
        features, targets = windows(100)
        asked: list[Tensor] = []

        def noting(known: Tensor) -> Tensor:
            asked.append(known)
            return features

        rehearse_confidence(noting, targets, None, EMPTY, rng=stream(0))
        folds = neighbouring_folds(targets, None)
        assert all(torch.equal(known, ~aside) for known, aside in zip(asked, folds, strict=True))

    def test_nor_the_components_of_the_others(self) -> None:
        data = toy(4, 30)
        encoder = fit_encoder(data.values, rng=stream(0))
        assert len(encoder.components)
        known = torch.arange(120) >= 20
        changed = data.values.clone()
        changed[:20] *= 7
        features = encode(encoder, data.values)
        before, after = (_features_without(encoder, each, features)(known) for each in (data.values, changed))
        assert torch.equal(before[20:], after[20:]) and not torch.equal(before[:20], after[:20])
        assert not torch.allclose(before[:20], features[:20], atol=1e-3)  # components of fewer windows

    def test_nor_the_scales_of_the_others_where_features_outnumber_windows(self) -> None:
        data = toy(4, 15)
        encoder = fit_encoder(data.values, share=math.inf, most_random=0, rng=stream(0))
        features, known = encode(encoder, data.values), torch.arange(60) >= 20
        assert not len(encoder.components) and encoder.dim > len(data)
        without = _features_without(encoder, data.values, features)(known)
        spread, own = features.std(0, correction=0), without[known].std(0, correction=0)
        torch.testing.assert_close(own, spread, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(features[known].std(0, correction=0), spread, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("share", [0.5, math.inf])
    def test_an_encoder_refitted_to_all_windows_is_itself(self, share: float) -> None:
        data = toy(4, 30)
        encoder = fit_encoder(data.values, share=share, rng=stream(0))
        columns = torch.cat([encode(block, data.values) for block in encoder.blocks], dim=1)
        before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
        again = encoder.refitted(columns, torch.ones(120, dtype=torch.bool))
        torch.testing.assert_close(again.project(columns), encode(encoder, data.values), rtol=1e-3, atol=1e-4)
        encoder.refitted(columns, torch.arange(120) < 50)
        assert same(before, encoder.state_dict())

    @pytest.mark.parametrize("n_shots", [3, 10])
    def test_a_folds_model_is_one_learned_from_scratch(self, n_shots: int) -> None:
        """Its base classes taken from a model of all, one class taught with a few shots."""
        features, targets = windows(150)
        aside = list(neighbouring_folds(targets, None))[2]
        fold, known = _Fold(features, targets, aside, EMPTY), [4, 0, 3, 1]
        answers = fold.answers(known, [3], n_shots, stream(5))
        shots = fold._shots(3, n_shots, stream(5))
        assert len(shots) == n_shots and not aside[shots].any() and (targets[shots] == 3).all()
        place = {4: 0, 0: 1, 1: 2, 3: 3}
        used = (~aside & torch.isin(targets, torch.tensor([4, 0, 1]))).nonzero().flatten()
        used = torch.cat([used, shots])
        columns = torch.tensor([place[label] for label in targets[used].tolist()])
        scratch = Discriminant.empty(DIM, n_base=3, shrinkage=0.05).learned(features[used], columns)
        asked = aside & (targets != 2)
        torch.testing.assert_close(answers.logits, scratch(features[asked]), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            answers.statistics, scratch.novelty(features[asked])[0], rtol=1e-4, atol=1e-4
        )
        assert answers.targets.tolist() == [place[label] for label in targets[asked].tolist()]
        assert answers.n_base == 3 and answers.taught.tolist() == (targets[asked] == 3).tolist()


class TestConfidence:
    def test_the_same_seed_says_the_same_and_draws_from_nothing_else(self) -> None:
        features, targets = windows(150)
        with untouched_generators():
            first, second = (rehearsed(features, targets).packed() for _ in range(2))
        assert same(first, second)

    def test_the_factor_of_base_classes_makes_answers_likeliest(self) -> None:
        """By an oracle, to a step of the grid that is searched."""
        logits, targets = 9 * randn(500, 4, seed=1, dtype=torch.float32), torch.arange(500) % 4
        logits += 5 * F.one_hot(targets)
        sure = held_out_confidence(logits, logits[:, :1], targets, targets, 4)
        oracle = minimize_scalar(
            lambda log: float(F.cross_entropy(math.exp(log) * logits, targets)), bounds=(-4, 4)
        )
        assert float(sure.factors[-1].log()) == pytest.approx(oracle.x, abs=math.log(10) / 20)
        assert sure.factors[:-1].tolist() == sure.factors[1:].tolist()  # nothing was taught

    @pytest.mark.parametrize("apart", [0.3, 1.6, 5.0])
    @pytest.mark.parametrize("n", [30, 200])
    def test_of_more_shots_nobody_is_less_sure(self, apart: float, n: int) -> None:
        factors = rehearsed(*windows(n, apart=apart)).factors
        assert (factors[:-1].diff() >= 0).all() and (factors >= 0.0099).all() and (factors <= 101).all()
        assert factors[-1] == factors[-2]  # five classes are too few to say more

    def test_base_classes_are_no_surer_after_lessons(self) -> None:
        factors = rehearsed(*windows(300, n_classes=8)).factors
        assert factors[-1] <= factors[-2]

    def test_where_lessons_confuse_it_a_model_is_less_sure_of_base_classes_too(self) -> None:
        """Of six classes two are taught; afterwards half of the answers for base classes are wrong."""
        targets = torch.arange(600) % 6
        noise = randn(600, 6, seed=1, dtype=torch.float32)
        clear = Answers(6 * F.one_hot(targets, 6) + noise, targets, noise[:, :3], targets, 6, targets)
        said = torch.where(torch.arange(600) % 12 < 6, targets % 4, targets)
        confused = replace(clear, logits=6 * F.one_hot(said, 6) + noise, n_base=4)
        after = _Rounds([clear], third={3: [], 10: [confused]})._factors()
        assert after[-1] < 0.5 * after[-2]
        few = replace(clear, logits=clear.logits[:, :5])
        assert len(set(_Rounds([replace(few, targets=targets % 5)])._factors().tolist())) == 1

    def test_what_is_no_signal_at_all_is_none_by_base_windows_either(self) -> None:
        """By whichever class is nearest: a table of taught windows, of few classes, may be far too wide."""
        sure = rehearsed(*windows(150))
        assert (sure.taught.values[1:3] <= sure.base.values[1:3]).all()
        assert not torch.equal(sure.base.values[0], sure.taught.values[0])

    def test_what_says_otherwise_is_taken_for_chance(self) -> None:
        """Three shots that did better than ten."""
        targets = torch.arange(400) % 4
        noise = randn(400, 4, seed=1, dtype=torch.float32)

        def said(clear: float) -> Answers:
            logits = clear * F.one_hot(targets) + noise
            return Answers(logits, targets, noise[:, :3], targets, 3, targets)

        rounds = _Rounds([replace(said(3), n_base=4)], third={3: [said(3)], 10: [said(0.2)]})
        few, ten, base, _ = rounds.confidence(4).factors.tolist()
        assert few == ten <= base
        rounds = _Rounds([replace(said(3), n_base=4)], third={3: [said(0.2)], 10: [said(3)]})
        assert rounds.confidence(4).factors[0] < 0.5 * few

    def test_answers_that_are_noise_have_the_smallest_factor_there_is(self) -> None:
        targets = torch.arange(40) % 4
        wrong = Answers(
            -9.0 * F.one_hot(targets), targets, randn(40, 3, seed=0, dtype=torch.float32), targets, 3, targets
        )
        rounds = _Rounds([replace(wrong, n_base=4)], third={3: [wrong], 10: [wrong]})
        assert torch.allclose(rounds.confidence(4).factors, torch.full((4,), 0.01))

    def test_fresh_windows_are_rejected_and_covered_as_often_as_asked(self) -> None:
        features, targets = windows(1000)
        sure, head = rehearsed(features, targets), EMPTY.learned(features, targets)
        fresh, truth = windows(2000, seed=7)
        statistics, nearest = head.novelty(fresh)
        p = sure.p_values(statistics, nearest >= 5)
        sets = sure.conformal(sure.scaled(head(fresh), head.counts, n_base=5), n_base=5)
        right = sets.gather(1, truth[:, None]).squeeze(1)
        for asked in (0.05, 0.1, 0.2):
            bound = 4 * math.sqrt(asked * (1 - asked) * (1 / 1000 + 1 / 2000)) + 0.01
            assert abs(float((p <= asked).float().mean()) - asked) < bound
            assert float((right <= asked).float().mean()) < asked + bound
        elsewhere = p.new_zeros(500, DIM) + 12 * randn(500, DIM, seed=3, dtype=torch.float32)
        assert float((sure.p_values(*head.novelty(elsewhere)[:1], p[:500] < 0) <= 0.05).float().mean()) > 0.95

    def test_taught_windows_are_calibrated_by_classes_taught_as_if_they_were_new(self) -> None:
        """Features that hang together make a model too sure; on fresh windows factors mend that."""
        features, targets = windows(600)
        wide = Discriminant.empty(2 * DIM, n_base=5, shrinkage=0.5)

        def doubled(each: Tensor) -> Tensor:
            return torch.cat([each, each], dim=1)

        sure = rehearse_confidence(as_they_are(doubled(features)), targets, None, wide, rng=stream(0))
        assert sure is not None and (sure.factors < 0.9).all()
        fresh, truth = windows(2000, seed=7)
        losses = []
        for column in range(5):  # each taught in turn, the others as base classes
            place = (torch.arange(5) - column - 1) % 5
            columns, base = place[targets], targets != column
            used = base | (base.logical_not() & (torch.arange(600) < 50))  # ten shots
            head = Discriminant.empty(2 * DIM, n_base=4, shrinkage=0.5).learned(
                doubled(features[used]), columns[used]
            )
            assert head.counts.tolist() == [120] * 4 + [10]
            raw = head(doubled(fresh))
            each = (raw, sure.scaled(raw, head.counts, n_base=4))
            of_taught = truth == column
            losses.append(
                [
                    [F.cross_entropy(logits[some], place[truth[some]]) for some in (of_taught, ~of_taught)]
                    for logits in each
                ]
            )
        raw_losses, scaled_losses = torch.tensor(losses).mean(0)
        assert (scaled_losses < raw_losses).all()

    def test_of_two_classes_taught_ones_are_judged_as_base_ones(self) -> None:
        features, targets = windows(60, n_classes=2)
        sure = rehearsed(features, targets)
        assert torch.equal(sure.base.values, sure.taught.values)
        assert int(sure.misfits.counts[-1]) == 0  # and no set by them

    def test_where_no_taught_class_is_kept_aside_base_classes_stand_in(self) -> None:
        """As where groups have classes of their own: a table of nothing would never reject."""
        features, targets = windows(100)
        aside = next(neighbouring_folds(targets, None)) & (targets != 3)
        fold = _Fold(features, targets, aside, EMPTY)
        plain, one = (fold.answers([0, 1, 2, 3, 4], taught, 10, stream(0)) for taught in ([], [3]))
        sure = _Rounds([plain], [one]).confidence(5)
        assert not one.taught.any() and torch.equal(sure.taught.values, sure.base.values)
        assert int(sure.taught.counts.min()) > 0
