"""From an experiment's settings to the methods it runs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from anchorinv.core.anchors import selection
from anchorinv.core.catalogue import CATALOGUE, JUDGED
from anchorinv.core.conformer import Conformer
from anchorinv.core.geometry import Geometry
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion
from anchorinv.core.priors import Prior, energy, length, roughness
from anchorinv.core.prototypes import mean_of_shots, random_rows
from anchorinv.core.recipe import Foundation, Recipe
from anchorinv.core.schedule import OneCycle
from anchorinv.core.selection import Validated
from anchorinv.core.training import Finetune, Training
from anchorinv.study.config import Experiment, Inverting

#: Methods that finetune prototypes with replay of old classes.
REPLAYING = ("anchorinv", "deepdream", "deepinv", "real-replay", "latent-replay")

SCHEDULES = {"constant": None, "one-cycle": OneCycle()}


def foundation_of(experiment: Experiment, geometry: Geometry, base_classes: Sequence[int]) -> Foundation:
    """Return how base models are made; ``base_classes`` are the numbers of the config's, in its order."""
    settings = experiment.training.model_dump()
    settings["schedule"] = SCHEDULES[settings["schedule"]]
    if isinstance(sizes := settings["class_weights"], tuple):
        # A network's columns are in the order of the classes' numbers.
        settings["class_weights"] = tuple(size for _, size in sorted(zip(base_classes, sizes, strict=True)))
    return Foundation(partial(Conformer, geometry), Cosine.start, Training(**settings))


def methods_of(experiment: Experiment, geometry: Geometry, base_classes: Sequence[int]) -> dict[str, Recipe]:
    """Return the methods of an experiment by name, in its order."""
    foundation = foundation_of(experiment, geometry, base_classes)
    made = {name: CATALOGUE[name](foundation, **_options(experiment, name)) for name in experiment.methods}
    refresh = experiment.finetuning.refresh
    return {name: replace(each, refresh=refresh and name in REPLAYING) for name, each in made.items()}


def inversion_of(settings: Inverting) -> Inversion:
    """Return how replay signals are made."""
    make = Inversion.swift if settings.swift else Inversion
    plain = settings.model_dump(exclude={"smoothness", "swift", "noise", "l2"})
    return make(**plain, shared_noise=settings.noise == "shared")


def _options(experiment: Experiment, name: str) -> dict[str, Any]:
    """Return what a recipe is given beside its foundation."""
    finetuning, course = experiment.finetuning, experiment.protocol
    options: dict[str, Any] = {}
    if name in finetuning.steps:
        options["adapt"] = Finetune(
            finetuning.steps[name], finetuning.lr, finetuning.betas, finetuning.replay_weight
        )
    if name in REPLAYING and finetuning.select == "validation":
        options["adapt"] = Validated(
            finetuning.lengths,
            finetuning.lrs,
            finetuning.folds,
            from_mean=finetuning.start == "mean",
            refresh=finetuning.refresh,
            betas=finetuning.betas,
            replay_weight=finetuning.replay_weight,
        )
    if name == "finetune":
        options["whole_network"] = finetuning.scope == "all"
    if name == "nc-fscil":
        options["n_all"] = len(course.base_classes) + len(course.sessions)
    if name in REPLAYING:
        options["start"] = mean_of_shots if finetuning.start == "mean" else random_rows
    if name in (*REPLAYING, *JUDGED):
        options["per_class"] = experiment.anchors.per_class
    if name in ("anchorinv", "deepdream", "deepinv"):
        options["inversion"] = inversion_of(experiment.inversion)
    if name in ("deepdream", "deepinv"):
        options["l2"] = length if experiment.inversion.l2 == "norm" else energy
    if name in ("anchorinv", *JUDGED):
        options["select"] = selection(experiment.anchors.select, experiment.anchors.measure)
    if name == "anchorinv" and (smoothness := experiment.inversion.smoothness):
        options["priors"] = (Prior("smoothness", roughness, smoothness),)
    return options
