"""
Your own EDF recordings
=======================

From annotated EDF files to a model, and back to a whole recording.

Two small EDF files are written first, as a recorder would: four channels of EEG, with an annotation
wherever a task begins. Replace them by your own.
"""

# %%
# Two recordings
# --------------
# Twenty trials of each of three tasks, one second of rest after each, in volts as in MNE.

import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import mne
import numpy as np

from anchorinv import AnchorInvClassifier, Filter, Preprocessing
from anchorinv.datasets import synthetic

mne.set_log_level("error")
TASKS = ("relax", "count", "imagine")
folder = Path(tempfile.mkdtemp())


def write_edf(path, session):
    """Write one session as EDF+: trials one after the other, annotated where they begin."""
    made = synthetic.eeg(
        n_classes=3,
        n_subjects=1,
        n_sessions=2,
        n_per_class=20,
        n_chans=4,
        n_times=500,
        difficulty=0.3,
        seed=1,
    )
    trials = made.select(made.sessions == session)
    order = np.random.default_rng(session + 27).permutation(len(trials))
    rest = 5 * np.random.default_rng(session + 2).normal(size=(len(trials), 4, 250))
    microvolts = np.concatenate([np.concatenate([trials.signals[i], rest[i]], axis=1) for i in order], axis=1)
    info = mne.create_info(["F3", "F4", "P3", "P4"], made.sfreq, "eeg")
    raw = mne.io.RawArray(1e-6 * microvolts, info)
    tasks = [TASKS[trials.labels[i]] for i in order]
    raw.set_annotations(mne.Annotations(3.0 * np.arange(len(order)), 2.0, tasks))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # EDF's 16 bits are rounded, and export says so
        raw.export(path, overwrite=True)


write_edf(folder / "monday.edf", 0)
write_edf(folder / "tuesday.edf", 1)

# %%
# Trials, cut by their annotations
# --------------------------------
# ``fit`` takes ``mne.Epochs``, with their channel names, rate and unit, and the names of their events as
# labels. The preprocessing is stored with the model, which applies it to other recordings: here a causal
# filter from 4 to 40 Hz, which also works live.

band = Filter(4, 40)


def epochs_of(path):
    """Return filtered two-second trials of an EDF file, and their tasks."""
    raw = mne.io.read_raw_edf(path, preload=True)
    design = {"order": band.order, "ftype": "butter"}
    raw.filter(band.low, band.high, method="iir", iir_params=design, phase="forward")
    events, codes = mne.events_from_annotations(raw)
    end = 2 - 1 / raw.info["sfreq"]
    epochs = mne.Epochs(raw, events, codes, tmin=0, tmax=end, baseline=None, preload=True)
    names = {code: name for name, code in codes.items()}
    return epochs, [str(names[code]) for code in epochs.events[:, 2]]


monday, _ = epochs_of(folder / "monday.edf")
model = AnchorInvClassifier(preprocessing=Preprocessing(unit="µV", filter=band), random_state=0)
model.fit(monday)

tuesday, tasks = epochs_of(folder / "tuesday.edf")
print(f"accuracy on Tuesday: {model.score(tuesday, tasks):.2f}, guessing gives {1 / len(TASKS):.2f}")
print(model.check(tuesday).verdict)

# %%
# Plot some trials
# ----------------
# The first five trials of Tuesday: channels as recorded, and below the prediction for each trial.

COLOURS = dict(zip(TASKS, ("#56B4E9", "#E69F00", "#009E73"), strict=True))
raw = mne.io.read_raw_edf(folder / "tuesday.edf", preload=True)
signals, times = raw.get_data(stop=5 * 750), raw.times[: 5 * 750]

figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(7.4, 4.8), sharex=True, height_ratios=(3, 1.2), layout="constrained"
)
for i in range(4):
    top.plot(times, 1e6 * signals[i] - 120 * i, color="0.25", linewidth=0.6)
top.set_yticks([-120 * i for i in range(4)], raw.ch_names)
top.plot([14.8, 14.8], [-520, -420], color="black", linewidth=2, clip_on=False)
top.text(14.7, -470, "100 µV", ha="right", va="center")
top.set(title="Tuesday, first 15 s; colours: annotated task", ylim=(-540, 100))
probabilities = model.predict_proba(tuesday)
for trial in range(5):
    start = tuesday.events[trial, 0] / raw.info["sfreq"]
    top.axvspan(start, start + 2, color=COLOURS[tasks[trial]], alpha=0.3, linewidth=0)
    height = 0.0
    for column, task in enumerate(model.classes_):
        share = probabilities[trial, column]
        bottom.bar(start, share, width=2, bottom=height, align="edge", color=COLOURS[task])
        height += share
bottom.set(xlabel="time (s)", ylabel="probability", ylim=(0, 1), xlim=(0, 15))
handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[task]) for task in TASKS]
figure.legend(handles, TASKS, loc="outside lower center", ncols=3, frameon=False)
plt.show()

# %%
# The same on the command line; ``anchorinv events`` lists the annotations of a recording:
#
# .. code-block:: console
#
#    anchorinv events monday.edf
#    anchorinv train monday.edf --events relax,count,imagine --from 0 --to 2 --band 4 40 -o tasks.anchorinv
#    anchorinv evaluate tasks.anchorinv tuesday.edf --events relax,count,imagine --from 0 --to 2
#    anchorinv predict tasks.anchorinv tuesday.edf --step 0.5 --csv tuesday.csv
