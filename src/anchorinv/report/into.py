"""A Markdown page whose tables and figures are made from runs, between marks; the words around them stay.

A mark names runs by their folder or file, what is wanted of them, and a method where that matters::

    <!-- table: emg-longterm differences anchorinv -->
    <!-- end -->
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anchorinv.files import replacing
from anchorinv.report.brief import brief_scores, choices, differences, line_of, only_group
from anchorinv.report.cells import Table, as_markdown, markdown_text
from anchorinv.report.figures import differences_figure, sessions_figure
from anchorinv.report.gather import Run
from anchorinv.report.groups import Group
from anchorinv.report.plates import Plate
from anchorinv.report.tables import cost_table

_TABLES: dict[str, Callable[[Run, str], Table]] = {
    "scores": lambda run, method: brief_scores(run),
    "differences": differences,
    "advantage": lambda run, method: differences(run, method, turned=True),
    "choices": lambda run, method: choices(run),
    "cost": lambda run, method: cost_table(run),
}
_FIGURES: dict[str, Callable[[str, Sequence[Run], str], Plate | None]] = {
    "sessions": lambda slug, runs, method: sessions_figure(slug, _before(runs[0], method)),
    "differences": lambda slug, runs, method: _differences(slug, runs, method, turned=False),
    "advantage": lambda slug, runs, method: _differences(slug, runs, method, turned=True),
}
_KNOWN = {"table": list(_TABLES), "figure": list(_FIGURES)}
_SEVERAL = ("differences", "advantage")  # figures that have a panel for each run
_MARK = re.compile(r"<!-- (table|figure): (.*?) -->\n")
_END = "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on the page, and what is wanted there.

    Parameters
    ----------
    kind : "table" or "figure".
    runs : by the names of their folders or files.
    method : empty for the study's reference.
    start, stop : where in the text its contents are.
    """

    kind: str
    runs: tuple[str, ...]
    what: str
    method: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Filled:
    """A page with its contents, the figures that it shows, and the marks that wait for runs not given."""

    text: str
    plates: list[Plate]
    waiting: list[Mark]


def marks_of(text: str) -> list[Mark]:
    """Return the marks of a page, in order."""
    found = []
    for match in _MARK.finditer(text):
        words, known = match[2].split(), _KNOWN[match[1]]
        place = next((i for i, word in enumerate(words) if word in known), 0)
        runs, rest = words[:place], words[place + 1 :]
        several = match[1] == "figure" and words[place] in _SEVERAL
        if not runs or len(rest) > 1 or (len(runs) > 1 and not several):
            raise ValueError(
                f"{match[0].strip()} is no mark that can be filled; it takes a run, then one of "
                f"{', '.join(known)}, then a method if need be"
            )
        stop = text.find(_END, match.end())
        if stop < 0 or _MARK.search(text, match.end(), stop):
            raise ValueError(f"{match[0].strip()} has no end; close it with {_END}")
        found.append(Mark(match[1], tuple(runs), words[place], "".join(rest), match.end(), stop))
    return found


def filled(text: str, runs: Sequence[Run], figures: str) -> Filled:
    """Return a page with tables and figures of the runs in their places; others are as they were.

    Parameters
    ----------
    text : the page.
    figures : the folder that its figures are in, as seen from the page.
    """
    known = {run.name: run for run in runs}
    if damaged := [run for run in runs if run.damage]:
        raise ValueError(f"{damaged[0].file} has {damaged[0].damage}")
    pieces, plates, waiting, at = [], [], [], 0
    for mark in marks_of(text):
        pieces.append(text[at : mark.start])
        at = mark.stop
        if any(name not in known for name in mark.runs):
            waiting.append(mark)
            pieces.append(text[mark.start : mark.stop])
        elif mark.kind == "table":
            # Blank lines: to Markdown, a comment goes on until one.
            table = _TABLES[mark.what](known[mark.runs[0]], mark.method)
            pieces.append(f"\n{as_markdown(table)}\n")
        else:
            slug = "-".join(filter(None, (*mark.runs, mark.what, mark.method)))
            plate = _FIGURES[mark.what](slug, [known[name] for name in mark.runs], mark.method)
            if plate is None:
                raise ValueError(f"there is nothing to draw for {slug}: no trial is finished in two methods")
            plates.append(plate)
            shown = f"![{markdown_text(plate.alt)}]({figures}/{slug}.png)"
            pieces.append(f"\n{shown}\n\n*{markdown_text(plate.caption)}*\n\n")
    return Filled("".join([*pieces, text[at:]]), plates, waiting)


def fill(page: Path, runs: Sequence[Run]) -> Filled:
    """Fill a page, and write its figures as PNG into a folder of its name beside it."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{page} is no page that can be read; name a Markdown file with marks") from None
    if not marks_of(text):
        raise ValueError(f"{page} has no marks to fill, such as <!-- table: RUN scores --> and {_END}")
    found = filled(text, runs, page.stem)
    for plate in found.plates:
        plate.write(page.parent / page.stem, ["png"])
    with replacing(page) as beside:
        beside.write_text(found.text, encoding="utf-8")
    return found


def _before(run: Run, method: str, title: str = "") -> Group:
    """Return what is compared in a run, with a method of choice before the others."""
    group = only_group(run)
    return replace(group, title=title, reference=line_of(run, group, method))


def _differences(slug: str, runs: Sequence[Run], method: str, *, turned: bool) -> Plate | None:
    groups = [_before(run, method, run.name) for run in runs]
    return differences_figure(slug, groups, turned=turned)
