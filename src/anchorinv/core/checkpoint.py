"""Leave a long descent and take it up again: all that its next step depends on, as tensors."""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from anchorinv.core.rng import global_position, take_up


class Checkpoint(Protocol):
    """Somewhere to leave a descent and find it again."""

    def load(self) -> dict[str, Tensor] | None:
        """Return what was left, or None."""
        ...

    def save(self, values: Callable[[], dict[str, Tensor]]) -> None:
        """Keep the values now, or not; they are gathered only if asked for."""
        ...


class Bookmark:
    """Where a descent stands.

    Parameters
    ----------
    params : what is descended over.
    buffers : what else changes on the way, such as running statistics.
    optimiser : Adam over ``params``.
    """

    def __init__(
        self, params: list[Tensor], buffers: Iterable[Tensor], optimiser: torch.optim.Optimizer
    ) -> None:
        self._params, self._optimiser = params, optimiser
        self._tensors = [*params, *buffers]

    def values(self, curve: list[Tensor]) -> dict[str, Tensor]:
        """Return copies of parameters, buffers, moments, the curve so far and the global generator."""
        found = {f"tensor.{i}": tensor.detach().clone() for i, tensor in enumerate(self._tensors)}
        for i, param in enumerate(self._params):
            for name, moment in self._optimiser.state[param].items():
                found[f"moment.{i}.{name}"] = moment.detach().clone()
        return {**found, "curve": torch.stack(curve), "generator": global_position()}

    @torch.no_grad()
    def restore(self, values: dict[str, Tensor]) -> list[Tensor]:
        """Put everything back as it was and return the curve so far; its length is the next step."""
        for i, tensor in enumerate(self._tensors):
            tensor.copy_(values[f"tensor.{i}"])
        for i, param in enumerate(self._params):
            moments = {
                name: torch.empty_like(param).copy_(values[f"moment.{i}.{name}"])
                for name in ("exp_avg", "exp_avg_sq")
            }
            self._optimiser.state[param] = {"step": values[f"moment.{i}.step"].clone(), **moments}
        take_up(values["generator"])
        return list(values["curve"])
