"""Tables and figure of docs/privacy.md, from the record of docs/privacy_study.py."""

from typing import Any

import numpy as np
from privacy_study import EPSILONS, HERE, LAST, N_SHADOWS, REPLAYED, WEIGHTS_ALONE, WITH_SHADOWS, Line, done

from anchorinv.files import replacing

PAGE = HERE / "privacy.md"
PICTURE = HERE / "privacy.png"


def strongest(line: Line, attack: str, measure: str, target: str = "") -> Line | None:
    """Return the figure with the largest value among those of an attack; raw storage is no attack."""
    some = [
        each
        for each in line["figures"]
        if each["attack"] == attack
        and each["measure"].startswith(measure)
        and each["target"].startswith(target)
        and each["target"] != "raw storage"
        and "control" not in each["target"]
        and each["value"] is not None
    ]
    return max(some, key=lambda each: each["value"], default=None)


def raw_storage(line: Line) -> Line | None:
    """Return how often recordings themselves were linked to their people."""
    kinds = ("re-identification", "raw storage")
    return next((each for each in line["figures"] if (each["attack"], each["target"]) == kinds), None)


def cell(found: Line | None, *, percent: bool = False) -> str:
    """Return a figure and its interval as text."""
    if found is None:
        return "–"
    scale, digits, unit = (100, 0, " %") if percent else (1, 2, "")
    low, value, high = (f"{scale * found[name]:.{digits}f}" for name in ("low", "value", "high"))
    return f"{value}{unit} ({low}–{high})"


#: What is kept of people, by setting, in the order of the tables.
ROWS = {
    "real-replay": "recordings (`real-replay`)",
    "latent-replay": "latents (`latent-replay`)",
    "anchorinv": "anchors (`anchorinv`)",
    "fecam": "anchors (`fecam`)",
    "fecam, 10 anchors": "10 anchors a class (`fecam`)",
    REPLAYED: "10 anchors a class and their inverted replay (`anchorinv`)",
    "fecam, 50 anchors of five windows": "anchors of five windows (`fecam`, aggregate)",
    "fecam, 10 anchors of five windows": "10 anchors of five windows",
    "fecam, 50 anchors of five windows, epsilon 64 on anchors": "anchors of five windows with noise, ε = 64",
    "fecam, 50 anchors of five windows, epsilon 8 on anchors": "anchors of five windows with noise, ε = 8",
    "protonet": "class means (`protonet`)",
    WITH_SHADOWS: f"class means, attacked with {N_SHADOWS} shadow networks",
    WEIGHTS_ALONE: "weights alone (`finetune`)",
    "mdm": "Riemannian class means (`mdm`)",
    "discriminant": "sufficient statistics (`discriminant`)",
    "discriminant, scatter of rank 32": "the same, scatter of rank 32",
    "discriminant, 128 features": "the same, 128 features",
    "discriminant, 64 features": "the same, 64 features",
    "discriminant, 32 features": "the same, 32 features",
    **{f"discriminant, epsilon {each:g}": f"32 features, ε = {each:g}" for each in reversed(EPSILONS)},
    LAST: "32 features, ε = 8 for each person",
}


