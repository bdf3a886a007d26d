"""Lessons and practice on a stream, the watch for a new class, and what is kept: models, a log, an export.

Time is counted in samples of the stream, at the model's rate, so that a recording gives the same windows at
any speed of replay.
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
#: Maximum number of rejected windows kept, and how many new ones trigger the next search for a new class.
REJECTED, SEARCH_AGAIN = 60, 5
#: Maximum size in bytes of the rejected windows, as long as twice the shots of a lesson are kept.
MOST_REJECTED = 1 << 21
#: Windows of a new class are rejected at least this many times as often as those of known ones by chance.
BY_CHANCE = 4
#: Maximum number of models to go back to.
MOST_UNDO = 20
#: Maximum size in bytes of the taught windows kept for an export; the oldest lessons are dropped first.
MOST_TAUGHT = 200_000_000

#: The class and the windows (n, n_chans, n_times) of a lesson.
Taught = tuple[Any, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """A window recorded for a class."""

    number: int
    predicted: Any  # its class by the model before the lesson
    values: np.ndarray  # (n_chans, n_times)


class Lesson:
    """``n_shots`` windows recorded for one class; each may be removed again.

    The countdown ends at sample ``begins``; windows start at least ``spacing`` samples apart. With
    ``hands_free`` they are learned as soon as all are recorded, without a review.
    """

    def __init__(
        self, label: Any, n_shots: int, *, begins: int, spacing: int, hands_free: bool = False
    ) -> None:
        self.label, self.n_shots, self.begins, self.hands_free = label, n_shots, begins, hands_free
        self._spacing, self._next, self._last_number = spacing, begins, 0
        self.shots: list[Shot] = []
        self.phase = COUNTDOWN

    @classmethod
    def of_windows(cls, label: Any, windows: np.ndarray, predicted: Any) -> "Lesson":
        """Return a lesson of recorded windows (n, n_chans, n_times), to be reviewed."""
        lesson = cls(label, len(windows), begins=0, spacing=1)
        lesson.shots = [Shot(i, predicted, window) for i, window in enumerate(windows, start=1)]
        lesson.phase = REVIEW
        return lesson

    def offer(self, start: int, window: Window, predicted: Any) -> bool:
        """Record a window that starts at a sample, if it is due; return whether anything changed."""
        if self.phase == REVIEW or start < self._next or not window.complete:
            return False
        self._last_number += 1
        self._next = start + self._spacing
        self.shots.append(Shot(self._last_number, predicted, window.values))
        self.phase = REVIEW if len(self.shots) >= self.n_shots else RECORDING
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
    """Return a copy of a model that has learned windows of a class, new or known, and the effect as facts."""
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
    facts |= {"label": str(label), "shots": len(windows), "seconds": time.perf_counter() - began}
    return taught, facts


class NoveltyWatch:
    """Rejected windows, half a window apart, and the new class that they may be.

    Windows of known classes are rejected by chance, too, and those of one class resemble each other. But they
    are rare, and windows of a new class come in a row. So a rejected window is dropped after a time in which
    chance alone rejects a quarter of a lesson.
    """

    def __init__(self) -> None:
        self.suggestion: dict[str, Any] | None = None  # of a new class, as pages show it
        self._rejected: deque[tuple[int, np.ndarray]] = deque()  # the start and values of each window
        self._suggested: np.ndarray | None = None  # the windows of the suggestion
        self._next = self._n_seen = 0

    def offer(self, start: int, window: Window, prediction: Prediction, model: AnchorInvClassifier) -> bool:
        """Keep a window if it is rejected; return whether to search the kept ones for a new class."""
        if prediction.novelty is None or start < self._next:
            return False
        share, spacing = model.reject or REJECT, model.n_times_ // 2
        # After accepted windows, too: to try again sooner would reject more by chance.
        self._next = start + spacing
        if prediction.novelty > share:
            return False
        self._rejected.append((start, window.values.astype(np.float32)))
        n_kept = max(2 * SHOTS, min(REJECTED, MOST_REJECTED // self._rejected[0][1].nbytes))
        oldest = start - spacing * max(SHOTS, SHOTS / (BY_CHANCE * share))
        while len(self._rejected) > n_kept or self._rejected[0][0] <= oldest:
            self._rejected.popleft()
        self._n_seen += 1
        return self.suggestion is None and len(self._rejected) >= SHOTS and self._n_seen % SEARCH_AGAIN == 0

    @property
    def windows(self) -> np.ndarray:
        """The rejected windows (n, n_chans, n_times)."""
        return np.stack([values for _, values in self._rejected])

    def suggest(self, windows: np.ndarray, nearest: Any) -> None:
        """Suggest windows as a new class; ``nearest`` is the most similar known class."""
        self._suggested = windows
        self.suggestion = {"shots": len(windows), "nearest": str(nearest)}

    def take(self) -> np.ndarray:
        """Return the windows of the suggestion, and clear it."""
        if self._suggested is None:
            raise ValueError("no new class is suggested now")
        windows = self._suggested
        self.clear()
        return windows

    def clear(self) -> None:
        """Forget the suggestion and all windows."""
        self._suggested = self.suggestion = None
        self._rejected.clear()


class Practice:
    """Prompt every class once in each round, in random order, and count the predictions.

    The first prompt is announced at sample ``begins``; each starts ``ready`` samples after its announcement
    and lasts for ``hold`` samples.
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
        """Count a window of ``n_times`` samples if a prompt contains it; return whether anything changed."""
        before = (self.phase, self.place)
        place, at = divmod(max(0, start + n_times - self._begins), self._ready + self._hold)
        if place >= len(self.prompts):
            self.phase = DONE
            return before[0] != DONE
        self.place, self.phase = place, READY if at < self._ready else HOLD
        if at - n_times < self._ready:  # the window started before its prompt
            return before != (self.phase, self.place)
        column = self.classes.index(label) if label in self.classes else len(self.classes)
        self.counts[self.classes.index(self.prompts[place]), column] += 1
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A model of a session."""

    model: AnchorInvClassifier
    number: int  # grows with every change, an undone one as well
    identity: str  # a short hash of what it has learned
    taught: tuple[Taught, ...] = ()  # its lessons, for an export


class Versions:
    """The models of a session: the one in use (``now``), and those before it to go back to."""

    def __init__(self, model: AnchorInvClassifier) -> None:
        self.places: dict[Any, int] = {}  # of classes in the order of learning: their colour on every page
        self._before: deque[tuple[Version, str]] = deque(maxlen=MOST_UNDO)
        self._use(Version(model, 1, identity_of(model)))

    def _use(self, version: Version) -> None:
        self.now = version
        for label in version.model.classes_.tolist():
            self.places.setdefault(label, len(self.places))

    def replace(self, model: AnchorInvClassifier, identity: str, what: str, taught: Sequence[Taught]) -> None:
        """Use another model from now on; ``what`` describes the change."""
        self._before.append((self.now, what))
        taught = tuple(taught)
        while sum(windows.nbytes for _, windows in taught) > MOST_TAUGHT:
            taught = taught[1:]
        self._use(Version(model, self.now.number + 1, identity, taught))

    @property
    def undoable(self) -> str | None:
        """The change that :meth:`undo` would undo."""
        return self._before[-1][1] if self._before else None

    def undo(self) -> str:
        """Go back to the previous model; return the change that was undone."""
        if not self._before:
            raise ValueError("there is nothing to undo")
        version, what = self._before.pop()
        self._use(replace(version, number=self.now.number + 1))
        return what


class EventLog:
    """Events in a new file of JSON lines, each flushed at once: a killed process loses none."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = new_file(folder, name, ".jsonl")
        self._file = self.path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self.problem: str | None = None

    def write(self, event: str, facts: dict[str, Any]) -> None:
        """Add a line; a full disk ends the log, not the session."""
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
    """Create an empty file whose name has the time and is not in use, and return its path."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for more in ("", *(f"-{i}" for i in range(2, 1000))):
        path = folder / f"{name}-{stamp}{more}{suffix}"
        try:
            path.open("x").close()  # atomic: of two at the same time one fails, and tries the next name
        except FileExistsError:
            continue
        except OSError as error:
            raise OSError(
                f"nothing can be written in {folder} ({error.strerror}); choose another folder (--folder)"
            ) from None
        return path
    raise FileExistsError(f"{folder} holds a thousand files of this second; name another folder")


def identity_of(model: AnchorInvClassifier) -> str:
    """Return a short hash of all that a model has learned."""
    digest = hashlib.sha256()
    for name, tensor in sorted(packed(model.state_)[0].items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def export(
    model: AnchorInvClassifier, taught: Sequence[Taught], log: Path | None, *, recordings: bool = False
) -> bytes:
    """Return a session as a zip file: its log, and the features of the windows taught, by lesson.

    With ``recordings`` the windows themselves are included, which are recordings of a person.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        if log is not None:
            archive.writestr("events.jsonl", log.read_bytes())
        if taught:
            windows = np.concatenate([shots for _, shots in taught])
            labels = np.array([label for label, shots in taught for _ in shots])
            archive.writestr("features.npz", _npz(X=model.transform(windows), y=labels))
            if recordings:
                archive.writestr("recordings.npz", _npz(X=windows, y=labels))
    return buffer.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
