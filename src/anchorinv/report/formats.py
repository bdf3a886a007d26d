"""Tables and figures as values, and their formats: CSV, LaTeX, Markdown; SVG, PNG, PDF."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine

from anchorinv.core.registry import METHODS
from anchorinv.errors import csv_line, literal_text, shown
from anchorinv.files import replacing

SIGNIFICANT = "†"


@dataclass(frozen=True, slots=True)
class Number:
    """A number as printed: ± its spread, digits, sign, bold, and a superscript mark.

    Examples
    --------
    >>> str(Number(-1.25, 0.5, digits=1)), str(Number(2, signed=True))
    ('−1.2 ± 0.5', '+2.00')
    """

    value: float
    spread: float | None = None
    digits: int = 2
    signed: bool = False
    best: bool = False
    mark: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """Value and spread as text; the second is empty where there is none."""
        sign = "+" if self.signed else ""
        spread = "" if self.spread is None else f"{self.spread:.{self.digits}f}"
        return f"{self.value:{sign}.{self.digits}f}", spread

    def __str__(self) -> str:
        value, spread = self.texts
        return (f"{value} ± {spread}" if spread else value).replace("-", "−")


Cell = str | Number


@dataclass(frozen=True, slots=True)
class Column:
    """The header of a column, the header it shares with its neighbours, and a short one for broad tables."""

    name: str
    group: str = ""
    short: str = ""

    @property
    def full_name(self) -> str:
        """The header in formats with one row of headers."""
        return f"{self.group}: {self.name}" if self.group else self.name


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its slug names its files, its notes are printed below it.

    Examples
    --------
    >>> table = Table("f1", "Macro-F1", [Column("Method"), Column("all")], [["TEEN", Number(61.5, 1.0)]])
    >>> print(as_csv(table))
    Method,all,all (std)
    TEEN,61.50,1.00
    <BLANKLINE>
    """

    slug: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def head_groups(self) -> list[tuple[str, int]]:
        """Return the upper header row: text and number of columns; empty where there is none."""
        groups = [(group, len([*same])) for group, same in groupby(column.group for column in self.columns)]
        return groups if any(group for group, _ in groups) else []

    def is_text(self, place: int) -> bool:
        """Return whether a column contains text."""
        return any(isinstance(row[place], str) and row[place] for row in self.rows)


def as_csv(table: Table) -> str:
    """Return a table as CSV; standard deviations and marks have columns of their own, where there are any."""
    columns: list[list[str]] = []
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        triples = [(*c.texts, c.mark) if isinstance(c, Number) else (c, "", "") for c in cells]
        values, spreads, marks = ([triple[i] for triple in triples] for i in range(3))
        columns.append([column.full_name, *values])
        columns += [
            [f"{column.full_name} ({what})", *extra]
            for what, extra in (("std", spreads), ("mark", marks))
            if any(extra)
        ]
    return "".join(map(csv_line, zip(*columns, strict=True)))


