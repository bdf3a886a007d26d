"""What figures of features and signals need: a variant's recordings, its base model, anchors and replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anchorinv.core.inverted import InvertedAnchors, InvertedLabels
from anchorinv.core.recipe import Recipe
from anchorinv.core.types import Batch, Curve, State
from anchorinv.data.dataset import Dataset
from anchorinv.report.gather import Run
from anchorinv.study.config import Experiment
from anchorinv.study.identity import digest
from anchorinv.study.methods import foundation_of, methods_of
from anchorinv.study.names import method_name
from anchorinv.study.samples import geometry_of, opened, people, protocol_of, samples_of
from anchorinv.study.shelf import DiskShelf

#: What decides over recordings and base model; variants that agree in it share both.
_SHARED = {"data", "synthetic", "geometry", "protocol", "standardise", "training", "threads"}


class Unavailable(ValueError):  # noqa: N818 — a reason, not a mistake
    """Said in place of a figure: what is missing, and how to get it."""


@dataclass(frozen=True, slots=True, eq=False)
class Specimen:
    """A variant's first base model and what it was made from.

    Parameters
    ----------
    base : signals of the base classes' training part, standardised.
    state : the base model.
    seed : of the base session.
    replay : for each variant with the same base model and each method, what was inverted before session 1.
    """

    experiment: Experiment
    data: Dataset
    base: Batch
    state: State
    seed: int
    replay: dict[tuple[str, str], State]

    def curves(self) -> dict[tuple[str, str], Curve]:
        """Return how the error fell in each inversion, by variant and method."""
        return {
            key: curve
            for key, state in self.replay.items()
            for curve in state.curves
            if curve.name == "invert"
        }


def chosen_variants(run: Run) -> list[str]:
    """Return a variant for each data set: the one that stands for the others in figures of features."""
    first: dict[str, str] = {}
    for name, experiment in run.variants().items():
        usual = experiment.anchors.select == "random" and experiment.anchors.per_class >= 50
        known = first.get(experiment.data.name)
        if known is None or (usual and run.study.variants[known].anchors.per_class < 50):
            first[experiment.data.name] = name
    return list(first.values())


def specimen(run: Run, variant: str, folders: Mapping[str, Dataset], bases: Path | None = None) -> Specimen:
    """Return a variant's specimen; whatever is missing is said by :class:`Unavailable`.

    Parameters
    ----------
    folders : data sets by name; not needed for synthetic recordings, which are made again.
    bases : where base models are, if not in the run folder.
    """
    experiment = run.study.variants[variant]
    if experiment.synthetic is None and experiment.data.name not in folders:
        raise Unavailable(
            f"needs the recordings: pass --data {experiment.data.name}=FOLDER to anchorinv report"
        )
    data = opened(experiment, folders)
    known = run.about["data"].get(experiment.data.name, {}).get("fingerprint")
    if experiment.synthetic is None and known != data.fingerprint:
        raise Unavailable("needs the recordings of the run, and these are others: their fingerprints differ")
    seed, person = experiment.protocol.seeds[0], people(experiment, data)[0]
    protocol = protocol_of(experiment, data, seed)
    base = samples_of(experiment, data, person, protocol).train.of(*protocol.base_classes)
    shelves = [
        DiskShelf(
            bases or run.path / "bases",
            digest(base.values, base.labels),
            seed,
            experiment.threads,
            start.get("torch"),
            start.get("anchorinv"),
        )
        for start in run.starts[::-1]
    ]
    geometry = geometry_of(experiment, data)
    foundation = foundation_of(experiment, geometry, protocol.base_classes)
    try:
        found = [(shelf, state) for shelf in shelves if (state := shelf.find(foundation))]
        if not found:
            raise Unavailable("needs the base model, which is not in the run's bases; pass --bases FOLDER")
        shelf, state = found[0]
        replay = {}
        for name, other in run.variants().items():
            if other.model_dump(include=_SHARED) != experiment.model_dump(include=_SHARED):
                continue
            for method, recipe in methods_of(other, geometry, protocol.base_classes).items():
                recalled = shelf.find(recipe.foundation, recipe.memory) if _inverts(recipe) else None
                if recalled:
                    replay[name, method] = recalled
    except ValueError as error:
        raise Unavailable(f"needs files that are whole: {error}") from None
    return Specimen(experiment, data, base, state, seed, replay)


def line_of(key: tuple[str, str], beside: Sequence[tuple[str, str]]) -> str:
    """Return what a curve is called beside others: by its method, its variant, or both."""
    variant, method = key
    several = len({each for each, _ in beside}) > 1
    alone = len({each for _, each in beside}) == 1
    return ", ".join([*([variant] if several else []), *([] if several and alone else [method_name(method)])])


def _inverts(recipe: Recipe) -> bool:
    return isinstance(recipe.memory, InvertedAnchors | InvertedLabels)
