"""What workers do: make a base model, open a lane, run a trial.

A worker keeps the samples and the lane that it used last, and nothing else: its memory does not grow with the
number of trials. Samples are views of the node's object store, which all workers of a node share.
"""

import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv._version import __version__
from anchorinv.cluster.library import ray
from anchorinv.cluster.post import Arrays, PostCheckpoint, Relay, to_arrays, to_tensors
from anchorinv.core.memory import Memory
from anchorinv.core.packing import packed, unpacked
from anchorinv.core.progress import listening
from anchorinv.core.recipe import Foundation, Method, Recipe
from anchorinv.core.runner import Lane, Scorer, fit_foundation
from anchorinv.core.types import Batch, Session, State
from anchorinv.study.environment import reset_peak
from anchorinv.study.shelf import inverted
from anchorinv.study.work import Leg, Outcome, Own, described

#: A packed state as it travels.
Parcel = tuple[Arrays, dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Stores:
    """References into the object store; a worker looks up what it does not hold yet.

    Parameters
    ----------
    samples : the leg's windows and labels.
    own : methods of one's own.
    base : the base model; of a method that is no recipe the state after its base session.
    replay : the replay of the base classes, where it was made beforehand.
    """

    samples: Any
    own: Any
    base: Any = None
    replay: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """A lane of work: one method in one leg.

    Parameters
    ----------
    lane : a name that no other lane has.
    post : where to report, and to leave long trainings.
    versions : of the driver; other ones give other last digits.
    """

    lane: str
    leg: Leg
    method: str
    stores: Stores
    post: Any
    versions: tuple[str, str] = (__version__, torch.__version__)


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """What comes of opening a lane.

    Parameters
    ----------
    outcome : of the base session, if it was asked for.
    replay : inverted, with the seconds that it took.
    state : after the base session, of a method that is no recipe.
    error, details : why the trials cannot be computed, if they cannot.
    """

    outcome: Outcome | None
    replay: tuple[Parcel, float] | None = None
    state: Any = None
    error: str = ""
    details: str = ""


def make_base(
    order: Order, foundation: Foundation, name: str, left: Arrays | None, seconds: float
) -> tuple[Parcel, float]:
    """Train a base model, from where it was left, and return it with the seconds that it took."""
    train, _, _ = _ready(order)
    checkpoint = PostCheckpoint(order.post, name, left, seconds=seconds, get=ray().get)
    base_train = train.of(*order.leg.protocol.base_classes)
    began = time.perf_counter()
    with listening(Relay(order.post, order.lane)):
        state = fit_foundation(foundation, base_train, order.leg.protocol, checkpoint)
    return _parcel(state), time.perf_counter() - began


def open_lane(order: Order, *, base_session: bool, recall: bool) -> Opened:
    """Compute a method's base session, and make what its trials share."""
    lane, method = _lane(order)
    reset_peak()
    outcome = None
    with listening(Relay(order.post, order.lane)):
        if base_session:
            outcome = Outcome.of(order.leg.part(order.method, None), list(lane.results(None)))
        if not isinstance(method, Recipe):
            return Opened(outcome, state=lane.base()[0])
        if not recall:
            return Opened(outcome)
        lane.base()
        began = time.perf_counter()
        try:
            state = lane.ready()
        except Exception as error:
            return Opened(outcome, error=described(error), details=traceback.format_exc())
        took = time.perf_counter() - began
    return Opened(outcome, (_parcel(state), took) if inverted(state) else None)


def run_trial(order: Order, trial: int) -> Outcome:
    """Compute a trial, through all sessions."""
    lane, _ = _lane(order)
    reset_peak()
    return Outcome.of(order.leg.part(order.method, trial), list(lane.results(trial)))


class _Held:
    """What this process holds."""

    samples: tuple[Any, Batch, Scorer] | None = None
    lane: tuple[Any, Lane, Method] | None = None


def _ready(order: Order) -> tuple[Batch, Scorer, Mapping[str, Own]]:
    """Set this process up for an order, and return training samples, scorer and methods of one's own."""
    here = (__version__, torch.__version__)
    if here != order.versions:
        raise RuntimeError(
            f"node {ray().util.get_node_ip_address()} has anchorinv {here[0]} and torch {here[1]}, the run "
            f"{order.versions[0]} and {order.versions[1]}; install the same on all nodes"
        )
    torch.set_num_threads(order.leg.experiment.threads)
    if _Held.samples is None or _Held.samples[0] != order.stores.samples:
        _Held.lane = None  # it holds the samples, too
        _Held.samples = None
        arrays = ray().get(order.stores.samples)
        train, test = (
            Batch(_view(arrays[part]), _view(arrays[f"{part}.labels"])) for part in ("train", "test")
        )
        _Held.samples = order.stores.samples, train, Scorer(test)
    _, train, scorer = _Held.samples
    return train, scorer, ray().get(order.stores.own)


def _lane(order: Order) -> tuple[Lane, Method]:
    train, scorer, own = _ready(order)
    # A lane is opened without its replay and used with it.
    name = (order.lane, order.stores.base, order.stores.replay)
    if _Held.lane is None or _Held.lane[0] != name:
        _Held.lane = None
        method = order.leg.methods(own)[order.method]
        if not isinstance(method, Recipe) and order.stores.base is not None:
            method = _Begun(method, ray().get(order.stores.base))
        shelf = _Handed(order.stores)
        _Held.lane = name, Lane(order.method, method, train, scorer, order.leg.protocol, shelf), method
    return _Held.lane[1:]


class _Handed:
    """A shelf of what came through the object store."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def base(self, foundation: Foundation, make: Any) -> tuple[State, float]:
        """Return the base model, and the seconds it took where it was made."""
        arrays, facts = ray().get(self._stores.base)
        return unpacked(to_tensors(arrays), facts, foundation.backbone), float(facts["seconds"])

    def recalled(self, foundation: Foundation, memory: Memory, make: Any) -> State:
        """Return the replay that was handed over, or make it."""
        if self._stores.replay is None:
            made: State = make()
            return made
        arrays, facts = ray().get(self._stores.replay)
        return unpacked(to_tensors(arrays), facts, foundation.backbone)


class _Begun:
    """A method whose base session is over."""

    def __init__(self, method: Method, state: State) -> None:
        self._method, self._state = method, state

    def fit_base(self, train: Batch, *, rng: torch.Generator) -> State:
        """Return the state as it came."""
        return self._state

    def learn_session(self, state: State, session: Session, *, rng: torch.Generator) -> State:
        """Learn as the method does."""
        return self._method.learn_session(state, session, rng=rng)

    def predict(self, state: State, signals: Tensor) -> Tensor:
        """Predict as the method does."""
        return self._method.predict(state, signals)


def _parcel(state: State) -> Parcel:
    tensors, facts = packed(state)
    return to_arrays(tensors), facts


def _view(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        # The object store is read-only, and torch says so; nothing here writes to samples.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
