"""``anchorinv learn``, ``add``, ``forget``, ``calibrate``: change what a model file knows."""

from pathlib import Path
from typing import Annotated

import typer

from anchorinv.commands.options import (
    Allow,
    Events,
    Force,
    From,
    Label,
    Model,
    Out,
    Quiet,
    Rate,
    Rename,
    Scale,
    Shots,
    Step,
    To,
    labelling_of,
    reading_of,
)


def learn(
    model: Model,
    shots: Shots,
    out: Out,
    label: Label = None,
    events: Events = None,
    start: From = 0.0,
    stop: To = None,
    channels: Rename = None,
    sfreq: Rate = None,
    step: Step = None,
    scale: Scale = 1.0,
    force: Force = False,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Teach a model a new class from a few examples; tell what it does to the old ones, then write it."""
    from anchorinv.commands.examples import read_examples
    from anchorinv.commands.targets import check_target, progress
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.serving import taught
    from anchorinv.terminal import complain, say

    check_target(out, *shots)
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    had_signals = learner.state_.signals is not None
    with progress(quiet):
        windows, labels = read_examples(
            learner,
            shots,
            label=label,
            labelling=labelling_of(events, start, stop),
            reading=reading_of(step, scale, channels, sfreq),
            force=force,
        )
        lesson = taught(learner, windows, labels, force=force)
    say(*lesson.told())
    complain(*(f"anchorinv: warning: {line}" for line in lesson.warnings()))
    learner.save(out, with_signals=had_signals, allow_recordings=allow_recordings)
    say(f"Model: {out} knows {', '.join(map(str, learner.classes_.tolist()))}")


def add(
    model: Model,
    shots: Shots,
    out: Out,
    label: Label = None,
    events: Events = None,
    start: From = 0.0,
    stop: To = None,
    channels: Rename = None,
    sfreq: Rate = None,
    step: Step = None,
    scale: Scale = 1.0,
    force: Force = False,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Give a model more examples of classes that it knows; tell what that did, then write it."""
    from anchorinv.commands.examples import read_examples
    from anchorinv.commands.targets import check_target, progress
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.adding import added
    from anchorinv.terminal import say

    check_target(out, *shots)
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    had_signals = learner.state_.signals is not None
    with progress(quiet):
        windows, labels = read_examples(
            learner,
            shots,
            label=label,
            labelling=labelling_of(events, start, stop),
            reading=reading_of(step, scale, channels, sfreq),
            force=force,
        )
        more = added(learner, windows, labels, force=force)
    say(*(each.told() for each in more))
    learner.save(out, with_signals=had_signals, allow_recordings=allow_recordings)
    counts = zip(learner.classes_.tolist(), learner.counts_.tolist(), strict=True)
    say(f"Model: {out} has examples of {', '.join(f'{name} ({n})' for name, n in counts)}")


def forget(
    model: Model,
    label: Annotated[str, typer.Argument(help="The class to forget.", metavar="CLASS")],
    out: Out,
    allow_recordings: Allow = False,
) -> None:
    """Remove a class: its prototype, anchors and replay; predictions among the others stay as they are."""
    from anchorinv.commands.targets import check_target, label_like
    from anchorinv.core.discriminant import Discriminant
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.terminal import say

    check_target(out)
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    learner.forget_class(label_like(learner, label))
    # Signals are in the file only if they were before.
    learner.save(out, with_signals=True, allow_recordings=allow_recordings)
    say(f"Model: {out} knows {', '.join(map(str, learner.classes_.tolist()))}")
    if not isinstance(learner.state_.head, Discriminant):
        say(f"Weights that were trained while {label!r} was known may keep traces of it.")


def calibrate(
    model: Model,
    windows: Annotated[
        list[Path],
        typer.Argument(help="Recordings or windows of one person; labels are not needed.", metavar="DATA"),
    ],
    out: Out,
    step: Step = None,
    scale: Scale = 1.0,
    channels: Rename = None,
    sfreq: Rate = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also where rehearsal speaks against it or says nothing, or units do."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Adapt a model to a person or a day that it has not seen, by windows without labels."""
    import numpy as np

    from anchorinv.commands.targets import check_target, check_units, progress
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.serving import shots as read_shots
    from anchorinv.terminal import say

    check_target(out, *windows)
    learner = AnchorInvClassifier.load(model)
    reading = reading_of(step, scale, channels, sfreq)
    with progress(quiet):
        read = [read_shots(learner, path, reading)[0] for path in windows]
    for path, each in zip(windows, read, strict=True):
        check_units(learner, path, each, scale=scale, force=force)
    found = np.concatenate(read)
    learner.calibrate(found, force=force)
    learner.save(out)
    say(f"Model: {out} is calibrated by {sum(map(len, read))} windows; the model without is {model}")
