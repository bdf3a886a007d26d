"""The few-shot class-incremental protocol, and methods run through it on the same shots."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol as Interface
from typing import runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from anchorinv.core.memory import Memory
from anchorinv.core.metrics import SplitReliability, confusion
from anchorinv.core.minimise import Checkpoint
from anchorinv.core.networks import encode
from anchorinv.core.recipe import BaseLearner, Method
from anchorinv.core.registry import METHODS
from anchorinv.core.types import Batch, Session, State, stream
from anchorinv.progress import tick


@dataclass(frozen=True, slots=True)
class Protocol:
    """A few-shot class-incremental experiment.

    Parameters
    ----------
    base_classes : tuple of int
        Learned first, with all their training data.
    sessions : tuple of int
        The new classes in the order they are learned, ``ways`` of them in each session.
    shots : int, default=10
        Samples of each new class.
    trials : int, default=100
        How many times shots are drawn.
    seed : int, default=5
        Random seed.
    ways : int, default=1
        New classes per session.

    Examples
    --------
    >>> protocol = Protocol(base_classes=(0, 1), sessions=(2, 3, 4, 5), shots=5, ways=2)
    >>> protocol.n_sessions, protocol.classes_of(2)
    (2, (4, 5))
    """

    base_classes: tuple[int, ...]
    sessions: tuple[int, ...]
    shots: int = 10
    trials: int = 100
    seed: int = 5
    ways: int = 1

    def __post_init__(self) -> None:
        named = [*self.base_classes, *self.sessions]
        if twice := sorted(label for label in set(named) if named.count(label) > 1):
            both = twice[0] in self.base_classes and twice[0] in self.sessions
            how = "is both a base and a new class" if both else "is learned twice"
            raise ValueError(f"class {twice[0]} {how}; name it once")
        for name in ("shots", "trials", "ways"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} (={getattr(self, name)}) must be at least 1")
        if len(self.sessions) % self.ways:
            raise ValueError(
                f"{len(self.sessions)} new classes do not fill sessions of {self.ways}; "
                f"change ways or the number of classes"
            )

    @property
    def n_sessions(self) -> int:
        """Return the number of sessions after the base session."""
        return len(self.sessions) // self.ways

    def classes_of(self, session: int) -> tuple[int, ...]:
        """Return the new classes of session 1, 2, ..."""
        return self.sessions[(session - 1) * self.ways : session * self.ways]

    def support(self, labels: Tensor, label: int, trial: int) -> Tensor:
        """Return the sorted indices (shots,) of one class's shots in one trial, given the labels (n,).

        They depend on seed, class and trial alone, so all methods see the same shots, and more trials or
        classes change nothing.
        """
        pool = (labels == label).nonzero().flatten()
        if len(pool) < self.shots:
            raise ValueError(
                f"class {label} has {len(pool)} training samples, {self.shots} shots needed; "
                f"lower shots or add samples"
            )
        chosen = torch.randperm(len(pool), generator=stream(self.seed, "support", label, trial))[: self.shots]
        return pool[chosen.sort().values]

    def draw(self, train: Batch, trial: int) -> Iterator[Session]:
        """Yield the sessions of one trial, each with its shots."""
        for index in range(1, self.n_sessions + 1):
            chosen = torch.cat([self.support(train.labels, label, trial) for label in self.classes_of(index)])
            yield Session(index, train[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class SessionResult:
    """The result of one method in one session of one trial.

    Parameters
    ----------
    method : str
        The name under which it is reported.
    base_seed : int
        Of the protocol.
    trial : int or None
        None in the base session, which all trials share.
    session : int
        0 is the base session.
    classes : tuple of int
        Known after the session, the ``n_base`` base classes first.
    n_base : int
        Number of base classes.
    confusion : ndarray of int64, shape (n_classes, n_classes)
        Rows are true classes; over the test samples of these classes.
    seconds : float
        Spent learning the session.
    facts : dict of str to float
        The last loss of each optimisation in the session, and the weights of its terms.
    variant, person : str
        Condition of the study that it belongs to; empty where there is only one.
    peak_mb : float or None
        Peak memory of the process, where it was measured.
    reliability : SplitReliability or None
        Calibration on the same samples, separately for base and new classes; None where the method has no
        probabilities.

    Examples
    --------
    >>> result = SessionResult("protonet", 5, 0, 1, (0, 1, 2), 2, np.eye(3, dtype=np.int64), 0.1)
    >>> int(result.confusion.trace())
    3
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
    reliability: SplitReliability | None = None


