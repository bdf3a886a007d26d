"""Own recordings, from a table, by their events, as one file of trials, or in a BIDS folder."""

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import islice
from os.path import isfile
from pathlib import Path
from typing import Any, NamedTuple

from anchorinv.datasets.dataset import SPLITS
from anchorinv.datasets.own_files import ManifestRow, OwnOptions, plan_rows
from anchorinv.datasets.prepare import DatasetPlan
from anchorinv.errors import import_extra, listed, raise_if_any
from anchorinv.progress import tick
from anchorinv.signal import events
from anchorinv.signal.arrays import read_table
from anchorinv.signal.headers import FILES, MAX_ROWS, check_rate, read_text, reading
from anchorinv.signal.readers import FORMATS, companions, is_windowed, open_recording

COLUMNS = ("path", "label", "subject", "session", "split", "start", "stop")
DATATYPES = ("eeg", "emg", "ieeg")


def read_manifest(path: Path, *, labelled: bool = True) -> tuple[list[ManifestRow], list[str]]:
    """Return the valid rows of a table of recordings, and a message for each invalid one.

    Each row must have a label; if not ``labelled``, none, as the events of its file will be its labels.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; a manifest is a table with columns {', '.join(COLUMNS)}")
    table = read_table(path, COLUMNS, delimiters=",;\t")
    needed = ("path", "label") if labelled else ("path",)
    if absent := [name for name in needed if name not in table.columns]:
        raise ValueError(f"{path} has no column {listed(absent)}; its first line names {listed(table.names)}")
    rows, problems = [], []
    for name in sorted(set(table.names) - set(COLUMNS)):
        if similar := get_close_matches(name[:40], set(COLUMNS) - set(table.names), n=1):
            problems.append(f"column {name!r} is unknown; did you mean {similar[0]!r}?")
    for line, *values in zip(table.lines, *table.columns.values(), strict=True):
        cells = {name: cell.strip() for name, cell in zip(table.columns, values, strict=True)}
        if any(cells.values()):
            row, faults = _parse_row(cells, line, path.parent, labelled=labelled)
            problems += [f"line {line}: {sentence}" for sentence in faults]
            rows += [row] if not faults else []
    if not rows and not problems:
        problems.append("the table has no rows; list a recording in each")
    without = [row.line for row in rows if not row.split]
    if without and len(without) < len(rows):
        problems.append(f"split is not given in lines {listed(without)}; give it in all or none")
    return rows, problems


def _parse_row(
    cells: dict[str, str], line: int, folder: Path, *, labelled: bool
) -> tuple[ManifestRow, list[str]]:
    faults = []
    name, label = cells["path"], cells.get("label", "")
    path = folder / name
    if not name:
        faults.append("path is empty; name a file")
    elif not {path.suffix.lower(), "".join(path.suffixes[-2:]).lower()} & FORMATS:
        faults.append(f"{name} has an unknown format; known formats: {FILES}")
    elif not isfile(path):  # noqa: PTH113 (Path.is_file fails on too long a name)
        faults.append(f"{name} does not exist (looked for {path})")
    if labelled and not label and path.suffix.lower() != ".npz":
        faults.append(f"{name} has no label; give one, or name its events with --events")
    if not labelled and label:
        faults.append(f"{name} has a label, and --events takes labels from events; leave one out")
    split = cells.get("split", "").casefold()
    if split and split not in SPLITS:
        faults.append(f"split must be train or test, got {cells['split']!r}")
    times: dict[str, float | None] = {"start": None, "stop": None}
    for key in times:
        if text := cells.get(key, ""):
            try:
                times[key] = float(text)
            except ValueError:
                faults.append(f"{key} must be a number of seconds, got {text!r}")
    start, stop = times["start"] or 0.0, times["stop"]
    latest = events.MAX_SECONDS
    if not 0 <= start < latest or (stop is not None and not start < stop < latest):
        faults.append(f"start must be at least 0 and before stop, got {start:g} to {stop} s")
    subject, session = cells.get("subject", ""), cells.get("session", "")
    return ManifestRow(line, name, path, label, subject, session, split, times["start"], stop), faults


@dataclass(frozen=True, slots=True)
class Labelling:
    """The class of each event by name, and the interval of a trial, in seconds from the event's onset.

    ``stop`` is None for trials that end where the event does.
    """

    wanted: dict[str, str]
    start: float = 0.0
    stop: float | None = None

    def __post_init__(self) -> None:
        events.check_interval(self.start, self.stop)

    @classmethod
    def parse(cls, texts: Sequence[str], start: float, stop: float | None) -> "Labelling":
        """Read "T1=left,T2=right", once or several times."""
        return cls(events.parse_events(",".join(texts)), start, stop)


def rows_of_events(
    rows: Sequence[ManifestRow],
    labelling: Labelling,
    *,
    sfreq: float | None = None,
    read: Callable[[ManifestRow], tuple[list[events.Event], float]] | None = None,
    source: str = "the recordings",
) -> tuple[list[ManifestRow], list[str]]:
    """Return a row for each wanted event of some files, and a message for each file that fails.

    An event must occur in at least one of the files. For files with ``start`` and ``stop``, trials in between
    are used; trials that reach beyond their recording are left out with a warning. ``sfreq`` is the rate of
    files that do not state it; ``read`` returns the events of a row's file and its length in seconds.
    """
    read = read or partial(_read_events, sfreq=sfreq)
    labelled: list[ManifestRow] = []
    present: list[events.Event] = []
    problems: list[str] = []
    n_outside = 0
    for i, row in enumerate(rows):
        tick("looking at events", i, len(rows))
        try:
            of_file, length = read(row)
            trials, outside = events.segments_of(of_file, **asdict(labelling), name=row.name, length=length)
        except (ValueError, OSError) as error:
            problems.append(str(error))
            continue
        present, n_outside = present + of_file, n_outside + outside
        labelled += [
            replace(row, label=trial.label, start=trial.start, stop=trial.stop)
            for trial in trials
            if (row.start or 0.0) <= trial.start and (row.stop is None or trial.stop <= row.stop)
        ]
    tick("looking at events", len(rows), len(rows))
    if not problems:
        events.check_wanted(present, labelling.wanted, name=rows[0].name if len(rows) == 1 else source)
    of = f"all {n_outside}" if not labelled else f"{n_outside} of {len(labelled) + n_outside}"
    beyond = f"{of} segments reach beyond their recording"
    if not labelled and not problems:
        none = "no segment of a wanted event is within its recording"
        problems.append(f"{beyond if n_outside else none}; choose --from and --to")
    if n_outside and labelled:
        warnings.warn(f"{beyond} and are left out", UserWarning, stacklevel=2)
    return labelled, problems


def _read_events(row: ManifestRow, *, sfreq: float | None) -> tuple[list[events.Event], float]:
    if is_windowed(row.path):
        raise ValueError(f"{row.path} contains windows, and --events is for recordings; leave it out")
    recording = open_recording(row.path)
    rate = recording.sfreq or sfreq
    if rate is None:
        raise ValueError(f"{row.path} has no sampling rate; pass it with --sfreq")
    return events.read_events(row.path), recording.n_times / rate


def plan_manifest(manifest: Path, options: OwnOptions, labelling: Labelling | None = None) -> DatasetPlan:
    """Plan the preparation of the recordings that a table lists; labels are its own, or those of events."""
    rows, problems = read_manifest(manifest, labelled=labelling is None)
    if labelling is not None and rows:
        rows, more = rows_of_events(rows, labelling, sfreq=options.sfreq)
        problems += more
    return plan_rows(manifest, rows, problems, options)


def plan_recordings(
    files: Sequence[Path], options: OwnOptions, labelling: Labelling, *, split: str = ""
) -> DatasetPlan:
    """Plan the preparation of recordings by their events, all in one ``split``; "" splits them."""
    recordings = [ManifestRow(i, path.name, path, split=split) for i, path in enumerate(files, start=1)]
    rows, problems = rows_of_events(recordings, labelling, sfreq=options.sfreq)
    source = str(files[0]) if len(files) == 1 else listed([path.name for path in files], most=3)
    return plan_rows(files[0], rows, problems, options, source=source)


def plan_npz(file: Path, options: OwnOptions) -> DatasetPlan:
    """Plan the preparation of one ``.npz`` file with ``X`` (n, channels, times) and ``y``."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist; --npz takes a file with X (n, channels, times) and y")
    if file.suffix.lower() != ".npz":
        raise ValueError(f"{file} is not an .npz file; list other formats in a table for --manifest")
    return plan_rows(file, [ManifestRow(1, file.name, file)], [], options)


