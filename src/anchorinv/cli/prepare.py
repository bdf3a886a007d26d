"""``anchorinv prepare``: raw recordings into a folder that every study reads."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorinv.cli.options import TrialOptions, ZeroPhase, interruptible, own_options, with_options
from anchorinv.terminal import progress_bars

if TYPE_CHECKING:
    from anchorinv.datasets.own_files import OwnOptions
    from anchorinv.datasets.prepare import DatasetPlan
    from anchorinv.signal.preprocessing import Filter

app = typer.Typer(
    help="Turn raw recordings into a folder that every study reads.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Raw = Annotated[Path, typer.Option(help="Folder with the downloaded files, at any depth.")]
Out = Annotated[Path, typer.Option(help="Prepared folder to make.")]
Replace = Annotated[bool, typer.Option("--replace", help="Prepare anew what is already prepared.")]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Do with what is there, and list the rest.")
]
Live = Annotated[
    bool,
    typer.Option("--live", help="Resample as a live source can be, not by the spectrum as the authors did."),
]


@app.command()
def bci2a(
    raw: Raw,
    out: Out,
    form: Annotated[
        str | None, typer.Option(help="gdf, bnci or converted, where the folder holds several.")
    ] = None,
    filter: Annotated[
        str | None, typer.Option(help="conformer (4-40 Hz, as EEG-Conformer), or a band such as 0.5-40.")
    ] = None,
    allow_missing: AllowMissing = False,
    replace: Replace = False,
) -> None:
    """BCI Competition IV 2a: 9 people, 4 imagined movements; session T trains, E tests."""
    plan = "anchorinv.datasets.bci2a.plan_bci2a"
    options = {"form": form, "band": _band(filter), "allow_missing": allow_missing}
    _prepare(plan, raw, out=out, replace=replace, **options)


@app.command()
def nhie(
    raw: Raw,
    out: Out,
    seed: Annotated[
        int | None, typer.Option(help="Of the split by baby; without it the published one.")
    ] = None,
    allow_missing: AllowMissing = False,
    live: Live = False,
    replace: Replace = False,
) -> None:
    """NHIE: 169 hours of EEG of 53 newborns, graded 1 to 4; a baby is never on both sides."""
    plan = "anchorinv.datasets.recording_sets.plan_nhie"
    _prepare(plan, raw, out=out, replace=replace, seed=seed, allow_missing=allow_missing, live=live)


@app.command()
def grabmyo(
    raw: Raw, out: Out, allow_missing: AllowMissing = False, live: Live = False, replace: Replace = False
) -> None:
    """GRABMyo: 43 people, 16 gestures, 3 days; sessions 1 and 2 train, 3 tests."""
    plan = "anchorinv.datasets.recording_sets.plan_grabmyo"
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

    app.command(command, help=help)(filtered if with_filter else unfiltered)


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
    """Where own recordings are: one of a table, an .npz file, recordings, or a BIDS folder."""

    manifest: Annotated[
        Path | None,
        typer.Option(help="Table (CSV): path, label and, where known, subject, session, split, start, stop."),
    ] = None
    npz: Annotated[Path | None, typer.Option(help="One file with X (n, channels, times) and y.")] = None
    recordings: Annotated[
        list[Path] | None,
        typer.Option("--recording", help="A recording with --events; once for each, in place of a table."),
    ] = None
    bids: Annotated[Path | None, typer.Option(help="A BIDS folder of EEG or EMG, with --events.")] = None
    task: Annotated[str | None, typer.Option(help="Of the BIDS folder, this task alone.")] = None
    subjects: Annotated[str | None, typer.Option(help="Of the BIDS folder, these people alone: 01,02.")] = (
        None
    )
    datatype: Annotated[str | None, typer.Option(help="Of the BIDS folder, eeg, emg or ieeg alone.")] = None

    def plan(self, trials: TrialOptions, processing: "ProcessingOptions") -> "DatasetPlan":
        """Return what is to be prepared."""
        from anchorinv.datasets.own import plan_bids, plan_manifest, plan_npz, plan_recordings

        options, labelling = processing.options(), trials.labelling()
        ways = {"manifest": self.manifest, "npz": self.npz, "recording": self.recordings, "bids": self.bids}
        given = [f"--{name}" for name, value in ways.items() if value]
        if len(given) != 1:
            raise ValueError(
                "give your recordings with one of --manifest TABLE.csv, --npz FILE.npz, --recording FILE or "
                f"--bids FOLDER; got {' and '.join(given) or 'none'}"
            )
        if self.bids is None and (self.task or self.subjects or self.datatype):
            raise ValueError("--task, --subjects and --datatype choose from a BIDS folder; give --bids")
        if self.manifest is not None:
            return plan_manifest(self.manifest, options, labelling)
        if self.npz is not None:
            if labelling is not None:
                raise ValueError("--events are of recordings, and an .npz file has its labels in y")
            return plan_npz(self.npz, options)
        if labelling is None:
            raise ValueError(f"{given[0]} needs --events: which events of the recordings are which classes")
        if self.recordings:
            return plan_recordings(self.recordings, options, labelling)
        assert self.bids is not None
        people = [name.strip() for name in self.subjects.split(",")] if self.subjects else None
        return plan_bids(
            self.bids, options, labelling, task=self.task, subjects=people, datatype=self.datatype
        )


@dataclass(frozen=True, slots=True)
class ProcessingOptions:
    """What is done to own recordings, and what is asked of them."""

    channels: Annotated[
        list[str] | None,
        typer.Option(help="Names to keep, in order, renamed where they have others: C3,EEG 2=Cz,C4."),
    ] = None
    reference: Annotated[
        str | None,
        typer.Option(
            help="average (common average), bipolar (channels C3-Cz ...), or a channel to subtract."
        ),
    ] = None
    filter: Annotated[str | None, typer.Option(help="Band in Hz: 0.5-40, 1- or -30; or conformer.")] = None
    filter_order: Annotated[int, typer.Option(help="Order of the Butterworth filter.")] = 4
    zero_phase: ZeroPhase = False
    resample: Annotated[float | None, typer.Option(help="Rate to bring all to, in Hz.")] = None
    sfreq: Annotated[float | None, typer.Option(help="Rate of files that do not say theirs, in Hz.")] = None
    window: Annotated[
        float | None, typer.Option(help="Cut into windows of so many seconds; without it a row is a window.")
    ] = None
    overlap: Annotated[float, typer.Option(help="Share of a window that the next one repeats.")] = 0.0
    at_least: Annotated[int, typer.Option(help="Training samples that a class needs.")] = 10
    seed: Annotated[int | None, typer.Option(help="Of the split, where the table gives none.")] = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Let kinds of problems pass, with commas between: nan, flat, clipped, scale, few, "
            "duplicates, shared-subjects, shared-recordings."
        ),
    ] = None

    def options(self) -> "OwnOptions":
        """Return them as recordings are read by."""
        band = _band(self.filter, order=self.filter_order, causal=not self.zero_phase)
        options = own_options(self, band=band, sfreq=self.sfreq, at_least=self.at_least, seed=self.seed)
        if self.zero_phase and not self.filter:
            raise ValueError("--zero-phase is the way a filter runs; give its band with --filter")
        return options


@app.command()
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


def _band(text: str | None, **design: Any) -> "Filter | None":
    from anchorinv.signal.preprocessing import parse_band

    return parse_band(text, **design) if text else None


def _prepare(
    plan: "str | Callable[..., DatasetPlan]", *sources: Any, out: Path, replace: bool, **options: Any
) -> None:
    """Prepare what ``plan``, a function or its name, makes of sources and options; show the result."""
    from anchorinv.cli.data import show
    from anchorinv.datasets.prepare import check_output, prepare

    with interruptible("run the same command again to go on from here"), progress_bars():
        # Before the long look at the recordings: it may all be in vain.
        check_output(out, replace=replace)
        planned = (resolve_name(plan) if isinstance(plan, str) else plan)(*sources, **options)
        data = prepare(planned, out, replace=replace)
    show(data, out)
