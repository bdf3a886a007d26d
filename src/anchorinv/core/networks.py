"""Sizes of the network; frozen and trainable copies, inference in chunks, devices, threads.

Only networks are on a device. Signals, latents, features, heads and the memory stay in host memory. Random
numbers are drawn on the host, so that a seed gives the same results everywhere, and closed forms are computed
there, in double precision, which not every device has.
"""

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

#: Shorter signals are too short for a kernel, a pooling window and more than a few tokens.
MIN_TIMES = 16


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a :class:`~anchorinv.Conformer`.

    Parameters
    ----------
    n_chans, n_times : int
        Shape of one signal.
    kernel, stride : int
        Of the temporal convolution, in samples.
    pool, pool_stride : int
        Of the average pooling, in steps of the convolution.
    width : int, default=40
        Number of filters, and of values in a token.
    heads : int, default=10
        Attention heads; ``width`` is a multiple of it.
    depth : int, default=6
        Number of transformer blocks; the last one is the tail.
    dropout : float, default=0.5
        After the pooling and inside the blocks, in training only.

    Examples
    --------
    >>> GEOMETRIES["bci2a"].n_tokens, GEOMETRIES["bci2a"].dim
    (61, 2440)
    """

    n_chans: int
    n_times: int
    kernel: int = 25
    stride: int = 1
    pool: int = 75
    pool_stride: int = 15
    width: int = 40
    heads: int = 10
    depth: int = 6
    dropout: float = 0.5

    def __post_init__(self) -> None:
        for name in [field.name for field in fields(self) if field.name != "dropout"]:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} (={getattr(self, name)}) must be at least 1")
        if self.kernel > self.n_times:
            raise ValueError(
                f"n_times (={self.n_times}) is shorter than the temporal kernel (={self.kernel})"
            )
        if self.pool > self.n_steps:
            raise ValueError(
                f"the convolution leaves {self.n_steps} steps, fewer than the pooling window (={self.pool}); "
                f"use longer signals or a shorter kernel, stride or pooling"
            )
        if self.width % self.heads:
            raise ValueError(f"width (={self.width}) must be a multiple of heads (={self.heads})")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout (={self.dropout}) must be in [0, 1)")

    @property
    def n_steps(self) -> int:
        """Time steps after the convolution."""
        return (self.n_times - self.kernel) // self.stride + 1

    @property
    def n_tokens(self) -> int:
        """Tokens after the pooling."""
        return (self.n_steps - self.pool) // self.pool_stride + 1

    @property
    def dim(self) -> int:
        """Values in a feature vector."""
        return self.n_tokens * self.width

    @classmethod
    def for_shape(cls, n_chans: int, n_times: int) -> "Geometry":
        """Derive sizes for any signal: about 60 tokens for long ones, 40 and fewer for short ones.

        The proportions are the paper's: its BCI geometry comes out for (22, 1000).

        Examples
        --------
        >>> Geometry.for_shape(22, 1000) == GEOMETRIES["bci2a"]
        True
        >>> Geometry.for_shape(8, 300).n_tokens
        42
        """
        if n_times < MIN_TIMES:
            raise ValueError(
                f"signals of {n_times} samples are too short: at least {MIN_TIMES} are needed; "
                f"use longer windows or a higher sampling rate"
            )
        stride = max(1, n_times // 960)
        kernel = min(25 if stride == 1 else 16 * stride, n_times // 4)
        n_steps = (n_times - kernel) // stride + 1
        # Attention is quadratic in the tokens, and short signals contain less information.
        n_tokens = min(61, max(40, n_times // 16))
        pool_stride = min(
            range(1, n_steps // 5 + 1), key=lambda p: abs((n_steps - 5 * p) // p + 1 - n_tokens)
        )
        return cls(n_chans, n_times, kernel, stride, pool=5 * pool_stride, pool_stride=pool_stride)


GEOMETRIES: dict[str, Geometry] = {
    "bci2a": Geometry(22, 1000),
    "nhie": Geometry(8, 3840, kernel=64, stride=4),
    "grabmyo": Geometry(28, 1280, kernel=64, pool_stride=20),
}


Module = TypeVar("Module", bound=nn.Module)

#: The device of everything but networks.
HOST = torch.device("cpu")

#: Samples per pass in inference; fixed, so that results do not depend on free memory.
CHUNK = 64


def frozen(module: Module) -> Module:
    """Freeze a module in evaluation mode and return it."""
    return module.eval().requires_grad_(False)


def trainable(module: Module) -> Module:
    """Return a copy whose parameters may be trained; the original stays as it is."""
    return copy.deepcopy(module).requires_grad_(True)


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's inputs: that of its buffers, or else its parameters."""
    # Own buffers first: an encoder may be on another device than its networks.
    tensor = next(chain(module.buffers(), module.parameters()), None)
    return HOST if tensor is None else tensor.device


