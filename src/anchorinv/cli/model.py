"""Commands that use a model: ``predict``, ``suggest``, ``evaluate``, ``check``, ``export``, ``info`` etc."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from anchorinv.cli.live import predict_stream
from anchorinv.cli.options import (
    REJECT_HELP,
    Allow,
    Device,
    InputOptions,
    Json,
    Model,
    Overwrite,
    Quiet,
    SteadyOptions,
    TrialOptions,
    argument,
    check_target,
    load_model,
    option,
    progress,
    say_json,
    warn,
    with_options,
)
from anchorinv.errors import csv_line, ranges
from anchorinv.terminal import complain, say

if TYPE_CHECKING:
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.novelty import Suggestion
    from anchorinv.serving.files import WindowPlace
    from anchorinv.serving.streaming import Prediction
    from anchorinv.signal.drift import Drift

_SOURCES = "Windows (.npz, .npy, prepared folder) or recordings (EDF, GDF, FIF, WFDB ...)."


@with_options
def predict(
    model: Model,
    sources: list[Path] | None = argument(None, _SOURCES, metavar="INPUT"),
    table: str = option("-", "CSV file to write; - is standard output.", "--csv"),
    *,
    reject: float | None = option(
        None,
        f"{REJECT_HELP} Default: the model's; else no rejection in files, 0.05 in a stream.",
        metavar="SHARE",
    ),
    lsl: str | None = option(None, "Predict a live stream instead: its name in Lab Streaming Layer."),
    out_lsl: str | None = option(None, "With --lsl: send predictions as a stream of markers of this name."),
    as_json: bool = option(False, "With --lsl: print JSON lines.", "--json"),
    inputs: InputOptions,
    smoothing: SteadyOptions,
    allow_recordings: Allow = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict each window of files: a row with its time, class, probability of each class, and novelty.

    Novelty is a p-value, small where a window is like none of the classes. With several files each row begins
    with its file; with --steady each row ends with the class before smoothing. A live stream is predicted
    until Ctrl-C.
    """
    if lsl is not None and not sources and table == "-":
        predict_stream(
            model,
            lsl,
            out_lsl,
            as_json=as_json,
            inputs=inputs,
            smoothing=smoothing,
            reject=reject,
            allow_recordings=allow_recordings,
        )
        return
    if not sources or lsl is not None or out_lsl is not None or as_json:
        raise typer.BadParameter(
            "name files, or a live stream by --lsl; --csv is for files, --out-lsl and --json are for a stream"
        )
    if table != "-":
        check_target(Path(table), model, *sources, such_as="predictions.csv")
    learner = load_model(model, allow_recordings=allow_recordings, device=device, reject=reject)
    n_windows, warnings = _predict_files(learner, sources, table, inputs, smoothing, quiet=quiet)
    warn(*warnings)
    if table != "-":
        _wrote(Path(table), n_windows)


def _predict_files(
    learner: "AnchorInvClassifier",
    sources: Sequence[Path],
    table: str,
    inputs: InputOptions,
    smoothing: SteadyOptions,
    *,
    quiet: bool,
) -> tuple[int, list[str]]:
    """Write the predictions of all files to a table; return the number of windows, and warnings."""
    from anchorinv.serving.files import check_inputs, predict_file
    from anchorinv.serving.streaming import DriftMonitor

    several, reading = len(sources) > 1, inputs.reading()
    steady = smoothing.settings(learner)
    n_windows, warnings = 0, list[str]()
    if several:
        check_inputs(learner, sources, reading, steady=steady)
    with progress(quiet), _open_table(table) as file:
        has_novelty = learner.state_.confidence is not None
        rows = _PredictionTable(
            file, learner.classes_.tolist(), named=several, novelty=has_novelty, raw=steady is not None
        )
        for source in sources:
            monitor = DriftMonitor(learner)
            predicted = predict_file(learner, source, reading, note=monitor, steady=steady)
            n_rows, n_gaps = rows.write(str(source), predicted)
            n_windows += n_rows
            if n_gaps:
                warnings.append(
                    f"{source}: {n_gaps} of {n_rows} windows hold missing samples (NaN) and have no class"
                )
            warnings += _far(source, monitor.drift, inputs.scale)
    return n_windows, warnings


