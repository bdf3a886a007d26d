"""BIDS folders of EEG and EMG: their recordings, and the rows of a table that their events amount to."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from anchorinv.core.progress import tick
from anchorinv.data.bids_sidecars import Sidecars, inside, read_sidecars
from anchorinv.data.manifest import Entry
from anchorinv.problems import listed, needed, raise_if_any
from anchorinv.signal.event_files import read_events
from anchorinv.signal.event_tables import read_event_table
from anchorinv.signal.events import Event, Stretch, check_stretch, check_wanted, stretches
from anchorinv.signal.limits import ROWS, reading
from anchorinv.signal.readers import FORMATS, companions, open_mne

DATATYPES = ("eeg", "emg", "ieeg")


@dataclass(frozen=True, slots=True)
class BidsRecording:
    """A recording of a BIDS folder, with what its name says; "" where it does not."""

    path: Path
    subject: str
    session: str
    task: str
    run: str
    datatype: str


def find_recordings(
    root: Path,
    *,
    task: str | None = None,
    subjects: Sequence[str] | None = None,
    sessions: Sequence[str] | None = None,
    datatype: str | None = None,
) -> list[BidsRecording]:
    """Return the recordings of a BIDS folder by their names; derivatives are none.

    Parameters
    ----------
    root : the folder with ``dataset_description.json`` and ``sub-*``; links out of it are refused.
    task, subjects, sessions : names without ``task-``, ``sub-``, ``ses-``; None takes all.
    datatype : eeg, emg or ieeg; None takes all of them.
    """
    if not any(root.glob("sub-*")):
        raise ValueError(f"{root} is no BIDS folder; one with a folder sub-... for each person is wanted")
    if datatype is not None and datatype not in DATATYPES:
        raise ValueError(f"{datatype!r} is none of {', '.join(DATATYPES)}")
    files = list(islice(_files(root), ROWS + 1))
    if len(files) > ROWS:
        raise ValueError(f"{root} has more than a million recordings; hand in a part of them")
    found, problems = [], []
    for path, kind in files:
        name = str(path.relative_to(root))
        try:
            recording = _named(path, kind)
        except ValueError as error:
            problems.append(f"{name} is not named as BIDS has it ({' '.join(str(error).split())[:200]})")
            continue
        if not all(inside(file, root) for file in {path, *companions(path)}):
            problems.append(
                f"{name} is a link to a file elsewhere, which is not read; copy it into the folder"
            )
        found.append(recording)
    raise_if_any(str(root), problems)
    chosen = found
    for key, asked in (
        ("datatype", [datatype] if datatype else None),
        ("task", [task] if task else None),
        ("subject", subjects),
        ("session", sessions),
    ):
        chosen = _chosen(root, chosen, key, asked) if asked else chosen
    if not chosen:
        raise ValueError(f"{root} has no recordings of {', '.join(DATATYPES)}")
    return chosen


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of recordings; folders are looked into where BIDS has them, and no deeper."""
    formats = needed("mne_bids", extra="recordings").config.ALLOWED_DATATYPE_EXTENSIONS
    for person in sorted(root.glob("sub-*")):
        for place in (person, *sorted(person.glob("ses-*"))):
            for kind in DATATYPES:
                folder = place / kind
                if folder.is_dir() and not inside(folder, root):
                    raise ValueError(
                        f"{folder} is a link to a folder elsewhere, which is not read; copy it here"
                    )
                for path in sorted(folder.glob(f"sub-*_{kind}.*")):
                    if path.suffix in formats[kind]:
                        yield path, kind


def _named(path: Path, kind: str) -> BidsRecording:
    mne_bids = needed("mne_bids", extra="recordings")
    try:
        told = mne_bids.get_entities_from_fname(path.name, on_error="raise")
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    folders = {part for part in path.parts if part.startswith(("sub-", "ses-")) and part != path.name}
    session = told["session"] or ""
    if not {f"sub-{told['subject']}", *([f"ses-{session}"] if session else [])} <= folders:
        raise ValueError("its folders are of another subject or session")
    return BidsRecording(path, told["subject"], session, told["task"] or "", told["run"] or "", kind)


