"""What workers do: make a base model, open a method's run, compute a trial.

A worker keeps the samples and the method that it used last, and nothing else: its memory does not grow with
the number of trials. Samples are views of the node's object store, which all workers of a node share.
"""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv._version import __version__
from anchorinv.cluster.library import ray
from anchorinv.cluster.messages import Arrays, Positions, Send, now_and_then, streaming, to_arrays, to_tensors
from anchorinv.core.packing import packed, unpacked
from anchorinv.core.progress import listening
from anchorinv.core.recipe import BaseLearner, Method, Recipe
from anchorinv.core.runner import InMemory, Lane, Scorer, fit_foundation
from anchorinv.core.types import Batch, State
from anchorinv.study.environment import reset_peak
from anchorinv.study.shelf import inverted
from anchorinv.study.work import Leg, Outcome, Own

#: A packed state as it travels.
PackedState = tuple[Arrays, dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Which method in which leg, and references to what it starts from.

    Parameters
    ----------
    run : str
        A name that no other method in a leg has.
    samples, own : ObjectRef
        The leg's windows and labels; methods of one's own.
    base : ObjectRef or None
        The base model; of a method that is no recipe the state after its base session.
    replay : ObjectRef or None
        The replay of the base classes, where it was made beforehand.
    versions : tuple of str
        Of the driver; other ones give other last digits.
    """

    run: str
    leg: Leg
    method: str
    samples: Any
    own: Any
    base: Any
    replay: Any
    versions: tuple[str, str] = (__version__, torch.__version__)


@streaming
def make_base(
    send: Send, order: Order, foundation: BaseLearner, begun: Arrays | None, seconds: float
) -> tuple[PackedState, float]:
    """Train a base model, from where it was left, and return it with the seconds that it took."""
    train, _, _ = _ready(order)
    base_train = train.of(*order.leg.protocol.base_classes)
    began = time.perf_counter()
    with listening(now_and_then(send)):
        state = fit_foundation(
            foundation, base_train, order.leg.protocol, Positions(send, begun, seconds=seconds)
        )
    return _packed(state), time.perf_counter() - began


@streaming
def open_run(send: Send, order: Order, *, base_session: bool, recall: bool) -> Any:
    """Compute a method's base session, and return what its trials share.

    Of a recipe that is the inverted replay of the base classes with the seconds that it took, or None; of
    another method its state after the base session.
    """
    lane, method = _lane(order)
    reset_peak()
    with listening(now_and_then(send)):
        if base_session:
            send(Outcome.of(order.leg.part(order.method, None), list(lane.results(None))))
        base, _ = lane.base()
        if not isinstance(method, Recipe):
            return base
        if not recall:
            return None
        began = time.perf_counter()
        state = lane.ready()
    return (_packed(state), time.perf_counter() - began) if inverted(state) else None


@streaming
def run_trial(send: Send, order: Order, trial: int) -> Outcome:
    """Compute a trial, through all sessions."""
    lane, _ = _lane(order)
    reset_peak()
    return Outcome.of(order.leg.part(order.method, trial), list(lane.results(trial)))


def _packed(state: State) -> PackedState:
    tensors, facts = packed(state)
    return to_arrays(tensors), facts


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
    if _Held.samples is None or _Held.samples[0] != order.samples:
        _Held.lane = None  # it holds the samples, too
        _Held.samples = None
        train, test = (Batch(*map(_view, arrays)) for arrays in ray().get(order.samples))
        _Held.samples = order.samples, train, Scorer(test)
    _, train, scorer = _Held.samples
    return train, scorer, ray().get(order.own)


def _lane(order: Order) -> tuple[Lane, Method]:
    train, scorer, own = _ready(order)
    # It is opened without its replay and used with it.
    name = (order.run, order.base, order.replay)
    if _Held.lane is None or _Held.lane[0] != name:
        _Held.lane = None
        base, replay = (each and ray().get(each) for each in (order.base, order.replay))
        method = order.leg.methods(own)[order.method]
        begun, shelf = base, InMemory()
        if isinstance(method, Recipe):
            known = {method.foundation: _unpacked(base, method.foundation)}
            begun, shelf = None, InMemory(known, replay and _unpacked(replay, method.foundation)[0])
        lane = Lane(order.method, method, train, scorer, order.leg.protocol, shelf, base=begun)
        _Held.lane = name, lane, method
    return _Held.lane[1:]


def _unpacked(state: PackedState, foundation: BaseLearner) -> tuple[State, float]:
    arrays, facts = state
    return unpacked(to_tensors(arrays), facts, foundation.backbone), float(facts["seconds"])


def _view(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        # The object store is read-only, and torch says so; nothing here writes to samples.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