@runtime_checkable
class SharesBase(Interface):
    """Optional interface of a method, in addition to :class:`~anchorinv.core.recipe.Method`, to share work.

    Methods with equal ``base_spec`` share one base model, those with equal ``memory`` too the replay of the
    base classes, and all of them the test samples' latents. A :class:`~anchorinv.core.recipe.Recipe` has it,
    and ``latent_logits(state, latents)``, whose largest is the prediction: where a method has this too, the
    calibration of its probabilities is measured.
    """

    @property
    def base_spec(self) -> BaseLearner:
        """How the base model is made."""

    @property
    def memory(self) -> Memory:
        """What is kept of old classes and replayed."""

    def start(self, base: State, train: Batch, *, rng: torch.Generator) -> State:
        """Return a trained base model with what the method keeps of the base classes."""

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Return the state with the replay that the next session needs."""

    def predict_latents(self, state: State, latents: Tensor) -> Tensor:
        """Return a known class for each output of the trunk, shape (n,)."""


def shares_base(method: Method) -> SharesBase | None:
    """Return the method if it can share its base model, else None."""
    return method if isinstance(method, SharesBase) else None


class Cache(Interface):
    """A cache of what methods and trials share."""

    def base(self, base_spec: BaseLearner, make: Callable[[Checkpoint | None], State]) -> tuple[State, float]:
        """Return a base model and the seconds its training took, training it if it is missing."""

    def recalled(self, base_spec: BaseLearner, memory: Memory, make: Callable[[], State]) -> State:
        """Return the base model with a memory's replay of the base classes, making it if it is missing."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of one method, or its base session (None), through all sessions.

    Results are computed lazily; consume all of them before the next trial.
    """

    method: str
    trial: int | None
    results: Iterator[SessionResult]


def run(
    methods: Mapping[str, Method], train: Batch, test: Batch, protocol: Protocol
) -> Iterator[SessionResult]:
    """Yield the result of every method, trial and session as it is finished.

    Each trial continues its own model through the sessions. Methods with the same base spec share one
    base model. A trial's results depend on the protocol's seed, the trial and the session, not on the
    other methods, the order or the number of trials.

    Parameters
    ----------
    methods : mapping of str to Method
        By the name under which results are reported.
    train, test : Batch
        Signals of all classes; a method sees its session's part of ``train``, and never ``test``.
    protocol : Protocol
        Classes, shots and trials.
    """
    for trial in trials(methods, train, test, protocol):
        yield from trial.results


def trials(
    methods: Mapping[str, Method],
    train: Batch,
    test: Batch,
    protocol: Protocol,
    *,
    cache: Cache | None = None,
    skip: Callable[[str, int | None], bool] = lambda method, trial: False,
    prefix: str = "",
) -> Iterator[Trial]:
    """Yield the trials of :func:`run`, base sessions included, but those that ``skip(method, trial)`` says.

    Trials are computed lazily, so an error belongs to one trial and the next one can still be computed.
    Without a cache, base models and replay are shared within this call. ``prefix`` precedes the method's
    title in progress reports.
    """
    scorer, cache = Scorer(test), cache or InMemory()
    for name, method in methods.items():
        bar = f"{prefix}{METHODS[name].title if name in METHODS else name}: trials"
        pending = [trial for trial in (None, *range(protocol.trials)) if not skip(name, trial)]
        method_run = MethodRun(name, method, train, scorer, protocol, cache)
        for trial in pending:
            if trial is not None:
                tick(bar, trial, protocol.trials)
            yield Trial(name, trial, method_run.results(trial))
        if pending:
            tick(bar, protocol.trials, protocol.trials)


class MethodRun:
    """A method with its base model, from which all its trials start, in any order.

    Base model and replay are made, or taken from the cache, with the first result; ``base`` is the state
    after the base session and the seconds it took, if already known.
    """

    def __init__(
        self,
        name: str,
        method: Method,
        train: Batch,
        scorer: "Scorer",
        protocol: Protocol,
        cache: Cache,
        *,
        base: tuple[State, float] | None = None,
    ) -> None:
        self._name, self.method, self.train = name, method, train
        self._scorer, self._protocol, self._cache = scorer, protocol, cache
        self._base: tuple[State, float] | Exception | None = base
        self._ready: State | Exception | None = None

    def results(self, trial: int | None) -> Iterator[SessionResult]:
        """Yield the base session's result (None), or the results of a trial, session by session."""
        if trial is None:
            yield self._result(None, *self.base())
            return
        state = self.ready()
        for session in self._protocol.draw(self.train, trial):
            rng = stream(self._protocol.seed, "trial", trial, session.index)
            began = time.perf_counter()
            state = self.method.learn_session(state, session, rng=rng)
            yield self._result(trial, state, time.perf_counter() - began)

    def base(self) -> tuple[State, float]:
        """Return the state after the base session, and the seconds that its training took."""
        if self._base is None:
            # Errors are kept, too: they would recur in every trial.
            try:
                self._base = self._fit_base()
            except Exception as error:
                self._base = error
        if isinstance(self._base, Exception):
            raise self._base
        return self._base

    def ready(self) -> State:
        """Return the state that all trials start from, with replay."""
        if self._ready is None:
            base, _ = self.base()
            try:
                self._ready = self._recalled(base)
            except Exception as error:
                self._ready = error
        if isinstance(self._ready, Exception):
            raise self._ready
        return self._ready

    def _fit_base(self) -> tuple[State, float]:
        base_train = self.train.of(*self._protocol.base_classes)
        rng, shared = stream(self._protocol.seed, "base"), shares_base(self.method)
        if shared is None:
            began = time.perf_counter()
            state = self.method.fit_base(base_train, rng=rng)
            return state, time.perf_counter() - began
        base_spec = shared.base_spec
        base, seconds = self._cache.base(
            base_spec, lambda checkpoint: fit_base_model(base_spec, base_train, self._protocol, checkpoint)
        )
        return shared.start(base, base_train, rng=rng), seconds

    def _recalled(self, base: State) -> State:
        shared = shares_base(self.method)
        if shared is None:
            return base
        rng = stream(stream(self._protocol.seed, "base"), "recall")
        state = self._cache.recalled(shared.base_spec, shared.memory, lambda: shared.recall(base, rng=rng))
        # The same network as the base's, also where it was read from a file: its latents are known.
        return replace(state, trunk=base.trunk, tail=base.tail, head=base.head)

    def _result(self, trial: int | None, state: State, seconds: float) -> SessionResult:
        matrix, reliability = self._scorer.score(self.method, state)
        curves = [curve for curve in getattr(state, "curves", ()) if curve.session == state.session]
        facts = {curve.name: float(f"{curve.values[-1]:.6g}") for curve in curves if len(curve.values)}
        now = (state.session, state.classes, state.n_base, matrix, seconds, facts)
        return SessionResult(self._name, self._protocol.seed, trial, *now, reliability=reliability)


