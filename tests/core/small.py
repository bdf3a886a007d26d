"""Small things to test with: geometries, networks with their textbook twin, signals, recipes, snapshots."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anchorinv.core import catalogue
from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion
from anchorinv.core.networks import Geometry
from anchorinv.core.recipe import BaseSpec, Recipe
from anchorinv.core.training import Finetune, Training
from anchorinv.core.types import Batch, scoped_seed, stream
from anchorinv.testing import same, snapshot, untouched_generators  # noqa: F401 (for tests)
from tests import naive

SMALL = Geometry(3, 40, kernel=5, pool=6, pool_stride=3, width=8, heads=2, depth=2)
STRIDED = Geometry(2, 96, kernel=8, stride=4, pool=5, pool_stride=3, width=4, heads=2, depth=3)


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=stream(seed), dtype=dtype)


def twin(geometry: Geometry) -> naive.TwoConvConformer:
    with scoped_seed(stream(0, "twin")):
        return naive.TwoConvConformer(**asdict(geometry)).double()


def usual_state(geometry: Geometry, seed: int) -> dict[str, Tensor]:
    """Random weights in the usual layout; norms and running statistics are not those of a fresh network."""
    rng = stream(seed, "weights")
    state = {}
    for name, fresh in twin(geometry).state_dict().items():
        if fresh.dtype == torch.int64:
            state[name] = torch.tensor(3)
        elif name.endswith("running_var"):
            state[name] = 0.5 + torch.rand(fresh.shape, generator=rng, dtype=fresh.dtype)
        else:
            is_gain = name.endswith(("shallownet.2.weight", "fn.0.weight"))
            state[name] = 0.4 * torch.randn(fresh.shape, generator=rng, dtype=fresh.dtype) + is_gain
    return state


def pair(geometry: Geometry, seed: int) -> tuple[Conformer, naive.TwoConvConformer]:
    """A network and its twin with the same weights, float64, evaluation mode."""
    state = usual_state(geometry, seed)
    other = twin(geometry)
    other.load_state_dict(state)
    return Conformer.from_conv2d_state(state, geometry).eval(), other.eval()


def toy(
    n_classes: int = 4,
    n_per_class: int = 8,
    *,
    geometry: Geometry = SMALL,
    noise: float = 0.5,
    seed: int = 0,
) -> Batch:
    """Signals whose classes differ in rhythm and channel, sample by sample in turn; float32."""
    labels = torch.arange(n_classes * n_per_class) % n_classes
    signals = noise * randn(len(labels), geometry.n_chans, geometry.n_times, seed=seed, dtype=torch.float32)
    times = torch.linspace(0, 2 * torch.pi, geometry.n_times)
    for sample, label in zip(signals, labels.tolist(), strict=True):
        sample[label % geometry.n_chans] += 2 * torch.sin((label + 1) * times)
    return Batch(signals, labels)


def base_spec(**training: Any) -> BaseSpec:
    plan = Training(epochs=3, batch_size=8, lr=1e-3)
    return BaseSpec(partial(Conformer, SMALL), Cosine.start, replace(plan, **training))


def anchorinv(base: BaseSpec, **options: Any) -> Recipe:
    short: dict[str, Any] = {
        "adapt": Finetune(steps=(4,), lr=1e-3),
        "per_class": 5,
        "inversion": Inversion(steps=3),
    }
    return catalogue.anchorinv(base, **{**short, **options})


@contextmanager
def one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


class Drawer:
    """A checkpoint that keeps everything it is offered."""

    def __init__(self, left: dict[str, Tensor] | None = None) -> None:
        self.left = left
        self.kept: list[dict[str, Tensor]] = []

    def load(self) -> dict[str, Tensor] | None:
        return self.left

    def save(self, values: Callable[[], dict[str, Tensor]]) -> None:
        self.kept.append(values())
