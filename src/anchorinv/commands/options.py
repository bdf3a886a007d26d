"""Options that several commands share, each with its one help text, and what they mean together."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from anchorinv.data.labelling import Labelling
    from anchorinv.model.sources import Reading

Model = Annotated[Path, typer.Argument(help="A model file.", metavar="MODEL")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The model file to write.", metavar="MODEL")]
Allow = Annotated[bool, typer.Option("--allow-recordings", help="Handle models that hold real recordings.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Step = Annotated[
    float | None, typer.Option(min=0, help="Seconds between windows of a recording; default: their length.")
]
Scale = Annotated[
    float, typer.Option(help="Multiply the signals by this, if their unit is not the model's (1e6: V to µV).")
]
Rename = Annotated[
    list[str] | None,
    typer.Option("--channels", help="Channels that have other names here: OLD=NEW, with commas between."),
]
Rate = Annotated[
    float | None, typer.Option("--sfreq", help="Rate in Hz of recordings that do not say theirs.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Also from examples whose scale is nothing like the base data's.")
]
Events = Annotated[
    list[str] | None,
    typer.Option(
        help="Events of the recording that are trials: T1=left,T2=right (anchorinv events lists them)."
    ),
]
From = Annotated[float, typer.Option("--from", help="Where a trial begins, in seconds from its event.")]
To = Annotated[
    float | None, typer.Option("--to", help="Where it ends; without it where the event does by itself.")
]
Shots = Annotated[
    list[Path],
    typer.Argument(
        help="Examples: .npz with X and y; .npy or recordings with --label; recordings with --events.",
        metavar="SHOTS",
    ),
]
Label = Annotated[str | None, typer.Option(help="The class of all examples.")]


def renaming(texts: list[str] | None) -> dict[str, str]:
    """Return what ``--channels OLD=NEW`` maps; nothing else may stand there."""
    from anchorinv.signal.channels import parse_channels

    names, rename = parse_channels(texts or [])
    if plain := [name for name in names if name not in rename.values()]:
        raise ValueError(
            f"--channels takes OLD=NEW here, got {plain[0]!r}; the model knows which channels it takes"
        )
    return rename


def reading_of(
    step: float | None, scale: float, channels: list[str] | None, sfreq: float | None
) -> "Reading":
    """Return what a user says of files, as one value."""
    from anchorinv.model.sources import Reading

    if sfreq is not None and not 0 < sfreq < float("inf"):
        raise ValueError(f"--sfreq is a rate in Hz above 0, got {sfreq:g}")
    return Reading(step, scale, renaming(channels), sfreq)


def labelling_of(events: list[str] | None, start: float, stop: float | None) -> "Labelling | None":
    """Return how events become labels; None where no events are named."""
    from anchorinv.data.labelling import Labelling

    if events:
        return Labelling.parse(events, start, stop)
    if start or stop is not None:
        raise ValueError("--from and --to say where trials lie around events; name these with --events")
    return None
