"""Write a prepared folder recording by recording: little in memory, resumed after a kill, whole or not there.

While it is made, ``.NAME.unfinished`` beside the folder holds the samples so far and a journal with a line
per recording. A line is written after its samples, with their hash: whatever follows the last line that
still holds is cut off and made again. When all is there the folder moves to its place in one step.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import blake2b, file_digest
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from anchorinv.core.progress import tick
from anchorinv.data.dataset import Dataset
from anchorinv.data.plan import Piece, Plan, Row, Source
from anchorinv.files import write_json
from anchorinv.problems import raise_if_any
from anchorinv.signal.facts import facts_of


def prepare(plan: Plan, out: Path, *, replace: bool = False) -> Dataset:
    """Prepare a folder, or go on where an earlier attempt was stopped, and open it."""
    if not plan.sources:
        raise ValueError(f"there is nothing to prepare in {plan.root}")
    check_place(out, replace=replace)
    workplace = out.with_name(f".{out.name}.unfinished")
    workplace.mkdir(parents=True, exist_ok=True)
    with _alone(workplace, out):
        made = workplace / "set"
        made.mkdir(exist_ok=True)
        if _plan_of(workplace) != plan.identity():
            for name in ("journal.jsonl", "set/samples.npy"):
                (workplace / name).unlink(missing_ok=True)
            write_json(workplace / "plan.json", plan.identity())
        entries = _write_samples(plan, workplace)
        samples = np.load(made / "samples.npy", mmap_mode="r", allow_pickle=False)
        _tables(plan, entries, samples).write_tables(made)
        if out.exists():
            shutil.rmtree(workplace / "old", ignore_errors=True)
            out.replace(workplace / "old")
        made.replace(out)
    shutil.rmtree(workplace)
    return Dataset.open(out)


def check_place(out: Path, *, replace: bool) -> None:
    """Refuse to write where something else is, or over a prepared set without being asked."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / "meta.json").is_file():
        raise ValueError(f"{out} is there and no prepared data set; choose another folder with --out")
    if not replace:
        raise ValueError(
            f"{out} is already prepared; pass --replace to prepare it anew, or choose another --out"
        )


