"""Figures of scores: over sessions, per trial, against a setting; and of what methods cost."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anchorinv.report.gather import Run
from anchorinv.report.groups import PARTS, Group
from anchorinv.report.plates import COLUMN, PAGE, Plate, colours, look, markers, new_figure, plate
from anchorinv.report.tables import costs
from anchorinv.study.names import method_name
from anchorinv.study.stats import confidence_interval


def sessions_figure(slug: str, group: Group) -> Plate:
    """Draw macro-F1 over sessions for all, base and new classes: means and standard deviations."""
    crowded = _crowded(group)
    with look():
        if crowded:
            figure = new_figure(PAGE, 3.1)
            axes = figure.subplots(1, 3, sharey=True)
        else:
            rows = 1 + -(-len(group.lines) // 3)
            figure = new_figure(COLUMN, 4.6 + 0.13 * rows)
            axes = figure.subplots(3, 1, sharex=True)
        for ax, (part, words) in zip(axes, PARTS.items(), strict=True):
            _draw_sessions(ax, group, part)
            ax.set_title(words.capitalize(), loc="left")
        for ax in axes[:1] if crowded else axes:
            _from_zero(ax)  # where they share the axis, once all is drawn
            ax.set_ylabel("macro-F1 (%)")
        for ax in axes if crowded else axes[-1:]:
            ax.set_xlabel("session")
        if crowded:
            figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", handlelength=1.6)
        else:
            _legend(figure, axes[0])
        ends = _ends(group)
        alt = f"Line charts of macro-F1 over sessions 0 to {group.last}: all, base and new classes. {ends}"
        bands = f"the band ({group.reference})" if crowded else "bands"
        caption = f"Macro-F1 over sessions; lines are means, {bands} a standard deviation to both sides."
        if crowded and group.reference is None:
            caption = "Macro-F1 over sessions; lines are means."
        return plate(figure, slug, f"Macro-F1 over sessions{_of(group)}", alt, caption)


def small_sessions_figure(slug: str, groups: Sequence[Group]) -> Plate:
    """Draw macro-F1 over all classes in a panel for each group: variants or data sets side by side."""
    with look():
        columns = min(3, len(groups))
        rows = -(-len(groups) // columns)
        width = COLUMN if columns == 1 else PAGE
        figure = new_figure(width, 1.75 * rows + 0.5)
        axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for ax, group in zip(axes.flat, groups, strict=False):
            _draw_sessions(ax, group, "f1_all")
            ax.set_title(group.title, loc="left")
        for ax in axes.flat[len(groups) :]:
            ax.set_visible(False)
        _from_zero(axes[0, 0])  # they share the axis, and all is drawn
        for ax in axes[:, 0]:
            ax.set_ylabel("macro-F1 (%)")
        for column in range(columns):
            drawn = [axes[row, column] for row in range(rows) if row * columns + column < len(groups)]
            drawn[-1].set_xlabel("session")
        _legend(figure, axes[0, 0])
        ends = " ".join(f"{group.title}: {_ends(group)}" for group in groups)
        alt = f"{len(groups)} line charts of macro-F1 over all classes and sessions. {ends}"
        caption = "Macro-F1 over all classes; lines are means, bands a standard deviation to both sides."
        return plate(figure, slug, "Macro-F1 over sessions, side by side", alt, caption)


def differences_figure(slug: str, groups: Sequence[Group], *, turned: bool = False) -> Plate | None:
    """Draw for each trial how far a line lies from the reference after the last session.

    Parameters
    ----------
    turned : whether a difference is the reference minus the line, not the line minus the reference.
    """
    groups = [group for group in groups if group.reference and len(group.lines) > 1 and group.last]
    found = {
        group.title: {
            line: -d if turned else d
            for line in group.lines
            if line != group.reference
            and len(d := group.differences(line, group.reference or "", group.last))
        }
        for group in groups
    }
    groups = [group for group in groups if found[group.title]]
    if not groups:
        return None
    with look():
        columns = min(3, len(groups))
        rows = -(-len(groups) // columns)
        n_lines = max(len(each) for each in found.values())
        figure = new_figure(COLUMN if columns == 1 else PAGE, rows * (0.24 * n_lines + 0.75))
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True)
        for ax, group in zip(axes.flat, groups, strict=False):
            _draw_differences(ax, found[group.title], colours(list(group.lines), ordered=_ordered(group)))
            ax.set_title(group.title, loc="left")
        for ax in axes.flat[len(groups) :]:
            ax.set_visible(False)
        reference = groups[0].reference
        between = f"of {reference} minus that of the other" if turned else f"minus {reference}"
        figure.supxlabel(f"macro-F1 {between} (points)", fontsize=7.5)
        n = max(len(d) for each in found.values() for d in each.values())
        told = " ".join(
            (f"{group.title}: " if group.title else "")
            + "; ".join(f"{line} {d.mean():+.1f}" for line, d in found[group.title].items()) + "."
            for group in groups
        )  # fmt: skip
        alt = (
            f"Differences in macro-F1 over all classes after the last session ({between}), a point for "
            f"each of {n} trials, with mean and interval. Means: {told}"
        )
        caption = (
            f"Paired differences from {reference} after the last session: a point is a trial with the same "
            "shots for both; the black mark is the mean with its 95 % interval (Student's t). "
            f"{'Right' if turned else 'Left'} of zero, {reference} is better."
        )
        return plate(figure, slug, "Per-trial paired differences", alt, caption)


def sweep_figure(slug: str, what: str, points: dict[str, dict[float, Group]]) -> Plate:
    """Draw the last session's macro-F1 against a setting.

    Parameters
    ----------
    what : the setting, on the horizontal axis.
    points : for each line, where it lies on the axis and in which group.
    """
    several = len(points) > 1
    with look():
        figure = new_figure(COLUMN, 4.6 if several else 2.6)
        panels = figure.subplots(3 if several else 1, 1, sharex=True, squeeze=False)[:, 0]
        shades = colours(list(points) if several else list(PARTS.values()))
        signs = markers(list(points) if several else list(PARTS.values()))
        told = []
        for line, places in points.items():
            for i, (part, words) in enumerate(PARTS.items()):
                ax, label = (panels[i], line) if several else (panels[0], words)
                xs, cells = _sweep(line, places, part)
                means = np.array([cell[0] for cell in cells])
                spread = np.array([cell[1] for cell in cells])
                shown = {"color": shades[label], "marker": signs[label], "label": label}
                ax.errorbar(xs, means, spread, capsize=2, elinewidth=0.8, **shown)
                if part == "f1_all":
                    told.append(
                        f"{line}: " + ", ".join(f"{x:g}: {m:.1f}" for x, m in zip(xs, means, strict=True))
                    )
        for ax, words in zip(panels, PARTS.values(), strict=False):
            ax.set_ylabel("macro-F1 (%)")
            if several:
                ax.set_title(words.capitalize(), loc="left")
        ticks = sorted({x for places in points.values() for x in places})
        if len(ticks) <= 8:
            panels[-1].set_xticks(ticks, [f"{x:g}" for x in ticks])
        panels[-1].set_xlabel(what)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
        alt = f"Macro-F1 after the last session against {what}, over all classes: {'; '.join(told)}."
        caption = f"Macro-F1 after the last session against {what}; mean and standard deviation over trials."
        return plate(figure, slug, f"Macro-F1 against {what}", alt, caption)


def cost_figure(slug: str, run: Run) -> Plate:
    """Draw seconds per session and peak memory of each method."""
    methods = list(dict.fromkeys(result.method for result in run.results))
    found = {method_name(m): costs([r for r in run.results if r.method == m]) for m in methods}
    shades = colours(list(found))
    with look():
        figure = new_figure(COLUMN, 0.2 * len(found) + 0.85)
        seconds, memory = figure.subplots(1, 2, sharey=True)
        names = list(found)[::-1]
        for ax, place, words in ((seconds, 1, "a session (s)"), (memory, 3, "peak memory (MB)")):
            values = [found[name][place] or 0.0 for name in names]
            bars = ax.barh(names, values, color=[shades[name] for name in names], height=0.65)
            ax.bar_label(
                bars, [f"{v:.2f}" if place == 1 else f"{v:.0f}" for v in values], padding=2, fontsize=6.5
            )
            ax.set_xlim(0, 1.35 * max([*values, 1e-3]))
            ax.set_xlabel(words)
            ax.grid(axis="y", visible=False)
            ax.locator_params(axis="x", nbins=4)
        told = "; ".join(f"{name} {values[1] or 0:.2f} s" for name, values in found.items())
        alt = f"Bars of the mean seconds of a session and of the peak memory per method. A session: {told}."
        caption = "Mean seconds to learn a session, and the most memory that the process held meanwhile."
        return plate(figure, slug, "Seconds and memory per method", alt, caption)


def _draw_sessions(ax: Axes, group: Group, part: str) -> None:
    lines = list(group.lines)
    shades, signs = colours(lines, ordered=_ordered(group)), markers(lines)
    for line in lines:
        found = {s: cell for s in group.sessions(line) if (cell := group.cell(line, s, part))}
        if not found:
            continue
        xs = np.array(list(found))
        means = np.array([cell.mean for cell in found.values()])
        spread = np.array([cell.std or 0.0 for cell in found.values()])
        front = line == group.reference
        ax.plot(xs, means, color=shades[line], marker=signs[line], label=line, zorder=4 if front else 3,
                linewidth=1.8 if front else 1.1)  # fmt: skip
        if front or not _crowded(group):
            ax.fill_between(xs, means - spread, means + spread, color=shades[line], alpha=0.15, linewidth=0)
    ax.set_xticks(range(group.last + 1), ["base", *(str(s) for s in range(1, group.last + 1))])
    ax.set_xlim(-0.15, group.last + 0.15)


def _crowded(group: Group) -> bool:
    """Say whether lines are too many for a band each, and for a column."""
    return len(group.lines) > 9


def _from_zero(ax: Axes) -> None:
    ax.set_ylim(0, max(5.0, ax.get_ylim()[1]))


def _draw_differences(ax: Axes, found: dict[str, np.ndarray], shades: dict[str, str]) -> None:
    names = list(found)[::-1]
    for height, name in enumerate(names):
        values = found[name]
        # Spread out evenly and the same each time, so that points do not hide each other.
        jitter = 0.28 * (np.arange(len(values)) % 7 - 3) / 3
        ax.scatter(values, height + jitter, s=9, color=shades[name], alpha=0.65, linewidths=0)
        if len(values) > 1:
            low, high = confidence_interval(values)
            ax.plot([low, high], [height, height], color="black", linewidth=1.4)
        ax.plot([values.mean()], [height], color="black", marker="|", markersize=9, markeredgewidth=1.6)
    ax.axvline(0, color="black", linewidth=0.8, linestyle=(0, (3, 2)))
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.grid(axis="y", visible=False)


def _sweep(line: str, places: dict[float, Group], part: str) -> tuple[list[float], list[tuple[float, float]]]:
    xs, cells = [], []
    for x, group in sorted(places.items()):
        name = line if line in group.lines else next(iter(group.lines))
        cell = group.cell(name, max(group.sessions(name)), part)
        if cell is not None:
            xs.append(x)
            cells.append((cell.mean, cell.std or 0.0))
    return xs, cells


def _legend(figure: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    longest = max((len(label) for label in labels), default=0)
    ncols = 2 if longest > 14 else 3 if longest > 9 else 4
    figure.legend(
        handles, labels, loc="outside upper center", ncols=ncols, columnspacing=1.0, handlelength=1.6
    )


def _ordered(group: Group) -> bool:
    return group.of == "variants" and all("".join(line.split()[:1]).isdigit() for line in group.lines)


def _of(group: Group) -> str:
    return f": {group.title}" if group.title else ""


def _ends(group: Group) -> str:
    cells = {line: group.cell(line, group.last, "f1_all") for line in group.lines}
    told = ", ".join(f"{line} {cell.mean:.1f}" for line, cell in cells.items() if cell)
    return f"Over all classes after session {group.last}: {told}."
