"""Ten trials through two sessions, scoring included: AnchorInv as usual code does it, and ours."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anchorinv.core import catalogue
from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine, class_means
from anchorinv.core.inversion import Inversion
from anchorinv.core.networks import Geometry, encode, frozen
from anchorinv.core.prototypes import mean_of_shots, random_anchors
from anchorinv.core.recipe import BaseSpec
from anchorinv.core.training import Finetune, Training
from anchorinv.core.types import Batch, State, stream
from anchorinv.study.runner import Protocol, SessionResult, trials
from benchmarks.steps import BATCH, networks, signals
from benchmarks.timing import Side, timed
from tests import naive

SEED = 5


@dataclass(frozen=True)
class Sizes:
    """The experiment: two base classes, then two sessions of one class each; ``n_*`` are per class."""

    trials: int = 10
    steps: int = 20
    per_class: int = 50
    shots: int = 10
    n_train: int = 60
    n_tests: int = 648
    lr: float = 2e-5

    @property
    def protocol(self) -> Protocol:
        """As the runner asks for it."""
        return Protocol((0, 1), (2, 3), shots=self.shots, trials=self.trials, seed=SEED)


@dataclass(frozen=True)
class Base:
    """What the base session left to both sides: prototypes and anchors of two classes."""

    prototypes: Tensor
    anchors: Batch


def twin_adaptation(
    network: naive.TwoConvConformer, base: Base, train: Batch, test: Batch, sizes: Sizes
) -> list[Tensor]:
    """Run one trial after another; returns the predictions after each session of each trial.

    As in the authors' code the base classes' replay is inverted once and shared by all trials. Each trial
    adapts a copy of the network, which is run as a whole in every step and for every test sample.
    """
    replay = twin_replay(network, base, train, sizes)
    return [
        predicted
        for trial in range(sizes.trials)
        for predicted in twin_trial(copy.deepcopy(network), base, replay, train, test, sizes, trial)
    ]


def twin_replay(network: naive.TwoConvConformer, base: Base, train: Batch, sizes: Sizes) -> Tensor:
    """Invert the anchors of the base classes."""
    start = torch.cat([_start(train, sizes.per_class, SEED, label, "base") for label in (0, 1)])
    return naive.invert(network, base.anchors.values, start, sizes.steps, 1e-2)


def twin_trial(
    network: naive.TwoConvConformer,
    base: Base,
    replay: Tensor,
    train: Batch,
    test: Batch,
    sizes: Sizes,
    trial: int,
) -> list[Tensor]:
    """Learn two classes one after the other and predict the test samples of the classes known by then."""
    prototypes, labels, anchors = base.prototypes, base.anchors.labels, torch.empty(0)
    found = []
    for session in sizes.protocol.draw(train, trial):
        shots, label = session.train.values, session.index + 1
        if session.index > 1:
            start = _start(train, len(anchors), SEED, label - 1, "trial", trial, session.index)
            replay = torch.cat([replay, naive.invert(network, anchors, start, sizes.steps, 1e-2)])
            labels = torch.cat([labels, torch.full((len(anchors),), label - 1)])
        new = naive_features(network, shots).mean(0, keepdim=True)
        pairs = (shots, session.train.labels, replay, labels)
        new = naive.finetune(network, prototypes, new, *pairs, sizes.steps, sizes.lr, 1.0)
        prototypes = torch.cat([prototypes, new])
        anchors = naive_features(network, shots)
        found.append(naive.predict(network, prototypes, test.values[test.labels <= label], BATCH))
    return found


@torch.no_grad()
def naive_features(network: naive.TwoConvConformer, values: Tensor) -> Tensor:
    return torch.cat([network.eval()(part) for part in values.split(BATCH)])


def _start(train: Batch, n: int, seed: int, label: int, *path: str | int) -> Tensor:
    # Where ours starts too: the base classes from the base session's seed, others from their trial's.
    rng = stream(seed, *path)
    origin = stream(rng if path[0] == "base" else stream(rng, "recall"), "invert", label)
    return torch.randn(n, *train.values.shape[1:], generator=origin).to(train.values)


class _Trained:
    """A shelf with a trained base model on it."""

    def __init__(self, state: State) -> None:
        self._state = state

    def base(self, base_spec: BaseSpec, make: Any) -> tuple[State, float]:
        return self._state, 0.0

    def recalled(self, base_spec: BaseSpec, memory: Any, make: Callable[[], State]) -> State:
        return make()


def our_adaptation(
    network: Conformer, base: Base, train: Batch, test: Batch, sizes: Sizes
) -> list[SessionResult]:
    """Run the trials by the runner that studies use."""
    g = network.geometry
    base_spec = BaseSpec(lambda: network, Cosine.start, Training(epochs=0))
    state = State(
        network.trunk,
        network.tail,
        frozen(Cosine(base.prototypes[:0], base.prototypes)),
        (0, 1),
        2,
        (g.n_chans, g.n_times),
        seed=stream(SEED, "base").initial_seed(),
    )
    recipe = catalogue.anchorinv(
        base_spec,
        start=mean_of_shots,
        adapt=Finetune((sizes.steps,), lr=sizes.lr),
        per_class=sizes.per_class,
        inversion=Inversion(steps=sizes.steps),
    )
    parts = trials({"anchorinv": recipe}, train, test, sizes.protocol, cache=_Trained(state))
    return [result for part in parts for result in part.results]


def experiment(network: Conformer, sizes: Sizes) -> tuple[Base, Batch, Batch]:
    """Return what both sides start from: the base session's remains, training and test signals."""
    g = network.geometry
    like = next(frozen(network).parameters())
    train, test = (
        Batch(signals(g, 4 * n, name).to(like), torch.arange(4).repeat_interleave(n))
        for name, n in (("train", sizes.n_train), ("test", sizes.n_tests))
    )
    old = train.of(0, 1)
    features = old.with_values(encode(network.tail, encode(network.trunk, old.values)))
    rng = stream(SEED, "base")
    anchors = torch.cat(
        [
            random_anchors(features.of(label).values, sizes.per_class, stream(rng, "anchors", label))
            for label in (0, 1)
        ]
    )
    labels = torch.arange(2).repeat_interleave(sizes.per_class)
    return Base(class_means(features.values, features.labels), Batch(anchors, labels)), train, test


def adaptation(g: Geometry, sizes: Sizes, share: int) -> tuple[Side, Side]:
    """Time ours whole, and of the twin what repeats itself: the base replay, and one trial of all.

    Both with so many times fewer steps and tests: the twin's time is proportional to them.
    """
    twin, ours = networks(g)
    base, train, test = experiment(ours, sizes)
    less = replace(sizes, steps=sizes.steps // share)
    few = test[torch.arange(len(test)) % share == 0]
    shared = timed(lambda: twin_replay(twin, base, train, less))
    start = torch.cat([train.values] * 2)[: len(base.anchors)]
    trial = timed(lambda: twin_trial(copy.deepcopy(twin), base, start, train, few, less, 0))
    return (
        lambda: share * (shared() + sizes.trials * trial()),
        timed(lambda: our_adaptation(ours, base, train, test, sizes)),
    )
