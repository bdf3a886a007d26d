"""Which inputs are taken, said in one place, so that every message has the same list."""

from pathlib import Path

#: Files of windows, and of continuous recordings, by what their names end in.
WINDOWS = (".npz", ".npy")
RECORDINGS = (
    ".edf",
    ".bdf",
    ".gdf",
    ".fif",
    ".fif.gz",
    ".vhdr",
    ".hea",
    ".dat",
    ".csv",
    ".csv.gz",
    ".csv.xz",
)
FILES = ".npz, .npy, EDF, BDF, GDF, FIF, BrainVision (.vhdr), WFDB (.hea, .dat), CSV"
KNOWN = f"a prepared folder, {FILES}"
_LABELLED = "a prepared folder or an .npz with X and y"


def has_ending(path: Path, *endings: str) -> bool:
    """Say whether a name ends in one of these, in any case; ``.fif.gz`` is one ending."""
    return path.name.lower().endswith(endings)


def is_recording(path: Path) -> bool:
    """Say whether a path names a continuous recording; that of a WFDB record may have no ending."""
    return has_ending(path, *RECORDINGS) or (not path.suffix and path.with_suffix(".hea").is_file())


def unknown(path: Path) -> ValueError:
    """Return the error for a file of a kind that nobody knows."""
    header = path.with_suffix(".vhdr")
    if has_ending(path, ".eeg", ".vmrk") and header.is_file():
        return ValueError(f"{path} is a part of a BrainVision recording; hand in its header, {header}")
    return ValueError(f"{path} is of no known format; known are {KNOWN}")


def unlabelled(path: Path) -> ValueError:
    """Return the error for windows, or a recording, whose classes are needed and not told."""
    events = "name its events with --events, or " if is_recording(path) else ""
    return ValueError(f"{path} has no labels of its windows; {events}hand in {_LABELLED}")


def to_prepare(path: Path) -> ValueError:
    """Return the error for a table of samples where recordings are read piece by piece."""
    return ValueError(
        f"{path} is a table, which does not say enough about its samples; make a prepared folder of it with "
        f"anchorinv prepare own, or windows (.npz, .npy)"
    )
