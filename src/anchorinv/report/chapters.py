"""What a run's part of the page holds: its verdicts, tables and figures, or why a figure is not there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anchorinv.core.progress import tick
from anchorinv.data.dataset import Dataset
from anchorinv.report.ablations import ablation_tables
from anchorinv.report.cells import Table
from anchorinv.report.departures import Departure, departures, not_published
from anchorinv.report.features import default_selections, tsne_figure
from anchorinv.report.figures import (
    cost_figure,
    differences_figure,
    sessions_figure,
    small_sessions_figure,
    sweep_figure,
)
from anchorinv.report.gather import Run
from anchorinv.report.groups import Group, groups_of, varied
from anchorinv.report.honesty import Honesty, honesty
from anchorinv.report.matrices import confusion_figure
from anchorinv.report.plates import Plate
from anchorinv.report.signals import curves_figure, pairs, signals_figure
from anchorinv.report.specimen import Unavailable, chosen_variants, specimen
from anchorinv.report.tables import comparisons_table, cost_table, paper_table, scores_table
from anchorinv.report.verdict import Verdict, leaders, verdicts
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


@dataclass(frozen=True, slots=True, eq=False)
class Chapter:
    """All that the page says of one run."""

    run: Run
    warnings: list[str]
    verdicts: list[Verdict]
    leaders: str
    tables: list[Table]
    plates: list[Plate]
    absent: list[Absent]
    departures: list[Departure] | None
    not_published: list[str]
    honesty: Honesty


def chapter(
    run: Run, asked: str, folders: Mapping[str, Dataset], bases: Path | None, selections: Sequence[str]
) -> Chapter:
    """Make a run's tables and figures.

    Parameters
    ----------
    asked : the command that makes the report.
    folders : data sets by name, for figures that need recordings.
    bases : where base models are, if not in the run folder.
    selections : of anchors to show in the feature space; the usual ones where none are named.
    """
    tables: list[Table] = []
    plates: list[Plate] = []
    absent: list[Absent] = []
    if run.results:
        made = [
            scores_table(run),
            *ablation_tables(run),
            paper_table(run),
            comparisons_table(run),
            cost_table(run),
        ]
        tables = [table for table in made if table]
        plates = _score_plates(run)
        tick(f"report of {run.label}", 1, 3)
        more, absent = _portraits(run, folders, bases, selections)
        plates += [*more, cost_figure(f"{run.slug}-cost", run)]
        tick(f"report of {run.label}", 3, 3)
    return Chapter(
        run,
        _warnings(run),
        verdicts(run),
        leaders(run),
        tables,
        plates,
        absent,
        departures(run),
        not_published(run),
        honesty(run, asked),
    )


def _score_plates(run: Run) -> list[Plate]:
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
    """Return the groups whose confusion is shown: of many variants with many methods, the reference's alone."""
    if groups[0].of == "variants" or len(groups) == 1:
        return list(groups)
    name = groups[0].reference or next(iter(groups[0].lines))
    lines = {group.title: group.lines[name] for group in groups if name in group.lines}
    return [Group(name, "variants", lines, dict.fromkeys(lines, name), None, groups[0].variant)]


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


def _portraits(
    run: Run, folders: Mapping[str, Dataset], bases: Path | None, selections: Sequence[str]
) -> tuple[list[Plate], list[Absent]]:
    """Make the figures of features, signals and inversion, a set for each data set; or say why not."""
    made: list[Plate] = []
    absent: list[Absent] = []
    chosen = chosen_variants(run)
    for variant in chosen:
        data = run.study.variants[variant].data.name
        slug, where = (f"{run.slug}-{data}", f" ({data})") if len(chosen) > 1 else (run.slug, "")
        names = run.class_names(variant)
        try:
            found = specimen(run, variant, folders, bases)
        except Unavailable as problem:
            titles = ("Features in the plane (t-SNE)", "Real and inverted signals", "Inversion error")
            absent += [Absent(f"{title}{where}", str(problem)) for title in titles]
            continue
        tasks: list[tuple[str, Callable[[], list[Plate]]]] = [
            ("Inversion error", lambda: [curves_figure(f"{slug}-inversion", run, found)]),
            (
                "Features in the plane (t-SNE)",
                lambda: [tsne_figure(f"{slug}-tsne", found, selections or default_selections(found), names)],
            ),
            (
                "Real and inverted signals",
                lambda: [
                    signals_figure(
                        f"{slug}-signals-{pair.label}", found, pair, _class(names, pair.label) + where
                    )
                    for pair in pairs(found)
                ],
            ),
        ]
        for title, task in tasks:
            try:
                made += task()
            except Unavailable as problem:
                absent.append(Absent(f"{title}{where}", str(problem)))
        tick(f"report of {run.label}", 2, 3)
    return made, absent


def _class(names: Sequence[str], label: int) -> str:
    name = names[label] if label < len(names) else str(label)
    return f"class {name}" if name.isdigit() else name


def _named(run: Run, what: str, place: int, of: Sequence[Group]) -> str:
    return f"{run.slug}-{what}" + (f"-{place + 1}" if len(of) > 1 else "")


def _warnings(run: Run) -> list[str]:
    """Say in plain words why a run's numbers are not to be trusted, or not complete."""
    told = []
    if run.study.scale != "full":
        told.append(
            f"{run.label} is a {run.study.scale} run: few epochs, steps and trials on synthetic recordings. It shows "
            f"that everything runs. Its numbers mean nothing."
        )
    elif run.synthetic:
        told.append(
            f"{run.label} is on synthetic recordings: nobody's data, and no evidence about real people."
        )
    if run.torn:
        told.append(
            f"results.jsonl of {run.label} is damaged from line {run.torn} on; only what stands before is shown. "
            f"The same run command mends it."
        )
    if run.missing:
        done = run.n_parts - len(run.missing)
        told.append(f"{run.label} is not finished: {done} of {run.n_parts} parts are there. {_left(run)}")
    return told


def _left(run: Run) -> str:
    counts: dict[str, int] = {}
    for part in run.missing:
        named = f"{part.method}{f' ({part.variant})' if part.variant else ''}"
        counts[named] = counts.get(named, 0) + 1
    listed = [f"{name}: {count}" for name, count in list(counts.items())[:8]]
    more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
    return f"Missing parts: {'; '.join(listed)}{more}."