@dataclass(frozen=True, slots=True)
class BidsRecording:
    """A recording of a BIDS folder with the entities of its name; "" for those it does not have."""

    path: Path
    subject: str
    session: str
    task: str
    run: str
    datatype: str


class Sidecars(NamedTuple):
    """Content of the sidecar files of a recording, which apply to all folders below them."""

    events: Path | None
    bad: tuple[str, ...]  # channels that *_channels.tsv marks as bad
    sfreq: float | None  # by *_eeg.json, *_emg.json ...


def find_recordings(
    root: Path,
    *,
    task: str | None = None,
    subjects: Sequence[str] | None = None,
    sessions: Sequence[str] | None = None,
    datatype: str | None = None,
) -> list[BidsRecording]:
    """Return the recordings of a BIDS folder, the one with ``sub-*``; links out of it are refused.

    All of them, or those of a task, of subjects and sessions, named with or without ``sub-``, or of a
    datatype ("eeg", "emg", "ieeg"). Derivatives are not searched.
    """
    if not any(root.glob("sub-*")):
        raise ValueError(f"{root} is not a BIDS folder; it needs a folder sub-... for each subject")
    if datatype is not None and datatype not in DATATYPES:
        raise ValueError(f"datatype (={datatype!r}) must be one of {', '.join(DATATYPES)}")
    files = list(islice(_files(root), MAX_ROWS + 1))
    if len(files) > MAX_ROWS:
        raise ValueError(f"{root} has more than a million recordings; use a part of them")
    recordings, problems = [], []
    for path, kind in files:
        name = str(path.relative_to(root))
        try:
            recording = _parse_name(path, kind)
        except ValueError as error:
            problems.append(f"{name} is not a valid BIDS name ({' '.join(str(error).split())[:200]})")
            continue
        if not all(_inside(file, root) for file in {path, *companions(path)}):
            problems.append(f"{name} is a link to a file elsewhere, which is not read; copy it here")
        recordings.append(recording)
    raise_if_any(str(root), problems)
    chosen = {"datatype": datatype and [datatype], "task": task and [task]}
    for key, values in (chosen | {"subject": subjects, "session": sessions}).items():
        recordings = _select(root, recordings, key, values) if values else recordings
    if not recordings:
        raise ValueError(f"{root} has no recordings of {', '.join(DATATYPES)}")
    return recordings


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    formats = import_extra("mne_bids", extra="recordings").config.ALLOWED_DATATYPE_EXTENSIONS
    for person in sorted(root.glob("sub-*")):
        for place in (person, *sorted(person.glob("ses-*"))):
            for kind in DATATYPES:
                folder = place / kind
                if folder.is_dir() and not _inside(folder, root):
                    raise ValueError(f"{folder} is a link to elsewhere, which is not read; copy it here")
                for path in sorted(folder.glob(f"sub-*_{kind}.*")):
                    if path.suffix in formats[kind]:
                        yield path, kind


