"""What is replayed of the classes learned before, and how it comes about.

A memory does two things. After a session it *keeps* something of what was learned; at the start of the
next one it *recalls*: it makes the replay samples that are not there yet. Replay samples are held as
latents, the inputs of the tail: the trunk is frozen, so encoding a sample once is exact.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from anchorinv.core.anchors import Selection, random_anchors
from anchorinv.core.inversion import Inversion, invert
from anchorinv.core.networks import mapped
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch, Curve, State, joined


class Memory(Protocol):
    """How a method remembers."""

    def keep(self, state: State, latents: Batch, *, rng: torch.Generator) -> State:
        """Return the state with what is kept of a session's training latents."""
        ...

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Return the state with replay of all its classes, made by its own network."""
        ...


@dataclass(frozen=True, slots=True)
class Nothing:
    """Keep nothing, replay nothing."""

    def keep(self, state: State, latents: Batch, *, rng: torch.Generator) -> State:
        """Return the state as it is."""
        return state

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Return the state as it is."""
        return state


@dataclass(frozen=True, slots=True)
class InvertedAnchors:
    """Keep anchors in the feature space; replay signals inverted from them (the paper's method).

    Parameters
    ----------
    per_class : anchors kept of each base class; of a new class the features of all shots are kept.
    select : which ones.
    inversion : how they are inverted.
    """

    per_class: int = 50
    select: Selection = random_anchors
    inversion: Inversion = Inversion()

    def keep(self, state: State, latents: Batch, *, rng: torch.Generator) -> State:
        """Add the anchors of the session's classes, as the tail sees them now (Eq. 5 to 8)."""
        anchors = [state.anchors]
        for label in latents.classes:
            features = mapped(state.tail, latents.of(label).values)
            if state.session == 0:
                features = self.select(features, self.per_class, stream(rng, "anchors", label))
            anchors.append(Batch(features, torch.full((len(features),), label)))
        return replace(state, anchors=joined(*anchors))

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Invert the anchors that have no replay yet (Eq. 9)."""
        parts = [self._pending(state, label, rng=rng) for label in state.classes]
        pending = joined(*(anchors for anchors, _ in parts))
        if not len(pending):
            return state
        start = torch.cat([start for _, start in parts]).to(pending.values)
        network = nn.Sequential(state.trunk, state.tail)
        found = invert(network, pending.values, start, self.inversion)
        return replace(
            state,
            replay=joined(state.replay, pending.with_values(mapped(state.trunk, found.signals))),
            curves=(*state.curves, Curve("invert", state.session + 1, found.curve)),
        )

    def _pending(self, state: State, label: int, *, rng: torch.Generator) -> tuple[Batch, Tensor]:
        """Return a class's anchors beyond those inverted, and where their inversion starts."""
        assert state.anchors is not None, "a class is learned before it is recalled"
        n_replay = len(state.replay.of(label)) if state.replay else 0
        anchors = state.anchors.of(label)
        anchors = Batch(anchors.values[n_replay:], anchors.labels[n_replay:])
        # All trials share the base classes' replay, so its start is drawn from the base session's seed.
        shared = label in state.classes[: state.n_base] and n_replay == 0
        origin = stream(state.seed if shared else rng, "invert", label)
        return anchors, self.inversion.start(len(anchors), state.shape, rng=origin)
