"""Run methods through a protocol: the same shots for all, and test data for the scorer alone."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor, nn

from anchorinv.core.checkpoint import Checkpoint
from anchorinv.core.memory import Memory
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
    facts : how the session's descents ended, and the weights they used.
    variant, person : of which part of a study it is; empty where there are none.
    peak_mb : the most memory that the process held, where it was measured.
    """

    method: str
    base_seed: int
    trial: int | None
    session: int
    classes: tuple[int, ...]
    n_base: int
    confusion: np.ndarray
    seconds: float
    facts: dict[str, float] = field(default_factory=dict)
    variant: str = ""
    person: str = ""
    peak_mb: float | None = None


class Shelf(Interface):
    """Keeps what methods and trials share, so that it is made once."""

    def base(self, foundation: Foundation, make: Callable[[Checkpoint | None], State]) -> tuple[State, float]:
        """Return a base model and the seconds it took, making it if nobody did."""
        ...

    def recalled(self, foundation: Foundation, memory: Memory, make: Callable[[], State]) -> State:
        """Return the base model with a memory's replay of the base classes, making it if nobody did."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is computed, or lost, as a whole: one trial of one method through all sessions.

    Parameters
    ----------
    trial : None for the base session.
    results : computed as they are asked for; all of them before the next chunk.
    """

    method: str
    trial: int | None
    results: Iterator[SessionResult]


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
    for chunk in chunks(methods, train, test, protocol):
        yield from chunk.results


def chunks(
    methods: Mapping[str, Method],
    train: Batch,
    test: Batch,
    protocol: Protocol,
    *,
    shelf: Shelf | None = None,
    skip: Callable[[str, int | None], bool] = lambda method, trial: False,
    where: str = "",
) -> Iterator[Chunk]:
    """Yield the chunks of :func:`run`, without those that ``skip`` (method, trial) is true of.

    Progress is told with ``where`` before the method's name.
    """
    base_train = train.of(*protocol.base_classes)
    scorer = _Scorer(test)
    shelf = shelf or InMemory()
    for name, method in methods.items():
        pending = [trial for trial in (None, *range(protocol.trials)) if not skip(name, trial)]
        if not pending:
            continue
        base, seconds = _base(method, base_train, shelf, protocol)
        if pending[0] is None:
            yield Chunk(name, None, iter([_result(name, protocol, None, method, base, seconds, scorer)]))
        if any(trial is not None for trial in pending):
            # Shared by all trials; each would make the same by itself.
            base = _recalled(method, base, shelf, protocol)
        for trial in pending:
            if trial is not None:
                tick(f"{where}{name}: trials", trial, protocol.trials)
                yield Chunk(name, trial, _trial(name, method, base, train, scorer, protocol, trial))
        tick(f"{where}{name}: trials", protocol.trials, protocol.trials)


def _trial(
    name: str, method: Method, base: State, train: Batch, scorer: "_Scorer", protocol: Protocol, trial: int
) -> Iterator[SessionResult]:
    state = base
    for session in protocol.draw(train, trial):
        rng = stream(protocol.seed, "trial", trial, session.index)
        began = time.perf_counter()
        state = method.learn_session(state, session, rng=rng)
        seconds = time.perf_counter() - began
        yield _result(name, protocol, trial, method, state, seconds, scorer)


def _base(method: Method, train: Batch, shelf: Shelf, protocol: Protocol) -> tuple[State, float]:
    rng = stream(protocol.seed, "base")
    if not isinstance(method, Recipe):
        began = time.perf_counter()
        state = method.fit_base(train, rng=rng)
        return state, time.perf_counter() - began
    foundation = method.foundation
    base, seconds = shelf.base(
        foundation, lambda checkpoint: foundation.fit(train, checkpoint=checkpoint, rng=rng)
    )
    return method.start(base, train, rng=rng), seconds


def _recalled(method: Method, base: State, shelf: Shelf, protocol: Protocol) -> State:
    if not isinstance(method, Recipe):
        return base
    rng = stream(stream(protocol.seed, "base"), "recall")
    found = shelf.recalled(method.foundation, method.memory, lambda: method.recall(base, rng=rng))
    # The same network as the base's, also where it was read from a file: its latents are known.
    return replace(found, trunk=base.trunk, tail=base.tail, head=base.head)


class InMemory:
    """A shelf that lasts as long as the run."""

    def __init__(self) -> None:
        self._bases: dict[Foundation, tuple[State, float]] = {}

    def base(self, foundation: Foundation, make: Callable[[Checkpoint | None], State]) -> tuple[State, float]:
        """Return a base model and the seconds it took."""
        if foundation not in self._bases:
            began = time.perf_counter()
            state = make(None)
            self._bases[foundation] = state, time.perf_counter() - began
        return self._bases[foundation]

    def recalled(self, foundation: Foundation, memory: Memory, make: Callable[[], State]) -> State:
        """Return the replay, made anew: a method asks once."""
        return make()


class _Scorer:
    """Holds the test data and, since trunks are frozen, encodes it once per trunk."""

    def __init__(self, test: Batch) -> None:
        self._test = test
        self._latents: tuple[nn.Module | None, Tensor] = None, torch.empty(0)

    def confusion(self, method: Method, state: State) -> np.ndarray:
        asked = torch.isin(self._test.labels, torch.tensor(state.classes))
        if isinstance(method, Recipe):
            predicted = method.predict_latents(state, self._encoded(state.trunk)[asked])
        else:
            predicted = method.predict(state, self._test.values[asked])
        return confusion(self._test.labels[asked].numpy(), predicted.numpy(), state.classes)

    def _encoded(self, trunk: nn.Module) -> Tensor:
        known, latents = self._latents
        if known is not trunk:
            latents = mapped(trunk, self._test.values)
            self._latents = trunk, latents
        return latents


def _result(
    name: str,
    protocol: Protocol,
    trial: int | None,
    method: Method,
    state: State,
    seconds: float,
    scorer: _Scorer,
) -> SessionResult:
    ended = [curve for curve in getattr(state, "curves", ()) if curve.session == state.session]
    return SessionResult(
        name,
        protocol.seed,
        trial,
        state.session,
        state.classes,
        state.n_base,
        scorer.confusion(method, state),
        seconds,
        {curve.name: float(f"{curve.values[-1]:.6g}") for curve in ended if len(curve.values)},
    )
