"""Time to equal quality: until the score, or the error, that the textbook's recipe ends with.

What the recipe ends with is computed by our own path with the recipe's settings, which takes the same steps
as the textbook twin (``tests/core``: equal to rounding, but for the masks of dropout). The twin's time is
that of a few of its steps, times the number that the recipe prescribes. Ours is timed whole. Both are
processor time of all cores: sides of such unlike length would not be slowed alike by a busy machine.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from anchorinv import AnchorInvClassifier
from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion, Inverted, invert
from anchorinv.core.networks import GEOMETRIES, Geometry, encode, frozen
from anchorinv.core.recipe import BaseSpec
from anchorinv.core.training import Training
from anchorinv.core.types import Batch, Standardisation, scoped_seed, stream
from anchorinv.datasets import synthetic
from anchorinv.settings import resolve_geometry, training_of
from benchmarks import timing
from benchmarks.steps import networks, signals
from benchmarks.timing import Side
from tests import naive

RNG = stream(5, "quality")
#: Steps of the twin that are timed.
TIMED = 3
timed = partial(timing.timed, clock=time.process_time)


@dataclass(frozen=True)
class Windows:
    """Synthetic EMG: three people, of whom the last of three days is held out; ``epochs`` of the recipe."""

    n_classes: int = 6
    n_per_class: int = 20
    n_times: int = 300
    epochs: int = 100

    def parts(self) -> tuple[Batch, Batch]:
        """Return the windows to learn from and those held out, standardised."""
        made = synthetic.emg(
            n_classes=self.n_classes,
            n_subjects=3,
            n_sessions=3,
            n_per_class=self.n_per_class,
            n_times=self.n_times,
            sfreq=500,
            difficulty=2.0,
            seed=5,
        )
        held = made.sessions == 2
        fitted = Standardisation.of(made.signals[~held], per_channel=True)
        learned, tested = (
            Batch(torch.from_numpy(fitted(part.signals)), torch.from_numpy(part.labels))
            for part in (made.select(~held), made.select(held))
        )
        return learned, tested


def training_to_score(windows: Windows, *, twin_steps: int = TIMED) -> tuple[Side, Side]:
    """Train until as many held-out windows are told as after the recipe's training at a constant rate.

    Ours is the estimator's schedule on the estimator's network, at the first of 1, 2, 4, ... epochs that is
    enough; the runs that were too short are not counted, as the recipe's search for its length is not.
    """
    learned, tested = windows.parts()
    n_chans, n_times = learned.values.shape[1:]
    g, recipe = Geometry.for_shape(n_chans, n_times), Training(epochs=windows.epochs)
    wanted = score(g, recipe, learned, tested)
    default = training_of(None, 16, 1e-3, len(learned))
    own, n_epochs = resolve_geometry(None, n_chans, n_times), 1
    while score(own, replace(default, epochs=n_epochs), learned, tested) < wanted:
        if n_epochs >= windows.epochs:
            raise RuntimeError(f"{n_epochs} epochs did not reach the recipe's score of {wanted:.3f}")
        n_epochs *= 2
    plan = replace(default, epochs=n_epochs)
    n_steps = recipe.epochs * -(-len(learned) // recipe.batch_size)
    return (
        timed(textbook_training(g, learned, recipe, twin_steps), twin_steps / n_steps),
        timed(lambda: fitted(own, plan, learned)),
    )


def fitted(g: Geometry, plan: Training, learned: Batch) -> tuple[nn.Module, Tensor]:
    """Return a trained network and its class means."""
    state = BaseSpec(partial(Conformer, g), Cosine.start, plan).fit(learned, rng=RNG)
    assert isinstance(state.head, Cosine)
    return nn.Sequential(state.trunk, state.tail), state.head.prototypes


def score(g: Geometry, plan: Training, learned: Batch, tested: Batch) -> float:
    """Return the share of held-out windows whose class mean is the nearest."""
    network, prototypes = fitted(g, plan, learned)
    found = encode(frozen(Cosine(prototypes)), encode(network, tested.values)).argmax(1)
    return float((found == tested.labels).double().mean())


def textbook_training(g: Geometry, samples: Batch, plan: Training, steps: int) -> Callable[[], None]:
    """Return so many steps of the twin's base training."""
    with scoped_seed(RNG):
        twin = naive.TwoConvConformer(**asdict(g))
    batch = samples[torch.randperm(len(samples), generator=stream(RNG, "order"))[: plan.batch_size]]
    start = torch.randn(len(samples.classes), g.dim, generator=stream(RNG, "head"))

    def work() -> None:
        head = nn.Parameter(start.clone())
        optimizer = torch.optim.Adam([*twin.parameters(), head], lr=plan.lr, betas=plan.betas)
        for _ in range(steps):
            naive.train_step(twin, head, optimizer, batch.values, batch.labels)

    work()  # the first steps of a network take longer than the others
    return work


