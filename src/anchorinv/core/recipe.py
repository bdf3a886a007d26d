"""A method by composition: a base model, a placement of new classes, an adaptation and a memory."""

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from anchorinv.core.blocks import with_views
from anchorinv.core.encoder import Encoder
from anchorinv.core.heads import Head, StatisticalHead
from anchorinv.core.memory import Memory
from anchorinv.core.minimise import Checkpoint
from anchorinv.core.networks import encode, frozen, one_thread
from anchorinv.core.prototypes import Placement, follow_replay, update_prototypes
from anchorinv.core.training import Adaptation, Training, train
from anchorinv.core.types import Batch, Curve, Session, State, columns, concat, scoped_seed, stream


class Method(Protocol):
    """Interface of a method.

    Examples
    --------
    >>> from anchorinv.core.catalogue import mdm
    >>> mine: Method = mdm(None)
    >>> train = Batch(torch.randn(12, 2, 30, generator=stream(0)), torch.arange(12) % 2)
    >>> mine.fit_base(train, rng=stream(1)).classes
    (0, 1)
    """

    def fit_base(self, train: Batch, *, rng: torch.Generator) -> State:
        """Learn the base classes from signals (n, n_chans, n_times)."""

    def learn_session(self, state: State, session: Session, *, rng: torch.Generator) -> State:
        """Learn a session's new classes; the input state is not changed."""

    def predict(self, state: State, signals: Tensor) -> Tensor:
        """Return a known class for each signal (n,)."""


#: (state, features of the kept samples, by the current network) -> head that classifies.
FitHead = Callable[[State, Batch], Head]


class BaseLearner(Protocol):
    """Interface of a base-model spec; a value, so that methods with equal specs share the model."""

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        """Builds an untrained network, if there is one."""

    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        """Learn the base classes from signals (n, n_chans, n_times)."""


