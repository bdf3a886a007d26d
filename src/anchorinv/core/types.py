"""The nouns of the algorithm, as values: nothing here changes after it was made."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anchorinv.core.heads import Head


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples with their classes; whether signals, latents or features, the context says.

    Parameters
    ----------
    values : (n, ...)
    labels : (n,) int64, class numbers.
    groups : (n,) int64, the person or recording of each, where that is known.
    """

    values: Tensor
    labels: Tensor
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        if self.labels.shape != self.values.shape[:1]:
            raise ValueError(
                f"labels of shape {tuple(self.labels.shape)} do not fit values of shape "
                f"{tuple(self.values.shape)}; one label per sample is needed"
            )
        if self.groups is not None and self.groups.shape != self.labels.shape:
            raise ValueError(
                f"{len(self.groups)} groups for {len(self.labels)} samples; one per sample is needed"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> "Batch":
        return Batch(
            self.values[index], self.labels[index], None if self.groups is None else self.groups[index]
        )

    def of(self, *classes: int) -> "Batch":
        """Return the samples of some classes."""
        return self[torch.isin(self.labels, torch.tensor(classes, dtype=self.labels.dtype))]

    def with_values(self, values: Tensor) -> "Batch":
        """Return the same labels on other values."""
        return Batch(values, self.labels, self.groups)

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes present, sorted."""
        return tuple(sorted(set(self.labels.tolist())))


def joined(*batches: Batch | None) -> Batch:
    """Concatenate batches of the same kind of samples; None is an empty one."""
    some = [batch for batch in batches if batch is not None]
    return Batch(torch.cat([b.values for b in some]), torch.cat([b.labels for b in some]))


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """What a learner sees at once: the shots of new classes, and nothing else.

    Parameters
    ----------
    index : 1, 2, ...; the base session is 0.
    train : signals (n, n_chans, n_times) of the new classes only.
    """

    index: int
    train: Batch


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """How a loss fell: which descent (``base``, ``invert``, ``finetune``), in which session, its values."""

    name: str
    session: int
    values: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All that a learner knows between two sessions.

    Parameters
    ----------
    trunk : signals -> latents, the inputs of the tail. Never trained after the base session.
    tail : latents -> features (n, dim). The last block, unless a method splits elsewhere.
    head : features -> logits, one column per class of ``classes``.
    classes : the classes known, in the order they were learned; the first ``n_base`` are the base.
    n_base : number of base classes.
    shape : (n_chans, n_times) of a signal.
    seed : of the base session; what all trials share is drawn from it.
    session : index of the last session learned.
    anchors : features kept of each class, as they were when the class was learned; of no dimension where a
        method keeps labels alone.
    replay : latents of replay samples of each class that has been inverted.
    recordings : signals kept, by methods that keep them.
    signals : the inverted signals behind the replay, where a memory was asked for them; to look at.
    curves : the descents so far, and what else they were set by.
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

    def columns(self, labels: Tensor) -> Tensor:
        """Return the logits' column of each class number (n,)."""
        return columns(labels, self.classes)


def columns(labels: Tensor, classes: Sequence[int]) -> Tensor:
    """Return where each label stands in ``classes``; every label must be there.

    Examples
    --------
    >>> columns(torch.tensor([7, 3, 7]), [3, 7]).tolist()
    [1, 0, 1]
    """
    found = labels[:, None] == torch.tensor(classes, dtype=labels.dtype, device=labels.device)
    if not found.any(1).all():
        unknown = labels[~found.any(1)][0].item()
        raise ValueError(f"class {unknown} is not among the known classes {list(classes)}")
    return found.int().argmax(1)
