"""``anchorinv download``, ``prepare``, ``data``, ``events``: fetch, prepare and inspect recordings."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from anchorinv.cli.options import (
    Json,
    TrialOptions,
    ZeroPhase,
    argument,
    option,
    own_options,
    say_json,
    with_options,
)
from anchorinv.terminal import Terminal, progress_bars, say

if TYPE_CHECKING:
    from anchorinv.datasets.dataset import Dataset
    from anchorinv.datasets.own_files import OwnOptions
    from anchorinv.datasets.prepare import DatasetPlan
    from anchorinv.signal.events import Events
    from anchorinv.signal.preprocessing import Filter

prepare_app = typer.Typer(
    help="Turn raw recordings into a folder that every study reads.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Raw = Annotated[Path, typer.Option(help="Folder with the downloaded files, at any depth.")]
Out = Annotated[Path, typer.Option(help="Prepared folder to make.")]
Replace = Annotated[
    bool, typer.Option("--replace", "--overwrite", help="Prepare again what is already prepared.")
]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Prepare what is there, and list what is missing.")
]
Live = Annotated[
    bool,
    typer.Option("--live", help="Resample as a live source can be, not by the spectrum as the authors did."),
]

_KINDS_SHOWN = 200  # kinds of events in a table; --json has all
_WIDEST = 60  # characters of an event's name


@with_options
def download(
    name: str = argument(..., "bci2a, nhie or grabmyo.", metavar="SET"),
    to: Path = option(..., "Folder for the files."),
    only: str = option("*", 'Only files of this pattern, such as "Session1/*".'),
    jobs: int = option(2, "Number of parallel downloads; be kind to the server.", min=1, max=4),
    mirror: str | None = option(
        None, "Another address with the same files.", "--from", envvar="ANCHORINV_MIRROR"
    ),
    tries: int = option(5, "Attempts per file.", min=1),
    timeout: float = option(30.0, "Timeout in seconds without data.", min=0.01),
    pause: float = option(1.0, "Seconds before the first retry.", min=0.0),
) -> None:
    """Download a public data set; an interrupted download is resumed."""
    import anchorinv.datasets.download as remote

    client = remote.HttpClient(jobs, tries, timeout, pause)
    files = remote.remote_files(name, client, mirror=mirror, only=only)
    n_files, n_bytes, unknown = remote.count_missing(files, to)
    size = f"{n_bytes / 1e9:.2f} GB" if n_bytes > 1e8 else f"{n_bytes / 1e6:.2f} MB"
    more = f", and {unknown} files of unknown size" if unknown else ""
    terms = remote.REMOTES[name].licence
    say(f"{name}: {n_files} of {len(files)} files to fetch, about {size}{more}; terms: {terms}")
    remote.check_space(to, n_bytes)
    with progress_bars():
        notes = remote.download(files, to, client)
    say(
        *notes,
        f"All {len(files)} files are in {to}. Next: anchorinv prepare {name} --raw {to} --out PREPARED",
    )


@with_options
def data(
    folder: Path = argument(..., "Prepared folder.", metavar="DIR"),
    picture: Path | None = option(None, "Figure to write (.png, .pdf, .svg); default: trials.png in DIR."),
    by_subject: bool = option(False, "Count windows of each class for each subject.", "--by-subject"),
    no_picture: bool = option(False, "Numbers alone.", "--no-picture"),
) -> None:
    """Show what is in a prepared folder, and draw a few trials of each class."""
    from anchorinv.datasets.dataset import Dataset, draw_trials

    prepared = Dataset.open(folder)
    show(prepared, folder)
    if by_subject:
        _show_subjects(prepared)
    if not no_picture:
        path = picture or folder / "trials.png"
        try:
            draw_trials(prepared, path)
        except OSError as error:
            raise OSError(f"cannot draw to {path}: {error.strerror}; choose a file with --picture") from None
        say(f"Picture: {path}")


@with_options
def events(
    files: list[Path] = argument(
        ...,
        "Recordings: EDF, BDF, GDF, FIF, BrainVision (.vhdr), WFDB (.hea), or an annotator (.atr).",
        metavar="FILE",
    ),
    as_json: Json = False,
) -> None:
    """List the events of recordings: annotations, a BIDS events.tsv, a stimulus channel.

    These are the names that --events takes, such as T1=left,T2=right.
    """
    from anchorinv.signal.events import find_events

    recorded = [find_events(path) for path in files]
    if as_json:
        say_json([*map(_event_facts, files, recorded)])
        return
    for path, events_of in zip(files, recorded, strict=True):
        _show_events(path, events_of)


def show(data: "Dataset", folder: Path) -> None:
    """Print classes by split and subjects, and what was done to the signals."""
    console = Terminal()
    console.print(_classes(data))
    meta = data.meta
    missing = meta.get("missing", [])
    counts = [f"{count} {name}" for name, count in meta.get("counts", {}).items() if count]
    facts = {
        "set": f"{meta.get('name', '')} ({meta.get('form', 'arrays')})",
        "windows": f"{data.n_times / data.sfreq:g} s, {data.n_times} samples at {data.sfreq:g} Hz",
        "channels": f"{data.n_chans}: {', '.join(data.ch_names[:8])}{' ...' if data.n_chans > 8 else ''}",
        "unit": meta.get("unit", ""),
        "preprocessing": "; ".join(meta.get("steps", [])),
        "split": meta.get("split", ""),
        "found": ", ".join(counts),
        "from": ", ".join(filter(None, (meta.get("origin"), meta.get("licence")))),
        "accepted": "; ".join(meta.get("accepted", [])),
        "notes": "; ".join(meta.get("notes", [])),
        "missing": "; ".join(missing[:10]) + (f" (and {len(missing) - 10} more)" if missing[10:] else ""),
        "folder": f"{folder} ({data.samples.nbytes / 1e6:.1f} MB)",
    }
    for name, fact in facts.items():
        if fact:
            console.say(f"{name}: {fact}")


def _classes(data: "Dataset") -> Table:
    import numpy as np

    table = Table(
        "class", "train", "test", "subjects (train + test)", "recordings", title=f"{len(data)} windows"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for label, name in [*enumerate(data.class_names), (None, "all")]:
        selected = np.ones(len(data), dtype=bool) if label is None else data.labels == label
        parts = [selected & (data.split == split) for split in ("train", "test")]
        windows = (str(np.count_nonzero(part)) for part in parts)
        people = " + ".join(str(len(np.unique(data.subjects[part]))) for part in parts)
        recordings = "" if data.recordings is None else str(len(np.unique(data.recordings[selected])))
        table.add_row(name, *windows, people, recordings)
    return table


def _show_subjects(data: "Dataset") -> None:
    counts = Counter(zip(data.subjects.tolist(), data.labels.tolist(), data.split.tolist(), strict=True))
    table = Table("subject", "class", "train", "test")
    for subject, label in sorted({(subject, label) for subject, label, _ in counts}):
        sides = (str(counts[subject, label, split]) for split in ("train", "test"))
        table.add_row(subject, data.class_names[label], *sides)
    Terminal().print(table)


def _event_facts(path: Path, recorded: "Events") -> dict[str, Any]:
    """Return plain JSON values: a row for each kind of event, in order of first occurrence."""
    rows: dict[str, dict[str, Any]] = {}
    for event in recorded.events:
        first = {"count": 0, "first": event.onset, "shortest": event.duration, "longest": 0.0}
        row = rows.setdefault(event.label, {"event": event.label, **first})
        row["count"] += 1
        row["shortest"] = min(row["shortest"], event.duration)
        row["longest"] = max(row["longest"], event.duration)
    counts = {"count": len(recorded.events), "events": list(rows.values())}
    return {"file": str(path), "from": recorded.source, **counts}


def _show_events(path: Path, recorded: "Events") -> None:
    console = Terminal()
    if not recorded.events:
        console.say(
            f"{path} has no events: no annotations, no events.tsv beside it, nothing in a stimulus channel"
        )
        return
    facts = _event_facts(path, recorded)
    console.say(f"{path}: {facts['count']} events, from {recorded.source}")
    table = Table("event", "count", "first at s", "lasts s")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in facts["events"][:_KINDS_SHOWN]:
        label = row["event"] if len(row["event"]) <= _WIDEST else f"{row['event'][: _WIDEST - 4]} ..."
        duration = f"{row['shortest']:g}"
        if row["longest"] != row["shortest"]:
            duration += f"-{row['longest']:g}"
        table.add_row(label, str(row["count"]), f"{row['first']:g}", duration)
    console.print(table)
    if (more := len(facts["events"]) - _KINDS_SHOWN) > 0:
        console.say(f"and {more} other events; --json lists them all")


@prepare_app.command()
@with_options
def bci2a(
    raw: Raw,
    out: Out,
    form: str | None = option(None, "gdf, bnci or converted, where the folder holds several."),
    filter: str | None = option(None, "conformer (4-40 Hz, as EEG-Conformer), or a band such as 0.5-40."),
    allow_missing: AllowMissing = False,
    replace: Replace = False,
) -> None:
    """BCI Competition IV 2a: 9 people, 4 imagined movements; session T trains, E tests."""
    plan = "anchorinv.datasets.paper_sets.plan_bci2a"
    options = {"form": form, "band": _band(filter), "allow_missing": allow_missing}
    _prepare(plan, raw, out=out, replace=replace, **options)


@prepare_app.command()
@with_options
def nhie(
    raw: Raw,
    out: Out,
    seed: int | None = option(None, "Of the split by baby; without it the published one."),
    allow_missing: AllowMissing = False,
    live: Live = False,
    replace: Replace = False,
) -> None:
    """NHIE: 169 hours of EEG of 53 newborns, graded 1 to 4; a baby is never on both sides."""
    plan = "anchorinv.datasets.paper_sets.plan_nhie"
    _prepare(plan, raw, out=out, replace=replace, seed=seed, allow_missing=allow_missing, live=live)


@prepare_app.command()
def grabmyo(
    raw: Raw, out: Out, allow_missing: AllowMissing = False, live: Live = False, replace: Replace = False
) -> None:
    """GRABMyo: 43 people, 16 gestures, 3 days; sessions 1 and 2 train, 3 tests."""
    plan = "anchorinv.datasets.paper_sets.plan_grabmyo"
    _prepare(plan, raw, out=out, replace=replace, allow_missing=allow_missing, live=live)


def _add_trials_set(command: str, plan: str, help: str, hold_out: str, *, with_filter: bool = False) -> None:
    """Add the command of a public set that is one .npz file of trials."""
    TrialsFile = Annotated[Path, typer.Option(help="The .npz file, or a folder with it, at any depth.")]
    HoldOut = Annotated[str | None, typer.Option(help=hold_out)]
    Band = Annotated[str | None, typer.Option("--filter", help="Band in Hz: 1-40, 1- or -30; or conformer.")]

    def filtered(
        raw: TrialsFile,
        out: Out,
        band: Band = None,
        zero_phase: ZeroPhase = False,
        hold_out: HoldOut = None,
        replace: Replace = False,
    ) -> None:
        chosen = _band(band, causal=not zero_phase)
        _prepare(plan, raw, out=out, replace=replace, band=chosen, hold_out=hold_out)

    def unfiltered(raw: TrialsFile, out: Out, hold_out: HoldOut = None, replace: Replace = False) -> None:
        _prepare(plan, raw, out=out, replace=replace, hold_out=hold_out)

    prepare_app.command(command, help=help)(filtered if with_filter else unfiltered)


_add_trials_set(
    "emg-longterm",
    "anchorinv.datasets.npz_sets.EMG_LONGTERM.plan",
    "Long-term EMG: 3 people, 22 motions, 30 days; days 1 to 20 train, 21 to 30 test.",
    "Days of the training part that test instead, such as 16-20; days 21-30 are left out.",
)
_add_trials_set(
    "eeg-stress",
    "anchorinv.datasets.npz_sets.EEG_STRESS.plan",
    "SAM 40: EEG of 20 people, relaxed and in 3 stressful tasks; trials 1 and 2 train, 3 tests.",
    "The trial of the training part that tests instead, 1 or 2; trial 3 is left out.",
    with_filter=True,
)
_add_trials_set(
    "eeg-motor-imagery",
    "anchorinv.datasets.npz_sets.EEG_MOTOR_IMAGERY.plan",
    "EEG Motor Movement/Imagery: 20 people, 4 imagined movements; runs 4, 6, 8, 10 train, 12 and 14 test.",
    "Runs of the training part that test instead, such as 8,10; runs 12 and 14 are left out.",
    with_filter=True,
)
_add_trials_set(
    "ecg-beats",
    "anchorinv.datasets.npz_sets.ECG_BEATS.plan",
    "MIT-BIH Arrhythmia: beats of 22 ECG records; the first two thirds of each train, the last tests.",
    "Samples of the training part where beats test instead, such as 290000-433332; those from 433333 are "
    "left out.",
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The source of own recordings: a table, an .npz file, recordings, or a BIDS folder."""

    manifest: Path | None = option(
        None, "Table (CSV): path, label and, where known, subject, session, split, start, stop."
    )
    npz: Path | None = option(None, "One file with X (n, channels, times) and y.")
    recordings: list[Path] | None = option(
        None, "A recording with --events; once for each, in place of a table.", "--recording"
    )
    bids: Path | None = option(None, "A BIDS folder of EEG or EMG, with --events.")
    task: str | None = option(None, "Only this task of the BIDS folder.")
    subjects: str | None = option(None, "Only these subjects of the BIDS folder: 01,02.")
    datatype: str | None = option(None, "Only eeg, emg or ieeg of the BIDS folder.")

    def plan(self, trials: TrialOptions, processing: "ProcessingOptions") -> "DatasetPlan":
        """Return what is to be prepared."""
        from anchorinv.datasets.own import plan_bids, plan_manifest, plan_npz, plan_recordings

        options, labelling = processing.options(), trials.labelling()
        sources = {
            "manifest": self.manifest,
            "npz": self.npz,
            "recording": self.recordings,
            "bids": self.bids,
        }
        chosen = [f"--{name}" for name, value in sources.items() if value]
        if len(chosen) != 1:
            raise ValueError(
                "give your recordings with one of --manifest TABLE.csv, --npz FILE.npz, --recording FILE or "
                f"--bids FOLDER; got {' and '.join(chosen) or 'none'}"
            )
        if self.bids is None and (self.task or self.subjects or self.datatype):
            raise ValueError("--task, --subjects and --datatype choose from a BIDS folder; give --bids")
        if self.manifest is not None:
            return plan_manifest(self.manifest, options, labelling)
        if self.npz is not None:
            if labelling is not None:
                raise ValueError("--events is for recordings; an .npz file has its labels in y")
            return plan_npz(self.npz, options)
        if labelling is None:
            raise ValueError(f"{chosen[0]} needs --events, which maps events to classes")
        if self.recordings:
            return plan_recordings(self.recordings, options, labelling)
        assert self.bids is not None
        people = [name.strip() for name in self.subjects.split(",")] if self.subjects else None
        return plan_bids(
            self.bids, options, labelling, task=self.task, subjects=people, datatype=self.datatype
        )


