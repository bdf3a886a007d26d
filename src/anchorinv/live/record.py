"""What a live session has to show: predictions, a log of events, the models so far, and an export of them."""

import contextlib
import hashlib
import io
import json
import threading
import time
import zipfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.estimator import AnchorInvClassifier
from anchorinv.persistence.format import packed

#: Models to go back to.
MOST_UNDO = 20

#: Bytes of taught windows that are kept for an export; the oldest lessons go first.
MOST_TAUGHT = 200_000_000

#: The class and the windows (n, n_chans, n_times) of a lesson.
Taught = tuple[Any, np.ndarray]


@dataclass(frozen=True, slots=True)
class LivePrediction:
    """A prediction as pages and logs have it."""

    at: float  # end of the window, in seconds of the stream
    label: str | None  # None if samples are missing
    unknown: bool
    probability: float | None
    novelty: float | None
    taken: float  # when its last sample was taken, and when it was classified, as time.time() counts
    decided: float
    model: int  # number of the model


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
        self.places: dict[
            Any, int
        ] = {}  # of classes in the order of their coming: their colour on every page
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
