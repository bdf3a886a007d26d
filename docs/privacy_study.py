"""What models give away on real recordings: docs/results/privacy.ndjson, and what docs/privacy.md has of it.

``python docs/privacy_study.py emg-longterm=emg_longterm.npz ecg-beats=ecg_beats.npz ...`` computes what the
record does not have yet, a line for each model, and can be stopped at any time; ``closed`` or ``networks``
limits it to models without or with one. Without a file it fills the tables and draws the figure of the page
from the record that is there. Nothing is chosen here by what comes out.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorinv import AnchorInvClassifier, Privacy
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch
from anchorinv.files import replacing
from anchorinv.serving.attacks import Estimate, Figure, Gallery
from anchorinv.serving.audit import audit, audit_forgetting
from anchorinv.serving.shadows import People, standardised
from anchorinv.serving.tracing import kept_of
from anchorinv.settings import recipe_of

HERE = Path(__file__).parent
RECORD = HERE / "results" / "privacy.ndjson"
PAGE = HERE / "privacy.md"
PICTURE = HERE / "privacy.png"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 32.0)
#: Methods whose base model is the same network: it is trained once.
SHARED = ("anchorinv", "fecam", "latent-replay", "real-replay", "protonet")
EPOCHS = 12
#: Networks trained for the likelihood ratio, on the split where that is affordable.
WITH_SHADOWS, N_SHADOWS = ("same days", "protonet, 6 shadow networks"), 6
SHOTS = 10

Split = tuple[People, People]


def people(path: Path, session: str) -> tuple[People, dict[str, np.ndarray], float]:
    """Return the windows of a file, whatever else it knows of them, and their rate."""
    with np.load(path) as file:
        rest = {name: file[name] for name in file.files if name != "X"}
        signals = (file["X"] * float(rest.get("scale", 1.0))).astype(np.float32)
    sessions = rest[session] if session in rest else np.zeros(len(signals), int)
    return People(signals, rest["y"], rest["subject"], sessions), rest, float(rest["sfreq"])


def emg_longterm(path: Path) -> Iterator[tuple[str, float, Split]]:
    """Yield splits by days, and by repetitions of the same days."""
    data, rest, sfreq = people(path, "day")
    base = data.labels < 10
    yield "other days", sfreq, (data.of(base & (rest["day"] <= 20)), data.of(base & (rest["day"] > 20)))
    first = base & (rest["day"] <= 10)
    yield (
        "same days",
        sfreq,
        (data.of(first & (rest["repetition"] <= 2)), data.of(first & (rest["repetition"] > 2))),
    )


def ecg_beats(path: Path) -> Iterator[tuple[str, float, Split]]:
    """Yield splits by records, and by time within records; at most forty beats of a class and record."""
    data, rest, sfreq = people(path, "none")
    few = np.zeros(len(data), bool)
    late = rest["sample"] >= 433_333
    for cell in {(s, y, half) for s, y, half in zip(data.people, data.labels, late, strict=True) if y < 4}:
        own = np.flatnonzero((data.people == cell[0]) & (data.labels == cell[1]) & (late == cell[2]))
        few[own[np.linspace(0, len(own) - 1, min(40, len(own))).astype(int)]] = True
    data = replace(data, sessions=late.astype(int))
    yield "later beats", sfreq, (data.of(few & ~late), data.of(few & late))
    even = np.isin(data.people, np.unique(data.people)[::2])
    yield "other people", sfreq, (data.of(few & even), data.of(few & ~even))


def eeg_stress(path: Path) -> Iterator[tuple[str, float, Split]]:
    """Yield a split by trials, of windows of four seconds."""
    data, rest, sfreq = people(path, "trial")
    size = int(4 * sfreq)
    n = data.signals.shape[2] // size
    cut = data.signals[:, :, : n * size].reshape(len(data), data.signals.shape[1], n, size).swapaxes(1, 2)
    columns = (np.repeat(each, n) for each in (data.labels, data.people, rest["trial"]))
    data = People(cut.reshape(-1, *cut.shape[2:]), *columns)
    yield "other trial", sfreq, (data.of(data.sessions < 3), data.of(data.sessions == 3))


def eeg_motor_imagery(path: Path) -> Iterator[tuple[str, float, Split]]:
    """Yield a split by runs."""
    data, rest, sfreq = people(path, "run")
    held = np.isin(rest["run"], (12, 14))
    yield "other runs", sfreq, (data.of(~held), data.of(held))


SETS: dict[str, Callable[[Path], Iterator[tuple[str, float, Split]]]] = {
    "emg-longterm": emg_longterm,
    "ecg-beats": ecg_beats,
    "eeg-stress": eeg_stress,
    "eeg-motor-imagery": eeg_motor_imagery,
}


def closed_forms(members: People, sfreq: float) -> Iterator[tuple[str, Callable[[], AnchorInvClassifier]]]:
    """Yield the models without a network, each with how to make it."""
    settings: dict[str, dict[str, object]] = {"discriminant": {}, "mdm": {"method": "mdm"}}
    for epsilon in EPSILONS:
        settings[f"discriminant, epsilon {epsilon:g}"] = {"privacy": Privacy(epsilon)}
    settings["discriminant, epsilon 8 per person"] = {"privacy": Privacy(8.0, unit="person")}
    for name, given in settings.items():
        model = AnchorInvClassifier(sfreq=sfreq, random_state=0, network="never", **given)
        groups = members.people if "person" in name else None
        yield name, lambda model=model, groups=groups: model.fit(members.signals, members.labels, groups)


def network(members: People, sfreq: float) -> AnchorInvClassifier:
    """Return a model with the network that several methods share, its replay left out."""
    model = AnchorInvClassifier(
        sfreq=sfreq, random_state=0, method="anchorinv", epochs=EPOCHS, inversion_steps=0
    )
    return model.fit(members.signals, members.labels)


def with_memory(
    trained: AnchorInvClassifier, members: People, method: str, **settings: object
) -> AnchorInvClassifier:
    """Return the same network with what another method keeps of the base classes."""
    model = AnchorInvClassifier.from_bundle(trained.to_bundle()).set_params(method=method, **settings)
    names = model._names.tolist()
    numbers = torch.tensor([model.state_.classes[names.index(each)] for each in members.labels.tolist()])
    whose = torch.from_numpy(np.unique(members.people, return_inverse=True)[1])
    recipe = recipe_of(model.get_params(deep=False), model.geometry_, len(members))
    bare = replace(model.state_, anchors=None, replay=None, recordings=None, signals=None)
    batch = Batch(standardised(model, members), numbers, whose)
    model._know(state_=recipe.start(bare, batch, rng=stream(model.seed_, "base")))
    return model


def networks(members: People, sfreq: float) -> Iterator[tuple[str, Callable[[], AnchorInvClassifier]]]:
    """Yield models of one network with several memories."""
    made: list[AnchorInvClassifier] = []

    def trained() -> AnchorInvClassifier:
        if not made:
            made.append(network(members, sfreq))
        return made[0]

    for method in SHARED:
        yield method, lambda method=method: with_memory(trained(), members, method)
    for anchors in (10, 50):
        name = f"fecam, {anchors} anchors of five windows"
        yield (
            name,
            lambda n=anchors: with_memory(trained(), members, "fecam", privacy="aggregate", n_anchors=n),
        )
    yield "fecam, 10 anchors", lambda: with_memory(trained(), members, "fecam", n_anchors=10)
    yield WITH_SHADOWS[1], lambda: with_memory(trained(), members, "protonet")


def macro_f1(model: AnchorInvClassifier, others: People) -> float:
    """Return the macro-F1 on windows that were not learned."""
    from sklearn.metrics import f1_score

    return float(f1_score(others.labels, model.predict(others.signals), average="macro"))


def taught_by_one(path: Path) -> list[Figure]:
    """Return whether classes that one person taught, by ten shots each, are linked to that person."""
    data, rest, sfreq = people(path, "day")
    members, gallery = data.of(rest["day"] <= 20), data.of(rest["day"] > 20)
    base = members.labels < 10
    model = AnchorInvClassifier(sfreq=sfreq, random_state=0, network="never")
    model.fit(members.signals[base], members.labels[base])
    names = np.unique(members.people)
    rows: dict[str, list[float]] = {"one person": [], "three people": []}
    rng = np.random.default_rng(0)
    for person in names:
        for how in rows:
            shots = []
            for label in range(10, 16):
                own = (members.labels == label) & ((members.people == person) | (how == "three people"))
                shots += rng.permutation(np.flatnonzero(own))[:SHOTS].tolist()
            taught = AnchorInvClassifier.from_bundle(model.to_bundle())
            taught.partial_fit(members.signals[shots], members.labels[shots])
            item = next(each for each in kept_of(taught, members.of(np.array(shots)), invert=False))
            new = np.isin(item.labels, np.arange(10, 16))
            known = Gallery(taught._features(standardised(taught, gallery)), gallery.labels, gallery.people)
            found = known.linked(item.values[torch.from_numpy(new)], item.labels[new])
            shares = item.shares_of(members.people[shots], names)[new]
            rows[how] += [
                float(row[np.searchsorted(names, who)]) for row, who in zip(shares, found, strict=True)
            ]
    measure = f"top-1 of {len(names)} people"
    return [
        Figure(
            "re-identification",
            f"means of classes taught by {how}",
            measure,
            Estimate.share(sum(values), len(values)),
            1 / len(names),
        )
        for how, values in rows.items()
    ]


def forgetting(path: Path) -> list[Figure]:
    """Return what is left of a taught class and of a base class once forgotten, by the default method."""
    data, rest, sfreq = people(path, "day")
    some = np.isin(data.labels, (0, 1, 2, 3, 4, 10)) & (rest["day"] <= 10)
    members, others = data.of(some & (rest["repetition"] <= 2)), data.of(some & (rest["repetition"] > 2))
    figures = []
    for label in (10, 4):
        base = members.labels < 10
        model = AnchorInvClassifier(sfreq=sfreq, random_state=0, network="never")
        model.fit(members.signals[base], members.labels[base])
        model.partial_fit(members.signals[~base], members.labels[~base])
        figures += audit_forgetting(model, label, members, others).figures
    return figures


def done() -> list[dict[str, object]]:
    """Return the lines of the record."""
    return (
        [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
        if RECORD.is_file()
        else []
    )


def rounded(value: object) -> object:
    """Return plain values with four digits: a record is to be published."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def note(facts: dict[str, object]) -> None:
    """Add a line to the record."""
    facts = {name: rounded(value) for name, value in facts.items()}
    with RECORD.open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")
    sys.stderr.write(
        f"{facts['set']}, {facts['split']}: {facts['setting']}, {facts.get('seconds', 0):.0f} s\n"
    )


