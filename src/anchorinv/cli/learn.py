"""``anchorinv learn``, ``add``, ``forget``, ``calibrate``: commands that change a model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from anchorinv.cli.options import (
    Allow,
    Author,
    Device,
    InputOptions,
    Model,
    Note,
    Out,
    Quiet,
    TrialOptions,
    check_target,
    progress,
    with_options,
)
from anchorinv.terminal import complain, say

if TYPE_CHECKING:
    import numpy as np

    from anchorinv.datasets.own import Labelling
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.files import ReadOptions

Report = TypeVar("Report")


@dataclass(frozen=True, slots=True)
class ExampleOptions:
    """Examples to learn from, and the model file to write."""

    model: Model
    shots: Annotated[
        list[Path],
        typer.Argument(
            help="Examples: .npz with X and y; .npy or recordings with --label; recordings with --events.",
            metavar="SHOTS",
        ),
    ]
    out: Out
    label: Annotated[str | None, typer.Option(help="Class of all examples.")] = None
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also learn from examples whose scale is very different from the base data's."
        ),
    ] = False
    allow_recordings: Allow = False
    device: Device = "auto"
    note: Note = None
    author: Author = None
    quiet: Quiet = False

    def save(self, model: "AnchorInvClassifier", *, with_signals: bool) -> None:
        """Write the model that learned them."""
        words = {"note": self.note, "author": self.author}
        model.save(self.out, with_signals=with_signals, allow_recordings=self.allow_recordings, **words)


@with_options
def learn(examples: ExampleOptions, trials: TrialOptions, inputs: InputOptions) -> None:
    """Teach a model a new class from a few examples; report the effect on old classes."""
    from anchorinv.serving.learning_report import learn_classes

    model, report, with_signals = _taught(learn_classes, examples, trials, inputs)
    say(*report.lines())
    complain(*(f"anchorinv: warning: {line}" for line in report.warnings()))
    examples.save(model, with_signals=with_signals)
    say(_known(examples.out, model))


@with_options
def add(examples: ExampleOptions, trials: TrialOptions, inputs: InputOptions) -> None:
    """Give a model more examples of known classes; report the effect."""
    from anchorinv.serving.learning_report import add_examples

    model, added, with_signals = _taught(add_examples, examples, trials, inputs)
    say(*(each.line() for each in added))
    examples.save(model, with_signals=with_signals)
    counts = zip(model.classes_.tolist(), model.counts_.tolist(), strict=True)
    say(f"Model: {examples.out} has examples of {', '.join(f'{name} ({n})' for name, n in counts)}")


def forget(
    model: Model,
    label: Annotated[str, typer.Argument(help="The class to forget.", metavar="CLASS")],
    out: Out,
    allow_recordings: Allow = False,
) -> None:
    """Remove a class and everything kept of it; predictions among the other classes do not change."""
    from anchorinv.core.registry import METHODS
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.validation import as_label

    check_target(out)
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    learner.forget_class(as_label(learner.classes_, label))
    # Signals are in the file only if they were before.
    learner.save(out, with_signals=True, allow_recordings=allow_recordings)
    say(_known(out, learner), f"Class {label!r} was forgotten: {METHODS[learner.method].forgetting}")


@with_options
def calibrate(
    model: Model,
    windows: Annotated[
        list[Path],
        typer.Argument(help="Recordings or windows of one person; labels are not needed.", metavar="DATA"),
    ],
    out: Out,
    inputs: InputOptions,
    force: Annotated[
        bool,
        typer.Option("--force", help="Calibrate even if rehearsal advises against it, or units differ."),
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Adapt a model to an unseen person or day, by windows without labels."""
    import numpy as np

    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.files import read_shots

    check_target(out, *windows)
    learner = AnchorInvClassifier.load(model, device=device)
    reading = inputs.reading()
    with progress(quiet):
        signals = [read_shots(learner, path, reading)[0] for path in windows]
    for path, each in zip(windows, signals, strict=True):
        _check_units(learner, path, each, scale=reading.scale, force=force)
    learner.calibrate(np.concatenate(signals), force=force)
    learner.save(out)
    say(f"Model: {out} is calibrated by {sum(map(len, signals))} windows; {model} is unchanged")


def _taught(
    teach: Callable[..., Report], examples: ExampleOptions, trials: TrialOptions, inputs: InputOptions
) -> "tuple[AnchorInvClassifier, Report, bool]":
    """Load a model and teach it; return it, the report, and whether its file held inverted signals."""
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.persistence.provenance import check_words

    check_target(examples.out, *examples.shots)
    check_words(note=examples.note, author=examples.author)
    model = AnchorInvClassifier.load(
        examples.model, allow_recordings=examples.allow_recordings, device=examples.device
    )
    with_signals = model.state_.signals is not None
    with progress(examples.quiet):
        windows, labels = _read_examples(model, examples, trials.labelling(), inputs.reading())
        report = teach(model, windows, labels, force=examples.force)
    return model, report, with_signals


def _read_examples(
    model: "AnchorInvClassifier",
    examples: ExampleOptions,
    labelling: "Labelling | None",
    reading: "ReadOptions",
) -> "tuple[np.ndarray, list[Any]]":
    """Return the windows of all files (n, n_chans, n_times) and their classes; other units are refused."""
    import numpy as np

    from anchorinv.validation import as_label

    label = examples.label
    if label is not None and labelling is not None:
        raise ValueError("--label and --events both give the class of examples; leave one of them out")
    signals: list[np.ndarray] = []
    labels: list[Any] = []
    for path, windows, own in _labelled_files(model, examples.shots, labelling, reading):
        if label is None and own is None:
            raise ValueError(
                f"{path} has no labels; name the class of its examples with --label, or its events with "
                "--events"
            )
        _check_units(model, path, windows, scale=reading.scale, force=examples.force)
        signals.append(windows)
        labels += [as_label(model.classes_, label)] * len(windows) if label is not None else list(own or ())
    return np.concatenate(signals), labels


def _labelled_files(
    model: "AnchorInvClassifier", paths: Sequence[Path], labelling: "Labelling | None", reading: "ReadOptions"
) -> "Iterator[tuple[Path, np.ndarray, list[Any] | None]]":
    """Yield the windows of each file, and their classes if it has them."""
    from anchorinv.serving.files import from_events, read_shots
    from anchorinv.validation import as_label

    if labelling is not None:
        for path, windows, names in from_events(model, paths, labelling, reading):
            yield path, windows, [as_label(model.classes_, name) for name in names.tolist()]
        return
    for path in paths:
        windows, labels = read_shots(model, path, reading)
        yield path, windows, None if labels is None else labels.tolist()


def _check_units(
    model: "AnchorInvClassifier", path: Path, windows: "np.ndarray", *, scale: float, force: bool
) -> None:
    """Refuse a file in another unit, unless forced; the message has the right --scale."""
    from anchorinv.validation import refuse_drift

    if not force:
        try:
            refuse_drift(replace(model.check(windows), scaled=scale))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _known(out: Path, model: "AnchorInvClassifier") -> str:
    return f"Model: {out} knows {', '.join(map(str, model.classes_.tolist()))}"
