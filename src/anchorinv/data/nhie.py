"""NHIE: hours of newborns' EEG after lack of oxygen, each graded 1 to 4 by experts (Zenodo 6587973)."""

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from anchorinv.data.plan import Piece, Plan, Row, Source
from anchorinv.data.splits import grouped_split
from anchorinv.data.writing import sha256
from anchorinv.problems import listed, raise_if_any
from anchorinv.signal.filters import Filter
from anchorinv.signal.pipeline import process
from anchorinv.signal.preprocessing import BIPOLAR, Preprocessing
from anchorinv.signal.readers import open_recording
from anchorinv.signal.recordings import inputs_of
from anchorinv.signal.tables import read_table
from anchorinv.signal.windows import window_starts

# As in the authors' runs. The text has F3-C3, T3-C3, O1-C3, C3-Cz, Cz-C4, F4-C4, T4-C4, O2-C4: the same eight
# pairs in another order, and C4-O2, C3-O1, C4-Cz, Cz-C3 and C3-T3 with the opposite sign.
PAIRS = ("F4-C4", "C4-O2", "F3-C3", "C3-O1", "T4-C4", "C4-Cz", "Cz-C3", "C3-T3")
GRADES = tuple(f"grade {grade}" for grade in range(1, 5))
BAND = Filter(0.5, 30.0, order=5, from_rest=True)
SFREQ = 64.0
N_TIMES = 60 * 64
OVERLAP = 0.5
HOW = Preprocessing(
    PAIRS, "µV", BAND, reference=BIPOLAR, gaps="zero", sfreq=SFREQ, resampling="fourier", n_times=N_TIMES,
    step=N_TIMES // 2,
)  # fmt: skip
_TABLES = ("metadata.csv", "eeg_grades.csv")
_ENDINGS = (".edf", ".csv.xz", ".csv")


@dataclass(frozen=True, slots=True)
class Entry:
    """A recording as the table of grades lists it; the rate is None where the table does not say."""

    name: str
    baby: str
    grade: str
    sfreq: float | None


def plan_nhie(raw: Path, *, seed: int | None = None, allow_missing: bool = False, live: bool = False) -> Plan:
    """Plan to prepare a folder of EDF or ``.csv.xz`` files with their table of grades.

    Parameters
    ----------
    seed : of the split into train and test; None takes the published one.
    allow_missing : take the recordings that are there.
    live : resample as a live source can be, rather than by the spectrum of a recording as the authors did.
    """
    table = _table(raw)
    entries = _entries(table)
    files = _files(raw)
    missing = [
        f"{entry.name} is in {table.name} but not in the folder"
        for entry in entries
        if entry.name not in files
    ]
    known = {entry.name for entry in entries}
    missing += [f"{files[name].name} has no grade in {table.name}" for name in sorted(set(files) - known)]
    if not allow_missing:
        raise_if_any(str(raw), missing, "download them, or pass --allow-missing to do without")
    # The whole table is divided, so that a partial download tests on the same babies.
    # Babies are numbered in the order of the numbers in their names, as published: the split depends on it.
    numbers = {baby: i for i, baby in enumerate(sorted({e.baby for e in entries}, key=_by_number))}
    split = grouped_split([e.grade for e in entries], [numbers[e.baby] for e in entries], seed=seed)
    sides = {entry.name: str(side) for entry, side in zip(entries, split, strict=True)}
    entries = [entry for entry in entries if entry.name in files]
    if not entries:
        raise ValueError(
            f"{raw} holds no recording of {table.name}, such as ID01_epoch1.edf or ID01_epoch1.csv.xz"
        )
    # For a live source a polyphase filter: the authors' resampling needs the whole recording.
    how = replace(HOW, resampling="polyphase") if live else HOW
    return Plan(
        root=raw,
        sources=[
            Source(e.name, (files[e.name],), partial(_piece, e, how, sides[e.name], files[e.name]))
            for e in entries
        ],
        how=how,
        class_names=GRADES,
        recipe={
            "name": "nhie",
            "form": listed(sorted({"csv" if ".csv" in files[e.name].name else "edf" for e in entries})),
            "unit": "µV",
            "steps": [*how.steps, f"resampled to 64 Hz{' by the spectrum' if not live else ''}",
                      "windows of 60 s, 50 % overlap"],
            "split": "published fold" if seed is None else f"seed {seed}",
            "table_sha256": sha256(table),
            "missing": missing,
        },
    )  # fmt: skip


