"""A device that is pretended: its tensors hold real values, and refuse whatever a real GPU might refuse.

There is no GPU where the suite runs. A tensor that was moved to ``PRETENDED`` is computed with as any other,
so that results can be compared with those of the CPU bit by bit; but it cannot meet a tensor in host memory,
be taken for an array, drawn at random, have double precision or be decomposed, which not every GPU can. That
it is called ``meta:1`` is because a build of torch for CPUs lets gradients flow on no other device.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

PRETENDED = torch.device("meta", 1)
NAME = str(PRETENDED)

#: They may read from one device and write to another.
_MOVES = ("copy_", "_to_copy")
#: Host memory may say which rows are meant.
_INDEXING = ("index", "index_put_", "index_put")
#: Linear algebra, but norms and products: not on every device.
_DECOMPOSITIONS = ("linalg_", "_linalg_", "cholesky", "triangular", "geqrf", "ormqr")
_EVERYWHERE = ("linalg_vector_norm", "linalg_vecdot")


class WrongDevice(Exception):  # noqa: N818 (it says what the tensor is on)
    """What a real device would have refused, or what is kept off it."""


class Pretended(Tensor):
    """A tensor on the device: a plain one behind a face."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Pretended":
        if inner.dtype in (torch.float64, torch.complex128):
            raise WrongDevice(f"{inner.dtype} on the device, which may have none")
        face: Pretended = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=PRETENDED,
        )
        face.inner = inner
        return face

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"Pretended({self.inner!r})"


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on what is behind the faces, if a device could; what comes out has a face, too."""
    given = _tensors((args, kwargs))
    there = [each for each in given if isinstance(each, Pretended)]
    asked = kwargs.get("device")
    on_device = bool(there) if asked is None else torch.device(asked) == PRETENDED
    if not on_device and not there:
        return func(*args, **kwargs)
    _check(func.overloadpacket.__name__, func, args, given, there)
    if asked is not None and torch.device(asked) == PRETENDED:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*_mapped(args, _bare), **_mapped(kwargs, _bare))
    faces = {id(face.inner): face for face in there}  # what was changed in place keeps its face

    def faced(value: Tensor) -> Tensor:
        if id(value) in faces:
            return faces[id(value)]
        return Pretended(value) if on_device else value

    return _mapped(result, faced)


def _bare(value: Tensor) -> Tensor:
    return value.inner if isinstance(value, Pretended) else value


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change all tensors of a value: plain containers by themselves, as torch's tree_map takes long."""
    if isinstance(value, Tensor):
        return change(value)
    kind = type(value)
    if kind is list or kind is tuple:
        return kind([_mapped(each, change) for each in value])
    if kind is dict:
        return {key: _mapped(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple | dict):
        return tree_map(lambda each: change(each) if isinstance(each, Tensor) else each, value)
    return value


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, found)
    elif isinstance(value, dict):
        for each in value.values():
            _collect(each, found)


def _check(name: str, func: Any, args: Any, given: list[Tensor], there: list[Pretended]) -> None:
    if torch.Tag.nondeterministic_seeded in func.tags:
        raise WrongDevice(f"{name} draws on the device, whose draws are not the host's")
    if name.startswith(_DECOMPOSITIONS) and name not in _EVERYWHERE:
        raise WrongDevice(f"{name} on the device, which may not know it")
    strangers = [each for each in given if not isinstance(each, Pretended) and each.ndim]
    indexed = name in _INDEXING and isinstance(args[0], Pretended)
    if there and strangers and name not in _MOVES and not indexed:
        shapes = [tuple(each.shape) for each in strangers]
        raise WrongDevice(f"{name} of tensors on the device and in host memory {shapes}")


class _Pretending(TorchDispatchMode):
    """Counts what is moved to the device, and what back, by the way."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = _computed(func, args, kwargs or {})
        if func.overloadpacket.__name__ in _MOVES:
            source = args[1] if func.overloadpacket.__name__ == "copy_" else args[0]
            ways = {(False, True): "there", (True, False): "back"}
            if way := ways.get((isinstance(source, Pretended), isinstance(result, Pretended))):
                self.moved[way] += 1
        return result


@contextmanager
def pretending() -> Iterator[Counter[str]]:
    """Have the device for the block, the first that ``auto`` finds; count what is moved there and back."""
    from anchorinv.core import networks

    mode = _Pretending()
    with pytest.MonkeyPatch.context() as patch, mode:
        patch.setattr(networks, "available_devices", lambda: [NAME, "cpu"])
        yield mode.moved


class DeviceCount(TorchFunctionMode):
    """Counts calls by their name and the devices of the tensors that they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        places = {"device" if isinstance(each, Pretended) else "host" for each in _tensors((args, kwargs))}
        self.calls[getattr(func, "__name__", str(func)), tuple(sorted(places))] += 1
        return func(*args, **kwargs)

    def of(self, *names: str) -> Counter[tuple[str, ...]]:
        """Return how often functions of these names were called on which devices."""
        found: Counter[tuple[str, ...]] = Counter()
        for (name, places), n in self.calls.items():
            if name in names:
                found[places] += n
        return found