def _parse_name(path: Path, kind: str) -> BidsRecording:
    mne_bids = import_extra("mne_bids", extra="recordings")
    try:
        entities = mne_bids.get_entities_from_fname(path.name, on_error="raise")
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    folders = {part for part in path.parts if part.startswith(("sub-", "ses-")) and part != path.name}
    subject, session, task, run = (entities[key] or "" for key in ("subject", "session", "task", "run"))
    if not {f"sub-{subject}", *([f"ses-{session}"] if session else [])} <= folders:
        raise ValueError("it is in the folder of another subject or session")
    return BidsRecording(path, subject, session, task, run, kind)


def _select(
    root: Path, recordings: list[BidsRecording], key: str, values: Sequence[str]
) -> list[BidsRecording]:
    prefix = {"subject": "sub-", "session": "ses-", "task": "task-"}.get(key, "")
    chosen = {value.removeprefix(prefix) for value in values}
    present = {str(getattr(recording, key)) for recording in recordings}
    if absent := sorted(chosen - present):
        similar = [match for value in absent for match in get_close_matches(value, present, n=1, cutoff=0.5)]
        hint = f" (did you mean {listed(similar)}?)" if similar else ""
        names = listed(sorted(present - {""})) or "none"
        raise ValueError(f"{root} has no {key} {listed(absent)}{hint}; there is {names}")
    return [recording for recording in recordings if getattr(recording, key) in chosen]


def plan_bids(root: Path, options: OwnOptions, labelling: Labelling, **chosen: Any) -> DatasetPlan:
    """Plan the preparation of recordings, ``chosen`` as by :func:`find_recordings`, by their events."""
    rows, problems = event_rows(root, labelling, **chosen)
    return plan_rows(root, rows, problems, options)