@dataclass(frozen=True, slots=True)
class ProcessingOptions:
    """Preprocessing and checks of own recordings."""

    channels: list[str] | None = option(None, "Channels to keep, in order; OLD=NEW renames: C3,EEG 2=Cz,C4.")
    reference: str | None = option(
        None, "average (common average), bipolar (channels C3-Cz ...), or a channel to subtract."
    )
    filter: str | None = option(None, "Band in Hz: 0.5-40, 1- or -30; or conformer.")
    filter_order: int = option(4, "Order of the Butterworth filter.")
    zero_phase: ZeroPhase = False
    resample: float | None = option(None, "Sampling rate to resample to, in Hz.")
    sfreq: float | None = option(None, "Sampling rate in Hz of files that do not state it.")
    window: float | None = option(None, "Length of windows in seconds; default: each row is one window.")
    overlap: float = option(0.0, "Overlap of consecutive windows, as a share.")
    at_least: int = option(10, "Minimum number of training samples per class.")
    seed: int | None = option(None, "Seed of the split, where the table gives none.")
    allow: list[str] | None = option(
        None,
        "Problems to accept, comma-separated: nan, flat, clipped, scale, few, "
        "duplicates, shared-subjects, shared-recordings.",
    )

    def options(self) -> "OwnOptions":
        """Return the options for reading recordings."""
        band = _band(self.filter, order=self.filter_order, causal=not self.zero_phase)
        options = own_options(self, band=band, sfreq=self.sfreq, at_least=self.at_least, seed=self.seed)
        if self.zero_phase and not self.filter:
            raise ValueError("--zero-phase needs a filter; give its band with --filter")
        return options


