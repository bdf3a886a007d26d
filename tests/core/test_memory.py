"""Memory: which anchors are kept, what is inverted when, and that replay once made stays."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from anchorinv.core import memory
from anchorinv.core.inversion import Inversion, InversionLoss, Inverted, MatchFeatures, invert_with
from anchorinv.core.memory import (
    Anchors,
    ClassMeans,
    InvertedAnchors,
    InvertedLabels,
    LatentSamples,
    Memory,
    NoMemory,
    RealSamples,
)
from anchorinv.core.networks import encode, frozen, trainable
from anchorinv.core.prototypes import random_anchors
from anchorinv.core.types import Batch, State, concat, stream
from tests.core.small import base_spec, same, snapshot, toy, untouched_generators

ANCHORS = InvertedAnchors(per_class=5, inversion=Inversion(steps=3))
BASE = (0, 2, 3)  # class 1 is new


@lru_cache
def base() -> State:
    return base_spec().fit(toy().of(*BASE), rng=stream(5, "base"))


def latents_of(state: State, *classes: int) -> Batch:
    samples = toy().of(*classes)
    return samples.with_values(encode(state.trunk, samples.values))


def kept() -> State:
    state = base()
    return ANCHORS.keep(state, latents_of(state, *BASE), latents_of(state, *BASE), rng=stream(5, "base"))


def grown(state: State) -> State:
    """The state after a session with class 1, whose tail has moved."""
    tail = trainable(state.tail)
    with torch.no_grad():
        for parameter in tail.parameters():
            parameter.mul_(1.1)
    later = replace(state, tail=frozen(tail), classes=(*BASE, 1), session=1)
    return ANCHORS.keep(later, latents_of(later, 1), latents_of(later, 1), rng=stream(7))


class Spy:
    """Notes what inversions were asked for and what came of them."""

    def __init__(self) -> None:
        self.networks: list[nn.Module] = []
        self.anchors: list[Tensor] = []
        self.results: list[Inverted] = []

    def match(self, network: nn.Module, anchors: Tensor) -> InversionLoss:
        self.networks.append(network)
        self.anchors.append(anchors)
        return MatchFeatures(network, anchors)

    def invert_with(self, *given: Any) -> Inverted:
        self.results.append(invert_with(*given))
        return self.results[-1]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    spy = Spy()
    monkeypatch.setattr(memory, "MatchFeatures", spy.match)
    monkeypatch.setattr(memory, "invert_with", spy.invert_with)
    return spy


class TestRandomAnchors:
    @settings(max_examples=50)
    @given(st.integers(1, 30), st.integers(0, 40), st.integers(0, 1000))
    def test_are_distinct_rows_and_as_many_as_there_are(self, n: int, quota: int, seed: int) -> None:
        features = torch.arange(2.0 * n).reshape(n, 2)
        anchors = random_anchors(features, quota, stream(seed))
        rows = [tuple(row) for row in anchors.tolist()]
        assert len(rows) == len(set(rows)) == min(quota, n)
        assert set(rows) <= {tuple(row) for row in features.tolist()}

    def test_are_random(self) -> None:
        features = torch.arange(30.0)[:, None]
        draws = [random_anchors(features, 5, stream(seed)).flatten().tolist() for seed in (0, 0, 1)]
        assert draws[0] == draws[1] != draws[2]

    def test_every_feature_has_the_same_chance(self) -> None:
        features = torch.arange(10.0)[:, None]
        drawn = torch.cat([random_anchors(features, 3, stream(0, i)) for i in range(2000)])
        counts = drawn.flatten().long().bincount(minlength=10)
        assert (counts - 600).abs().max() < 4 * (2000 * 0.3 * 0.7) ** 0.5


class TestKeep:
    def test_base_classes_keep_their_quota_of_their_own_features(self) -> None:
        state = kept()
        assert state.anchors is not None
        assert state.anchors.classes == BASE
        for label in BASE:
            anchors = state.anchors.of(label).values
            features = encode(state.tail, latents_of(state, label).values)
            whose = [
                torch.isclose(features, anchor).all(1).nonzero().flatten().tolist() for anchor in anchors
            ]
            assert all(len(rows) == 1 for rows in whose)
            assert len({rows[0] for rows in whose}) == 5

    def test_a_small_class_keeps_all_it_has(self) -> None:
        state = base()
        few = concat(latents_of(state, 0, 2), latents_of(state, 3)[torch.arange(2)])
        anchors = ANCHORS.keep(state, few, few, rng=stream(5)).anchors
        assert anchors is not None
        assert [len(anchors.of(label)) for label in BASE] == [5, 5, 2]

    def test_a_class_is_drawn_by_itself(self) -> None:
        # Which anchors a class keeps does not depend on the other classes.
        state = base()
        alone = ANCHORS.keep(state, latents_of(state, 2), latents_of(state, 2), rng=stream(5, "base")).anchors
        together = kept().anchors
        assert alone is not None and together is not None
        torch.testing.assert_close(alone.values, together.of(2).values)

    def test_a_new_class_keeps_all_shots_and_old_anchors_stay(self) -> None:
        before, after = kept(), grown(kept())
        assert before.anchors is not None and after.anchors is not None
        assert len(after.anchors.of(1)) == 8 > ANCHORS.per_class
        assert same(after.anchors.values[:15], before.anchors.values)
        assert same(after.anchors.labels[:15], before.anchors.labels)

    def test_new_anchors_are_what_the_moved_tail_sees(self) -> None:
        after = grown(kept())
        assert after.anchors is not None
        latents = latents_of(after, 1).values
        assert same(after.anchors.of(1).values, encode(after.tail, latents))
        assert not torch.allclose(after.anchors.of(1).values, encode(base().tail, latents), atol=1e-3)


class TestRecall:
    def test_inverts_all_base_anchors_once(self, spy: Spy) -> None:
        state = kept()
        recalled = ANCHORS.recall(state, rng=stream(1))
        again = ANCHORS.recall(recalled, rng=stream(2))
        assert [len(anchors) for anchors in spy.anchors] == [15]
        assert again is recalled

    def test_then_only_what_is_pending_with_the_network_as_it_is_now(self, spy: Spy) -> None:
        first = ANCHORS.recall(kept(), rng=stream(1))
        later = grown(first)
        second = ANCHORS.recall(later, rng=stream(2))
        assert later.anchors is not None
        assert [len(anchors) for anchors in spy.anchors] == [15, 8]
        assert same(spy.anchors[1], later.anchors.of(1).values)
        signals = toy().values[:3]
        assert same(spy.networks[1](signals), later.tail(later.trunk(signals)))
        assert second.replay is not None and first.replay is not None
        assert same(second.replay.values[:15], first.replay.values)
        assert same(second.replay.labels, torch.cat([first.replay.labels, torch.full((8,), 1)]))

    def test_more_anchors_of_a_known_class_are_pending_alone(self, spy: Spy) -> None:
        first = ANCHORS.recall(kept(), rng=stream(1))
        assert first.anchors is not None and first.replay is not None
        extra = Batch(first.anchors.values[:2] * 1.1, torch.full((2,), 2))
        second = ANCHORS.recall(replace(first, anchors=concat(first.anchors, extra)), rng=stream(2))
        assert same(spy.anchors[1], extra.values)
        assert second.replay is not None
        assert len(second.replay.of(2)) == 7
        assert same(second.replay.values[:15], first.replay.values)

    def test_replay_is_the_trunks_view_of_the_inverted_signals(self, spy: Spy) -> None:
        state = ANCHORS.recall(kept(), rng=stream(1))
        assert state.replay is not None and state.anchors is not None
        assert same(state.replay.values, encode(state.trunk, spy.results[0].signals))
        for label in BASE:  # and each is the replay of an anchor of its class
            features = encode(state.tail, state.replay.of(label).values)
            errors = (features - state.anchors.of(label).values).abs().mean(1)
            noted = spy.results[0].errors[state.replay.labels == label]
            torch.testing.assert_close(errors, noted, rtol=1e-4, atol=1e-5)

    def test_replay_comes_close_to_the_anchors(self) -> None:
        closer = InvertedAnchors(per_class=5, inversion=Inversion(steps=40, lr=0.05))
        curve = closer.recall(kept(), rng=stream(1)).curves[-1]
        assert (curve.name, curve.session, len(curve.values)) == ("invert", 1, 41)
        assert curve.values[-1] < 0.5 * curve.values[0]

    def test_base_replay_is_the_same_whatever_the_trial(self) -> None:
        one, other = (ANCHORS.recall(kept(), rng=stream(seed)) for seed in (1, 2))
        assert same(snapshot(one), snapshot(other))

    def test_but_depends_on_the_base_seed(self) -> None:
        one = ANCHORS.recall(kept(), rng=stream(1)).replay
        other = ANCHORS.recall(replace(kept(), seed=base().seed + 1), rng=stream(1)).replay
        assert one is not None and other is not None
        assert not torch.allclose(one.values, other.values, atol=1e-3)

    def test_replay_of_a_new_class_is_the_trials_own(self) -> None:
        later = grown(ANCHORS.recall(kept(), rng=stream(0)))
        one, other = (ANCHORS.recall(later, rng=stream(seed)).replay for seed in (1, 2))
        assert one is not None and other is not None
        assert not torch.allclose(one.of(1).values, other.of(1).values, atol=1e-3)
        assert same(one.of(*BASE).values, other.of(*BASE).values)

    def test_shared_noise_is_the_same_in_all_trials_and_for_all_new_classes(self, spy: Spy) -> None:
        later = grown(ANCHORS.recall(kept(), rng=stream(0)))
        shared = replace(ANCHORS, inversion=Inversion(steps=0, shared_noise=True))
        for seed in (1, 2):
            shared.recall(later, rng=stream(seed))
        assert later.anchors is not None
        as_if = replace(later, classes=(*BASE, 7))  # the same shots as another class
        labels = torch.where(later.anchors.labels == 1, 7, later.anchors.labels)
        shared.recall(replace(as_if, anchors=Batch(later.anchors.values, labels)), rng=stream(3))
        one, again, other = (result.signals for result in spy.results[1:])
        assert same(one, again) and same(one, other)
        own = replace(ANCHORS, inversion=Inversion(steps=0))
        own.recall(later, rng=stream(1))
        assert not torch.allclose(spy.results[-1].signals, one), "drawn by the trial, unless asked otherwise"

    def test_shared_noise_leaves_the_base_classes_as_they_are(self) -> None:
        shared = replace(ANCHORS, inversion=replace(ANCHORS.inversion, shared_noise=True, new_batch=10))
        assert same(
            snapshot(shared.recall(kept(), rng=stream(1))), snapshot(ANCHORS.recall(kept(), rng=stream(1)))
        )

    def test_eps_is_scaled_to_the_batch_of_new_classes_for_them_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batches = []
        monkeypatch.setattr(
            memory,
            "invert_with",
            lambda goal, start, plan, device: batches.append(plan.batch) or invert_with(goal, start, plan),
        )
        scaled = replace(ANCHORS, inversion=Inversion(steps=1, new_batch=10))
        scaled.recall(grown(scaled.recall(kept(), rng=stream(0))), rng=stream(1))
        assert batches == [100, 10]

    def test_states_that_came_in_stay_and_nothing_global_is_drawn(self) -> None:
        state = kept()
        before = snapshot(state)
        with untouched_generators():
            recalled = ANCHORS.recall(state, rng=stream(1))
            grown(recalled)
        assert same(snapshot(state), before)


def test_nothing_keeps_and_recalls_nothing() -> None:
    state = base()
    assert NoMemory().keep(state, latents_of(state, 0), latents_of(state, 0), rng=stream(0)) is state
    assert NoMemory().recall(state, rng=stream(0)) is state


ALL: list[Memory] = [
    NoMemory(),
    ClassMeans(),
    Anchors(per_class=5),
    LatentSamples(per_class=5),
    RealSamples(per_class=5),
    ANCHORS,
    InvertedLabels(per_class=5, inversion=Inversion(steps=1)),
]


class TestFacts:
    """What memories say of themselves is what they do."""

    @pytest.mark.parametrize("each", ALL, ids=lambda each: type(each).__name__)
    def test_parts_of_the_state_and_how_many_samples(self, each: Memory) -> None:
        state, train = base(), toy().of(*BASE)
        state = each.keep(state, train, latents_of(state, *BASE), rng=stream(5))
        parts = ("anchors", "replay", "recordings", "signals")
        assert tuple(part for part in parts if getattr(state, part)) == each.stores
        counts = [len(train.of(label)) for label in BASE]
        assert each.n_kept(counts) == (len(getattr(state, each.stores[0])) if each.stores else 0)
        recalled = each.recall(state, rng=stream(1))
        assert {part for part in parts if getattr(recalled, part)} <= {*each.stores, *each.may_store}
        assert each.inverts == any(curve.name == "invert" for curve in recalled.curves)

    @pytest.mark.parametrize("each", ALL, ids=lambda each: type(each).__name__)
    def test_more_shots_join_the_anchors_or_nothing(self, each: Memory) -> None:
        state = each.keep(base(), toy().of(*BASE), latents_of(base(), *BASE), rng=stream(5))
        shots = Batch(encode(state.tail, latents_of(state, 2).values), torch.full((8,), 2))
        added = each.add(state, shots)
        if not isinstance(each, Anchors):
            assert added is state
        else:
            assert added.anchors is not None and state.anchors is not None
            assert same(added.anchors.values, torch.cat([state.anchors.values, shots.values]))
            assert added.replay is state.replay
