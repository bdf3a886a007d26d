"""Calibration in reports: a table of measures, and reliability diagrams of methods or of one model."""

import textwrap
from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from anchorinv.core.reliability import N_BINS, Reliability, SplitReliability
from anchorinv.report.formats import (
    COLOURS,
    COLUMN,
    PAGE,
    Cell,
    Column,
    Figure,
    Number,
    Table,
    canvas,
    finished,
    look,
)
from anchorinv.report.gather import Group, Run, groups_of
from anchorinv.report.tables import averaged_over, line_columns, of_group
from anchorinv.study.scores import CALIBRATION, summarise

_MEASURES = {"ece": "Expected calibration error", "brier": "Brier score"}
_PARTS = {"base": "base classes", "new": "new classes"}
_SHADES = {"base": COLOURS[1], "new": COLOURS[0]}
_SIGNS = {"base": "o", "new": "s"}
_GAP = "#999999"
_MANY = 8  # panels; with more, each is smaller
_TICKS = (0, 0.5, 1)


def calibration_table(run: Run) -> Table | None:
    """Return calibration error and Brier score of base and of new classes after the last session.

    None where no result has probabilities.
    """
    groups = groups_of(run)
    rows = [
        [*of_group(group, groups), line, *cells] for group in groups for line, cells in _rows(group).items()
    ]
    if not any(isinstance(cell, Number) for row in rows for cell in row):
        return None
    heads = [Column(part, _MEASURES[name]) for name in _MEASURES for part in _PARTS.values()]
    notes = [
        "After the last session, on windows of base and of new classes apart, by their true class; lower is "
        f"better. {averaged_over(run)}",
        f"Expected calibration error: {N_BINS} bins of equal width of the largest probability; with few "
        "windows it is above 0 by chance alone. Brier score: squared error of the probabilities, summed over "
        "classes, from 0 to 2.",
        *_missing(run),
    ]
    return Table(f"{run.slug}-calibration", "Calibration", [*line_columns(groups), *heads], rows, notes)


