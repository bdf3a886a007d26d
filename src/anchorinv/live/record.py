"""What a live session leaves behind: a log of what happened, models, and an export for later analysis."""

import hashlib
import io
import json
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.estimator import AnchorInvClassifier
from anchorinv.persistence.format import packed


class EventLog:
    """What happened, a JSON line each; a process that is killed leaves all lines up to its last.

    Parameters
    ----------
    folder : Path
        Where the file goes; it is a new one.
    name : str
        With which its name begins.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = free_path(folder, name, ".jsonl")
        self._file = self.path.open("x", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, event: str, facts: dict[str, Any]) -> None:
        """Add a line."""
        line = json.dumps({"time": round(time.time(), 3), "event": event} | facts, ensure_ascii=False)
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """End the log."""
        with self._lock:
            self._file.close()


def free_path(folder: Path, name: str, suffix: str) -> Path:
    """Return a path by name and time that nothing stands at yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    tries = (f"{name}-{stamp}{more}{suffix}" for more in ("", *(f"-{i}" for i in range(2, 1000))))
    for each in tries:
        if not (folder / each).exists():
            return folder / each
    raise FileExistsError(f"{folder} holds a thousand files of this second; name another folder")


def identity_of(model: AnchorInvClassifier) -> str:
    """Return a short name for exactly this model: the hash of all that it has learned."""
    digest = hashlib.sha256()
    for name, tensor in sorted(packed(model.state_)[0].items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def export(
    model: AnchorInvClassifier,
    taught: Sequence[tuple[Any, np.ndarray]],
    log: Path | None,
    *,
    recordings: bool = False,
) -> bytes:
    """Return a session as a zip file: its log, and the features of the windows taught.

    Parameters
    ----------
    model : AnchorInvClassifier
        By which features are computed.
    taught : sequence of (label, ndarray)
        Windows (n, n_chans, n_times) of each lesson.
    log : Path or None
        Of the session.
    recordings : bool, default=False
        Include the windows themselves, which are recordings of somebody.
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
