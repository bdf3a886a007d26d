"""Tables and figure of docs/privacy.md, from the record of docs/privacy_study.py."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from privacy_study import (
    DRAWS,
    EPSILONS,
    HERE,
    LAST,
    N_SHADOWS,
    NOISY_ANCHORS,
    REPLAYED,
    WEIGHTS_ALONE,
    WEIGHTS_WITH_SHADOWS,
    WITH_SHADOWS,
    Line,
    done,
)

from anchorinv.files import replacing

PAGE = HERE / "privacy.md"
PICTURE = HERE / "privacy.png"


#: Splits of the study, as the page calls them.
SPLITS = {
    ("emg-longterm", "other days"): "EMG, other days",
    ("emg-longterm", "same days"): "EMG, same days",
    ("ecg-beats", "later beats"): "ECG, later beats",
    ("ecg-beats", "other people"): "ECG, people disjoint",
    ("eeg-stress", "other trial"): "EEG, stress",
    ("eeg-motor-imagery", "other runs"): "EEG, motor imagery",
}


def lines_of(name: str, split: str) -> dict[str, Line]:
    """Return the lines of a split by their settings."""
    return {line["setting"]: line for line in done() if (line["set"], line["split"]) == (name, split)}


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


def one(line: Line | None, attack: str, target: str, measure: str) -> Line | None:
    """Return the first figure of an attack on a target whose measure begins like this."""
    for each in [] if line is None else line["figures"]:
        if (each["attack"], each["target"]) == (attack, target) and each["measure"].startswith(measure):
            return each
    return None


def raw_storage(lines: dict[str, Line]) -> Line | None:
    """Return how often recordings themselves were linked to their people."""
    found = (one(line, "re-identification", "raw storage", "top-1") for line in lines.values())
    return next(filter(None, found), None)


def cell(found: Line | None, *, percent: bool = False, digits: int | None = None) -> str:
    """Return a figure and its interval as text."""
    if found is None:
        return "–"
    scale, places, unit = (100, 0, " %") if percent else (1, 2, "")
    places = places if digits is None else digits
    low, value, high = (
        f"{scale * found[name]:.{places}f}".replace("-", "−") for name in ("low", "value", "high")
    )
    return f"{value}{unit} ({low}–{high})"


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    first, *rest = ("| " + " | ".join(line) + " |" for line in (heads, *rows))
    return "\n".join([first, "|---|" + "--:|" * (len(heads) - 1), *rest])


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
    **{
        setting: f"{n} {'anchors' if n > 1 else 'anchor'} with noise a class, ε = {epsilon:g}"
        for setting, (n, epsilon) in NOISY_ANCHORS.items()
    },
    "protonet": "class means (`protonet`)",
    WITH_SHADOWS: f"class means, attacked with {N_SHADOWS} shadow networks",
    WEIGHTS_ALONE: "weights alone (`finetune`)",
    WEIGHTS_WITH_SHADOWS: f"weights alone, attacked with {N_SHADOWS} shadow networks",
    "mdm": "Riemannian class means (`mdm`)",
    "discriminant": "sufficient statistics (`discriminant`)",
    "discriminant, scatter of rank 32": "the same, scatter of rank 32",
    "discriminant, 128 features": "the same, 128 features",
    "discriminant, 64 features": "the same, 64 features",
    "discriminant, 32 features": "the same, 32 features",
    **{f"discriminant, epsilon {each:g}": f"32 features, ε = {each:g}" for each in reversed(EPSILONS)},
    LAST: "32 features, ε = 8 for each person",
}


def memories(name: str, split: str) -> str:
    """Return the models of a split as a table; of several attacks the strongest."""
    heads = ["what is kept", "macro-F1", "windows: AUROC", "windows: TPR at 1 % FPR",
             "sessions or people: AUROC", "linked to people"]  # fmt: skip
    rows, lines = [], lines_of(name, split)
    for setting, words in ROWS.items():
        if (line := lines.get(setting)) is None:
            continue
        linked = strongest(line, "re-identification", "top-1")
        whole = [strongest(line, "membership", "AUROC", unit) for unit in ("session", "person")]
        found = line["macro_f1_of"]
        score = cell(found, percent=True, digits=1)
        if found["n"] == DRAWS:
            score = f"{100 * found['value']:.1f} % ± {50 * (found['high'] - found['low']):.1f}"
        rows.append([
            words,
            score,
            cell(strongest(line, "membership", "AUROC", "window")),
            cell(strongest(line, "membership", "TPR at 1 %", "window"), percent=True),
            cell(whole[0] or whole[1]),
            "–" if linked is None else f"{linked['target']}: {cell(linked, percent=True)}",
        ])  # fmt: skip
    if (raw := raw_storage(lines)) is not None:
        rows.append(
            [f"*raw recordings; chance {100 * raw['chance']:.0f} %*", *[""] * 4, cell(raw, percent=True)]
        )
    return markdown(heads, rows)


AGGREGATED = "fecam, 50 anchors of five windows"
#: What was linked to people: words, the setting, and the item.
ITEMS = (
    ("anchors", "anchorinv", "anchors"),
    ("signals inverted from them", "anchorinv", "signals inverted from anchors"),
    ("10 anchors a class", REPLAYED, "anchors"),
    ("their inverted replay", REPLAYED, "inverted replay"),
    ("anchors of five windows", AGGREGATED, "anchors"),
    ("signals inverted from them", AGGREGATED, "signals inverted from anchors"),
    ("class means of a network", "protonet", "class means"),
    ("signals inverted from them", "anchorinv", "signals inverted from class means"),
    ("class means of the default", "discriminant", "class means"),
    ("signals inverted from them", "discriminant", "signals inverted from class means"),
)


def links() -> str:
    """Return how often each item was linked to its person, by split."""
    found = {words: lines_of(*split) for split, words in SPLITS.items()}
    raws = {words: raw for words, lines in found.items() if (raw := raw_storage(lines)) is not None}
    rows = [
        [
            words,
            *(
                cell(one(found[each].get(setting), "re-identification", item, "top-1"), percent=True)
                for each in raws
            ),
        ]
        for words, setting, item in ITEMS
    ]
    rows.append(["*raw recordings*", *(cell(each, percent=True) for each in raws.values())])
    rows.append(["*chance*", *(f"{100 * each['chance']:.0f} %" for each in raws.values())])
    return markdown(["what is linked", *raws], rows)


def reconstructions() -> str:
    """Return how close inverted signals come to windows, next to the nearest real ones."""
    measures = ("correlation", "spectral distance", "covariance distance")
    beside = ("", ", nearest other window of the person", ", nearest window of other people")
    rows = []
    for split, words in SPLITS.items():
        lines = lines_of(*split)
        for (source, *_), (_, setting, target) in pairwise(ITEMS):
            figure = partial(one, lines.get(setting), "reconstruction", target)
            if figure("correlation") is None:
                continue
            cells = [" / ".join(spread(figure(measure + each)) for each in beside) for measure in measures]
            closest = cell(figure("closer than any real window, correlation"), percent=True)
            rows.append([f"{words}: {source}", *cells, closest])
    return markdown(["inverted from", *measures, "closest of all, by correlation"], rows)


def spread(found: Line | None) -> str:
    """Return a mean with half of its interval."""
    if found is None:
        return "–"
    return f"{found['value']:.2f} ± {(found['high'] - found['low']) / 2:.2f}".replace("-", "−")


def controls() -> str:
    """Return membership by class means, of members that were learned and of members that were left out."""
    rows = []
    for split, words in SPLITS.items():
        line, by = lines_of(*split)["control"], "window, by likelihood ratio of class means"
        found = (one(line, "membership", by + each, "AUROC") for each in ("", ", left out (control)"))
        rows.append([words, *map(cell, found)])
    return markdown(["split", "learned", "left out"], rows)


def forgotten() -> str:
    """Return membership of windows of a class before and after it was forgotten."""
    line, rows = lines_of("emg-longterm", "extra")["forgotten"], []
    for method in ("discriminant", "fecam"):
        for kind in ("taught later", "base class"):
            found = (
                one(line, "forgetting", f"{method}, {kind}, {each}", "AUROC")
                for each in ("before", "after", "never taught")
            )
            rows.append([f"`{method}`, {kind}", *map(cell, found)])
    return markdown(["method, class", "before", "after", "never had it"], rows)


#: What the figure shows of networks: a setting, its label, and where that goes (points) on either panel.
SHOWN = {
    "real-replay": ("recordings kept", None, (7, 10)),
    "anchorinv": ("anchors", None, (7, 6)),
    "fecam": ("anchors, refitted head", None, (7, -4)),
    "fecam, 50 anchors of five windows": ("anchors of 5 windows", None, (7, 8)),
    "protonet": ("network with class means", (7, 0), None),
    WEIGHTS_ALONE: ("network, weights alone", (7, -20), None),
    "fecam, 1 noisy anchors, epsilon 1": ("class means with noise, ε = 1", (7, -15), None),
}
NOISE = [f"discriminant, epsilon {each:g}" for each in EPSILONS]
FEWER = [f"discriminant, {each} features" for each in (32, 64, 128)] + ["discriminant"]
CURVES = ((NOISE, "#009E73", "statistics with noise, by ε", "epsilon ", (-5, 5), "right"),
          (FEWER, "#0072B2", "statistics without noise, by features", ", ", (7, -4), "left"))  # fmt: skip


def draw(name: str, split: str) -> None:
    """Draw leakage against macro-F1, with a curve each for more noise and for fewer features."""
    from matplotlib.figure import Figure as Canvas

    lines = lines_of(name, split)
    picture = Canvas(figsize=(11, 4.8), layout="constrained")
    left, right = picture.subplots(1, 2)
    raw = raw_storage(lines)
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
        if shown[label] is not None and setting in lines:
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
    tables = {f"{name}, {split}": memories(name, split) for name, split in SPLITS}
    tables |= {"links": links(), "reconstruction": reconstructions(), "control": controls()}
    for name, table in (tables | {"forgetting": forgotten()}).items():
        before, rest = page.split(f"<!-- table: {name} -->\n", 1)
        page = f"{before}<!-- table: {name} -->\n{table}\n{rest[rest.index('<!-- end -->') :]}"
    with replacing(PAGE) as beside:
        beside.write_text(page, encoding="utf-8")
