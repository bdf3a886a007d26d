"""Delay against errors of steadied predictions: docs/results/steady.csv, and docs/steady.png drawn from it.

``python docs/steady_study.py DATA/emg_longterm.npz`` computes the record, in about five minutes on one core,
and draws; without a file it draws the record that is there. The default model learns 22 motions from days 1
to 15. Sequences are stitched: the four repetitions of each motion of a person and day make two holds of 3 s,
which follow each other in random order. The preset was chosen on days 16 to 20 by the rule of ``choose``;
days 21 to 30 are for the record alone.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MultipleLocator

from anchorinv import AnchorInvClassifier, StreamingPredictor
from anchorinv.files import replacing
from anchorinv.serving.streaming import Smoother, Smoothing, preset

HERE = Path(__file__).parent
RECORD = HERE / "results" / "steady.csv"
RATE, WINDOW, STEP = 200.0, 80, 10  # Hz, samples, samples: windows of 0.4 s every 0.05 s
CUTS = (0, 73, 146, 220)  # where training windows begin in a piece of 300 samples
STABLE = 0.25  # seconds that a right decision has to last for
PARTS = {"choice": range(16, 21), "test": range(21, 31)}  # days
BOTH = "averaging and hysteresis"  # the time constant of the preset, other margins
KINDS = {  # the kind: its setting, the values of it, colour and marker
    "majority vote": ("vote", (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0), "#E69F00", "s"),
    "averaging": ("time_constant", (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6), "#0072B2", "o"),
    "hysteresis": ("hysteresis", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), "#009E73", "^"),
    "dwell": ("dwell", (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7), "#CC79A7", "D"),
    BOTH: ("hysteresis", (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6), "#000000", "v"),
}


@dataclass(frozen=True)
class Sequence:
    """Windows in their order: where each starts, its probabilities, and the motion at its last sample."""

    starts: list[int]
    probabilities: list[np.ndarray]
    truth: np.ndarray


@dataclass(frozen=True)
class Row:
    """A line of the record: settings, and what they do."""

    days: str
    kind: str
    vote: float | None
    time_constant: float | None
    hysteresis: float | None
    dwell: float | None
    error_percent: float  # windows whose label is not the motion at their last sample
    spurious_per_minute: float  # changes of the label to a motion that is not being made
    median_delay_s: float  # from a change of motion to the first right decision that lasts
    missed_percent: float  # changes of motion without such a decision before the next one


def train(pieces: np.ndarray, motions: np.ndarray) -> AnchorInvClassifier:
    windows = np.concatenate([pieces[:, :, at : at + WINDOW] for at in CUTS])
    return AnchorInvClassifier(sfreq=RATE, random_state=0).fit(windows, np.tile(motions, len(CUTS)))


def holds(motions: np.ndarray, rng: np.random.Generator) -> list[tuple[int, list[int]]]:
    """Return the motion and the pieces of each hold: two of each motion, none after itself."""
    pairs = []
    for motion in np.unique(motions):
        pieces = rng.permutation(np.flatnonzero(motions == motion)).tolist()
        pairs += [(int(motion), pieces[:2]), (int(motion), pieces[2:])]
    while True:
        order = [pairs[i] for i in rng.permutation(len(pairs))]
        if all(a[0] != b[0] for a, b in pairwise(order)):
            return order


def sequences(model: AnchorInvClassifier, data: dict[str, np.ndarray], days: range) -> Iterator[Sequence]:
    """Yield a sequence for each person and day, predicted as a live source is."""
    for person, day in product(np.unique(data["subject"]), days):
        here = (data["subject"] == person) & (data["day"] == day)
        order = holds(data["y"][here], np.random.default_rng([int(person), day]))
        pieces = data["X"][here] * float(data["scale"])
        signal = np.concatenate([piece for _, chosen in order for piece in pieces[chosen]], axis=1)
        motion = np.repeat([each for each, chosen in order for _ in chosen], pieces.shape[2])
        live = StreamingPredictor(model, step=STEP).feed(signal)
        starts = [each.start for each in live]
        yield Sequence(starts, [p.probabilities for p in live], motion[np.array(starts) + WINDOW - 1])


def measure(of: list[Sequence], classes: np.ndarray, kind: str, days: str, settings: Smoothing) -> Row:
    wrong = spurious = n_windows = 0
    delays: list[float] = []
    for each in of:
        smoother = Smoother(settings, RATE)
        labels = np.array(
            [
                smoother(s, p, classes=classes).label
                for s, p in zip(each.starts, each.probabilities, strict=True)
            ]
        )
        right = labels == each.truth
        n_windows += len(labels)
        wrong += int((~right).sum())
        spurious += int(((labels[1:] != labels[:-1]) & ~right[1:]).sum())
        changes = np.flatnonzero(np.diff(each.truth)) + 1
        for first, last in zip(changes, [*changes[1:], len(labels)], strict=True):
            delays.append(delay(right[first:last]))
    minutes = n_windows * STEP / RATE / 60
    missed = float(np.mean(np.isinf(delays)))
    return Row(
        days,
        kind,
        **asdict(settings),
        error_percent=100 * wrong / n_windows,
        spurious_per_minute=spurious / minutes,
        median_delay_s=float(np.median(delays)),
        missed_percent=100 * missed,
    )


def delay(right: np.ndarray) -> float:
    """Return the seconds from a change to the first right decision that lasts.

    ``right`` has the windows whose last sample lies in the hold; the first of them ends a step after the
    change.
    """
    n_stable = round(STABLE * RATE / STEP)
    for at in range(len(right) - n_stable + 1):
        if right[at : at + n_stable].all():
            return (at + 1) * STEP / RATE
    return float("inf")


def combinations() -> list[Smoothing]:
    """Return averaging, hysteresis and dwell in all combinations."""
    constants, margins = (None, 0.05, 0.1, 0.15, 0.2, 0.3), (None, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    grid = product(constants, margins, (None, 0.05, 0.1))
    return [Smoothing(time_constant=t, hysteresis=h, dwell=d) for t, h, d in grid]


def choose(rows: list[Row]) -> Smoothing:
    """Return the settings with the fewest spurious switches, of those that are right and quick enough.

    On the days for choosing they err no more than unsteadied predictions, miss at most a point more of the
    changes, and their median delay is at most a quarter of a window longer.
    """
    rows = [row for row in rows if row.days == "choice"]
    raw = next(row for row in rows if row.kind == "none")
    allowed = [
        row
        for row in rows
        if row.kind == "combined"
        and row.error_percent <= raw.error_percent
        and row.missed_percent <= raw.missed_percent + 1
        and row.median_delay_s <= raw.median_delay_s + WINDOW / RATE / 4 + 1e-9
    ]
    best = min(allowed, key=lambda row: row.spurious_per_minute)
    return Smoothing(best.vote, best.time_constant, best.hysteresis, best.dwell)


def study(path: Path, parts: tuple[str, ...] = tuple(PARTS)) -> list[Row]:
    """Return the record: all kinds on both parts, combinations where settings are chosen."""
    with np.load(path) as file:
        data = {name: file[name] for name in file.files}
    base = data["day"] <= 15
    model = train((data["X"][base] * float(data["scale"])).astype(np.float32), data["y"][base].astype(int))
    rows: list[Row] = []
    for days in parts:
        of = list(sequences(model, data, PARTS[days]))
        balanced = preset("balanced", WINDOW / RATE)
        tried = [("none", Smoothing()), ("balanced", balanced)]
        for kind, (name, values, *_) in KINDS.items():
            start = balanced if kind == BOTH else Smoothing()
            tried += [(kind, replace(start, **{name: value})) for value in values]
        if days == "choice":
            tried += [("combined", settings) for settings in combinations()]
        rows += [measure(of, model.classes_, kind, days, settings) for kind, settings in tried]
    return rows


def write(rows: list[Row], path: Path = RECORD) -> None:
    with replacing(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(Row.__dataclass_fields__)
        for row in rows:
            lines.writerow(
                f"{v:.4g}" if isinstance(v, float) else "" if v is None else v for v in asdict(row).values()
            )


def read(path: Path = RECORD) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = ("days", "kind")
    return [Row(**{k: v if k in texts else float(v) if v else None for k, v in row.items()}) for row in rows]


def draw(rows: list[Row]) -> None:
    """Draw and write the figure: what each kind costs in delay, and what it buys."""
    rows = [row for row in rows if row.days == "test"]
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 4.3), layout="constrained")
    measures = {  # the measure: what it is called, and where its axis begins and ends
        "spurious_per_minute": ("spurious switches per minute", 0, 95),
        "error_percent": ("wrong windows (%)", 25, 46),
        "missed_percent": ("missed changes of motion (%)", 0, 28),
    }
    for axes, (name, (title, low, high)) in zip(panels, measures.items(), strict=True):
        for kind, (setting, values, colour, marker) in KINDS.items():
            of = sorted((row for row in rows if row.kind == kind), key=lambda row: getattr(row, setting))
            points = [(row.median_delay_s, getattr(row, name)) for row in of]
            label = f"{kind} ({values[0]:g} to {values[-1]:g}{'' if setting == 'hysteresis' else ' s'})"
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1.3,
                label=label,
            )
        for kind, label, look in (
            ("none", "unsteadied", {"marker": "X", "color": "#D55E00", "s": 110}),
            ("balanced", "preset: balanced", {"marker": "*", "color": "#D55E00", "s": 230}),
        ):
            row = next(row for row in rows if row.kind == kind)
            point = (row.median_delay_s, getattr(row, name))
            axes.scatter(*point, **look, edgecolors="white", linewidths=0.8, zorder=5, label=label)
        axes.set(xlim=(0.36, 0.94), ylim=(low, high), ylabel=title)
        axes.yaxis.set_major_locator(MultipleLocator(20 if name == "spurious_per_minute" else 5))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[1].set_xlabel("median delay from a change of motion to the first right decision that lasts (s)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(HERE / "steady.png", dpi=160, metadata={"Software": None})


def main() -> None:
    if len(sys.argv) > 1:
        write(study(Path(sys.argv[1])))
    draw(read())


if __name__ == "__main__":
    main()
