"""``python -m benchmarks.cost [bci2a nhie grabmyo]``: what the main tables cost, by step times measured here.

Core hours follow from counts of steps, which the configs state, and from the time of a step, measured on one
thread. Bytes are exact. ``docs/cluster.md`` has the formula and the figures of one machine.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion, invert
from anchorinv.core.minimise import Optimiser
from anchorinv.core.networks import Geometry, encode, frozen, trainable
from anchorinv.core.training import Training, finetune, train
from anchorinv.core.types import Batch, scoped_seed, stream
from anchorinv.study.config import Experiment
from anchorinv.study.loading import load

RNG = stream(5, "cost")
INVERTING = ("deepdream", "deepinv", "anchorinv")
#: Base models of the main tables: cosine head, perceptron (finetune), projector (nc-fscil).
FOUNDATIONS = 3


@dataclass(frozen=True)
class Windows:
    """How many windows a prepared set has: of base classes to train on, to test on, and in all."""

    base: int
    test: int
    all: int


#: BCI IV 2a and GRABMyo by their protocols; NHIE's base windows by the share of recordings of its grades.
WINDOWS = {
    "bci2a": Windows(1296, 2592, 5184),
    "nhie": Windows(12_852, 4022, 20_111),
    "grabmyo": Windows(6020, 4816, 14_448),
}


@dataclass(frozen=True)
class Steps:
    """Seconds on one thread: a training step, a step of inverting or finetuning one sample, scoring one."""

    training: float
    inverting: float
    inverting_few: float
    finetuning: float
    scoring: float


@dataclass(frozen=True)
class Cost:
    """Core hours and bytes."""

    bases: float
    inversions: float
    trials: dict[str, float]
    samples: int
    state: int
    replay: int

    @property
    def hours(self) -> float:
        """In all."""
        return self.bases + self.inversions + sum(self.trials.values())


def measured(geometry: Geometry, experiment: Experiment) -> Steps:
    with scoped_seed(RNG):
        network = Conformer(geometry)
    frozen(network)

    def signals(n: int) -> torch.Tensor:
        return torch.randn(n, geometry.n_chans, geometry.n_times, generator=RNG)

    size, shots = experiment.training.batch_size, experiment.protocol.shots
    n_base = len(experiment.protocol.base_classes)
    n_replay = n_base * experiment.anchors.per_class
    batch = Batch(signals(size), torch.arange(size) % n_base)
    latents = encode(network.trunk, signals(shots + n_replay))
    labels = torch.cat([torch.full((shots,), n_base), torch.arange(n_replay) % n_base])
    head = Cosine(
        torch.randn(1, geometry.dim, generator=RNG), torch.randn(n_base, geometry.dim, generator=RNG)
    )
    old = torch.randn(n_base, geometry.dim, generator=RNG)
    new, replay = Batch(latents[:shots], labels[:shots]), Batch(latents[shots:], labels[shots:])
    chunk = experiment.inversion.chunk

    def inverting(n: int, steps: int) -> float:
        start, anchors = signals(n), torch.randn(n, geometry.dim, generator=RNG)
        return per_step(lambda k: invert(network, anchors, start, Inversion(steps=k, lr=1e-2)), steps) / n

    return Steps(
        per_step(
            lambda k: train(trainable(network), Cosine(old.clone()), batch, Training(k, size), rng=RNG), 2
        ),
        inverting(chunk, 3),
        inverting(shots, 10),
        per_step(lambda k: finetune(network.tail, head, new, replay, Optimiser(k, lr=1e-5)), 20)
        / (shots + n_replay),
        per_step(lambda k: [encode(network.tail, latents) for _ in range(k)], 5) / len(latents),
    )


def per_step(work: Callable[[int], object], steps: int) -> float:
    work(1)
    began = time.perf_counter()
    work(steps)
    return (time.perf_counter() - began) / steps


def cost(experiment: Experiment, geometry: Geometry, steps: Steps, windows: Windows) -> Cost:
    course, training = experiment.protocol, experiment.training
    n_sessions, per_class = len(course.sessions), experiment.anchors.per_class
    n_base = len(course.base_classes)
    epochs = training.epochs * -(-windows.base // training.batch_size)
    trials = {}
    for method in experiment.methods:
        lengths = experiment.finetuning.steps.get(method, (0,))
        seconds = n_sessions * windows.test * steps.scoring
        for session in range(n_sessions):
            length = lengths[min(session, len(lengths) - 1)]
            n_old = n_base * per_class + session * course.shots if method in INVERTING else n_base + session
            n_old = 0 if method == "finetune" else n_old
            seconds += length * (n_old + course.shots) * steps.finetuning
            if method in INVERTING and session:
                seconds += experiment.inversion.steps * course.shots * steps.inverting_few
        trials[method] = course.trials * seconds / 3600
    n_inverting = sum(method in INVERTING for method in experiment.methods)
    inversions = n_inverting * experiment.inversion.steps * n_base * per_class * steps.inverting / 3600
    network = Conformer(geometry)
    state = 4 * (sum(p.numel() for p in [*network.parameters(), *network.buffers()]) + n_base * geometry.dim)
    return Cost(
        FOUNDATIONS * epochs * steps.training / 3600,
        inversions,
        trials,
        4 * windows.all * geometry.n_chans * geometry.n_times,
        state,
        n_base * per_class * (4 * geometry.dim + 8),
    )


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        experiment = load(name).variants[""]
        assert experiment.geometry is not None
        geometry = Geometry(**experiment.geometry.model_dump())
        steps = measured(geometry, experiment)
        found = cost(experiment, geometry, steps, WINDOWS[name])
        told = [
            f"{name}: a training step {1000 * steps.training:.0f} ms; per sample and step inverting "
            f"{1000 * steps.inverting:.2f} ms ({1000 * steps.inverting_few:.2f} where few), finetuning "
            f"{1000 * steps.finetuning:.3f} ms; scoring a sample {1000 * steps.scoring:.3f} ms",
            f"core hours: base models {found.bases:.1f}, their inversions {found.inversions:.2f}",
            "trials: " + ", ".join(f"{method} {hours:.2f}" for method, hours in found.trials.items()),
            f"in all {found.hours:.1f} core hours for {experiment.protocol.trials} trials",
            f"bytes per node: samples {found.samples:,}, base state {found.state:,}, replay {found.replay:,}",
        ]
        print("\n  ".join(told))


if __name__ == "__main__":
    main(sys.argv[1:] or list(WINDOWS))
