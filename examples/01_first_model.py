"""
A first model
=============

Train a classifier on windows of EMG, and see which gestures it confuses.

The recordings are synthetic: eight electrodes around a forearm, five gestures, two people, three sessions
each. The model learns from the first two sessions and is tested on the third, when the electrodes sit a
little differently.
"""

# %%
# The recordings
# --------------
# Signals are an array of shape (n, channels, times), with one label for each window. Any unit will do as
# long as it stays the same.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import ConfusionMatrixDisplay, f1_score

from anchorinv import AnchorInvClassifier
from anchorinv.datasets import synthetic

GESTURES = np.array(["fist", "open hand", "point", "pinch", "wrist up"])

recordings = synthetic.emg(n_classes=5, n_per_class=20, n_times=300, difficulty=1.5, seed=0)
train = recordings.select(recordings.sessions < 2)
test = recordings.select(recordings.sessions == 2)
print(train.signals.shape, "to learn from,", test.signals.shape, "to test")

# %%
# Fit and predict
# ---------------
# It is a scikit-learn classifier. The default method, ``"discriminant"``, computes classical features of
# biosignals and a regularised discriminant on them, and needs no network; ``method="anchorinv"`` is the
# paper's.

model = AnchorInvClassifier(sfreq=recordings.sfreq, random_state=0)
model.fit(train.signals, GESTURES[train.labels])

predicted = model.predict(test.signals)
macro_f1 = f1_score(GESTURES[test.labels], predicted, average="macro")
print(f"macro-F1 on the third session: {macro_f1:.2f}; guessing would give about {1 / len(GESTURES):.2f}")

# %%
# What it confuses
# ----------------
# A row of the confusion matrix is a true class. Each row adds up to 100 %.

figure, axes = plt.subplots(figsize=(5.6, 4.8), layout="constrained")
ConfusionMatrixDisplay.from_predictions(
    GESTURES[test.labels],
    predicted,
    labels=GESTURES,
    normalize="true",
    values_format=".0%",
    cmap="Blues",
    im_kw={"vmin": 0, "vmax": 1},
    ax=axes,
    colorbar=False,
)
axes.tick_params(axis="x", rotation=30)
axes.set(title=f"Session 3, {len(test)} windows: macro-F1 {macro_f1:.2f}")
plt.show()

# %%
# ``model.predict_proba`` has the probability of each class, ``model.save("hand.anchorinv")`` writes one
# file, which contains no recordings, and ``AnchorInvClassifier.load`` reads it. Next: :doc:`teach it another
# gesture <02_teach_a_class>`.
