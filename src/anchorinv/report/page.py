"""Make a report: one page, its tables and figures as files; or fill the marks of a Markdown page.

A mark names runs by their folder or file, the kind of table or figure, and a method where that matters::

    <!-- table: emg-longterm differences anchorinv -->
    <!-- end -->
"""

import gc
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from anchorinv import __version__
from anchorinv.datasets.dataset import Dataset
from anchorinv.errors import shown
from anchorinv.files import replacing
from anchorinv.progress import tick
from anchorinv.report import gather as gathered
from anchorinv.report import score_figures, tables
from anchorinv.report.feature_figures import Absent, feature_figures
from anchorinv.report.formats import (
    Cell,
    Figure,
    Number,
    Table,
    as_csv,
    as_latex,
    as_markdown,
    document,
    markdown_text,
)
from anchorinv.report.gather import Group, Run, gather, groups_of


def make_report(
    paths: Sequence[Path],
    out: Path,
    datasets: Mapping[str, Dataset] | None = None,
    *,
    bases: Path | None = None,
    selections: Sequence[str] = (),
) -> Path:
    """Write ``report.html``, ``tables`` and ``figures`` into a folder, and return the path of the page.

    Parameters
    ----------
    paths : sequence of Path
        Run folders or records.
    out : Path
        The folder to write into.
    datasets : mapping of str to Dataset, optional
        By name, for the figures that show recordings or features.
    bases : Path, optional
        Folder of base models, if not in the run folders.
    selections : sequence of str, default=()
        Of anchors to show in the feature space; the usual ones where none are named.
    """
    runs = gather(paths)
    report_command = " ".join(["anchorinv report", *map(str, paths), f"--out {out}"])
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot write to {out}: {error.strerror}; choose another folder with --out") from None
    # Drawing makes millions of objects; frozen, what was imported is not scanned by each collection.
    gc.freeze()
    try:
        groups = {r.label: groups_of(r)[0] for r in runs if r.results and len(groups_of(r)) == 1}
        several = len(groups) > 1
        page = Page(
            [chapter(run, report_command, datasets or {}, bases, selections) for run in runs],
            [tables.runs_table(groups)] if several else [],
            score_figures.runs_figures(groups, runs) if several else [],
        )
        all_tables = [
            *page.tables,
            *(table for content in page.chapters for table in (*content.scores, *content.details)),
        ]
        for table in all_tables:
            _write(out / "tables" / f"{table.slug}.csv", as_csv(table))
            _write(out / "tables" / f"{table.slug}.tex", as_latex(table))
        _write(out / "tables" / "all-tables.tex", document([table.slug for table in all_tables]))
        for figure in [*page.figures, *(figure for content in page.chapters for figure in content.figures)]:
            figure.write(out / "figures")
        _write(out / "report.html", render_page(page))
    finally:
        gc.unfreeze()
    return out / "report.html"


def _write(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True, eq=False)
class Chapter:
    """The content of the page on one run."""

    run: Run
    verdicts: list[gathered.Verdict]
    scores: list[Table]
    figures: list[Figure]
    absent: list[Absent]
    details: list[Table]
    provenance: gathered.Provenance


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """The content of the page: a chapter for each run, and comparisons of runs."""

    chapters: Sequence[Chapter]
    tables: Sequence[Table]
    figures: Sequence[Figure]

    @property
    def title(self) -> str:
        """The page's title."""
        if len(self.chapters) == 1:
            return self.chapters[0].run.study.title
        return f"{len(self.chapters)} runs: {', '.join(chapter.run.label for chapter in self.chapters)}"


def chapter(
    run: Run,
    report_command: str,
    datasets: Mapping[str, Dataset],
    bases: Path | None,
    selections: Sequence[str],
) -> Chapter:
    """Make a run's tables and figures; ``report_command`` is what makes the report again."""
    scores: list[Table] = []
    details: list[Table] = []
    figures: list[Figure] = []
    absent: list[Absent] = []
    verdicts: list[gathered.Verdict] = []
    if run.results:
        verdicts = [verdict for group in groups_of(run) if (verdict := gathered.verdict_of(group))]
        scores, details = tables.score_tables(run), tables.detail_tables(run)
        figures = score_figures.score_figures(run)
        tick(f"report of {run.label}", 1, 3)
        more, absent = feature_figures(run, datasets, bases, selections)
        figures += [*more, score_figures.cost_figure(f"{run.slug}-cost", run)]
        figures.sort(key=lambda figure: figure.wide)  # those of one column first, so that they fill both
        tick(f"report of {run.label}", 3, 3)
    provenance = gathered.provenance(run, report_command)
    return Chapter(run, verdicts, scores, figures, absent, details, provenance)


def render_page(page: Page) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=PackageLoader("anchorinv.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_escape_text,
    )
    environment.globals.update(
        version=__version__, printed=_print_cell, sorted_by=_sorted_by, picture=address, gathered=gathered
    )
    return environment.get_template("page.html.j2").render(page=page)


def address(svg: str) -> str:
    """Return an SVG as a data URL, for use between double quotes."""
    # Percent-encoded text, a quarter shorter than base64.
    return "data:image/svg+xml," + quote(svg, safe="<>/:;,=()- !*'@+$?[]{}|~")


