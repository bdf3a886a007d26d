"""Confusion matrices: a row of the figure for each line, a column for each session."""

import numpy as np
from matplotlib.axes import Axes

from anchorinv.report.groups import Group
from anchorinv.report.plates import COLUMN, PAGE, Plate, look, new_figure, plate

_WRITTEN = 6  # classes up to which the shares are written into the cells


def confusion_figure(slug: str, group: Group, class_names: list[str]) -> Plate:
    """Draw the confusion matrices of all lines and sessions, summed over trials, rows as shares."""
    n_sessions = group.last + 1
    with look():
        width = COLUMN if n_sessions <= 3 else PAGE
        side = (width - 0.75) / n_sessions
        figure = new_figure(width, len(group.lines) * (side + 0.02) + 0.6)
        axes = figure.subplots(len(group.lines), n_sessions, squeeze=False)
        told = []
        for row, line in enumerate(group.lines):
            for session in range(n_sessions):
                ax = axes[row, session]
                counts = summed(group, line, session)
                if counts is None:
                    ax.set_visible(False)
                    continue
                _draw(ax, counts, written=len(counts) <= _WRITTEN)
                if row == 0:
                    ax.set_title("base" if session == 0 else f"session {session}")
                if session == 0:
                    ax.set_ylabel(line, fontsize=7)
            final = summed(group, line, group.last)
            if final is not None:
                recall = 100 * final.diagonal() / np.maximum(final.sum(1), 1)
                told.append(f"{line}: {', '.join(f'{share:.0f}' for share in recall)}")
        n_classes = max(len(result.classes) for results in group.lines.values() for result in results)
        figure.supxlabel("predicted class, in the order learned", fontsize=7.5)
        figure.supylabel("true class", fontsize=7.5)
        order = next(
            r.classes for results in group.lines.values() for r in results if r.session == group.last
        )
        names = ", ".join(class_names[c] if c < len(class_names) else str(c) for c in order)
        alt = (
            f"Confusion matrices of {len(group.lines)} lines after each of {n_sessions} sessions. Share of each class "
            f"recognised after the last, in percent, classes in the order learned: {'; '.join(told)}."
        )
        caption = (
            f"Confusion over all trials, each row as shares of a true class in percent; darker is more. "
            f"Classes in the order learned: {names}."
        )
        title = f"Confusion matrices{f': {group.title}' if group.title else ''}"
        assert n_classes >= len(order)
        return plate(figure, slug, title, alt, caption)


def summed(group: Group, line: str, session: int) -> np.ndarray | None:
    """Return the counts of a line after a session, over all trials; None where there are none."""
    some = [result.confusion for result in group.lines[line] if result.session == session]
    return np.sum(some, axis=0) if some else None


def _draw(ax: Axes, counts: np.ndarray, *, written: bool) -> None:
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ax.imshow(shares, vmin=0, vmax=100, cmap="Blues", interpolation="nearest", aspect="equal")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(visible=False)
    if written:
        for (row, column), share in np.ndenumerate(shares):
            ax.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=5.5 if len(shares) > 3 else 6.5,
                    color="white" if share > 55 else "black")  # fmt: skip
