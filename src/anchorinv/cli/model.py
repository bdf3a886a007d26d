"""``anchorinv learn``, ``add``, ``forget``, ``calibrate`` change a model file, the others here use it."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

import typer

from anchorinv.cli.live import predict_stream
from anchorinv.cli.options import (
    REJECT,
    Allow,
    Author,
    Device,
    InputOptions,
    Json,
    Model,
    Note,
    Out,
    Quiet,
    SteadyOptions,
    TrialOptions,
    check_target,
    progress,
    with_options,
)
from anchorinv.errors import as_json as to_json
from anchorinv.errors import csv_line, ranges
from anchorinv.terminal import complain, say

if TYPE_CHECKING:
    import numpy as np

    from anchorinv.datasets.own import Labelling
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.files import PredictedWindow, ReadOptions, WindowPlace
    from anchorinv.signal.drift import Drift
    from anchorinv.suggestion import Suggestion

Report = TypeVar("Report")
_SOURCES = "Windows (.npz, .npy, prepared folder) or recordings (EDF, GDF, FIF, WFDB ...)."


@dataclass(frozen=True, slots=True)
class ExampleOptions:
    """Which examples a model is given, and where the model that learned them goes."""

    model: Model
    shots: Annotated[
        list[Path],
        typer.Argument(
            help="Examples: .npz with X and y; .npy or recordings with --label; recordings with --events.",
            metavar="SHOTS",
        ),
    ]
    out: Out
    label: Annotated[str | None, typer.Option(help="The class of all examples.")] = None
    force: Annotated[
        bool, typer.Option("--force", help="Also from examples whose scale is nothing like the base data's.")
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
    """Teach a model a new class from a few examples; tell what it does to the old ones, then write it."""
    from anchorinv.serving.learning_report import learn_classes

    model, report, with_signals = _taught(learn_classes, examples, trials, inputs)
    say(*report.lines())
    complain(*(f"anchorinv: warning: {line}" for line in report.warnings()))
    examples.save(model, with_signals=with_signals)
    say(_known(examples.out, model))


@with_options
def add(examples: ExampleOptions, trials: TrialOptions, inputs: InputOptions) -> None:
    """Give a model more examples of classes that it knows; tell what that did, then write it."""
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
    """Remove a class: its prototype, anchors and replay; predictions among the others stay as they are."""
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
        typer.Option("--force", help="Also where rehearsal speaks against it or says nothing, or units do."),
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Adapt a model to a person or a day that it has not seen, by windows without labels."""
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
    say(f"Model: {out} is calibrated by {sum(map(len, signals))} windows; the model without is {model}")


