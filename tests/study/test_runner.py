"""Running a protocol: nobody's result depends on who else runs, and nobody sees what they should not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anchorinv.core import catalogue
from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine
from anchorinv.core.metrics import confusion
from anchorinv.core.networks import encode
from anchorinv.core.prototypes import mean_of_shots
from anchorinv.core.recipe import BaseSpec, Method, Recipe
from anchorinv.core.training import Finetune
from anchorinv.core.types import Batch, Session, State, scoped_seed, stream
from anchorinv.progress import Tick, listening
from anchorinv.study.runner import Protocol, Scorer, SessionResult, run
from tests.core.small import SMALL, anchorinv, base_spec, toy, untouched_generators

FOUNDATION = base_spec()
METHODS: dict[str, Method] = {
    "anchorinv": anchorinv(FOUNDATION, start=mean_of_shots),
    "protonet": catalogue.protonet(FOUNDATION),
    "finetune": catalogue.finetune(FOUNDATION, adapt=Finetune(steps=(1,), lr=3e-4)),
}
PROTOCOL = Protocol(base_classes=(0, 2), sessions=(3, 1), shots=3, trials=2, seed=5)
TRAIN, TEST = toy(noise=3.0), toy(n_per_class=15, noise=3.0, seed=1)  # hard enough to err
Results = dict[tuple[str, int | None, int], list[list[int]]]


def results(methods: Mapping[str, Method], protocol: Protocol = PROTOCOL) -> Results:
    found = run(methods, TRAIN, TEST, protocol)
    return {(r.method, r.trial, r.session): r.confusion.tolist() for r in found}


@lru_cache
def all_results() -> Results:
    return results(METHODS)


def test_results_are_worth_comparing() -> None:
    # Were they all alike, that nothing influences them would be no news.
    last = {str(matrix) for (_, trial, session), matrix in all_results().items() if session == 2}
    assert len(last) >= 4


class TestIndependence:
    @pytest.mark.parametrize("name", METHODS)
    def test_of_the_other_methods(self, name: str) -> None:
        alone = results({name: METHODS[name]})
        assert alone == {key: value for key, value in all_results().items() if key[0] == name}

    def test_of_their_order(self) -> None:
        assert results(dict(reversed(METHODS.items()))) == all_results()

    @pytest.mark.parametrize("trials", [1, 3])
    def test_of_the_number_of_trials(self, trials: int) -> None:
        some = results(METHODS, replace(PROTOCOL, trials=trials))
        shared = some.keys() & all_results().keys()
        assert len(shared) == 3 * (1 + 2 * min(trials, 2))
        assert {key: some[key] for key in shared} == {key: all_results()[key] for key in shared}

    def test_of_the_later_sessions(self) -> None:
        fewer = results(METHODS, replace(PROTOCOL, sessions=(3,)))
        assert fewer.items() <= all_results().items()

    def test_of_the_global_generator_which_stays_as_it_is(self) -> None:
        with scoped_seed(stream(321)), untouched_generators():
            assert results(METHODS) == all_results()

    def test_but_not_of_the_seed(self) -> None:
        assert results(METHODS, replace(PROTOCOL, seed=6)) != all_results()


class TestResults:
    def test_come_in_order_each_trial_through_all_sessions(self) -> None:
        order = [(None, 0), (0, 1), (0, 2), (1, 1), (1, 2)]
        assert list(all_results()) == [(name, *step) for name in METHODS for step in order]

    def test_come_as_they_are_made(self) -> None:
        # The first one is there before anything of the later sessions was asked for.
        too_few = Batch(TRAIN.values, torch.where(TRAIN.labels == 1, 9, TRAIN.labels))
        found = run(METHODS, too_few, TEST, PROTOCOL)
        assert [next(found).session for _ in range(2)] == [0, 1]
        with pytest.raises(ValueError, match="class 1 has 0 training samples"):
            next(found)

    def test_facts(self) -> None:
        found = list(run({"anchorinv": METHODS["anchorinv"]}, TRAIN, TEST, PROTOCOL))
        assert {(r.base_seed, r.n_base) for r in found} == {(5, 2)}
        assert [r.classes for r in found[:3]] == [(0, 2), (0, 2, 3), (0, 2, 3, 1)]
        assert all(r.seconds > 0 for r in found)
        for r in found:
            assert r.confusion.dtype == np.int64
            assert r.confusion.sum(1).tolist() == [15] * len(r.classes)  # every test sample, by its class

    def test_progress_is_told(self) -> None:
        heard: list[Tick] = []
        with listening(heard.append):
            results({"protonet": METHODS["protonet"]})
        told = [(tick.done, tick.total) for tick in heard if tick.task == "ProtoNet: trials"]
        assert told == [(0, 2), (1, 2), (2, 2)]

    @pytest.mark.parametrize("name", METHODS)
    def test_are_those_of_the_method_by_itself(self, name: str) -> None:
        # By the protocol alone: no shared base model, no recall ahead, no latents of the test set.
        method = METHODS[name]

        def matrix(state: State) -> list[list[int]]:
            asked = TEST.of(*state.classes)
            return confusion(
                asked.labels.numpy(), method.predict(state, asked.values).numpy(), state.classes
            ).tolist()

        state = method.fit_base(TRAIN.of(0, 2), rng=stream(5, "base"))
        assert matrix(state) == all_results()[name, None, 0]
        for trial in range(2):
            adapted = state
            for session in PROTOCOL.draw(TRAIN, trial):
                adapted = method.learn_session(adapted, session, rng=stream(5, "trial", trial, session.index))
                assert matrix(adapted) == all_results()[name, trial, session.index]


class TestReliability:
    @pytest.mark.parametrize("name", METHODS)
    def test_is_that_of_softmax_probabilities(self, name: str) -> None:
        method = METHODS[name]
        assert isinstance(method, Recipe)
        base, first, _ = run({name: method}, TRAIN, TEST, replace(PROTOCOL, trials=1))
        state = method.fit_base(TRAIN.of(0, 2), rng=stream(5, "base"))
        (session, _) = PROTOCOL.draw(TRAIN, 0)
        learned = method.learn_session(state, session, rng=stream(5, "trial", 0, 1))
        for found, now in ((base, state), (first, learned)):
            assert found.reliability is not None
            for part, classes in (("base", (0, 2)), ("new", now.classes[2:])):
                each = getattr(found.reliability, part)
                assert each.n == 15 * len(classes)
                if not classes:
                    continue
                asked = TEST.of(*classes)
                logits = encode(now.head, encode(now.tail, encode(now.trunk, asked.values))).double()
                true = [now.classes.index(label) for label in asked.labels.tolist()]
                loss = torch.nn.functional.cross_entropy(logits, torch.tensor(true))
                assert each.nll == pytest.approx(loss.item(), rel=1e-5)
                sure = logits.softmax(1).amax(1).mean().item()
                assert each.mean_confidence == pytest.approx(sure, rel=1e-5)
            assert found.reliability.all.correct.sum() == np.trace(found.confusion)

    def test_is_the_same_each_time(self) -> None:
        found = [list(run(METHODS, TRAIN, TEST, PROTOCOL)) for _ in range(2)]
        one, other = ([r.reliability.to_dict() for r in each if r.reliability] for each in found)
        assert one == other and len(one) == 15

    def test_a_method_that_only_predicts_has_none(self) -> None:
        assert {r.reliability for r in run({"mean": NearestMean()}, TRAIN, TEST, PROTOCOL)} == {None}

    def test_a_training_that_ended_in_nan_has_none_and_is_scored_all_the_same(self) -> None:
        method = METHODS["protonet"]
        assert isinstance(method, Recipe)
        state = method.fit_base(TRAIN.of(0, 2), rng=stream(5, "base"))
        lost = replace(state, head=Cosine(torch.full_like(state.head.prototypes, torch.nan)))
        counts, reliability = Scorer(TEST).score(method, lost)
        assert counts.sum() == 30 and reliability is None


@dataclass
class NearestMean:
    """A method that is no recipe: the nearest mean signal. It notes all that it is shown."""

    fitted: list[Batch] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    known: list[tuple[int, ...]] = field(default_factory=list)
    asked: list[Tensor] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def fit_base(self, train: Batch, *, rng: torch.Generator) -> State:
        self.fitted.append(train)
        self.seeds.append(rng.initial_seed())
        shape = (train.values.shape[1], train.values.shape[2])
        head = Cosine(torch.zeros(0, shape[0] * shape[1]))
        empty = State(nn.Identity(), nn.Flatten(), head, (), len(train.classes), shape, rng.initial_seed())
        return self._with(empty, train)

    def learn_session(self, state: State, session: Session, *, rng: torch.Generator) -> State:
        self.sessions.append(session)
        self.known.append(state.classes)
        self.seeds.append(rng.initial_seed())
        return replace(self._with(state, session.train), session=session.index)

    def predict(self, state: State, signals: Tensor) -> Tensor:
        self.asked.append(signals)
        return torch.tensor(state.classes)[state.head(signals.flatten(1)).argmax(1)]

    def _with(self, state: State, train: Batch) -> State:
        assert isinstance(state.head, Cosine)
        means = torch.stack([train.of(label).values.mean(0).flatten() for label in train.classes])
        head = state.head.add_classes(means).requires_grad_(False)
        return replace(state, head=head, classes=(*state.classes, *train.classes))


def rows(batch: Batch | Tensor) -> set[bytes]:
    values = batch.values if isinstance(batch, Batch) else batch
    return {sample.numpy().tobytes() for sample in values}


class TestWhatAMethodSees:
    @staticmethod
    def shown() -> tuple[NearestMean, list[SessionResult]]:
        method = NearestMean()
        return method, list(run({"mean": method}, TRAIN, TEST, PROTOCOL))

    def test_base_classes_in_the_base_session_all_of_them(self) -> None:
        method, _ = self.shown()
        assert len(method.fitted) == 1
        assert torch.equal(method.fitted[0].values, TRAIN.of(0, 2).values)
        assert torch.equal(method.fitted[0].labels, TRAIN.of(0, 2).labels)

    def test_a_sessions_shots_in_a_session_and_no_future_class(self) -> None:
        method, _ = self.shown()
        assert [session.index for session in method.sessions] == [1, 2, 1, 2]
        assert [session.train.classes for session in method.sessions] == [(3,), (1,)] * 2
        assert method.known == [(0, 2), (0, 2, 3)] * 2
        for session in method.sessions:
            assert len(session.train) == PROTOCOL.shots
            assert rows(session.train) <= rows(TRAIN.of(*session.train.classes))
        assert rows(method.sessions[0].train) != rows(method.sessions[2].train)

    def test_never_a_test_sample_where_it_learns(self) -> None:
        method, _ = self.shown()
        learned_from = rows(method.fitted[0]).union(*(rows(session.train) for session in method.sessions))
        assert not learned_from & rows(TEST)

    def test_test_samples_of_known_classes_where_it_predicts(self) -> None:
        method, found = self.shown()
        assert [rows(asked) for asked in method.asked] == [rows(TEST.of(*r.classes)) for r in found]

    def test_trials_start_from_the_base_state_with_seeds_of_their_own(self) -> None:
        method, _ = self.shown()
        assert method.seeds[0] == stream(5, "base").initial_seed()
        expected = [stream(5, "trial", t, s).initial_seed() for t in range(2) for s in (1, 2)]
        assert method.seeds[1:] == expected

    def test_all_methods_see_the_same_shots(self) -> None:
        one, other = NearestMean(), NearestMean()
        list(run({"one": one, "protonet": METHODS["protonet"], "other": other}, TRAIN, TEST, PROTOCOL))
        for a, b in zip(one.sessions, other.sessions, strict=True):
            assert torch.equal(a.train.values, b.train.values)

    def test_a_plain_class_works_beside_recipes(self) -> None:
        method, found = self.shown()
        beside = results({"protonet": METHODS["protonet"], "mean": NearestMean()})
        assert {key: value for key, value in beside.items() if key[0] == "mean"} == {
            (r.method, r.trial, r.session): r.confusion.tolist() for r in found
        }
        by_hand = method.predict(method.fit_base(TRAIN.of(0, 2), rng=stream(0)), TEST.of(0, 2).values)
        expected = confusion(TEST.of(0, 2).labels.numpy(), by_hand.numpy(), (0, 2))
        assert found[0].confusion.tolist() == expected.tolist()
        assert np.trace(found[0].confusion) > 20  # of 30


class TestSharedFoundation:
    @staticmethod
    def counting() -> tuple[Callable[[], nn.Module], list[int]]:
        made: list[int] = []

        def backbone() -> nn.Module:
            made.append(1)
            return Conformer(SMALL)

        return backbone, made

    def test_is_trained_once(self) -> None:
        backbone, made = self.counting()
        base = replace(FOUNDATION, backbone=backbone)
        methods = {"a": catalogue.protonet(base), "b": anchorinv(base), "c": catalogue.protonet(base)}
        found = results(methods)
        assert len(made) == 1
        assert found["a", None, 0] == found["b", None, 0] == found["c", None, 0]

    def test_equal_is_the_same(self) -> None:
        backbone, made = self.counting()
        twins = [BaseSpec(backbone, Cosine.start, FOUNDATION.training) for _ in range(2)]
        results({"a": catalogue.protonet(twins[0]), "b": catalogue.protonet(twins[1])})
        assert len(made) == 1

    def test_another_head_or_training_is_another_foundation(self) -> None:
        backbone, made = self.counting()
        base = replace(FOUNDATION, backbone=backbone)
        longer = replace(base, training=replace(base.training, epochs=4))
        results(
            {"a": catalogue.protonet(base), "b": catalogue.finetune(base), "c": catalogue.protonet(longer)},
            replace(PROTOCOL, sessions=()),
        )
        assert len(made) == 3

    def test_sharing_changes_no_result(self) -> None:
        apart = {
            "anchorinv": anchorinv(
                replace(FOUNDATION, backbone=partial(Conformer, SMALL)), start=mean_of_shots
            ),
            "protonet": catalogue.protonet(replace(FOUNDATION, backbone=partial(Conformer, SMALL))),
        }
        assert results(apart).items() <= all_results().items()