@prepare_app.command()
@with_options
def own(
    out: Out,
    source: SourceOptions,
    trials: TrialOptions,
    processing: ProcessingOptions,
    replace: Replace = False,
) -> None:
    """Your own EDF, BDF, GDF, FIF, BrainVision, WFDB, .npy, .npz, .csv files: by a table, events or BIDS."""
    _prepare(source.plan, trials, processing, out=out, replace=replace)


@dataclass(frozen=True, slots=True)
class MoabbOptions:
    """Selection and preprocessing of a MOABB data set."""

    subjects: str | None = option(None, "Only these subjects: 1-3,7.")
    split: str | None = option(
        None, "What tests: the last quarter of each person's session or run, or of subject."
    )
    filter: str | None = option(None, "Band in Hz: 4-38, 1- or -30; none; default: that of MOABB's paradigm.")
    zero_phase: ZeroPhase = False
    resample: float | None = option(None, "Sampling rate to resample to, in Hz.")
    channels: list[str] | None = option(None, "Channels to keep, in order: C3,Cz,C4; default: all EEG.")
    reference: str | None = option(None, "average, bipolar, or a channel to subtract.")
    start: float | None = option(None, "Start of a window in seconds, relative to MOABB's.", "--from")
    stop: float | None = option(None, "End of a window in seconds, relative to MOABB's start.", "--to")

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the plan."""
        from anchorinv.signal.preprocessing import parse_channels

        same = ("subjects", "split", "resample", "reference", "start", "stop")
        causal = not self.zero_phase
        text = None if self.filter == "none" else self.filter
        band = "paradigm" if self.filter is None else _band(text, order=4, causal=causal)
        channels = parse_channels(self.channels or [])
        processing = {"band": band, "causal": causal, "channels": channels}
        return {name: getattr(self, name) for name in same} | processing


@prepare_app.command()
@with_options
def moabb(
    options: MoabbOptions,
    name: str | None = argument(None, "Such as BNCI2014_001.", metavar="NAME"),
    out: Path | None = option(None, "Prepared folder to make."),
    list_sets: bool = option(False, "List MOABB's data sets.", "--list"),
    replace: Replace = False,
) -> None:
    """Any data set of MOABB, which downloads it; with its trials, labels and paradigms."""
    if list_sets:
        _list_moabb()
        return
    if name is None or out is None:
        raise typer.BadParameter("name a data set and a folder: NAME --out DIR; --list shows the names")
    _prepare("anchorinv.datasets.moabb_sets.plan_moabb", name, out=out, replace=replace, **options.settings())


def _list_moabb() -> None:
    from anchorinv.datasets.moabb_sets import known_sets

    sets = known_sets()
    table = Table("name", "paradigm", "people", "sessions", "classes", title=f"{len(sets)} data sets")
    for dataset in sets:
        first = ", ".join(dataset.classes[:5]) + (" ..." if len(dataset.classes) > 5 else "")
        counts = (str(dataset.n_subjects), str(dataset.n_sessions))
        table.add_row(dataset.name, dataset.paradigm, *counts, f"{len(dataset.classes)}: {first}")
    Terminal().print(table)


def _band(text: str | None, **design: Any) -> "Filter | None":
    from anchorinv.signal.preprocessing import parse_band

    return parse_band(text, **design) if text else None


def _prepare(
    plan: "str | Callable[..., DatasetPlan]", *sources: Any, out: Path, replace: bool, **options: Any
) -> None:
    """Prepare what ``plan`` (a function or its name) returns for sources and options; show the result."""
    from anchorinv.datasets.prepare import check_output, prepare

    with progress_bars():
        # Before the recordings are examined, which takes long.
        check_output(out, replace=replace)
        planned = (resolve_name(plan) if isinstance(plan, str) else plan)(*sources, **options)
        data = prepare(planned, out, replace=replace)
    show(data, out)
