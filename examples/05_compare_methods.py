"""
Compare methods
===============

A small paired study: five methods, the same examples for all of them in every trial.

What counts is the difference within a trial, where two methods saw the same ten examples of each new class.
A study computes it for any number of methods, and can be interrupted and resumed.
"""

# %%
# The study
# ---------
# ``load`` reads a config by name (here the synthetic one: five base classes, three new ones, one
# in each session) and changes some of its keys; ``run_study`` computes what is missing in the folder.
# ``anchorinv run`` does the same from the command line.

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from anchorinv.core.metrics import scores
from anchorinv.study.execute import run_study
from anchorinv.study.loading import load
from anchorinv.study.scores import compare

METHODS = ("protonet", "fecam", "mdm", "lda", "discriminant")

study = load(
    "demo",
    methods=list(METHODS),
    protocol={"trials": 10},
    geometry={"depth": 2},
    training={"epochs": 10},
    threads=1,
)
folder = Path(tempfile.mkdtemp()) / "run"
run_study(study, folder)

# %%
# The results
# -----------
# A line of ``results.jsonl`` is a method, a trial and a session, with its confusion matrix; every score is
# derived from that.

lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
last = max(line["session"] for line in lines)
macro_f1 = {method: [] for method in METHODS}
for line in lines:
    if line["session"] == last:
        macro_f1[line["method"]].append(100 * scores(np.array(line["confusion"]), line["n_base"]).f1_all)

comparisons = compare(macro_f1, "protonet")
for each in comparisons:
    interval = f"95 % interval {each.low:+.1f} to {each.high:+.1f}"
    print(f"{each.method:12} {each.difference:+5.1f} points ({interval}, p {each.p_holm:.3f})")

# %%
# Differences from ProtoNet
# -------------------------
# A grey point is a trial; the mark is the mean with its 95 % interval, which generalises to other draws of
# the examples, not to people: these recordings are synthetic.

figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for row, each in enumerate(reversed(comparisons)):
    differences = np.subtract(macro_f1[each.method], macro_f1["protonet"])
    axes.scatter(differences, np.full(len(differences), row), color="0.6", s=22, zorder=2)
    axes.errorbar(
        each.difference,
        row,
        xerr=[[each.difference - each.low], [each.high - each.difference]],
        color="#0072B2",
        marker="D",
        capsize=4,
        zorder=3,
    )
axes.axvline(0, color="black", linewidth=0.8)
axes.set_yticks(range(len(comparisons)), [each.method for each in reversed(comparisons)])
axes.set(
    xlabel=f"macro-F1 minus ProtoNet's after session {last} (points)", ylim=(-0.6, len(comparisons) - 0.4)
)
axes.grid(axis="x", alpha=0.3)
plt.show()
