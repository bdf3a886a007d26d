"""Own recordings: options, files, checks of each and of all, and the plan for those that pass."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.datasets.dataset import SPLITS
from anchorinv.datasets.prepare import (
    DatasetPlan,
    LabelledWindow,
    PreparedRecording,
    RecordingSource,
    grouped_split,
    sha256,
)
from anchorinv.errors import listed, raise_if_any
from anchorinv.progress import tick
from anchorinv.signal.arrays import StoredArray
from anchorinv.signal.headers import MAX_ROWS, check_range, check_size
from anchorinv.signal.pipeline import (
    missing_runs,
    process_trials,
    rate_ratio,
    resampled_length,
    window_starts,
)
from anchorinv.signal.preprocessing import Filter, Preprocessing, find_channel, pick_channels, renamed
from anchorinv.signal.readers import PIECE, companions, open_recording, open_trials, select_inputs

#: Arrays of an .npz file by the facts of its trials.
_TRIAL_ARRAYS = {"label": "y", "subject": "subject", "session": "session", "split": "split"}
#: Kinds of problems that --allow accepts, and what is then done.
ALLOWED = {
    "nan": "windows with missing samples are left out",
    "flat": "flat channels are kept",
    "clipped": "clipped channels are kept",
    "scale": "recordings of very different size are kept",
    "few": "classes with few samples are kept",
    "duplicates": "recordings that are there twice and trials that overlap are kept",
    "shared-subjects": "a subject may be on both sides of the split",
    "shared-recordings": "a recording may be on both sides of the split",
}
_GIVEN = "as given"  # a split by the table
_MAX_RATIO = 1000.0  # of standard deviations between recordings
_Problem = tuple[str, str]  # its kind, of ``ALLOWED`` or "" for one that cannot be accepted, and a sentence


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """A recording, or a segment of one in seconds, as a table lists it or as an event marks it."""

    line: int
    name: str  # as the table writes it
    path: Path
    label: str = ""
    subject: str = ""
    session: str = ""
    split: str = ""
    start: float | None = None
    stop: float | None = None


@dataclass(frozen=True, slots=True)
class OwnOptions:
    """Options for preparing own recordings."""

    channels: tuple[str, ...] | None = None  # to keep, in this order; None keeps all
    band: Filter | None = None
    resample: float | None = None  # to this rate in Hz; None keeps that of the files
    sfreq: float | None = None  # of files that do not state it
    window: float | None = None  # seconds; None takes each row of the table as one window
    overlap: float = 0.0  # overlap of consecutive windows, as a fraction
    at_least: int = 10  # minimum number of training windows per class
    allow: frozenset[str] = frozenset()  # kinds of problems to accept
    seed: int | None = None  # of the split where the table gives none
    reference: str | None = None  # as in `Preprocessing`
    rename: dict[str, str] = field(default_factory=dict)  # renamings of channels

    def __post_init__(self) -> None:
        for name in ("resample", "sfreq", "window"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ValueError(f"--{name} must be a number above 0, got {value:g}")
        if not 0 <= self.overlap < 1:
            raise ValueError(f"--overlap must be a share from 0 to below 1, got {self.overlap:g}")
        if self.overlap and self.window is None:
            raise ValueError("--overlap needs --window, the length of windows")

    def preprocessing(self, ch_names: Sequence[str], *, volts: bool = False, sfreq: float) -> Preprocessing:
        """Return the preprocessing of files with these channels; voltages are prepared in µV."""
        reference_index = find_channel(self.reference, ch_names) if self.reference else None
        names = self.channels or tuple(name for i, name in enumerate(ch_names) if i != reference_index)
        unit = "µV" if volts else None
        return Preprocessing(names, unit, self.band, reference=self.reference, sfreq=self.resample or sfreq)

    def rate_of(self, path: Path, stored: float | None) -> float:
        """Return the sampling rate of a file: as stored in it, or else the user's."""
        if stored is not None and self.sfreq is not None and stored != self.sfreq:
            raise ValueError(f"{path} says {stored:g} Hz, --sfreq {self.sfreq:g} Hz; leave the option out")
        sfreq = self.sfreq if stored is None else stored
        if sfreq is None:
            raise ValueError(f"{path} has no sampling rate; pass it with --sfreq")
        if self.band is not None:
            try:
                self.band.sections(sfreq)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
        return sfreq


