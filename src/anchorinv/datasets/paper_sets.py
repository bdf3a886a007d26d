"""The public sets of the paper: BCI Competition IV 2a, NHIE and GRABMyo.

BCI IV 2a: nine people imagine moving left hand, right hand, feet or tongue. Three forms of it are read into
the same trials: GDF files with label files, the ``.mat`` files of BNCI Horizon, and converted ``.mat`` files.
NHIE: hours of newborns' EEG after lack of oxygen, each graded 1 to 4 by experts (Zenodo 6587973). GRABMyo:
forearm and wrist EMG of 43 people on three days, sixteen gestures and rest (PhysioNet 1.1.0).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.datasets.prepare import (
    DatasetPlan,
    LabelledWindow,
    PreparedRecording,
    RecordingSource,
    grouped_split,
    sha256,
)
from anchorinv.errors import listed, raise_if_any, ranges
from anchorinv.signal.arrays import check_mat, load_mat, read_table
from anchorinv.signal.headers import gdf_limits, reading
from anchorinv.signal.pipeline import Processed, process, process_trials, window_starts
from anchorinv.signal.preprocessing import BIPOLAR, Filter, Preprocessing
from anchorinv.signal.readers import Recording, open_mne, open_recording, select_inputs

CLASSES = ("left hand", "right hand", "feet", "tongue")
SESSIONS = tuple(f"A{subject:02d}{session}" for subject in range(1, 10) for session in "TE")
N_TRIALS = 288
SFREQ = 250.0
CH_NAMES = (
    "Fz", "FC3", "FC1", "FCz", "FC2", "FC4", "C5", "C3", "C1", "Cz", "C2", "C4", "C6", "CP3", "CP1", "CPz",
    "CP2", "CP4", "P1", "Pz", "P2", "POz",
)  # fmt: skip
N_CHANS = len(CH_NAMES)
#: 2 s to 6 s of a trial: four seconds from the cue.
WINDOW = (500, 1500)
N_TIMES = WINDOW[1] - WINDOW[0]
#: The amplifier's range in µV and its resolution: values at the limits are clipped.
LIMIT, RESOLUTION = 100.0, 200 / 65535
_CUES = {"769": 0, "770": 1, "771": 2, "772": 3}
_STEPS = {
    "gdf": "2 to 6 s of each trial; samples at the recorder's limits set to 0",
    "bnci": "2 to 6 s of each trial; missing samples set to 0",
    "converted": "as converted by others: filter and order unknown",
}

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


def plan_bci2a(
    raw: Path, *, form: str | None = None, band: Filter | None = None, allow_missing: bool = False
) -> DatasetPlan:
    """Plan the preparation of a folder; ``form`` is "gdf", "bnci" or "converted", where it holds several.

    ``band`` filters each window, in addition to the filter of the acquisition. ``allow_missing`` prepares an
    incomplete set.
    """
    forms, labels = _find(raw)
    form = _choose(raw, forms, form)
    files = forms[form]
    if form == "converted" and band is not None:
        raise ValueError("converted files are already filtered, in an unknown way; prepare GDF or BNCI files")
    hidden = [name for name in files if form == "gdf" and name.endswith("E") and name not in labels]
    missing = [f"{name} is missing" for name in SESSIONS if name not in files]
    missing += [f"{name} has no true labels ({name}.mat with classlabel)" for name in hidden]
    if not allow_missing:
        raise_if_any(f"{raw} ({form} files)", missing, "download them, or pass --allow-missing to do without")
    used = [name for name in SESSIONS if name in files and name not in hidden]
    raise_if_any(str(raw), [] if used else ["no session of BCI IV 2a can be used", *missing])
    preprocessing = Preprocessing(
        CH_NAMES,
        unit=None if form == "converted" else "µV",
        filter=band,
        unrepeatable=_STEPS[form] if form == "converted" else None,
        gaps="zero",
        sfreq=SFREQ,
        by_trial=band is not None,
        n_times=N_TIMES,
    )
    sources = []
    for name in used:
        paths = (files[name], labels[name]) if form == "gdf" and name in labels else (files[name],)
        read = partial(_read_session, name, form, preprocessing, *paths)
        sources.append(RecordingSource(name, paths, read))
    meta = {
        "name": "bci2a",
        "form": form,
        "unit": preprocessing.unit or "unknown",
        "steps": [_STEPS[form], *preprocessing.steps] if form != "converted" else [_STEPS[form]],
        "missing": missing,
    }
    return DatasetPlan(raw, sources, preprocessing, CLASSES, meta)


def _find(raw: Path) -> tuple[dict[str, dict[str, Path]], dict[str, Path]]:
    """Return the files by form and session, and the label files by session."""
    if not raw.is_dir():
        raise ValueError(f"{raw} is not a folder; pass the one with A01T.gdf or A01T.mat to --raw")
    forms: dict[str, dict[str, Path]] = {}
    problems = []
    for path in sorted(raw.rglob("*")):
        if path.suffix.lower() in (".gdf", ".mat") and re.fullmatch(r"A0[1-9][TE]", path.stem.upper()):
            try:
                forms.setdefault(form_of(path), {}).setdefault(path.stem.upper(), path)
            except ValueError as error:
                problems.append(str(error))
    raise_if_any(str(raw), problems)
    forms.pop("", None)
    return forms, forms.pop("labels", {})


def _choose(raw: Path, forms: dict[str, dict[str, Path]], form: str | None) -> str:
    if form not in (None, *FORMS):
        raise ValueError(f"a form is one of {', '.join(FORMS)}, got {form!r}")
    if form is None and len(forms) > 1:
        raise ValueError(f"{raw} holds {listed(sorted(forms))} files; choose one with --form")
    files = f"{form} files" if form else "A01T.gdf ... A09E.gdf with label files, or A01T.mat ... A09E.mat"
    form = form or next(iter(forms), "")
    if form not in forms:
        raise ValueError(f"{raw} holds no {files}; download them with anchorinv download bci2a --to DIR")
    return form


@dataclass(frozen=True, slots=True, eq=False)
class SessionTrials:
    """The trials of a file, in its order."""

    windows: npt.NDArray[np.float64]  # (n, n_chans, n_times) in µV, missing samples set to 0
    labels: npt.NDArray[np.int64]  # class indices; -1 where the file does not say
    rejected: npt.NDArray[np.bool_]  # marked by an expert
    missing: int  # samples


def _read_session(
    name: str, form: str, preprocessing: Preprocessing, path: Path, label_file: Path | None = None
) -> PreparedRecording:
    trials = FORMS[form](path)
    labels = trials.labels
    n, n_chans, n_times = trials.windows.shape
    if (n_chans, n_times) != (N_CHANS, N_TIMES):
        raise ValueError(f"{path} has {n_chans} channels of {n_times} samples; expected {N_CHANS} of 1000")
    if label_file is not None:
        true = read_labels(label_file)
        if len(true) != n:
            raise ValueError(f"{path} has {n} trials but {label_file} {len(true)} labels; is one cut short?")
        if n_differing := np.count_nonzero((labels >= 0) & (labels != true)):
            differ = f"{path} and {label_file} disagree in {n_differing} trials"
            raise ValueError(f"{differ}; are they of the same session?")
        labels = true
    if (labels < 0).any():
        raise ValueError(f"{path} hides the class of {np.count_nonzero(labels < 0)} trials; add true labels")
    subject, session = name[:3], name[-1]
    split = "train" if session == "T" else "test"
    labelled = [
        LabelledWindow(i * n_times, CLASSES[labels[i]], subject, session, split, bool(trials.rejected[i]))
        for i in range(n)
    ]
    return PreparedRecording(
        process_trials(preprocessing, trials.windows).samples,
        labelled,
        {"missing samples": trials.missing, "rejected trials": int(trials.rejected.sum())},
        [] if n == N_TRIALS else [f"{name} has {n} trials, {N_TRIALS} expected"],
    )


def form_of(path: Path) -> str:
    """Return the kind of a file by its content: "gdf", "bnci", "converted", "labels" or ""."""
    if path.suffix.lower() == ".gdf":
        return "gdf"
    from scipy.io import whosmat

    with reading(path):
        check_mat(path)
        kinds = {name: kind for name, _, kind in whosmat(path)}
    if "classlabel" in kinds:
        return "labels"
    if "data" in kinds and "label" in kinds:
        return "converted"
    # scipy names an array of structs "struct"; older writers wrap it into a cell.
    return "bnci" if kinds.get("data") in ("struct", "cell") else ""


def read_labels(path: Path) -> npt.NDArray[np.int64]:
    """Return the true labels (n,) of a session, from 0."""
    with reading(path):
        return _class_indices(path, load_mat(path, "classlabel")["classlabel"])


def read_gdf(path: Path) -> SessionTrials:
    """Read a GDF session; where it hides the classes (783), labels are -1."""
    with reading(path):
        raw = open_mne(path)
        if raw.info["sfreq"] != SFREQ or len(raw.ch_names) < N_CHANS:
            got = f"{path} has {len(raw.ch_names)} channels at {raw.info['sfreq']:g} Hz"
            raise ValueError(f"{got}; expected {N_CHANS} and three EOG channels at {SFREQ:g} Hz")
        # By the names of events: mne's numbers for them differ from file to file.
        events = np.array([str(name) for name in raw.annotations.description])
        onsets = np.rint(raw.annotations.onset * SFREQ).astype(np.int64) - raw.first_samp
        starts = np.sort(onsets[events == "768"])
        cues = sorted(
            (onsets[i], _CUES.get(name, -1)) for i, name in enumerate(events) if name in {*_CUES, "783"}
        )
        within = [0 <= cue - start < WINDOW[1] for (cue, _), start in zip(cues, starts, strict=False)]
        if len(cues) != len(starts) or not within or not all(within):
            counts = f"{len(starts)} trials (768) and {len(cues)} cues (769-772, 783)"
            raise ValueError(f"{path} has {counts}, one in each is wanted; is it whole?")
        if starts.min() < 0 or starts.max() + WINDOW[1] > raw.n_times or _overlapping(starts):
            raise ValueError(f"{path} is cut short: its last trial ends after the file")
        low, high = gdf_limits(path)[:, :N_CHANS]
        windows = np.empty((len(starts), N_CHANS, N_TIMES))
        missing = 0
        for window, start in zip(windows, starts + WINDOW[0], strict=True):
            window[:] = raw.get_data(picks=range(N_CHANS), start=int(start), stop=int(start) + N_TIMES) * 1e6
            missing += _zero_missing(window, low, high)
    labels = np.array([label for _, label in cues], dtype=np.int64)
    return SessionTrials(windows, labels, np.isin(starts, onsets[events == "1023"]), missing)


def read_bnci(path: Path) -> SessionTrials:
    """Read a session as BNCI Horizon publishes it: a struct per run, the first ones without trials."""
    windows, labels, rejected = [], [], []
    with reading(path):
        for run in np.ravel(load_mat(path, "data")["data"]):
            fields = _struct(run)
            starts = np.ravel(fields["trial"]).astype(np.float64) - 1  # counted from 1
            if not len(starts):
                continue  # eye movements
            if float(np.ravel(fields["fs"])[0]) != SFREQ:
                raise ValueError(f"{path} has {np.ravel(fields['fs'])[0]} Hz; expected {SFREQ:g} Hz")
            signals = np.asarray(fields["X"], dtype=np.float64)
            inside = ((starts >= 0) & (starts + WINDOW[1] <= len(signals))).all()
            if signals.ndim != 2 or signals.shape[1] < N_CHANS or not inside or _overlapping(starts):
                raise ValueError(f"{path} is cut short: a run of {signals.shape}, a trial at {starts.max()}")
            starts = starts.astype(np.int64)
            windows += [signals[start + WINDOW[0] : start + WINDOW[1], :N_CHANS].T for start in starts]
            numbers = _class_indices(path, fields["y"])
            artefacts = np.ravel(fields["artifacts"]) if "artifacts" in fields else np.zeros(len(starts))
            if not len(numbers) == len(artefacts) == len(starts):
                raise ValueError(f"{path}: a run has {len(starts)} trials but {len(numbers)} labels")
            labels.append(numbers)
            rejected.append(artefacts.astype(bool))
        if not windows:
            raise ValueError(f"{path} holds no trials")
    stacked = np.stack(windows)
    limit = np.full(N_CHANS, LIMIT)
    missing = sum(_zero_missing(window, -limit, limit) for window in stacked)
    return SessionTrials(stacked, np.concatenate(labels), np.concatenate(rejected), missing)


def read_converted(path: Path) -> SessionTrials:
    """Read ``data`` (times, channels, trials) and ``label`` as they are."""
    with reading(path):
        variables = load_mat(path, "data", "label")
        data = np.asarray(variables["data"], dtype=np.float64)
        labels = _class_indices(path, variables["label"])
        if data.ndim != 3 or data.shape[2] != len(labels):
            raise ValueError(f"{path}: data is {data.shape} (times, channels, trials), label {len(labels)}")
    missing = ~np.isfinite(data)
    windows = np.ascontiguousarray(np.where(missing, 0.0, data).transpose(2, 1, 0))
    return SessionTrials(windows, labels, np.zeros(len(labels), dtype=bool), int(missing.sum()))


FORMS = {"gdf": read_gdf, "bnci": read_bnci, "converted": read_converted}


def _overlapping(starts: npt.NDArray[Any]) -> bool:
    """Return whether windows of trials overlap, in which case each would copy the same samples."""
    return bool((np.diff(np.sort(starts)) < N_TIMES).any())


def _zero_missing(window: npt.NDArray[np.float64], low: npt.NDArray[Any], high: npt.NDArray[Any]) -> int:
    """Set to 0 what is NaN or at a limit (n_chans,), in place, and count it."""
    tolerance = RESOLUTION / 2
    missing = ~np.isfinite(window)
    for limit in (low, high):
        missing |= np.abs(window - limit[:, None]) < tolerance
    window[missing] = 0.0
    return int(missing.sum())


def _class_indices(path: Path, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    numbers = np.ravel(np.asarray(values)).astype(np.int64)
    if len(numbers) and not 1 <= numbers.min() <= numbers.max() <= 4:
        raise ValueError(f"{path}: labels lie between 1 and 4, got {numbers.min()} to {numbers.max()}")
    return numbers - 1


def _struct(run: Any) -> dict[str, Any]:
    """Return the fields of a run, unwrapped from the cells that scipy leaves around them."""
    while isinstance(run, np.ndarray) and run.dtype.names is None and run.size == 1:
        run = run.flat[0]
    while isinstance(run, np.ndarray) and run.shape:
        run = run.flat[0]
    return {name: run[name] for name in run.dtype.names}


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

    ``seed`` is that of the split, None for the published one; ``allow_missing`` prepares an incomplete set;
    ``live`` resamples by a polyphase filter, as a live source can be, not by the spectrum as the authors did.
    """
    table = _find_grades(raw)
    listing = _read_grades(table)
    files = _find_recordings(raw)
    graded = {recording.name for recording in listing}
    missing = [f"{r.name} is in {table.name} but not in the folder" for r in listing if r.name not in files]
    missing += [f"{files[name].name} has no grade in {table.name}" for name in sorted(set(files) - graded)]
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
        raise ValueError(f"{raw} holds no recording of {table.name}, ID01_epoch1.edf or ID01_epoch1.csv.xz")
    preprocessing = replace(_NHIE, resampling="polyphase") if live else _NHIE
    sources = [
        RecordingSource(recording.name, (path,), partial(_read_graded, recording, preprocessing, side, path))
        for recording, side, path in present
    ]
    meta = {
        "name": "nhie",
        "form": listed(sorted({"csv" if ".csv" in path.name else "edf" for _, _, path in present})),
        "unit": "µV",
        "steps": [*preprocessing.steps, _resampling(preprocessing), "windows of 60 s, 50 % overlap"],
        "split": "published fold" if seed is None else f"seed {seed}",
        "table_sha256": sha256(table),
        "missing": missing,
    }
    return DatasetPlan(raw, sources, preprocessing, tuple(f"grade {grade}" for grade in range(1, 5)), meta)


