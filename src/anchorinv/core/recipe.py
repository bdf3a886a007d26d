"""The one skeleton: every method is a foundation, a placement, an adaptation and a memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from anchorinv.core.checkpoint import Checkpoint
from anchorinv.core.heads import Head, StatisticalHead
from anchorinv.core.inverted import InvertedAnchors
from anchorinv.core.memory import Anchors, Memory
from anchorinv.core.networks import frozen, mapped
from anchorinv.core.prototypes import Placement, refreshed, reinforced
from anchorinv.core.rng import scoped_seed, stream
from anchorinv.core.selection import Validated
from anchorinv.core.training import Adaptation, Training, train
from anchorinv.core.types import Batch, Curve, Session, State, columns, joined
from anchorinv.core.views import with_views


class Method(Protocol):
    """What a study asks of a method."""

    def fit_base(self, train: Batch, *, rng: torch.Generator) -> State:
        """Learn the base classes from signals (n, n_chans, n_times)."""
        ...

    def learn_session(self, state: State, session: Session, *, rng: torch.Generator) -> State:
        """Learn a session's new classes; the state that came in stays as it is."""
        ...

    def predict(self, state: State, signals: Tensor) -> Tensor:
        """Return a known class for each signal (n,)."""
        ...


#: (state, features of what it keeps of each class, as its network sees them now) -> head.
Judge = Callable[[State, Batch], Head]


class BaseLearner(Protocol):
    """What makes a base model; a value, by which methods that share one are known."""

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        """Makes an untrained network, where there is one."""
        ...

    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        """Learn the base classes from signals (n, n_chans, n_times)."""
        ...