@dataclass(frozen=True, slots=True)
class LabelledSegment:
    """A labelled segment of a file."""

    first: int  # sample after resampling, as is the length
    length: int
    label: str
    subject: str
    session: str
    split: str


@dataclass(frozen=True, slots=True, eq=False)
class LabelledFile:
    """The raw signals of a file, their preprocessing, and the labelled segments."""

    signals: npt.NDArray[np.float64]  # (n_inputs, n_samples), missing ones NaN
    names: tuple[str, ...]
    units: tuple[str, ...]
    preprocessing: Preprocessing
    sfreq: float  # of the signals, in Hz
    n_times: int  # samples per trial, where it holds separate trials; 0 for one continuous recording
    segments: Sequence[LabelledSegment]
    problems: Sequence[str] = ()  # problems of its rows


def open_labelled_file(rows: Sequence[ManifestRow], options: OwnOptions) -> LabelledFile:
    """Read the file of some rows of a table."""
    path = rows[0].path
    if path.suffix.lower() == ".npz":
        return _open_trials(rows, options)
    recording = open_recording(path).renamed(options.rename)
    sfreq = options.rate_of(path, recording.sfreq)
    preprocessing = options.preprocessing(recording.ch_names, volts="V" in recording.units, sfreq=sfreq)
    inputs = select_inputs(recording, preprocessing)
    rate = preprocessing.sfreq or sfreq
    available = resampled_length(recording.n_times, sfreq, rate)
    check_size(path, len(inputs.channels), available)
    segments, problems = [], []
    for row in rows:
        start = row.start or 0.0
        first = round(start * rate)
        stop = available if row.stop is None else first + round((row.stop - start) * rate)
        if first < stop <= available:
            facts = (row.label, row.subject, row.session, row.split)
            segments.append(LabelledSegment(first, stop - first, *facts))
        else:
            end = "its end" if row.stop is None else f"{row.stop:g} s"
            length = f"{row.name} is {recording.n_times / sfreq:g} s long"
            problems.append(f"line {row.line}: {length}, {start:g} to {end} asked")
    signals = recording.load(inputs.channels)
    signals *= inputs.factors
    names = tuple(recording.ch_names[i] for i in inputs.channels)
    units = tuple("µV" if recording.units[i] == "V" else recording.units[i] for i in inputs.channels)
    return LabelledFile(signals, names, units, preprocessing, sfreq, 0, segments, problems)


def _open_trials(rows: Sequence[ManifestRow], options: OwnOptions) -> LabelledFile:
    """Read ``X`` (n, channels, times), ``y`` and further arrays of an .npz file."""
    row, path = rows[0], rows[0].path
    if len(rows) > 1 or row.start is not None or row.stop is not None:
        raise ValueError(f"{path} contains trials: list it once, without start and stop")
    trials = open_trials(path, _TRIAL_ARRAYS.values())
    n, n_chans, n_times = trials.windows.shape
    if trials.windows.dtype.kind not in "fiu":
        got = f"X is {trials.windows.dtype} {trials.windows.shape}"
        raise ValueError(f"{path}: {got}; expected numbers (n, channels, times)")
    check_size(path, 1, n * n_chans * n_times, filtered=False)
    if n > MAX_ROWS:
        raise ValueError(f"{path}: X has {n} trials, and at most a million are read")
    names = trials.ch_names or tuple(f"ch{i}" for i in range(1, n_chans + 1))
    present = renamed(names, options.rename, source=str(path))
    sfreq = options.rate_of(path, trials.sfreq)
    preprocessing = options.preprocessing(present, sfreq=sfreq)
    assert preprocessing.inputs is not None
    picks = pick_channels(preprocessing.inputs, present, source=str(path))
    rate = preprocessing.sfreq or sfreq
    facts = {
        name: _column(path, trials.columns, key, n, getattr(row, name)) for name, key in _TRIAL_ARRAYS.items()
    }
    if not all(facts["label"]):
        raise ValueError(f"{path} has no y, one label per trial; add it, or give a label in the table")
    if unknown := sorted(set(facts["split"]) - {*SPLITS, ""}):
        raise ValueError(f"{path}: split {unknown[0]!r} is neither 'train' nor 'test'")
    length = resampled_length(n_times, sfreq, rate)
    check_size(path, len(picks), n * length, filtered=False)
    signals = _concatenate_trials(trials.windows, picks)
    check_range(path, signals)
    labelled = enumerate(zip(*facts.values(), strict=True))
    segments = [LabelledSegment(i * length, length, *values) for i, values in labelled]
    preprocessing = replace(preprocessing, by_trial=preprocessing.filter is not None or rate != sfreq)
    names, units = tuple(present[i] for i in picks), ("",) * len(picks)
    return LabelledFile(signals, names, units, preprocessing, sfreq, n_times, segments)


