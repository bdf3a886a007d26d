"""Run methods through a protocol: the same shots for all, and test data for the scorer alone."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from anchorinv.core.metrics import confusion
from anchorinv.core.networks import mapped
from anchorinv.core.progress import tick
from anchorinv.core.protocol import Protocol
from anchorinv.core.recipe import Foundation, Method, Recipe
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch, State


@dataclass(frozen=True, slots=True, eq=False)
class SessionResult:
    """What one method got in one session of one trial.

    Parameters
    ----------
    trial : None in the base session, which all trials share.
    classes : known after the session, the ``n_base`` base classes first.
    confusion : (n_classes, n_classes) int64, rows true, over the test samples of these classes.
    seconds : spent learning the session.
    """

    method: str
    base_seed: int
    trial: int | None
    session: int
    classes: tuple[int, ...]
    n_base: int
    confusion: np.ndarray
    seconds: float


def run(
    methods: Mapping[str, Method], train: Batch, test: Batch, protocol: Protocol
) -> Iterator[SessionResult]:
    """Yield the result of every method, trial and session as it is finished.

    Each trial continues its own model through the sessions. Methods with the same foundation share one
    base model. A trial's results depend on the protocol's seed, the trial and the session, not on the
    other methods, the order or the number of trials.

    Parameters
    ----------
    methods : by the name under which results are reported.
    train, test : signals of all classes; a method sees its session's part of ``train``, and never ``test``.
    """
    base_train = train.of(*protocol.base_classes)
    base_rng = stream(protocol.seed, "base")
    scorer = _Scorer(test)
    trained: dict[Foundation, tuple[State, float]] = {}
    for name, method in methods.items():
        state, seconds = _base(method, base_train, trained, rng=base_rng)
        yield _result(name, protocol, None, method, state, seconds, scorer)
        if isinstance(method, Recipe):
            # Shared by all trials; each would make the same by itself.
            state = method.recall(state, rng=stream(base_rng, "recall"))
        for trial in range(protocol.trials):
            tick(f"{name}: trials", trial, protocol.trials)
            adapted = state
            for session in protocol.draw(train, trial):
                rng = stream(protocol.seed, "trial", trial, session.index)
                began = time.perf_counter()
                adapted = method.learn_session(adapted, session, rng=rng)
                seconds = time.perf_counter() - began
                yield _result(name, protocol, trial, method, adapted, seconds, scorer)
        tick(f"{name}: trials", protocol.trials, protocol.trials)


def _base(
    method: Method, train: Batch, trained: dict[Foundation, tuple[State, float]], *, rng: torch.Generator
) -> tuple[State, float]:
    began = time.perf_counter()
    if not isinstance(method, Recipe):
        state = method.fit_base(train, rng=rng)
        return state, time.perf_counter() - began
    if method.foundation not in trained:
        fitted = method.foundation.fit(train, rng=rng)
        trained[method.foundation] = fitted, time.perf_counter() - began
    base, seconds = trained[method.foundation]
    return method.start(base, train, rng=rng), seconds


class _Scorer:
    """Holds the test data and, since trunks are frozen, encodes it once per trunk."""

    def __init__(self, test: Batch) -> None:
        self._test = test
        self._latents: dict[nn.Module, Tensor] = {}

    def confusion(self, method: Method, state: State) -> np.ndarray:
        asked = torch.isin(self._test.labels, torch.tensor(state.classes))
        if isinstance(method, Recipe):
            if state.trunk not in self._latents:
                self._latents[state.trunk] = mapped(state.trunk, self._test.values)
            predicted = method.predict_latents(state, self._latents[state.trunk][asked])
        else:
            predicted = method.predict(state, self._test.values[asked])
        return confusion(self._test.labels[asked].numpy(), predicted.numpy(), state.classes)


def _result(
    name: str,
    protocol: Protocol,
    trial: int | None,
    method: Method,
    state: State,
    seconds: float,
    scorer: _Scorer,
) -> SessionResult:
    return SessionResult(
        name,
        protocol.seed,
        trial,
        state.session,
        state.classes,
        state.n_base,
        scorer.confusion(method, state),
        seconds,
    )
