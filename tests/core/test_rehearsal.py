"""Rehearsal: choices from base data alone, folds by group, and theory where nothing can be rehearsed."""

import math

import pytest
import torch
from torch import Tensor

from anchorinv.core import rehearsal
from anchorinv.core.closed_form import ledoit_wolf
from anchorinv.core.rehearsal import rehearse
from anchorinv.core.types import stream
from tests.core.small import randn, untouched_generators
from tests.core.test_discriminant import gaussians


def choice(features: Tensor, targets: Tensor, groups: Tensor | None = None) -> rehearsal.Choice:
    with untouched_generators():
        return rehearse(features, targets, groups, shrinkage=0.05, rng=stream(3))


def test_separate_classes_are_rehearsed_well() -> None:
    found = choice(*gaussians(n_classes=6))
    assert found.shrinkage == 0.05
    assert found.score > 0.9
    assert math.isnan(found.centring)


def test_the_same_generator_gives_the_same_choice() -> None:
    features, targets = gaussians(n_classes=5)
    assert choice(features, targets) == choice(features, targets)


def test_shrinkage_is_chosen_where_it_helps_much() -> None:
    """Many features that only carry noise, few windows: hardly any shrinkage is far too little."""
    features, targets = gaussians(n_classes=6, n_each=12, dim=8)
    noise = torch.randn(len(features), 60, generator=stream(5), dtype=features.dtype)
    found = rehearse(torch.cat([0.5 * features, noise], dim=1), targets, None, shrinkage=1e-4, rng=stream(3))
    assert found.shrinkage in rehearsal.SHRINKAGES


@pytest.mark.parametrize("n_each", [1, 2, 5])
def test_too_few_windows_leave_it_to_theory(n_each: int) -> None:
    features, targets = gaussians(n_each=n_each)
    found = choice(features, targets)
    assert (found.shrinkage, found.scale) == (0.05, min(1.0, len(features) / features.shape[1]))
    assert math.isnan(found.score)


def test_two_classes_are_rehearsed_without_a_new_one() -> None:
    assert choice(*gaussians(n_classes=2)).score > 0.8


def test_windows_of_a_group_are_on_one_side() -> None:
    _, targets = gaussians(n_classes=3, n_each=40)
    groups = torch.arange(len(targets)) // 12
    folds = list(rehearsal.folds_of(targets, groups, stream(1)))
    assert len(folds) == rehearsal.FOLDS
    for known, held in folds:
        assert not set(groups[known].tolist()) & set(groups[held].tolist())
        assert (known ^ held).all()
    assert torch.stack([held for _, held in folds]).sum(0).eq(1).all()


def test_every_class_is_new_once() -> None:
    parts = rehearsal.held_out(10, stream(1))
    assert sorted(c for part in parts for c in part) == list(range(10))
    assert rehearsal.held_out(2, stream(1)) == [()]


@pytest.mark.parametrize("n_groups", [1, 2])
def test_few_groups_are_folds_themselves_and_one_is_none(n_groups: int) -> None:
    features, targets = gaussians()
    groups = torch.arange(len(targets)) // 4 % n_groups
    assert choice(features, targets, groups).score > 0.8
    assert len(list(rehearsal.folds_of(targets, groups, stream(1)))) == (
        2 if n_groups == 2 else rehearsal.FOLDS
    )


def test_a_group_of_one_class_only_is_no_hindrance() -> None:
    features, targets = gaussians(n_classes=4, n_each=30)
    assert choice(features, targets, targets.clone()).shrinkage > 0


class TestCentring:
    """Groups that lie elsewhere are helped by centring if they do the same things, and not otherwise."""

    def shifted(self) -> tuple[Tensor, Tensor, Tensor]:
        features, targets = gaussians(n_classes=4, n_each=60)
        groups = torch.arange(len(targets)) // 24
        moved = features + 6 * torch.randn(10, 6, generator=stream(2), dtype=features.dtype)[groups]
        return moved, targets, groups

    def test_it_helps_where_groups_lie_elsewhere(self) -> None:
        assert choice(*self.shifted()).centring > 0.05

    def test_it_harms_where_groups_do_different_things(self) -> None:
        features, targets = gaussians(n_classes=4, n_each=60)
        groups = targets * 10 + torch.arange(len(targets)) // 48
        assert choice(features, targets, groups).centring < 0


def test_features_beyond_the_number_of_windows_make_no_answer_surer() -> None:
    """Where nothing can be rehearsed, their scale is by theory."""
    features, targets = randn(10, 400, seed=0), torch.arange(10) % 2
    assert choice(features, targets).scale == 10 / 400
    assert choice(features[:, :4], targets).scale == 1


def test_scale_makes_sure_answers_less_sure_where_they_are_wrong() -> None:
    logits, targets = 50 * torch.eye(2)[[0, 0, 0, 0]], torch.tensor([0, 0, 0, 1])
    scale = rehearsal._scale([logits], [targets])
    assert (scale * logits).softmax(1)[0, 0] == pytest.approx(0.75, abs=0.03)


def test_ledoit_wolf_of_single_windows_is_a_sphere() -> None:
    assert ledoit_wolf(torch.eye(3), torch.arange(3)) == 1.0