def _find_grades(raw: Path) -> Path:
    if not raw.is_dir():
        raise ValueError(f"{raw} is not a folder; pass the one with the recordings and metadata.csv to --raw")
    for name in _NHIE_TABLES:
        if paths := sorted(raw.rglob(name)):
            return paths[0]
    raise ValueError(f"{raw} holds no table of grades, metadata.csv or eeg_grades.csv, as downloaded")


def _read_grades(table: Path) -> list[_GradedRecording]:
    """Read the table of grades, sorted by name; all its problems are in one message."""
    names = ("file_ID", "baby_ID", "grade", "sampling_freq")
    content = read_table(table, [name.casefold() for name in names], delimiters=",;")
    if absent := [name for name in names[:3] if name.casefold() not in content.columns]:
        raise ValueError(f"{table} has no column {listed(absent)}; it has {listed(content.names)}")
    problems, recordings = [], dict[str, _GradedRecording]()
    for row in zip(*content.columns.values(), strict=True):
        cells = {name: cell.strip() for name, cell in zip(content.columns, row, strict=True)}
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


def _read_graded(
    graded: _GradedRecording, preprocessing: Preprocessing, split: str, path: Path
) -> PreparedRecording:
    recording = open_recording(path)
    rate = recording.sfreq or graded.sfreq
    if rate is None or (graded.sfreq is not None and rate != graded.sfreq):
        raise ValueError(f"{path} has {recording.sfreq} Hz, the table says {graded.sfreq}; which is right?")
    processed = _process(recording, preprocessing, rate)
    n_samples = len(processed.samples)
    starts = window_starts(n_samples, _NHIE_TIMES, overlap=0.5)
    if not len(starts):
        raise ValueError(f"{path} is {n_samples / _NHIE_SFREQ:.0f} s long, a window takes 60 s; is it cut?")
    facts = (f"grade {graded.grade}", graded.subject, re.sub(r".*_epoch", "", graded.name), split)
    windows = [LabelledWindow(int(start), *facts) for start in starts]
    return PreparedRecording(processed.samples, windows, {"missing samples": processed.n_missing})


