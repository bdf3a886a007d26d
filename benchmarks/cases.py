"""The cases: a step of inversion, base training and finetuning, with the same weights on both sides."""

import subprocess
import sys
from dataclasses import asdict

import torch
from torch import Tensor, nn

from anchorinv import GEOMETRIES
from anchorinv.core.conformer import Conformer
from anchorinv.core.descend import Descent
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion, invert
from anchorinv.core.networks import frozen, mapped, trainable
from anchorinv.core.rng import scoped_seed, stream
from anchorinv.core.training import Training, finetune, train
from anchorinv.core.types import Batch
from benchmarks.timing import Case, Work
from tests import naive

GEOMETRY = GEOMETRIES["bci2a"]
RNG = stream(5, "benchmarks")


def networks() -> tuple[naive.TwoConvConformer, Conformer]:
    with scoped_seed(RNG):
        twin = naive.TwoConvConformer(**asdict(GEOMETRY))
    return twin, Conformer.from_conv2d_state(twin.state_dict(), GEOMETRY)


def signals(n: int, name: str) -> Tensor:
    return torch.randn(n, GEOMETRY.n_chans, GEOMETRY.n_times, generator=stream(RNG, name))


def features(n: int, name: str) -> Tensor:
    return torch.randn(n, GEOMETRY.dim, generator=stream(RNG, name))


def inversion_step(twin_steps: int, our_steps: int) -> tuple[Work, Work]:
    twin, ours = networks()
    frozen(ours)
    start, anchors = signals(100, "start"), features(100, "anchors")
    plan = Inversion(steps=our_steps, lr=1e-2)
    return (
        lambda: naive.invert(twin, anchors, start, twin_steps, plan.lr),
        lambda: invert(ours, anchors, start, plan),
    )


def training_step(twin_steps: int, our_steps: int) -> tuple[Work, Work]:
    twin, ours = networks()
    batch = Batch(signals(72, "batch"), torch.arange(72) % 2)
    start = features(2, "head")
    plan = Training(epochs=our_steps, batch_size=72)  # one batch is all there is, so an epoch is a step

    def textbook() -> None:
        head = nn.Parameter(start.clone())
        optimizer = torch.optim.Adam([*twin.parameters(), head], lr=plan.lr, betas=plan.betas)
        for _ in range(twin_steps):
            naive.train_step(twin, head, optimizer, batch.values, batch.labels)

    # A copy, because training leaves its network frozen.
    return textbook, lambda: train(trainable(ours), Cosine(start.clone()), batch, plan, rng=RNG)


def finetuning_step(twin_steps: int, our_steps: int) -> tuple[Work, Work]:
    twin, ours = networks()
    frozen(ours)
    shots = Batch(signals(10, "shots"), torch.full((10,), 2))
    replay = Batch(signals(100, "replay"), torch.arange(100) % 2)
    old, new = features(2, "old"), features(1, "new")
    head = Cosine(new, old)
    plan = Descent(our_steps, lr=2e-5)
    # The trunk is frozen, so each sample is encoded once per session, not once per step.
    our_shots, our_replay = (part.with_values(mapped(ours.trunk, part.values)) for part in (shots, replay))
    return (
        lambda: naive.finetune(
            twin, old, new, shots.values, shots.labels, replay.values, replay.labels, twin_steps, plan.lr, 1.0
        ),
        lambda: finetune(ours.tail, head, our_shots, our_replay, plan),
    )


def start_of_help(twin_steps: int, our_steps: int) -> tuple[Work, Work]:
    def start(*command: str) -> Work:
        return lambda: subprocess.run([sys.executable, *command], check=True, capture_output=True)

    return start("-c", "import torch"), start("-m", "anchorinv", "--help")


CASES = [
    Case("inversion-step-bci", "100 samples", 5, 2, 20, inversion_step),
    Case("training-step-bci", "batch of 72", 3, 2, 8, training_step),
    Case("finetuning-step-bci", "10 shots + 100 replay", 10, 2, 20, finetuning_step),
    Case("help-start", "anchorinv --help against import torch", 2, 1, 1, start_of_help),
]
