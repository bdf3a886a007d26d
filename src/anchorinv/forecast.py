"""Forecast the time and memory of a training, from its size and a few timed steps."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from anchorinv.core.recipe import BaseSpec, Recipe
from anchorinv.core.rehearsal import FOLDS
from anchorinv.core.training import SHARE
from anchorinv.core.types import Batch, stream
from anchorinv.progress import is_heard, listening, tell
from anchorinv.terminal import duration

#: Seconds below which no forecast is shown.
WORTH_TELLING = 5.0
#: Seconds that closed forms take for each value of the windows, and for each window if settings are
#: rehearsed; on a core on which the product of two 512 x 512 matrices takes the third number.
PER_VALUE, PER_WINDOW, PRODUCT = 0.33e-6, 2.3e-3, 3.0e-3
#: Cost of a sample in an inversion step, which has no weight gradients, relative to a training step.
INVERTING = 0.4
#: Memory in addition to the data: copies of the windows during standardisation, and features.
BYTES_PER_VALUE, BYTES_PER_WINDOW = 12, 20_000

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cost of a training.

    Parameters
    ----------
    seconds : float
        Of everything that is computed in any case, without early stopping.
    maybe : float
        Additional seconds, of networks that are trained only if needed.
    n_bytes : int
        Memory in addition to the data.

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
    """Report the forecast of a training to progress listeners, if it takes more than a few seconds."""
    if is_heard():
        forecast = foresee(recipe, samples, clock=clock)
        if forecast.seconds + forecast.maybe >= WORTH_TELLING:
            shape = " x ".join(map(str, samples.values.shape[1:]))
            tell(f"training on {len(samples)} windows of {shape}: {forecast}")


def foresee(recipe: Recipe, samples: Batch, *, clock: Clock = time.perf_counter) -> Forecast:
    """Forecast the training of a method on base signals (n, n_chans, n_times).

    A few steps of a network are timed on some of the signals and discarded; no random state changes. The
    number of steps assumes no early stopping. Closed forms take the times measured for the default method.

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
    """Return the seconds of a step of base training, from fits of one step and of three."""
    size = spec.training.batch_size
    # Sorted by class, so that at least two classes are in it.
    order = samples.labels.argsort()
    some = order[torch.linspace(0, len(samples) - 1, 3 * size).round().long()]
    rng = stream(0, "trial")
    trial = replace(spec, training=replace(spec.training, epochs=1, patience=None, converged=None))
    times = [clock()]
    with listening(lambda tick: None):
        for part in (some[::3], some[::3], some):  # the first is a warm-up
            trial.fit(samples[part], rng=rng)
            times.append(clock())
    _, one, three = (after - before for before, after in pairwise(times))
    # On a busy machine a single step can take longer than three.
    return (three - one) / 2 if three > one else three / 3


def n_steps(spec: BaseSpec, n_samples: int) -> int:
    """Return the number of steps of base training, without early stopping."""
    learned = n_samples - int(SHARE * n_samples) if spec.training.patience else n_samples
    return spec.training.optimiser(-(-learned // spec.training.batch_size)).steps


def _n_inverted(recipe: Recipe, samples: Batch) -> int:
    """Return the number of samples times steps of the inversion, at most."""
    inversion = getattr(recipe.memory, "inversion", None)
    counts = samples.labels.bincount().tolist()
    return recipe.memory.n_kept(counts) * inversion.steps if inversion else 0


def _product_time(clock: Clock) -> float:
    matrix = torch.ones(512, 512)
    began = clock()
    for _ in range(10):
        _ = matrix @ matrix
    return (clock() - began) / 10