def inversion_to_error(
    g: Geometry = GEOMETRIES["bci2a"], n: int = 10, steps: int = 4000, *, twin_steps: int = TIMED
) -> tuple[Side, Side]:
    """Invert ``n`` anchors, features of noise, until the error that so many steps of Adam reach."""
    twin, ours = networks(g)
    frozen(ours)
    start, anchors = signals(g, n, "start"), encode(ours, signals(g, n, "wanted"))
    recipe = Inversion(steps, batch=n)  # the twin's loss is a mean over so many
    wanted = invert(ours, anchors, start, recipe).errors.mean()

    def lbfgs(k: int) -> Inverted:
        return invert(ours, anchors, start, Inversion(k, use_lbfgs=True))

    n_steps = enough_steps(wanted, lbfgs, steps)
    naive.invert(twin, anchors, start, 1, recipe.lr)  # the first step takes longer than the others
    return (
        timed(lambda: naive.invert(twin, anchors, start, twin_steps, recipe.lr), twin_steps / steps),
        timed(lambda: lbfgs(n_steps)),
    )


def enough_steps(wanted: Tensor, lbfgs: Callable[[int], Inverted], most: int) -> int:
    """Return after how many steps an inversion may end with an error as low as wanted."""
    length = 100
    while not (below := lbfgs(min(length, most)).curve <= wanted).any():
        if length >= most:
            raise RuntimeError(f"{most} steps did not reach an error of {wanted:.4g}")
        length *= 2
    n_steps = int(below.int().argmax())
    # On its way a curve has steps that were tried and taken back; one that ends has none.
    while lbfgs(n_steps).errors.mean() > wanted:
        n_steps += max(1, n_steps // 20)
    return n_steps


def first_model(signals: np.ndarray, labels: np.ndarray) -> AnchorInvClassifier:
    """Return the model that a user has first: the default estimator, fitted."""
    return AnchorInvClassifier(random_state=5).fit(signals, labels)


def model_from_windows(n: int, n_times: int, *, twin_steps: int = TIMED) -> tuple[Side, Side]:
    """Make a first model from windows (n, 8, n_times); the textbook trains as the paper does for BCI."""
    n_classes = 8
    made = synthetic.emg(
        n_classes=n_classes,
        n_subjects=1,
        n_sessions=1,
        n_per_class=n // n_classes,
        n_times=n_times,
        sfreq=500,
        seed=5,
    )
    fitted = Standardisation.of(made.signals, per_channel=True)
    samples = Batch(torch.from_numpy(fitted(made.signals)), torch.from_numpy(made.labels))
    g, recipe = Geometry.for_shape(*samples.values.shape[1:]), Training()
    n_steps = recipe.epochs * -(-len(samples) // recipe.batch_size)
    return (
        timed(textbook_training(g, samples, recipe, twin_steps), twin_steps / n_steps),
        timed(lambda: first_model(made.signals, made.labels)),
    )
