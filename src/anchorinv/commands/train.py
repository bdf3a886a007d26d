"""``anchorinv train``: make a model file of labelled windows, or of recordings by their events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorinv.commands.options import Allow, Events, From, Out, Quiet, To, labelling_of

if TYPE_CHECKING:
    import numpy as np

    from anchorinv.data.labelling import Labelling
    from anchorinv.data.own_files import Options
    from anchorinv.data.windowed import WindowFile
    from anchorinv.signal.filters import Filter
    from anchorinv.signal.preprocessing import Preprocessing

_RECORDINGS = "For recordings"


def train(
    data: Annotated[
        list[Path],
        typer.Argument(help="Prepared folder, .npz with X and y, or recordings.", metavar="DATA"),
    ],
    out: Out,
    method: Annotated[str, typer.Option(help="A method of the catalogue.")] = "discriminant",
    network: Annotated[
        str, typer.Option(help="A network beside the default method's features: never, rehearse, always.")
    ] = "never",
    classes: Annotated[str, typer.Option(help="Base classes, with commas between; default: all.")] = "",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of methods with a network; default: as the data say.")
    ] = None,
    anchors: Annotated[int, typer.Option(min=1, help="Anchors kept of each class.")] = 50,
    inversion_steps: Annotated[int, typer.Option(min=0, help="Steps of the inversion, at the most.")] = 200,
    finetune_steps: Annotated[
        int | None, typer.Option(min=0, help="Steps of each lesson to come; default: chosen in the lesson.")
    ] = None,
    sfreq: Annotated[float | None, typer.Option(help="Rate in Hz, if DATA does not say it.")] = None,
    unit: Annotated[str | None, typer.Option(help="Unit of DATA (V, mV, uV), if it does not say it.")] = None,
    band: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="Edges in Hz of the band-pass that windows went through, or that recordings go through."
        ),
    ] = None,
    order: Annotated[int, typer.Option(help="Order of that filter (Butterworth).")] = 4,
    zero_phase: Annotated[
        bool, typer.Option("--zero-phase", help="That filter runs forwards and backwards.")
    ] = False,
    events: Events = None,
    start: From = 0.0,
    stop: To = None,
    channels: Annotated[
        list[str] | None,
        typer.Option(
            help="Channels to take, renamed where they have others: C3,EEG 2=Cz.",
            rich_help_panel=_RECORDINGS,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="average, bipolar, or a channel to subtract.", rich_help_panel=_RECORDINGS),
    ] = None,
    resample: Annotated[
        float | None, typer.Option(help="Rate to bring all to, in Hz.", rich_help_panel=_RECORDINGS)
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            help="Cut trials into windows of so many seconds; without it a trial is one.",
            rich_help_panel=_RECORDINGS,
        ),
    ] = None,
    overlap: Annotated[
        float,
        typer.Option(help="Share of a window that the next one repeats.", rich_help_panel=_RECORDINGS),
    ] = 0.0,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Let a kind of problem pass, as in prepare own: nan, flat ...", rich_help_panel=_RECORDINGS
        ),
    ] = None,
    new_people: Annotated[
        bool,
        typer.Option(
            "--new-people",
            help="Choose for people (or days, of few people) who are not in DATA; they are its groups.",
        ),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="For results that repeat.")] = None,
    with_signals: Annotated[
        bool, typer.Option("--with-signals", help="Write the inverted signals too, to look at.")
    ] = False,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Train on base classes and write a model file that can be handed over."""
    from anchorinv.commands.targets import check_target, progress
    from anchorinv.data.own_files import Options
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.signal.channels import parse_channels
    from anchorinv.signal.filters import Filter
    from anchorinv.terminal import say

    check_target(out, *data)
    if method == "real-replay" and not allow_recordings:
        raise ValueError(
            "real-replay writes recordings into the model; pass --allow-recordings if they may be"
        )
    if zero_phase and not band:
        raise ValueError("--zero-phase is the way a filter runs; give its edges with --band")
    filtered = Filter(*band, order, not zero_phase) if band else None
    labelling = labelling_of(events, start, stop)
    if labelling is None:
        cut = {"--channels": channels, "--reference": reference, "--resample": resample, "--window": window,
               "--overlap": overlap, "--allow": allow}  # fmt: skip
        if idle := [name for name, value in cut.items() if value]:
            raise ValueError(
                f"{idle[0]} is for recordings that --events cuts; name their events, or leave it out"
            )
        file = _labelled_windows(data)
        known = _with(file, data[0], sfreq=sfreq, unit=unit, band=filtered)
    else:
        if unit is not None:
            raise ValueError("--unit is of windows; recordings say their own, and voltages are taken in µV")
        names, rename = parse_channels(channels or [])
        settings = Options(
            channels=names or None, rename=rename, reference=reference, band=filtered, resample=resample,
            sfreq=sfreq, window=window, overlap=overlap, at_least=1,
            allow=frozenset({"few", *(kind.strip() for text in allow or [] for kind in text.split(","))}),
        )  # fmt: skip
        with progress(quiet):
            file = _cut(data, settings, labelling)
        known = file.preprocessing
    chosen = _chosen(file, classes, new_people=new_people)
    model = AnchorInvClassifier(
        sfreq=known.sfreq,
        preprocessing=known,
        method=method,
        network=network,
        epochs=epochs,
        n_anchors=anchors,
        inversion_steps=inversion_steps,
        finetune_steps=finetune_steps,
        random_state=seed,
        verbose=not quiet,
    )
    model.fit(chosen.windows, chosen.labels, chosen.groups)
    model.set_params(verbose=False)
    model.save(out, with_signals=with_signals, allow_recordings=allow_recordings)
    say(
        f"Trained on {len(chosen.labels)} windows of {len(model.classes_)} classes: "
        f"{', '.join(map(str, model.classes_.tolist()))}",
        f"Model: {out} ({out.stat().st_size / 1e6:.2f} MB)",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    windows: "np.ndarray"
    labels: "np.ndarray"
    groups: "np.ndarray | None"


def _labelled_windows(paths: Sequence[Path]) -> "WindowFile":
    from anchorinv.data.windowed import open_windows
    from anchorinv.signal.kinds import unlabelled

    if len(paths) > 1:
        raise ValueError(
            f"{paths[0]} and {paths[1]}: several inputs must be recordings with --events; put windows into "
            f"one file, or prepare a folder (anchorinv prepare own)"
        )
    file = open_windows(paths[0], split="train")
    if file.labels is None:
        raise unlabelled(paths[0])
    return file


def _with(
    file: "WindowFile", path: Path, *, sfreq: float | None, unit: str | None, band: "Filter | None"
) -> "Preprocessing":
    """Return what windows went through: as the file says and, where it does not, as the user does."""
    from anchorinv.signal.preprocessing import unit_of

    known = file.preprocessing
    if sfreq and file.sfreq and sfreq != file.sfreq:
        raise ValueError(f"{path} says {file.sfreq:g} Hz, --sfreq {sfreq:g} Hz; leave the option out")
    if unit and known.unit and unit_of(unit) != known.unit:
        raise ValueError(f"{path} says {known.unit}, --unit {unit}; leave the option out")
    rate = sfreq or file.sfreq
    if band is not None:
        if known.filter is not None and known.filter != band:
            raise ValueError(f"{path} says that it was filtered ({known.filter}); leave --band out")
        if rate:
            band.sections(rate)  # a filter that no recording could go through
        known = replace(known, filter=band, unrepeatable=None)
    return replace(known, unit=unit or known.unit, sfreq=rate)


def _cut(paths: Sequence[Path], settings: "Options", labelling: "Labelling") -> "WindowFile":
    """Return the windows of recordings by their events, prepared as ``prepare own`` does."""
    from anchorinv.data.own import plan_recordings
    from anchorinv.data.windowed import of_dataset
    from anchorinv.data.writing import gather

    data = gather(plan_recordings(paths, settings, labelling, split="train"))
    return of_dataset(data, ", ".join(path.name for path in paths[:3]))


def _chosen(file: "WindowFile", classes: str, *, new_people: bool) -> _Chosen:
    import numpy as np

    assert file.labels is not None
    groups = file.groups if new_people else None
    if new_people and groups is None:
        raise ValueError(
            f"{file.name} does not say whose its windows are; add an array groups, one name per window"
        )
    here = np.ones(len(file.labels), dtype=bool)
    if classes:
        wanted, present = [part.strip() for part in classes.split(",")], file.labels.astype(str)
        if unknown := [name for name in wanted if name not in present]:
            raise ValueError(
                f"{file.name} has no class {unknown[0]!r}; it has {', '.join(np.unique(present))}"
            )
        here = np.isin(present, wanted)
    return _Chosen(file.all()[here], file.labels[here], None if groups is None else groups[here])
