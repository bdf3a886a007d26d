"""What a person at the page does over some seconds: record windows for a class, or practise all of them.

Time is counted in samples of the stream, at the model's rate, so that a recording that is replayed faster is
taught by the same windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorinv.signal.pipeline import Window

COUNTDOWN, RECORDING, REVIEW = "countdown", "recording", "review"
READY, HOLD, DONE = "ready", "hold", "done"


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """A window recorded for a class: its number, what the model took it for, and its signals."""

    number: int
    taken_for: Any
    values: np.ndarray  # (n_chans, n_times)


class Lesson:
    """Windows recorded for one class, after a countdown; each may be taken out again.

    Parameters
    ----------
    label : object
        The class.
    wanted : int
        Windows to record.
    begins : int
        Sample at which the countdown ends.
    spacing : int
        Samples from one window to the next, at the least.

    Examples
    --------
    >>> lesson = Lesson("fist", 2, begins=10, spacing=5)
    >>> for start in (8, 10, 12, 15):
    ...     _ = lesson.offer(start, Window(start, np.zeros((1, 4)), True), "rest")
    >>> [shot.number for shot in lesson.shots], lesson.phase
    ([1, 2], 'review')
    """

    def __init__(self, label: Any, wanted: int, *, begins: int, spacing: int) -> None:
        self.label, self.wanted, self.begins = label, wanted, begins
        self._spacing, self._next, self._numbers = spacing, begins, 0
        self.shots: list[Shot] = []
        self.phase = COUNTDOWN

    def offer(self, start: int, window: Window, taken_for: Any) -> bool:
        """Take a window that begins at a sample, if it is one to record; say whether anything changed."""
        if self.phase == REVIEW or start < self._next or not window.whole:
            return False
        self._numbers += 1
        self._next = start + self._spacing
        self.shots.append(Shot(self._numbers, taken_for, window.values))
        self.phase = REVIEW if len(self.shots) >= self.wanted else RECORDING
        return True

    def end(self) -> None:
        """Be content with what there is."""
        self.phase = REVIEW

    def remove(self, number: int) -> None:
        """Take a window out."""
        self.shots = [shot for shot in self.shots if shot.number != number]

    @property
    def signals(self) -> np.ndarray:
        """The windows (n, n_chans, n_times)."""
        return np.stack([shot.values for shot in self.shots])


class Practice:
    """Prompt classes in turn, and count what the model takes them for.

    Parameters
    ----------
    classes : sequence
        Those that are prompted.
    rounds : int
        How often each.
    begins : int
        Sample at which the first prompt is announced.
    ready, hold : int
        Samples from an announcement to its prompt, and of the prompt.
    rng : numpy.random.Generator
        Of the order.

    Examples
    --------
    >>> practice = Practice(["a", "b"], 1, begins=0, ready=10, hold=20, rng=np.random.default_rng(0))
    >>> practice.offer(12, 4, practice.prompts[0]), practice.offer(50, 4, "unknown")
    (True, True)
    >>> practice.counts.sum(1).tolist()
    [1, 1]
    """

    def __init__(
        self,
        classes: Sequence[Any],
        rounds: int,
        *,
        begins: int,
        ready: int,
        hold: int,
        rng: np.random.Generator,
    ) -> None:
        self.classes = list(classes)
        self._begins, self._ready, self._hold = begins, ready, hold
        orders = [rng.permutation(len(self.classes)) for _ in range(rounds)]
        self.prompts = [self.classes[i] for order in orders for i in order]
        self.counts = np.zeros((len(self.classes), len(self.classes) + 1), dtype=int)  # the last: unknown
        self.phase, self.place = READY, 0

    def offer(self, start: int, n_times: int, label: Any) -> bool:
        """Count a window of so many samples if it lies within a prompt; say whether anything changed."""
        before = (self.phase, self.place)
        turn, at = divmod(max(0, start + n_times - self._begins), self._ready + self._hold)
        if turn >= len(self.prompts):
            self.phase = DONE
            return before[0] != DONE
        self.place, self.phase = turn, READY if at < self._ready else HOLD
        if at - n_times < self._ready:  # the window began before its prompt did
            return before != (self.phase, self.place)
        column = self.classes.index(label) if label in self.classes else len(self.classes)
        self.counts[self.classes.index(self.prompts[turn]), column] += 1
        return True
