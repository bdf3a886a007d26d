"""A table as a value: the page, CSV, LaTeX and Markdown print the same numbers because they print this."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from anchorinv.quoting import csv_line, shown

SIGNIFICANT = "†"


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is printed.

    Parameters
    ----------
    spread : what stands behind ±, if anything does.
    digits : after the point.
    signed : whether a plus is written.
    best : printed bold.
    mark : printed raised.
    """

    value: float
    spread: float | None = None
    digits: int = 2
    signed: bool = False
    best: bool = False
    mark: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """Return value and spread as text; the second is empty where there is none."""
        sign = "+" if self.signed else ""
        spread = "" if self.spread is None else f"{self.spread:.{self.digits}f}"
        return f"{self.value:{sign}.{self.digits}f}", spread

    def __str__(self) -> str:
        value, spread = self.texts
        return (f"{value} ± {spread}" if spread else value).replace("-", "−")


Cell = str | Number


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head, and the head that it shares with its neighbours."""

    name: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people: heads, rows and the notes below it. ``slug`` names its files."""

    slug: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def head_groups(self) -> list[tuple[str, int]]:
        """Return the upper row of the head: text and number of columns; empty where there is none."""
        found: list[tuple[str, int]] = []
        for column in self.columns:
            if found and found[-1][0] == column.group:
                found[-1] = column.group, found[-1][1] + 1
            else:
                found.append((column.group, 1))
        return found if any(group for group, _ in found) else []

    def is_text(self, place: int) -> bool:
        """Say whether a column holds words."""
        return any(isinstance(row[place], str) and row[place] for row in self.rows)


def as_csv(table: Table) -> str:
    """Return a table as CSV, mean and standard deviation in columns of their own, marks beside them."""
    split = [_split(table, place) for place in range(len(table.columns))]
    heads: list[str] = []
    for column, (spread, mark) in zip(table.columns, split, strict=True):
        name = f"{column.group}: {column.name}" if column.group else column.name
        heads += [name, *([f"{name} (std)"] if spread else []), *([f"{name} (mark)"] if mark else [])]
    lines = [csv_line(heads)]
    for row in table.rows:
        cells: list[str] = []
        for cell, (spread, mark) in zip(row, split, strict=True):
            value, std = cell.texts if isinstance(cell, Number) else (cell, "")
            marked = cell.mark if isinstance(cell, Number) else ""
            cells += [value, *([std] if spread else []), *([marked] if mark else [])]
        lines.append(csv_line(cells))
    return "".join(lines)


def as_latex(table: Table) -> str:
    """Return a table for LaTeX; it needs the packages booktabs and graphicx."""
    heads = " & ".join(rf"\textbf{{{escaped(column.name)}}}" for column in table.columns)
    body = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in table.rows]
    notes = " ".join(escaped(note) for note in table.notes)
    aligned = "".join("l" if table.is_text(place) else "c" for place in range(len(table.columns)))
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{\textbf{{{escaped(table.title)}.}} {notes}}}",
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
    heads = [f"{c.group}: {c.name}" if c.group else c.name for c in table.columns]
    aligned = ["---" if table.is_text(place) else "--:" for place in range(len(table.columns))]
    rows = [[_markdown(cell) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in ([markdown_text(head) for head in heads], aligned, *rows)]
    return "\n".join([*lines, *(["", " ".join(map(markdown_text, table.notes))] if table.notes else []), ""])


def escaped(text: str) -> str:
    r"""Return text as LaTeX prints it.

    Examples
    --------
    >>> escaped("95 % of A_1 ± 2")
    '95 \\% of A\\_1 $\\pm$ 2'
    """
    # A backslash first becomes a word of its own, so that those which escaping adds stay.
    text = shown(text).replace("\\", "\0")
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    for plain, tex in _SIGNS.items():
        text = text.replace(plain, tex)
    return text


_SIGNS = {
    "\0": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "−": "$-$", "†": r"$\dagger$", "‡": r"$\ddagger$", "–": "--", "’": "'", "“": "``", "”": "''",
    "<": "$<$", ">": "$>$", "[": "{[}", "*": "{*}",  # after the end of a row these two would belong to it
    "β": r"$\beta$", "κ": r"$\kappa$", "×": r"$\times$", "Δ": r"$\Delta$", "…": r"\ldots{}", "µ": r"$\mu$",
    "·": r"$\cdot$", "≥": r"$\geq$", "≤": r"$\leq$",
}  # fmt: skip


def markdown_text(text: str) -> str:
    r"""Return text as Markdown prints it.

    Examples
    --------
    >>> markdown_text("p < 0.05 of a_b | c")
    'p < 0.05 of a\\_b \\| c'
    """
    return re.sub(r"([\\`*_|\[\]]|<(?=[A-Za-z/!?]))", r"\\\1", shown(text))


def document(slugs: Sequence[str]) -> str:
    """Return a LaTeX document that shows all tables, from files of their own."""
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


def _split(table: Table, place: int) -> tuple[bool, bool]:
    numbers = [row[place] for row in table.rows if isinstance(row[place], Number)]
    return any(n.spread is not None for n in numbers if isinstance(n, Number)), any(
        n.mark for n in numbers if isinstance(n, Number)
    )


def _latex(cell: Cell) -> str:
    if isinstance(cell, str):
        return escaped(cell)
    value, spread = cell.texts
    text = value.replace("-", "$-$") + (rf" $\pm$ {spread}" if spread else "")
    return (rf"\textbf{{{text}}}" if cell.best else text) + (
        rf"$^{{{_raised(cell.mark)}}}$" if cell.mark else ""
    )


def _markdown(cell: Cell) -> str:
    if isinstance(cell, str):
        return markdown_text(cell)
    return (f"**{cell}**" if cell.best else str(cell)) + markdown_text(cell.mark)


def _raised(mark: str) -> str:
    return {"†": r"\dagger", "‡": r"\ddagger"}.get(mark, mark)


def _latex_groups(table: Table) -> list[str]:
    groups = table.head_groups()
    if not groups:
        return []
    heads, rules, first = [], [], 1
    for name, width in groups:
        heads.append(
            rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{escaped(name)}}}}}" if name else "&" * (width - 1)
        )
        if name:
            rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
        first += width
    return [" & ".join(heads) + r" \\", " ".join(rules)]
