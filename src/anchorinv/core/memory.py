"""Memories: what is kept of old classes, and replayed.

After a session a memory *keeps* something of what was learned; at the start of the next one it *recalls*: it
makes missing replay samples. Replay samples are stored as latents, the inputs of the tail: the trunk is
frozen, so encoding a sample once is exact. Memories without real samples invert signals from anchors or from
labels.

A memory also owns its facts: which parts of the state it fills, what these reveal about people, and how many
samples it keeps.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from anchorinv.core.blocks import network_columns, view_sizes, with_views_of, without_views
from anchorinv.core.inversion import (
    Inversion,
    InversionLoss,
    MatchFeatures,
    Prior,
    invert_with,
    match_labels,
    with_priors,
)
from anchorinv.core.networks import device_of, encode, frozen, moved
from anchorinv.core.prototypes import Selection, aggregated, random_anchors, random_indices
from anchorinv.core.types import Batch, Curve, State, concat, stream

#: Shots of a new class, as in the paper.
SHOTS = 10

#: (state, features (n, dim) of a session, anchors of a class) -> state with their anchors and prototypes.
Release = Callable[[State, Batch, int], State]


class Memory(ABC):
    """What a method keeps of old classes; by default nothing.

    Attributes
    ----------
    stores, may_store : tuple of str
        Parts of the state that it fills in the base session, and later or on demand: "anchors", "replay",
        "recordings", "signals".
    keeps : str
        What that reveals about people: "none", "synthetic", "features of real samples", "real recordings".
    inverts : bool
        Whether its replay is inverted.
    labels_only : bool
        Whether its anchors are labels without features, all inverted at once.
    one_per_class : bool
        Whether it keeps one sample of every class, base or new.

    Examples
    --------
    A memory that only keeps the shots of new classes:

    >>> class NewShots(Memory):
    ...     stores, keeps = ("replay",), "features of real samples"
    ...     def keep(self, state, train, latents, *, rng):
    ...         return replace(state, replay=joined(state.replay, latents)) if state.session else state
    >>> NewShots.inverts, LatentSamples(per_class=10).n_kept([25, 4])
    (False, 14)
    """

    __slots__ = ()

    stores: ClassVar[tuple[str, ...]] = ()
    may_store: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[str] = "none"
    inverts: ClassVar[bool] = False
    labels_only: ClassVar[bool] = False
    one_per_class: ClassVar[bool] = False

    @abstractmethod
    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Return the state with what is kept of a session's training signals and their latents."""

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Return the state with replay of all its classes, made by its own network."""
        return state

    def add(self, state: State, features: Batch) -> State:
        """Return the state with what is kept of more shots of known classes, given as features (n, dim)."""
        return state

    def n_kept(self, counts: Sequence[int]) -> int:
        """Return how many samples are kept of base classes of these sizes."""
        return 0


@dataclass(frozen=True, slots=True)
class NoMemory(Memory):
    """Keep nothing, replay nothing."""

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Return the state as it is."""
        return state


@dataclass(frozen=True, slots=True)
class ClassMeans(Memory):
    """Keep the mean latent of each class, and replay it (NC-FSCIL)."""

    stores = ("replay",)
    keeps = "features of real samples"
    one_per_class = True

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Add a mean per class of the session."""
        means = torch.stack([latents.of(label).values.mean(0) for label in latents.classes])
        return replace(state, replay=concat(state.replay, Batch(means, torch.tensor(latents.classes))))

    def n_kept(self, counts: Sequence[int]) -> int:
        """Return a mean per class."""
        return len(counts)


class _PerClass(Memory):
    """A memory of ``per_class`` samples of each base class, and of all shots of a new one."""

    __slots__ = ()
    per_class: int

    def n_kept(self, counts: Sequence[int]) -> int:
        """Return the number of samples per class, limited by what there is."""
        return sum(min(count, self.per_class) for count in counts)


@dataclass(frozen=True, slots=True)
class Anchors(_PerClass):
    """Keep anchors in the feature space and replay nothing: for heads that are fitted to them.

    Parameters
    ----------
    per_class : int, default=50
        Anchors of each base class; of a new class the features of all shots are kept.
    select : callable, default=random_anchors
        The selection.
    aggregate : int, default=1
        Number of windows whose mean is an anchor, of several people where known; fewer are not kept.
    release : callable or None, default=None
        Makes anchors and prototypes by itself, from the features of a session and the number of anchors, as
        differential privacy does; nothing is selected then.

    Examples
    --------
    >>> Anchors(per_class=50).n_kept([80, 20])
    70
    """

    stores = ("anchors",)
    keeps = "features of real samples"

    per_class: int = 50
    select: Selection = random_anchors
    # Left out of hashes at its default, so that replay cached before this setting is still valid.
    aggregate: int = field(default=1, kw_only=True, metadata={"later": True})
    release: Release | None = field(default=None, kw_only=True, metadata={"later": True})

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Add the anchors of the session's classes, as the tail sees them now (Eq. 5 to 8)."""
        if self.release is not None:
            features = encode(state.tail, latents.values)
            return self.release(
                state, latents.with_values(features), _n_anchors(self.per_class, features, state)
            )
        anchors = [state.anchors]
        for label in latents.classes:
            own = latents.of(label)
            own = own.with_values(encode(state.tail, own.values))
            features = aggregated(own, self.aggregate, rng=stream(rng, "aggregate", label))
            if state.session == 0:
                quota = _n_anchors(self.per_class, features, state)
                features = self.select(features, quota, stream(rng, "anchors", label))
            anchors.append(Batch(features, torch.full((len(features),), label)))
        return replace(state, anchors=concat(*anchors))

    def add(self, state: State, features: Batch) -> State:
        """Add the features of the shots to the anchors."""
        anchors = [state.anchors]
        for label in features.classes:
            means = aggregated(features.of(label), self.aggregate, rng=None)
            anchors.append(Batch(means, torch.full((len(means),), label)))
        return replace(state, anchors=concat(*anchors))


