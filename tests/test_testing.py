"""What every method promises, checked by one function over the whole catalogue.

A new method is added to ``VARIANTS`` and is held to the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from anchorinv.core import catalogue
from anchorinv.core.heads import PrototypeHead
from anchorinv.core.inversion import Inversion
from anchorinv.core.mahalanobis import FitMahalanobis
from anchorinv.core.prototypes import mean_of_shots, random_rows
from anchorinv.core.recipe import Method
from anchorinv.core.registry import METHODS
from anchorinv.core.training import CrossValidatedFinetune, Finetune
from anchorinv.core.types import Session, State
from anchorinv.testing import check_method
from tests.core.small import anchorinv, base_spec, one_thread, toy

FOUNDATION = base_spec(epochs=4)
SHORT = Finetune(steps=(4,), lr=1e-2)
BRIEF = Inversion(steps=3)
VARIANTS: dict[str, Method] = {
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
        anchorinv(FOUNDATION, adapt=SHORT), fit_head=FitMahalanobis(), views=("spectrum", "covariance")
    ),
    "anchorinv, as far as validated": anchorinv(
        FOUNDATION, start=mean_of_shots, adapt=CrossValidatedFinetune(lengths=(0, 2), lrs=(1e-3,), folds=2)
    ),
    "anchorinv, judged by Mahalanobis distance": replace(
        anchorinv(FOUNDATION, adapt=SHORT), fit_head=FitMahalanobis()
    ),
}
TRAIN = toy(6).of(1, 2, 3)
TEST = toy(6, 3, seed=1).values  # each is predicted alone, too
SESSIONS = (Session(1, toy(6).of(4)), Session(2, toy(6).of(0, 5)))  # then two classes at once


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.mark.parametrize("name", VARIANTS)
def test_the_catalogue_keeps_the_contract(name: str) -> None:
    check_method(VARIANTS[name], TRAIN, SESSIONS, TEST)


def test_every_method_of_the_catalogue_is_checked() -> None:
    assert {method.name for method in VARIANTS.values()} == set(METHODS)


class TestTheCheckItself:
    """A check that cannot fail checks nothing: methods that break a promise are found out."""

    def broken(self, promise: str, learn: Callable[[Method, State, Session, torch.Generator], State]) -> None:
        honest = VARIANTS["protonet"]

        class Broken:
            fit_base = staticmethod(honest.fit_base)
            predict = staticmethod(honest.predict)

            @staticmethod
            def learn_session(state: State, session: Session, *, rng: torch.Generator) -> State:
                return learn(honest, state, session, rng)

        with pytest.raises(AssertionError, match=promise):
            check_method(Broken(), TRAIN, SESSIONS, TEST)

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

        self.broken("the input state was changed|the same rng gave another state", learn)

    def test_finds_a_moved_prototype(self) -> None:
        def learn(honest: Method, state: State, session: Session, rng: torch.Generator) -> State:
            after = honest.learn_session(state, session, rng=rng)
            assert isinstance(after.head, PrototypeHead)
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
