"""Where new classes start, and how known ones move with more examples."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from anchorinv.core.heads import Cosine, Head, Mlp
from anchorinv.core.prototypes import (
    follow_replay,
    mean_of_shots,
    new_outputs,
    random_rows,
    update_prototypes,
)
from anchorinv.core.types import Batch, State, scoped_seed, stream
from tests.core.small import randn, untouched_generators

SHOTS = Batch(randn(5, 6, seed=0), torch.tensor([9, 4, 9, 4, 4]))


def state(head: Head, *, seed: int = 5) -> State:
    return State(nn.Identity(), nn.Identity(), head, (7, 8), 2, (1, 6), seed)


def cosine() -> Cosine:
    return Cosine(randn(0, 6, seed=0), randn(2, 6, seed=1), scale=11.0)


def mlp() -> Mlp:
    with scoped_seed(stream(0)):
        return Mlp.start(2, 6).double()


def test_means_follow_the_sorted_classes() -> None:
    head = mean_of_shots(state(cosine()), SHOTS)
    torch.testing.assert_close(head.free[0], SHOTS.values[[1, 3, 4]].mean(0))
    torch.testing.assert_close(head.free[1], SHOTS.values[[0, 2]].mean(0))


@pytest.mark.parametrize("place", [mean_of_shots, random_rows])
def test_old_prototypes_are_fixed_as_they_were(place: Callable[[State, Batch], Any]) -> None:
    with untouched_generators():
        head = place(state(cosine()), SHOTS)
    assert torch.equal(head.fixed, cosine().prototypes)
    assert head.scale == 11.0
    assert head.free.shape == (2, 6)
    assert head.free.dtype == torch.float64


def test_random_rows_belong_to_class_and_base_seed_not_to_the_shots() -> None:
    head = random_rows(state(cosine()), SHOTS)
    other_shots = Batch(randn(3, 6, seed=8), torch.tensor([9, 2, 9]))
    other = random_rows(state(cosine()), other_shots)
    assert torch.equal(head.free[1], other.free[1])  # class 9 in both
    assert not torch.equal(head.free[0], other.free[0])
    assert not torch.equal(head.free, random_rows(state(cosine(), seed=6), SHOTS).free)
    assert head.free.abs().max() <= 6**-0.5


def test_new_outputs_append_rows_like_a_linear_layers() -> None:
    old = mlp()
    with untouched_generators():
        head = new_outputs(state(old), SHOTS)
    assert head.last.weight.shape == (4, 32)
    assert torch.equal(head.last.weight[:2], old.last.weight)
    assert torch.equal(head.last.bias[:2], old.last.bias)
    new = torch.cat([head.last.weight[2:], head.last.bias[2:, None]], 1)
    assert 0 < new.abs().max() <= 32**-0.5
    assert new.unique().numel() == new.numel()
    again = new_outputs(state(old), replace(SHOTS, values=SHOTS.values + 1))
    assert torch.equal(again.last.weight, head.last.weight)


@pytest.mark.parametrize(("place", "head"), [(mean_of_shots, mlp), (random_rows, mlp), (new_outputs, cosine)])
def test_the_wrong_kind_of_head_is_named(
    place: Callable[[State, Batch], Any], head: Callable[[], Head]
) -> None:
    wrong = head()
    with pytest.raises(TypeError, match=type(wrong).__name__):
        place(state(wrong), SHOTS)


class TestReinforced:
    def test_a_mean_becomes_the_mean_of_all(self) -> None:
        # Directions are what counts; examples of equal length along the axes make it plain.
        axes = torch.eye(6, dtype=torch.float64)
        before = state(Cosine(axes[:0], torch.stack([3.0 * axes[0], axes[5]])))
        more = Batch(torch.stack([axes[1], axes[1]]), torch.tensor([7, 7]))
        head = update_prototypes(before, more, counts=[2, 9])
        torch.testing.assert_close(head.prototypes[0], (2 * axes[0] + 2 * axes[1]) / 4)
        assert torch.equal(head.prototypes[1], axes[5])  # no examples, no change

    def test_examples_that_confirm_keep_the_direction(self) -> None:
        before = state(cosine())
        same_way = Batch(4 * cosine().prototypes[:1].detach(), torch.tensor([7]))
        head = update_prototypes(before, same_way, counts=[10, 10])
        similarity = torch.cosine_similarity(head.prototypes[0], cosine().prototypes[0], dim=0)
        assert similarity.item() == pytest.approx(1.0)

    def test_the_old_head_stays(self) -> None:
        head = cosine()
        update_prototypes(state(head), Batch(randn(2, 6, seed=3), torch.tensor([7, 8])), counts=[1, 1])
        assert torch.equal(head.prototypes, cosine().prototypes)


class TestRefreshed:
    def test_prototypes_follow_their_replay(self) -> None:
        head = Cosine(randn(1, 6, seed=2), randn(2, 6, seed=1))
        replay = Batch(randn(7, 6, seed=3), torch.arange(7) % 2)
        turned = nn.Linear(6, 6, bias=False).double().requires_grad_(False)
        found = follow_replay(head, replay, nn.Identity(), turned)
        for column in (0, 1):
            moved = turned(replay.of(column).values) - replay.of(column).values
            torch.testing.assert_close(found.prototypes[column], head.fixed[column] + moved.mean(0))
        assert torch.equal(found.prototypes[2], head.free[0]), "the new class has been trained, not replayed"
        assert found.width == head.width and found.scale == head.scale

    def test_stay_where_the_network_has_not_moved(self) -> None:
        head, replay = cosine(), Batch(randn(4, 6, seed=3), torch.arange(4) % 2)
        found = follow_replay(head, replay, nn.Identity(), nn.Identity())
        assert torch.equal(found.prototypes, head.prototypes)

    def test_are_prototypes(self) -> None:
        with pytest.raises(TypeError, match="Cosine"):
            follow_replay(mlp(), SHOTS, nn.Identity(), nn.Identity())


def test_where_distances_are_measured_a_prototype_is_the_mean_itself() -> None:
    own = state(cosine())
    more = Batch(randn(3, 6, seed=4), torch.tensor([8, 8, 8]))
    found = update_prototypes(own, more, [10, 5], exact=True)
    expected = (5 * own.head.prototypes[1] + more.values.sum(0)) / 8  # type: ignore[index, operator]
    torch.testing.assert_close(found.prototypes[1], expected)
