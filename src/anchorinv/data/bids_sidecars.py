"""What the tables and JSON files of a BIDS folder say of a recording: its channels, rate and events."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anchorinv.problems import listed, needed
from anchorinv.signal.limits import check_rate, read_text, reading
from anchorinv.signal.tables import read_table


@dataclass(frozen=True, slots=True)
class Channel:
    """A row of ``*_channels.tsv``; text is "" where it does not say."""

    name: str
    kind: str
    unit: str
    bad: bool


@dataclass(frozen=True, slots=True)
class Sidecars:
    """What is said of a recording beside it, or above: a file in a higher folder counts for all below.

    Parameters
    ----------
    events : the table of its events, if there is one.
    channels : as ``*_channels.tsv`` lists them; none where there is no such table.
    sfreq : samples per second by ``*_eeg.json`` (``*_emg.json`` ...), if it says.
    """

    events: Path | None
    channels: tuple[Channel, ...]
    sfreq: float | None

    @property
    def bad(self) -> tuple[str, ...]:
        """Channels that are marked as bad."""
        return tuple(channel.name for channel in self.channels if channel.bad)


def read_sidecars(root: Path, path: Path, datatype: str) -> Sidecars:
    """Read what a BIDS folder says of one of its recordings."""
    channels = next(_nearest(root, path, "channels.tsv"), None)
    return Sidecars(
        next(_nearest(root, path, "events.tsv"), None),
        () if channels is None else _channels(channels),
        _rate(list(_nearest(root, path, f"{datatype}.json"))),
    )


def entities_of(name: str) -> dict[str, str]:
    """Return what a name says by its parts (``sub-01_task-rest_eeg.edf``), as mne-bids reads it."""
    parsed = needed("mne_bids", extra="recordings").get_entities_from_fname(name, on_error="ignore")
    return {key: str(value) for key, value in parsed.items() if value is not None}


def inside(path: Path, root: Path) -> bool:
    """Tell whether a file truly lies in a folder, at any depth, wherever links lead."""
    return path.resolve().is_relative_to(root.resolve())


def _nearest(root: Path, path: Path, ending: str) -> Iterator[Path]:
    """Yield the sidecars of a recording that end so, one from each folder from its own up to the root.

    By the inheritance principle of BIDS a sidecar counts if its name says nothing that the recording's does
    not say too; of several in a folder, the one that says most. (``BIDSPath.find_matching_sidecar`` would
    take that of run 1 for a recording without a run.)
    """
    own = entities_of(path.name)
    for folder in path.parents:
        found: dict[int, list[Path]] = {}
        for file in sorted(folder.glob(f"*{ending}")):
            told = entities_of(file.name)
            fits = file.name == ending or file.name.endswith(f"_{ending}")
            if fits and told.items() <= own.items() and file.is_file() and inside(file, root):
                found.setdefault(len(told), []).append(file)
        if found:
            best = found[max(found)]
            if len(best) > 1:
                raise ValueError(
                    f"{path} has several files of the kind {ending}, {listed([file.name for file in best])}; "
                    "keep one"
                )
            yield best[0]
        if folder == root:
            return


def _channels(path: Path) -> tuple[Channel, ...]:
    with reading(path):
        table = read_table(path, ("name", "type", "units", "status"), delimiters="\t")
        if "name" not in table.columns:
            raise ValueError(f"{path} has no column name; its first line names {listed(table.names)}")
        blank = [""] * len(table.lines)
        columns = [table.columns.get(name, blank) for name in ("name", "type", "units", "status")]
        rows = ([_said(cell) for cell in row] for row in zip(*columns, strict=True))
        return tuple(
            Channel(name, kind, unit, status.casefold() == "bad") for name, kind, unit, status in rows
        )


def _said(cell: str) -> str:
    text = cell.strip()
    return "" if text.casefold() == "n/a" else text


def _rate(files: list[Path]) -> float | None:
    """Return the rate that the nearest file tells of those that tell one."""
    for path in files:
        with reading(path):
            told = json.loads(read_text(path))
            if not isinstance(told, dict):
                raise ValueError(f"{path} is no JSON object; is it the sidecar it should be?")
            sfreq = told.get("SamplingFrequency")
            if isinstance(sfreq, int | float) and not isinstance(sfreq, bool):
                return check_rate(path, sfreq)
            if sfreq not in (None, "n/a"):
                raise ValueError(
                    f"{path} says a SamplingFrequency of {str(sfreq)[:80]!r}; a number is wanted"
                )
    return None
