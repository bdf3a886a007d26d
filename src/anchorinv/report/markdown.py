"""Fill tables and figures of a Markdown page from runs, between marks; the text around them stays.

A mark names runs by their folder or file, the kind of table or figure, and a method where that matters::

    <!-- table: emg-longterm differences anchorinv -->
    <!-- end -->
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from anchorinv.files import replacing
from anchorinv.report import tables
from anchorinv.report.calibration import calibration_figure, calibration_table
from anchorinv.report.formats import (
    SIGNIFICANT,
    Cell,
    Column,
    Figure,
    Number,
    Table,
    as_markdown,
    markdown_text,
)
from anchorinv.report.gather import LEVEL, Group, Run, groups_of
from anchorinv.report.score_figures import differences_figure, sessions_figure
from anchorinv.study.scores import method_title

_TABLES: dict[str, Callable[[Run, str], Table]] = {
    "scores": lambda run, method: brief_scores(run),
    "last": lambda run, method: brief_scores(run, between=False),
    "differences": lambda run, method: differences_table(run, method),
    "advantage": lambda run, method: differences_table(run, method, turned=True),
    "choices": lambda run, method: tables.choices_table(run),
    "cost": lambda run, method: tables.cost_table(run),
    "calibration": lambda run, method: _calibrated(run, calibration_table(run) if run.results else None),
}
_FIGURES: dict[str, Callable[[str, Sequence[Run], str], Figure | None]] = {
    "sessions": lambda slug, runs, method: sessions_figure(slug, _in_front(runs[0], method)),
    "differences": lambda slug, runs, method: _differences(slug, runs, method, turned=False),
    "advantage": lambda slug, runs, method: _differences(slug, runs, method, turned=True),
    "calibration": lambda slug, runs, method: _calibrated(
        runs[0], calibration_figure(slug, only_group(runs[0]))
    ),
}
_KNOWN = {"table": list(_TABLES), "figure": list(_FIGURES)}
_SEVERAL = ("differences", "advantage")  # figures that have a panel for each run
_MARK = re.compile(r"<!-- (table|figure): (.*?) -->\n")
_END = "<!-- end -->"
Made = TypeVar("Made", Table, Figure)


@dataclass(frozen=True, slots=True)
class Mark:
    r"""A mark on a page: its place, from ``start`` to ``stop``, and what to insert.

    A table or figure of runs by the names of their folders or files; an empty method is the study's
    reference.

    Examples
    --------
    >>> (mark,) = marks_of("<!-- table: eeg differences teen -->\n<!-- end -->")
    >>> mark.runs, mark.what, mark.method
    (('eeg',), 'differences', 'teen')
    """

    kind: str
    runs: tuple[str, ...]
    what: str
    method: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Filled:
    """A filled page, its figures, and the marks whose runs were not given."""

    text: str
    figures: list[Figure]
    waiting: list[Mark]


def marks_of(text: str) -> list[Mark]:
    """Return the marks of a page, in order."""
    marks = []
    for match in _MARK.finditer(text):
        words, known = match[2].split(), _KNOWN[match[1]]
        place = next((i for i, word in enumerate(words) if word in known), 0)
        runs, rest = words[:place], words[place + 1 :]
        several = match[1] == "figure" and words[place] in _SEVERAL
        if not runs or len(rest) > 1 or (len(runs) > 1 and not several):
            raise ValueError(
                f"{match[0].strip()} is not a valid mark; it takes a run, then one of "
                f"{', '.join(known)}, then optionally a method"
            )
        stop = text.find(_END, match.end())
        if stop < 0 or _MARK.search(text, match.end(), stop):
            raise ValueError(f"{match[0].strip()} has no end; close it with {_END}")
        marks.append(Mark(match[1], tuple(runs), words[place], "".join(rest), match.end(), stop))
    return marks


def filled(text: str, runs: Sequence[Run], folder: str) -> Filled:
    """Return a page with tables and figures of the runs; other marks are unchanged.

    ``folder`` is the path of its figures, relative to the page.
    """
    known = {run.name: run for run in runs}
    if damaged := [run for run in runs if run.damage]:
        raise ValueError(f"{damaged[0].file} has {damaged[0].damage}")
    pieces: list[str] = []
    figures: list[Figure] = []
    waiting: list[Mark] = []
    at = 0
    for mark in marks_of(text):
        pieces.append(text[at : mark.start])
        at = mark.stop
        if any(name not in known for name in mark.runs):
            waiting.append(mark)
            pieces.append(text[mark.start : mark.stop])
        elif mark.kind == "table":
            # Blank lines: in Markdown, a comment block continues until one.
            table = _TABLES[mark.what](known[mark.runs[0]], mark.method)
            pieces.append(f"\n{as_markdown(table)}\n")
        else:
            slug = "-".join(filter(None, (*mark.runs, mark.what, mark.method)))
            figure = _FIGURES[mark.what](slug, [known[name] for name in mark.runs], mark.method)
            if figure is None:
                raise ValueError(f"there is nothing to draw for {slug}: no trial is finished in two methods")
            figures.append(figure)
            shown = f"![{markdown_text(figure.alt)}]({folder}/{slug}.png)"
            pieces.append(f"\n{shown}\n\n*{markdown_text(figure.caption)}*\n\n")
    return Filled("".join([*pieces, text[at:]]), figures, waiting)


def fill(page: Path, runs: Sequence[Run]) -> Filled:
    """Fill a page, and write its figures as PNG into a folder of its name beside it."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{page} is not a readable page; name a Markdown file with marks") from None
    if not marks_of(text):
        raise ValueError(f"{page} has no marks to fill, such as <!-- table: RUN scores --> and {_END}")
    result = filled(text, runs, page.stem)
    for figure in result.figures:
        figure.write(page.parent / page.stem, ["png"])
    with replacing(page) as beside:
        beside.write_text(result.text, encoding="utf-8")
    return result


