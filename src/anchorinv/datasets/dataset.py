"""A data set: labelled windows of recordings, in memory or in a prepared folder.

A prepared folder holds ``samples.npy`` (float32, the recordings concatenated, memory-mapped), ``index.csv``
(a row per window) and ``meta.json``. Windows are views of the recordings, so overlapping windows are stored
once, and opening a folder reads the index only.
"""

import csv
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anchorinv import __version__
from anchorinv.errors import literal_text
from anchorinv.files import LARGE, read_json, replacing, samples_hash, write_json
from anchorinv.signal.arrays import open_array, read_table
from anchorinv.signal.headers import MAX_CHANNELS, MAX_EXPANSION, VOLTAGES
from anchorinv.signal.preprocessing import (
    Preprocessing,
    Rate,
    Samples,
    facts_of,
    preprocessing_from,
    preprocessing_of,
)
from anchorinv.signal.readers import WindowFile, open_window_file

FORMAT = 1
SPLITS = ("train", "test")
_COLUMNS = ("start", "label", "subject", "session", "split")
_EXTRA = {"recordings": "recording", "rejected": "rejected"}  # columns that may be missing, by field
_MAX_META = 16 << 20  # bytes
_N_TRIALS, _MAX_CLASSES, _MAX_CHANNELS = 3, 8, 8  # of a figure
#: With fewer subjects, sessions are groups too: base training holds out one of at least this many.
LEAST_GROUPS = 5


