"""The numbers of a report as a reader finds them: in the page, in CSV and in LaTeX."""

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path


class Tables(HTMLParser):
    """The tables of a page: for each section's id, rows of cell texts, without marks."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] | None = None
        self._cell: list[str] | None = None
        self._raised = False
        self._in_body = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        if tag == "section" and (about.get("id") or "").startswith("table-"):
            self._rows = self.tables.setdefault(str(about["id"]).removeprefix("table-"), [])
        elif tag == "tbody":
            self._in_body = True
        elif tag == "tr" and self._in_body and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._in_body:
            self._cell = []
        elif tag == "sup":
            self._raised = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self._rows = None
        elif tag == "tbody":
            self._in_body = False
        elif tag in ("td", "th") and self._cell is not None:
            if self._rows:
                self._rows[-1].append("".join(self._cell).strip().replace("−", "-"))
            self._cell = None
        elif tag == "sup":
            self._raised = False

    def handle_data(self, data: str) -> None:
        if self._cell is not None and not self._raised:
            self._cell.append(data)


def in_page(report: Path) -> dict[str, list[list[str]]]:
    """All tables of a page."""
    found = Tables()
    found.feed((report / "report.html").read_text(encoding="utf-8"))
    return found.tables


def in_csv(report: Path, slug: str) -> list[list[str]]:
    """A table's rows from CSV, mean and standard deviation together again."""
    text = (report / "tables" / f"{slug}.csv").read_text(encoding="utf-8")
    head, *rows = list(csv.reader(io.StringIO(text)))
    found = []
    for row in rows:
        cells: list[str] = []
        for name, text in zip(head, row, strict=True):
            if name.endswith(" (std)"):
                cells[-1] += f" ± {text}" if text else ""
            elif not name.endswith(" (mark)"):
                cells.append(text)
        found.append(cells)
    return found


def in_latex(report: Path, slug: str) -> list[list[str]]:
    """A table's rows from LaTeX."""
    text = (report / "tables" / f"{slug}.tex").read_text(encoding="utf-8")
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    rows = [line.removesuffix(r" \\") for line in body.strip().splitlines()]
    return [[_plain(cell) for cell in re.split(r"(?<!\\)&", row)] for row in rows]


def _plain(cell: str) -> str:
    cell = re.sub(r"\$\^\{.*?\}\$", "", cell.strip())
    cell = re.sub(r"\\textbf\{(.*)\}", r"\1", cell)
    for tex, text in ((r"$\pm$", "±"), ("$-$", "-"), (r"\%", "%"), (r"\&", "&"), (r"\_", "_"), ("--", "–")):
        cell = cell.replace(tex, text)
    return cell
