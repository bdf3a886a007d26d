"""``anchorinv predict``, ``evaluate`` and ``info``: use a model file, and look into it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from anchorinv.commands.teach import Allow, Model, Quiet, Scale, Step
from anchorinv.quoting import as_json as written
from anchorinv.quoting import csv_line

if TYPE_CHECKING:
    from anchorinv.model.serving import Row


def predict(
    model: Model,
    source: Annotated[
        Path,
        typer.Argument(
            help="Windows (.npz, .npy, prepared folder) or a recording (EDF, GDF, FIF, WFDB ...).",
            metavar="INPUT",
        ),
    ],
    table: Annotated[str, typer.Option("--csv", help="File for the rows; - is standard output.")] = "-",
    step: Step = None,
    scale: Scale = 1.0,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Predict each window of a file: a row with its time, class and the probability of each class."""
    from anchorinv.commands.targets import check_target, progress
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.serving import predicted
    from anchorinv.model.watching import Watch
    from anchorinv.terminal import complain

    if table != "-":
        check_target(Path(table))
    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    watch = Watch(learner)
    rows = predicted(learner, source, step=step, scale=scale, note=watch)
    with progress(quiet), _opened(table) as file:
        n_rows, n_gaps = _write(file, learner.classes_.tolist(), rows)
    if n_gaps:
        complain(
            f"anchorinv: warning: {n_gaps} of {n_rows} windows hold missing samples (NaN) and have no class"
        )
    if (found := watch.drift) is not None and found.far:
        complain(f"anchorinv: warning: {replace(found, scaled=scale).verdict}")


def evaluate(
    model: Model,
    data: Annotated[
        Path,
        typer.Argument(help="Prepared folder (its test part), or .npz with X and y.", metavar="DATA"),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Score a model on labelled windows."""
    from anchorinv.commands.targets import progress
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.scoring import scored
    from anchorinv.terminal import say

    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    with progress(quiet):
        score = scored(learner, data)
    say(*(written(score.facts()).split("\n") if as_json else score.told()))


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
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            raise
        # Whoever read has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def _write(file: TextIO, classes: list[object], rows: "Iterator[Row]") -> tuple[int, int]:
    """Write the rows; return how many there are, and how many of them have no class."""
    first = next(rows, None)  # before anything is written: an input that cannot be read leaves no trace
    file.write(csv_line(["window", "time", "class", *(f"p_{name}" for name in classes)]))
    n_rows = n_gaps = 0
    for row in chain([] if first is None else [first], rows):
        time = "" if row.time is None else f"{row.time:.6g}"
        if row.probabilities is None:
            file.write(csv_line([row.window, time, "", *("" for _ in classes)]))
            n_gaps += 1
        else:
            file.write(csv_line([row.window, time, row.label, *(f"{p:.6f}" for p in row.probabilities)]))
        n_rows += 1
    return n_rows, n_gaps
