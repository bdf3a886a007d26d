"""NHIE and GRABMyo, two public sets of continuous recordings.

NHIE: hours of newborns' EEG after lack of oxygen, each graded 1 to 4 by experts (Zenodo 6587973). GRABMyo:
forearm and wrist EMG of 43 people on three days, sixteen gestures and rest (PhysioNet 1.1.0).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from anchorinv.datasets.prepare import (
    DatasetPlan,
    LabelledWindow,
    PreparedRecording,
    RecordingSource,
    grouped_split,
    sha256,
)
from anchorinv.errors import listed, raise_if_any, ranges
from anchorinv.signal.arrays import read_table
from anchorinv.signal.pipeline import Processed, process, window_starts
from anchorinv.signal.preprocessing import BIPOLAR, Filter, Preprocessing
from anchorinv.signal.readers import Recording, open_recording, select_inputs

# As in the authors' runs. The text has F3-C3, T3-C3, O1-C3, C3-Cz, Cz-C4, F4-C4, T4-C4, O2-C4: the same eight
# pairs in another order, and C4-O2, C3-O1, C4-Cz, Cz-C3 and C3-T3 with the opposite sign.
NHIE_PAIRS = ("F4-C4", "C4-O2", "F3-C3", "C3-O1", "T4-C4", "C4-Cz", "Cz-C3", "C3-T3")
_NHIE_BAND = Filter(0.5, 30.0, order=5, from_rest=True)
_NHIE_SFREQ, _NHIE_TIMES = 64.0, 60 * 64
_NHIE = Preprocessing(
    NHIE_PAIRS, "µV", _NHIE_BAND, reference=BIPOLAR, gaps="zero", sfreq=_NHIE_SFREQ, resampling="fourier",
    n_times=_NHIE_TIMES, step=_NHIE_TIMES // 2,
)  # fmt: skip
_NHIE_TABLES = ("metadata.csv", "eeg_grades.csv")

GRABMYO_CHANNELS = tuple([f"F{i}" for i in range(1, 17)] + [f"W{i}" for i in range(1, 13)])
#: The seventeenth is rest, which is not used.
_GESTURES = range(1, 17)
_SESSIONS, _PARTICIPANTS, _TRIALS = range(1, 4), range(1, 44), range(1, 8)
_RAW_SFREQ, _GRABMYO_SFREQ, _GRABMYO_TIMES = 2048.0, 256.0, 5 * 256
_GRABMYO = Preprocessing(
    GRABMYO_CHANNELS, "µV", gaps="zero", sfreq=_GRABMYO_SFREQ, resampling="fourier", n_times=_GRABMYO_TIMES
)
_RECORD = re.compile(r"session(\d+)_participant(\d+)_gesture(\d+)_trial(\d+)")

#: Session, participant, gesture, trial.
_Key = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _GradedRecording:
    """A row of the table of grades; ``sfreq`` is None where it is missing."""

    name: str
    subject: str
    grade: str
    sfreq: float | None


def plan_nhie(
    raw: Path, *, seed: int | None = None, allow_missing: bool = False, live: bool = False
) -> DatasetPlan:
    """Plan the preparation of a folder of EDF or ``.csv.xz`` files with their table of grades.

    Parameters
    ----------
    seed : int or None, default=None
        Of the split into train and test; None takes the published one.
    allow_missing : bool, default=False
        Prepare an incomplete set.
    live : bool, default=False
        Resample by a polyphase filter, as a live source can be, not by the spectrum as the authors did.
    """
    table = _find_grades(raw)
    listing = _read_grades(table)
    files = _find_recordings(raw)
    known = {recording.name for recording in listing}
    missing = [f"{r.name} is in {table.name} but not in the folder" for r in listing if r.name not in files]
    missing += [f"{files[name].name} has no grade in {table.name}" for name in sorted(set(files) - known)]
    if not allow_missing:
        raise_if_any(str(raw), missing, "download them, or pass --allow-missing to do without")
    # The whole table is split, so that a partial download has the same test babies.
    # Babies are ordered by the numbers in their names, as published: the split depends on it.
    numbers = {subject: i for i, subject in enumerate(sorted({r.subject for r in listing}, key=_by_number))}
    split = grouped_split([r.grade for r in listing], [numbers[r.subject] for r in listing], seed=seed)
    present = [
        (r, str(side), files[r.name]) for r, side in zip(listing, split, strict=True) if r.name in files
    ]
    if not present:
        raise ValueError(
            f"{raw} holds no recording of {table.name}, such as ID01_epoch1.edf or ID01_epoch1.csv.xz"
        )
    how = replace(_NHIE, resampling="polyphase") if live else _NHIE
    return DatasetPlan(
        root=raw,
        sources=[
            RecordingSource(recording.name, (path,), partial(_read_graded, recording, how, side, path))
            for recording, side, path in present
        ],
        preprocessing=how,
        class_names=tuple(f"grade {grade}" for grade in range(1, 5)),
        meta={
            "name": "nhie",
            "form": listed(sorted({"csv" if ".csv" in path.name else "edf" for _, _, path in present})),
            "unit": "µV",
            "steps": [*how.steps, _resampling(how), "windows of 60 s, 50 % overlap"],
            "split": "published fold" if seed is None else f"seed {seed}",
            "table_sha256": sha256(table),
            "missing": missing,
        },
    )


def _find_grades(raw: Path) -> Path:
    if not raw.is_dir():
        raise ValueError(f"{raw} is not a folder; pass the one with the recordings and metadata.csv to --raw")
    for name in _NHIE_TABLES:
        if paths := sorted(raw.rglob(name)):
            return paths[0]
    raise ValueError(
        f"{raw} holds no table of grades; metadata.csv or eeg_grades.csv comes with the recordings"
    )


def _read_grades(table: Path) -> list[_GradedRecording]:
    """Read the table of grades, sorted by name; all its problems are in one message."""
    wanted = ("file_ID", "baby_ID", "grade", "sampling_freq")
    read = read_table(table, [name.casefold() for name in wanted], delimiters=",;")
    if absent := [name for name in wanted[:3] if name.casefold() not in read.columns]:
        raise ValueError(f"{table} has no column {listed(absent)}; it has {listed(read.names)}")
    problems, recordings = [], dict[str, _GradedRecording]()
    for row in zip(*read.columns.values(), strict=True):
        cells = {name: cell.strip() for name, cell in zip(read.columns, row, strict=True)}
        name, grade = re.sub(r"\.(edf|csv|csv\.xz)$", "", cells["file_id"]), cells["grade"]
        if grade not in ("1", "2", "3", "4"):
            problems.append(f"{name} has grade {grade!r}; a grade is 1, 2, 3 or 4")
        elif not name or name in recordings or not cells["baby_id"]:
            problems.append(f"{name!r} is listed twice, or has no name or no baby_ID")
        else:
            rate = re.match(r"\d+(\.\d+)?", cells.get("sampling_freq", ""))
            sfreq = float(rate[0]) if rate else None
            recordings[name] = _GradedRecording(name, cells["baby_id"], grade, sfreq)
    raise_if_any(str(table), problems)
    return [recordings[name] for name in sorted(recordings, key=_by_number)]


def _by_number(name: str) -> tuple[str, str]:
    """Return a sort key by which ID2 comes before ID10: numbers padded with zeros."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(20), name), name