@with_options
def predict(
    model: Model,
    sources: Annotated[list[Path] | None, typer.Argument(help=_SOURCES, metavar="INPUT")] = None,
    table: Annotated[str, typer.Option("--csv", help="File for the rows; - is standard output.")] = "-",
    *,
    reject: Annotated[
        float | None,
        typer.Option(help=f"{REJECT} Default: as the model was trained.", metavar="SHARE"),
    ] = None,
    lsl: Annotated[
        str | None, typer.Option(help="Predict a live stream instead: its name in Lab Streaming Layer.")
    ] = None,
    out_lsl: Annotated[
        str | None, typer.Option(help="With --lsl: send predictions as a stream of markers of this name.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --lsl: a line of JSON each.")] = False,
    inputs: InputOptions,
    steadying: SteadyOptions,
    allow_recordings: Allow = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict each window of files: a row with its time, class, probability of each class, and novelty.

    Novelty is a p-value: small where a window is like none of the classes. Of several files each row begins
    with the file it is of. Steadied rows end with the class of the window by itself. A live stream is
    predicted until Ctrl-C.
    """
    if lsl is not None:
        predict_stream(
            model,
            lsl,
            out_lsl,
            as_json=as_json,
            inputs=inputs,
            steadying=steadying,
            reject=reject,
            allow_recordings=allow_recordings,
        )
        return
    if not sources or out_lsl is not None or as_json:
        raise typer.BadParameter("name files, or a live stream by --lsl, which --out-lsl and --json are for")
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.learning import known_confidence
    from anchorinv.serving.files import check_inputs, predict_file
    from anchorinv.serving.streaming import DriftMonitor
    from anchorinv.settings import check_settings

    if table != "-":
        check_target(Path(table), model, *sources, such_as="predictions.csv")
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings, device=device)
    if reject is not None:
        check_settings(learner.set_params(reject=reject).get_params(deep=False))
        known_confidence(learner.state_)
    several, reading = len(sources) > 1, inputs.reading()
    steady = steadying.smoothing(learner.n_times_ / learner.sfreq_ if learner.sfreq_ else None)
    warnings: list[str] = []
    if several:
        check_inputs(learner, sources, reading, steady=steady)
    with progress(quiet), _opened(table) as file:
        tells = learner.state_.confidence is not None
        rows = _PredictionTable(
            file, learner.classes_.tolist(), named=several, novelty=tells, raw=steady is not None
        )
        for source in sources:
            monitor = DriftMonitor(learner)
            predicted = predict_file(learner, source, reading, note=monitor, steady=steady)
            n_rows, n_gaps = rows.write(str(source), predicted)
            if n_gaps:
                warnings.append(
                    f"{source}: {n_gaps} of {n_rows} windows hold missing samples (NaN) and have no class"
                )
            warnings += _far(source, monitor.drift, inputs.scale)
    complain(*(f"anchorinv: warning: {sentence}" for sentence in warnings))


@with_options
def suggest(
    model: Model,
    sources: Annotated[list[Path], typer.Argument(help=_SOURCES, metavar="INPUT")],
    shots: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the windows to teach it with here.", metavar="SHOTS.npz"),
    ] = None,
    *,
    reject: Annotated[
        float | None,
        typer.Option(
            help="Windows with a novelty up to this fit no known class. Default: the model's, or 0.05.",
            metavar="SHARE",
        ),
    ] = None,
    least: Annotated[int, typer.Option(help="Windows that have to resemble each other.")] = 10,
    inputs: InputOptions,
    as_json: Json = False,
    allow_recordings: Allow = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Look for windows that fit no known class and resemble each other: a class that might be taught.

    The exit code is 1 if there is none.
    """
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.files import read_unlabelled, write_shots

    if shots is not None:
        if shots.suffix.lower() != ".npz":
            raise ValueError(f"windows are written as .npz, got {shots}; name a file such as shots.npz")
        check_target(shots, model, *sources, such_as="shots.npz")
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings, device=device)
    with progress(quiet):
        signals, places = read_unlabelled(learner, sources, inputs.reading())
    found = learner.suggest_class(signals, reject=reject, least=least)
    if shots is not None and found is not None:
        write_shots(shots, signals[found.shots], model=learner)
    if as_json:
        say(*to_json(_suggestion_facts(found, places)).split("\n"))
    elif found is None:
        say(
            f"Of {len(signals)} windows no {least} fit no known class and resemble each other: there is no "
            f"class to suggest."
        )
    else:
        say(str(found), *_place_lines([places[i] for i in found.indices]))
        say("The most typical, to teach it with:", *_place_lines([places[i] for i in sorted(found.shots)]))
        if shots is not None:
            say(f"Windows: {shots} has these; anchorinv learn {model} {shots} --label NAME -o MODEL")
    if found is None:
        raise typer.Exit(1)


