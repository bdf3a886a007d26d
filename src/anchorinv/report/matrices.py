"""Confusion matrices: a row of the figure for each line, a column for each session."""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from anchorinv.report.groups import Group
from anchorinv.report.plates import COLUMN, PAGE, Plate, look, new_figure, plate

_LEGIBLE = 0.15  # inches of a cell's side from which on its share is written into it
_HIGHEST = 8.2  # inches of all matrices of a column: a page of a paper holds no more
_DOTS = 8  # of a picture for a cell's side: viewers that smooth pictures leave cells their edges
_STEP = 1.08  # from one matrix to the next; each has a side of 1


def confusion_figure(slug: str, group: Group, class_names: list[str]) -> Plate:
    """Draw the confusion matrices of all lines and sessions, summed over trials, rows as shares."""
    lines, n_sessions = list(group.lines), group.last + 1
    with look():
        most = max(len(result.classes) for results in group.lines.values() for result in results)
        width = COLUMN if n_sessions * most <= 12 else PAGE
        side = min((width - 0.95) / n_sessions, _HIGHEST / len(lines))
        figure = new_figure(min(width, side * n_sessions + 1.25), side * len(lines) + 0.55)
        # One pair of axes for all: a pair for each of fifty matrices takes seconds.
        ax = figure.subplots()
        for row, line in enumerate(lines):
            for session in range(n_sessions):
                counts = summed(group, line, session)
                if counts is not None:
                    _draw(ax, counts, session * _STEP, row * _STEP, side)
        ax.set_xlim(-0.03, (n_sessions - 1) * _STEP + 1.03)
        ax.set_ylim((len(lines) - 1) * _STEP + 1.03, -0.03)
        ax.set_aspect("equal")
        ax.set_xticks(
            [session * _STEP + 0.5 for session in range(n_sessions)],
            ["base", *(f"session {session}" for session in range(1, n_sessions))],
        )
        ax.set_yticks(
            [row * _STEP + 0.5 for row in range(len(lines))], [textwrap.fill(line, 12) for line in lines]
        )
        ax.tick_params(length=0, labeltop=True, labelbottom=False)
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        ax.set_xlabel("rows: true class, columns: predicted", fontsize=7)
        told = {line: summed(group, line, group.last) for line in lines}
        shares = "; ".join(
            f"{line}: {_recall(counts)}" for line, counts in told.items() if counts is not None
        )
        order = next(r.classes for each in group.lines.values() for r in each if r.session == group.last)
        names = ", ".join(class_names[c] if c < len(class_names) else str(c) for c in order)
        alt = (
            f"Confusion matrices of {len(lines)} lines after each of {n_sessions} sessions. Share of each "
            f"class recognised after the last, in percent, classes in the order learned: {shares}."
        )
        caption = (
            "Confusion over all trials, each row as shares of a true class in percent; darker is more, and "
            "shares below a half are not written. "
            f"Classes in the order learned: {names}."
        )
        title = f"Confusion matrices{f': {group.title}' if group.title else ''}"
        return plate(figure, slug, title, alt, caption)


def summed(group: Group, line: str, session: int) -> np.ndarray | None:
    """Return the counts of a line after a session, over all trials; None where there are none."""
    some = [result.confusion for result in group.lines[line] if result.session == session]
    return np.sum(some, axis=0) if some else None


def _recall(counts: np.ndarray) -> str:
    shares = 100 * counts.diagonal() / np.maximum(counts.sum(1), 1)
    return ", ".join(f"{share:.0f}" for share in shares)


def _draw(ax: Axes, counts: np.ndarray, left: float, top: float, inches: float) -> None:
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    extent = (left, left + 1, top + 1, top)
    dots = shares.repeat(_DOTS, axis=0).repeat(_DOTS, axis=1)
    ax.imshow(dots, vmin=0, vmax=100, cmap="Blues", interpolation="none", extent=extent, zorder=1)
    ax.add_patch(Rectangle((left, top), 1, 1, fill=False, linewidth=0.6, zorder=2))
    if inches / len(shares) < _LEGIBLE:
        return
    side = 1 / len(shares)
    for (row, column), share in np.ndenumerate(shares):
        if share < 0.5:
            continue
        ax.text(
            left + (column + 0.5) * side,
            top + (row + 0.5) * side,
            f"{share:.0f}",
            ha="center",
            va="center",
            fontsize=5.5 if inches / len(shares) < 0.25 else 6.5,
            color="white" if share > 55 else "black",
            in_layout=False,
            zorder=3,
        )
