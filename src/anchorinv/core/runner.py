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
from anchorinv.core.recipe import BaseLearner, Method, Recipe
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

    def base(
        self, foundation: BaseLearner, make: Callable[[Checkpoint | None], State]
    ) -> tuple[State, float]:
        """Return a base model and the seconds it took, making it if nobody did."""
        ...

    def recalled(self, foundation: BaseLearner, memory: Memory, make: Callable[[], State]) -> State:
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

    Nothing is computed before a chunk's results are asked for, so an error belongs to a chunk and the next
    one can be asked for all the same. Progress is told with ``where`` before the method's name.
    """
    scorer, shelf = Scorer(test), shelf or InMemory()
    for name, method in methods.items():
        pending = [trial for trial in (None, *range(protocol.trials)) if not skip(name, trial)]
        lane = Lane(name, method, train, scorer, protocol, shelf)
        for trial in pending:
            if trial is not None:
                tick(f"{where}{name}: trials", trial, protocol.trials)
            yield Chunk(name, trial, lane.results(trial))
        if pending:
            tick(f"{where}{name}: trials", protocol.trials, protocol.trials)


class Lane:
    """A method on its base model, from which all its trials start, in any order.

    Base model and replay are made, or taken from the shelf, when the first result is asked for.

    Parameters
    ----------
    name : under which results are reported.
    train : signals of all classes.
    scorer : of the test data; lanes may share one.
    base : state after the base session, where that is over already.
    """

    def __init__(
        self,
        name: str,
        method: Method,
        train: Batch,
        scorer: "Scorer",
        protocol: Protocol,
        shelf: Shelf,
        *,
        base: State | None = None,
    ) -> None:
        self._name, self._method, self._train = name, method, train
        self._scorer, self._protocol, self._shelf = scorer, protocol, shelf
        self._base: tuple[State, float] | Exception | None = None if base is None else (base, 0.0)
        self._ready: State | Exception | None = None

    def results(self, trial: int | None) -> Iterator[SessionResult]:
        """Yield the base session's result (None), or the results of a trial, session by session."""
        if trial is None:
            base, seconds = self.base()
            yield self._result(None, base, seconds)
            return
        state = self.ready()
        for session in self._protocol.draw(self._train, trial):
            rng = stream(self._protocol.seed, "trial", trial, session.index)
            began = time.perf_counter()
            state = self._method.learn_session(state, session, rng=rng)
            seconds = time.perf_counter() - began
            yield self._result(trial, state, seconds)

    def base(self) -> tuple[State, float]:
        """Return the state after the base session, and the seconds that its training took."""
        if self._base is None:
            # Kept, too, if it fails: it would fail again, for every trial.
            try:
                base_train = self._train.of(*self._protocol.base_classes)
                self._base = _base(self._method, base_train, self._shelf, self._protocol)
            except Exception as error:
                self._base = error
        if isinstance(self._base, Exception):
            raise self._base
        return self._base

    def ready(self) -> State:
        """Return the state that all trials start from, with the replay that each would make by itself."""
        if self._ready is None:
            base, _ = self.base()
            try:
                self._ready = _recalled(self._method, base, self._shelf, self._protocol)
            except Exception as error:
                self._ready = error
        if isinstance(self._ready, Exception):
            raise self._ready
        return self._ready

    def _result(self, trial: int | None, state: State, seconds: float) -> SessionResult:
        matrix = self._scorer.confusion(self._method, state)
        ended = [curve for curve in getattr(state, "curves", ()) if curve.session == state.session]
        return SessionResult(
            self._name,
            self._protocol.seed,
            trial,
            state.session,
            state.classes,
            state.n_base,
            matrix,
            seconds,
            {curve.name: float(f"{curve.values[-1]:.6g}") for curve in ended if len(curve.values)},
        )


def fit_foundation(
    foundation: BaseLearner, base_train: Batch, protocol: Protocol, checkpoint: Checkpoint | None
) -> State:
    """Return the base model that a protocol's seed determines."""
    return foundation.fit(base_train, checkpoint=checkpoint, rng=stream(protocol.seed, "base"))


def _base(method: Method, train: Batch, shelf: Shelf, protocol: Protocol) -> tuple[State, float]:
    rng = stream(protocol.seed, "base")
    if not isinstance(method, Recipe):
        began = time.perf_counter()
        state = method.fit_base(train, rng=rng)
        return state, time.perf_counter() - began
    foundation = method.foundation
    base, seconds = shelf.base(
        foundation, lambda checkpoint: fit_foundation(foundation, train, protocol, checkpoint)
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
    """A shelf that lasts as long as the run.

    Parameters
    ----------
    bases : base models that are there already, and the seconds they took.
    replay : base model with replay that is there already, for the only method that asks.
    """

    def __init__(
        self, bases: Mapping[BaseLearner, tuple[State, float]] | None = None, replay: State | None = None
    ) -> None:
        self._bases, self._replay = dict(bases or {}), replay

    def base(
        self, foundation: BaseLearner, make: Callable[[Checkpoint | None], State]
    ) -> tuple[State, float]:
        """Return a base model and the seconds it took."""
        if foundation not in self._bases:
            began = time.perf_counter()
            state = make(None)
            self._bases[foundation] = state, time.perf_counter() - began
        return self._bases[foundation]

    def recalled(self, foundation: BaseLearner, memory: Memory, make: Callable[[], State]) -> State:
        """Return the replay, made anew unless it was given: a method asks once."""
        return self._replay or make()


class Scorer:
    """Holds the test data and, since trunks are frozen, encodes it once per trunk."""

    def __init__(self, test: Batch) -> None:
        self._test = test
        self._latents: tuple[nn.Module | None, Tensor] = None, torch.empty(0)

    def confusion(self, method: Method, state: State) -> np.ndarray:
        """Return the confusion matrix over the test samples of the known classes."""
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