def fit_base_model(
    base_spec: BaseLearner, base_train: Batch, protocol: Protocol, checkpoint: Checkpoint | None
) -> State:
    """Return the base model that a protocol's seed determines."""
    return base_spec.fit(base_train, checkpoint=checkpoint, rng=stream(protocol.seed, "base"))


class InMemory:
    """A cache that lasts as long as the run.

    It may start with base models and the seconds they took, and with the replay of its only method.
    """

    def __init__(
        self, bases: Mapping[BaseLearner, tuple[State, float]] | None = None, replay: State | None = None
    ) -> None:
        self._bases, self._replay = dict(bases or {}), replay

    def base(self, base_spec: BaseLearner, make: Callable[[Checkpoint | None], State]) -> tuple[State, float]:
        """Return a base model and the seconds it took."""
        if base_spec not in self._bases:
            began = time.perf_counter()
            state = make(None)
            self._bases[base_spec] = state, time.perf_counter() - began
        return self._bases[base_spec]

    def recalled(self, base_spec: BaseLearner, memory: Memory, make: Callable[[], State]) -> State:
        """Return the replay; made here, without being cached, unless it was passed to the constructor."""
        return self._replay or make()


class Scorer:
    """Scores on the test data, which is encoded once per trunk, since trunks are frozen."""

    def __init__(self, test: Batch) -> None:
        self._test = test
        self._latents: tuple[nn.Module | None, Tensor] = None, torch.empty(0)

    def score(self, method: Method, state: State) -> tuple[np.ndarray, SplitReliability | None]:
        """Return the confusion matrix over the test samples of the known classes, and their reliability."""
        of_classes = torch.isin(self._test.labels, torch.tensor(state.classes))
        logits = None
        if (shared := shares_base(method)) is None:
            predicted = method.predict(state, self._test.values[of_classes])
        elif (logits_of := getattr(method, "latent_logits", None)) is None:
            predicted = shared.predict_latents(state, self._encoded(state.trunk)[of_classes])
        else:
            logits = logits_of(state, self._encoded(state.trunk)[of_classes])
            predicted = torch.tensor(state.classes)[logits.argmax(1)]
        labels = self._test.labels[of_classes]
        counts = confusion(labels.numpy(), predicted.numpy(), state.classes)
        return counts, None if logits is None else _reliability(state, logits, labels)

    def _encoded(self, trunk: nn.Module) -> Tensor:
        encoded_by, latents = self._latents
        if encoded_by is not trunk:
            latents = encode(trunk, self._test.values)
            self._latents = trunk, latents
        return latents


def _reliability(state: State, logits: Tensor, labels: Tensor) -> SplitReliability | None:
    """Measure the calibration of softmax probabilities; None if training diverged."""
    probabilities = state.calibrated(logits).double().softmax(1)
    if not probabilities.isfinite().all():
        return None
    is_base = np.arange(len(state.classes)) < state.n_base
    return SplitReliability.of(probabilities.numpy(), state.columns(labels).numpy(), is_base)