def event_rows(root: Path, labelling: Labelling, **chosen: Any) -> tuple[list[ManifestRow], list[str]]:
    """Return a row for each wanted event of a BIDS folder, and a sentence for each recording that fails.

    Recordings are ``chosen`` as by :func:`find_recordings`; channels marked as bad are named in a warning.
    """
    recordings = {recording.path: recording for recording in find_recordings(root, **chosen)}
    if len(kinds := sorted({recording.datatype for recording in recordings.values()})) > 1:
        raise ValueError(f"{root} has recordings of {listed(kinds)}; choose one of them with --datatype")
    bad: Counter[str] = Counter()

    def read(row: ManifestRow) -> tuple[list[events.Event], float]:
        sidecars = read_sidecars(root, row.path, recordings[row.path].datatype)
        bad.update(sidecars.bad)
        return _read_bids(row.path, sidecars)

    files = [
        ManifestRow(i, path.relative_to(root).as_posix(), path, "", recording.subject, recording.session)
        for i, (path, recording) in enumerate(recordings.items(), start=1)
    ]
    rows, problems = rows_of_events(files, labelling, read=read, source=str(root))
    if bad and not problems:
        named = listed([f"{name} ({n})" for name, n in bad.most_common()])
        where = f"{root}: channels marked as bad in some of {len(files)} recordings"
        warnings.warn(f"{where}: {named}; --channels leaves them out", UserWarning, stacklevel=2)
    return rows, problems


def _read_bids(path: Path, sidecars: Sidecars) -> tuple[list[events.Event], float]:
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path} has an unsupported format; export it as EDF or BrainVision")
    if not path.is_file():
        raise ValueError(f"{path} is a link to a missing file; fetch it first (datalad get)")
    recording = open_recording(path)
    sfreq = recording.sfreq
    assert sfreq is not None  # the formats of BIDS state it
    if sidecars.sfreq is not None and abs(sidecars.sfreq - sfreq) > 1e-3 * sfreq:
        sidecar = f"its JSON sidecar says {sidecars.sfreq:g} Hz"
        raise ValueError(f"{path} has {sfreq:g} Hz, and {sidecar}; correct the one that is wrong")
    table = events.read_event_table(sidecars.events) if sidecars.events is not None else []
    return table or events.read_events(path), recording.n_times / sfreq


def read_sidecars(root: Path, path: Path, datatype: str) -> Sidecars:
    """Read the sidecar files of a recording."""
    channels = next(_nearest(root, path, "channels.tsv"), None)
    return Sidecars(
        next(_nearest(root, path, "events.tsv"), None),
        () if channels is None else _bad_channels(channels),
        _rate(list(_nearest(root, path, f"{datatype}.json"))),
    )


def _entities(name: str) -> dict[str, str]:
    """Return the entities of a name (``sub-01_task-rest_eeg.edf``), as mne-bids reads them."""
    parsed = import_extra("mne_bids", extra="recordings").get_entities_from_fname(name, on_error="ignore")
    return {key: str(value) for key, value in parsed.items() if value is not None}


def _inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def _nearest(root: Path, path: Path, ending: str) -> Iterator[Path]:
    """Yield the sidecars of a recording with an ending, one per folder, from its own up to the root.

    By the inheritance principle of BIDS a sidecar applies if all its entities are the recording's; of several
    in a folder, the one with most. (``BIDSPath.find_matching_sidecar`` would take that of run
    1 for a recording without a run.)
    """
    of_recording = _entities(path.name)
    for folder in path.parents:
        by_entities: dict[int, list[Path]] = {}
        for file in sorted(folder.glob(f"*{ending}")):
            entities = _entities(file.name)
            fits = file.name == ending or file.name.endswith(f"_{ending}")
            applies = fits and entities.items() <= of_recording.items()
            if applies and file.is_file() and _inside(file, root):
                by_entities.setdefault(len(entities), []).append(file)
        if by_entities:
            best = by_entities[max(by_entities)]
            if len(best) > 1:
                names = listed([file.name for file in best])
                raise ValueError(f"{path} has several files of the kind {ending}, {names}; keep one")
            yield best[0]
        if folder == root:
            return


def _bad_channels(path: Path) -> tuple[str, ...]:
    with reading(path):
        table = read_table(path, ("name", "status"), delimiters="\t")
        if "name" not in table.columns:
            raise ValueError(f"{path} has no column name; its first line names {listed(table.names)}")
        status = table.columns.get("status", [""] * len(table.lines))
        pairs = zip(table.columns["name"], status, strict=True)
        return tuple(name.strip() for name, word in pairs if word.strip().casefold() == "bad")


def _rate(files: list[Path]) -> float | None:
    for path in files:
        with reading(path):
            content = json.loads(read_text(path))
            if not isinstance(content, dict):
                raise ValueError(f"{path} is not a JSON object; is it the right sidecar?")
            sfreq = content.get("SamplingFrequency")
            if isinstance(sfreq, int | float) and not isinstance(sfreq, bool):
                return check_rate(path, sfreq)
            if sfreq not in (None, "n/a"):
                raise ValueError(f"{path} says a SamplingFrequency of {str(sfreq)[:80]!r}; expected a number")
    return None