def _find_recordings(raw: Path) -> dict[str, Path]:
    """Return the recordings by name; EDF where both formats exist."""
    files: dict[str, Path] = {}
    for ending in (".edf", ".csv.xz", ".csv"):
        for path in sorted(raw.rglob(f"*{ending}")):
            if path.name not in _NHIE_TABLES and "_epoch" in path.name:
                files.setdefault(path.name[: -len(ending)], path)
    return files


def _read_graded(graded: _GradedRecording, how: Preprocessing, split: str, path: Path) -> PreparedRecording:
    recording = open_recording(path)
    rate = recording.sfreq or graded.sfreq
    if rate is None or (graded.sfreq is not None and rate != graded.sfreq):
        raise ValueError(
            f"{path} has a rate of {recording.sfreq} Hz, the table says {graded.sfreq}; which is right?"
        )
    processed = _processed(recording, how, rate)
    n_samples = len(processed.samples)
    starts = window_starts(n_samples, _NHIE_TIMES, overlap=0.5)
    if not len(starts):
        raise ValueError(
            f"{path} is {n_samples / _NHIE_SFREQ:.0f} s long, and a window takes 60 s; is it cut short?"
        )
    facts = (f"grade {graded.grade}", graded.subject, re.sub(r".*_epoch", "", graded.name), split)
    windows = [LabelledWindow(int(start), *facts) for start in starts]
    return PreparedRecording(processed.samples, windows, {"missing samples": processed.n_missing})