def as_latex(table: Table) -> str:
    """Return a table for LaTeX; it needs the packages booktabs and graphicx."""
    heads = " & ".join(rf"\textbf{{{latex_text(column.name)}}}" for column in table.columns)
    body = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in table.rows]
    notes = " ".join(latex_text(note) for note in table.notes)
    aligned = "".join("l" if table.is_text(place) else "c" for place in range(len(table.columns)))
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{\textbf{{{latex_text(table.title)}.}} {notes}}}",
        rf"\label{{tab:{table.slug}}}",
        # Shrunk only where it is wider than the text.
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{aligned}}}",
        r"\toprule",
        *_latex_groups(table),
        rf"{heads} \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def as_markdown(table: Table) -> str:
    """Return a table for a Markdown page, its notes below it; the page has a heading for its title."""
    aligned = ["---" if table.is_text(place) else "--:" for place in range(len(table.columns))]
    heads = [markdown_text(column.full_name) for column in table.columns]
    rows = [[_markdown(cell) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in (heads, aligned, *rows)]
    return "\n".join([*lines, *(["", " ".join(map(markdown_text, table.notes))] if table.notes else []), ""])


def latex_text(text: str) -> str:
    """Return text as LaTeX prints it."""
    # A backslash first becomes a placeholder, so that backslashes added by escaping stay.
    text = shown(text).replace("\\", "\0")
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    for plain, tex in _SIGNS.items():
        text = text.replace(plain, tex)
    return text


_SIGNS = {
    "\0": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "−": "$-$", "†": r"$\dagger$", "‡": r"$\ddagger$", "–": "--", "’": "'", "“": "``", "”": "''",
    "<": "$<$", ">": "$>$", "[": "{[}", "*": "{*}",  # arguments of a row end otherwise
    "β": r"$\beta$", "κ": r"$\kappa$", "×": r"$\times$", "Δ": r"$\Delta$", "…": r"\ldots{}", "µ": r"$\mu$",
    "·": r"$\cdot$", "≥": r"$\geq$", "≤": r"$\leq$",
}  # fmt: skip


def markdown_text(text: str) -> str:
    """Return text as Markdown prints it."""
    return re.sub(r"([\\`*_|\[\]]|<(?=[A-Za-z/!?]))", r"\\\1", shown(text))


def document(slugs: Sequence[str]) -> str:
    """Return a LaTeX document that includes the files of all tables."""
    return "\n".join([
        r"\documentclass{article}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage{booktabs,graphicx}",
        r"\usepackage[margin=2cm]{geometry}",
        r"\begin{document}",
        *(rf"\input{{{slug}.tex}}" + "\n" + r"\clearpage" for slug in slugs),
        r"\end{document}",
        "",
    ])  # fmt: skip


def _latex(cell: Cell) -> str:
    if isinstance(cell, str):
        return latex_text(cell)
    value, spread = cell.texts
    text = value.replace("-", "$-$") + (rf" $\pm$ {spread}" if spread else "")
    raised = {"†": r"\dagger", "‡": r"\ddagger"}.get(cell.mark, cell.mark)
    return (rf"\textbf{{{text}}}" if cell.best else text) + (rf"$^{{{raised}}}$" if raised else "")


def _markdown(cell: Cell) -> str:
    if isinstance(cell, str):
        return markdown_text(cell)
    return (f"**{cell}**" if cell.best else str(cell)) + markdown_text(cell.mark)


def _latex_groups(table: Table) -> list[str]:
    groups = table.head_groups()
    if not groups:
        return []
    heads, rules, first = [], [], 1
    for name, width in groups:
        heads.append(
            rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{latex_text(name)}}}}}" if name else "&" * (width - 1)
        )
        if name:
            rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
        first += width
    return [" & ".join(heads) + r" \\", " ".join(rules)]


#: Inches: one column of a two-column page, and both.
COLUMN, PAGE = 3.5, 7.1