def compute(name: str, path: Path, *, kinds: tuple[str, ...]) -> None:
    """Add what the record does not have of a set."""
    have = {(line["set"], line["split"], line["setting"]) for line in done()}
    ways = {"closed": closed_forms, "networks": networks}
    for split, sfreq, (members, others) in SETS[name](path):
        for kind in kinds:
            for setting, make in ways[kind](members, sfreq):
                if (name, split, setting) in have or (
                    setting == WITH_SHADOWS[1] and split != WITH_SHADOWS[0]
                ):
                    continue
                began = time.perf_counter()
                model = make()
                shadows = N_SHADOWS if (split, setting) == WITH_SHADOWS else None
                found = audit(model, members, others, shadows=shadows)
                facts = {"set": name, "split": split, "setting": setting, "macro_f1": macro_f1(model, others)}
                facts |= {
                    "members": len(members),
                    "others": len(others),
                    "seconds": time.perf_counter() - began,
                }
                note({**facts, **found.facts()})
    if name == "emg-longterm":
        for setting, extra in (("taught", taught_by_one), ("forgotten", forgetting)):
            if (name, "extra", setting) not in have:
                figures = [each.facts() for each in extra(path)]
                note({"set": name, "split": "extra", "setting": setting, "figures": figures})


Line = dict[str, Any]