@contextmanager
def _alone(workplace: Path, out: Path) -> Iterator[None]:
    """Keep a second process from writing the same folder; the lock goes with the process, however it ends."""
    with (workplace / "lock").open("w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # not on this system
            pass
        except OSError:
            raise ValueError(f"another process is preparing {out}; wait for it, or stop it") from None
        yield


def _plan_of(workplace: Path) -> Any:
    try:
        return json.loads((workplace / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_samples(plan: Plan, workplace: Path) -> list[dict[str, Any]]:
    """Append all recordings that are still missing; return a journal entry for each."""
    path, journal = workplace / "set" / "samples.npy", workplace / "journal.jsonl"
    header = _header(0, len(plan.ch_names))
    if not path.is_file() or path.stat().st_size < len(header):
        path.write_bytes(header)
        journal.unlink(missing_ok=True)
    kept = _still_true(plan, path, journal)
    written = len(header) + sum(entry["n_bytes"] for entry in kept)
    os.truncate(path, written)
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
    problems: list[str] = []
    n_samples = sum(entry["n_samples"] for entry in kept)
    with path.open("ab") as samples, journal.open("a", encoding="utf-8") as lines:
        for i, source in enumerate(plan.sources):
            tick("preparing recordings", i, len(plan.sources))
            if i < len(kept):
                continue
            try:
                piece = source.read()
            except (ValueError, OSError) as error:
                # The others are still read, so that all problems are told at once.
                problems.append(str(error))
                continue
            if not problems:
                kept.append(_append(plan, source, piece, samples, lines))
                n_samples += kept[-1]["n_samples"]
            del piece  # before the next one comes
    tick("preparing recordings", len(plan.sources), len(plan.sources))
    raise_if_any(str(plan.root), problems)
    with path.open("r+b") as samples:
        samples.write(_header(n_samples, len(plan.ch_names)))
        samples.flush()
        os.fsync(samples.fileno())
    return kept


def _append(plan: Plan, source: Source, piece: Piece, samples: IO[bytes], lines: IO[str]) -> dict[str, Any]:
    block = np.ascontiguousarray(piece.samples, dtype="<f4")
    if block.ndim != 2 or block.shape[1] != len(plan.ch_names):
        raise ValueError(f"{source.name} has shape {block.shape}, {len(plan.ch_names)} channels wanted")
    samples.write(block.data)
    samples.flush()
    entry = {
        "name": source.name,
        "files": {_within(path, plan.root): sha256(path) for path in source.files},
        "seen": _seen(source),
        "n_samples": len(block),
        "n_bytes": block.nbytes,
        "blake2b": blake2b(block.data).hexdigest(),
        "rows": [list(asdict(row).values()) for row in piece.rows],
        "counts": piece.counts,
        "notes": list(piece.notes),
    }
    lines.write(json.dumps(entry) + "\n")
    lines.flush()
    return entry


def _still_true(plan: Plan, path: Path, journal: Path) -> list[dict[str, Any]]:
    """Return the journal's entries up to the first whose files changed or whose samples are not there."""
    found: list[dict[str, Any]] = []
    if not journal.is_file():
        return found
    with path.open("rb") as samples, journal.open(encoding="utf-8") as lines:
        samples.seek(len(_header(0, len(plan.ch_names))))
        for source, line in zip(plan.sources, lines, strict=False):
            try:
                entry = json.loads(line)
            except ValueError:  # cut in the middle of a line
                return found
            same = entry["name"] == source.name and entry["seen"] == _seen(source)
            if not same or blake2b(samples.read(entry["n_bytes"])).hexdigest() != entry["blake2b"]:
                return found
            found.append(entry)
    return found


def gather(plan: Plan) -> Dataset:
    """Return the set that :func:`prepare` would write, in memory."""
    pieces = []
    for i, source in enumerate(plan.sources):
        pieces.append(source.read())
        tick("preparing recordings", i + 1, len(plan.sources))
    entries = [
        {
            "name": source.name,
            "files": {},
            "n_samples": len(piece.samples),
            "rows": [list(asdict(row).values()) for row in piece.rows],
            "counts": piece.counts,
            "notes": list(piece.notes),
        }
        for source, piece in zip(plan.sources, pieces, strict=True)
    ]
    return _tables(plan, entries, np.concatenate([piece.samples for piece in pieces]).astype(np.float32))


def _tables(plan: Plan, entries: Sequence[dict[str, Any]], samples: npt.NDArray[np.float32]) -> Dataset:
    """Return the finished set, without its signals being read into memory."""
    rows: list[Row] = []
    recordings: list[str] = []
    offset = 0
    counts: dict[str, int] = {}
    for entry in entries:
        for start, *facts in entry["rows"]:
            rows.append(Row(offset + start, *facts))
            recordings.append(entry["name"])
        offset += entry["n_samples"]
        for name, count in entry["counts"].items():
            counts[name] = counts.get(name, 0) + count
    numbers = {name: i for i, name in enumerate(plan.class_names)}
    rejected = np.array([row.rejected for row in rows], dtype=bool)
    return Dataset(
        samples=samples,
        starts=np.array([row.start for row in rows], dtype=np.int64),
        n_times=plan.how.n_times or 0,
        labels=np.array([numbers[row.label] for row in rows], dtype=np.int64),
        subjects=np.array([row.subject for row in rows], dtype=str),
        sessions=np.array([row.session for row in rows], dtype=str),
        split=np.array([row.split for row in rows], dtype=str),
        sfreq=plan.how.sfreq or 0.0,
        class_names=plan.class_names,
        ch_names=plan.ch_names,
        meta={
            **plan.recipe,
            "preprocessing": facts_of(plan.how),
            "counts": dict(sorted(counts.items())),
            "notes": [note for entry in entries for note in entry["notes"]],
            "sources": {name: digest for entry in entries for name, digest in entry["files"].items()},
        },
        recordings=np.array(recordings, dtype=str),
        rejected=rejected if rejected.any() else None,
    )


def _header(n_samples: int, n_chans: int) -> bytes:
    """Return the head of an .npy file; numpy leaves room for the first axis, so its length stays the same."""
    head = BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (n_samples, n_chans)}
    np.lib.format.write_array_header_1_0(head, shape)
    return head.getvalue()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _seen(source: Source) -> list[list[int]]:
    return [[path.stat().st_size, path.stat().st_mtime_ns] for path in source.files]


def _within(path: Path, root: Path) -> str:
    """Name a file from the root, so that the same set in another place gives the same bytes."""
    return Path(os.path.relpath(path, root)).as_posix()
