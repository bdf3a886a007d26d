"""Lessons and practice on a stream, the watch for a new class, and what is kept: models, a log, an export.

Time is counted in samples of the stream, at the model's rate, so that a recording that is replayed faster is
taught by the same windows.
"""

import contextlib
import hashlib
import io
import json
import threading
import time
import zipfile
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.estimator import AnchorInvClassifier
from anchorinv.novelty import REJECT, SHOTS
from anchorinv.persistence.format import packed
from anchorinv.serving.evaluation import add_examples, learn_classes
from anchorinv.serving.streaming import Prediction
from anchorinv.signal.pipeline import Window

COUNTDOWN, RECORDING, REVIEW = "countdown", "recording", "review"
READY, HOLD, DONE = "ready", "hold", "done"
#: Rejected windows that are looked at for a new class, and how many more before they are looked at again.
REJECTED, LOOK_AGAIN = 60, 5
#: A new class is rejected so many times as often as chance alone rejects windows of known ones.
BY_CHANCE = 4
#: Bytes of them, of long windows of many channels fewer are kept, but twice the shots of a lesson.
MOST_REJECTED = 1 << 21
#: Models to go back to.
MOST_UNDO = 20

#: Bytes of taught windows that are kept for an export; the oldest lessons go first.
MOST_TAUGHT = 200_000_000

