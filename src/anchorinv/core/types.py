"""Values of the algorithm: batches, sessions, states, loss curves; random generators as arguments."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from anchorinv.core.confidence import Confidence
from anchorinv.core.heads import Head, StatisticalHead


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
    if path:
        # repr distinguishes 1 and "1", int makes numpy's 1 equal to Python's; a torch seed is signed.
        text = repr((root, tuple(step if isinstance(step, str) else int(step) for step in path))).encode()
        root = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1
    return torch.Generator().manual_seed(root)


@contextmanager
def scoped_seed(rng: torch.Generator, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generator inside the block and leave it as it was outside.

    Dropout and the initialisation of layers can only draw from the global generator. This package's layers
    draw on the host; other layers may draw from a GPU's generator, which is seeded as well.
    """
    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    elif device is not None and device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    positions = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(rng.initial_seed())
        yield
    finally:
        for generator, position in zip(generators, positions, strict=True):
            generator.set_state(position)


def restore_generator(position: torch.Tensor) -> None:
    """Set the state of torch's global generator; for use inside :func:`scoped_seed`."""
    torch.set_rng_state(position.clone())


@dataclass(frozen=True, slots=True, eq=False)
class Standardisation:
    """x -> (x - mean) / std.

    Parameters
    ----------
    mean, std : ndarray, shape (n_chans, 1)
        Or (1, 1) for one number over all channels.
    """

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, signals: np.ndarray, *, per_channel: bool = True, weights: np.ndarray | None = None) -> Self:
        """Fit to signals (n, n_chans, n_times). A channel without any spread is only shifted.

        A signal with a weight (n,) of 2 counts as two.
        """
        axes = (0, 2) if per_channel else (0, 1, 2)
        if weights is not None:
            shares = np.broadcast_to(weights[:, None, None], signals.shape)
            mean = np.average(signals.astype(np.float64), axes, shares, keepdims=True)
            variance = np.average((signals - mean) ** 2, axes, shares, keepdims=True)
            return cls(mean[0], np.where(variance > 0, np.sqrt(variance), 1.0)[0])
        mean = signals.mean(axis=axes, dtype=np.float64, keepdims=True)[0]
        std = signals.std(axis=axes, dtype=np.float64, keepdims=True)[0]
        return cls(mean, np.where(std > 0, std, 1.0))

    def __call__(self, signals: np.ndarray) -> np.ndarray:
        """Return standardised signals (n, n_chans, n_times), float32."""
        # Subtract before the cast: a large offset would cost digits of a float32.
        shifted: np.ndarray = np.subtract(signals, self.mean, dtype=np.float64)
        shifted /= self.std
        return shifted.astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples (signals, latents or features) with their classes.

    Parameters
    ----------
    values : Tensor, shape (n, ...)
    labels : Tensor, shape (n,)
        Int64, class numbers.
    groups : Tensor, shape (n,) or None, default=None
        Int64, the person or recording of each, where that is known.
    weights : Tensor, shape (n,) or None, default=None
        Float64, above 0: a sample with a weight of 2 counts as two; None where each counts as one.

    Examples
    --------
    >>> samples = Batch(torch.arange(3.0), torch.tensor([0, 1, 0]))
    >>> samples.classes, samples.of(0).values.tolist()
    ((0, 1), [0.0, 2.0])
    """

    values: Tensor
    labels: Tensor
    groups: Tensor | None = None
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if self.labels.shape != self.values.shape[:1]:
            raise ValueError(
                f"labels of shape {tuple(self.labels.shape)} do not fit values of shape "
                f"{tuple(self.values.shape)}; one label per sample is needed"
            )
        for name, values in (("groups", self.groups), ("weights", self.weights)):
            if values is not None and values.shape != self.labels.shape:
                n = len(self.labels)
                raise ValueError(f"{len(values)} {name} for {n} samples; one per sample is needed")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> "Batch":
        rest = (None if column is None else column[index] for column in (self.groups, self.weights))
        return Batch(self.values[index], self.labels[index], *rest)

    def of(self, *classes: int) -> "Batch":
        """Return the samples of some classes."""
        return self[torch.isin(self.labels, torch.tensor(classes, dtype=self.labels.dtype))]

    def with_values(self, values: Tensor) -> "Batch":
        """Return the same labels on other values."""
        return Batch(values, self.labels, self.groups, self.weights)

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes present, sorted."""
        return tuple(sorted(set(self.labels.tolist())))