def moved(module: Module, device: torch.device) -> Module:
    """Return a module on a device: itself, or a copy."""
    return module if device_of(module) == device else copy.deepcopy(module).to(device)


def apply_on_device(module: nn.Module, values: Tensor) -> Tensor:
    """Apply a module to values (n, ...) on its device; the result is on the values' device."""
    result: Tensor = module(values.to(device_of(module)))
    return result.to(values.device)


@torch.no_grad()
def encode(module: nn.Module, values: Tensor) -> Tensor:
    """Apply a frozen module to values (n, ...) chunk by chunk, on the module's device."""
    return torch.cat([apply_on_device(module, chunk) for chunk in torch.split(values, CHUNK)])


_usual = threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread of torch and BLAS until the end of the block, or of the function it decorates.

    Closed forms are many small products, for which more threads hardly pay; on cores that are busy otherwise,
    threads that wait for each other take many times as long.
    """
    outermost = not hasattr(_usual, "n_threads")
    if outermost:
        _usual.n_threads = torch.get_num_threads()
    try:
        with _limited(1):
            yield
    finally:
        if outermost:
            del _usual.n_threads


@contextmanager
def usual_threads() -> Iterator[None]:
    """Compute on as many threads as before :func:`one_thread`: networks are trained on all."""
    with _limited(getattr(_usual, "n_threads", torch.get_num_threads())):
        yield


@contextmanager
def _limited(n_threads: int) -> Iterator[None]:
    # torch's own product library only follows torch, once its number of threads has been set.
    with torch_threads(n_threads), _libraries().limit(limits=n_threads):
        yield


@cache
def _libraries() -> ThreadpoolController:
    """Return what limits the threads of BLAS; looking for its libraries takes longer than a lesson may."""
    import scipy.linalg  # noqa: F401 - loads a BLAS of its own

    return ThreadpoolController()


@contextmanager
def torch_threads(n_threads: int) -> Iterator[None]:
    """Let torch compute on some threads in this thread, until the end of the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


#: The values of a device setting, for messages; the number is the index of a GPU.
DEVICE_WORDS = "auto, cpu, cuda, cuda:NUMBER or mps"
DEVICE_PATTERN = r"auto|cpu|cuda|cuda:\d{1,3}|mps"


def available_devices() -> list[str]:
    """Return the kinds of devices that torch finds on this machine, in order of preference."""
    kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [kind for kind, available in kinds.items() if available]


def choose_device(device: str) -> str:
    """Return the requested device if it is available, or for ``"auto"`` the best one.

    Parameters
    ----------
    device : str
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
    available = available_devices()
    if device == "auto":
        return available[0]
    kind, _, number = device.partition(":")
    is_listed = number.isdigit() and kind in available and int(number) < torch.cuda.device_count()
    if device in available or is_listed:
        return device
    raise ValueError(
        f"there is no device {device!r} here: torch {torch.__version__} finds {', '.join(available)}; "
        f"use one of these or auto, or install a build of torch for the device"
    )


def device_here(device: str) -> str:
    """Return the requested device, or the best available one if it is missing."""
    try:
        return choose_device(device)
    except ValueError:
        return choose_device("auto")