@with_options
def evaluate(
    model: Model,
    data: Annotated[
        Path,
        typer.Argument(
            help="Prepared folder (its test part), .npz with X and y, or a recording with --events.",
            metavar="DATA",
        ),
    ],
    trials: TrialOptions,
    inputs: InputOptions,
    figure: Annotated[
        Path | None,
        typer.Option(help="Draw the reliability diagram into this .png, .svg or .pdf.", metavar="FILE"),
    ] = None,
    as_json: Json = False,
    allow_recordings: Allow = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Score a model on labelled windows, and tell whether its probabilities mean what they say."""
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.evaluation import check_picture, draw_reliability, evaluate_file
    from anchorinv.serving.streaming import DriftMonitor

    if figure is not None:
        check_picture(figure)
        check_target(figure, model, data, such_as="reliability.png")
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings, device=device)
    monitor = DriftMonitor(learner)
    with progress(quiet):
        scores = evaluate_file(learner, data, inputs.reading(), labelling=trials.labelling(), note=monitor)
    if figure is not None:
        draw_reliability(scores, figure, f"{model.name} on {data.name}")
    say(*(to_json(scores.facts()).split("\n") if as_json else scores.lines()))
    complain(*(f"anchorinv: warning: {sentence}" for sentence in _far(data, monitor.drift, inputs.scale)))


@with_options
def check(
    model: Model,
    sources: Annotated[list[Path], typer.Argument(help=_SOURCES, metavar="INPUT...")],
    as_json: Json = False,
    *,
    inputs: InputOptions,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Tell how far recordings are from a model's base data: unit, offset, spectra, covariances.

    The exit code is 1 if any is so far that predictions should not be trusted.
    """
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.evaluation import check_file

    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    reading = inputs.reading()
    with progress(quiet):
        checks = [check_file(learner, path, reading) for path in sources]
    far = any(each.drift.far for each in checks)
    if as_json:
        say(*to_json({"far": far, "inputs": [each.facts() for each in checks]}).split("\n"))
    for number, each in enumerate([] if as_json else checks):
        say(*([""] if number else []), *each.lines())
    if far:
        raise typer.Exit(1)


@with_options
def export(
    model: Model,
    graph: Annotated[Path, typer.Argument(help="The graph to write.", metavar="OUT.onnx")],
    check: Annotated[
        bool, typer.Option("--check", help="First compare it with the model on random windows.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Compare it on these windows, too.", metavar="INPUT")
    ] = None,
    *,
    inputs: InputOptions,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Write a model as one graph of ONNX, for other languages and devices, with a JSON that describes it."""
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.export import described, export_model
    from anchorinv.serving.files import read_shots

    for path in described(graph):
        check_target(path, model, *([] if data is None else [data]), such_as="model.onnx")
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    with progress(quiet):
        windows = None if data is None else read_shots(learner, data, inputs.reading())[0]
        facts = export_model(learner, graph, check=check, windows=windows)
    say(*(f"Checked on {each.n} {name} windows: {each}" for name, each in facts.get("checked", {}).items()))
    takes = f"{facts['input']['name']} ({', '.join(map(str, facts['input']['shape']))})"
    says = ", ".join(each["name"] for each in facts["outputs"])
    say(
        f"Graph: {graph} ({facts['bytes'] / 1e6:.2f} MB, opset {facts['opset']}) takes {takes} "
        f"and gives {says}; {described(graph)[1]} describes it"
    )


def info(
    model: Model,
    as_json: Json = False,
    card: Annotated[bool, typer.Option("--card", help="As a model card, in Markdown.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Write the card into this file, which is not there.", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Tell what a model file holds and what it does not, and where it comes from."""
    from anchorinv.persistence.bundle import read_facts
    from anchorinv.persistence.manifest import manifest, manifest_lines

    if as_json and card:
        raise ValueError("--json and --card are two forms of the same; leave one of them out")
    if out is not None:
        _check_card_target(out, model, card=card)
    facts = manifest(*read_facts(model)) | {"file": str(model), "bytes": model.stat().st_size}
    if as_json:
        say(*to_json(facts).split("\n"))
    elif card:
        _write_card(facts, out)
    else:
        say(f"{model}: {facts['bytes'] / 1e6:.2f} MB", *manifest_lines(facts))


def _check_card_target(out: Path, model: Path, *, card: bool) -> None:
    if not card:
        raise ValueError(f"--out {out} is for a card; add --card")
    check_target(out, model, such_as="card.md")
    if out.exists():
        raise ValueError(
            f"{out} is there already, and may hold what somebody filled in; name another file, or remove it"
        )


def _write_card(facts: dict[str, Any], out: Path | None) -> None:
    from anchorinv.files import replacing
    from anchorinv.serving.model_card import model_card

    lines = model_card(facts)
    if out is None:
        say(*lines)
        return
    with replacing(out) as beside:
        beside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    say(f"Card: {out}; fill in the parts in italics")


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
    """Return the windows of all files (n, n_chans, n_times) and the class of each; none in another unit."""
    import numpy as np

    from anchorinv.validation import as_label

    label = examples.label
    if label is not None and labelling is not None:
        raise ValueError("--label and --events both say the class of examples; leave one of them out")
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
    """Refuse a file in another unit, unless forced; name the --scale that is right, whatever it was."""
    from anchorinv.validation import refuse_drift

    if not force:
        try:
            refuse_drift(replace(model.check(windows), scaled=scale))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _place_lines(places: "Sequence[WindowPlace]") -> list[str]:
    """Return a line for each file: the starts of windows in seconds, or their numbers."""
    lines = []
    for path in dict.fromkeys(each.path for each in places):
        here = [each for each in places if each.path == path]
        times = ", ".join(f"{each.time:.6g}" for each in here if each.time is not None)
        where = f"at {times} s" if times else f"windows {ranges(each.window for each in here)}"
        lines.append(f"  {path}: {where}")
    return lines


def _suggestion_facts(found: "Suggestion | None", places: "Sequence[WindowPlace]") -> dict[str, Any]:
    if found is None:
        return {"windows": len(places), "suggestion": None}
    shots = set(found.shots.tolist())
    group = [
        {"file": str(place.path), "window": place.window, "time": place.time, "shot": i in shots}
        for i, place in ((i, places[i]) for i in found.indices.tolist())
    ]
    facts = {"rejected": found.n_rejected, "own": found.own, "separation": found.separation}
    return {"windows": len(places), "suggestion": {**facts, "nearest": found.nearest, "group": group}}


def _known(out: Path, model: "AnchorInvClassifier") -> str:
    return f"Model: {out} knows {', '.join(map(str, model.classes_.tolist()))}"


def _far(source: Path, drift: "Drift | None", scale: float) -> list[str]:
    """Return a warning about a file that is far from the base data, if it is."""
    if drift is None or not drift.far:
        return []
    return [f"{source}: {replace(drift, scaled=scale).verdict}"]


@contextmanager
def _opened(table: str) -> Iterator[TextIO]:
    """Give a file to write rows to, whole or not at all, or standard output."""
    from anchorinv.files import replacing

    try:
        if table == "-":
            yield sys.stdout
            sys.stdout.flush()
        else:
            with replacing(Path(table)) as beside, beside.open("w", newline="", encoding="utf-8") as file:
                yield file
    except BrokenPipeError:
        # Whoever read has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


@dataclass
class _PredictionTable:
    """Write predictions as they come, after a header.

    ``named`` rows begin with their file, ``raw`` ones end with the class of the window by itself.
    """

    file: TextIO
    classes: Sequence[object]
    named: bool
    novelty: bool = False
    raw: bool = False
    begun: bool = False

    def write(self, name: str, rows: "Iterator[PredictedWindow]") -> tuple[int, int]:
        """Write a file's rows; return how many there are, and how many of them have no class."""
        n_rows = n_gaps = 0
        for row in rows:
            self._begin()
            time = "" if row.time is None else f"{row.time:.6g}"
            if row.probabilities is None:
                cells = [""] * (1 + len(self.classes) + self.novelty + self.raw)
                n_gaps += 1
            else:
                more = [f"{row.novelty:.6g}"] if self.novelty else []
                more += [row.raw_label] if self.raw else []
                cells = [row.label, *(f"{p:.6f}" for p in row.probabilities), *more]
            self._line(name, row.window, time, *cells)
            n_rows += 1
        self._begin()
        return n_rows, n_gaps

    def _begin(self) -> None:
        # Not before there is a row to write: an input that cannot be read leaves no trace.
        if not self.begun:
            more = [*(["novelty"] if self.novelty else []), *(["raw_class"] if self.raw else [])]
            self._line("file", "window", "time", "class", *(f"p_{name}" for name in self.classes), *more)
            self.begun = True

    def _line(self, name: str, *cells: object) -> None:
        self.file.write(csv_line([name, *cells] if self.named else cells))
