"""Devices: choose one, and move the networks of a state to it.

Only networks are on the device. Signals, latents, features, heads and the memory stay in host memory. Random
numbers are drawn on the host, so that a seed gives the same results everywhere, and closed forms are computed
there, in double precision, which not every device has.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from anchorinv.core.encoder import Encoder
from anchorinv.core.types import State

#: The values of a device setting, for messages; the number is the index of a GPU.
WORDS = "auto, cpu, cuda, cuda:NUMBER or mps"
PATTERN = r"auto|cpu|cuda|cuda:\d{1,3}|mps"


def found_devices() -> list[str]:
    """Return the kinds of devices that torch finds on this machine, in order of preference."""
    kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [kind for kind, there in kinds.items() if there]


def choose_device(asked: str) -> str:
    """Return the requested device if it is available, or for ``"auto"`` the best one.

    Parameters
    ----------
    asked : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"`` … or ``"mps"``.

    Returns
    -------
    str
        The requested one; for ``"auto"`` the first available of cuda, mps and cpu.

    Examples
    --------
    >>> choose_device("cpu")
    'cpu'
    """
    found = found_devices()
    if asked == "auto":
        return found[0]
    kind, _, number = asked.partition(":")
    if asked in found or (number.isdigit() and kind in found and int(number) < torch.cuda.device_count()):
        return asked
    raise ValueError(
        f"there is no device {asked!r} here: torch {torch.__version__} finds {', '.join(found)}; use one of "
        f"these or auto, or install a build of torch for the device"
    )


def device_here(asked: str) -> str:
    """Return the requested device, or the best available one if it is missing."""
    try:
        return choose_device(asked)
    except ValueError:
        return choose_device("auto")


def placed(state: State, device: str) -> State:
    """Return a state with its networks on a device; the same state if they are there already."""
    wanted = torch.device(device)
    if all(_is_on(network, wanted) for network in _networks(state.trunk, state.tail)):
        return state
    trunk, tail = copy.deepcopy((state.trunk, state.tail))  # a state never changes
    for network in _networks(trunk, tail):
        network.to(wanted)
    return replace(state, trunk=trunk, tail=tail)


def _networks(trunk: nn.Module, tail: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that belong on a device; of an encoder of feature blocks only the networks."""
    yield from trunk.networks if isinstance(trunk, Encoder) else (trunk, tail)


def _is_on(module: nn.Module, device: torch.device) -> bool:
    places = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    return all(each.type == device.type and device.index in (None, each.index) for each in places)
