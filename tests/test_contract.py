"""What every method promises, checked by one function over the whole catalogue.

A new method is added to ``METHODS`` and is held to the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import Tensor

from anchorinv.core import catalogue
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion
from anchorinv.core.mahalanobis import FitMahalanobis
from anchorinv.core.prototypes import mean_of_shots, random_rows
from anchorinv.core.recipe import Method
from anchorinv.core.rng import scoped_seed, stream
from anchorinv.core.selection import Validated
from anchorinv.core.training import Finetune
from anchorinv.core.types import Batch, Session, State
from tests.core.small import anchorinv, foundation, one_thread, same, state_of, toy, untouched_generators

FOUNDATION = foundation(epochs=4)
SHORT = Finetune(steps=(4,), lr=1e-2)
BRIEF = Inversion(steps=3)
METHODS: dict[str, Method] = {
    "anchorinv, mean start": anchorinv(FOUNDATION, start=mean_of_shots, adapt=SHORT),
    "anchorinv, random start": anchorinv(FOUNDATION, start=random_rows, adapt=SHORT),
    "anchorinv, from zeros": anchorinv(FOUNDATION, inversion=Inversion(steps=2, from_zeros=True, chunk=4)),
    "anchorinv, shared noise": anchorinv(
        FOUNDATION, inversion=replace(BRIEF, shared_noise=True, new_batch=10)
    ),
    "protonet": catalogue.protonet(FOUNDATION),
    "finetune": catalogue.finetune(FOUNDATION, adapt=SHORT),
    "teen": catalogue.teen(FOUNDATION),
    "nc-fscil": catalogue.nc_fscil(FOUNDATION, n_all=8, adapt=SHORT),
    "deepdream": catalogue.deepdream(FOUNDATION, adapt=SHORT, per_class=3, inversion=BRIEF),
    "deepinv": catalogue.deepinv(FOUNDATION, adapt=SHORT, per_class=3, inversion=BRIEF),
    "real-replay": catalogue.real_replay(FOUNDATION, adapt=SHORT, per_class=3),
    "latent-replay": catalogue.latent_replay(FOUNDATION, adapt=SHORT, per_class=3),
    "ridge": catalogue.ridge(FOUNDATION, per_class=3),
    "whitened": catalogue.whitened(FOUNDATION, per_class=3),
    "fecam": catalogue.fecam(FOUNDATION, per_class=3),
    "ranpac": catalogue.ranpac(FOUNDATION, n_random=60),
    "lda": catalogue.lda(FOUNDATION),
    "mdm": catalogue.mdm(FOUNDATION),
    "discriminant": catalogue.discriminant(FOUNDATION),
    "anchorinv-plus": catalogue.anchorinv_plus(FOUNDATION, per_class=9),
    "discriminant, with a network": catalogue.discriminant(FOUNDATION, network="always"),
    "anchorinv-plus, finetuned": replace(
        anchorinv(FOUNDATION, adapt=SHORT), judge=FitMahalanobis(), views=("spectrum", "covariance")
    ),
    "anchorinv, as far as validated": anchorinv(
        FOUNDATION, start=mean_of_shots, adapt=Validated(lengths=(0, 2), lrs=(1e-3,), folds=2)
    ),
    "anchorinv, judged by Mahalanobis distance": replace(
        anchorinv(FOUNDATION, adapt=SHORT), judge=FitMahalanobis()
    ),
}
SESSIONS = (Session(1, toy(6).of(4)), Session(2, toy(6).of(0, 5)))  # then two classes at once


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def check_method(method: Method, train: Batch, sessions: Sequence[Session], test: Tensor) -> None:
    """Check that a method keeps its promises from the base session to the last.

    Nothing that goes in is changed; the same rng gives the same state; global generators are untouched; what
    comes out is frozen; old prototypes stay; predictions are known classes, whatever the batch.
    """
    state = _checked(lambda rng: method.fit_base(train, rng=rng), [train], seed=5)
    _check_state(method, state, train.classes, test)
    for session in sessions:
        before, known = state, state_of(state)
        state = _checked(
            lambda rng, s=session, b=before: method.learn_session(b, s, rng=rng),
            [train, session.train],
            seed=6,
        )
        assert same(state_of(before), known), "the state that went in was changed"
        _check_state(method, state, (*before.classes, *session.train.classes), test)
        _check_continuity(before, state)


def _checked(learn: Callable[[torch.Generator], State], given: Sequence[Batch], *, seed: int) -> State:
    copies = [(batch.values.clone(), batch.labels.clone()) for batch in given]
    rng = stream(seed)
    with untouched_generators():
        state = learn(rng)
    torch.rand(3, generator=rng)  # how much was drawn from it does not matter, nor does the global one
    with scoped_seed(stream(1, "elsewhere")):
        again = learn(rng)
    assert same(state_of(state), state_of(again)), "the same rng gave another state"
    assert same([(batch.values, batch.labels) for batch in given], copies), "the data were changed"
    return state


def _check_state(method: Method, state: State, classes: tuple[int, ...], test: Tensor) -> None:
    assert state.classes == classes
    modules = [*state.trunk.modules(), *state.tail.modules(), *state.head.modules()]
    assert not any(module.training for module in modules), "a module is in training mode"
    kept = [batch.values for batch in (state.anchors, state.replay) if batch is not None]
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    tensors += [*kept, *(curve.values for curve in state.curves)]
    assert not any(tensor.requires_grad for tensor in tensors), "a state's tensor requires a gradient"
    assert all(torch.isfinite(tensor).all() for tensor in tensors)
    with pytest.raises(FrozenInstanceError):
        state.session = 99  # type: ignore[misc]
    _check_predictions(method, state, test)


def _check_predictions(method: Method, state: State, test: Tensor) -> None:
    before, signals = state_of(state), test.clone()
    with untouched_generators():
        predicted = method.predict(state, signals)
    assert predicted.shape == (len(test),)
    assert set(predicted.tolist()) <= set(state.classes)
    assert torch.equal(method.predict(state, signals), predicted), "a second prediction differs"
    assert same(state_of(state), before), "prediction changed the state"
    assert torch.equal(signals, test), "prediction changed the signals"

    whole = _logits(state, test)
    best = whole.topk(2).values
    clear = best[:, 0] - best[:, 1] > 1e-4  # away from ties
    assert clear.float().mean() > 0.9
    assert torch.equal(torch.tensor(state.classes)[whole.argmax(1)][clear], predicted[clear])
    for size in (1, 7):
        parts = test.split(size)
        split = torch.cat([_logits(state, part) for part in parts])
        torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-5)
        pieces = torch.cat([method.predict(state, part) for part in parts])
        assert torch.equal(pieces[clear], predicted[clear]), "a label depends on the batch"


def _logits(state: State, signals: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = state.head(state.tail(state.trunk(signals)))
    return logits


def _check_continuity(before: State, after: State) -> None:
    """Check what must be the same after a session as before it, bit by bit."""
    assert after.session == before.session + 1
    assert (after.n_base, after.shape, after.seed) == (before.n_base, before.shape, before.seed)
    assert same(_part(before, "trunk"), _part(after, "trunk")), "the trunk moved"
    if isinstance(before.head, Cosine):
        assert isinstance(after.head, Cosine)
        old = before.head.prototypes
        assert torch.equal(after.head.prototypes[: len(old)], old), "an old prototype moved"
    for name in ("anchors", "replay"):
        old_batch, new_batch = getattr(before, name), getattr(after, name)
        if old_batch is not None:
            kept = new_batch[torch.arange(len(old_batch))]
            assert same((kept.values, kept.labels), (old_batch.values, old_batch.labels)), f"old {name} moved"
    assert same(state_of(after)["curves"][: len(before.curves)], state_of(before)["curves"])


def _part(state: State, name: str) -> dict[str, Tensor]:
    return {key: value for key, value in state_of(state).items() if key.startswith(f"{name}.")}


@pytest.mark.parametrize("name", METHODS)
def test_the_catalogue_keeps_the_contract(name: str) -> None:
    check_method(METHODS[name], toy(6).of(1, 2, 3), SESSIONS, toy(6, seed=1).values)


def test_every_method_of_the_catalogue_is_checked() -> None:
    assert {method.name for method in METHODS.values()} == set(catalogue.CATALOGUE)


class TestTheCheckItself:
    """A check that cannot fail checks nothing: methods that break a promise are found out."""

    TRAIN, TEST = toy(6).of(1, 2, 3), toy(6, seed=1).values

    def broken(self, promise: str, learn: Callable[[Method, State, Session, torch.Generator], State]) -> None:
        honest = METHODS["protonet"]

        class Broken:
            fit_base = staticmethod(honest.fit_base)
            predict = staticmethod(honest.predict)

            @staticmethod
            def learn_session(state: State, session: Session, *, rng: torch.Generator) -> State:
                return learn(honest, state, session, rng)

        with pytest.raises(AssertionError, match=promise):
            check_method(Broken(), self.TRAIN, SESSIONS, self.TEST)

    def test_finds_a_global_draw(self) -> None:
        def learn(honest: Method, state: State, session: Session, rng: torch.Generator) -> State:
            torch.rand(1)
            return honest.learn_session(state, session, rng=rng)

        self.broken("global generators touched", learn)

    def test_finds_changed_data(self) -> None:
        def learn(honest: Method, state: State, session: Session, rng: torch.Generator) -> State:
            after = honest.learn_session(state, session, rng=rng)
            session.train.values[0, 0, 0] += 1e-3
            return after

        kept = [session.train.values.clone() for session in SESSIONS]
        try:
            self.broken("the same rng gave another state|the data were changed", learn)
        finally:
            for session, values in zip(SESSIONS, kept, strict=True):
                session.train.values.copy_(values)

    def test_finds_a_changed_state(self) -> None:
        def learn(honest: Method, state: State, session: Session, rng: torch.Generator) -> State:
            after = honest.learn_session(state, session, rng=rng)
            next(state.tail.parameters()).add_(1e-3)
            return after

        self.broken("the state that went in was changed|the same rng gave another state", learn)

    def test_finds_a_moved_prototype(self) -> None:
        def learn(honest: Method, state: State, session: Session, rng: torch.Generator) -> State:
            after = honest.learn_session(state, session, rng=rng)
            assert isinstance(after.head, Cosine)
            after.head.fixed[0] *= 1.0001
            return after

        self.broken("an old prototype moved", learn)

    def test_finds_what_was_left_trainable(self) -> None:
        def learn(honest: Method, state: State, session: Session, rng: torch.Generator) -> State:
            after = honest.learn_session(state, session, rng=rng)
            after.head.requires_grad_(True)
            return after

        self.broken("requires a gradient", learn)

    def test_finds_training_mode(self) -> None:
        def learn(honest: Method, state: State, session: Session, rng: torch.Generator) -> State:
            after = honest.learn_session(state, session, rng=rng)
            after.head.train()
            return after

        self.broken("in training mode", learn)
