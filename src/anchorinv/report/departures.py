"""In which settings a run departs from the paper's text."""

from dataclasses import dataclass
from typing import Any

from anchorinv.report.gather import Run
from anchorinv.study.config import Experiment, dotted
from anchorinv.study.loading import load, shipped

#: Why a setting may differ, where there is a reason beyond this run.
_WHY = {
    "standardise.by": "the text says training data, future classes too; ours are base classes alone: no leak",
    "data.sfreq": "the text says 64 Hz, but its windows of 1280 samples in 5 s need 256 Hz",
    "training.betas": "the text says 0.9, the authors' runs had 0.5",
    "finetuning.betas": "the text says 0.9, the authors' runs had 0.5",
    "finetuning.steps.anchorinv": "lengths were chosen on the test set, by the paper's appendix",
    "standardise.per_channel": "the authors' runs had one number for all channels",
    "inversion.smoothness": "a penalty of the authors' runs that the text does not mention",
    "training.class_weights": "the authors weighed by recordings",
    "anchors.measure": "the text does not say by which distance; the authors' runs: Euclidean",
    "inversion.noise": "in the authors' runs new classes start from the same noise in all trials",
    "inversion.new_batch": "the authors invert a new class's ten shots by themselves, which sets Adam's eps",
    "inversion.l2": "the mean norm in the authors' code, ours the mean square",
}
_NOT_THE_PAPERS = ("synthetic", "threads", "not_published", "methods")


@dataclass(frozen=True, slots=True)
class Departure:
    """A setting that is not the paper's: its key, both values, where, and why if that is known."""

    key: str
    paper: str
    run: str
    where: str
    why: str


def departures(run: Run) -> list[Departure] | None:
    """Return how a run's settings differ from the text; None where it is no study of the paper."""
    name = run.study.name.removesuffix("-published")
    if name not in shipped() or not load(name).paper:
        return None
    text = load(name)
    found: dict[tuple[str, str, str], list[str]] = {}
    theirs = _of_the_authors(run.study.name)
    compared = [variant for variant in run.study.variants if variant in text.variants]
    for variant in compared:
        for key, (paper, ours) in _differences(text.variants[variant], run.study.variants[variant]).items():
            found.setdefault((key, paper, ours), []).append(variant)
    small = "" if run.study.scale == "full" else f"a {run.study.scale} run"
    return [
        Departure(
            key,
            paper,
            ours,
            _where(variants, compared),
            _WHY.get(key) or ("as in the authors' run" if theirs.get(key) == ours else small),
        )
        for (key, paper, ours), variants in found.items()
    ]


def not_published(run: Run) -> list[str]:
    """Return the keys whose values the paper does not give."""
    return list(dict.fromkeys(key for each in run.study.variants.values() for key in each.not_published))


def _of_the_authors(config: str) -> dict[str, str]:
    """Return the settings of the authors' runs, where a config has them."""
    if not config.endswith("-published"):
        return {}
    return {key: _shown(value) for key, value in dotted(load(config).variants[""].model_dump()).items()}


def _differences(text: Experiment, ours: Experiment) -> dict[str, tuple[str, str]]:
    said, done = (dotted(each.model_dump()) for each in (text, ours))
    said["standardise.by"] = "paper"
    if text.data.name == "grabmyo":
        said["data.sfreq"] = 64.0
    found = {}
    if ours.synthetic is not None and text.synthetic is None:
        found["data"] = (f"recordings ({text.data.name})", "synthetic recordings")
    if missing := [name for name in text.methods if name not in ours.methods]:
        found["methods"] = ("all of its table", f"without {', '.join(missing)}")
    unused = {f"finetuning.steps.{name}" for name in text.finetuning.steps if name not in ours.methods}
    for key in {**said, **done}:
        skipped = key.split(".")[0] in _NOT_THE_PAPERS or key in unused or key in text.not_published
        if not skipped and said.get(key) != done.get(key):
            found[key] = (_shown(said.get(key)), _shown(done.get(key)))
    return found


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value))
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _where(variants: list[str], everything: list[str]) -> str:
    if len(variants) == len(everything):
        return ""
    most = variants[:3]
    return ", ".join(most) + (f" and {len(variants) - 3} more" if len(variants) > 3 else "")