@dataclass(frozen=True, slots=True)
class Foundation:
    """What determines a base model; methods with the same foundation share one.

    Parameters
    ----------
    backbone : makes an untrained network, a module with ``trunk`` and ``tail``.
    head : makes an untrained head for (n_classes, dim).
    training : how both are trained.
    """

    backbone: Callable[[], nn.Module]
    head: Callable[[int, int], Head]
    training: Training

    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        """Train on the base classes, then settle the head on its features (Algorithm 1, base, 1 to 3).

        Parameters
        ----------
        samples : signals (n, n_chans, n_times); their groups are for a training that keeps some aside.
        checkpoint : where the training may be left and taken up.
        """
        classes, shape = samples.classes, samples.values.shape[1:]
        if len(classes) < 2:
            raise ValueError(f"base training needs at least two classes, got {len(classes)}")
        signals = samples.values
        with scoped_seed(stream(rng, "initialise")):
            network = self.backbone().to(signals)
            with torch.no_grad():
                dim = network.eval()(signals[:1]).shape[1]
            head = self.head(len(classes), dim).to(signals)
        targets = columns(samples.labels, classes)
        labelled = Batch(signals, targets, samples.groups)
        curve = train(network, head, labelled, self.training, checkpoint=checkpoint, rng=rng)
        trunk, tail = network.get_submodule("trunk"), network.get_submodule("tail")
        features = mapped(tail, mapped(trunk, signals))
        return State(
            trunk=trunk,
            tail=tail,
            head=frozen(head.settled(features, targets)),
            classes=classes,
            n_base=len(classes),
            shape=(shape[0], shape[1]),
            seed=rng.initial_seed(),
            curves=(Curve("base", 0, curve),),
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """A method by composition.

    Parameters
    ----------
    name : as in the tables.
    foundation : how the base model is made.
    place : where new classes start.
    adapt : how tail and head take in the shots.
    memory : what is kept of old classes, and replayed.
    citation : whose idea it is.
    judge : makes the head that classifies from the one that learned; None leaves it as it is.
    views : by name, of the signals, beside the features; a judge that measures distances makes use of them.
    refresh : let prototypes of old classes follow their replay where the network has moved; off in the paper.
    """

    name: str
    foundation: BaseLearner
    place: Placement
    adapt: Adaptation
    memory: Memory
    citation: str = ""
    judge: Judge | None = None
    views: tuple[str, ...] = ()
    refresh: bool = False

    def fit_base(self, train: Batch, *, rng: torch.Generator) -> State:
        """Learn the base classes (Algorithm 1, base session)."""
        return self.start(self.foundation.fit(train, rng=rng), train, rng=rng)

    def start(self, base: State, train: Batch, *, rng: torch.Generator) -> State:
        """Add to a trained base model what this method keeps of the base classes."""
        base = with_views(base, train, self.views) if self.views else base
        kept = self.memory.keep(base, train, train.with_values(mapped(base.trunk, train.values)), rng=rng)
        return self.judged(kept, kept.anchors)

    def recall(self, state: State, *, rng: torch.Generator) -> State:
        """Make the replay that the next session will need; a session does it itself if nobody did."""
        return self.memory.recall(state, rng=rng)

    def learn_session(self, state: State, session: Session, *, rng: torch.Generator) -> State:
        """Learn new classes (Algorithm 1, incremental sessions)."""
        train = session.train
        if not len(train):
            raise ValueError(f"session {session.index} brings no samples; a new class needs one at least")
        if known := sorted(set(train.classes) & set(state.classes)):
            raise ValueError(f"class {known[0]} is known already; a session brings new classes only")
        latents = train.with_values(mapped(state.trunk, train.values))
        shots = latents.with_values(mapped(state.tail, latents.values))
        head = self.place(state, shots)  # line 2
        state = self.recall(state, rng=stream(rng, "recall"))  # line 3
        grown = replace(state, classes=(*state.classes, *train.classes), session=state.session + 1)
        replay = _by_column(grown, state.replay) if state.replay else None
        tail, head, curve = self.adapt(  # lines 4 to 8
            state.tail, head, _by_column(grown, latents), replay, session=grown.session
        )
        if self.refresh and replay and tail is not state.tail:
            head = refreshed(head, replay, state.tail, tail)
        adapted = replace(
            grown,
            tail=tail,
            head=frozen(head),
            curves=(*state.curves, *self._told(grown.session, curve)),
        )
        kept = self.memory.keep(adapted, train, latents, rng=stream(rng, "keep"))  # line 9
        if self.judge is None or tail is state.tail:
            return self.judged(kept, kept.anchors)
        # Anchors are where features were; the network that moved is asked where they are now.
        seen = joined(kept.replay, latents)
        return self.judged(kept, seen.with_values(mapped(tail, seen.values)))

    def add_shots(self, state: State, features: Batch, counts: Sequence[int]) -> State:
        """Take in more examples of known classes: prototypes move, the network stays.

        Parameters
        ----------
        features : of the examples (n, dim), labelled by known classes; they join the anchors, if any.
        counts : examples behind each prototype so far, in the order of the classes.
        """
        if isinstance(state.head, StatisticalHead):
            known = state.head.learned(features.values, state.columns(features.labels))
            return replace(state, head=frozen(known))
        moved = reinforced(state, features, counts, exact=self.judge is not None)
        anchors = state.anchors
        if isinstance(self.memory, InvertedAnchors | Anchors):
            anchors = joined(anchors, features)
        return self.judged(replace(state, head=frozen(moved), anchors=anchors), anchors)

    def _told(self, session: int, curve: Tensor) -> tuple[Curve, ...]:
        told = Curve("finetune", session, curve)
        if not isinstance(self.adapt, Validated):
            return (told,)
        return told, Curve("steps chosen", session, torch.tensor([float(len(curve))]))

    def judged(self, state: State, features: Batch | None) -> State:
        """Return the state with the head that classifies, by the features of what is kept of each class."""
        if self.judge is None:
            return state
        if features is None:
            raise TypeError(
                f"{self.name} judges by what it keeps of each class, and its memory keeps nothing"
            )
        return replace(state, head=frozen(self.judge(state, features)))

    def predict(self, state: State, signals: Tensor) -> Tensor:
        """Return a known class for each signal (n,)."""
        return self.predict_latents(state, mapped(state.trunk, signals))

    def predict_latents(self, state: State, latents: Tensor) -> Tensor:
        """Return a known class for each encoded signal (n,)."""
        best = mapped(state.head, mapped(state.tail, latents)).argmax(1)
        return torch.tensor(state.classes)[best]


def _by_column(state: State, samples: Batch) -> Batch:
    return Batch(samples.values, state.columns(samples.labels))
