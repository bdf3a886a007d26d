"""The page: one file that holds everything it shows."""

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from anchorinv._version import __version__
from anchorinv.quoting import shown
from anchorinv.report.cells import Cell, Number, Table
from anchorinv.report.chapters import Chapter
from anchorinv.report.plates import Plate
from anchorinv.report.svg import address


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """What the page is made of: a chapter for each run, and what compares runs."""

    chapters: Sequence[Chapter]
    tables: Sequence[Table]
    plates: Sequence[Plate]

    @property
    def title(self) -> str:
        """Return the page's title."""
        if len(self.chapters) == 1:
            return self.chapters[0].run.study.title
        return f"{len(self.chapters)} runs: {', '.join(chapter.run.label for chapter in self.chapters)}"


def rendered(page: Page) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=PackageLoader("anchorinv.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalised,
    )
    environment.globals.update(version=__version__, printed=_printed, sorted_by=_sorted_by, picture=address)
    return environment.get_template("page.html.j2").render(page=page)


def _finalised(value: object) -> object:
    """Return a value as the page may hold it; what is HTML already was made of such values."""
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _printed(cell: Cell) -> Markup:
    """Return a cell's content: bold where it is the best, marks raised and said."""
    if isinstance(cell, str):
        return escape(shown(cell))
    text = Markup("<strong>{}</strong>").format(str(cell)) if cell.best else escape(str(cell))
    return text + Markup("<sup>{}</sup>").format(cell.mark) if cell.mark else text


def _sorted_by(cell: Cell) -> str:
    return repr(cell.value) if isinstance(cell, Number) else cell
