"""Which inputs are taken, said in one place, so that every message has the same list."""

from pathlib import Path

_TABLES = (".csv", ".csv.gz", ".csv.xz")
#: Files of windows, and of continuous recordings, by what their names end in.
WINDOWS = (".npz", ".npy")
RECORDINGS = (".edf", ".bdf", ".gdf", ".fif", ".fif.gz", ".vhdr", ".hea", ".dat", *_TABLES)
FILES = ".npz, .npy, EDF, BDF, GDF, FIF, BrainVision (.vhdr), WFDB (.hea, .dat), CSV"
KNOWN = f"a prepared folder, {FILES}"

#: Of mne's kinds of channels, those that are voltages.
VOLTAGES = frozenset(("eeg", "eog", "emg", "ecg", "seeg", "ecog", "dbs", "bio", "resp"))

#: What PhysioNet's annotators are called; the first is the reference of a set.
ANNOTATORS = (
    "atr", "ann", "ari", "ecg", "qrs", "gqrs", "sqrs", "wqrs", "man", "pu", "pu0", "pu1", "q1c", "q2c", "qt1",
    "qt2", "q1t", "q2t", "st", "sta", "stb", "stc", "stf", "apn", "hyp", "pwave", "wabp", "xws",
)  # fmt: skip


def has_ending(path: Path, *endings: str) -> bool:
    """Say whether a name ends in one of these, in any case; ``.fif.gz`` is one ending."""
    return path.name.lower().endswith(endings)


def is_recording(path: Path) -> bool:
    """Say whether a path names a continuous recording; a WFDB record may have no ending."""
    return has_ending(path, *RECORDINGS) or header_of(path) is not None


def header_of(path: Path) -> Path | None:
    """Return the header of a WFDB record that is named without an ending, or by one of its annotators."""
    header = path.with_suffix(".hea")
    named = not path.suffix or path.suffix[1:].lower() in ANNOTATORS
    return header if named and header.is_file() else None


def unknown(path: Path) -> ValueError:
    """Return the error for a file of a kind that nobody knows."""
    header = path.with_suffix(".vhdr")
    if has_ending(path, ".eeg", ".vmrk") and header.is_file():
        return ValueError(f"{path} is a part of a BrainVision recording; hand in its header, {header}")
    return ValueError(f"{path} is of no known format; known are {KNOWN}")


def unlabelled(path: Path) -> ValueError:
    """Return the error for windows, or a recording, whose classes are needed and not told."""
    events = "name its events with --events, or " if is_recording(path) else ""
    return ValueError(
        f"{path} has no labels of its windows; {events}hand in a folder prepared of it (anchorinv prepare "
        f"own), or an .npz with X and y"
    )
