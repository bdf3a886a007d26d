"""``anchorinv audit``: measure what a model file reveals about the people it was trained on."""

from pathlib import Path
from typing import Annotated

import typer

from anchorinv.cli.options import Allow, Json, Model, Quiet, progress
from anchorinv.errors import as_json as to_json
from anchorinv.terminal import say


def audit(
    model: Model,
    members: Annotated[
        Path,
        typer.Option(
            help="Its training data: a prepared folder (training part), or .npz with X, y, subject, session.",
            metavar="DATA",
        ),
    ],
    others: Annotated[
        Path,
        typer.Option(
            help="Comparable data it was not trained on: a prepared folder (test part), or such an .npz.",
            metavar="DATA",
        ),
    ],
    shadows: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1000,
            help="Shadow models for the likelihood ratio; default: 32 without a network, none with one.",
        ),
    ] = None,
    invert: Annotated[
        bool, typer.Option("--invert/--no-invert", help="Reconstruct signals, which takes longest.")
    ] = True,
    forget: Annotated[
        str | None, typer.Option(help="Also test whether forgetting this class removes it.", metavar="CLASS")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of shadow models and samples.")] = 0,
    as_json: Json = False,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Attack a model file: membership, re-identification, attributes, reconstruction, forgetting.

    Every figure comes with its 95 % confidence interval and, where there is one, the level of guessing.
    docs/privacy.md says how each attack works, and what it does not show.
    """
    from dataclasses import replace

    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.audit import audit as attack
    from anchorinv.serving.audit import audit_forgetting, read_people

    learner = AnchorInvClassifier.load(model, allow_recordings=allow_recordings)
    named = {str(label): label for label in learner.classes_.tolist()}
    if forget is not None and forget not in named:
        raise ValueError(f"class {forget!r} is not known; the model knows {', '.join(named)}")
    with progress(quiet):
        learned = read_people(learner, members, split="train")
        apart = read_people(learner, others, split="test")
        found = attack(learner, learned, apart, shadows=shadows, invert=invert, seed=seed)
        if forget is not None:
            left = audit_forgetting(learner, named[forget], learned, apart)
            found = replace(found, figures=(*found.figures, *left.figures))
    say(*(to_json(found.facts() | {"file": str(model)}).split("\n") if as_json else found.lines()))