def table(name: str, split: str) -> str:
    """Return the models of a split as a Markdown table; of several attacks the strongest."""
    heads = ["what is kept", "macro-F1", "windows: AUROC", "windows: TPR at 1 % FPR",
             "sessions or people: AUROC", "linked to people"]  # fmt: skip
    rows = ["| " + " | ".join(heads) + " |", "|---|" + "--:|" * (len(heads) - 1)]
    lines = {line["setting"]: line for line in done() if (line["set"], line["split"]) == (name, split)}
    for setting, words in ROWS.items():
        if (line := lines.get(setting)) is None:
            continue
        linked = strongest(line, "re-identification", "top-1")
        whole = [strongest(line, "membership", "AUROC", unit) for unit in ("session", "person")]
        spread = line.get("macro_f1_of")
        score = f"{100 * line['macro_f1']:.1f} %"
        score += f" ± {50 * (spread['high'] - spread['low']):.1f}" if spread else ""
        cells = [
            words + " †" * line.get("earlier", False),
            score,
            cell(strongest(line, "membership", "AUROC", "window")),
            cell(strongest(line, "membership", "TPR at 1 %", "window"), percent=True),
            cell(whole[0] or whole[1]),
            "–" if linked is None else f"{linked['target']}: {cell(linked, percent=True)}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    raw = next(filter(None, map(raw_storage, lines.values())), None)
    if raw is not None:
        rows.append(
            f"| *raw recordings; chance {100 * raw['chance']:.0f} %* | | | | | {cell(raw, percent=True)} |"
        )
    return "\n".join(rows)


#: What the figure shows of networks: a setting, its label, and where that goes (points) on either panel.
SHOWN = {
    "real-replay": ("recordings kept", None, (7, 10)),
    "anchorinv": ("anchors", None, (7, 6)),
    "fecam": ("anchors, refitted head", None, (7, -4)),
    "fecam, 50 anchors of five windows": ("anchors of 5 windows", None, (-10, 12)),
    "protonet": ("network with class means", (7, 0), None),
    WEIGHTS_ALONE: ("network, weights alone", (7, -6), None),
}
NOISE = [f"discriminant, epsilon {each:g}" for each in EPSILONS]
FEWER = [f"discriminant, {each} features" for each in (32, 64, 128)] + ["discriminant"]
CURVES = ((NOISE, "#009E73", "statistics with noise, by ε", "epsilon ", (-5, 5), "right"),
          (FEWER, "#0072B2", "statistics without noise, by features", ", ", (7, -4), "left"))  # fmt: skip


def draw(name: str, split: str) -> None:
    """Draw leakage against macro-F1, with a curve each for more noise and for fewer features."""
    from matplotlib.figure import Figure as Canvas

    lines = {line["setting"]: line for line in done() if (line["set"], line["split"]) == (name, split)}
    picture = Canvas(figsize=(11, 4.8), layout="constrained")
    left, right = picture.subplots(1, 2)
    raw = next(filter(None, map(raw_storage, lines.values())))
    _panel(left, lines, ("membership", "AUROC", "window"), {"chance": 0.5}, 1)
    levels = {"chance, and every class mean": raw["chance"], "raw recordings": raw["value"]}
    _panel(right, lines, ("re-identification", "top-1", ""), levels, 2)
    left.set(title="Membership of single windows", ylabel="AUROC of the strongest attack", ylim=(0.46, 1.03))
    right.set(
        title="Linked to the right one of three people", ylabel="share linked correctly", ylim=(0.25, 1)
    )
    left.legend(fontsize=9, frameon=False, loc="upper left")
    picture.savefig(PICTURE, dpi=130)


def _panel(
    axis: Any, lines: dict[str, Line], asked: tuple[str, str, str], levels: dict[str, float], label: int
) -> None:
    def place(setting: str) -> tuple[float, float, float, float]:
        found = strongest(lines[setting], *asked)
        return 100 * lines[setting]["macro_f1"], found["value"], found["low"], found["high"]

    for settings, colour, words, before, offset, side in CURVES:
        xs, ys, lows, highs = np.array([place(each) for each in settings]).T
        bars = [ys - lows, highs - ys]
        axis.errorbar(xs, ys, bars, fmt="o-", color=colour, markersize=5, linewidth=1.2, label=words)
        for x, y, setting in zip(xs, ys, settings, strict=True) if label == 1 else ():
            short = "default" if setting == "discriminant" else setting.split(before)[1].split()[0]
            axis.annotate(short, (x, y), offset, textcoords="offset points", ha=side, color=colour)
    for setting, shown in SHOWN.items():
        if shown[label] is not None and setting in lines and not (label == 1 and "earlier" in lines[setting]):
            x, y, low, high = place(setting)
            axis.errorbar(
                x, y, [[y - low], [high - y]], fmt="s", color="#D55E00", markersize=5, linewidth=1.2
            )
            axis.annotate(shown[0], (x, y), shown[label], textcoords="offset points", va="center",
                          color="#D55E00")  # fmt: skip
    for words, level in levels.items():
        axis.axhline(level, color="#888888", linestyle=":" if "chance" in words else "--", linewidth=1)
        axis.annotate(words, (0.01, level), (0, -4), xycoords=("axes fraction", "data"), va="top",
                      textcoords="offset points", color="#555555")  # fmt: skip
    axis.set_xlabel("macro-F1 on other days (%)")
    axis.set_xlim(81, 97.5)
    axis.spines[["top", "right"]].set_visible(False)


def fill() -> None:
    """Write the tables into the page, each between its marks."""
    page = PAGE.read_text(encoding="utf-8")
    for name, split in dict.fromkeys((line["set"], line["split"]) for line in done()):
        begin, end = f"<!-- table: {name}, {split} -->\n", "<!-- end -->"
        if begin in page:
            before, rest = page.split(begin, 1)
            page = before + begin + table(name, split) + "\n" + rest[rest.index(end) :]
    with replacing(PAGE) as beside:
        beside.write_text(page, encoding="utf-8")
