"""Devices: which ones there are, which one is meant, and a state whose networks are on it.

Networks live on the device. All else stays in host memory: signals, latents, features, heads, closed forms
and what is kept of classes. Draws are made on the host, so that a seed means the same everywhere, and so is
all that takes double precision, which not every device has.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from anchorinv.core.encoder import Encoder
from anchorinv.core.types import State

#: What may be asked for, as people read it; the number counts the GPUs of a machine.
WORDS = "auto, cpu, cuda, cuda:NUMBER or mps"
PATTERN = r"auto|cpu|cuda|cuda:\d{1,3}|mps"


def found_devices() -> list[str]:
    """Return the kinds of devices that torch finds on this machine, the one to prefer first."""
    kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [kind for kind, there in kinds.items() if there]


def choose_device(asked: str) -> str:
    """Return the device to use: the one asked for if it is there, or with ``"auto"`` the best there is.

    Parameters
    ----------
    asked : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"`` … or ``"mps"``.

    Returns
    -------
    str
        Of cuda, mps and cpu the first that is there, or what was asked for.

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
        f"there is no device {asked!r} here: torch {torch.__version__} finds {', '.join(found)}; take one of "
        f"these or auto, or install a build of torch for the device"
    )


def device_here(asked: str) -> str:
    """Return the device asked for, or the best there is where that one is not."""
    try:
        return choose_device(asked)
    except ValueError:
        return choose_device("auto")


def placed(state: State, device: str) -> State:
    """Return a state with its networks on a device; one whose networks are there already as it is."""
    wanted = torch.device(device)
    if all(_is_on(network, wanted) for network in _networks(state.trunk, state.tail)):
        return state
    trunk, tail = copy.deepcopy((state.trunk, state.tail))  # a state never changes
    for network in _networks(trunk, tail):
        network.to(wanted)
    return replace(state, trunk=trunk, tail=tail)


def _networks(trunk: nn.Module, tail: nn.Module) -> Iterator[nn.Module]:
    """Yield what belongs on a device: of an encoder of blocks the networks among them alone."""
    yield from trunk.networks if isinstance(trunk, Encoder) else (trunk, tail)


def _is_on(module: nn.Module, device: torch.device) -> bool:
    places = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    return all(each.type == device.type and device.index in (None, each.index) for each in places)