def _concatenate_trials(windows: StoredArray, picks: list[int]) -> npt.NDArray[np.float64]:
    """Return some channels of all trials one after the other, (n_chans, n · n_times), block by block."""
    n, n_chans, n_times = windows.shape
    signals, at = np.empty((len(picks), n * n_times)), 0
    for block in windows.blocks(max(1, PIECE // (n_chans * n_times))):
        stop = at + len(block) * n_times
        signals[:, at:stop] = block[:, picks].transpose(1, 0, 2).reshape(len(picks), -1)
        at = stop
    return signals


def _column(path: Path, arrays: dict[str, npt.NDArray[Any]], key: str, n: int, default: str) -> list[str]:
    """Return the value of the table for all trials, or of the file for each."""
    if default or key not in arrays:
        return [default] * n
    values = np.ravel(arrays[key])
    if len(values) == 1:
        values = np.repeat(values, n)
    if len(values) != n:
        raise ValueError(f"{path}: X has {n} trials but {key} {len(values)} values; expected one per trial")
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise ValueError(f"{path}: {key} has NaN; expected one value per trial")
    if values.dtype.kind == "f" and (values == np.round(values)).all():
        values = values.astype(np.int64)
    return [str(value) for value in values.tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class QualityReport:
    """Results of examining a file."""

    name: str
    preprocessing: Preprocessing
    units: tuple[str, ...]
    segments: tuple[LabelledSegment, ...]
    problems: Sequence[str]  # problems of its rows
    missing: int  # NaN or infinite samples
    flat: tuple[str, ...]  # channels
    clipped: tuple[str, ...]  # channels
    std: float  # median over channels of the standard deviation
    digest: str  # hash of the samples, to detect duplicates
    duplicates: tuple[tuple[int, int], ...]  # separate trials that are equal
    flat_trials: int  # separate trials with a flat channel
    gaps: npt.NDArray[np.float64]  # (2, n): first and past-the-end samples of missing runs, at ``rate``
    from_events: bool = False  # whether its segments are trials around events, not rows of a table

    @property
    def rate(self) -> float:
        """Sampling rate after preprocessing, in Hz."""
        return self.preprocessing.sfreq or 1.0

    def starts(self, segment: LabelledSegment, n_times: int, overlap: float) -> npt.NDArray[np.int64]:
        """Return where the windows of a segment start; those with missing samples are left out."""
        starts = segment.first + window_starts(segment.length, n_times, overlap=overlap)
        next_gap = np.searchsorted(self.gaps[1], starts, side="right")
        complete = np.append(self.gaps[0], np.inf)[next_gap] >= starts + n_times
        return np.asarray(starts[complete], dtype=np.int64)


def plan_rows(
    table: Path,
    rows: Sequence[ManifestRow],
    problems: list[str],
    options: OwnOptions,
    *,
    source: str | None = None,
) -> DatasetPlan:
    """Plan the preparation of labelled files from a table or folder, after checks of each and of their split.

    ``problems`` found so far are raised together with all others, as those of ``source``, by default the
    table.
    """
    if unknown := sorted(options.allow - set(ALLOWED)):
        raise ValueError(f"--allow takes {', '.join(ALLOWED)}; got {listed(unknown)}")
    files: dict[Path, list[ManifestRow]] = {}
    for row in rows:
        files.setdefault(row.path.resolve(), []).append(row)
    reports: list[QualityReport] = []
    for i, group in enumerate(files.values()):
        tick("checking recordings", i, len(files))
        try:
            reports.append(_inspect(group, options))
            problems += reports[-1].problems
        except (ValueError, OSError) as error:
            problems.append(str(error))
    tick("checking recordings", len(files), len(files))
    by_kind: list[_Problem] = []
    split = _GIVEN
    if any(report.segments for report in reports):
        by_kind += _file_problems(reports, options)
        try:
            reports, split = _split(reports, options)
            by_kind += _split_leaks(reports, given=split == _GIVEN)
            by_kind += _small_classes(reports, options)
        except ValueError as error:
            problems.append(str(error))
    problems += [
        f"{sentence} (or pass --allow {kind}: {ALLOWED[kind]})" if kind else sentence
        for kind, sentence in by_kind
        if kind not in options.allow
    ]
    raise_if_any(source or str(table), problems)
    accepted = [sentence for kind, sentence in by_kind if kind in options.allow]
    return _plan(table, files, reports, options, accepted, split)


def _inspect(rows: Sequence[ManifestRow], options: OwnOptions) -> QualityReport:
    file = open_labelled_file(rows, options)
    flat, clipped, stds = [], [], []
    missing = np.zeros(file.signals.shape[1], dtype=bool)
    n_missing = 0
    digest = blake2b(digest_size=16)
    for channel, values in zip(file.names, file.signals, strict=True):
        digest.update(np.ascontiguousarray(values).data)
        finite = np.isfinite(values)
        known = values[finite]
        missing |= ~finite
        n_missing += len(values) - len(known)
        if not len(known) or np.ptp(known) == 0:
            flat.append(channel)
        elif is_clipped(known):
            clipped.append(channel)
        stds.append(float(known.std()) if len(known) else 0.0)
    # (n_chans, n, n_times); a continuous recording has no separate trials.
    trials = file.signals.reshape(len(file.names), -1, file.n_times) if file.n_times else np.empty((0, 0, 1))
    varying = [i for i, name in enumerate(file.names) if name not in flat] if file.n_times else []
    ratio = rate_ratio(file.sfreq, file.preprocessing.sfreq or file.sfreq)
    return QualityReport(
        name=rows[0].name,
        preprocessing=file.preprocessing,
        units=file.units,
        segments=tuple(file.segments),
        problems=file.problems,
        missing=n_missing,
        flat=tuple(flat),
        clipped=tuple(clipped),
        std=float(np.median(stds)),
        digest=digest.hexdigest(),
        duplicates=tuple(_equal_trials(trials)),
        flat_trials=int((np.ptp(trials[varying], axis=2) == 0).any(axis=0).sum()),
        # Multiply first, then one division: exact where a time falls on a sample.
        gaps=np.array(missing_runs(missing)).reshape(-1, 2).T * ratio.numerator / ratio.denominator,
        from_events=len({row.line for row in rows}) < len(rows),  # a line of a table is one row
    )


def _equal_trials(trials: npt.NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """Yield each duplicate among trials (n_chans, n, n_times), with the first equal one."""
    first: dict[bytes, int] = {}
    for i in range(trials.shape[1]):
        content = blake2b(np.ascontiguousarray(trials[:, i]).data, digest_size=16).digest()
        if (earlier := first.setdefault(content, i)) != i:
            yield earlier, i


def is_clipped(values: npt.NDArray[np.float64]) -> bool:
    """Return whether a channel (n,) is at its lowest or highest value for more than 1 % of the time.

    Only runs of three samples or more count, and only in channels with more than 32 different values: coarse
    converters reach their extremes often.
    """
    for extreme in (values.min(), values.max()):
        at = values == extreme
        runs = at[:-2] & at[1:-1] & at[2:]
        if np.count_nonzero(runs) > 0.01 * len(values):
            return len(np.unique(values)) > 32
    return False


def _file_problems(reports: Sequence[QualityReport], options: OwnOptions) -> Iterator[_Problem]:
    """Yield the problems of single files and differences between files."""
    for r in reports:
        if r.missing:
            yield "nan", f"{r.name} has {r.missing} NaN or infinite samples; repair or drop it"
        if r.flat:
            yield "flat", f"{r.name} is flat in {listed(r.flat)}; is an electrode off?"
        if r.flat_trials:
            yield "flat", f"{r.name} has {r.flat_trials} trials with a flat channel; is an electrode off?"
        if r.clipped:
            yield "clipped", f"{r.name} is clipped in {listed(r.clipped)}: it stays at its extreme"
    rates = {r.name: f"{r.rate:g} Hz" for r in reports}
    yield from _differing(rates, "bring them to one rate with --resample")
    channels = {r.name: f"channels {listed(r.preprocessing.ch_names or (), most=40)}" for r in reports}
    yield from _differing(channels, "choose what all have, in one order, with --channels")
    units = {r.name: f"unit {listed(sorted(set(r.units))) or 'unknown'}" for r in reports}
    yield from _differing(units, "bring them to one unit")
    usual = float(np.median([r.std for r in reports]))
    for r in reports:
        ratio = r.std / usual if usual > 0 else 0.0
        if ratio > 0 and not 1 / _MAX_RATIO < ratio < _MAX_RATIO:
            yield "scale", f"{r.name} has {ratio:.1e} times the standard deviation of most; another unit?"
    yield from _length_problems(reports, options)
    yield from _duplicates(reports)


def _differing(values: Mapping[str, Hashable], remedy: str) -> Iterator[_Problem]:
    """Yield the files whose value differs from the most common one."""
    (usual, count), *others = Counter(values.values()).most_common()
    if others:
        odd = [f"{name} has {value}" for name, value in values.items() if value != usual]
        yield "", f"{listed(odd, most=5)}; {count} others have {usual}; {remedy}"


def _length_problems(reports: Sequence[QualityReport], options: OwnOptions) -> Iterator[_Problem]:
    n_times = _window_length(reports, options)
    for report, segment in _segments(reports):
        seconds = segment.length / report.rate
        if options.window is None and segment.length != n_times:
            differing = f"a part of {seconds:g} s, most have {n_times / report.rate:g} s"
            yield "", f"{report.name} has {differing}; cut all to one length, or pass --window"
        elif segment.length < n_times:
            yield "", f"{report.name} has {seconds:g} s, a window takes {options.window:g} s"


def _segments(reports: Sequence[QualityReport]) -> list[tuple[QualityReport, LabelledSegment]]:
    return [(report, segment) for report in reports for segment in report.segments]


def _window_length(reports: Sequence[QualityReport], options: OwnOptions) -> int:
    """Return the samples per window: of the options, or of most segments."""
    if options.window is not None:
        return round(options.window * reports[0].rate)
    lengths = Counter(segment.length for _, segment in _segments(reports))
    return lengths.most_common(1)[0][0] if lengths else 1


def _duplicates(reports: Sequence[QualityReport]) -> Iterator[_Problem]:
    first: dict[str, str] = {}
    for report in reports:
        if (earlier := first.setdefault(report.digest, report.name)) != report.name:
            yield "duplicates", f"{report.name} is the same recording as {earlier}; list it once"
        if report.duplicates:
            trial, second = report.duplicates[0]
            twice = f"{len(report.duplicates)} trials twice, the first {trial} and {second}"
            yield "duplicates", f"{report.name} has {twice}; keep one of each"
        ordered = sorted(report.segments, key=lambda segment: segment.first)
        overlaps = [b.first for a, b in pairwise(ordered) if b.first < a.first + a.length]
        if overlaps:
            yield "duplicates", _overlap_words(report, overlaps[0] / report.rate, len(overlaps))


def _overlap_words(report: QualityReport, first: float, n: int) -> str:
    """Return a sentence on segments that overlap the one before: ``n``, the first from this second on."""
    if report.from_events:
        trials = "1 trial" if n == 1 else f"{n} trials"
        overlap = f"overlap{'s' if n == 1 else ''} the one before (first at {first:.3g} s)"
        return f"{trials} of {report.name} {overlap}; bring --from and --to closer together"
    more = f" and in {n - 1} more places" if n > 1 else ""
    return f"{report.name} is listed twice around {first:g} s{more}; its rows overlap"


def _split_leaks(reports: Sequence[QualityReport], *, given: bool) -> Iterator[_Problem]:
    """Yield what is on both sides of a split, by the table (``given``) or by :func:`_split`."""
    shared = "is the only recording, and its trials would be in train and in test; add another"
    if given:
        shared = "has parts in train and in test; keep a recording on one side"
    for report in reports:
        # Separate trials of one file may be of several recordings; then subjects and sessions count.
        if len({segment.split for segment in report.segments}) > 1 and not report.name.endswith(".npz"):
            yield "shared-recordings", f"{report.name} {shared}"
    if not given:
        return
    subjects, sessions = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    both = "is in train and in test; keep a"
    for _, segment in _segments(reports):
        subject, session = segment.subject, segment.session
        if subject:
            subjects[subject].add(segment.split)
        if session:
            sessions[f"{session} of {subject}" if subject else session].add(segment.split)
    if names := [name for name, splits in sessions.items() if len(splits) > 1]:
        yield "shared-recordings", f"session {listed(names)} {both} session on one side"
    if names := [name for name, splits in subjects.items() if len(splits) > 1]:
        yield "shared-subjects", f"subject {listed(names)} {both} subject on one side"


def _small_classes(reports: Sequence[QualityReport], options: OwnOptions) -> Iterator[_Problem]:
    n_times = _window_length(reports, options)
    windows: Counter[tuple[str, str]] = Counter()
    for report, segment in _segments(reports):
        windows[segment.label, segment.split] += len(report.starts(segment, n_times, options.overlap))
    for label in sorted({label for label, _ in windows}):
        if (n := windows[label, "train"]) < options.at_least:
            yield "few", f"class {label!r} has {n} training samples, {options.at_least} needed"
        if not windows[label, "test"]:
            yield "few", f"class {label!r} has no test samples"


def _split(reports: Sequence[QualityReport], options: OwnOptions) -> tuple[list[QualityReport], str]:
    """Assign segments to train and test where the table does not: by subject, session, file or trial."""
    segments = _segments(reports)
    if all(segment.split for _, segment in segments):
        return list(reports), _GIVEN
    groupings = {
        "subject": [segment.subject for _, segment in segments],
        "session": [segment.session for _, segment in segments],
        "file": [report.name for report, _ in segments],
        "trial": [f"{report.name} {i}" for report in reports for i in _separate_trials(report)],
    }
    by = next((name for name, groups in groupings.items() if len(set(groups)) > 1), "trial")
    labels = [segment.label for _, segment in segments]
    splits = iter(grouped_split(labels, groupings[by], seed=options.seed))
    assigned = []
    for report in reports:
        parts = tuple(replace(segment, split=str(next(splits))) for segment in report.segments)
        assigned.append(replace(report, segments=parts))
    return assigned, f"80-20 by {by}, {'first fold' if options.seed is None else f'seed {options.seed}'}"


def _separate_trials(report: QualityReport) -> list[int]:
    """Number the segments of a file by trial; segments that share samples are one trial."""
    numbers, trial, end = [0] * len(report.segments), -1, 0
    for i, segment in sorted(enumerate(report.segments), key=lambda numbered: numbered[1].first):
        trial += segment.first >= end
        end = max(end, segment.first + segment.length)
        numbers[i] = trial
    return numbers


def _plan(
    table: Path,
    files: dict[Path, list[ManifestRow]],
    reports: Sequence[QualityReport],
    options: OwnOptions,
    accepted: Sequence[str],
    split: str,
) -> DatasetPlan:
    n_times = _window_length(reports, options)
    # Trials cut beforehand cannot be reproduced from a recording; one such file is enough.
    preprocessing = replace(
        reports[0].preprocessing,
        n_times=n_times,
        step=max(1, round(n_times * (1 - options.overlap))),
        by_trial=any(report.preprocessing.by_trial for report in reports),
    )
    labels = {segment.label for _, segment in _segments(reports)}
    steps = [*preprocessing.steps, *([f"resampled to {options.resample:g} Hz"] if options.resample else [])]
    if options.window:
        steps.append(f"windows of {options.window:g} s, {100 * options.overlap:g} % overlap")
    sources = [
        RecordingSource(report.name, companions(path), partial(_read, group, options, report, n_times))
        for (path, group), report in zip(files.items(), reports, strict=True)
    ]
    return DatasetPlan(
        root=table.resolve() if table.is_dir() else table.resolve().parent,
        sources=sources,
        preprocessing=preprocessing,
        # Numbers in numerical order, before other names.
        class_names=tuple(sorted(labels, key=lambda x: (not x.isdigit(), int(x) if x.isdigit() else 0, x))),
        meta={
            "name": table.stem,
            "form": "own",
            "unit": listed(sorted(set(reports[0].units))) or "as given",
            "steps": steps or ["as recorded"],
            "split": split,
            "options": asdict(options) | {"allow": sorted(options.allow)},
            "accepted": list(accepted),
            "table_sha256": sha256(table) if table.is_file() else None,
        },
    )


def _read(
    rows: Sequence[ManifestRow], options: OwnOptions, report: QualityReport, n_times: int
) -> PreparedRecording:
    file = open_labelled_file(rows, options)
    n_samples = file.signals.shape[1]
    step = file.n_times or n_samples
    trials = (file.signals[:, start : start + step] for start in range(0, n_samples, step))
    samples = process_trials(file.preprocessing, trials, file.sfreq).samples
    windows = []
    for segment in report.segments:
        facts = (segment.label, segment.subject or "0", segment.session or "0", segment.split)
        starts = report.starts(segment, n_times, options.overlap)
        windows += [LabelledWindow(int(start), *facts) for start in starts]
    return PreparedRecording(samples, windows, {"missing samples": report.missing})
