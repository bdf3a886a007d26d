"""
Teach it a class
================

A trained model learns a new gesture from a few examples, without the recordings it was trained on.

How many examples does it take, and what happens to the old gestures? Both are measured here on a session
that the model never saw.
"""

# %%
# A model of five gestures
# ------------------------
# Class 5 is left out: the model will be taught it later.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import f1_score

from anchorinv import AnchorInvClassifier
from anchorinv.datasets import synthetic

recordings = synthetic.emg(n_classes=6, n_per_class=20, n_times=300, difficulty=1.5, seed=0)
train = recordings.select((recordings.sessions < 2) & (recordings.labels < 5))
shots = recordings.select((recordings.sessions < 2) & (recordings.labels == 5))
test = recordings.select(recordings.sessions == 2)

base = AnchorInvClassifier(sfreq=recordings.sfreq, random_state=0).fit(train.signals, train.labels)

# %%
# Save it, load it, and teach it
# ------------------------------
# The file contains statistics of each class and no recordings. ``partial_fit`` learns new classes,
# ``add_shots`` takes more examples of known ones.

import tempfile
from pathlib import Path

path = Path(tempfile.mkdtemp()) / "hand.anchorinv"
base.save(path)

model = AnchorInvClassifier.load(path)
model.partial_fit(shots.signals[:5], shots.labels[:5])
model.add_shots(shots.signals[5:10], shots.labels[5:10])
for session in model.history_:
    print(session["kind"], session["samples"])

# %%
# How many examples?
# ------------------
# F1 of a class is the harmonic mean of its recall (how many of its windows are recognised) and its
# precision (how many windows predicted as this class belong to it). Each number of examples is drawn ten
# times.

COUNTS = (2, 3, 5, 10, 20, 40)
rng = np.random.default_rng(0)
new, old = np.empty((2, len(COUNTS), 10))
for i, count in enumerate(COUNTS):
    for draw in range(10):
        chosen = rng.choice(len(shots), size=count, replace=False)
        model = AnchorInvClassifier.load(path)
        model.partial_fit(shots.signals[chosen], shots.labels[chosen])
        *olds, new[i, draw] = f1_score(test.labels, model.predict(test.signals), average=None)
        old[i, draw] = np.mean(olds)

# %%
# With few examples the mean of the new class is uncertain, and windows of old gestures are confused with it;
# from twenty on it is recognised as well as the others. The scores of old gestures fall a little, since
# there is one more class to confuse them with.

known = test.select(test.labels < 5)
before = f1_score(known.labels, base.predict(known.signals), average="macro")

figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
axes.axhline(100 * before, color="0.4", linestyle=":", label="old gestures, before")
for values, colour, marker, name in (
    (100 * old, "#0072B2", "s", "old gestures, after"),
    (100 * new, "#D55E00", "o", "new gesture"),
):
    mean, spread = values.mean(1), values.std(1)
    axes.plot(COUNTS, mean, color=colour, marker=marker, label=name)
    axes.fill_between(COUNTS, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
axes.set_xscale("log")
axes.set_xticks(COUNTS, [str(count) for count in COUNTS])
axes.minorticks_off()
axes.set(xlabel="examples of the new gesture", ylabel="F1 in session 3 (%)", ylim=(40, 100))
axes.grid(alpha=0.3)
axes.legend(loc="lower right", frameon=False, title="mean ± standard deviation of 10 draws")
plt.show()