@dataclass(frozen=True, slots=True)
class BaseSpec:
    """Spec of a trained base model: network, head and training. Methods with equal specs share one.

    Parameters
    ----------
    backbone : callable
        ``() -> nn.Module``, an untrained network with the submodules ``trunk`` and ``tail``.
    head : callable
        ``(n_classes, dim) -> Head``, an untrained head.
    training : Training
        How both are trained.
    device : str, default="cpu"
        Device of the network; see ``networks.py``.

    Examples
    --------
    >>> from anchorinv.core.conformer import Conformer
    >>> from anchorinv.core.heads import Cosine
    >>> from anchorinv.core.networks import Geometry
    >>> small = Geometry(2, 30, kernel=5, pool=6, pool_stride=3, width=4, heads=2, depth=2)
    >>> spec = BaseSpec(lambda: Conformer(small), Cosine.start, Training(epochs=1, batch_size=8))
    >>> train = Batch(torch.randn(12, 2, 30, generator=stream(0)), torch.arange(12) % 2)
    >>> spec.fit(train, rng=stream(1)).head.prototypes.shape
    torch.Size([2, 28])
    """

    backbone: Callable[[], nn.Module]
    head: Callable[[int, int], Head]
    training: Training
    device: str = field(default="cpu", metadata={"later": True})

    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        """Train on the base classes, then finalise the head on its features (Algorithm 1, base, 1 to 3)."""
        classes, signals = samples.classes, samples.values
        if len(classes) < 2:
            raise ValueError(f"base training needs at least two classes, got {len(classes)}")
        with scoped_seed(stream(rng, "initialise")):
            network = self.backbone().to(signals)
            dim = encode(network.eval(), signals[:1]).shape[1]
            head = self.head(len(classes), dim).to(signals)
        network, head = network.to(self.device), head.to(self.device)
        labelled = Batch(signals, columns(samples.labels, classes), samples.groups)
        curve = train(network, head, labelled, self.training, checkpoint=checkpoint, rng=rng)
        trunk, tail = network.get_submodule("trunk"), network.get_submodule("tail")
        features = encode(tail, encode(trunk, signals))
        return State(
            trunk=trunk,
            tail=tail,
            head=frozen(head.cpu().finalise(features, labelled.labels)),
            classes=classes,
            n_base=len(classes),
            shape=(signals.shape[1], signals.shape[2]),
            seed=rng.initial_seed(),
            curves=(Curve("base", 0, curve),),
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """A method by composition.

    Parameters
    ----------
    name : str
        As in the registry.
    base_spec : BaseLearner
        How the base model is made.
    place : Placement
        Where new classes start.
    adapt : Adaptation
        How tail and head learn from the shots.
    memory : Memory
        What is kept of old classes and replayed.
    fit_head : FitHead or None, default=None
        Fits the head that classifies to what is kept; None classifies with the trained head.
    views : tuple of str, default=()
        Names of views, features of the signals in addition to the network's.
    refresh : bool, default=False
        Let prototypes of old classes follow their replay when the network changes; off in the paper.

    Examples
    --------
    >>> from anchorinv.core.catalogue import teen
    >>> recipe = teen(None, alpha=0.2)
    >>> recipe.place, recipe.memory
    (Calibrated(tau=32.0, alpha=0.2), NoMemory())
    """

    #: Whether what is kept of windows has noise, so that nothing else may be measured on them and kept.
    private: ClassVar[bool] = False

    name: str
    base_spec: BaseLearner
    place: Placement
    adapt: Adaptation
    memory: Memory
    fit_head: FitHead | None = None
    views: tuple[str, ...] = ()
    refresh: bool = False

    def fit_base(self, train: Batch, *, rng: torch.Generator) -> State:
        """Learn the base classes (Algorithm 1, base session)."""
        return self.start(self.base_spec.fit(train, rng=rng), train, rng=rng)

    def start(self, base: State, train: Batch, *, rng: torch.Generator) -> State:
        """Add to a trained base model what this method keeps of the base classes."""
        base = with_views(base, train, self.views) if self.views else base
        with one_thread() if without_networks(base) else nullcontext():
            latents = train.with_values(encode(base.trunk, train.values))
        kept = self.memory.keep(base, train, latents, rng=rng)
        return self.with_fitted_head(kept, kept.anchors)

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Make the replay that the next session will need; otherwise the session does it itself."""
        return self.memory.recall(state, rng=rng)

    def learn_session(self, state: State, session: Session, *, rng: torch.Generator) -> State:
        """Learn new classes (Algorithm 1, incremental sessions)."""
        with one_thread() if without_networks(state) else nullcontext():
            return self._learn_session(state, session, rng)

    def _learn_session(self, state: State, session: Session, rng: torch.Generator) -> State:
        train = session.train
        if not len(train):
            raise ValueError(f"session {session.index} brings no samples; a new class needs one at least")
        if known := sorted(set(train.classes) & set(state.classes)):
            raise ValueError(f"class {known[0]} is known already; a session brings new classes only")
        latents = train.with_values(encode(state.trunk, train.values))
        shots = latents.with_values(encode(state.tail, latents.values))
        head = self.place(state, shots)  # line 2
        state = self.recall(state, rng=stream(rng, "recall"))  # line 3
        grown = replace(state, classes=(*state.classes, *train.classes), session=state.session + 1)
        replay = _by_column(grown, state.replay) if state.replay else None
        tail, head, curve = self.adapt(  # lines 4 to 8
            state.tail, head, _by_column(grown, latents), replay, session=grown.session
        )
        if self.refresh and replay and tail is not state.tail:
            head = follow_replay(head, replay, state.tail, tail)
        curves = [Curve("finetune", grown.session, curve)]
        if getattr(self.adapt, "chooses_steps", False):
            curves.append(Curve("steps chosen", grown.session, torch.tensor([float(len(curve))])))
        adapted = replace(grown, tail=tail, head=frozen(head), curves=(*state.curves, *curves))
        kept = self.memory.keep(adapted, train, latents, rng=stream(rng, "keep"))  # line 9
        if self.fit_head is None or tail is state.tail:
            return self.with_fitted_head(kept, kept.anchors)
        # Anchors are old features; replay gives their features in the finetuned network.
        seen = concat(kept.replay, latents)
        return self.with_fitted_head(kept, seen.with_values(encode(tail, seen.values)))

    def add_shots(self, state: State, features: Batch, counts: Sequence[int]) -> State:
        """Learn from more examples of known classes: prototypes or statistics move, the network stays.

        ``features`` (n, dim) are labelled by known classes; ``counts`` are the examples behind each prototype
        so far, in the order of the classes.
        """
        if isinstance(state.head, StatisticalHead):
            head: Head = state.head.after(features, state.columns(features.labels))
        else:
            head = update_prototypes(state, features, counts, exact=self.fit_head is not None)
        kept = self.memory.add(replace(state, head=frozen(head)), features)
        return self.with_fitted_head(kept, kept.anchors)

    def with_fitted_head(self, state: State, features: Batch | None) -> State:
        """Return the state with the head that classifies, fitted to features of what is kept."""
        if self.fit_head is None:
            return state
        if features is None:
            raise TypeError(f"{self.name} fits its head to what is kept, and its memory keeps nothing")
        return replace(state, head=frozen(self.fit_head(state, features)))

    def predict(self, state: State, signals: Tensor) -> Tensor:
        """Return a known class for each signal (n,)."""
        return self.predict_latents(state, encode(state.trunk, signals))

    def predict_latents(self, state: State, latents: Tensor) -> Tensor:
        """Return a known class for each encoded signal (n,)."""
        return torch.tensor(state.classes)[self.latent_logits(state, latents).argmax(1)]

    def latent_logits(self, state: State, latents: Tensor) -> Tensor:
        """Return the logits (n, n_classes) of encoded signals, by which they are predicted."""
        return encode(state.head, encode(state.tail, latents))


def without_networks(state: State) -> bool:
    """Return whether all features are closed forms, which are computed on one thread."""
    return isinstance(state.trunk, Encoder) and not state.trunk.networks


def _by_column(state: State, samples: Batch) -> Batch:
    return Batch(samples.values, state.columns(samples.labels))


def placed(state: State, device: str) -> State:
    """Return a state with its networks on a device; the same state if they are there already."""
    wanted = torch.device(device)
    tensors = (t for network in _networks(state) for t in (*network.parameters(), *network.buffers()))
    if all(t.device.type == wanted.type and wanted.index in (None, t.device.index) for t in tensors):
        return state
    trunk, tail = copy.deepcopy((state.trunk, state.tail))  # a state never changes
    moved = replace(state, trunk=trunk, tail=tail)
    for network in _networks(moved):
        network.to(wanted)
    return moved


def _networks(state: State) -> Iterable[nn.Module]:
    """Return the modules that belong on a device; of an encoder of feature blocks only the networks."""
    return state.trunk.networks if isinstance(state.trunk, Encoder) else (state.trunk, state.tail)
