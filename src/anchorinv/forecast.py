"""What a training will take, told before it begins: by a few of its steps on this machine and by its size."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from anchorinv.core.recipe import BaseSpec, Recipe
from anchorinv.core.rehearsal import FOLDS
from anchorinv.core.rng import stream
from anchorinv.core.training import SHARE
from anchorinv.core.types import Batch
from anchorinv.progress import is_heard, listening, tell
from anchorinv.terminal import duration

#: Seconds below which nothing is told.
WORTH_TELLING = 5.0
#: Of closed forms, in seconds on a core on which the product of two 512 x 512 matrices takes the third:
#: for each value of a window, for each window where settings are rehearsed, and that product.
PER_VALUE, PER_WINDOW, PRODUCT = 0.33e-6, 2.3e-3, 3.0e-3
#: What a sample costs in a step of an inversion, in which weights have no gradients, to one in a training's.
INVERTING = 0.4
#: Beside the data, in bytes: copies of the windows while they are standardised, and features.
BYTES_PER_VALUE, BYTES_PER_WINDOW = 12, 20_000

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a training will take.

    Parameters
    ----------
    seconds : float
        Of all that is certain to be computed, if nothing ends early.
    maybe : float
        Seconds more, of networks that are trained only if they seem to be needed.
    n_bytes : int
        Of memory beside the data.

    Examples
    --------
    >>> print(Forecast(40.0, 600.0, 250_000_000))
    about 40 s, 10 min more if networks turn out to be needed, and 250 MB of memory beside the data
    """

    seconds: float
    maybe: float
    n_bytes: int

    def __str__(self) -> str:
        more = f", {duration(self.maybe)} more if networks turn out to be needed," if self.maybe else ""
        size = f"{self.n_bytes / 1e9:.1f} GB" if self.n_bytes >= 1e9 else f"{self.n_bytes / 1e6:.0f} MB"
        return f"about {duration(self.seconds)}{more} and {size} of memory beside the data"


def announce(recipe: Recipe, samples: Batch, *, clock: Clock = time.perf_counter) -> None:
    """Tell whoever listens what a training will take, if it is more than some seconds."""
    if is_heard():
        forecast = foresee(recipe, samples, clock=clock)
        if forecast.seconds + forecast.maybe >= WORTH_TELLING:
            shape = " x ".join(map(str, samples.values.shape[1:]))
            tell(f"training on {len(samples)} windows of {shape}: {forecast}")


def foresee(recipe: Recipe, samples: Batch, *, clock: Clock = time.perf_counter) -> Forecast:
    """Return what a method will take to learn base signals (n, n_chans, n_times).

    A network's first steps are taken on a few of them and thrown away; no generator moves on. Steps are
    counted as if nothing ended early. The others' times are those that were measured for the default method.

    Parameters
    ----------
    clock : callable, default=time.perf_counter
    """
    spec: Any = recipe.base_spec
    n, n_values = len(samples), samples.values[:1].numel()
    n_bytes = BYTES_PER_VALUE * n * n_values + BYTES_PER_WINDOW * n
    if isinstance(spec, BaseSpec):
        step = step_time(spec, samples, clock)
        inverting = INVERTING * step / spec.training.batch_size * _n_inverted(recipe, samples)
        seconds = step * n_steps(spec, n) + inverting
        return Forecast(seconds, 0.0, n_bytes)
    rehearsed = PER_WINDOW if getattr(spec, "rehearsed", False) else 0.0
    seconds = n * (PER_VALUE * n_values + rehearsed) * _product_time(clock) / PRODUCT
    network = getattr(spec, "network", None)
    if not isinstance(network, BaseSpec):
        return Forecast(seconds, 0.0, n_bytes)
    steps = FOLDS * n_steps(network, n - n // FOLDS)
    networks = step_time(network, samples, clock) * steps
    always = bool(getattr(spec, "always", False))
    return Forecast(seconds + always * networks, 0.0 if always else networks, n_bytes)


def step_time(spec: BaseSpec, samples: Batch, clock: Clock) -> float:
    """Return the seconds that a step of base training takes, by fits of one step and of three."""
    size = spec.training.batch_size
    # Over the classes, so that there are two at the least, whatever their order.
    order = samples.labels.argsort()
    some = order[torch.linspace(0, len(samples) - 1, 3 * size).round().long()]
    rng = stream(0, "trial")
    trial = replace(spec, training=replace(spec.training, epochs=1, patience=None, converged=None))
    times = [clock()]
    with listening(lambda tick: None):
        for part in (some[::3], some[::3], some):  # the first pays for what is made once
            trial.fit(samples[part], rng=rng)
            times.append(clock())
    _, one, three = (after - before for before, after in pairwise(times))
    # On a busy machine one step may take longer than three.
    return (three - one) / 2 if three > one else three / 3


def n_steps(spec: BaseSpec, n_samples: int) -> int:
    """Return the steps of base training on so many samples, if it does not end early."""
    learned = n_samples - int(SHARE * n_samples) if spec.training.patience else n_samples
    return spec.training.optimiser(-(-learned // spec.training.batch_size)).steps


def _n_inverted(recipe: Recipe, samples: Batch) -> int:
    """Return how many samples will be moved by a step of an inversion, over all steps: the most there are."""
    inversion = getattr(recipe.memory, "inversion", None)
    counts = samples.labels.bincount().tolist()
    return recipe.memory.n_kept(counts) * inversion.steps if inversion else 0


def _product_time(clock: Clock) -> float:
    matrix = torch.ones(512, 512)
    began = clock()
    for _ in range(10):
        _ = matrix @ matrix
    return (clock() - began) / 10
