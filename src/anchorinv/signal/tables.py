"""Tables in text (CSV): the columns that are wanted, within bounds."""

import csv
from collections.abc import Collection
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from anchorinv.signal.limits import ROWS, read_text

_COLUMNS = 1000


@dataclass(frozen=True, slots=True)
class Table:
    """What a table says.

    Parameters
    ----------
    names : of all columns, without regard to case.
    columns : the wanted ones by name, a text for each row.
    lines : of each row.
    """

    names: tuple[str, ...]
    columns: dict[str, list[str]]
    lines: list[int]


def read_table(path: Path, wanted: Collection[str], *, delimiters: str = ",") -> Table:
    """Read the wanted columns of a table with a name on top of each; empty lines are skipped."""
    text = read_text(path)
    first = text.partition("\n")[0]
    if max(map(first.count, delimiters)) >= _COLUMNS:
        raise ValueError(f"{path} has more than {_COLUMNS} columns; is it the table it should be?")
    rows = csv.reader(StringIO(text, newline=""), delimiter=max(delimiters, key=first.count))
    same: dict[str, str] = {}  # a text that comes a million times is kept once
    lines: list[int] = []
    try:
        names = tuple(name.strip().casefold() for name in next(rows, []))
        places = {name: i for i, name in enumerate(names) if name in wanted}
        columns: dict[str, list[str]] = {name: [] for name in places}
        for cells in filter(None, rows):
            if len(lines) == ROWS:
                raise ValueError(f"{path} has more than a million rows; is it the table it should be?")
            lines.append(rows.line_num)
            for name, i in places.items():
                cell = cells[i] if i < len(cells) else ""
                columns[name].append(same.setdefault(cell, cell))
    except csv.Error as error:
        raise ValueError(
            f"{path} is no table ({error}, line {rows.line_num}); is a quote left open?"
        ) from None
    return Table(names, columns, lines)
