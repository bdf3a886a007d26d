"""``anchorinv audit``: tell what a model file gives away about the people it was trained on."""

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
            help="What it was trained on: prepared folder (its training part) or .npz with X, y, subject.",
            metavar="DATA",
        ),
    ],
    others: Annotated[
        Path,
        typer.Option(
            help="What it was not trained on, recorded likewise: prepared folder (its test part) or .npz.",
            metavar="DATA",
        ),
    ],
    shadows: Annotated[
        int | None,
        typer.Option(
            min=0, max=1000, help="Shadow models; default: 32 where they are closed form, else none."
        ),
    ] = None,
    forget: Annotated[
        str | None, typer.Option(help="Also tell what is left of this class once forgotten.", metavar="CLASS")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn.")] = 0,
    as_json: Json = False,
    allow_recordings: Allow = False,
    quiet: Quiet = False,
) -> None:
    """Attack a model: tell who it was trained on, whose is what it holds, what can be brought back.

    Every figure has an interval of 95 % and, where there is one, what guessing reaches. docs/privacy.md says
    what each attack does, and what it does not show.
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
        found = attack(learner, learned, apart, shadows=shadows, seed=seed)
        if forget is not None:
            left = audit_forgetting(learner, named[forget], learned, apart)
            found = replace(found, figures=(*found.figures, *left.figures))
    say(*(to_json(found.facts() | {"file": str(model)}).split("\n") if as_json else found.lines()))
