"""Networks as values: frozen copies to keep, trainable copies to learn with, chunked inference."""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)

#: Samples per pass in inference; fixed, so that results do not depend on free memory.
CHUNK = 64


def frozen(module: Module) -> Module:
    """Put a module into evaluation mode for good and return it."""
    return module.eval().requires_grad_(False)


def trainable(module: Module) -> Module:
    """Return a copy whose parameters may be trained; the original stays as it is."""
    return copy.deepcopy(module).requires_grad_(True)


@torch.no_grad()
def mapped(module: nn.Module, values: Tensor) -> Tensor:
    """Apply a frozen module to (n, ...) values chunk by chunk."""
    return torch.cat([module(chunk) for chunk in torch.split(values, CHUNK)])