def concat(*batches: Batch | None) -> Batch:
    """Concatenate batches of the same kind of samples; None is an empty one."""
    present = [batch for batch in batches if batch is not None]
    return Batch(torch.cat([b.values for b in present]), torch.cat([b.labels for b in present]))


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """An incremental session: the shots of its new classes.

    Parameters
    ----------
    index : int
        1, 2, ...; the base session is 0.
    train : Batch
        Signals (n, n_chans, n_times) of the new classes only.

    Examples
    --------
    >>> Session(1, Batch(torch.zeros(10, 2, 30), torch.full((10,), 5))).train.classes
    (5,)
    """

    index: int
    train: Batch


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A loss curve: the kind of training (``base``, ``invert``, ``finetune``), its session and values."""

    name: str
    session: int
    values: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The state of a learner between two sessions.

    Parameters
    ----------
    trunk : nn.Module
        Signals -> latents, the inputs of the tail. Never trained after the base session.
    tail : nn.Module
        Latents -> features (n, dim). The last block, unless a method splits elsewhere.
    head : Head
        Features -> logits, one column per class of ``classes``.
    classes : tuple of int
        The classes known, in the order they were learned; the first ``n_base`` are the base.
    n_base : int
        Number of base classes.
    shape : (int, int)
        (n_chans, n_times) of a signal.
    seed : int
        Of the base session; what all trials share is drawn from it.
    session : int, default=0
        Index of the last session learned.
    anchors : Batch or None, default=None
        Features kept of each class, as computed when the class was learned; without dimensions where a method
        only keeps labels.
    replay : Batch or None, default=None
        Latents of replay samples of each class that has been inverted.
    recordings : Batch or None, default=None
        Signals kept, by methods that keep them.
    signals : Batch or None, default=None
        The inverted signals behind the replay, if kept, for inspection.
    curves : tuple of Curve, default=()
        Loss curves so far, and weights of their terms.
    confidence : Confidence or None, default=None
        Confidence measured on held-out windows, if there were some.

    Examples
    --------
    >>> state = State(nn.Identity(), nn.Identity(), nn.Identity(), (3, 7), n_base=2, shape=(2, 30), seed=0)
    >>> state.columns(torch.tensor([7, 3])).tolist()
    [1, 0]
    """

    trunk: nn.Module
    tail: nn.Module
    head: Head
    classes: tuple[int, ...]
    n_base: int
    shape: tuple[int, int]
    seed: int
    session: int = 0
    anchors: Batch | None = None
    replay: Batch | None = None
    recordings: Batch | None = None
    signals: Batch | None = None
    curves: tuple[Curve, ...] = ()
    confidence: Confidence | None = None

    def calibrated(self, logits: Tensor) -> Tensor:
        """Return calibrated logits (n, n_classes), if calibration was measured."""
        if self.confidence is None:
            return logits
        taught = len(self.classes) > self.n_base  # otherwise counts do not matter
        counts = self.head.counts if taught and isinstance(self.head, StatisticalHead) else None
        return self.confidence.scaled(logits, counts, n_base=self.n_base)

    def columns(self, labels: Tensor) -> Tensor:
        """Return the logits' column of each class number (n,)."""
        return columns(labels, self.classes)


def columns(labels: Tensor, classes: Sequence[int]) -> Tensor:
    """Return the index of each label in ``classes``, which must contain all labels."""
    matches = labels[:, None] == torch.tensor(classes, dtype=labels.dtype, device=labels.device)
    if not matches.any(1).all():
        unknown = labels[~matches.any(1)][0].item()
        raise ValueError(f"class {unknown} is not among the known classes {list(classes)}")
    return matches.int().argmax(1)
