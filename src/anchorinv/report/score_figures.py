"""Figures of scores: over sessions, per trial, against a setting, confusion, reliability; and of costs."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from anchorinv.core.metrics import N_BINS, Reliability, SplitReliability
from anchorinv.report.formats import (
    COLOURS,
    COLUMN,
    PAGE,
    Figure,
    canvas,
    colours,
    figure_style,
    grid,
    markers,
    render_figure,
)
from anchorinv.report.gather import Group, Run, groups_of, varied_keys
from anchorinv.report.tables import CLASSES, costs
from anchorinv.study.config import Experiment
from anchorinv.study.scores import confidence_interval, method_title

#: Settings that a figure may vary: key, axis label, and how to read the value.
_SWEEPS: dict[str, tuple[str, Callable[[Experiment], int]]] = {
    "protocol.shots": ("shots per new class", lambda e: e.protocol.shots),
    "anchors.per_class": ("anchors per base class", lambda e: e.anchors.per_class),
    "protocol.base_classes": ("number of base classes", lambda e: len(e.protocol.base_classes)),
}
_CROWDED = 9  # with more lines only the reference has a band, and the figure is wide
_LEGIBLE = 0.15  # smallest cell, in inches, that shows its value
_HIGHEST = 8.2  # maximum height of a column of matrices, in inches
_DOTS = 8  # pixels per side of a cell, so that smoothing viewers keep its edges
_STEP = 1.08  # from one matrix to the next; each has a side of 1


def score_figures(run: Run) -> list[Figure]:
    """Draw the figures of a run's scores."""
    groups = groups_of(run)
    slug = f"{run.slug}-sessions"
    if len(groups) == 1:
        drawn = [sessions_figure(slug, groups[0])]
    elif groups[0].of == "methods":
        drawn = [small_sessions_figure(slug, groups)]
    else:
        drawn = [sessions_figure(f"{slug}-{i}", group) for i, group in enumerate(groups, start=1)]
    drawn += _sweeps(run, groups)
    if differences := differences_figure(f"{run.slug}-differences", groups):
        drawn.append(differences)
    group = groups[0] if len(groups) == 1 else _references(groups)
    drawn.append(confusion_figure(f"{run.slug}-confusion", group, run.class_names(group.variant)))
    if figure := calibration_figure(f"{run.slug}-calibration", group):
        drawn.append(figure)
    return drawn


