"""Draw docs/real-data.png, the figure of the README, from docs/results/demo-emg.jsonl, a record of the demo.

`make results` runs it; a test compares the hash of the record that is kept in the picture.
"""

import json
from collections import defaultdict
from hashlib import sha256
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from anchorinv.core.metrics import scores

HERE = Path(__file__).parent
RECORD, FIGURE = HERE / "results" / "demo-emg.jsonl", HERE / "real-data.png"
LINES = {  # the method: how it is called, its colour (of Okabe and Ito) and marker
    "discriminant": ("Discriminant (default)", "#0072B2", "o"),
    "lda": ("LDA (classical)", "#009E73", "s"),
    "anchorinv": ("AnchorInv", "#D55E00", "^"),
    "protonet": ("ProtoNet", "#595959", "D"),
}
APART = 3.2  # points of macro-F1 between two names at least


def macro_f1(record: Path) -> dict[str, dict[int, list[float]]]:
    """Return macro-F1 over all classes in percent, by method and session, a value for each trial."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with record.open(encoding="utf-8") as file:
        next(file)  # what the run was
        for line in file:
            result = json.loads(line)
            score = scores(np.array(result["confusion"]), result["n_base"]).f1_all
            found[result["method"]][result["session"]].append(100 * score)
    return found


def heights(ends: dict[str, float]) -> dict[str, float]:
    """Return where names stand: at the ends of their lines, or above those that would be in their way."""
    placed: dict[str, float] = {}
    for method in sorted(ends, key=ends.__getitem__):
        placed[method] = max([ends[method], *(height + APART for height in placed.values())])
    return placed


def main() -> None:
    """Draw and write the figure."""
    values = macro_f1(RECORD)
    last = max(values["discriminant"])
    at = heights({method: float(np.mean(values[method][last])) for method in LINES})
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for method, (name, colour, marker) in LINES.items():
        sessions = sorted(values[method])
        mean = np.array([np.mean(values[method][session]) for session in sessions])
        spread = np.array([np.std(values[method][session]) for session in sessions])
        axes.plot(sessions, mean, color=colour, marker=marker, linewidth=2 if "default" in name else 1.3)
        axes.fill_between(sessions, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
        axes.text(last + 0.15, at[method], f"{name} {mean[-1]:.0f} %", color=colour, va="center")
    axes.set(xlim=(-0.15, last + 2.75), ylim=(60, 101), ylabel="macro-F1, all motions so far (%)")
    axes.set(xlabel="new motions learned, from ten windows of 1.5 s each")
    axes.set_xticks(range(last + 1))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    source = sha256(RECORD.read_bytes()).hexdigest()
    figure.savefig(FIGURE, dpi=160, metadata={"Software": None, "Source": source})


if __name__ == "__main__":
    main()
