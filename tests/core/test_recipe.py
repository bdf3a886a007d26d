"""The skeleton: the lines of Algorithm 1 in their order, and methods that collapse into each other."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anchorinv.core import catalogue
from anchorinv.core.heads import Cosine, Head, class_means
from anchorinv.core.networks import encode, frozen, trainable
from anchorinv.core.prototypes import mean_of_shots
from anchorinv.core.recipe import Recipe
from anchorinv.core.training import Finetune
from anchorinv.core.types import Batch, Session, State, scoped_seed, stream
from tests.core.small import anchorinv, base_spec, randn, same, snapshot, toy

FOUNDATION = base_spec()


def renamed(samples: Batch) -> Batch:
    """Class numbers that are no columns: 0, 1, 2, 3, 4 become 30, 10, 7, 20, 2."""
    return Batch(samples.values, torch.tensor([30, 10, 7, 20, 2])[samples.labels])


TRAIN = renamed(toy(5))
BASE = TRAIN.of(30, 10)
FIRST, SECOND = Session(1, TRAIN.of(7)), Session(2, TRAIN.of(20))


@lru_cache
def base() -> State:
    return FOUNDATION.fit(BASE, rng=stream(5))


@dataclass
class Spy:
    """A placement, an adaptation and a memory that note how they are called."""

    calls: list[str] = field(default_factory=list)
    seen: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def note(self, name: str, *what: Any) -> None:
        self.calls.append(name)
        self.seen[name] = what

    def place(self, state: State, shots: Batch) -> Head:
        self.note("place", state, shots)
        return mean_of_shots(state, shots)

    def adapt(
        self, tail: nn.Module, head: Head, shots: Batch, replay: Batch | None, *, session: int
    ) -> tuple[nn.Module, Head, Tensor]:
        self.note("adapt", tail, head, shots, replay, session)
        moved = trainable(tail)
        with torch.no_grad():
            for parameter in moved.parameters():
                parameter.mul_(1.2)
        return frozen(moved), head, torch.tensor([3.0, 2.0])

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        self.note("keep", state, latents, rng.initial_seed())
        return state

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        self.note("recall", state, rng.initial_seed())
        replay = Batch(randn(3, 11, 8, seed=0, dtype=torch.float32), torch.tensor([30, 10, 30]))
        return replace(state, replay=replay)

    def recipe(self) -> Recipe:
        return Recipe("spy", FOUNDATION, place=self.place, adapt=self.adapt, memory=self)


class TestAlgorithm:
    def test_the_base_session_trains_and_then_keeps(self) -> None:
        spy = Spy()
        state = spy.recipe().fit_base(BASE, rng=stream(5))
        assert spy.calls == ["keep"]
        kept_state, latents, _ = spy.seen["keep"]
        assert same(snapshot(kept_state), snapshot(base()))
        assert same(latents.values, encode(state.trunk, BASE.values))
        assert same(latents.labels, BASE.labels)

    def test_a_session_places_recalls_adapts_and_keeps(self) -> None:
        spy = Spy()
        spy.recipe().learn_session(base(), FIRST, rng=stream(1))
        assert spy.calls == ["place", "recall", "adapt", "keep"]

    def test_a_new_class_is_placed_by_the_network_before_it_adapts(self) -> None:
        spy = Spy()
        spy.recipe().learn_session(base(), FIRST, rng=stream(1))
        state, shots = spy.seen["place"]
        assert state is base()
        assert same(shots.values, encode(state.tail, encode(state.trunk, FIRST.train.values)))
        assert same(shots.labels, FIRST.train.labels)

    def test_adaptation_sees_latents_by_column_and_the_replay_just_recalled(self) -> None:
        spy = Spy()
        spy.recipe().learn_session(base(), FIRST, rng=stream(1))
        tail, head, shots, replay, session = spy.seen["adapt"]
        assert tail is base().tail
        assert isinstance(head, Cosine)
        assert len(head.prototypes) == 3
        assert same(shots.values, encode(base().trunk, FIRST.train.values))
        assert shots.labels.tolist() == [2] * 8
        assert replay.labels.tolist() == [1, 0, 1]  # of classes 30, 10, 30; the base is (10, 30)
        assert session == 1

    def test_what_is_kept_is_seen_by_the_adapted_tail(self) -> None:
        spy = Spy()
        after = spy.recipe().learn_session(base(), FIRST, rng=stream(1))
        state, latents, _ = spy.seen["keep"]
        assert state.tail is after.tail is not base().tail
        assert not same(snapshot(base())["tail.0.mlp.0.weight"], snapshot(after)["tail.0.mlp.0.weight"])
        assert state.classes == (10, 30, 7)
        assert state.session == 1
        assert same(latents.values, encode(base().trunk, FIRST.train.values))
        assert same(latents.labels, FIRST.train.labels)

    def test_each_step_draws_from_a_stream_of_its_own(self) -> None:
        spy = Spy()
        spy.recipe().learn_session(base(), FIRST, rng=stream(1))
        assert spy.seen["recall"][-1] == stream(1, "recall").initial_seed()
        assert spy.seen["keep"][-1] == stream(1, "keep").initial_seed()

    def test_what_comes_out(self) -> None:
        after = Spy().recipe().learn_session(base(), FIRST, rng=stream(1))
        assert (after.classes, after.n_base, after.session) == ((10, 30, 7), 2, 1)
        assert after.trunk is base().trunk
        assert [(curve.name, curve.session) for curve in after.curves] == [("base", 0), ("finetune", 1)]
        assert after.curves[-1].values.tolist() == [3.0, 2.0]

    def test_sessions_follow_each_other(self) -> None:
        spy = Spy()
        recipe = spy.recipe()
        after = recipe.learn_session(base(), FIRST, rng=stream(1))
        later = recipe.learn_session(after, SECOND, rng=stream(2))
        assert later.classes == (10, 30, 7, 20)
        assert spy.seen["adapt"][0] is after.tail
        assert spy.seen["adapt"][-1] == 2


class TestFoundation:
    def test_prototypes_are_the_class_means_after_training(self) -> None:
        state = base()
        features = encode(state.tail, encode(state.trunk, BASE.values))
        assert isinstance(state.head, Cosine)
        expected = class_means(features, (BASE.labels == 30).long())
        torch.testing.assert_close(state.head.prototypes, expected)
        assert len(state.head.free) == 0

    def test_facts(self) -> None:
        state = base()
        assert (state.classes, state.n_base, state.shape) == ((10, 30), 2, (3, 40))
        assert (state.session, state.seed) == (0, 5)
        assert state.anchors is state.replay is None
        assert [(curve.name, curve.session, len(curve.values)) for curve in state.curves] == [("base", 0, 6)]

    def test_same_generator_same_bits_whatever_the_global_one(self) -> None:
        with scoped_seed(stream(77)):
            again = FOUNDATION.fit(BASE, rng=stream(5))
        assert same(snapshot(again), snapshot(base()))
        other = FOUNDATION.fit(BASE, rng=stream(6))
        assert not same(snapshot(other)["trunk.0.time_weight"], snapshot(base())["trunk.0.time_weight"])

    def test_one_class_is_not_enough(self) -> None:
        with pytest.raises(ValueError, match="at least two classes, got 1"):
            FOUNDATION.fit(TRAIN.of(7), rng=stream(5))


class TestSpecialCases:
    def test_no_finetuning_from_mean_prototypes_is_protonet(self) -> None:
        still = anchorinv(FOUNDATION, start=mean_of_shots, adapt=Finetune(steps=(0,), lr=1e-3))
        protonet = catalogue.protonet(FOUNDATION)
        states = [method.fit_base(BASE, rng=stream(5)) for method in (still, protonet)]
        for session in (FIRST, SECOND):
            states = [
                method.learn_session(state, session, rng=stream(1))
                for method, state in zip((still, protonet), states, strict=True)
            ]
            predictions = [
                method.predict(state, TRAIN.values)
                for method, state in zip((still, protonet), states, strict=True)
            ]
            assert torch.equal(*predictions)
            assert set(predictions[0].tolist()) >= {session.train.classes[0]}
            assert same(snapshot(states[0])["head.fixed"], snapshot(states[1])["head.fixed"])

    def test_recalling_ahead_of_a_session_changes_nothing(self) -> None:
        method = anchorinv(FOUNDATION)
        state = method.start(base(), BASE, rng=stream(5))
        ahead = method.recall(state, rng=stream(99))
        assert ahead.replay is not None
        one, other = (method.learn_session(s, FIRST, rng=stream(1)) for s in (state, ahead))
        assert same(snapshot(one), snapshot(other))

    def test_classes_of_one_session_are_learned_together(self) -> None:
        protonet = catalogue.protonet(FOUNDATION)
        both = TRAIN.of(7, 20)
        turned = both[torch.arange(len(both)).flip(0)]
        state = protonet.fit_base(BASE, rng=stream(5))
        together = protonet.learn_session(state, Session(1, turned), rng=stream(1))
        one_by_one = protonet.learn_session(state, FIRST, rng=stream(1))
        one_by_one = protonet.learn_session(one_by_one, SECOND, rng=stream(1))
        assert together.classes == one_by_one.classes == (10, 30, 7, 20)
        assert isinstance(together.head, Cosine) and isinstance(one_by_one.head, Cosine)
        torch.testing.assert_close(together.head.prototypes, one_by_one.head.prototypes)

    def test_jointly_trained_classes_have_a_prototype_each(self) -> None:
        method = anchorinv(FOUNDATION)
        state = method.fit_base(BASE, rng=stream(5))
        after = method.learn_session(state, Session(1, TRAIN.of(7, 20)), rng=stream(1))
        assert after.classes == (10, 30, 7, 20)
        assert isinstance(after.head, Cosine)
        assert len(after.head.free) == 2
        assert after.anchors is not None
        assert [len(after.anchors.of(label)) for label in (10, 30, 7, 20)] == [5, 5, 8, 8]


class TestErrors:
    @pytest.mark.parametrize("classes", [(10,), (7, 30)], ids=["known", "mixed"])
    def test_a_known_class_is_refused_by_its_number(self, classes: tuple[int, ...]) -> None:
        spy = Spy()
        known = (set(classes) & {10, 30}).pop()
        with pytest.raises(ValueError, match=f"class {known} is known already"):
            spy.recipe().learn_session(base(), Session(1, TRAIN.of(*classes)), rng=stream(1))
        assert spy.calls == []

    def test_also_one_that_was_learned_in_a_session(self) -> None:
        protonet = catalogue.protonet(FOUNDATION)
        state = protonet.learn_session(base(), FIRST, rng=stream(1))
        with pytest.raises(ValueError, match="class 7 is known already"):
            protonet.learn_session(state, Session(2, FIRST.train), rng=stream(2))


class TestPredict:
    def test_returns_class_numbers(self) -> None:
        protonet = catalogue.protonet(FOUNDATION)
        predicted = protonet.predict(base(), BASE.values)
        assert predicted.shape == BASE.labels.shape
        assert set(predicted.tolist()) <= {10, 30}
        logits = base().head(base().tail(base().trunk(BASE.values)))
        assert torch.equal(predicted == 30, logits[:, 1] > logits[:, 0])

    def test_of_latents_is_of_signals(self) -> None:
        protonet = catalogue.protonet(FOUNDATION)
        latents = encode(base().trunk, TRAIN.values)
        assert torch.equal(protonet.predict_latents(base(), latents), protonet.predict(base(), TRAIN.values))
