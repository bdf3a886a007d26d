"""Memories that hold no real sample to replay: signals are inverted from anchors or from labels."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from anchorinv.core.anchors import Selection, random_anchors
from anchorinv.core.inversion import Goal, Inversion, classify, pursue, reach
from anchorinv.core.memory import with_anchors
from anchorinv.core.networks import mapped
from anchorinv.core.priors import Prior, with_priors
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch, Curve, State, joined
from anchorinv.core.views import bare, seen_as, sizes_of


@dataclass(frozen=True, slots=True)
class InvertedAnchors:
    """Keep anchors in the feature space; replay signals inverted from them (the paper's method).

    Parameters
    ----------
    per_class : anchors kept of each base class; of a new class the features of all shots are kept.
    select : which ones.
    inversion : how they are inverted.
    priors : added to the error; none in the paper's text.
    with_signals : keep the inverted signals too; learning needs their latents alone.
    """

    per_class: int = 50
    select: Selection = random_anchors
    inversion: Inversion = Inversion()
    priors: tuple[Prior, ...] = ()
    with_signals: bool = False

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Add the anchors of the session's classes, as the tail sees them now (Eq. 5 to 8)."""
        return with_anchors(state, latents, self.per_class, self.select, rng=rng)

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Invert the anchors that have no replay yet (Eq. 9)."""
        return _recalled(state, _reach, self.inversion, self, rng=rng)


@dataclass(frozen=True, slots=True)
class InvertedLabels:
    """Keep nothing but labels; replay signals that the network classifies as them (DeepDream, DeepInv).

    Parameters
    ----------
    per_class : signals inverted for each base class; for a new class as many as it had shots.
    inversion : how. All signals are inverted in one chunk, since priors may look at the whole batch.
    priors : what keeps the signals natural.
    with_signals : keep the inverted signals too.
    """

    per_class: int = 50
    inversion: Inversion = Inversion()
    priors: tuple[Prior, ...] = ()
    with_signals: bool = False

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Note how many signals each class of the session shall have: anchors without a place."""
        counts = [self.per_class if state.session == 0 else len(latents.of(c)) for c in latents.classes]
        labels = torch.tensor(latents.classes).repeat_interleave(torch.tensor(counts))
        return replace(state, anchors=joined(state.anchors, Batch(torch.zeros(len(labels), 0), labels)))

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Invert the labels that have no replay yet."""
        whole = replace(self.inversion, chunk=max(1, len(state.anchors or ())))
        return _recalled(state, _classify, whole, self, rng=rng)


class _Aim(Protocol):
    def __call__(self, state: State, pending: Batch) -> Goal: ...


def _reach(state: State, pending: Batch) -> Goal:
    own = pending.values.shape[1] - sum(sizes_of(state))
    return reach(nn.Sequential(*bare(state)), pending.values[:, :own])


def _classify(state: State, pending: Batch) -> Goal:
    network = nn.Sequential(state.trunk, state.tail, state.head)
    return classify(network, state.columns(pending.labels))


def _recalled(
    state: State,
    aim: _Aim,
    inversion: Inversion,
    memory: InvertedAnchors | InvertedLabels,
    *,
    rng: torch.Generator,
) -> State:
    parts = [_pending(state, label, inversion, rng=rng) for label in state.classes]
    pending = joined(*(anchors for anchors, _ in parts))
    if not len(pending):
        return state
    like = next(state.tail.parameters())
    start = torch.cat([start for _, start in parts]).to(like)
    del parts
    if not set(pending.classes) & set(state.classes[: state.n_base]):
        inversion = replace(inversion, batch=inversion.new_batch)
    goal, weights = with_priors(aim(state, pending), memory.priors, state.trunk, start)
    found = pursue(goal, start, inversion)
    session = state.session + 1
    made = [Curve("invert", session, found.curve)]
    made += [Curve(f"weight of {name}", session, torch.tensor([weight])) for name, weight in weights.items()]
    latents = pending.with_values(seen_as(mapped(state.trunk, found.signals), pending.values, state))
    state = replace(state, replay=joined(state.replay, latents), curves=(*state.curves, *made))
    if not memory.with_signals:
        return state
    return replace(state, signals=joined(state.signals, pending.with_values(found.signals)))


def _pending(state: State, label: int, inversion: Inversion, *, rng: torch.Generator) -> tuple[Batch, Tensor]:
    """Return a class's anchors beyond those inverted, and where their inversion starts."""
    assert state.anchors is not None, "a class is learned before it is recalled"
    n_replay = len(state.replay.of(label)) if state.replay else 0
    anchors = state.anchors.of(label)
    anchors = Batch(anchors.values[n_replay:], anchors.labels[n_replay:])
    # All trials share the base classes' replay, so its start is drawn from the base session's seed.
    if label in state.classes[: state.n_base] and n_replay == 0:
        origin = stream(state.seed, "invert", label)
    elif inversion.shared_noise:
        origin = stream(state.seed, "invert", "new", n_replay)
    else:
        origin = stream(rng, "invert", label)
    return anchors, inversion.start(len(anchors), state.shape, rng=origin)