def _wrote(path: Path, n_windows: int | None = None) -> None:
    """Name a file that was written, on standard error: standard output may be for programs."""
    count = "" if n_windows is None else f" ({n_windows} window{'s' if n_windows != 1 else ''})"
    complain(f"Wrote {path}{count}")


@with_options
def suggest(
    model: Model,
    sources: list[Path] = argument(..., _SOURCES, metavar="INPUT"),
    out: Path | None = option(
        None, "File for the windows to teach it with (.npz).", "--out", "-o", metavar="SHOTS.npz"
    ),
    *,
    reject: float | None = option(
        None,
        "Windows with a novelty up to this fit no known class. Default: the model's, or 0.05.",
        metavar="SHARE",
    ),
    least: int = option(10, "Minimum number of similar windows."),
    inputs: InputOptions,
    as_json: Json = False,
    allow_recordings: Allow = False,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Find windows that fit no known class and resemble each other: a candidate for a new class.

    The exit code is 1 if there are none.
    """
    from anchorinv.serving.files import read_unlabelled, write_shots

    if out is not None:
        if out.suffix.lower() != ".npz":
            raise ValueError(f"windows are written as .npz, got {out}; name a file such as shots.npz")
        check_target(out, model, *sources, such_as="shots.npz", overwrite=overwrite)
    learner = load_model(model, allow_recordings=allow_recordings, device=device)
    with progress(quiet):
        signals, places = read_unlabelled(learner, sources, inputs.reading())
    suggestion = learner.suggest_class(signals, reject=reject, least=least)
    if out is not None and suggestion is not None:
        write_shots(out, signals[suggestion.shots], model=learner)
        if as_json:
            _wrote(out, len(suggestion.shots))
    if as_json:
        say_json(_suggestion_facts(suggestion, places))
    elif suggestion is None:
        say(
            f"There is no class to suggest: fewer than {least} of {len(signals)} windows fit no known class "
            f"and resemble each other."
        )
    else:
        say(str(suggestion), *_place_lines([places[i] for i in suggestion.indices]))
        say(
            "The most typical, to teach it with:",
            *_place_lines([places[i] for i in sorted(suggestion.shots)]),
        )
        if out is not None:
            say(f"Windows: {out} has these; anchorinv learn {model} {out} --label NAME -o MODEL")
    if suggestion is None:
        raise typer.Exit(1)


@with_options
def evaluate(
    model: Model,
    data: Path = argument(
        ...,
        "Prepared folder (its test part), .npz with X and y, or a recording with --events.",
        metavar="DATA",
    ),
    *,
    trials: TrialOptions,
    inputs: InputOptions,
    figure: Path | None = option(
        None, "Draw the reliability diagram into this .png, .svg or .pdf.", metavar="FILE"
    ),
    as_json: Json = False,
    allow_recordings: Allow = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Score a model on labelled windows, and measure its calibration."""
    from anchorinv.serving.evaluation import check_picture, draw_reliability, evaluate_file
    from anchorinv.serving.streaming import DriftMonitor

    if figure is not None:
        check_picture(figure)
        check_target(figure, model, data, such_as="reliability.png")
    learner = load_model(model, allow_recordings=allow_recordings, device=device)
    monitor = DriftMonitor(learner)
    with progress(quiet):
        scores = evaluate_file(learner, data, inputs.reading(), labelling=trials.labelling(), note=monitor)
    if figure is not None:
        draw_reliability(scores, figure, f"{model.name} on {data.name}")
    if as_json:
        say_json(scores.facts())
    else:
        say(*scores.lines())
    warn(*_far(data, monitor.drift, inputs.scale))
    if figure is not None:
        _wrote(figure)


@with_options
def check(
    model: Model,
    sources: list[Path] = argument(..., _SOURCES, metavar="INPUT"),
    as_json: Json = False,
    *,
    inputs: InputOptions,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Compare recordings with a model's base data: unit, offset, spectra, covariances.

    The exit code is 1 if any differs so much that predictions should not be trusted.
    """
    from anchorinv.serving.evaluation import check_file

    learner = load_model(model, allow_recordings=allow_recordings)
    reading = inputs.reading()
    with progress(quiet):
        checks = [check_file(learner, path, reading) for path in sources]
    far = any(result.drift.far for result in checks)
    if as_json:
        say_json({"far": far, "inputs": [result.facts() for result in checks]})
    for number, result in enumerate([] if as_json else checks):
        say(*([""] if number else []), *result.lines())
    if far:
        raise typer.Exit(1)


@with_options
def export(
    model: Model,
    graph: Path | None = argument(None, "The graph to write.", metavar="OUT.onnx"),
    out: Path | None = option(
        None, "The same as an option, as of other commands.", "--out", "-o", metavar="OUT.onnx"
    ),
    check: bool = option(False, "First compare it with the model on random windows.", "--check"),
    data: Path | None = option(None, "Compare it on these windows, too.", metavar="INPUT"),
    *,
    inputs: InputOptions,
    allow_recordings: Allow = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Export a model as one ONNX graph, for other languages and devices, with a JSON description."""
    if (graph is None) == (out is None):
        got = "none" if graph is None else f"{graph} and {out}"
        raise typer.BadParameter(
            f"name one graph to write, after the model or with --out; got {got}", param_hint="OUT.onnx"
        )
    target = graph or out
    assert target is not None
    from anchorinv.serving.export import export_model, graph_paths
    from anchorinv.serving.files import read_shots

    for path in graph_paths(target):
        sources = [model] if data is None else [model, data]
        check_target(path, *sources, such_as="model.onnx", overwrite=overwrite)
    learner = load_model(model, allow_recordings=allow_recordings)
    with progress(quiet):
        windows = None if data is None else read_shots(learner, data, inputs.reading())[0]
        facts = export_model(learner, target, check=check, windows=windows)
    checked = facts.get("checked", {})
    say(*(f"Checked on {result.n} {name} windows: {result}" for name, result in checked.items()))
    takes = f"{facts['input']['name']} ({', '.join(map(str, facts['input']['shape']))})"
    outputs = ", ".join(output["name"] for output in facts["outputs"])
    say(
        f"Graph: {target} ({facts['bytes'] / 1e6:.2f} MB, opset {facts['opset']}) takes {takes} "
        f"and gives {outputs}; {graph_paths(target)[1]} describes it"
    )


@with_options
def info(
    model: Model,
    as_json: Json = False,
    card: bool = option(False, "Print a model card, in Markdown.", "--card"),
    out: Path | None = option(None, "File for the card.", "--out", "-o", metavar="FILE"),
    overwrite: Overwrite = False,
) -> None:
    """Show what a model file contains, and where it comes from."""
    from anchorinv.files import replacing
    from anchorinv.persistence.bundle import read_facts
    from anchorinv.persistence.manifest import manifest, manifest_lines, model_card

    if as_json and card:
        raise ValueError("--json and --card exclude each other; leave one of them out")
    if out is not None:
        if not card:
            raise ValueError(f"--out {out} needs --card; add it")
        check_target(out, model, such_as="card.md", overwrite=overwrite)
    facts = manifest(*read_facts(model)) | {"file": str(model), "bytes": model.stat().st_size}
    if as_json:
        say_json(facts)
    elif not card:
        say(f"{model}: {facts['bytes'] / 1e6:.2f} MB", *manifest_lines(facts))
    elif out is None:
        say(*model_card(facts))
    else:
        with replacing(out) as beside:
            beside.write_text("\n".join(model_card(facts)) + "\n", encoding="utf-8")
        say(f"Card: {out}; fill in the parts in italics")


@with_options
def audit(
    model: Model,
    members: Path = option(
        ...,
        "Its training data: prepared folder (training part) or .npz with X, y, subject, session.",
        metavar="DATA",
    ),
    others: Path = option(
        ...,
        "Data not used in training, from a similar recording: prepared folder (test part) or .npz.",
        metavar="DATA",
    ),
    shadows: int | None = option(
        None, "Number of shadow models; default: 32 for closed-form methods, else none.", min=0, max=1000
    ),
    invert: bool = option(True, "Reconstruct signals, which takes longest.", "--invert/--no-invert"),
    forget: str | None = option(
        None, "Also measure what is left of this class after forgetting it.", metavar="CLASS"
    ),
    seed: int = option(0, "Seed of shadow models and samples.", min=0),
    as_json: Json = False,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Attack a model: membership, re-identification, attributes, reconstruction, forgetting.

    Every figure has a 95 % interval and, where there is one, the chance level. docs/privacy.md says what each
    attack does, and what it does not show.
    """
    from anchorinv.serving.audit import audit as run_audit
    from anchorinv.serving.audit import audit_forgetting, read_people

    learner = load_model(model, allow_recordings=allow_recordings)
    labels = {str(label): label for label in learner.classes_.tolist()}
    if forget is not None and forget not in labels:
        raise ValueError(f"class {forget!r} is not known; the model knows {', '.join(labels)}")
    with progress(quiet):
        inside = read_people(learner, members, split="train")
        outside = read_people(learner, others, split="test")
        report = run_audit(learner, inside, outside, shadows=shadows, invert=invert, seed=seed)
        if forget is not None:
            forgetting = audit_forgetting(learner, labels[forget], inside, outside)
            report = replace(report, figures=(*report.figures, *forgetting.figures))
    if as_json:
        say_json(report.facts() | {"file": str(model)})
    else:
        say(*report.lines())


def _place_lines(places: "Sequence[WindowPlace]") -> list[str]:
    """Return a line for each file: the starts of windows in seconds, or their numbers."""
    lines = []
    for path in dict.fromkeys(place.path for place in places):
        in_file = [place for place in places if place.path == path]
        times = ", ".join(f"{place.time:.6g}" for place in in_file if place.time is not None)
        which = f"at {times} s" if times else f"windows {ranges(place.window for place in in_file)}"
        lines.append(f"  {path}: {which}")
    return lines


def _suggestion_facts(suggestion: "Suggestion | None", places: "Sequence[WindowPlace]") -> dict[str, Any]:
    if suggestion is None:
        return {"windows": len(places), "suggestion": None}
    shots = set(suggestion.shots.tolist())
    group = [
        {"file": str(place.path), "window": place.window, "time": place.time, "shot": i in shots}
        for i, place in ((i, places[i]) for i in suggestion.indices.tolist())
    ]
    facts = {"rejected": suggestion.n_rejected, "own": suggestion.own, "separation": suggestion.separation}
    return {"windows": len(places), "suggestion": {**facts, "nearest": suggestion.nearest, "group": group}}


def _far(source: Path, drift: "Drift | None", scale: float) -> list[str]:
    """Return a warning about a file that is far from the base data, if it is."""
    if drift is None or not drift.far:
        return []
    return [f"{source}: {replace(drift, scaled=scale).verdict}"]


@contextmanager
def _open_table(table: str) -> Iterator[TextIO]:
    """Yield a file to write rows to, atomically, or standard output."""
    from anchorinv.files import replacing

    try:
        if table == "-":
            yield sys.stdout
            sys.stdout.flush()
        else:
            with replacing(Path(table)) as beside, beside.open("w", newline="", encoding="utf-8") as file:
                yield file
    except BrokenPipeError:
        # The reader closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


@dataclass
class _PredictionTable:
    """Write predictions row by row.

    With ``named`` a row begins with its file, with ``raw`` it ends with the class before smoothing.
    """

    file: TextIO
    classes: Sequence[object]
    named: bool
    novelty: bool
    raw: bool

    def __post_init__(self) -> None:
        more = [*(["novelty"] if self.novelty else []), *(["raw_class"] if self.raw else [])]
        header = ("file", "window", "time", "class", *(f"p_{name}" for name in self.classes), *more)
        # Printed with the first row: an unreadable input prints nothing.
        self._header = self._line(*header)

    def write(self, name: str, rows: "Iterator[tuple[WindowPlace, Prediction]]") -> tuple[int, int]:
        """Write a file's rows; return how many there are, and how many of them have no class."""
        n_rows = n_gaps = 0
        for place, row in rows:
            time = "" if place.time is None else f"{place.time:.6g}"
            if row.probabilities is None:
                cells = [""] * (1 + len(self.classes) + self.novelty + self.raw)
                n_gaps += 1
            else:
                cells = [row.label, *(f"{p:.6f}" for p in row.probabilities)]
                cells += [f"{row.novelty:.6g}"] if self.novelty else []
                cells += [row.raw_label] if self.raw else []
            self._write(self._line(name, place.window, time, *cells))
            n_rows += 1
        self._write("")
        return n_rows, n_gaps

    def _line(self, name: str, *cells: object) -> str:
        return csv_line([name, *cells] if self.named else cells)

    def _write(self, line: str) -> None:
        self.file.write(self._header + line)
        self._header = ""