def _n_anchors(per_class: int, features: Tensor, state: State) -> int:
    """Return the anchors of a base class: with views an anchor is larger, and fewer are kept.

    So the memory stays the same after as many new classes have been learned from :data:`SHOTS` shots.
    """
    n_columns = features.shape[1]
    n_network = n_columns - sum(view_sizes(state))
    if n_network == n_columns:
        return per_class
    return max(2, (per_class + SHOTS) * n_network // n_columns - SHOTS)


@dataclass(frozen=True, slots=True)
class LatentSamples(_PerClass):
    """Keep the latents of real samples, and replay them: exact, without recordings or inversion.

    Parameters
    ----------
    per_class : int, default=50
        Samples of each base class; of a new class all shots are kept.

    Examples
    --------
    >>> LatentSamples(per_class=10).n_kept([25, 4])
    14
    """

    stores = ("replay",)
    keeps = "features of real samples"

    per_class: int = 50

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Add latents of some samples of each base class, and of all shots."""
        return replace(
            state, replay=concat(state.replay, _samples_to_keep(state, latents, self.per_class, rng))
        )


@dataclass(frozen=True, slots=True)
class RealSamples(_PerClass):
    """Keep recordings and replay them, as many as LatentSamples: an upper bound without privacy."""

    stores = ("recordings",)
    may_store = ("replay",)
    keeps = "real recordings"

    per_class: int = 50

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Add the signals of some samples of each base class, and of all shots."""
        return replace(
            state, recordings=concat(state.recordings, _samples_to_keep(state, train, self.per_class, rng))
        )

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Encode new recordings."""
        assert state.recordings is not None, "a class must be learned before it is recalled"
        n_known = len(state.replay) if state.replay else 0
        signals, labels = state.recordings.values[n_known:], state.recordings.labels[n_known:]
        if not len(labels):
            return state
        return replace(state, replay=concat(state.replay, Batch(encode(state.trunk, signals), labels)))


@dataclass(frozen=True, slots=True)
class InvertedAnchors(Anchors):
    """Keep anchors in the feature space; replay signals inverted from them (the paper's method).

    Parameters
    ----------
    per_class, select : int, callable
        As in :class:`Anchors`.
    inversion : Inversion, default=Inversion()
        How they are inverted.
    priors : tuple of Prior, default=()
        Added to the error; none in the paper's text.
    with_signals : bool, default=False
        Also keep the inverted signals; learning only needs their latents.
    """

    may_store = ("replay", "signals")
    keeps = "synthetic"
    inverts = True

    inversion: Inversion = Inversion()
    priors: tuple[Prior, ...] = ()
    with_signals: bool = False

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Invert the anchors that have no replay yet (Eq. 9)."""
        return _with_inverted_replay(state, _match_anchors, self.inversion, self, rng=rng)


@dataclass(frozen=True, slots=True)
class InvertedLabels(Memory):
    """Keep only labels; replay signals that the network classifies as them (DeepDream, DeepInv).

    ``per_class`` signals are inverted for each base class, for a new class as many as it had shots; in one
    chunk, since priors may depend on the whole batch. The other parameters are those of
    :class:`InvertedAnchors`.
    """

    stores = ("anchors",)
    may_store = ("replay", "signals")
    keeps = "synthetic"
    inverts = True
    labels_only = True

    per_class: int = 50
    inversion: Inversion = Inversion()
    priors: tuple[Prior, ...] = ()
    with_signals: bool = False

    def keep(self, state: State, train: Batch, latents: Batch, *, rng: torch.Generator) -> State:
        """Store the number of signals of each class of the session, as anchors without features."""
        counts = [self.per_class if state.session == 0 else len(latents.of(c)) for c in latents.classes]
        labels = torch.tensor(latents.classes).repeat_interleave(torch.tensor(counts))
        return replace(state, anchors=concat(state.anchors, Batch(torch.zeros(len(labels), 0), labels)))

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Invert the labels that have no replay yet."""
        one_chunk = replace(self.inversion, chunk=max(1, len(state.anchors or ())))
        return _with_inverted_replay(state, _match_labels, one_chunk, self, rng=rng)

    def n_kept(self, counts: Sequence[int]) -> int:
        """Return the same number for every class, however few samples it has."""
        return self.per_class * len(counts)


def _samples_to_keep(state: State, samples: Batch, per_class: int, rng: torch.Generator) -> Batch:
    """Return all shots, or of base classes the samples that ``random_anchors`` would take for anchors."""
    if state.session > 0:
        return samples
    chosen = []
    for label in samples.classes:
        own = samples.of(label)
        chosen.append(own[random_indices(len(own), per_class, stream(rng, "anchors", label))])
    return concat(*chosen)


#: (state, anchors without replay) -> the inversion loss of their signals.
_MakeLoss = Callable[[State, Batch], InversionLoss]


def _match_anchors(state: State, pending: Batch) -> InversionLoss:
    network = nn.Sequential(*without_views(state))
    return MatchFeatures(network, network_columns(state, pending.values).to(device_of(network)))


def _match_labels(state: State, pending: Batch) -> InversionLoss:
    device = device_of(state.tail)
    network = nn.Sequential(state.trunk, state.tail, moved(state.head, device))
    return match_labels(network, state.columns(pending.labels).to(device))


def _with_inverted_replay(
    state: State,
    make_loss: _MakeLoss,
    inversion: Inversion,
    memory: InvertedAnchors | InvertedLabels,
    *,
    rng: torch.Generator,
) -> State:
    parts = [_pending(state, label, inversion, rng=rng) for label in state.classes]
    pending = concat(*(anchors for anchors, _ in parts))
    if not len(pending):
        return state
    like = next(state.tail.parameters())
    start = torch.cat([start for _, start in parts]).to(like.dtype)
    del parts
    if not set(pending.classes) & set(state.classes[: state.n_base]):
        inversion = replace(inversion, batch=inversion.new_batch)
    # A copy: a prior may use hooks while another thread predicts.
    network = nn.Sequential(*map(copy.deepcopy, (state.trunk, state.tail) if memory.priors else ()))
    measured = start.to(like.device) if memory.priors else start
    loss, weights = with_priors(make_loss(state, pending), memory.priors, network, measured)
    result = invert_with(loss, start, inversion, like.device)
    session = state.session + 1
    curves = [Curve("invert", session, result.curve)]
    curves += [
        Curve(f"weight of {name}", session, torch.tensor([weight])) for name, weight in weights.items()
    ]
    latents = pending.with_values(with_views_of(encode(state.trunk, result.signals), pending.values, state))
    state = replace(state, replay=concat(state.replay, latents), curves=(*state.curves, *curves))
    if not memory.with_signals:
        return state
    return replace(state, signals=concat(state.signals, pending.with_values(result.signals)))


def _pending(state: State, label: int, inversion: Inversion, *, rng: torch.Generator) -> tuple[Batch, Tensor]:
    """Return a class's anchors without replay, and the start of their inversion."""
    assert state.anchors is not None, "a class must be learned before it is recalled"
    n_replay = len(state.replay.of(label)) if state.replay else 0
    anchors = state.anchors.of(label)
    anchors = Batch(anchors.values[n_replay:], anchors.labels[n_replay:])
    # All trials share the replay of base classes, so its start is drawn from the base seed.
    if label in state.classes[: state.n_base] and n_replay == 0:
        origin = stream(state.seed, "invert", label)
    elif inversion.shared_noise:
        origin = stream(state.seed, "invert", "new", n_replay)
    else:
        origin = stream(rng, "invert", label)
    return anchors, inversion.start(len(anchors), state.shape, rng=origin)


def without_class(state: State, label: int) -> State:
    """Return the state without a class's prototype, anchors, replay and recordings; the network stays.

    The logits of the other classes do not change, unless they depend on the covariance of all classes. What
    finetuning wrote into the network's weights stays there. A base class must remain, and two classes in all.
    """
    if len(state.classes) <= 2:
        raise ValueError("at least two classes must remain; teach another one before forgetting this one")
    column = state.classes.index(label)
    is_base = column < state.n_base
    if is_base and state.n_base == 1:
        raise ValueError("it is the last base class, and one must remain; retrain without it")
    batches = {name: getattr(state, name) for name in ("anchors", "replay", "recordings", "signals")}
    others = {name: batch and batch[batch.labels != label] for name, batch in batches.items()}
    return replace(
        state,
        head=frozen(state.head.without(column, others["anchors"])),
        classes=tuple(other for other in state.classes if other != label),
        n_base=state.n_base - is_base,
        confidence=state.confidence.without(column, state.n_base) if state.confidence else None,
        **others,
    )