#: The class and the windows (n, n_chans, n_times) of a lesson.
Taught = tuple[Any, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """A window recorded for a class: its number, what the model took it for, and its signals."""

    number: int
    taken_for: Any
    values: np.ndarray  # (n_chans, n_times)


class Lesson:
    """Windows recorded for one class, so many as are wanted; each may be removed again.

    The countdown ends at sample ``begins``; windows start at least ``spacing`` samples apart. A lesson that
    is ``hands_free`` is learned as soon as all are recorded, without a review.

    Examples
    --------
    >>> lesson = Lesson("fist", 2, begins=10, spacing=5)
    >>> for start in (8, 10, 12, 15):
    ...     _ = lesson.offer(start, Window(start, np.zeros((1, 4)), True), "rest")
    >>> [shot.number for shot in lesson.shots], lesson.phase
    ([1, 2], 'review')
    """

    def __init__(
        self, label: Any, wanted: int, *, begins: int, spacing: int, hands_free: bool = False
    ) -> None:
        self.label, self.wanted, self.begins, self.hands_free = label, wanted, begins, hands_free
        self._spacing, self._next, self._numbers = spacing, begins, 0
        self.shots: list[Shot] = []
        self.phase = COUNTDOWN

    @classmethod
    def of_windows(cls, label: Any, windows: np.ndarray, taken_for: Any) -> "Lesson":
        """Return a lesson of windows (n, n_chans, n_times) that are there already, to be reviewed."""
        lesson = cls(label, len(windows), begins=0, spacing=1)
        lesson.shots = [Shot(i, taken_for, window) for i, window in enumerate(windows, start=1)]
        lesson.phase = REVIEW
        return lesson

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
        """Record no more windows."""
        self.phase = REVIEW

    def remove(self, number: int) -> None:
        """Remove a window."""
        self.shots = [shot for shot in self.shots if shot.number != number]

    @property
    def signals(self) -> np.ndarray:
        """The windows (n, n_chans, n_times)."""
        return np.stack([shot.values for shot in self.shots])


def teach(
    model: AnchorInvClassifier, label: Any, windows: np.ndarray
) -> tuple[AnchorInvClassifier, dict[str, Any]]:
    """Return a model that has learned windows of a class, new or known, and plain facts on what that did."""
    taught, began = copy(model), time.perf_counter()
    labels = [label] * len(windows)
    facts: dict[str, Any]
    if label in model.classes_.tolist():
        (added,) = add_examples(taught, windows, labels)
        facts = {"more": {**asdict(added), "name": str(label)}}
    else:
        report = learn_classes(taught, windows, labels)
        separation = report.separations[0] if report.separations else None
        facts = {
            "own": separation.own if separation is not None and separation.shots > 1 else None,
            "rival": str(separation.rival) if separation is not None and separation.alike else None,
            "nearest": str(report.nearest[0]) if report.nearest else None,
            "before": report.before,
            "after": report.after,
            "n_known": report.n_known,
            "drawn": report.drawn,
            "classes": [{"label": str(name), "before": a, "after": b} for name, a, b in report.by_class],
        }
    return taught, facts | {
        "label": str(label),
        "shots": len(windows),
        "seconds": time.perf_counter() - began,
    }


class NoveltyWatch:
    """Windows that fit no known class, half a window apart, and whether they resemble each other.

    Some windows of known classes are rejected by chance, and those of one class resemble each other. They
    come few at a time, those of a new class in a row; so windows are forgotten after as many as chance would
    take to reject a quarter of a lesson.
    """

    def __init__(self) -> None:
        self.suggestion: dict[str, Any] | None = None  # what pages say of windows that may be a new class
        self._rejected: deque[tuple[int, np.ndarray]] = deque()  # and where each starts
        self._offered: np.ndarray | None = None
        self._next = self._n_seen = 0

    def offer(self, start: int, window: Window, prediction: Prediction, model: AnchorInvClassifier) -> bool:
        """Keep a window that fits no class; say whether it is time to look at those that were kept."""
        if prediction.novelty is None or start < self._next:
            return False
        share, spacing = model.reject or REJECT, model.n_times_ // 2
        # Windows that fit a class have their turn as well: whoever looks again sooner has more of chance.
        self._next = start + spacing
        if prediction.novelty > share:
            return False
        self._rejected.append((start, window.values.astype(np.float32)))
        n_kept = max(2 * SHOTS, min(REJECTED, MOST_REJECTED // self._rejected[0][1].nbytes))
        oldest = start - spacing * max(SHOTS, SHOTS / (BY_CHANCE * share))
        while len(self._rejected) > n_kept or self._rejected[0][0] <= oldest:
            self._rejected.popleft()
        self._n_seen += 1
        return self.suggestion is None and len(self._rejected) >= SHOTS and self._n_seen % LOOK_AGAIN == 0

    @property
    def windows(self) -> np.ndarray:
        """Those that were kept (n, n_chans, n_times)."""
        return np.stack([values for _, values in self._rejected])

    def suggest(self, windows: np.ndarray, nearest: Any) -> None:
        """Offer windows as a new class; ``nearest`` is the known class that they resemble most."""
        self._offered = windows
        self.suggestion = {"shots": len(windows), "nearest": str(nearest)}

    def take(self) -> np.ndarray:
        """Return the windows that were offered, which are offered no longer."""
        if self._offered is None:
            raise ValueError("no new class is suggested now")
        windows = self._offered
        self.clear()
        return windows

    def clear(self) -> None:
        """Forget the suggestion and all windows."""
        self._offered = self.suggestion = None
        self._rejected.clear()


class Practice:
    """Prompt classes in turn, each so many rounds, and count what the model takes them for.

    The first prompt is announced at sample ``begins``; each comes ``ready`` samples after its announcement
    and lasts for ``hold`` samples.

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


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A model of a session, its number in it, a short hash of all that it has learned, and its shots.

    ``taught`` holds the windows of its lessons by class, for an export.
    """

    model: AnchorInvClassifier
    number: int
    identity: str
    taught: tuple[Taught, ...] = ()


class Versions:
    """The models of a session: the one in use (``now``), and those before it to go back to.

    Its number grows with every change, an undone one as well.
    """

    def __init__(self, model: AnchorInvClassifier) -> None:
        # Of classes in the order of their coming: their colour on every page.
        self.places: dict[Any, int] = {}
        self._before: deque[tuple[Version, str]] = deque(maxlen=MOST_UNDO)
        self._use(Version(model, 1, identity_of(model)))

    def _use(self, version: Version) -> None:
        self.now = version
        for label in version.model.classes_.tolist():
            self.places.setdefault(label, len(self.places))

    def replace(self, model: AnchorInvClassifier, identity: str, what: str, taught: Sequence[Taught]) -> None:
        """Use another model from now on; ``what`` says what was done to get it."""
        self._before.append((self.now, what))
        taught = tuple(taught)
        while sum(each.nbytes for _, each in taught) > MOST_TAUGHT:
            taught = taught[1:]
        self._use(Version(model, self.now.number + 1, identity, taught))

    @property
    def undoable(self) -> str | None:
        """What :meth:`undo` would undo."""
        return self._before[-1][1] if self._before else None

    def undo(self) -> str:
        """Go back to the model before; return what was undone."""
        if not self._before:
            raise ValueError("there is nothing to undo")
        version, what = self._before.pop()
        self._use(replace(version, number=self.now.number + 1))
        return what


class EventLog:
    """What happened, a JSON line each in a new file; a process that is killed leaves all that it wrote."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = new_file(folder, name, ".jsonl")
        self._file = self.path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self.problem: str | None = None

    def write(self, event: str, facts: dict[str, Any]) -> None:
        """Add a line; a disk that is full ends the log, not the session."""
        line = json.dumps({"time": round(time.time(), 3), "event": event} | facts, ensure_ascii=False)
        with self._lock:
            if self.problem is not None or self._file.closed:
                return
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except OSError as error:
                self.problem = f"the log ends here: {self.path.name} cannot be written ({error.strerror})"

    def close(self) -> None:
        """End the log."""
        with self._lock, contextlib.suppress(OSError):
            self._file.close()


def new_file(folder: Path, name: str, suffix: str) -> Path:
    """Create an empty file by name and time that nobody else has, and return its path."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for more in ("", *(f"-{i}" for i in range(2, 1000))):
        path = folder / f"{name}-{stamp}{more}{suffix}"
        try:
            path.open("x").close()  # of two that come at the same time one fails, and takes the next name
        except FileExistsError:
            continue
        except OSError as error:
            raise OSError(
                f"nothing can be written in {folder} ({error.strerror}); choose another folder (--folder)"
            ) from None
        return path
    raise FileExistsError(f"{folder} holds a thousand files of this second; name another folder")


def identity_of(model: AnchorInvClassifier) -> str:
    """Return a short name for exactly this model: the hash of all that it has learned."""
    digest = hashlib.sha256()
    for name, tensor in sorted(packed(model.state_)[0].items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def export(
    model: AnchorInvClassifier, taught: Sequence[Taught], log: Path | None, *, recordings: bool = False
) -> bytes:
    """Return a session as a zip file: its log, and the features of the windows taught, by lesson.

    With ``recordings`` the windows themselves are included, which are recordings of somebody.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        if log is not None:
            archive.writestr("events.jsonl", log.read_bytes())
        if taught:
            windows = np.concatenate([each for _, each in taught])
            labels = np.array([label for label, each in taught for _ in range(len(each))])
            archive.writestr("features.npz", _npz(X=model.transform(windows), y=labels))
            if recordings:
                archive.writestr("recordings.npz", _npz(X=windows, y=labels))
    return buffer.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
