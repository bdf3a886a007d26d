"""The table that ``anchorinv predict`` writes: whole or not at all, or row by row to standard output."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from anchorinv.quoting import csv_line

if TYPE_CHECKING:
    from anchorinv.model.serving import Row


@contextmanager
def opened(table: str) -> Iterator[TextIO]:
    """Give a file to write rows to, whole or not at all, or standard output."""
    from anchorinv.files import replacing

    try:
        if table == "-":
            yield sys.stdout
            sys.stdout.flush()
        else:
            with replacing(Path(table)) as beside, beside.open("w", newline="", encoding="utf-8") as file:
                yield file
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            raise
        # Whoever read has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


class Rows:
    """Write predictions as they come: a line on top before the first, then one for each window.

    Parameters
    ----------
    classes : of the columns of probabilities.
    named : whether each row begins with its file.
    """

    def __init__(self, file: TextIO, classes: list[object], *, named: bool) -> None:
        self._file, self._classes, self._named, self._begun = file, classes, named, False

    def write(self, name: str, rows: "Iterator[Row]") -> tuple[int, int]:
        """Write a file's rows; return how many there are, and how many of them have no class."""
        n_rows = n_gaps = 0
        for row in rows:
            self._begin()
            time = "" if row.time is None else f"{row.time:.6g}"
            if row.probabilities is None:
                cells = ["", *("" for _ in self._classes)]
                n_gaps += 1
            else:
                cells = [row.label, *(f"{p:.6f}" for p in row.probabilities)]
            self._line(name, row.window, time, *cells)
            n_rows += 1
        self._begin()
        return n_rows, n_gaps

    def _begin(self) -> None:
        # Not before there is a row to write: an input that cannot be read leaves no trace.
        if not self._begun:
            self._line("file", "window", "time", "class", *(f"p_{name}" for name in self._classes))
            self._begun = True

    def _line(self, name: str, *cells: object) -> None:
        self._file.write(csv_line([name, *cells] if self._named else cells))