def _escape_text(value: object) -> object:
    """Escape a value for the page, unless it is markup already."""
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _print_cell(cell: Cell) -> Markup:
    """Return a cell's content: the best in bold, marks as superscripts, the spread beside or below."""
    if isinstance(cell, str):
        return escape(shown(cell))
    value, spread = cell.texts
    text = escape(value.replace("-", "−"))
    if cell.best:
        text = Markup("<strong>{}</strong>").format(text)
    text += Markup("<sup>{}</sup>").format(cell.mark) if cell.mark else ""
    return text + Markup(' <span class="spread">± {}</span>').format(spread) if spread else text


def _sorted_by(cell: Cell) -> str:
    return repr(cell.value) if isinstance(cell, Number) else cell


_TABLES: dict[str, Callable[[Run, str], Table]] = {
    "scores": lambda run, method: tables.brief_scores(run),
    "last": lambda run, method: tables.brief_scores(run, between=False),
    "differences": tables.differences_table,
    "advantage": lambda run, method: tables.differences_table(run, method, flipped=True),
    "choices": lambda run, method: tables.choices_table(run),
    "cost": lambda run, method: tables.cost_table(run),
    "calibration": lambda run, method: _require_probabilities(
        run, tables.calibration_table(run) if run.results else None
    ),
}
_FIGURES: dict[str, Callable[[str, Sequence[Run], str], Figure | None]] = {
    "sessions": lambda slug, runs, method: score_figures.sessions_figure(slug, _in_front(runs[0], method)),
    "differences": lambda slug, runs, method: _differences(slug, runs, method, flipped=False),
    "advantage": lambda slug, runs, method: _differences(slug, runs, method, flipped=True),
    "calibration": lambda slug, runs, method: _require_probabilities(
        runs[0], score_figures.calibration_figure(slug, tables.only_group(runs[0]))
    ),
}
_KINDS = {"table": list(_TABLES), "figure": list(_FIGURES)}
_SEVERAL = ("differences", "advantage")  # figures that have a panel for each run
_MARK = re.compile(r"<!-- (table|figure): (.*?) -->\n")
_END = "<!-- end -->"
Result = TypeVar("Result", Table, Figure)


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
        words, kinds = match[2].split(), _KINDS[match[1]]
        place = next((i for i, word in enumerate(words) if word in kinds), 0)
        runs, rest = words[:place], words[place + 1 :]
        several = match[1] == "figure" and words[place] in _SEVERAL
        if not runs or len(rest) > 1 or (len(runs) > 1 and not several):
            raise ValueError(
                f"{match[0].strip()} is not a valid mark; it takes a run, then one of "
                f"{', '.join(kinds)}, then optionally a method"
            )
        stop = text.find(_END, match.end())
        if stop < 0 or _MARK.search(text, match.end(), stop):
            raise ValueError(f"{match[0].strip()} has no end; close it with {_END}")
        marks.append(Mark(match[1], tuple(runs), words[place], "".join(rest), match.end(), stop))
    return marks


def fill_marks(text: str, runs: Sequence[Run], folder: str) -> Filled:
    """Return a page with tables and figures of the runs; other marks are unchanged.

    ``folder`` is the path of its figures, relative to the page.
    """
    by_name = {run.name: run for run in runs}
    if damaged := [run for run in runs if run.damage]:
        raise ValueError(f"{damaged[0].file} has {damaged[0].damage}")
    pieces: list[str] = []
    figures: list[Figure] = []
    marks, at = marks_of(text), 0
    waiting = [mark for mark in marks if not by_name.keys() >= set(mark.runs)]
    for mark in marks:
        if mark in waiting:
            continue
        pieces.append(text[at : mark.start])
        at = mark.stop
        if mark.kind == "table":
            # Blank lines: in Markdown, a comment block continues until one.
            table = _TABLES[mark.what](by_name[mark.runs[0]], mark.method)
            pieces.append(f"\n{as_markdown(table)}\n")
        else:
            slug = "-".join(filter(None, (*mark.runs, mark.what, mark.method)))
            figure = _FIGURES[mark.what](slug, [by_name[name] for name in mark.runs], mark.method)
            if figure is None:
                raise ValueError(f"there is nothing to draw for {slug}: no trial is finished in two methods")
            figures.append(figure)
            image = f"![{markdown_text(figure.alt)}]({folder}/{slug}.png)"
            pieces.append(f"\n{image}\n\n*{markdown_text(figure.caption)}*\n\n")
    return Filled("".join([*pieces, text[at:]]), figures, waiting)


def fill(page: Path, runs: Sequence[Run]) -> Filled:
    """Fill a page, and write its figures as PNG into a folder of its name beside it."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{page} is not a readable page; name a Markdown file with marks") from None
    if not marks_of(text):
        raise ValueError(f"{page} has no marks to fill, such as <!-- table: RUN scores --> and {_END}")
    result = fill_marks(text, runs, page.stem)
    for figure in result.figures:
        figure.write(page.parent / page.stem, ["png"])
    _write(page, result.text)
    return result


def _in_front(run: Run, method: str, title: str = "") -> Group:
    """Return the group of a run, with one method before the others."""
    group = tables.only_group(run)
    return replace(group, title=title, reference=tables.line_of(run, group, method))


def _require_probabilities(run: Run, result: Result | None) -> Result:
    if result is None:
        raise ValueError(f"{run.path} has no probabilities of its predictions; run the study again")
    return result


def _differences(slug: str, runs: Sequence[Run], method: str, *, flipped: bool) -> Figure | None:
    groups = [_in_front(run, method, run.name) for run in runs]
    return score_figures.differences_figure(slug, groups, flipped=flipped)
