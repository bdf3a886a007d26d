"""
Read a report
=============

Every run becomes a page with tables and figures; this is how to read it.

``anchorinv report RUN`` makes ``report.html``, one self-contained file, with ``tables/`` (CSV and LaTeX) and
``figures/`` (SVG, PNG, PDF) next to it. Here is the same from Python, on a small run.
"""

# %%
# A run and its report
# --------------------
# Three methods on the synthetic recordings of ``anchorinv demo``, with a small network.

import csv
import tempfile
from pathlib import Path

import matplotlib.image as mpimg
import matplotlib.pyplot as plt

from anchorinv.report.page import make_report
from anchorinv.study.execute import run_study
from anchorinv.study.loading import load

study = load(
    "demo",
    methods=["protonet", "lda", "discriminant"],
    geometry={"depth": 2},
    training={"epochs": 10},
    threads=1,
)
run = Path(tempfile.mkdtemp()) / "demo"
run_study(study, run)
page = make_report([run], run / "report")
print(page.name, f"{page.stat().st_size / 1e6:.1f} MB")

# %%
# The main table
# --------------
# One row for each method, one column for each session. Base and new classes have separate scores, because
# one number can hide that old classes were forgotten or new ones never learned.

with (page.parent / "tables" / "demo-scores.csv").open(newline="") as file:
    for row in csv.DictReader(file):
        print(f"{row['Method']:12}", end="")
        for part in ("all", "base", "new"):
            score = row[f"Macro-F1 ({part} classes): Session 3"]
            print(f"  {part} {score} ± {row[f'Macro-F1 ({part} classes): Session 3 (std)']}", end="")
        print()

# %%
# The tests
# ---------
# Differences are paired: in one trial all methods had the same examples. ``p (Holm)`` is corrected for the
# number of comparisons. With five trials no p value can fall below 0.06, whatever the difference: the
# interval says more.

with (page.parent / "tables" / "demo-tests.csv").open(newline="") as file:
    for row in csv.DictReader(file):
        if row["Session"] == "3":
            interval = f"{row['95 % interval: from']} to {row['95 % interval: to']}"
            print(f"{row['Method']:12} {row['Difference']} points ({interval}), p {row['p (Holm)']}")

# %%
# A figure
# --------
# Scores over sessions. All curves fall, since every session adds a class; look for the one that falls least
# among the base classes (no forgetting) and lies highest among the new ones (learning).

picture = mpimg.imread(page.parent / "figures" / "demo-sessions.png")
figure = plt.figure(figsize=(picture.shape[1] / 200, picture.shape[0] / 200), dpi=200)
axes = figure.add_axes((0, 0, 1, 1))
axes.imshow(picture)
axes.set_axis_off()
plt.show()