# For lines without a colour of their own: Okabe and Ito's colours without yellow, which is too faint on
# white, then colours in between, which markers help to distinguish.
COLOURS = (
    "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F", "#8C510A",
    "#332288", "#882255", "#999933", "#117777", "#EE8866", "#AA4499", "#661100", "#6699CC", "#44AA99",
)  # fmt: skip
#: Number of classes whose colours are distinguishable without markers.
N_DISTINCT = 8
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d", "8", "*", "H", "x", "+", "1")
_LONG = 40  # paths with more points have fewer digits
_LONGEST = 700  # characters of a description
# An SVG cannot embed its font; these are about as wide.
_FONTS = "DejaVu Sans, Verdana, Geneva, Arial, sans-serif"
# No dates, so that the same run gives the same files.
FORMATS: dict[str, dict[str, None]] = {
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")), "png": {}, "pdf": {"CreationDate": None},
}  # fmt: skip
_LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 7.5,  # matplotlib brings it along
    "axes.titlesize": 8, "axes.labelsize": 7.5, "axes.linewidth": 0.6, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#DDDDDD", "grid.linewidth": 0.5,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "legend.fontsize": 7, "legend.frameon": False, "lines.linewidth": 1.2, "lines.markersize": 3.5,
    "figure.facecolor": "white", "savefig.dpi": 250, "path.simplify_threshold": 0.3,
    "image.composite_image": False,  # matplotlib would rasterise all at thousands of dots per inch
    "svg.fonttype": "none", "svg.hashsalt": "anchorinv", "pdf.fonttype": 42,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """A rendered figure: an SVG for the page, PNG and PDF for files, named after its slug.

    ``alt`` is the alternative text, ``width`` in inches.
    """

    slug: str
    title: str
    alt: str
    caption: str
    width: float
    svg: str
    png: bytes
    pdf: bytes

    @property
    def wide(self) -> bool:
        """Whether it spans both columns."""
        return self.width > COLUMN + 0.1

    def write(self, folder: Path, endings: Sequence[str] = ("svg", "png", "pdf")) -> None:
        """Write the files."""
        for ending in endings:
            self.write_to(folder / f"{self.slug}.{ending}")

    def write_to(self, path: Path) -> None:
        """Write one file, in the format of its suffix."""
        contents = {".svg": self.svg.encode(), ".png": self.png, ".pdf": self.pdf}
        with replacing(path) as beside:
            beside.write_bytes(contents[path.suffix.lower()])


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the common style to figures inside the block."""
    with mpl.rc_context(_LOOK):
        yield


def canvas(width: float, height: float) -> Canvas:
    """Return an empty drawing (inches) whose parts do not overlap."""
    return Canvas(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03))


def grid(n: int, height: float, extra: float = 0.0, *, most: int = 3, **shared: Any) -> tuple[Canvas, Any]:
    """Return a drawing and its n panels in rows of at most ``most``; ``shared`` is passed to ``subplots``.

    ``height`` is that of a row, ``extra`` is added for all; both in inches.
    """
    columns = min(most, n)
    rows = -(-n // columns)
    drawing = canvas(COLUMN if columns == 1 else PAGE, rows * height + extra)
    axes = drawing.subplots(rows, columns, squeeze=False, **shared)
    for ax in axes.flat[n:]:
        ax.set_visible(False)
    return drawing, axes


def render_figure(drawing: Canvas, slug: str, title: str, alt: str, caption: str) -> Figure:
    """Render a drawing in all formats."""
    literal_text(drawing)
    engine = drawing.get_layout_engine()
    assert engine is not None, "drawings come from canvas()"
    engine.execute(drawing)
    drawing.set_layout_engine(None)  # the layout is done; each format would compute it again
    rendered = {"svg": b"", "png": b"", "pdf": b""}
    for kind, metadata in FORMATS.items():
        buffer = io.BytesIO()
        drawing.savefig(buffer, format=kind, metadata=metadata)
        rendered[kind] = buffer.getvalue()
    svg, width = shorten_svg(rendered["svg"].decode()), float(drawing.get_size_inches()[0])
    return Figure(slug, title, _shorten_alt(alt), caption, width, svg, rendered["png"], rendered["pdf"])


def shorten_svg(svg: str) -> str:
    r"""Shrink an SVG to half its size: one font, coordinates to a hundredth of a point.

    Examples
    --------
    >>> shorten_svg('<path d="M 1.23456 2.0 \nL 3.98 4 "/> <text x="0.125">0.0183</text>')
    '<path d="M1.23 2L3.98 4"/><text x="0.12">0.0183</text>'
    """

    def short(match: re.Match[str]) -> str:
        digits = 1 if match[2].count("L") > _LONG else 2
        numbers = re.sub(r"-?\d+\.\d+", lambda n: f"{round(float(n[0]), digits):g}", match[2])
        path = re.sub(r" *([A-Za-z]) *", r"\1", " ".join(numbers.split()))
        return f' {match[1]}="{path}"'

    svg = re.sub(r' (d|x|y)="([^"]*)"', short, svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"|(?<="|;| )font-family: [^;"]*;? ?', "", svg)
    return re.sub(r">\s+<", "><", svg).replace("<svg ", f'<svg font-family="{_FONTS}" ', 1)


def colours(lines: Sequence[str], *, ordered: bool = False) -> dict[str, str]:
    """Return a colour for each line: the method's, or the next free one; a scale for ordered lines."""
    if ordered or len(lines) > len(COLOURS):
        scale, most = mpl.colormaps["viridis"], max(1, len(lines) - 1)
        return {line: mpl.colors.to_hex(scale(0.92 * i / most)) for i, line in enumerate(lines)}
    return _registered_or_free(lines, {spec.title: spec.colour for spec in METHODS.values()}, COLOURS)


def markers(lines: Sequence[str]) -> dict[str, str]:
    """Return a marker for each line: the method's, or the next free one."""
    if len(lines) > len(MARKERS):
        return {line: MARKERS[i % len(MARKERS)] for i, line in enumerate(lines)}
    return _registered_or_free(lines, {spec.title: spec.marker for spec in METHODS.values()}, MARKERS)


def _registered_or_free(
    lines: Sequence[str], registered: dict[str, str], others: Sequence[str]
) -> dict[str, str]:
    taken = {registered.get(line) for line in lines}
    free = (choice for choice in others if choice not in taken)
    return {line: registered.get(line) or next(free) for line in lines}


def _shorten_alt(alt: str) -> str:
    """Shorten an alternative text to a length suitable for screen readers."""
    if len(alt) <= _LONGEST:
        return alt
    return f"{alt[: alt.rindex(' ', 0, _LONGEST)].rstrip(' ,;:')} … The tables hold all numbers."