@figure_style()
def sessions_figure(slug: str, group: Group) -> Figure:
    """Draw macro-F1 over sessions for all, base and new classes: means and standard deviations."""
    crowded = len(group.lines) > _CROWDED
    if crowded:
        drawing = canvas(PAGE, 3.9)
        axes = drawing.subplots(1, 3, sharey=True)
    else:
        drawing = canvas(COLUMN, 4.6 + 0.13 * (1 + -(-len(group.lines) // 3)))
        axes = drawing.subplots(3, 1, sharex=True)
    for ax, (part, words) in zip(axes, CLASSES.items(), strict=True):
        _draw_sessions(ax, group, part)
        ax.set_title(words.capitalize(), loc="left")
    _label_sessions(axes[:1] if crowded else axes, axes if crowded else axes[-1:])
    if crowded:
        # In the order of the lines' ends, so that a line is found by its height.
        ends = {line: -cell.mean for line, cell in group.cells(group.last, "f1_all").items()}
        handles, names = axes[0].get_legend_handles_labels()
        ranked = sorted(zip(handles, names, strict=True), key=lambda entry: ends.get(entry[1], 0.0))
        drawing.legend(*zip(*ranked, strict=True), loc="outside right center", handlelength=1.6)
    else:
        _legend(drawing, axes[0])
    alt = (
        f"Line charts of macro-F1 over sessions 0 to {group.last}: all, base and new classes. "
        f"{_final_scores(group)}"
    )
    bands = f", {f'the band ({group.reference})' if crowded else 'bands'} a standard deviation to both sides"
    order = " The legend is in the order of the last session, over all classes." if crowded else ""
    caption = (
        f"Macro-F1 over sessions; lines are means{'' if crowded and group.reference is None else bands}."
    )
    title = f"Macro-F1 over sessions{f': {group.title}' if group.title else ''}"
    return render_figure(drawing, slug, title, alt, caption + order)


@figure_style()
def small_sessions_figure(slug: str, groups: Sequence[Group]) -> Figure:
    """Draw macro-F1 over all classes in a panel for each group: variants or data sets side by side."""
    drawing, axes = grid(len(groups), 1.75, 0.5, sharey=True)
    for ax, group in zip(axes.flat, groups, strict=False):
        _draw_sessions(ax, group, "f1_all")
        ax.set_title(group.title, loc="left")
    _label_sessions(axes[:, 0], axes.flat[max(0, len(groups) - axes.shape[1]) : len(groups)])
    _legend(drawing, axes[0, 0])
    ends = " ".join(f"{group.title}: {_final_scores(group)}" for group in groups)
    alt = f"{len(groups)} line charts of macro-F1 over all classes and sessions. {ends}"
    caption = "Macro-F1 over all classes; lines are means, bands a standard deviation to both sides."
    return render_figure(drawing, slug, "Macro-F1 over sessions, side by side", alt, caption)


def _label_sessions(left: Iterable[Axes], lowest: Iterable[Axes]) -> None:
    """Label the panels on the left and the last of each column; where all share an axis, it starts at 0."""
    for ax in left:
        ax.set_ylim(0, max(5.0, ax.get_ylim()[1]))
        ax.set_ylabel("macro-F1 (%)")
    for ax in lowest:
        ax.set_xlabel("session")


@figure_style()
def differences_figure(slug: str, groups: Sequence[Group], *, flipped: bool = False) -> Figure | None:
    """Draw each line's differences from the reference per trial after the last session, a panel per group.

    With ``flipped``, a difference is the reference minus the line.
    """
    panels = {group.title: values for group in groups if (values := _differences(group, flipped=flipped))}
    groups = [group for group in groups if group.title in panels]
    if not groups:
        return None
    n_lines = max(len(differences) for differences in panels.values())
    drawing, axes = grid(len(groups), 0.24 * n_lines + 0.75, sharex=True)
    for ax, group in zip(axes.flat, groups, strict=False):
        _draw_differences(ax, panels[group.title], colours(list(group.lines), ordered=_ordered(group)))
        ax.set_title(group.title, loc="left")
    reference = groups[0].reference
    between = f"of {reference} minus that of the other" if flipped else f"minus {reference}"
    drawing.supxlabel(f"macro-F1 {between} (points)", fontsize=7.5)
    n = max(len(d) for differences in panels.values() for d in differences.values())
    listed = {
        title: "; ".join(f"{line} {d.mean():+.1f}" for line, d in differences.items())
        for title, differences in panels.items()
    }
    means = " ".join(
        f"{f'{title}: ' if title else ''}{differences}." for title, differences in listed.items()
    )
    alt = (
        f"Differences in macro-F1 over all classes after the last session ({between}), a point for "
        f"each of {n} trials, with mean and interval. Means: {means}"
    )
    caption = (
        f"Paired differences from {reference} after the last session: a point is a trial with the same "
        "shots for both; the black mark is the mean with its 95 % interval (Student's t). "
        f"{'Right' if flipped else 'Left'} of zero, {reference} is better."
    )
    return render_figure(drawing, slug, "Per-trial paired differences", alt, caption)


@figure_style()
def sweep_figure(slug: str, what: str, points: pd.DataFrame) -> Figure:
    """Draw the last session's macro-F1 against a setting, with words for its axis.

    Points have columns line, x, and for each part its mean and standard deviation ("f1_all", "f1_all std").
    """
    lines = dict(iter(points.sort_values("x", kind="stable").groupby("line", sort=False)))
    several = len(lines) > 1
    drawing = canvas(COLUMN, 4.6 if several else 2.6)
    panels = drawing.subplots(3 if several else 1, 1, sharex=True, squeeze=False)[:, 0]
    labels = list(lines) if several else list(CLASSES.values())
    shades, signs = colours(labels), markers(labels)
    for line, frame in lines.items():
        for i, (part, words) in enumerate(CLASSES.items()):
            ax, label = (panels[i], line) if several else (panels[0], words)
            ax.errorbar(frame["x"], frame[part], frame[f"{part} std"], capsize=2, elinewidth=0.8,
                        color=shades[label], marker=signs[label], label=label)  # fmt: skip
    for ax, words in zip(panels, CLASSES.values(), strict=False):
        ax.set_ylabel("macro-F1 (%)")
        if several:
            ax.set_title(words.capitalize(), loc="left")
    ticks = sorted(set(points["x"]))
    if len(ticks) <= 8:
        panels[-1].set_xticks(ticks, [f"{x:g}" for x in ticks])
    panels[-1].set_xlabel(what)
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    means = "; ".join(
        f"{line}: " + ", ".join(f"{x:g}: {m:.1f}" for x, m in zip(frame["x"], frame["f1_all"], strict=True))
        for line, frame in lines.items()
    )
    alt = f"Macro-F1 after the last session against {what}, over all classes: {means}."
    caption = f"Macro-F1 after the last session against {what}; mean and standard deviation over trials."
    return render_figure(drawing, slug, f"Macro-F1 against {what}", alt, caption)


def sweep_point(line: str, x: float, group: Group, of: str) -> dict[str, object]:
    """Return the last scores of a group's line ``of`` as a row for :func:`sweep_figure`, called ``line``."""
    point: dict[str, object] = {"line": line, "x": x}
    for part in CLASSES:
        cell = group.cell(of, max(group.sessions(of)), part)
        point |= {part: cell.mean if cell else np.nan, f"{part} std": cell.std or 0.0 if cell else np.nan}
    return point


@figure_style()
def cost_figure(slug: str, run: Run) -> Figure:
    """Draw seconds per session and peak memory of each method."""
    by_method = costs(run.scores, ["method"])
    names = [method_title(method) for method in by_method.index][::-1]
    shades = colours(names[::-1])
    drawing = canvas(COLUMN, 0.2 * len(names) + 0.85)
    seconds, memory = drawing.subplots(1, 2, sharey=True)
    for ax, column, words, form in (
        (seconds, "session", "a session (s)", ".2f"),
        (memory, "peak_mb", "peak memory (MB)", ".0f"),
    ):
        values = list(by_method[column].fillna(0.0))[::-1]
        bars = ax.barh(names, values, color=[shades[name] for name in names], height=0.65)
        ax.bar_label(bars, [f"{v:{form}}" for v in values], padding=2, fontsize=6.5)
        ax.set_xlim(0, 1.35 * max([*values, 1e-3]))
        ax.set_ylim(-0.6, len(names) - 0.4)
        ax.set_xlabel(words)
        ax.grid(axis="y", visible=False)
        ax.locator_params(axis="x", nbins=4)
    listed = "; ".join(f"{method_title(m)} {s:.2f} s" for m, s in by_method["session"].fillna(0.0).items())
    alt = f"Bars of the mean seconds of a session and of the peak memory per method. A session: {listed}."
    caption = "Mean seconds to learn a session, and the peak memory of the process."
    return render_figure(drawing, slug, "Seconds and memory per method", alt, caption)


@figure_style()
def confusion_figure(slug: str, group: Group, class_names: Sequence[str]) -> Figure:
    """Draw the confusion matrices of all lines (rows) and sessions (columns), summed over trials."""
    matrices = group.scores.groupby(["line", "session"], sort=False)["confusion"]
    counts = matrices.agg(lambda some: np.sum([*some], axis=0))
    lines, n_sessions = list(group.lines), group.last + 1
    most = group.scores["classes"].map(len).max()
    width = COLUMN if n_sessions * most <= 12 else PAGE
    side = min((width - 0.95) / n_sessions, _HIGHEST / len(lines))
    drawing = canvas(min(width, side * n_sessions + 1.25), side * len(lines) + 0.55)
    # One pair of axes for all: fifty pairs would take seconds.
    ax = drawing.subplots()
    for (line, session), matrix in counts.items():
        _draw_confusion(ax, matrix, session * _STEP, lines.index(line) * _STEP, side)
    ax.set_xlim(-0.03, (n_sessions - 1) * _STEP + 1.03)
    ax.set_ylim((len(lines) - 1) * _STEP + 1.03, -0.03)
    ax.set_aspect("equal")
    heads = ["base", *(f"session {session}" for session in range(1, n_sessions))]
    ax.set_xticks([session * _STEP + 0.5 for session in range(n_sessions)], heads)
    names = [textwrap.fill(line, 12) for line in lines]
    ax.set_yticks([row * _STEP + 0.5 for row in range(len(lines))], names)
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("rows: true class, columns: predicted", fontsize=7)
    recall = {line: _recall(counts[line, group.last]) for line in lines if (line, group.last) in counts}
    shares = "; ".join(f"{line}: {values}" for line, values in recall.items())
    order = group.scores.loc[group.scores["session"] == group.last, "classes"].iloc[0]
    learned = ", ".join(class_names[c] if c < len(class_names) else str(c) for c in order)
    alt = (
        f"Confusion matrices of {len(lines)} lines after each of {n_sessions} sessions. Share of each "
        f"class recognised after the last, in percent, classes in the order learned: {shares}."
    )
    caption = (
        "Confusion over all trials, each row as shares of a true class in percent; darker is more, and "
        f"shares below a half are not written. Classes in the order learned: {learned}."
    )
    title = f"Confusion matrices{f': {group.title}' if group.title else ''}"
    return render_figure(drawing, slug, title, alt, caption)


def _references(groups: Sequence[Group]) -> Group:
    """Return a group of the references of all groups, for figures that cannot show all lines."""
    chosen = {group.title: group.reference or next(iter(group.lines)) for group in groups}
    frames = [group.lines[chosen[group.title]].assign(line=group.title) for group in groups]
    title = ", ".join(dict.fromkeys(chosen.values()))
    return Group(title, "variants", pd.concat(frames), None, groups[0].variant)


def _sweeps(run: Run, groups: Sequence[Group]) -> list[Figure]:
    variants = run.variants()
    keys = varied_keys(list(variants.values()))
    drawn = []
    for key, (words, value) in _SWEEPS.items():
        places = {name: value(experiment) for name, experiment in variants.items()}
        # Other settings may depend on the number of base classes, and names differ while numbers do not.
        if key not in keys or len(set(places.values())) < len(places):
            continue
        points = [
            sweep_point(line if group.of == "methods" else "macro-F1", places[variant], group, line)
            for group in groups
            for line, variant in group.variants.items()
        ]
        slug = f"{run.slug}-{key.split('.')[1].replace('_', '-')}"
        drawn.append(sweep_figure(slug, words, pd.DataFrame(points)))
    return drawn


def _draw_sessions(ax: Axes, group: Group, part: str) -> None:
    lines = list(group.lines)
    shades, signs = colours(lines, ordered=_ordered(group)), markers(lines)
    for line in lines:
        cells = {s: cell for s in group.sessions(line) if (cell := group.cell(line, s, part))}
        if not cells:
            continue
        sessions = list(cells)
        means = np.array([cell.mean for cell in cells.values()])
        spread = np.array([cell.std or 0.0 for cell in cells.values()])
        front = line == group.reference
        crowded = len(lines) > _CROWDED
        ax.plot(sessions, means, color=shades[line], marker=signs[line], label=line, zorder=4 if front else 3,
                linewidth=1.8 if front else 0.8 if crowded else 1.1, markersize=3 if crowded else 3.5,
                clip_on=False)  # fmt: skip
        if front or not crowded:
            ax.fill_between(
                sessions, means - spread, means + spread, color=shades[line], alpha=0.15, linewidth=0
            )
    ax.set_xticks(range(group.last + 1), ["base", *(str(s) for s in range(1, group.last + 1))])
    ax.set_xlim(-0.15, group.last + 0.15)


def _differences(group: Group, *, flipped: bool) -> dict[str, np.ndarray]:
    """Return for each line but the reference its differences from it; none where nothing is compared."""
    if group.reference is None or not group.last:
        return {}
    others = [line for line in group.lines if line != group.reference]
    values = {line: group.differences(line, group.reference, group.last).to_numpy() for line in others}
    return {line: -d if flipped else d for line, d in values.items() if len(d)}


def _draw_differences(ax: Axes, differences: dict[str, np.ndarray], shades: dict[str, str]) -> None:
    names = list(differences)[::-1]
    for height, name in enumerate(names):
        values = differences[name]
        # Deterministic jitter, so that points do not overlap.
        jitter = 0.28 * (np.arange(len(values)) % 7 - 3) / 3
        ax.scatter(values, height + jitter, s=9, color=shades[name], alpha=0.65, linewidths=0)
        if len(values) > 1:
            ax.plot(confidence_interval(values), [height, height], color="black", linewidth=1.4)
        ax.plot([values.mean()], [height], color="black", marker="|", markersize=9, markeredgewidth=1.6)
    ax.axvline(0, color="black", linewidth=0.8, linestyle=(0, (3, 2)))
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.grid(axis="y", visible=False)


def _recall(counts: np.ndarray) -> str:
    return ", ".join(f"{share:.0f}" for share in 100 * counts.diagonal() / np.maximum(counts.sum(1), 1))


def _draw_confusion(ax: Axes, counts: np.ndarray, left: float, top: float, inches: float) -> None:
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    dots = shares.repeat(_DOTS, axis=0).repeat(_DOTS, axis=1)
    extent = (left, left + 1, top + 1, top)
    ax.imshow(dots, vmin=0, vmax=100, cmap="Blues", interpolation="none", extent=extent, zorder=1)
    ax.add_patch(Rectangle((left, top), 1, 1, fill=False, linewidth=0.6, zorder=2))
    side = 1 / len(shares)
    if inches * side < _LEGIBLE:
        return
    words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 5.5 if inches * side < 0.25 else 6.5}
    for (row, column), share in np.ndenumerate(shares):
        if share >= 0.5:
            x, y = left + (column + 0.5) * side, top + (row + 0.5) * side
            shade = "white" if share > 55 else "black"
            ax.text(x, y, f"{share:.0f}", color=shade, in_layout=False, zorder=3, **words)


def _legend(drawing: Canvas, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    longest = max((len(label) for label in labels), default=0)
    ncols = 2 if longest > 14 else 3 if longest > 9 else 4
    drawing.legend(
        handles, labels, loc="outside upper center", ncols=ncols, columnspacing=1.0, handlelength=1.6
    )


def _ordered(group: Group) -> bool:
    return group.of == "variants" and all("".join(line.split()[:1]).isdigit() for line in group.lines)


def _final_scores(group: Group) -> str:
    cells = group.cells(group.last, "f1_all")
    listed = ", ".join(f"{line} {cell.mean:.1f}" for line, cell in cells.items())
    return f"Over all classes after session {group.last}: {listed}."


def runs_figures(groups: dict[str, Group], runs: Sequence[Run]) -> list[Figure]:
    """Draw runs side by side, and against the number of base classes where a data set has several."""
    drawn = [
        small_sessions_figure("together-sessions", [replace(g, title=name) for name, g in groups.items()])
    ]
    points: dict[str, list[dict[str, object]]] = {}
    for run in runs:
        if group := groups.get(run.label):
            data, n_base = run.study.variants[group.variant].data.name, int(group.scores["n_base"].iloc[0])
            points.setdefault(data, []).extend(sweep_point(line, n_base, group, line) for line in group.lines)
    for data, rows in points.items():
        frame = pd.DataFrame(rows).drop_duplicates(["line", "x"], keep="last")
        if frame["x"].nunique() > 1:
            drawn.append(sweep_figure(f"together-base-classes-{data}", "number of base classes", frame))
    return drawn


_PARTS = {"base": "base classes", "new": "new classes"}
_SHADES = {"base": COLOURS[1], "new": COLOURS[0]}
_SIGNS = {"base": "o", "new": "s"}
_GAP = "#999999"
_MANY = 8  # panels; with more, each is smaller
_TICKS = (0, 0.5, 1)


@figure_style()
def calibration_figure(slug: str, group: Group) -> Figure | None:
    """Draw a small reliability diagram for each line after the last session, summed over trials.

    None where no result has probabilities.
    """
    measured = group.measured.groupby("line", sort=False)["reliability"]
    panels: dict[str, SplitReliability] = {str(line): reduce(add, some) for line, some in measured}
    if not panels:
        return None
    across, side = (5, 1.55) if len(panels) > _MANY else (min(4, len(panels)), 1.8)
    down = -(-len(panels) // across)
    drawing = canvas(max(COLUMN, min(PAGE, 1.72 * across + 0.3)), side * down + 0.5)
    axes = drawing.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax, (line, both) in zip(axes.flat, panels.items(), strict=False):
        _draw_points(ax, both)
        parts = [f"{part} {reliability.ece:.3f}" for part in _PARTS if (reliability := getattr(both, part)).n]
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
    return render_figure(drawing, slug, title, alt, caption)


@figure_style()
def reliability_figure(slug: str, both: SplitReliability, name: str = "") -> Figure:
    """Draw the reliability diagram of one model: bars of accuracy, gaps to confidence, windows in each bin.

    One panel for base classes, one for new ones; ``name`` is the title.
    """
    parts: Mapping[str, Reliability] = {
        part: reliability for part in _PARTS if (reliability := getattr(both, part)).n or part == "base"
    }
    drawing = canvas(2.5 * len(parts) + 0.4, 3.7)
    axes = drawing.subplots(2, len(parts), squeeze=False, sharex=True, height_ratios=(4, 1))
    for (part, reliability), upper, lower in zip(parts.items(), axes[0], axes[1], strict=True):
        _draw_bars(upper, lower, reliability, _SHADES[part])
        numbers = (
            f"{reliability.n} windows, ECE {reliability.ece:.3f}, Brier {reliability.brier:.3f}"
            if reliability.n
            else "no windows"
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
    return render_figure(drawing, slug, "Reliability", alt, caption)


def _errors(both: SplitReliability) -> str:
    parts = {words: getattr(both, part) for part, words in _PARTS.items()}
    return ", ".join(
        f"{words} {reliability.ece:.3f}" for words, reliability in parts.items() if reliability.n
    )


def _frame(ax: Axes) -> None:
    ax.plot([0, 1], [0, 1], color="#595959", linewidth=0.8, linestyle=(0, (3, 2)), zorder=2)
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    ax.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    ax.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])


def _draw_points(ax: Axes, both: SplitReliability) -> None:
    _frame(ax)
    for part in _PARTS:
        reliability: Reliability = getattr(both, part)
        filled = reliability.counts > 0
        x, y = (
            sums[filled] / reliability.counts[filled]
            for sums in (reliability.confidence, reliability.correct)
        )
        ax.plot(x, y, color=_SHADES[part], linewidth=0.9, zorder=3)
        areas = 4 + 90 * reliability.counts[filled] / max(1, reliability.n)
        ax.scatter(x, y, s=areas, color=_SHADES[part], marker=_SIGNS[part], alpha=0.75, linewidths=0,
                   zorder=4)  # fmt: skip


def _draw_bars(upper: Axes, lower: Axes, reliability: Reliability, shade: str) -> None:
    _frame(upper)
    filled = reliability.counts > 0
    n = np.maximum(reliability.counts, 1)
    accuracy, confidence = (reliability.correct / n)[filled], (reliability.confidence / n)[filled]
    middles = ((np.arange(N_BINS) + 0.5) / N_BINS)[filled]
    bars: dict[str, Any] = {"width": 0.94 / N_BINS}
    upper.bar(middles, accuracy, color=shade, alpha=0.7, label="accuracy", zorder=1.5, **bars)
    with mpl.rc_context({"hatch.linewidth": 0.5}):
        upper.bar(middles, confidence - accuracy, bottom=accuracy, color="none", edgecolor="#1A1A1A",
                  linewidth=0.6, hatch="////", label="gap to the mean probability", zorder=1.7,
                  **bars)  # fmt: skip
    counted = lower.bar(middles, reliability.counts[filled], color=_GAP, **bars)
    lower.bar_label(counted, fontsize=5.5, padding=1, rotation=90 if reliability.counts.max() > 99 else 0)
    lower.set_ylim(0, 1.6 * max(1, reliability.counts.max()))
    lower.locator_params(axis="y", nbins=3, integer=True)
    lower.grid(axis="x", visible=False)
