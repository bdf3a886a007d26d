"""Prepare a data set: write a plan of recordings into a folder, one recording at a time.

Memory is bounded, an interrupted run is resumed, and the folder appears only when complete. Meanwhile the
folder ``.NAME.unfinished`` has the samples so far and a journal with a line per recording. A line is written
after its samples and has their hash: everything after the last valid line is cut off and redone.
"""

import json
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b, file_digest
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from anchorinv import __version__
from anchorinv.datasets.dataset import FORMAT, Dataset
from anchorinv.errors import raise_if_any
from anchorinv.files import write_json
from anchorinv.progress import tick
from anchorinv.signal.preprocessing import Preprocessing, facts_of

_FOLDS = 5


class Unavailable(ValueError):  # noqa: N818 (a state, not a mistake)
    """A recording that is unavailable for now, with all others, as without network."""


@dataclass(frozen=True, slots=True)
class LabelledWindow:
    """A window of a recording: its first sample and its metadata."""

    start: int
    label: str
    subject: str
    session: str
    split: str
    rejected: bool = False
    recording: str = ""  # where a source has several recordings, the one of this window


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRecording:
    """The contribution of one recording to a data set."""

    samples: npt.NDArray[np.floating[Any]]  # (n_samples, n_chans), in the unit of the set
    windows: Sequence[LabelledWindow]
    counts: dict[str, int] = field(default_factory=dict)  # such as missing samples; summed over the set
    notes: Sequence[str] = ()  # messages for the user

    def record(self, name: str) -> dict[str, Any]:
        """Return everything but the samples, as plain JSON values."""
        return {
            "name": name,
            "n_samples": len(self.samples),
            "rows": [list(asdict(window).values()) for window in self.windows],
            "counts": self.counts,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """A recording to be prepared: its name, the files it depends on, and a function that reads it."""

    name: str
    files: tuple[Path, ...]
    read: Callable[[], PreparedRecording]

    @property
    def state(self) -> list[list[int]]:
        """Size and time of change of each file."""
        return [[path.stat().st_size, path.stat().st_mtime_ns] for path in self.files]


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """A data set to be prepared."""

    root: Path  # that source files are named relative to
    sources: Sequence[RecordingSource]  # in the order of the set
    preprocessing: Preprocessing  # its channels, rate and window length are those of the set
    class_names: tuple[str, ...]
    meta: dict[str, Any]  # further settings that determine the result, as in ``meta.json``

    def __post_init__(self) -> None:
        if None in (self.preprocessing.ch_names, self.preprocessing.sfreq, self.preprocessing.n_times):
            raise ValueError("a prepared set needs names of channels, a rate and the length of its windows")

    @property
    def n_chans(self) -> int:
        """Number of channels."""
        return len(self.preprocessing.ch_names or ())

    def identity(self) -> dict[str, Any]:
        """Return what must be equal for an unfinished folder to be continued."""
        facts = [FORMAT, __version__, facts_of(self.preprocessing), self.class_names, self.meta]
        names = [source.name for source in self.sources]
        return {"plan": blake2b(json.dumps([facts, names]).encode(), digest_size=16).hexdigest()}


def prepare(plan: DatasetPlan, out: Path, *, replace: bool = False) -> Dataset:
    """Write a prepared folder, or resume one that was interrupted, and open it.

    An existing prepared folder is replaced only with ``replace``.
    """
    if not plan.sources:
        raise ValueError(f"there is nothing to prepare in {plan.root}")
    check_output(out, replace=replace)
    unfinished = out.with_name(f".{out.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with _locked(unfinished, out):
        folder = unfinished / "set"
        folder.mkdir(exist_ok=True)
        stored = None
        with suppress(OSError, ValueError):
            stored = json.loads((unfinished / "plan.json").read_text(encoding="utf-8"))
        if stored != plan.identity():
            for name in ("journal.jsonl", "set/samples.npy"):
                (unfinished / name).unlink(missing_ok=True)
            write_json(unfinished / "plan.json", plan.identity())
        entries = _write_samples(plan, unfinished)
        samples = np.load(folder / "samples.npy", mmap_mode="r", allow_pickle=False)
        _assemble(plan, entries, samples).write_tables(folder)
        if out.exists():
            shutil.rmtree(unfinished / "old", ignore_errors=True)
            out.replace(unfinished / "old")
        folder.replace(out)
    shutil.rmtree(unfinished)
    return Dataset.open(out)


def prepare_in_memory(plan: DatasetPlan) -> Dataset:
    """Return the data set that :func:`prepare` would write."""
    samples, entries = [], []
    for i, source in enumerate(plan.sources):
        recording = source.read()
        samples.append(recording.samples)
        entries.append(recording.record(source.name) | {"files": {}})
        tick("preparing recordings", i + 1, len(plan.sources))
    return _assemble(plan, entries, np.concatenate(samples).astype(np.float32))


def check_output(out: Path, *, replace: bool) -> None:
    """Refuse to overwrite other folders, or a prepared folder unless ``replace``."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / "meta.json").is_file():
        raise ValueError(f"{out} exists and is not a prepared data set; choose another folder with --out")
    if not replace:
        raise ValueError(f"{out} is already prepared; pass --replace to do it again, or another --out")


@contextmanager
def _locked(unfinished: Path, out: Path) -> Iterator[None]:
    """Keep a second process from writing the same folder; the lock ends with the process."""
    with (unfinished / "lock").open("w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # not on this system
            pass
        except OSError:
            raise ValueError(f"another process is preparing {out}; wait for it, or stop it") from None
        yield


def _write_samples(plan: DatasetPlan, unfinished: Path) -> list[dict[str, Any]]:
    """Append all recordings that are still missing; return a journal entry for each."""
    path, journal = unfinished / "set" / "samples.npy", unfinished / "journal.jsonl"
    header = _npy_header(0, plan.n_chans)
    if not path.is_file() or path.stat().st_size < len(header):
        path.write_bytes(header)
        journal.unlink(missing_ok=True)
    entries = _valid_entries(plan, path, journal)
    n_done = len(entries)
    os.truncate(path, len(header) + sum(entry["n_bytes"] for entry in entries))
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    problems: list[str] = []
    with path.open("ab") as samples, journal.open("a", encoding="utf-8") as lines:
        for i, source in enumerate(plan.sources):
            tick("preparing recordings", i, len(plan.sources))
            if i < n_done:
                continue
            try:
                recording = source.read()
            except Unavailable:
                raise
            except (ValueError, OSError) as error:
                problems.append(str(error))  # the others are still read, to report all problems at once
                continue
            if not problems:
                entries.append(_append(plan, source, recording, samples))
                lines.write(json.dumps(entries[-1]) + "\n")
                lines.flush()
            del recording  # before the next one is read
    tick("preparing recordings", len(plan.sources), len(plan.sources))
    raise_if_any(str(plan.root), problems)
    with path.open("r+b") as samples:
        samples.write(_npy_header(sum(entry["n_samples"] for entry in entries), plan.n_chans))
        samples.flush()
        os.fsync(samples.fileno())
    return entries


def _append(
    plan: DatasetPlan, source: RecordingSource, recording: PreparedRecording, samples: IO[bytes]
) -> dict[str, Any]:
    """Append the samples of a recording; return its journal entry."""
    block = np.ascontiguousarray(recording.samples, dtype="<f4")
    if block.ndim != 2 or block.shape[1] != plan.n_chans:
        raise ValueError(f"{source.name} has shape {block.shape}, expected {plan.n_chans} channels")
    samples.write(block.data)
    samples.flush()
    # Relative names, so that the same files elsewhere give the same bytes.
    names = [Path(os.path.relpath(path, plan.root)).as_posix() for path in source.files]
    return recording.record(source.name) | {
        "files": {name: sha256(path) for name, path in zip(names, source.files, strict=True)},
        "seen": source.state,
        "n_bytes": block.nbytes,
        "blake2b": blake2b(block.data).hexdigest(),
    }


def _valid_entries(plan: DatasetPlan, path: Path, journal: Path) -> list[dict[str, Any]]:
    """Return the journal up to the first entry whose files changed or whose samples are missing."""
    entries: list[dict[str, Any]] = []
    if not journal.is_file():
        return entries
    with path.open("rb") as samples, journal.open(encoding="utf-8") as lines:
        samples.seek(len(_npy_header(0, plan.n_chans)))
        for source, line in zip(plan.sources, lines, strict=False):
            try:
                entry = json.loads(line)
            except ValueError:  # ends in the middle of a line
                break
            unchanged = entry["name"] == source.name and entry["seen"] == source.state
            if not unchanged or blake2b(samples.read(entry["n_bytes"])).hexdigest() != entry["blake2b"]:
                break
            entries.append(entry)
    return entries


def _assemble(
    plan: DatasetPlan, entries: Sequence[dict[str, Any]], samples: npt.NDArray[np.float32]
) -> Dataset:
    """Return the data set of all entries; its samples are not read."""
    windows: list[LabelledWindow] = []
    counts: Counter[str] = Counter()
    offset = 0
    for entry in entries:
        for start, *facts, recording in entry["rows"]:
            facts.append(recording or entry["name"])
            windows.append(LabelledWindow(offset + start, *facts))
        offset += entry["n_samples"]
        counts.update(entry["counts"])

    def column(name: str, dtype: type) -> npt.NDArray[Any]:
        return np.array([getattr(window, name) for window in windows], dtype=dtype)

    numbers = {name: i for i, name in enumerate(plan.class_names)}
    rejected = column("rejected", bool)
    return Dataset(
        samples=samples,
        starts=column("start", np.int64),
        n_times=plan.preprocessing.n_times or 0,
        labels=np.array([numbers[window.label] for window in windows], dtype=np.int64),
        subjects=column("subject", str),
        sessions=column("session", str),
        split=column("split", str),
        sfreq=plan.preprocessing.sfreq or 0.0,
        class_names=plan.class_names,
        ch_names=plan.preprocessing.ch_names or (),
        meta={
            **plan.meta,
            "preprocessing": facts_of(plan.preprocessing),
            "counts": dict(sorted(counts.items())),
            "notes": [note for entry in entries for note in entry["notes"]],
            "sources": {name: digest for entry in entries for name, digest in entry["files"].items()},
        },
        recordings=column("recording", str),
        rejected=rejected if rejected.any() else None,
    )


def _npy_header(n_samples: int, n_chans: int) -> bytes:
    """Return the header of an .npy file, which numpy pads so that its length is constant."""
    header = BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (n_samples, n_chans)}
    np.lib.format.write_array_header_1_0(header, shape)
    return header.getvalue()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def grouped_split(
    labels: Sequence[str], groups: Sequence[str] | Sequence[int], *, seed: int | None = None
) -> npt.NDArray[np.str_]:
    """Return "train" or "test" (n,) for recordings, stratified by label; no group is on both sides.

    Ties between groups, usually subjects, are broken in sorted order. Without a seed, the test part is the
    first fold of an unshuffled five-fold split, as published for NHIE.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    n_groups = len(set(groups))
    # Unique class numbers; the largest class must occur in every fold.
    numbers, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)[1:]
    n_folds = min(_FOLDS, n_groups, int(counts.max(initial=0)))
    if n_groups < 2:
        expected = "a train and a test part need two groups or more (subjects, sessions, files or trials)"
        remedy = "add recordings, or set the split in a table (--manifest, column split)"
        raise ValueError(f"{expected}, got {n_groups}; {remedy}")
    if n_folds < 2:
        raise ValueError("each class has one recording, too few for a train and a test part; add recordings")
    folds = StratifiedGroupKFold(n_folds, shuffle=seed is not None, random_state=seed)
    with warnings.catch_warnings():
        # A class with fewer recordings than folds is in some folds only; the index shows where.
        warnings.simplefilter("ignore", UserWarning)
        _, test = next(folds.split(np.zeros(len(labels)), numbers, np.asarray(groups)))
    split = np.full(len(labels), "train")
    split[test] = "test"
    return split
