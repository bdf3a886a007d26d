"""``anchorinv prepare``: raw recordings into a folder that every study reads."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorinv.commands.options import Events, From, To, labelling_of

if TYPE_CHECKING:
    from anchorinv.data.plan import Plan
    from anchorinv.signal.filters import Filter

app = typer.Typer(
    help="Turn raw recordings into a folder that every study reads.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Raw = Annotated[Path, typer.Option(help="Folder with the downloaded files, at any depth.")]
Out = Annotated[Path, typer.Option(help="Prepared folder to make.")]
Replace = Annotated[bool, typer.Option("--replace", help="Prepare anew what is already prepared.")]
TrialsFile = Annotated[Path, typer.Option(help="The .npz file, or a folder with it, at any depth.")]
Band = Annotated[str | None, typer.Option("--filter", help="Band in Hz: 1-40, 1- or -30; or conformer.")]
ZeroPhase = Annotated[
    bool, typer.Option("--zero-phase", help="Filter forwards and backwards instead of causally.")
]
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

    def plan() -> "Plan":
        from anchorinv.data.bci2a import plan_bci2a
        from anchorinv.signal.filters import parse_band

        band = parse_band(filter) if filter else None
        return plan_bci2a(raw, form=form, band=band, allow_missing=allow_missing)

    _prepare(plan, out, replace=replace)


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

    def plan() -> "Plan":
        from anchorinv.data.nhie import plan_nhie

        return plan_nhie(raw, seed=seed, allow_missing=allow_missing, live=live)

    _prepare(plan, out, replace=replace)


@app.command()
def grabmyo(
    raw: Raw, out: Out, allow_missing: AllowMissing = False, live: Live = False, replace: Replace = False
) -> None:
    """GRABMyo: 43 people, 16 gestures, 3 days; sessions 1 and 2 train, 3 tests."""

    def plan() -> "Plan":
        from anchorinv.data.grabmyo import plan_grabmyo

        return plan_grabmyo(raw, allow_missing=allow_missing, live=live)

    _prepare(plan, out, replace=replace)


@app.command()
def emg_longterm(
    raw: TrialsFile,
    out: Out,
    hold_out: Annotated[
        str | None,
        typer.Option(
            help="Days of the training part that test instead, such as 16-20; days 21-30 are left out."
        ),
    ] = None,
    replace: Replace = False,
) -> None:
    """Long-term EMG: 3 people, 22 motions, 30 days; days 1 to 20 train, 21 to 30 test."""

    def plan() -> "Plan":
        from anchorinv.data.longterm import plan_longterm

        return plan_longterm(raw, hold_out=hold_out)

    _prepare(plan, out, replace=replace)


@app.command()
def eeg_stress(
    raw: TrialsFile,
    out: Out,
    band: Band = None,
    zero_phase: ZeroPhase = False,
    hold_out: Annotated[
        str | None,
        typer.Option(help="The trial of the training part that tests instead, 1 or 2; trial 3 is left out."),
    ] = None,
    replace: Replace = False,
) -> None:
    """SAM 40: EEG of 20 people, relaxed and in 3 stressful tasks; trials 1 and 2 train, 3 tests."""

    def plan() -> "Plan":
        from anchorinv.data.stress import plan_stress

        return plan_stress(raw, band=_band(band, zero_phase=zero_phase), hold_out=hold_out)

    _prepare(plan, out, replace=replace)


@app.command()
def eeg_motor_imagery(
    raw: TrialsFile,
    out: Out,
    band: Band = None,
    zero_phase: ZeroPhase = False,
    hold_out: Annotated[
        str | None,
        typer.Option(
            help="Runs of the training part that test instead, such as 8,10; runs 12 and 14 are left out."
        ),
    ] = None,
    replace: Replace = False,
) -> None:
    """EEG Motor Movement/Imagery: 20 people, 4 imagined movements; runs 4, 6, 8, 10 train, 12 and 14 test."""

    def plan() -> "Plan":
        from anchorinv.data.motor_imagery import plan_motor_imagery

        return plan_motor_imagery(raw, band=_band(band, zero_phase=zero_phase), hold_out=hold_out)

    _prepare(plan, out, replace=replace)


@app.command()
def ecg_beats(
    raw: TrialsFile,
    out: Out,
    hold_out: Annotated[
        str | None,
        typer.Option(
            help="Samples of the training part where beats test instead, such as 290000-433332; those from "
            "433333 are left out."
        ),
    ] = None,
    replace: Replace = False,
) -> None:
    """MIT-BIH Arrhythmia: beats of 22 ECG records; the first two thirds of each train, the last tests."""

    def plan() -> "Plan":
        from anchorinv.data.ecg_beats import plan_ecg_beats

        return plan_ecg_beats(raw, hold_out=hold_out)

    _prepare(plan, out, replace=replace)


@app.command()
def own(
    out: Out,
    manifest: Annotated[
        Path | None,
        typer.Option(help="Table (CSV): path, label and, where known, subject, session, split, start, stop."),
    ] = None,
    npz: Annotated[Path | None, typer.Option(help="One file with X (n, channels, times) and y.")] = None,
    recordings: Annotated[
        list[Path] | None,
        typer.Option("--recording", help="A recording with --events; once for each, in place of a table."),
    ] = None,
    bids: Annotated[Path | None, typer.Option(help="A BIDS folder of EEG or EMG, with --events.")] = None,
    task: Annotated[str | None, typer.Option(help="Of the BIDS folder, this task alone.")] = None,
    subjects: Annotated[
        str | None, typer.Option(help="Of the BIDS folder, these people alone: 01,02.")
    ] = None,
    datatype: Annotated[str | None, typer.Option(help="Of the BIDS folder, eeg, emg or ieeg alone.")] = None,
    events: Events = None,
    start: From = 0.0,
    stop: To = None,
    channels: Annotated[
        list[str] | None,
        typer.Option(help="Names to keep, in order, renamed where they have others: C3,EEG 2=Cz,C4."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="average (common average), bipolar (channels C3-Cz ...), or a channel to subtract."
        ),
    ] = None,
    filter: Annotated[str | None, typer.Option(help="Band in Hz: 0.5-40, 1- or -30; or conformer.")] = None,
    filter_order: Annotated[int, typer.Option(help="Order of the Butterworth filter.")] = 4,
    zero_phase: ZeroPhase = False,
    resample: Annotated[float | None, typer.Option(help="Rate to bring all to, in Hz.")] = None,
    sfreq: Annotated[float | None, typer.Option(help="Rate of files that do not say theirs, in Hz.")] = None,
    window: Annotated[
        float | None, typer.Option(help="Cut into windows of so many seconds; without it a row is a window.")
    ] = None,
    overlap: Annotated[float, typer.Option(help="Share of a window that the next one repeats.")] = 0.0,
    at_least: Annotated[int, typer.Option(help="Training samples that a class needs.")] = 10,
    seed: Annotated[int | None, typer.Option(help="Of the split, where the table gives none.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Let kinds of problems pass, with commas between: nan, flat, clipped, scale, few, "
            "duplicates, shared-subjects, shared-recordings."
        ),
    ] = None,
    replace: Replace = False,
) -> None:
    """Your own EDF, BDF, GDF, FIF, BrainVision, WFDB, .npy, .npz, .csv files: by a table, events or BIDS."""

    def plan() -> "Plan":
        from anchorinv.data.own import plan_bids, plan_manifest, plan_npz, plan_recordings
        from anchorinv.data.own_files import Options
        from anchorinv.signal.channels import parse_channels
        from anchorinv.signal.filters import parse_band

        names, rename = parse_channels(channels or [])
        options = Options(
            channels=names or None,
            rename=rename,
            reference=reference,
            band=parse_band(filter, order=filter_order, causal=not zero_phase) if filter else None,
            resample=resample,
            sfreq=sfreq,
            window=window,
            overlap=overlap,
            at_least=at_least,
            allow=frozenset(kind for given in allow or () for kind in given.replace(",", " ").split()),
            seed=seed,
        )
        if zero_phase and not filter:
            raise ValueError("--zero-phase is the way a filter runs; give its band with --filter")
        labelling = labelling_of(events, start, stop)
        ways = {"--manifest": manifest, "--npz": npz, "--recording": recordings, "--bids": bids}
        given = [name for name, value in ways.items() if value]
        if len(given) != 1:
            raise ValueError(
                "give your recordings with one of --manifest TABLE.csv, --npz FILE.npz, --recording FILE or "
                f"--bids FOLDER; got {' and '.join(given) or 'none'}"
            )
        if bids is None and (task or subjects or datatype):
            raise ValueError("--task, --subjects and --datatype choose from a BIDS folder; give --bids")
        if manifest is not None:
            return plan_manifest(manifest, options, labelling)
        if npz is not None:
            if labelling is not None:
                raise ValueError("--events are of recordings, and an .npz file has its labels in y")
            return plan_npz(npz, options)
        if labelling is None:
            raise ValueError(f"{given[0]} needs --events: which events of the recordings are which classes")
        if recordings:
            return plan_recordings(recordings, options, labelling)
        assert bids is not None
        people = [name.strip() for name in subjects.split(",")] if subjects else None
        return plan_bids(bids, options, labelling, task=task, subjects=people, datatype=datatype)

    _prepare(plan, out, replace=replace)


def _band(text: str | None, *, zero_phase: bool) -> "Filter | None":
    from anchorinv.signal.filters import parse_band

    return parse_band(text, causal=not zero_phase) if text else None


def _prepare(planned: Callable[[], "Plan"], out: Path, *, replace: bool) -> None:
    """Prepare with a progress bar, and show what came out."""
    from anchorinv.bars import progress_bars
    from anchorinv.commands.data import show
    from anchorinv.data.writing import check_place, prepare
    from anchorinv.terminal import complain

    try:
        with progress_bars():
            # Before the long look at the recordings: it may all be in vain.
            check_place(out, replace=replace)
            data = prepare(planned(), out, replace=replace)
    except KeyboardInterrupt:
        complain("", "anchorinv: stopped; run the same command again to go on from here")
        raise typer.Exit(130) from None
    show(data, out)