def brief_scores(run: Run, *, between: bool = True) -> Table:
    """Return macro-F1 after each session, or without those ``between``; of base and new ones at the end."""
    last = (group := only_group(run)).last
    shown = [
        *((s, "f1_all", str(s) if s else "base") for s in range(last + 1) if between or s in (0, last)),
        *((last, part, f"{tables.CLASSES[part]} after {last}") for part in ("f1_base", "f1_new")),
    ]
    marked = {"f1_all": tables.significant(group)}
    rows: list[list[Cell]] = [
        [line, *(tables.score(group, line, s, p, digits=1, marked=marked.get(p, ())) for s, p, _ in shown)]
        for line in group.lines
    ]
    when = "each session" if between else "the base session and the last"
    notes = [
        f"Macro-F1 in percent after {when}, over all classes seen so far unless the column says otherwise. "
        f"{tables.averaged_over(run)} The base session is one for each base seed.",
        *tables.test_notes(run, [group])[:-1],  # the table of differences says what that means
    ]
    columns = [Column("Method"), *(Column(name) for _, _, name in shown)]
    return Table(f"{run.slug}-brief-scores", f"{run.study.title}: macro-F1", columns, rows, notes)


def differences_table(run: Run, method: str = "", *, turned: bool = False) -> Table:
    """Return the paired differences between one method and each other after the last session.

    By default the method is the study's reference; ``turned`` is that method minus the other.
    """
    group = only_group(run)
    one, sign = line_of(run, group, method), -1 if turned else 1
    tested = [
        e.comparison for e in group.compared(reference=one) if (e.session, e.over) == (group.last, "trials")
    ]
    by_seed = {
        c.method: sign * group.differences(c.method, one, group.last).groupby("seed").mean() for c in tested
    }
    seeds = list(dict.fromkeys(seed for means in by_seed.values() for seed in means.index))
    rows: list[list[Cell]] = []
    for c in tested:
        means = by_seed[c.method]
        low, high = sorted((sign * c.low, sign * c.high))
        mark = SIGNIFICANT if c.p_holm < LEVEL else ""
        rows.append([
            c.method,
            Number(sign * c.difference, signed=True),
            f"{Number(low, signed=True)} to {Number(high, signed=True)}" if c.n > 1 else "",
            Number(c.p_holm, digits=4, mark=mark) if c.p_holm >= 1e-4 else f"< 0.0001{mark}",
            Number(c.n, digits=0),
            *(Number(means[seed], signed=True) if seed in means else "" for seed in seeds),
            "yes" if (means > 0).all() or (means < 0).all() else "no",
        ])  # fmt: skip
    names = (f"{one} minus" if turned else "Method", "Difference", "95 % interval", "p (Holm)", "Pairs",
             *(f"Seed {seed}" for seed in seeds), "Same sign for every seed")  # fmt: skip
    what = f"{one} minus each other method" if turned else f"Each method minus {one}"
    note = (
        f"{what}: macro-F1 over all classes after session {group.last}, in points. A pair is a trial with "
        "the same base seed and the same shots for both; interval by Student's t, p by the two-sided "
        f"Wilcoxon signed-rank test, Holm-corrected over the {len(rows)} comparisons; "
        f"{SIGNIFICANT} p < {LEVEL}. Trials of a base seed share base model and test set: interval and p "
        "generalise to other draws of the shots; the seeds' means, to other base models."
    )
    slug = f"{run.slug}-{'advantage' if turned else 'differences'}"
    return Table(slug, f"Paired differences: {one}", [*map(Column, names)], rows, [note])


def only_group(run: Run) -> Group:
    """Return the group of methods compared in a run, if it is the only one and has a first session."""
    groups = groups_of(run) if run.results else []
    if len(groups) != 1 or groups[0].of != "methods" or not groups[0].last:
        raise ValueError(f"{run.path} does not compare methods in one variant; make its own report instead")
    return groups[0]


def line_of(run: Run, group: Group, method: str = "") -> str:
    """Return the line of a method in a group; the reference where none is named."""
    line = method_title(method) if method else group.reference
    if line is None or line not in group.lines or group.last not in group.sessions(line):
        there = ", ".join(frame["method"].iloc[0] for frame in group.lines.values())
        raise ValueError(f"{run.path} has no results of {method or run.study.reference}; it has {there}")
    return line


def _in_front(run: Run, method: str, title: str = "") -> Group:
    """Return the group of a run, with one method before the others."""
    group = only_group(run)
    return replace(group, title=title, reference=line_of(run, group, method))


def _calibrated(run: Run, made: Made | None) -> Made:
    if made is None:
        raise ValueError(f"{run.path} has no probabilities of its predictions; run the study again")
    return made


def _differences(slug: str, runs: Sequence[Run], method: str, *, turned: bool) -> Figure | None:
    return differences_figure(slug, [_in_front(run, method, run.name) for run in runs], turned=turned)
