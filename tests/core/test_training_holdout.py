"""Samples kept aside: which ones, that nothing is learned from them, and what they are good for."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine
from anchorinv.core.minimise import OneCycle
from anchorinv.core.networks import encode
from anchorinv.core.training import LEAST_GROUPS, Training, holdout, train
from anchorinv.core.types import Batch, scoped_seed, stream
from anchorinv.datasets import dataset
from anchorinv.progress import Tick, listening
from tests.core.small import SMALL, Drawer, base_spec, same, snapshot, toy, untouched_generators, weights_of


def labels_of(*sizes: int) -> Tensor:
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


class TestByClass:
    def test_a_tenth_of_each_class(self) -> None:
        labels = labels_of(100, 40, 259)
        kept = holdout(labels, rng=stream(0))
        assert labels[kept].bincount().tolist() == [10, 4, 25]
        assert not torch.equal(kept, holdout(labels, rng=stream(1)))
        assert torch.equal(kept, holdout(labels, rng=stream(0)))

    @pytest.mark.parametrize("sizes", [(2, 2), (90, 90), (500, 9), (1,)])
    def test_nothing_where_it_would_say_nothing(self, sizes: tuple[int, ...]) -> None:
        assert not holdout(labels_of(*sizes), rng=stream(0)).any()


class TestByGroup:
    def test_whole_groups_about_a_tenth(self) -> None:
        groups, labels = torch.arange(40).repeat_interleave(12), torch.arange(480) % 4
        kept = holdout(labels, groups, rng=stream(0))
        assert kept.sum() == 48
        assert not set(groups[kept].tolist()) & set(groups[~kept].tolist())

    def test_one_of_five_people_and_none_of_four(self) -> None:
        for n, expected in ((5, 50), (4, 0)):
            groups = torch.arange(n).repeat_interleave(50)
            assert holdout(torch.arange(50 * n) % 2, groups, rng=stream(3)).sum() == expected

    def test_all_there_is_of_a_class_is_learned_from(self) -> None:
        groups, labels = torch.arange(10).repeat_interleave(30), torch.zeros(300, dtype=torch.int64)
        labels[groups == 4] = 1  # one person alone has this class
        for seed in range(20):
            kept = holdout(labels, groups, rng=stream(seed))
            assert kept.sum() == 30 and not kept[groups == 4].any()

    def test_a_group_that_is_most_of_the_data_is_learned_from(self) -> None:
        groups = torch.cat([torch.zeros(900, dtype=torch.int64), torch.arange(1, 11).repeat_interleave(10)])
        for seed in range(10):
            kept = holdout(torch.arange(1000) % 2, groups, rng=stream(seed))
            assert kept.sum() == 100 and not kept[groups == 0].any()

    def test_one_group_per_sample(self) -> None:
        with pytest.raises(ValueError, match="3 groups for 4 samples"):
            holdout(labels_of(2, 2), torch.zeros(3), rng=stream(0))

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8)), min_size=1, max_size=400), st.booleans())
    def test_every_class_stays_and_no_group_is_torn(
        self, pairs: list[tuple[int, int]], by_group: bool
    ) -> None:
        labels, groups = torch.tensor(pairs).T
        kept = holdout(labels, groups if by_group else None, rng=stream(0))
        assert set(labels[~kept].tolist()) == set(labels.tolist())
        assert not kept.any() or 20 <= kept.sum() <= 0.2 * len(labels)
        if by_group:
            assert not set(groups[kept].tolist()) & set(groups[~kept].tolist())


PLAN = Training(epochs=12, batch_size=32, lr=3e-3, schedule=OneCycle(), patience=12)


class Noting(Conformer):
    """A network that notes what it is shown, in training and otherwise, and what came of it."""

    def __init__(self) -> None:
        super().__init__(SMALL)
        self.learned: list[Tensor] = []
        self.evaluated: list[Tensor] = []

    def forward(self, signals: Tensor) -> Tensor:
        (self.learned if self.training else self.evaluated).append(signals[:, 0, 0].clone())
        return super().forward(signals)


def trained(
    samples: Batch, plan: Training, *, groups: Tensor | None = None, checkpoint: Drawer | None = None
) -> tuple[Noting, Cosine, Tensor]:
    with scoped_seed(stream(99)):
        network, head = Noting(), Cosine.start(4, SMALL.dim)
    curve = train(network, head, replace(samples, groups=groups), plan, checkpoint=checkpoint, rng=stream(3))
    return network, head, curve


def aside_of(samples: Batch, groups: Tensor | None = None) -> Batch:
    return samples[holdout(samples.labels, groups, rng=stream(3))]


class TestTraining:
    SAMPLES = toy(n_per_class=60, noise=2.0)
    GROUPS = torch.arange(240) // 16

    @pytest.mark.parametrize("groups", [None, GROUPS], ids=["by class", "by group"])
    def test_nothing_is_learned_from_what_is_kept_aside(self, groups: Tensor | None) -> None:
        network, _, _ = trained(self.SAMPLES, PLAN, groups=groups)
        kept = holdout(self.SAMPLES.labels, groups, rng=stream(3))
        marks = self.SAMPLES.values[:, 0, 0]
        assert set(torch.cat(network.learned).tolist()) == set(marks[~kept].tolist())
        assert set(torch.cat(network.evaluated).tolist()) == set(marks[kept].tolist())

    def test_the_best_weights_come_back(self) -> None:
        # At such a rate the last epoch is not the best; every epoch's weights are left in the drawer.
        plan, drawer = replace(PLAN, lr=0.05, schedule=None), Drawer()
        network, head, _ = trained(self.SAMPLES, plan, checkpoint=drawer)
        aside = aside_of(self.SAMPLES)
        losses = []
        for left in drawer.kept:
            other, its_head = Noting(), Cosine.start(4, SMALL.dim)
            places = [*other.parameters(), *its_head.parameters(), *other.buffers(), *its_head.buffers()]
            for i, place in enumerate(places):
                place.data.copy_(left[f"tensor.{i}"])
            features = encode(other.eval(), aside.values)
            losses.append(its_head.loss(features, aside.labels).item())
        ours = head.loss(encode(network, aside.values), aside.labels).item()
        assert ours == pytest.approx(min(losses), rel=1e-6)
        assert losses.index(min(losses)) < len(losses) - 1  # or this says nothing

    def test_ends_when_patience_does_and_the_bar_with_it(self) -> None:
        heard: list[Tick] = []
        plan = replace(PLAN, epochs=50, lr=0.3, schedule=None, patience=3)  # far too high: no better soon
        with listening(heard.append):
            _, _, curve = trained(self.SAMPLES, plan)
        n_batches = -(-(240 - 24) // 32)
        assert 3 * n_batches <= len(curve) < 50 * n_batches and len(curve) % n_batches == 0
        assert heard[-1].done == heard[-1].total == 50 * n_batches

    def test_runs_the_whole_schedule_where_nothing_can_be_kept_aside(self) -> None:
        few = toy(n_per_class=2)
        network, head, curve = trained(few, replace(PLAN, patience=1))
        plain, its_head, its_curve = trained(few, replace(PLAN, patience=None))
        assert len(curve) == 12 and torch.equal(curve, its_curve)
        assert same(weights_of(network), weights_of(plain)) and same(weights_of(head), weights_of(its_head))

    def test_taken_up_anywhere_it_ends_the_same_bit_by_bit(self) -> None:
        plan = replace(PLAN, epochs=9, lr=0.02, patience=3, gain=0.5)
        drawer = Drawer()
        network, head, curve = trained(self.SAMPLES, plan, checkpoint=drawer)
        whole, its_head, its_curve = trained(self.SAMPLES, plan)
        assert torch.equal(curve, its_curve) and same(weights_of(network), weights_of(whole))
        for left in (drawer.kept[0], drawer.kept[len(drawer.kept) // 2], drawer.kept[-1]):
            again, its_head, its_curve = trained(self.SAMPLES, plan, checkpoint=Drawer(left))
            assert torch.equal(curve, its_curve)
            assert same((weights_of(network), weights_of(head)), (weights_of(again), weights_of(its_head)))

    def test_global_generators_are_untouched(self) -> None:
        with scoped_seed(stream(99)):
            network, head = Noting(), Cosine.start(4, SMALL.dim)
        rng = stream(0)
        with untouched_generators():
            train(network, head, self.SAMPLES, replace(PLAN, epochs=2), rng=rng)

    def test_a_foundation_hands_the_groups_on(self) -> None:
        base = base_spec(epochs=2, patience=2, batch_size=64)
        by_class, by_group = (
            snapshot(base.fit(replace(self.SAMPLES, groups=groups), rng=stream(1)))
            for groups in (None, self.GROUPS)
        )
        assert not same(by_class, by_group)
        plain = base_spec(epochs=2, batch_size=64)
        assert same(
            snapshot(plain.fit(self.SAMPLES, rng=stream(1))),
            snapshot(plain.fit(replace(self.SAMPLES, groups=self.GROUPS), rng=stream(1))),
        )


def test_window_files_name_groups_by_the_same_number() -> None:
    # datasets need no torch, so they cannot ask the training for it.
    assert dataset.LEAST_GROUPS == LEAST_GROUPS
