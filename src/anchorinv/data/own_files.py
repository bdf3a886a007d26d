"""A user's file with its labelled parts, before and after filtering."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.data.dataset import SPLITS
from anchorinv.data.filters import Band, filtered, resampled
from anchorinv.data.manifest import Entry
from anchorinv.data.readers import LARGEST, Recording, read_recording, reading, with_rate


@dataclass(frozen=True, slots=True)
class Options:
    """What to do with own recordings.

    Parameters
    ----------
    channels : names to keep, in this order; None keeps all.
    band : filter; None for none.
    resample, sfreq : rate to bring all to, and the rate of files that do not say theirs, in Hz.
    window : seconds; None takes each row of the table as one window.
    overlap : share of a window that the next one repeats.
    at_least : training windows that a class needs.
    allow : kinds of problems to let pass.
    seed : of the split where the table gives none.
    """

    channels: tuple[str, ...] | None = None
    band: Band | None = None
    resample: float | None = None
    sfreq: float | None = None
    window: float | None = None
    overlap: float = 0.0
    at_least: int = 10
    allow: frozenset[str] = frozenset()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A labelled stretch of a file, in samples of the rate it will have."""

    first: int
    length: int
    label: str
    subject: str
    session: str
    split: str


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """A file as it is, and the parts of it that are to be used.

    Parameters
    ----------
    rate : samples per second that it will have.
    trial : samples of a trial, where the file holds separate trials one after the other; 0 where it is one
        continuous recording.
    wrong : what is wrong with its parts.
    """

    recording: Recording
    rate: float
    trial: int
    parts: Sequence[Part]
    wrong: Sequence[str] = ()


def open_material(entries: Sequence[Entry], options: Options) -> Material:
    """Read the file that some rows of a table speak of."""
    path = entries[0].path
    if path.suffix.lower() == ".npz":
        return _open_trials(entries, options)
    recording = with_rate(read_recording(path, channels=options.channels), path, options.sfreq)
    rate = options.resample or recording.sfreq
    assert recording.sfreq is not None and rate is not None
    n_samples = recording.signals.shape[1]
    available = round(n_samples * rate / recording.sfreq)
    parts, wrong = [], []
    for entry in entries:
        first = round((entry.start or 0.0) * rate)
        length = (
            available - first if entry.stop is None else round((entry.stop - (entry.start or 0.0)) * rate)
        )
        if first + length > available or length < 1:
            wrong.append(
                f"line {entry.line}: {entry.name} is {n_samples / recording.sfreq:g} s long, "
                f"{entry.start or 0:g} to {'its end' if entry.stop is None else f'{entry.stop:g} s'} asked"
            )
        else:
            parts.append(Part(first, length, entry.label, entry.subject, entry.session, entry.split))
    return Material(recording, rate, 0, parts, wrong)


def _open_trials(entries: Sequence[Entry], options: Options) -> Material:
    """Read ``X`` (n, channels, times), ``y`` and whatever else an .npz file says about its trials."""
    entry, path = entries[0], entries[0].path
    if len(entries) > 1 or entry.start is not None or entry.stop is not None:
        raise ValueError(f"{path} holds trials already cut: list it once, without start and stop")
    with reading(path), np.load(path, allow_pickle=False) as file:
        inside = {name: file[name] for name in file.files if name in _KEYS}
    signals = _signals(path, inside)
    n, n_chans, n_times = signals.shape
    names = _names(path, inside, n_chans)
    if options.channels is not None:
        if absent := [name for name in options.channels if name not in names]:
            raise ValueError(f"{path} has no channel {', '.join(absent)}; it has {', '.join(names)}")
        signals = signals[:, [names.index(name) for name in options.channels]]
        names = options.channels
    told = {"label": entry.label, "subject": entry.subject, "session": entry.session, "split": entry.split}
    columns = {name: _column(path, inside, key, n, told[name]) for name, key in _COLUMNS.items()}
    if not all(columns["label"]):
        raise ValueError(f"{path} has no y, one label per trial; add it, or give a label in the table")
    if unknown := sorted(set(columns["split"]) - {*SPLITS, ""}):
        raise ValueError(f"{path}: split {unknown[0]!r} is neither 'train' nor 'test'")
    flat = np.ascontiguousarray(signals.transpose(1, 0, 2).reshape(len(names), n * n_times), dtype=np.float64)
    sfreq = float(np.ravel(inside["sfreq"])[0]) if "sfreq" in inside else None
    recording = with_rate(Recording(flat, sfreq, names, ("",) * len(names)), path, options.sfreq)
    rate = options.resample or recording.sfreq
    assert recording.sfreq is not None and rate is not None
    length = round(n_times * rate / recording.sfreq)
    parts = [
        Part(i * length, length, *(columns[key][i] for key in ("label", "subject", "session", "split")))
        for i in range(n)
    ]
    return Material(recording, rate, n_times, parts)


_COLUMNS = {"label": "y", "subject": "subject", "session": "session", "split": "split"}
_KEYS = {"X", "sfreq", "ch_names", *_COLUMNS.values()}


def _signals(path: Path, inside: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if "X" not in inside:
        raise ValueError(f"{path} has no X, the signals (n, channels, times); save them under this name")
    found = inside["X"]
    if found.ndim != 3 or found.dtype.kind not in "fiu" or 0 in found.shape:
        raise ValueError(f"{path}: X is {found.dtype} {found.shape}; numbers (n, channels, times) are wanted")
    if found.size > LARGEST:
        raise ValueError(
            f"{path} holds {found.size} values, and at most {LARGEST // 10**6} million are read at once; "
            "save several files and list them in a table for --manifest"
        )
    return found


def _names(path: Path, inside: dict[str, npt.NDArray[Any]], n_chans: int) -> tuple[str, ...]:
    names = tuple(map(str, np.ravel(inside["ch_names"]))) if "ch_names" in inside else ()
    if names and len(names) != n_chans:
        raise ValueError(f"{path}: X has {n_chans} channels but ch_names {len(names)} names")
    return names or tuple(f"ch{i}" for i in range(1, n_chans + 1))


def _column(path: Path, inside: dict[str, npt.NDArray[Any]], key: str, n: int, told: str) -> list[str]:
    """Return what the table says for all trials, or what the file says for each."""
    if told or key not in inside:
        return [told] * n
    values = np.ravel(inside[key])
    if len(values) == 1:
        values = np.repeat(values, n)
    if len(values) != n:
        raise ValueError(f"{path}: X has {n} trials but {key} {len(values)} values; one per trial is wanted")
    if values.dtype.kind == "f" and (values == np.round(values)).all():
        values = values.astype(np.int64)
    return [str(value) for value in values.tolist()]


def processed(material: Material, band: Band | None) -> npt.NDArray[np.float64]:
    """Return the signals (n_chans, n_samples) filtered and at their rate; separate trials stay separate."""
    recording = material.recording
    assert recording.sfreq is not None
    # A gap would spread over everything that a filter reaches.
    np.nan_to_num(recording.signals, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    n_samples = recording.signals.shape[1]
    step = material.trial or n_samples
    done = []
    for start in range(0, n_samples, step):
        trial = recording.signals[:, start : start + step]
        if band is not None:
            trial = filtered(trial, recording.sfreq, band)
        done.append(resampled(trial, recording.sfreq, material.rate))
    return done[0] if len(done) == 1 else np.concatenate(done, axis=1)


def with_splits(parts: Sequence[Part], splits: Sequence[str]) -> list[Part]:
    """Return the parts with the side that each was given."""
    return [replace(part, split=str(side)) for part, side in zip(parts, splits, strict=True)]