def _process(recording: Recording, preprocessing: Preprocessing, sfreq: float) -> Processed:
    inputs = select_inputs(recording, preprocessing)
    return process(preprocessing, recording.load(inputs.channels) * inputs.factors, sfreq)


def _resampling(preprocessing: Preprocessing) -> str:
    by = " by the spectrum" if preprocessing.resampling == "fourier" else ""
    return f"resampled to {preprocessing.sfreq:g} Hz{by}"


def plan_grabmyo(raw: Path, *, allow_missing: bool = False, live: bool = False) -> DatasetPlan:
    """Plan the preparation of a folder of WFDB records; options are those of :func:`plan_nhie`."""
    if not raw.is_dir():
        raise ValueError(f"{raw} is not a folder; pass the one with Session1, Session2, Session3 to --raw")
    records = _find_records(raw)
    if not records:
        remedy = "download them with anchorinv download grabmyo --to DIR"
        raise ValueError(f"{raw} holds no records (session1_participant1_gesture1_trial1.hea ...); {remedy}")
    missing = list(_missing_records(records))
    if not allow_missing:
        raise_if_any(str(raw), missing, "download them, or pass --allow-missing to prepare what is there")
    complete = {key: paths for key, paths in sorted(records.items()) if len(paths) == 2}
    if not complete:
        raise ValueError(f"{raw} holds only headers without samples, or the reverse; download it again")
    preprocessing = replace(_GRABMYO, resampling="polyphase") if live else _GRABMYO
    sources = [
        RecordingSource(paths[1].stem, paths, partial(_read_record, key, preprocessing, paths[1]))
        for key, paths in complete.items()
    ]
    steps = ["forearm and wrist channels by name", _resampling(preprocessing)]
    meta = {"name": "grabmyo", "form": "wfdb", "unit": "µV", "steps": steps, "missing": missing}
    return DatasetPlan(raw, sources, preprocessing, tuple(f"gesture {i}" for i in _GESTURES), meta)


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
                count = f"{len(lost)} of {len(keys)} records (gesture.trial {named})"
                yield f"session {session}, participant {participant}: {count}"
        if absent:
            yield f"session {session}: participant{'s' if len(absent) > 1 else ''} {ranges(absent)}"


def _read_record(key: _Key, preprocessing: Preprocessing, path: Path) -> PreparedRecording:
    session, participant, gesture, _ = key
    recording = open_recording(path)
    if recording.sfreq != _RAW_SFREQ:
        raise ValueError(f"{path} has {recording.sfreq} Hz, expected {_RAW_SFREQ:g}; download it again")
    processed = _process(recording, preprocessing, _RAW_SFREQ)
    n_samples = len(processed.samples)
    if n_samples < _GRABMYO_TIMES:
        raise ValueError(f"{path} is {n_samples / _GRABMYO_SFREQ:.1f} s, expected 5 s; download it again")
    split = "test" if session == _SESSIONS[-1] else "train"
    window = LabelledWindow(0, f"gesture {gesture}", str(participant), str(session), split)
    return PreparedRecording(processed.samples, [window], {"missing samples": processed.n_missing})
