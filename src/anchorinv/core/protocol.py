"""The experiment: which classes come when, with how many shots, how often, and which samples they are."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from anchorinv.core.rng import stream
from anchorinv.core.types import Batch, Session


@dataclass(frozen=True, slots=True)
class Protocol:
    """A few-shot class-incremental experiment.

    Parameters
    ----------
    base_classes : learned first, with all their training data.
    sessions : the new classes in the order they are learned, ``ways`` of them in each session.
    shots : samples of each new class.
    trials : how often the shots are drawn anew.
    seed : of everything random.
    ways : new classes per session.
    """

    base_classes: tuple[int, ...]
    sessions: tuple[int, ...]
    shots: int = 10
    trials: int = 100
    seed: int = 5
    ways: int = 1

    def __post_init__(self) -> None:
        named = [*self.base_classes, *self.sessions]
        if twice := sorted(label for label in set(named) if named.count(label) > 1):
            both = twice[0] in self.base_classes and twice[0] in self.sessions
            how = "is both a base and a new class" if both else "is learned twice"
            raise ValueError(f"class {twice[0]} {how}; name it once")
        for name in ("shots", "trials", "ways"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} (={getattr(self, name)}) must be at least 1")
        if len(self.sessions) % self.ways:
            raise ValueError(
                f"{len(self.sessions)} new classes do not fill sessions of {self.ways}; "
                f"change ways or the number of classes"
            )

    @property
    def n_sessions(self) -> int:
        """Number of sessions after the base session."""
        return len(self.sessions) // self.ways

    def classes_of(self, session: int) -> tuple[int, ...]:
        """Return the new classes of session 1, 2, ..."""
        return self.sessions[(session - 1) * self.ways : session * self.ways]

    def support(self, labels: torch.Tensor, label: int, trial: int) -> torch.Tensor:
        """Return the indices (shots,) of one class's shots in one trial.

        They depend on seed, class and trial alone, so all methods see the same shots, and more trials or
        classes change nothing.
        """
        pool = (labels == label).nonzero().flatten()
        if len(pool) < self.shots:
            raise ValueError(
                f"class {label} has {len(pool)} training samples, {self.shots} shots asked; "
                f"lower shots or add samples"
            )
        chosen = torch.randperm(len(pool), generator=stream(self.seed, "support", label, trial))[: self.shots]
        return pool[chosen.sort().values]

    def draw(self, train: Batch, trial: int) -> Iterator[Session]:
        """Yield the sessions of one trial."""
        for index in range(1, self.n_sessions + 1):
            chosen = torch.cat([self.support(train.labels, label, trial) for label in self.classes_of(index)])
            yield Session(index, train[chosen])
