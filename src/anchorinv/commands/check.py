"""``anchorinv check``: hold recordings against a model's base data, before they are trusted or taught."""

from pathlib import Path
from typing import Annotated

import typer

from anchorinv.commands.options import Allow, Model, Quiet, Rate, Rename, Scale, Step, reading_of
from anchorinv.quoting import as_json as written


def check(
    model: Model,
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Windows (.npz, .npy, prepared folder) or recordings (EDF, GDF, FIF, WFDB ...).",
            metavar="INPUT...",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    step: Step = None,
    scale: Scale = 1.0,
    channels: Rename = None,
    sfreq: Rate = None,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Tell how far recordings are from a model's base data: unit, offset, spectra, covariances.

    The exit code is 1 if any is so far that predictions should not be trusted.
    """
    from anchorinv.commands.targets import progress
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.checking import checked
    from anchorinv.terminal import say

    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    reading = reading_of(step, scale, channels, sfreq)
    with progress(quiet):
        found = [checked(learner, path, reading) for path in sources]
    far = any(each.drift.far for each in found)
    if as_json:
        say(*written({"far": far, "inputs": [each.facts() for each in found]}).split("\n"))
    for number, each in enumerate([] if as_json else found):
        say(*([""] if number else []), *each.told())
    if far:
        raise typer.Exit(1)
