"""Draw docs/real-data.png, the figure of the README, from the record docs/results/emg-longterm.jsonl."""

import json
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from anchorinv.core.metrics import scores

HERE = Path(__file__).parent
LINES = {  # the method: how it is called, where its name stands (points of macro-F1), its colour and marker
    "discriminant": ("Discriminant (default)", 82.1, "#0072B2", "o"),
    "anchorinv-plus": ("AnchorInv+", 73.5, "#009E73", "s"),
    "anchorinv": ("AnchorInv", 64.8, "#D55E00", "^"),
    "protonet": ("ProtoNet", 59.2, "#7F7F7F", "D"),
    "finetune": ("Finetune", 33.8, "#000000", "v"),
}


def macro_f1() -> dict[str, dict[int, list[float]]]:
    """Return macro-F1 over all classes in percent, by method and session, a value for each trial."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (HERE / "results" / "emg-longterm.jsonl").open(encoding="utf-8") as file:
        next(file)  # what the run was
        for line in file:
            result = json.loads(line)
            score = scores(np.array(result["confusion"]), result["n_base"]).f1_all
            found[result["method"]][result["session"]].append(100 * score)
    return found


def main() -> None:
    """Draw and write the figure."""
    values = macro_f1()
    figure, axes = plt.subplots(figsize=(7, 3.3), layout="constrained")
    for method, (name, height, colour, marker) in LINES.items():
        sessions = sorted(values[method])
        mean = np.array([np.mean(values[method][session]) for session in sessions])
        spread = np.array([np.std(values[method][session]) for session in sessions])
        axes.plot(sessions, mean, color=colour, marker=marker, linewidth=2 if "default" in name else 1.3)
        axes.fill_between(sessions, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
        axes.text(6.15, height, name, color=colour, va="center")
    axes.set(xlim=(-0.15, 7.9), ylim=(20, 100), ylabel="macro-F1, all classes (%)")
    axes.set(xlabel="new motions learned, from ten windows each")
    axes.set_xticks(range(7), ["0", "1", "2", "3", "4", "5", "6"])
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "real-data.png", dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main()