def _processed(recording: Recording, how: Preprocessing, sfreq: float) -> Processed:
    inputs = select_inputs(recording, how)
    return process(how, recording.load(inputs.channels) * inputs.factors, sfreq)


def _resampling(how: Preprocessing) -> str:
    return f"resampled to {how.sfreq:g} Hz{' by the spectrum' if how.resampling == 'fourier' else ''}"


def plan_grabmyo(raw: Path, *, allow_missing: bool = False, live: bool = False) -> DatasetPlan:
    """Plan the preparation of a folder of WFDB records; options are those of :func:`plan_nhie`."""
    if not raw.is_dir():
        raise ValueError(f"{raw} is not a folder; pass the one with Session1, Session2, Session3 to --raw")
    records = _find_records(raw)
    if not records:
        raise ValueError(
            f"{raw} holds no records such as session1_participant1_gesture1_trial1.hea; "
            "download them with anchorinv download grabmyo --to DIR"
        )
    missing = list(_missing_records(records))
    if not allow_missing:
        raise_if_any(str(raw), missing, "download them, or pass --allow-missing to prepare what is there")
    complete = {key: paths for key, paths in sorted(records.items()) if len(paths) == 2}
    if not complete:
        raise ValueError(
            f"{raw} holds headers without samples or samples without headers only; download it again"
        )
    how = replace(_GRABMYO, resampling="polyphase") if live else _GRABMYO
    return DatasetPlan(
        root=raw,
        sources=[
            RecordingSource(paths[1].stem, paths, partial(_read_record, key, how, paths[1]))
            for key, paths in complete.items()
        ],
        preprocessing=how,
        class_names=tuple(f"gesture {i}" for i in _GESTURES),
        meta={
            "name": "grabmyo",
            "form": "wfdb",
            "unit": "µV",
            "steps": ["forearm and wrist channels by name", _resampling(how)],
            "missing": missing,
        },
    )


def _find_records(raw: Path) -> dict[_Key, tuple[Path, ...]]:
    """Return the files (.dat, .hea) of each record; the gesture "rest" is left out."""
    records: dict[_Key, dict[str, Path]] = {}
    for path in sorted(raw.rglob("session*_participant*_gesture*_trial*")):
        if (named := _RECORD.fullmatch(path.stem)) and path.suffix in (".dat", ".hea"):
            session, participant, gesture, trial = map(int, named.groups())
            if gesture <= _GESTURES[-1]:
                record = records.setdefault((session, participant, gesture, trial), {})
                record.setdefault(path.suffix, path)  # the first of several copies
    return {key: tuple(record[suffix] for suffix in sorted(record)) for key, record in records.items()}


def _missing_records(records: dict[_Key, tuple[Path, ...]]) -> Iterator[str]:
    """Yield a message on missing records for each participant and session."""
    for session in _SESSIONS:
        absent = []
        for participant in _PARTICIPANTS:
            keys = [(session, participant, gesture, trial) for gesture in _GESTURES for trial in _TRIALS]
            lost = [key for key in keys if len(records.get(key, ())) != 2]
            if not any(key in records for key in keys):
                absent.append(participant)
            elif lost:
                named = ", ".join(f"{gesture}.{trial}" for _, _, gesture, trial in lost)
                yield (
                    f"session {session}, participant {participant}: {len(lost)} of {len(keys)} records "
                    f"(gesture.trial {named})"
                )
        if absent:
            yield f"session {session}: participant{'s' if len(absent) > 1 else ''} {ranges(absent)}"


def _read_record(key: _Key, how: Preprocessing, path: Path) -> PreparedRecording:
    session, participant, gesture, _ = key
    recording = open_recording(path)
    if recording.sfreq != _RAW_SFREQ:
        raise ValueError(
            f"{path} has a rate of {recording.sfreq} Hz, expected {_RAW_SFREQ:g}; download it again"
        )
    processed = _processed(recording, how, _RAW_SFREQ)
    n_samples = len(processed.samples)
    if n_samples < _GRABMYO_TIMES:
        raise ValueError(
            f"{path} is {n_samples / _GRABMYO_SFREQ:.1f} s long, expected 5 s; download it again"
        )
    split = "test" if session == _SESSIONS[-1] else "train"
    window = LabelledWindow(0, f"gesture {gesture}", str(participant), str(session), split)
    return PreparedRecording(processed.samples, [window], {"missing samples": processed.n_missing})
