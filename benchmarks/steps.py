"""A step of inversion, training and finetuning, inference, scoring: same weights and data on both sides."""

from dataclasses import asdict

import torch
from torch import Tensor, nn

from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion, invert
from anchorinv.core.minimise import Optimiser
from anchorinv.core.networks import Geometry, encode, frozen, trainable
from anchorinv.core.posterior import Statistics, posterior_of
from anchorinv.core.training import Training, finetune, train
from anchorinv.core.types import Batch, scoped_seed, stream
from benchmarks.timing import Side, timed
from tests import naive

RNG = stream(5, "benchmarks")
#: Samples the twin predicts at once.
BATCH = 100


def networks(g: Geometry) -> tuple[naive.TwoConvConformer, Conformer]:
    with scoped_seed(RNG):
        twin = naive.TwoConvConformer(**asdict(g))
    return twin, Conformer.from_conv2d_state(twin.state_dict(), g)


def signals(g: Geometry, n: int, name: str) -> Tensor:
    return torch.randn(n, g.n_chans, g.n_times, generator=stream(RNG, name))


def features(g: Geometry, n: int, name: str) -> Tensor:
    return torch.randn(n, g.dim, generator=stream(RNG, name))


def inversion(g: Geometry, n: int, twin_steps: int, our_steps: int) -> tuple[Side, Side]:
    twin, ours = networks(g)
    frozen(ours)
    start, anchors = signals(g, n, "start"), features(g, n, "anchors")
    plan = Inversion(steps=our_steps, lr=1e-2)
    return (
        timed(lambda: naive.invert(twin, anchors, start, twin_steps, plan.lr), twin_steps),
        timed(lambda: invert(ours, anchors, start, plan), our_steps),
    )


def training(g: Geometry, n: int, twin_steps: int, our_steps: int) -> tuple[Side, Side]:
    twin, ours = networks(g)
    batch = Batch(signals(g, n, "batch"), torch.arange(n) % 2)
    start = features(g, 2, "head")
    plan = Training(epochs=our_steps, batch_size=n)  # one batch is all there is, so an epoch is a step

    def textbook() -> None:
        head = nn.Parameter(start.clone())
        optimizer = torch.optim.Adam([*twin.parameters(), head], lr=plan.lr, betas=plan.betas)
        for _ in range(twin_steps):
            naive.train_step(twin, head, optimizer, batch.values, batch.labels)

    def fast() -> None:
        # A copy, because training leaves its network frozen.
        train(trainable(ours), Cosine(start.clone()), batch, plan, rng=RNG)

    return timed(textbook, twin_steps), timed(fast, our_steps)


def finetuning(g: Geometry, n: int, twin_steps: int, our_steps: int) -> tuple[Side, Side]:
    twin, ours = networks(g)
    frozen(ours)
    shots = Batch(signals(g, 10, "shots"), torch.full((10,), 2))
    replay = Batch(signals(g, n, "replay"), torch.arange(n) % 2)
    old, new = features(g, 2, "old"), features(g, 1, "new")
    head = Cosine(new, old)
    plan = Optimiser(our_steps, lr=2e-5)
    # The trunk is frozen, so each sample is encoded once per session, not once per step.
    our_shots, our_replay = (part.with_values(encode(ours.trunk, part.values)) for part in (shots, replay))

    def textbook() -> None:
        pairs = (shots.values, shots.labels, replay.values, replay.labels)
        naive.finetune(twin, old, new, *pairs, twin_steps, plan.lr, 1.0)

    return (
        timed(textbook, twin_steps),
        timed(lambda: finetune(ours.tail, head, our_shots, our_replay, plan), our_steps),
    )


def inference(g: Geometry, n: int, twin_share: float, n_classes: int = 4) -> tuple[Side, Side]:
    """Predict ``n`` signals; the twin a share of them, since each batch takes it as long as the others."""
    twin, ours = networks(g)
    frozen(ours)
    tests, prototypes = signals(g, n, "tests"), features(g, n_classes, "prototypes")
    some = tests[: round(n * twin_share)]
    head = frozen(Cosine(prototypes))
    return (
        timed(lambda: naive.predict(twin, prototypes, some, BATCH), len(some) / n),
        timed(lambda: encode(head, encode(ours, tests)).argmax(1)),
    )


def scoring(g: Geometry, n: int, twin_share: float, our_times: int, n_classes: int = 4) -> tuple[Side, Side]:
    """Predict ``n`` signals after a session; ours knows their latents, since the trunk never changes."""
    twin, ours = networks(g)
    frozen(ours)
    tests, prototypes = signals(g, n, "tests"), features(g, n_classes, "prototypes")
    some = tests[: round(n * twin_share)]
    head = frozen(Cosine(prototypes))
    latents = encode(ours.trunk, tests)

    def fast() -> None:
        for _ in range(our_times):
            encode(head, encode(ours.tail, latents)).argmax(1)

    return (
        timed(lambda: naive.predict(twin, prototypes, some, BATCH), len(some) / n),
        timed(fast, our_times),
    )


def few_windows(n: int, dim: int) -> tuple[Side, Side]:
    """Time a discriminant of fewer windows than features in four classes, asked about a quarter as many."""
    targets = torch.arange(n) % 4
    known, asked = (torch.randn(m, dim, generator=stream(RNG, "windows", m)).double() for m in (n, n // 4))

    def ours() -> None:
        posterior = posterior_of(Statistics.of(known, targets, 4), shrinkage=0.1, prior=True, student=True)
        distances = posterior.distances(asked)
        posterior.log_densities(distances)
        posterior.novelty(distances)

    return timed(lambda: naive.discriminant(known, targets, 4, 0.1, asked)), timed(ours)