def strongest(line: Line, attack: str, measure: str, target: str = "") -> Line | None:
    """Return the figure with the largest value among those of an attack; raw storage is no attack."""
    some = [
        each
        for each in line["figures"]
        if each["attack"] == attack
        and each["measure"].startswith(measure)
        and each["target"].startswith(target)
        and each["target"] != "raw storage"
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


def table(name: str, split: str) -> str:
    """Return the models of a split as a Markdown table; of several attacks the strongest."""
    heads = [
        "model",
        "macro-F1",
        "windows: AUROC",
        "found at 1 % false",
        "sessions or people: AUROC",
        "linked to people",
    ]
    rows = ["| " + " | ".join(heads) + " |", "|---|" + "--:|" * (len(heads) - 1)]
    raw = None
    for line in done():
        if (line["set"], line["split"]) != (name, split):
            continue
        linked = strongest(line, "re-identification", "top-1")
        whole = [strongest(line, "membership", "AUROC", unit) for unit in ("session", "person")]
        raw = raw_storage(line) or raw
        cells = [
            line["setting"],
            f"{100 * line['macro_f1']:.1f} %",
            cell(strongest(line, "membership", "AUROC", "window")),
            cell(strongest(line, "membership", "found at 1.0%", "window"), percent=True),
            cell(whole[0] or whole[1]),
            "–" if linked is None else f"{linked['target']}: {cell(linked, percent=True)}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    if raw is not None:
        guessing = f"*recordings themselves; guessing {100 * raw['chance']:.0f} %*"
        rows.append(f"| {guessing} | | | | | {cell(raw, percent=True)} |")
    return "\n".join(rows)


def draw(name: str, split: str) -> None:
    """Draw what leaks against macro-F1; models that hardly classify are left out."""
    from matplotlib.figure import Figure as Canvas

    lines = [
        line for line in done() if (line["set"], line["split"]) == (name, split) and line["macro_f1"] > 0.5
    ]
    picture = Canvas(figsize=(11.5, 4.4), layout="constrained")
    *panels, beside = picture.subplots(1, 3, width_ratios=(4, 4, 2))
    beside.axis("off")
    for number, line in enumerate(lines):
        beside.text(
            0, 1 - number / len(lines), f"{number + 1}  {line['setting']}", fontsize=7.5, color=look(line)[0]
        )
    raw = next(filter(None, map(raw_storage, lines)))
    _panel(panels[0], lines, ("membership", "AUROC", "window"), {"guessing": 0.5})
    levels = {"guessing": raw["chance"], "recordings themselves": raw["value"]}
    _panel(panels[1], lines, ("re-identification", "top-1", ""), levels)
    for axis, title in zip(
        panels, ("membership of windows: AUROC", "linked to the right person: share"), strict=True
    ):
        axis.set_title(f"{title}, by the strongest attack", fontsize=9, loc="left")
    picture.savefig(PICTURE, dpi=140)


def look(line: Line) -> tuple[str, str]:
    """Return colour and marker: with noise, closed form without, network."""
    if "epsilon" in line["setting"]:
        return "#009E73", "s"
    return ("#0072B2", "D") if line["setting"] in ("discriminant", "mdm") else ("#D55E00", "o")


def _panel(axis: Any, lines: list[Line], asked: tuple[str, str, str], levels: dict[str, float]) -> None:
    numbers: dict[tuple[int, int], list[str]] = defaultdict(list)
    for number, line in enumerate(lines):
        found = strongest(line, *asked)
        if found is None:
            continue
        colour, marker = look(line)
        x, y = 100 * line["macro_f1"], found["value"]
        exact = found["target"] == "class means" and asked[0] == "re-identification"  # everybody's alike
        low, high = (y, y) if exact else (found["low"], found["high"])
        axis.errorbar(x, y, [[y - low], [high - y]], fmt=marker, color=colour, markersize=5, linewidth=0.8)
        numbers[round(3 * x), round(60 * y)].append(str(number + 1))
    for (x, y), some in numbers.items():
        axis.annotate(",".join(some), (x / 3, y / 60), fontsize=7, xytext=(4, 4), textcoords="offset points")
    axis.set_xlim(78, 100)
    axis.set_ylim(0.28 if "re-" in asked[0] else 0.45, 1.05)
    for words, level in levels.items():
        axis.axhline(level, color="#888888", linestyle=":" if words == "guessing" else "--", linewidth=1)
        axis.text(78.2, level, words, fontsize=7, color="#555555", va="top")
    axis.set_xlabel("macro-F1 on days that were not learned (%)", fontsize=8)
    axis.tick_params(labelsize=7)
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


def main() -> None:
    """Compute what was asked for, or fill the page's tables and draw its figure."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument)
    kinds = tuple(word for word in sys.argv[1:] if word in ("closed", "networks")) or ("closed", "networks")
    for name, path in given.items():
        compute(name, Path(path), kinds=kinds)
    if not given:
        fill()
        draw("emg-longterm", "other days")


if __name__ == "__main__":
    main()
