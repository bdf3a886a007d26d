"""Random generators as arguments: one for every purpose, independent of what ran before."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream(seed: int | torch.Generator, *path: str | int) -> torch.Generator:
    """Make the generator that belongs to a seed and a path of names and numbers.

    A generator given as ``seed`` stands for the seed it was made from, however much has been drawn from
    it since. So a function can branch its ``rng`` by purpose, and no draw depends on the order of others.

    Examples
    --------
    >>> a = torch.rand(1, generator=stream(5, "support", "tongue", 3))
    >>> b = torch.rand(1, generator=stream(stream(5), "support", "tongue", 3))
    >>> bool(a == b), bool(a == torch.rand(1, generator=stream(6, "support", "tongue", 3)))
    (True, False)
    """
    root = seed.initial_seed() if isinstance(seed, torch.Generator) else int(seed) % 2**64
    generator = torch.Generator()
    return generator.manual_seed(_hashed(root, path) if path else root)


@contextmanager
def scoped_seed(rng: torch.Generator, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generator inside the block and leave it as it was outside.

    Dropout and the initialisation of layers can only draw from the global generator. This package's layers
    draw on the host; other layers may draw from a GPU's generator, which is seeded as well.
    """
    own = _generator_of(device)
    generators = [torch.default_generator, *([] if own is None else [own])]
    positions = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(rng.initial_seed())
        yield
    finally:
        for generator, position in zip(generators, positions, strict=True):
            generator.set_state(position)


def _generator_of(device: torch.device | None) -> torch.Generator | None:
    """Return the generator that draws on a GPU; None of other devices."""
    if device is not None and device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.mps._get_default_mps_generator() if device is not None and device.type == "mps" else None


def global_position() -> torch.Tensor:
    """Return the state of torch's global generator; for use inside :func:`scoped_seed`."""
    return torch.get_rng_state()


def take_up(position: torch.Tensor) -> None:
    """Set the state of torch's global generator; for use inside :func:`scoped_seed`."""
    torch.set_rng_state(position.clone())


def _hashed(root: int, path: tuple[str | int, ...]) -> int:
    # repr distinguishes 1 and "1", int makes numpy's 1 equal to Python's; a torch seed is signed.
    text = repr((root, tuple(step if isinstance(step, str) else int(step) for step in path))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1
