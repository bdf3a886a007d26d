"""What is replayed of the classes learned before, and how it comes about.

A memory does two things. After a session it *keeps* something of what was learned; at the start of the
next one it *recalls*: it makes the replay samples that are not there yet. Replay samples are held as
latents, the inputs of the tail: the trunk is frozen, so encoding a sample once is exact.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from anchorinv.core.anchors import Selection, random_anchors, random_indices
from anchorinv.core.networks import mapped
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch, State, joined
from anchorinv.core.views import sizes_of

#: Of a new class, as in the paper.
SHOTS = 10


class Memory(Protocol):
    """How a method remembers."""

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Return the state with what is kept of a session's training signals and their latents."""
        ...

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Return the state with replay of all its classes, made by its own network."""
        ...


@dataclass(frozen=True, slots=True)
class Nothing:
    """Keep nothing, replay nothing."""

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Return the state as it is."""
        return state

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Return the state as it is."""
        return state


@dataclass(frozen=True, slots=True)
class ClassMeans:
    """Keep the mean latent of each class, and replay it (NC-FSCIL)."""

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Add a mean per class of the session."""
        means = torch.stack([latents.of(label).values.mean(0) for label in latents.classes])
        return replace(state, replay=joined(state.replay, Batch(means, torch.tensor(latents.classes))))

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Return the state as it is: means are replayed as they were kept."""
        return state


@dataclass(frozen=True, slots=True)
class Anchors:
    """Keep anchors in the feature space and replay nothing: for heads that are measured by them."""

    per_class: int = 50
    select: Selection = random_anchors

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Add the anchors of the session's classes."""
        return with_anchors(state, latents, self.per_class, self.select, rng=rng)

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Return the state as it is."""
        return state


def with_anchors(
    state: State, latents: Batch, per_class: int, select: Selection, *, rng: torch.Generator
) -> State:
    """Add selected features of each base class, or those of all shots, as the tail sees them now.

    Where views stand beside the features, an anchor is larger, and fewer are kept, so that the memory stays
    the same once as many classes again have been learned from :data:`SHOTS` shots.
    """
    anchors = [state.anchors]
    for label in latents.classes:
        features = mapped(state.tail, latents.of(label).values)
        if state.session == 0:
            features = select(features, _as_many(per_class, features, state), stream(rng, "anchors", label))
        anchors.append(Batch(features, torch.full((len(features),), label)))
    return replace(state, anchors=joined(*anchors))


def _as_many(per_class: int, features: Tensor, state: State) -> int:
    n_columns = features.shape[1]
    own = n_columns - sum(sizes_of(state))
    return per_class if own == n_columns else max(2, (per_class + SHOTS) * own // n_columns - SHOTS)


@dataclass(frozen=True, slots=True)
class LatentSamples:
    """Keep the latents of real samples, and replay them: exact, without recordings or inversion."""

    per_class: int = 50

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Add latents of some samples of each base class, and of all shots."""
        return replace(state, replay=joined(state.replay, _chosen(state, latents, self.per_class, rng)))

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Return the state as it is."""
        return state


@dataclass(frozen=True, slots=True)
class RealSamples:
    """Keep recordings and replay them: the upper bound that gives privacy up (RealReplay)."""

    per_class: int = 50

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Add the signals of some samples of each base class, and of all shots."""
        return replace(state, recordings=joined(state.recordings, _chosen(state, train, self.per_class, rng)))

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Encode the recordings that are not encoded yet."""
        assert state.recordings is not None, "a class is learned before it is recalled"
        n_known = len(state.replay) if state.replay else 0
        signals, labels = state.recordings.values[n_known:], state.recordings.labels[n_known:]
        if not len(labels):
            return state
        return replace(state, replay=joined(state.replay, Batch(mapped(state.trunk, signals), labels)))


def _chosen(state: State, samples: Batch, per_class: int, rng: torch.Generator) -> Batch:
    """Return all shots, or of base classes the samples that ``random_anchors`` would take for anchors."""
    if state.session > 0:
        return samples
    parts = [samples.of(label) for label in samples.classes]
    chosen = [
        part[random_indices(len(part), per_class, stream(rng, "anchors", label))]
        for part, label in zip(parts, samples.classes, strict=True)
    ]
    return joined(*chosen)
