"""``anchorinv train``, ``learn``, ``forget``, ``calibrate``: make a model file, and change what it knows."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[Path, typer.Argument(help="A model file.", metavar="MODEL")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The model file to write.", metavar="MODEL")]
Allow = Annotated[bool, typer.Option("--allow-recordings", help="Handle models that hold real recordings.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Step = Annotated[
    float | None, typer.Option(min=0, help="Seconds between windows of a recording; default: their length.")
]
Scale = Annotated[
    float, typer.Option(help="Multiply recordings by this, if their unit is not the model's (1e6: V to µV).")
]


def train(
    data: Annotated[Path, typer.Argument(help="Prepared folder, or .npz with X and y.", metavar="DATA")],
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
        typer.Option(help="Edges in Hz of the band-pass that DATA went through; recordings will, too."),
    ] = None,
    order: Annotated[int, typer.Option(help="Order of that filter (Butterworth).")] = 4,
    zero_phase: Annotated[
        bool, typer.Option("--zero-phase", help="That filter ran forwards and backwards.")
    ] = False,
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
    import numpy as np

    from anchorinv.commands.targets import check_target
    from anchorinv.data.windowed import open_windows
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.signal.filters import Filter
    from anchorinv.terminal import say

    check_target(out)
    if method == "real-replay" and not allow_recordings:
        raise ValueError(
            "real-replay writes recordings into the model; pass --allow-recordings if they may be"
        )
    file = open_windows(data, split="train")
    if file.labels is None:
        raise ValueError(f"{data} has no labels; an array y with one per window is needed")
    if sfreq and file.sfreq and sfreq != file.sfreq:
        raise ValueError(f"{data} says {file.sfreq:g} Hz, --sfreq {sfreq:g} Hz; leave the option out")
    if unit and file.preprocessing.unit and unit != file.preprocessing.unit:
        raise ValueError(f"{data} says {file.preprocessing.unit}, --unit {unit}; leave the option out")
    if band and (rate := sfreq or file.sfreq):
        Filter(*band, order, not zero_phase).sections(rate)  # a filter that no recording could go through
    windows, labels, groups = file.all(), file.labels, file.groups if new_people else None
    if new_people and groups is None:
        raise ValueError(
            f"{data} does not say whose its windows are; add an array groups, one name per window"
        )
    if classes:
        wanted = [part.strip() for part in classes.split(",")]
        if unknown := [name for name in wanted if name not in labels.astype(str)]:
            raise ValueError(
                f"{data} has no class {unknown[0]!r}; it has {', '.join(np.unique(labels.astype(str)))}"
            )
        chosen = np.isin(labels.astype(str), wanted)
        windows, labels = windows[chosen], labels[chosen]
        groups = None if groups is None else groups[chosen]
    known = file.preprocessing
    how = replace(known, unit=unit or known.unit)  # reference, rate and all that DATA tells
    if band:
        how = replace(how, filter=Filter(*band, order, not zero_phase), unrepeatable=None, by_trial=False)
    model = AnchorInvClassifier(
        sfreq=sfreq or file.sfreq,
        preprocessing=how,
        method=method,
        network=network,
        epochs=epochs,
        n_anchors=anchors,
        inversion_steps=inversion_steps,
        finetune_steps=finetune_steps,
        random_state=seed,
        verbose=not quiet,
    )
    model.fit(windows, labels, groups)
    model.set_params(verbose=False)
    model.save(out, with_signals=with_signals, allow_recordings=allow_recordings)
    names = ", ".join(map(str, model.classes_.tolist()))
    say(
        f"Trained on {len(labels)} windows of {len(model.classes_)} classes: {names}",
        f"Model: {out} ({out.stat().st_size / 1e6:.2f} MB)",
    )


def learn(
    model: Model,
    shots: Annotated[
        list[Path],
        typer.Argument(
            help="Examples: .npz with X and y; .npy or recordings with --label.", metavar="SHOTS..."
        ),
    ],
    out: Out,
    label: Annotated[str | None, typer.Option(help="The class of all examples.")] = None,
    step: Step = None,
    scale: Scale = 1.0,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Teach a model a new class from a few examples; tell what it does to the old ones, then write it."""
    import numpy as np

    from anchorinv.commands.targets import check_target, label_like, progress
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.serving import shots as read_shots
    from anchorinv.model.serving import taught
    from anchorinv.terminal import complain, say

    check_target(out)
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    had_signals = learner.state_.signals is not None
    with progress(quiet):
        read = [read_shots(learner, path, step=step, scale=scale) for path in shots]
        labels: list[Any] = []
        for path, (windows, found) in zip(shots, read, strict=True):
            if label is None and found is None:
                raise ValueError(f"{path} has no labels; name the class of its examples with --label")
            named = found.tolist() if label is None and found is not None else []
            labels += named or [label_like(learner, str(label))] * len(windows)
        lesson = taught(learner, np.concatenate([windows for windows, _ in read]), labels)
    say(*lesson.told())
    complain(*(f"anchorinv: warning: {line}" for line in lesson.warnings()))
    learner.save(out, with_signals=had_signals, allow_recordings=allow_recordings)
    say(f"Model: {out} knows {', '.join(map(str, learner.classes_.tolist()))}")


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
        typer.Argument(help="Recordings or windows of one person; labels are not needed.", metavar="DATA..."),
    ],
    out: Out,
    step: Step = None,
    scale: Scale = 1.0,
    force: Annotated[
        bool, typer.Option("--force", help="Also where rehearsal speaks against it, or says nothing.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Adapt a model to a person or a day that it has not seen, by windows without labels."""
    import numpy as np

    from anchorinv.commands.targets import check_target, progress
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.serving import shots as read_shots
    from anchorinv.terminal import say

    check_target(out)
    learner = AnchorInvClassifier.load(model)
    with progress(quiet):
        read = [read_shots(learner, path, step=step, scale=scale)[0] for path in windows]
    learner.calibrate(np.concatenate(read), force=force)
    learner.save(out)
    say(f"Model: {out} is calibrated by {sum(map(len, read))} windows; the model without is {model}")