def _chosen(root: Path, found: list[BidsRecording], key: str, asked: Sequence[str]) -> list[BidsRecording]:
    """Return the recordings with the values asked for; all of these must occur."""
    prefix = {"subject": "sub-", "session": "ses-", "task": "task-"}.get(key, "")
    wanted = {value.removeprefix(prefix) for value in asked}
    present = {str(getattr(recording, key)) for recording in found}
    if absent := sorted(wanted - present):
        near = [match for value in absent for match in get_close_matches(value, present, n=1, cutoff=0.5)]
        hint = f" (did you mean {listed(near)}?)" if near else ""
        there = listed(sorted(present - {""})) or "none"
        raise ValueError(f"{root} has no {key} {listed(absent)}{hint}; there is {there}")
    return [recording for recording in found if getattr(recording, key) in wanted]


def entries(
    root: Path,
    wanted: Mapping[str, str],
    start: float = 0.0,
    stop: float | None = None,
    *,
    task: str | None = None,
    subjects: Sequence[str] | None = None,
    sessions: Sequence[str] | None = None,
    datatype: str | None = None,
) -> tuple[list[Entry], list[str]]:
    """Return a row for each wanted event of a BIDS folder, and a sentence for each recording that fails.

    Parameters
    ----------
    wanted, start, stop : classes by event, and where a stretch lies, as :func:`labelled_parts` takes them. An
        event must occur in one of the recordings, not in each.
    task, subjects, sessions, datatype : as :func:`find_recordings` takes them.

    Warns
    -----
    UserWarning
        Of stretches left out since they reach beyond their recording, and of channels marked as bad.
    """
    check_stretch(start, stop)
    recordings = find_recordings(root, task=task, subjects=subjects, sessions=sessions, datatype=datatype)
    if len(kinds := sorted({recording.datatype for recording in recordings})) > 1:
        raise ValueError(f"{root} has recordings of {listed(kinds)}; choose one of them with --datatype")
    rows: list[Entry] = []
    every: list[Event] = []
    problems: list[str] = []
    bad: Counter[str] = Counter()
    n_outside = 0
    for i, recording in enumerate(recordings):
        name = recording.path.relative_to(root).as_posix()
        try:
            sidecars = read_sidecars(root, recording.path, recording.datatype)
            events, length = _looked_at(recording, sidecars)
            parts, beyond = stretches(events, wanted, start, stop, name=name, length=length)
        except ValueError as error:
            problems.append(str(error))
        else:
            rows += [_row(len(rows) + k, name, recording, part) for k, part in enumerate(parts, start=1)]
            every, n_outside = every + events, n_outside + beyond
            bad.update(sidecars.bad)
        tick("looking at recordings", i + 1, len(recordings))
    if not problems:
        check_wanted(every, wanted, name=str(root))
        _warn(root, bad, len(recordings), n_outside, len(rows) + n_outside)
        if not rows:
            problems.append(f"all {n_outside} stretches reach beyond their recording; choose --from and --to")
    return rows, problems


def _looked_at(recording: BidsRecording, sidecars: Sidecars) -> tuple[list[Event], float]:
    """Return the events of a recording and its length in seconds."""
    path = recording.path
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path} is of no format that is read; export it as EDF or BrainVision")
    if not path.is_file():
        raise ValueError(f"{path} is a link to a file that is not there; fetch it first (datalad get)")
    with reading(path):
        raw = open_mne(path)
        sfreq, n_times = float(raw.info["sfreq"]), int(raw.n_times)
    if sidecars.sfreq is not None and abs(sidecars.sfreq - sfreq) > 1e-3 * sfreq:
        raise ValueError(
            f"{path} has {sfreq:g} Hz, and the JSON file that belongs to it says {sidecars.sfreq:g} Hz; "
            "correct the one that is wrong"
        )
    listed_events = [] if sidecars.events is None else read_event_table(sidecars.events)
    return listed_events or read_events(path), n_times / sfreq


def _row(line: int, name: str, recording: BidsRecording, part: Stretch) -> Entry:
    return Entry(
        line,
        name,
        recording.path,
        label=part.label,
        subject=recording.subject,
        session=recording.session,
        start=part.start,
        stop=part.stop,
    )


def _warn(root: Path, bad: Counter[str], n_recordings: int, n_outside: int, n_stretches: int) -> None:
    sentences = []
    if bad:
        told = listed([f"{name} ({n})" for name, n in bad.most_common()])
        sentences.append(
            f"{root}: channels marked as bad in some of {n_recordings} recordings: {told}; --channels leaves "
            "them out"
        )
    if n_outside:
        sentences.append(
            f"{root}: {n_outside} of {n_stretches} stretches reach beyond their recording and are left out"
        )
    for sentence in sentences:
        warnings.warn(sentence, UserWarning, stacklevel=3)