def _table(raw: Path) -> Path:
    if not raw.is_dir():
        raise ValueError(f"{raw} is no folder; give the one with the recordings and metadata.csv to --raw")
    for name in _TABLES:
        if found := sorted(raw.rglob(name)):
            return found[0]
    raise ValueError(
        f"{raw} holds no table of grades; metadata.csv or eeg_grades.csv comes with the recordings"
    )


def _entries(table: Path) -> list[Entry]:
    """Read the table of grades, sorted by name; all its problems at once."""
    wanted = ("file_ID", "baby_ID", "grade", "sampling_freq")
    read = read_table(table, [name.casefold() for name in wanted], delimiters=",;")
    if absent := [name for name in wanted[:3] if name.casefold() not in read.columns]:
        raise ValueError(f"{table} has no column {listed(absent)}; it has {listed(read.names)}")
    problems, found = [], {}
    for row in zip(*read.columns.values(), strict=True):
        cells = {name: cell.strip() for name, cell in zip(read.columns, row, strict=True)}
        name, grade = re.sub(r"\.(edf|csv|csv\.xz)$", "", cells["file_id"]), cells["grade"]
        if grade not in ("1", "2", "3", "4"):
            problems.append(f"{name} has grade {grade!r}; a grade is 1, 2, 3 or 4")
            continue
        if not name or name in found or not cells["baby_id"]:
            problems.append(f"{name!r} is listed twice, or has no name or no baby_ID")
            continue
        rate = re.match(r"\d+(\.\d+)?", cells.get("sampling_freq", ""))
        found[name] = Entry(name, cells["baby_id"], grade, float(rate[0]) if rate else None)
    raise_if_any(str(table), problems)
    return [found[name] for name in sorted(found, key=_by_number)]


def _by_number(name: str) -> tuple[str, str]:
    """Return what to sort names by so that ID2 comes before ID10: as if they were padded with zeros."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(20), name), name


def _files(raw: Path) -> dict[str, Path]:
    """Return the recordings by name; EDF where a recording is there in both forms."""
    found: dict[str, Path] = {}
    for ending in _ENDINGS:
        for path in sorted(raw.rglob(f"*{ending}")):
            if path.name not in _TABLES and "_epoch" in path.name:
                found.setdefault(path.name[: -len(ending)], path)
    return found


def _piece(entry: Entry, how: Preprocessing, side: str, path: Path) -> Piece:
    recording = open_recording(path)
    rate = recording.sfreq or entry.sfreq
    if rate is None or (entry.sfreq is not None and rate != entry.sfreq):
        raise ValueError(
            f"{path} has a rate of {recording.sfreq} Hz, the table says {entry.sfreq}; which is right?"
        )
    taken = inputs_of(recording, how)
    done = process(how, recording.load(taken.channels) * taken.factors, rate)
    samples = done.samples
    starts = window_starts(len(samples), N_TIMES, overlap=OVERLAP)
    if not len(starts):
        raise ValueError(
            f"{path} is {len(samples) / SFREQ:.0f} s long, and a window takes 60 s; is it cut short?"
        )
    session = re.sub(r".*_epoch", "", entry.name)
    rows = [Row(int(start), f"grade {entry.grade}", entry.baby, session, side) for start in starts]
    return Piece(samples, rows, {"missing samples": done.n_missing})