class Meta(BaseModel):
    """The fields of ``meta.json`` that are read; others are kept as they are."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    format: int
    n_times: Samples
    sfreq: Rate
    class_names: tuple[str, ...]
    ch_names: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_CHANNELS)]
    samples_blake2b: str | None = None
    name: str | None = None
    form: str | None = None
    unit: str | None = None
    split: str | None = None
    origin: str | None = None
    licence: str | None = None
    steps: list[str] = []
    accepted: list[str] = []
    notes: list[str] = []
    missing: list[str] = []
    counts: dict[str, int] = {}
    preprocessing: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled windows of recordings.

    Parameters
    ----------
    samples : ndarray of float32, shape (n_samples, n_chans)
        All recordings, concatenated.
    starts : ndarray of int, shape (n,)
        First sample of each window.
    n_times : int
        Samples per window.
    labels : ndarray of int, shape (n,)
        Indices into ``class_names``.
    subjects, sessions : ndarray of str, shape (n,)
    split : ndarray of str, shape (n,)
        "train" or "test".
    sfreq : float
        Sampling rate in Hz.
    class_names, ch_names : tuple of str
    meta : dict, optional
        Further metadata: source, preprocessing, hashes; plain JSON values.
    recordings : ndarray of str, shape (n,), or None, default=None
        The recording each window was cut from; None where unknown.
    rejected : ndarray of bool, shape (n,), or None, default=None
        Windows that an expert marked as unusable; None where not assessed.

    Examples
    --------
    >>> windows = np.zeros((4, 2, 100), dtype=np.float32)
    >>> split = ["train", "train", "test", "test"]
    >>> data = Dataset.from_arrays(windows, ["left", "right"] * 2, sfreq=100, split=split)
    >>> data.class_names, data.labels.tolist(), data.signals(data.split == "test").shape
    (('left', 'right'), [0, 1, 0, 1], (2, 2, 100))
    >>> data
    <Dataset: 4 windows of 2 channels x 100 samples at 100 Hz, 2 classes, 2 to train on>
    """

    samples: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]
    n_times: int
    labels: npt.NDArray[np.int64]
    subjects: npt.NDArray[np.str_]
    sessions: npt.NDArray[np.str_]
    split: npt.NDArray[np.str_]
    sfreq: float
    class_names: tuple[str, ...]
    ch_names: tuple[str, ...]
    meta: dict[str, Any] = field(default_factory=dict)
    recordings: npt.NDArray[np.str_] | None = None
    rejected: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        columns = ("starts", "labels", "subjects", "sessions", "split", *self._extra_columns())
        lengths = {name: len(getattr(self, name)) for name in columns}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"all columns must have the same length, got {lengths}")
        if len(self) and not 0 <= self.starts.min() <= self.starts.max() <= len(self.samples) - self.n_times:
            raise ValueError(f"windows reach beyond the {len(self.samples)} samples stored")
        if len(self) and not 0 <= self.labels.min() <= self.labels.max() < len(self.class_names):
            raise ValueError(f"labels must lie between 0 and {len(self.class_names) - 1}")
        if unknown := sorted(set(self.split.tolist()) - set(SPLITS)):
            raise ValueError(f"split {unknown[0]!r} is neither 'train' nor 'test'")
        if self.samples.shape[1] != len(self.ch_names):
            raise ValueError(f"{self.samples.shape[1]} channels but {len(self.ch_names)} channel names")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        window = f"{self.n_chans} channels x {self.n_times} samples at {self.sfreq:g} Hz"
        parts = f"{np.sum(self.split == 'train')} to train on"
        return f"<Dataset: {len(self)} windows of {window}, {len(self.class_names)} classes, {parts}>"

    @property
    def n_chans(self) -> int:
        """Number of channels."""
        return len(self.ch_names)

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the signals, as far as known."""
        return preprocessing_of(self.meta, ch_names=self.ch_names, sfreq=self.sfreq, n_times=self.n_times)

    def signals(self, chosen: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return a copy of some windows.

        Parameters
        ----------
        chosen : array_like
            Indices, or a boolean mask of shape (n,).

        Returns
        -------
        ndarray, shape (n_chosen, n_chans, n_times)
        """
        starts = self.starts[np.asarray(chosen)]
        windows = np.empty((len(starts), self.n_chans, self.n_times), dtype=np.float32)
        for window, start in zip(windows, starts, strict=True):
            window[:] = self.samples[start : start + self.n_times].T
        return windows

    @property
    def fingerprint(self) -> str:
        """Hash that changes when anything in the data does.

        It does not read the samples of a prepared folder; :meth:`check` raises if they have changed.
        """
        if self._on_disk and "samples_blake2b" in self.meta:
            return self._fingerprint(str(self.meta["samples_blake2b"]))
        content = np.ascontiguousarray(self.samples).data
        return self._fingerprint(hashlib.blake2b(content, digest_size=16).hexdigest())

    def _fingerprint(self, samples: str) -> str:
        facts = [self.n_times, self.sfreq, self.class_names, self.ch_names, samples]
        digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=12)
        columns = (self.starts, self.labels, self.subjects, self.sessions, self.split)
        for column in (*columns, *self._extra_columns().values()):
            digest.update("\n".join(map(str, column.tolist())).encode())
        return digest.hexdigest()

    @property
    def _on_disk(self) -> bool:
        """Whether the samples are those of a file, not a copy or a slice."""
        return isinstance(self.samples, np.memmap) and isinstance(self.samples.base, mmap)

    def check(self, *, whole: bool = False) -> None:
        """Raise ValueError if the files of a prepared folder changed since they were written.

        Parameters
        ----------
        whole : bool, default=False
            Read all samples, also of large files, of which only blocks are compared by default.
        """
        if not self._on_disk:
            return  # in memory: its fingerprint is computed from the samples
        assert isinstance(self.samples, np.memmap) and self.samples.filename is not None
        path = Path(self.samples.filename)
        # Folders from earlier versions have no hash of blocks: they are read completely.
        in_blocks = not whole and self.samples.nbytes > LARGE and "blocks_blake2b" in self.meta
        stored = self.meta.get("blocks_blake2b" if in_blocks else "samples_blake2b")
        changed = []
        if stored is not None and samples_hash(path, in_blocks=in_blocks) != stored:
            changed.append(path.name)
        if self.meta.get("fingerprint", self.fingerprint) != self.fingerprint:
            changed.append("index.csv or meta.json")
        if changed:
            changes = f"{path.parent} has changed since it was prepared: {' and '.join(changed)}"
            raise ValueError(f"{changes}; restore it, or prepare it again and run into another folder")

    def _extra_columns(self) -> dict[str, npt.NDArray[Any]]:
        extra = {"recordings": self.recordings, "rejected": self.rejected}
        return {name: column for name, column in extra.items() if column is not None}

    @classmethod
    def from_arrays(
        cls,
        signals: npt.ArrayLike,
        labels: npt.ArrayLike,
        *,
        sfreq: float,
        split: npt.ArrayLike,
        subjects: npt.ArrayLike | None = None,
        sessions: npt.ArrayLike | None = None,
        ch_names: tuple[str, ...] | None = None,
        preprocessing: Preprocessing | None = None,
        **meta: Any,
    ) -> Self:
        """Make a data set from arrays.

        Parameters
        ----------
        signals : array_like, shape (n, n_chans, n_times)
        labels : array_like, shape (n,)
            Text or numbers.
        sfreq : float
            Sampling rate in Hz.
        split : array_like of str, shape (n,)
            "train" or "test".
        subjects, sessions : array_like, shape (n,), optional
        ch_names : tuple of str, optional
        preprocessing : Preprocessing, optional
            Preprocessing of the signals; a model trained on them repeats it.
        **meta : Any
            Further metadata; plain JSON values.
        """
        windows = np.asarray(signals, dtype=np.float32)
        if windows.ndim != 3:
            raise ValueError(f"signals must be (n, n_chans, n_times), got shape {windows.shape}")
        if not np.isfinite(windows).all():
            raise ValueError("signals have NaN or infinite values; repair or drop these windows")
        if not 0 < sfreq < np.inf:
            raise ValueError(f"sfreq (={sfreq}) must be a rate in Hz above 0")
        n, n_chans, n_times = windows.shape
        names, numbers = np.unique(np.asarray(labels), return_inverse=True)
        return cls(
            samples=windows.transpose(0, 2, 1).reshape(n * n_times, n_chans),
            starts=np.arange(n, dtype=np.int64) * n_times,
            n_times=n_times,
            labels=numbers.astype(np.int64),
            subjects=_column(subjects, n),
            sessions=_column(sessions, n),
            split=_column(split, n),
            sfreq=float(sfreq),
            class_names=tuple(map(str, names.tolist())),
            ch_names=ch_names or tuple(f"ch{i}" for i in range(1, n_chans + 1)),
            meta=dict(meta) if preprocessing is None else meta | {"preprocessing": facts_of(preprocessing)},
        )

    @classmethod
    def from_epochs(
        cls,
        epochs: Any,
        *,
        split: npt.ArrayLike | None = None,
        subjects: npt.ArrayLike | None = None,
        sessions: npt.ArrayLike | None = None,
    ) -> Self:
        """Make a data set from ``mne.Epochs``, in µV, with its event names as classes.

        Parameters
        ----------
        epochs : mne.Epochs
            Stimulus channels are left out.
        split, subjects, sessions : array_like, shape (n,), optional
            By default the columns ``split``, ``subject`` and ``session`` of ``epochs.metadata``; without any
            split all windows are for training.
        """
        kinds = epochs.get_channel_types()
        picks = [i for i, kind in enumerate(kinds) if kind != "stim"]
        signals = epochs.get_data(picks=picks)  # (n, n_chans, n_times)
        scale = np.array([1e6 if kinds[i] in VOLTAGES else 1.0 for i in picks])[:, None]
        names = {code: name for name, code in epochs.event_id.items()}
        columns = {} if epochs.metadata is None else {k: v.to_numpy() for k, v in epochs.metadata.items()}
        return cls.from_arrays(
            signals * scale,
            [names[code] for code in epochs.events[:, 2].tolist()],
            sfreq=float(epochs.info["sfreq"]),
            split=columns.get("split", ["train"] * len(signals)) if split is None else split,
            subjects=columns.get("subject") if subjects is None else subjects,
            sessions=columns.get("session") if sessions is None else sessions,
            ch_names=tuple(epochs.ch_names[i] for i in picks),
            preprocessing=Preprocessing(unit="µV"),
        )

    def write(self, folder: Path | str) -> None:
        """Write a prepared folder, atomically; an earlier one is replaced."""
        folder = Path(folder)
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "meta.json").is_file():
            raise ValueError(f"{folder} contains something other than a data set; choose another folder")
        with replacing(folder) as beside:
            beside.mkdir()
            np.save(beside / "samples.npy", self.samples, allow_pickle=False)
            self.write_tables(beside)

    def write_tables(self, folder: Path) -> None:
        """Write ``index.csv`` and ``meta.json`` into a folder that already holds the samples."""
        extra = self._extra_columns()
        with (folder / "index.csv").open("w", newline="", encoding="utf-8") as file:
            # Names are read back, so they are not escaped for spreadsheets; quoted, because a carriage return
            # would end a row.
            table = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
            table.writerow((*_COLUMNS, *(_EXTRA[name] for name in extra)))
            names = [self.class_names[label] for label in self.labels]
            columns = (self.starts, names, self.subjects, self.sessions, self.split)
            flags = (c.astype(np.int64) if c.dtype == bool else c for c in extra.values())
            table.writerows(zip(*columns, *flags, strict=True))
        samples = samples_hash(folder / "samples.npy")
        meta = {
            **self.meta,
            "format": FORMAT,
            "version": __version__,
            "n_times": self.n_times,
            "sfreq": self.sfreq,
            "class_names": self.class_names,
            "ch_names": self.ch_names,
            "samples_blake2b": samples,
            "fingerprint": self._fingerprint(samples),
        }
        if self.samples.nbytes > LARGE:
            meta["blocks_blake2b"] = samples_hash(folder / "samples.npy", in_blocks=True)
        write_json(folder / "meta.json", meta)

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open a prepared folder; its samples are read on demand."""
        folder = Path(folder)
        if missing := [n for n in ("meta.json", "index.csv", "samples.npy") if not (folder / n).is_file()]:
            lacks = f"it lacks {', '.join(missing)}"
            raise ValueError(f"{folder} is not a prepared data set: {lacks}; make one with anchorinv prepare")
        meta = _read_meta(folder / "meta.json")
        try:
            facts = Meta.model_validate(meta)
            if facts.preprocessing is not None:
                preprocessing_from(facts.preprocessing)
            table = read_table(folder / "index.csv", (*_COLUMNS, *_EXTRA.values()))
            columns = {name: np.array(column, dtype=str) for name, column in table.columns.items()}
            flags = columns.get("rejected")
            numbers = {name: i for i, name in enumerate(facts.class_names)}
            return cls(
                samples=_memory_mapped(folder / "samples.npy", facts.n_times * len(table.lines)),
                starts=np.array([int(start) for start in table.columns["start"]], dtype=np.int64),
                n_times=facts.n_times,
                labels=np.array([numbers[label] for label in table.columns["label"]], dtype=np.int64),
                subjects=columns["subject"],
                sessions=columns["session"],
                split=columns["split"],
                sfreq=facts.sfreq,
                class_names=facts.class_names,
                ch_names=facts.ch_names,
                meta=meta,
                recordings=columns.get("recording"),
                rejected=None if flags is None else flags == "1",
            )
        except (KeyError, ValueError, OverflowError, OSError) as error:
            reason = f"{error.args[0]!r} is missing or unknown" if isinstance(error, KeyError) else error
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False, include_input=False)[0]
                reason = f"{'.'.join(map(str, first['loc'])) or 'meta.json'} is wrong ({first['msg']})"
            raise ValueError(f"{folder} is damaged: {reason}; prepare it again") from None


def _read_meta(path: Path) -> Any:
    if path.stat().st_size > _MAX_META:
        raise ValueError(f"{path} is damaged: it has more than {_MAX_META >> 20} MB; prepare it again")
    meta = read_json(path)
    if isinstance(meta, dict) and meta.get("format", FORMAT) != FORMAT:
        wrong = f"format {meta['format']!r} is not {FORMAT}, which this version reads"
        raise ValueError(f"{path.parent} is damaged: {wrong}; prepare it again")
    return meta


def _memory_mapped(path: Path, n_in_windows: int) -> npt.NDArray[np.float32]:
    """Map the samples of a folder; its windows have ``n_in_windows`` of them, overlaps counted twice."""
    stored = open_array(path, remedy="")
    if stored.dtype != np.float32 or len(stored.shape) != 2:
        raise ValueError(f"it holds {stored.dtype} {stored.shape}, expected float32 (samples, channels)")
    if n_in_windows > MAX_EXPANSION * max(1, stored.shape[0]):
        repeat = f"its windows repeat {stored.shape[0]} samples stored"
        raise ValueError(f"{repeat} more than {MAX_EXPANSION} times")
    return stored.memmap()


def _column(values: npt.ArrayLike | None, n: int) -> npt.NDArray[np.str_]:
    return np.asarray(["0"] * n if values is None else values).astype(str)


def open_windows(path: Path, *, split: str | None = None) -> WindowFile:
    """Open windows; those of a prepared folder are limited to ``split``, if it has any there."""
    if path.is_dir():
        return as_window_file(Dataset.open(path), path.name, split)
    return open_window_file(path)


def as_window_file(data: Dataset, name: str, split: str | None = None) -> WindowFile:
    """Return the windows of a data set, limited to ``split`` if it has any there."""
    chosen = np.arange(len(data))
    if split is not None and (data.split == split).any():
        chosen = np.flatnonzero(data.split == split)

    def blocks(size: int) -> Iterator[np.ndarray]:
        for start in range(0, len(chosen), size):
            yield data.signals(chosen[start : start + size])

    labels = np.array(data.class_names)[data.labels[chosen]]
    shape = (len(chosen), data.n_chans, data.n_times)
    subjects, sessions = data.subjects[chosen], data.sessions[chosen]
    few = len(set(subjects.tolist())) < LEAST_GROUPS
    groups = np.array(list(map(" ".join, zip(subjects, sessions, strict=True)))) if few else subjects
    return WindowFile(name, shape, blocks, labels, data.sfreq, data.preprocessing, groups, subjects, sessions)


def draw_trials(data: Dataset, path: Path) -> None:
    """Draw a figure of three trials of each of the first classes, all channels to one scale."""
    from matplotlib.figure import Figure

    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"a picture is a .png, .pdf or .svg file, got {path.name!r}")
    present = np.unique(data.labels)[:_MAX_CLASSES].tolist()
    if not present:
        raise ValueError("there are no windows to draw")
    channels = _evenly(np.arange(data.n_chans), _MAX_CHANNELS)
    chosen = [_evenly(np.flatnonzero(data.labels == label), _N_TRIALS) for label in present]
    centred = {}
    for i in np.concatenate(chosen).tolist():
        trial = data.signals([i])[0][channels]
        centred[i] = trial - np.median(trial, axis=1, keepdims=True)
    # Most of the signal, not its largest artefact, sets the distance between channels.
    step = 2 * float(np.quantile(np.abs(np.concatenate(list(centred.values()), axis=1)), 0.97)) or 1.0
    seconds = np.arange(data.n_times) / data.sfreq
    height = 0.9 + len(present) * max(1.2, 0.16 * len(channels) + 0.4)
    figure = Figure(figsize=(10.0, height), layout="constrained")
    axes = figure.subplots(len(present), max(map(len, chosen)), sharex=True, sharey=True, squeeze=False)
    offsets = -step * np.arange(len(channels))
    for row, label, windows in zip(axes, present, chosen, strict=True):
        for axis in row:
            axis.spines[["top", "right", "left"]].set_visible(False)
            axis.spines["bottom"].set_color("#bbbbbb")
            axis.tick_params(length=0, labelsize=7)
            axis.set_yticks(offsets, [data.ch_names[i] for i in channels])
            axis.set_ylim(offsets[-1] - 0.75 * step, 0.75 * step)
        for axis, i in zip(row, windows, strict=False):
            axis.plot(seconds, (centred[int(i)] + offsets[:, None]).T, color="#27506f", linewidth=0.5)
            facts = [f"subject {data.subjects[i]}", f"session {data.sessions[i]}", str(data.split[i])]
            facts += ["rejected"] if data.rejected is not None and data.rejected[i] else []
            axis.set_title(" · ".join(facts), fontsize=7, color="#666666", loc="right", pad=2)
        for axis in row[len(windows) :]:
            axis.set_visible(False)
        row[0].set_ylabel(data.class_names[label], fontsize=9, fontweight="bold")
    for axis in axes[-1]:
        axis.set_xlabel("time (s)", fontsize=8)
        axis.set_xlim(seconds[0], seconds[-1])
    words = f"channels {step:.3g}{' µV' if data.meta.get('unit') == 'µV' else ''} apart"
    if len(present) < len(data.class_names):
        words += f", {len(present)} of {len(data.class_names)} classes"
    if len(channels) < data.n_chans:
        words += f", {len(channels)} of {data.n_chans} channels"
    figure.suptitle(f"{data.meta.get('name', 'data')}: trials of each class ({words})", fontsize=10)
    literal_text(figure)
    with replacing(path) as beside:
        figure.savefig(beside, dpi=130, format=path.suffix[1:].lower())


def _evenly(indices: np.ndarray, n: int) -> np.ndarray:
    """Return ``n`` evenly spaced indices at most, from the first to the last."""
    return np.asarray(indices[np.unique(np.linspace(0, len(indices) - 1, n).astype(int))])
