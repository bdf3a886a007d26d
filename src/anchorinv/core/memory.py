"""What is replayed of the classes learned before, and how it comes about.

A memory does two things. After a session it *keeps* something of what was learned; at the start of the
next one it *recalls*: it makes the replay samples that are not there yet. Replay samples are held as
latents, the inputs of the tail: the trunk is frozen, so encoding a sample once is exact.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch

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
        """Invert the anchors of the classes that have no replay yet (Eq. 9)."""
        known = state.replay.classes if state.replay else ()
        pending = [label for label in state.classes if label not in known]
        if not pending or state.anchors is None:
            return state
        anchors = joined(*(state.anchors.of(label) for label in pending))
        # Trials share the base classes' replay, so its start is drawn from the base session's seed.
        roots = {label: state.seed if label in state.classes[: state.n_base] else rng for label in pending}
        start = torch.cat([
            self.inversion.start(
                len(state.anchors.of(label)), state.shape, rng=stream(roots[label], "invert", label)
            )
            for label in pending
        ]).to(anchors.values)  # fmt: skip
        found = invert(
            lambda signals: state.tail(state.trunk(signals)), anchors.values, start, self.inversion
        )
        return replace(
            state,
            replay=joined(state.replay, anchors.with_values(mapped(state.trunk, found.signals))),
            curves=(*state.curves, Curve("invert", state.session + 1, found.curve)),
        )