def calibration_figure(slug: str, group: Group) -> Figure | None:
    """Draw a small reliability diagram for each line after the last session, summed over trials.

    None where no result has probabilities.
    """
    measured = _measured(group).groupby("line", sort=False)["reliability"]
    panels: dict[str, SplitReliability] = {str(line): reduce(add, some) for line, some in measured}
    if not panels:
        return None
    across, side = (5, 1.55) if len(panels) > _MANY else (min(4, len(panels)), 1.8)
    down = -(-len(panels) // across)
    with look():
        drawing = canvas(max(COLUMN, min(PAGE, 1.72 * across + 0.3)), side * down + 0.5)
        axes = drawing.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        for ax in axes.flat[len(panels) :]:
            ax.set_visible(False)
        for ax, (line, both) in zip(axes.flat, panels.items(), strict=False):
            _draw_points(ax, both)
            parts = [f"{part} {each.ece:.3f}" for part in _PARTS if (each := getattr(both, part)).n]
            ax.set_title(f"{textwrap.fill(line, 22)}\n{', '.join(parts)}", loc="left", fontsize=7)
        for place in range(len(panels) - across, len(panels)):
            axes.flat[place].tick_params(labelbottom=True)  # the last panel of each column
        drawing.supxlabel("largest probability", fontsize=7.5)
        drawing.supylabel("accuracy", fontsize=7.5)
        marks = [
            Line2D([], [], color=_SHADES[part], marker=_SIGNS[part], linewidth=0.9, label=words)
            for part, words in _PARTS.items()
        ]
        drawing.legend(handles=marks, loc="outside upper center", ncols=2)
        errors = "; ".join(f"{line}: {_errors(both)}" for line, both in panels.items())
        alt = (
            f"{len(panels)} reliability diagrams after the last session: accuracy against the largest "
            f"probability. Expected calibration error, {errors}."
        )
        caption = (
            "Reliability after the last session, all trials together: accuracy of predictions by their "
            f"largest probability, in {N_BINS} bins; a mark is as large as the share of windows in its bin. "
            "On the dashed line confidence equals accuracy; below it predictions are overconfident. "
            "Numbers are expected calibration errors of all trials together; the table has means over trials."
        )
        title = f"Reliability{f': {group.title}' if group.title else ''}"
        return finished(drawing, slug, title, alt, caption)


def reliability_figure(slug: str, both: SplitReliability, name: str = "") -> Figure:
    """Draw the reliability diagram of one model: bars of accuracy, gaps to confidence, windows in each bin.

    One panel for base classes, one for new ones; ``name`` is the title.
    """
    parts: Mapping[str, Reliability] = {
        part: each for part in _PARTS if (each := getattr(both, part)).n or part == "base"
    }
    with look():
        drawing = canvas(2.5 * len(parts) + 0.4, 3.7)
        axes = drawing.subplots(2, len(parts), squeeze=False, sharex=True, height_ratios=(4, 1))
        for (part, each), upper, lower in zip(parts.items(), axes[0], axes[1], strict=True):
            _draw_bars(upper, lower, each, _SHADES[part])
            numbers = (
                f"{each.n} windows, ECE {each.ece:.3f}, Brier {each.brier:.3f}" if each.n else "no windows"
            )
            upper.set_title(f"{_PARTS[part].capitalize()}\n{numbers}", loc="left")
            lower.set_xlabel("largest probability")
        axes[0, 0].set_ylabel("accuracy")
        axes[1, 0].set_ylabel("windows")
        drawing.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        if name:
            drawing.suptitle(name, x=0.01, ha="left", fontsize=8)
        alt = f"Reliability diagram. Expected calibration error, {_errors(both)}."
        caption = (
            f"Reliability: accuracy of predictions by their largest probability, in {N_BINS} bins; the gap "
            "to the mean probability of the bin; and how many windows are in it."
        )
        return finished(drawing, slug, "Reliability", alt, caption)


def _rows(group: Group) -> dict[str, list[Cell]]:
    """Return the cells of each line, a unique lowest value in bold."""
    cells = summarise(_measured(group), ["line"], CALIBRATION)
    rows: dict[str, list[Cell]] = {line: [] for line in group.lines}
    for name in CALIBRATION:
        means = {line: cell.mean for line in rows if (cell := cells.get((line, name)))}
        printed = sorted(round(mean, 3) for mean in means.values() if not np.isnan(mean))
        alone = len(printed) > 1 and printed[0] < printed[1]
        for line, row in rows.items():
            if np.isnan(means.get(line, np.nan)):
                row.append("")
            else:
                best = alone and round(means[line], 3) == printed[0]
                row.append(Number(means[line], cells[line, name].std, 3, best=best))
    return rows


def _measured(group: Group) -> pd.DataFrame:
    """Return the scores after the last session that have a reliability."""
    frame = group.scores[group.scores["session"] == group.last]
    return frame[frame["reliability"].notna()]


def _missing(run: Run) -> list[str]:
    """Note the results without probabilities, if there are some."""
    last = pd.concat([group.scores[group.scores["session"] == group.last] for group in groups_of(run)])
    n = int(last["reliability"].isna().sum())
    if not n:
        return []
    return [
        f"{n} of {len(last)} results have no probabilities and are left out: their method gives none, or "
        "they were computed by an earlier version."
    ]


def _errors(both: SplitReliability) -> str:
    parts = {words: getattr(both, part) for part, words in _PARTS.items()}
    return ", ".join(f"{words} {each.ece:.3f}" for words, each in parts.items() if each.n)


def _frame(ax: Axes) -> None:
    ax.plot([0, 1], [0, 1], color="#595959", linewidth=0.8, linestyle=(0, (3, 2)), zorder=2)
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    ax.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    ax.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])


def _draw_points(ax: Axes, both: SplitReliability) -> None:
    _frame(ax)
    for part in _PARTS:
        each: Reliability = getattr(both, part)
        there = each.counts > 0
        x, y = (sums[there] / each.counts[there] for sums in (each.confidence, each.correct))
        ax.plot(x, y, color=_SHADES[part], linewidth=0.9, zorder=3)
        areas = 4 + 90 * each.counts[there] / max(1, each.n)
        ax.scatter(x, y, s=areas, color=_SHADES[part], marker=_SIGNS[part], alpha=0.75, linewidths=0,
                   zorder=4)  # fmt: skip


def _draw_bars(upper: Axes, lower: Axes, each: Reliability, shade: str) -> None:
    _frame(upper)
    there = each.counts > 0
    n = np.maximum(each.counts, 1)
    accuracy, confidence = (each.correct / n)[there], (each.confidence / n)[there]
    middles = ((np.arange(N_BINS) + 0.5) / N_BINS)[there]
    bars: dict[str, Any] = {"width": 0.94 / N_BINS}
    upper.bar(middles, accuracy, color=shade, alpha=0.7, label="accuracy", zorder=1.5, **bars)
    with mpl.rc_context({"hatch.linewidth": 0.5}):
        upper.bar(middles, confidence - accuracy, bottom=accuracy, color="none", edgecolor="#1A1A1A",
                  linewidth=0.6, hatch="////", label="gap to the mean probability", zorder=1.7,
                  **bars)  # fmt: skip
    counted = lower.bar(middles, each.counts[there], color=_GAP, **bars)
    lower.bar_label(counted, fontsize=5.5, padding=1, rotation=90 if each.counts.max() > 99 else 0)
    lower.set_ylim(0, 1.6 * max(1, each.counts.max()))
    lower.locator_params(axis="y", nbins=3, integer=True)
    lower.grid(axis="x", visible=False)
