"""The figures of a run: of its scores, and portraits of what its base models make of signals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anchorinv.core.progress import tick
from anchorinv.data.dataset import Dataset
from anchorinv.report.features import default_selections, tsne_figure
from anchorinv.report.figures import differences_figure, sessions_figure, small_sessions_figure, sweep_figure
from anchorinv.report.gather import Run, slugged
from anchorinv.report.groups import Group, groups_of, varied
from anchorinv.report.matrices import confusion_figure
from anchorinv.report.plates import Plate
from anchorinv.report.signals import curves_figure, pairs, signals_figure
from anchorinv.report.specimen import Specimen, Unavailable, chosen_variants, specimen
from anchorinv.study.config import Experiment

#: Settings whose variation is a figure: key, words for its axis, how to read it.
_SWEEPS: dict[str, tuple[str, Callable[[Experiment], int]]] = {
    "protocol.shots": ("shots per new class", lambda e: e.protocol.shots),
    "anchors.per_class": ("anchors per base class", lambda e: e.anchors.per_class),
    "protocol.base_classes": ("number of base classes", lambda e: len(e.protocol.base_classes)),
}


@dataclass(frozen=True, slots=True)
class Absent:
    """A figure that could not be made, and why."""

    title: str
    why: str


def score_plates(run: Run) -> list[Plate]:
    """Draw what the scores of a run show."""
    groups = groups_of(run)
    first = groups[0]
    made: list[Plate | None]
    if first.of == "methods" and len(groups) > 1:
        made = [small_sessions_figure(f"{run.slug}-sessions", groups)]
    else:
        made = [sessions_figure(_named(run, "sessions", i, groups), group) for i, group in enumerate(groups)]
    made += [
        *_sweeps(run, groups),
        differences_figure(f"{run.slug}-differences", groups),
        *(
            confusion_figure(_named(run, "confusion", i, shown), group, run.class_names(group.variant))
            for shown in [_confused(groups)]
            for i, group in enumerate(shown)
        ),
    ]
    return [plate for plate in made if plate]


def _confused(groups: Sequence[Group]) -> list[Group]:
    """Return whose confusion is shown: all lines of a single group, of several the reference's alone."""
    if len(groups) == 1:
        return list(groups)
    chosen = {group.title: group.reference or next(iter(group.lines)) for group in groups}
    lines = {group.title: group.lines[chosen[group.title]] for group in groups}
    title = ", ".join(dict.fromkeys(chosen.values()))
    return [Group(title, "variants", lines, dict.fromkeys(lines, title), None, groups[0].variant)]


def _sweeps(run: Run, groups: Sequence[Group]) -> list[Plate]:
    variants = run.variants()
    keys = varied(list(variants.values()))
    made = []
    for key, (words, value) in _SWEEPS.items():
        places = {name: value(experiment) for name, experiment in variants.items()}
        # Other settings may follow the number of base classes, and names differ while numbers do not.
        if key not in keys or len(set(places.values())) < len(places):
            continue
        points: dict[str, dict[float, Group]] = {}
        for group in groups:
            for line, results in group.lines.items():
                called = line if group.of == "methods" else "macro-F1"
                alone = Group("", group.of, {line: results}, {line: group.methods[line]}, None, group.variant)
                points.setdefault(called, {})[float(places[results[0].variant])] = alone
        made.append(sweep_figure(f"{run.slug}-{key.split('.')[1].replace('_', '-')}", words, points))
    return made


def portraits(
    run: Run, folders: Mapping[str, Dataset], bases: Path | None, selections: Sequence[str]
) -> tuple[list[Plate], list[Absent]]:
    """Draw features, signals and inversion, a set for each data set; or say why not."""
    made: list[Plate] = []
    absent: list[Absent] = []
    chosen = chosen_variants(run)
    for variant in chosen:
        data = run.study.variants[variant].data.name
        slug, where = (f"{run.slug}-{slugged(data)}", f" ({data})") if len(chosen) > 1 else (run.slug, "")
        try:
            found = specimen(run, variant, folders, bases)
        except Unavailable as problem:
            titles = ("Inversion error", "Features in the plane (t-SNE)", "Real and inverted signals")
            absent += [Absent(f"{title}{where}", str(problem)) for title in titles]
            continue
        names = run.class_names(variant)
        shown = selections or default_selections(found)
        tasks: dict[str, Callable[[], list[Plate]]] = {
            "Inversion error": partial(_curves, slug, found, where),
            "Features in the plane (t-SNE)": partial(_features, slug, found, shown, names, where),
            # With several data sets a class of each is enough to see.
            "Real and inverted signals": partial(_signals, slug, found, names, where, 1 if where else 2),
        }
        for title, task in tasks.items():
            try:
                made += task()
            except Unavailable as problem:
                absent.append(Absent(f"{title}{where}", str(problem)))
        tick(f"report of {run.label}", 2, 3)
    return made, absent


def _curves(slug: str, found: Specimen, where: str) -> list[Plate]:
    return [curves_figure(f"{slug}-inversion", found, where)]


def _features(
    slug: str, found: Specimen, selections: Sequence[str], names: Sequence[str], where: str
) -> list[Plate]:
    return [tsne_figure(f"{slug}-tsne", found, selections, names, where)]


def _signals(slug: str, found: Specimen, names: Sequence[str], where: str, n_classes: int) -> list[Plate]:
    return [
        signals_figure(f"{slug}-signals-{pair.label}", found, pair, _class(names, pair.label) + where)
        for pair in pairs(found, n_classes)
    ]


def _class(names: Sequence[str], label: int) -> str:
    name = names[label] if label < len(names) else str(label)
    return f"class {name}" if name.isdigit() else name


def _named(run: Run, what: str, place: int, of: Sequence[Group]) -> str:
    return f"{run.slug}-{what}" + (f"-{place + 1}" if len(of) > 1 else "")
