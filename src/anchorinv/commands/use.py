"""``anchorinv predict``, ``evaluate`` and ``info``: use a model file, and look into it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from anchorinv.commands.options import (
    Allow,
    Events,
    From,
    Model,
    Quiet,
    Rate,
    Rename,
    Scale,
    Step,
    To,
    labelling_of,
    reading_of,
)
from anchorinv.quoting import as_json as written


def predict(
    model: Model,
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Windows (.npz, .npy, prepared folder) or recordings (EDF, GDF, FIF, WFDB ...).",
            metavar="INPUT",
        ),
    ],
    table: Annotated[str, typer.Option("--csv", help="File for the rows; - is standard output.")] = "-",
    step: Step = None,
    scale: Scale = 1.0,
    channels: Rename = None,
    sfreq: Rate = None,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Predict each window of files: a row with its time, class and the probability of each class.

    Of several files each row begins with the file it is of.
    """
    from anchorinv.commands.rows import Rows, opened
    from anchorinv.commands.targets import check_target, progress
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.serving import check_inputs, predicted
    from anchorinv.model.watching import Watch
    from anchorinv.terminal import complain

    if table != "-":
        check_target(Path(table), model, *sources, such_as="predictions.csv")
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    several, reading = len(sources) > 1, reading_of(step, scale, channels, sfreq)
    said: list[str] = []
    if several:
        check_inputs(learner, sources, reading)
    with progress(quiet), opened(table) as file:
        rows = Rows(file, learner.classes_.tolist(), named=several)
        for source in sources:
            watch = Watch(learner)
            n_rows, n_gaps = rows.write(str(source), predicted(learner, source, reading, note=watch))
            if n_gaps:
                said.append(
                    f"{source}: {n_gaps} of {n_rows} windows hold missing samples (NaN) and have no class"
                )
            if (found := watch.drift) is not None and found.far:
                said.append(f"{source}: {replace(found, scaled=scale).verdict}")
    complain(*(f"anchorinv: warning: {sentence}" for sentence in said))


def evaluate(
    model: Model,
    data: Annotated[
        Path,
        typer.Argument(
            help="Prepared folder (its test part), .npz with X and y, or a recording with --events.",
            metavar="DATA",
        ),
    ],
    events: Events = None,
    start: From = 0.0,
    stop: To = None,
    step: Step = None,
    scale: Scale = 1.0,
    channels: Rename = None,
    sfreq: Rate = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Score a model on labelled windows."""
    from anchorinv.commands.targets import progress
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.scoring import scored
    from anchorinv.model.watching import Watch
    from anchorinv.terminal import complain, say

    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    watch = Watch(learner)
    with progress(quiet):
        score = scored(
            learner,
            data,
            reading_of(step, scale, channels, sfreq),
            labelling=labelling_of(events, start, stop),
            note=watch,
        )
    say(*(written(score.facts()).split("\n") if as_json else score.told()))
    if (found := watch.drift) is not None and found.far:
        complain(f"anchorinv: warning: {data}: {replace(found, scaled=scale).verdict}")


def info(
    model: Model,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Tell what a model file holds and what it does not."""
    from anchorinv.model.bundle import read_facts
    from anchorinv.model.manifest import manifest, told
    from anchorinv.terminal import say

    facts = manifest(*read_facts(model)) | {"file": str(model), "bytes": model.stat().st_size}
    if as_json:
        say(*written(facts).split("\n"))
    else:
        say(f"{model}: {facts['bytes'] / 1e6:.2f} MB", *told(facts))
