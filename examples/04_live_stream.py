"""
A live stream
=============

Predict while signals arrive, in chunks of any length.

:class:`~anchorinv.StreamingPredictor` filters, windows and classifies samples as they arrive, in memory for
one window and one chunk. Here a recording is replayed in chunks of 40 ms, as an amplifier would
deliver it.
"""

# %%
# Training: windows of a recording
# --------------------------------
# Two recordings of the same hand: in each, every gesture is held for 1.5 s several times. The model learns
# from windows of 400 ms of the first one.

import matplotlib.pyplot as plt
import numpy as np

from anchorinv import AnchorInvClassifier, StreamingPredictor
from anchorinv.datasets import synthetic

GESTURES = np.array(["pinch", "fist", "point", "open"])
WINDOW, SFREQ = 400, 1000  # samples, Hz
made = synthetic.emg(
    n_classes=4, n_subjects=1, n_sessions=2, n_per_class=30, n_times=500, sfreq=SFREQ, difficulty=0.6, seed=2
)


def held(session, label):
    """Return a gesture held for 1.5 s, ten times over: (10, channels, 1500)."""
    pieces = made.select((made.sessions == session) & (made.labels == label)).signals
    return pieces.reshape(10, 3, 8, 500).transpose(0, 2, 1, 3).reshape(10, 8, 1500)


X, y = [], []
for label, gesture in enumerate(GESTURES):
    cut = np.lib.stride_tricks.sliding_window_view(held(0, label), WINDOW, axis=2)[:, :, ::100]
    X += list(cut.transpose(0, 2, 1, 3).reshape(-1, 8, WINDOW))
    y += [gesture] * (cut.shape[0] * cut.shape[2])
model = AnchorInvClassifier(sfreq=SFREQ, random_state=0).fit(np.array(X), y)

# %%
# Predict the stream
# ------------------
# Five gestures of the other recording, one after the other, go through the predictor: a window every 25 ms.

sequence = [0, 1, 0, 2, 3]
recording = np.concatenate(
    [held(1, label)[i] for i, label in enumerate(sequence)], axis=1
)  # (channels, samples)

live = StreamingPredictor(model, step=25)
predictions = []
for start in range(0, recording.shape[1], 40):
    predictions += live.feed(recording[:, start : start + 40])
print(f"{len(predictions)} windows; the first: {predictions[0].label}")

# %%
# The predictions
# ---------------
# A prediction is available at the end of its window. After a change of gesture it takes part of a window
# until the new one is predicted.

ends = np.array([each.start + WINDOW for each in predictions]) / SFREQ
probabilities = np.array([each.probabilities for each in predictions])
times = np.arange(recording.shape[1]) / SFREQ
COLOURS = dict(zip(GESTURES, ("0.45", "#D55E00", "#0072B2", "#009E73"), strict=True))

figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.4, 4.6), sharex=True, layout="constrained")
top.plot(times, recording[0], color="0.2", linewidth=0.5)
top.set(ylabel=f"{made.ch_names[0]} (µV)")
for i, label in enumerate(sequence):
    name = GESTURES[label]
    for axes in (top, bottom):
        axes.axvspan(1.5 * i, 1.5 * (i + 1), color=COLOURS[name], alpha=0.15, linewidth=0)
    top.text(1.5 * (i + 0.5), 1.02, name, ha="center", va="bottom", transform=top.get_xaxis_transform())
for column, name in enumerate(model.classes_):
    bottom.plot(ends, probabilities[:, column], color=COLOURS[name], linewidth=1.6, label=name)
bottom.set(xlabel="time (s)", ylabel="probability", ylim=(-0.02, 1.02), xlim=(0, times[-1]))
bottom.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title="predicted")
plt.show()

# %%
# A source may have other channel names, another unit or another rate:
# ``StreamingPredictor(model, step=25, ch_names=[...], unit="V", sfreq=2000)`` converts it to the model's.
# Missing samples are NaN; windows with missing samples get no class.
