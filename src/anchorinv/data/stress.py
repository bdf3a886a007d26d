"""SAM 40: EEG of twenty people, relaxed and in three stressful tasks, as one ``.npz`` file."""

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorinv.data.filters import Filter, filtered
from anchorinv.data.plan import Piece, Plan, Row
from anchorinv.data.trials_file import Form, Trials, plan_trials
from anchorinv.data.windows import window_starts

TASKS = ("relax", "arithmetic", "mirror", "stroop")
FORM = Form(
    file="eeg_stress.npz",
    shape=(32, 3200),
    sfreq=128.0,
    classes=TASKS,
    columns={"subject": range(1, 21), "trial": range(1, 4)},
    recording=("subject", "y", "trial"),
    part="trial",
    train=range(1, 3),
    test=range(3, 4),
)
SECONDS = 4
#: Beyond this, in µV, it is no brain: eyes, muscles, a loose electrode.
LIMIT = 200.0
REFERENCE = "common average reference"


def plan_stress(raw: Path, *, band: Filter | None = None, hold_out: str | None = None) -> Plan:
    """Plan to prepare ``eeg_stress.npz``: windows of 4 s; trials 1 and 2 train, 3 tests.

    Each recording is clipped and then re-referenced: at every sample, the mean over the channels is 0.

    Parameters
    ----------
    band : filter for each recording of 25 s, before it is clipped and cut; None for none.
    hold_out : a trial of the training part, "1" or "2": it tests, and trial 3 is left out.
    """
    if band is not None:
        band.sections(FORM.sfreq)  # whether it fits the rate, before anything is read
    clipped = f"clipped at ±{LIMIT:g} µV"
    done = f"{clipped}, then {REFERENCE}"
    return plan_trials(
        raw,
        FORM,
        partial(_piece, band),
        hold_out=hold_out,
        n_times=round(SECONDS * FORM.sfreq),
        ch_names=tuple(f"EEG{i}" for i in range(1, FORM.shape[0] + 1)),
        recipe={
            "name": "eeg-stress",
            "form": "npz",
            "unit": "µV",
            "steps": [
                *([f"each recording filtered: {band}"] if band else []),
                clipped,
                REFERENCE,
                f"windows of {SECONDS} s without overlap, cut after the split",
            ],
            # In words: a model cannot repeat the clipping and the reference on a live source.
            "filter": f"{band}, then {done}" if band else done,
            "band": str(band) if band else None,
            "origin": "SAM 40 (Data in Brief 2022), through wavesresearch/eeg_stress_detection",
            "licence": "research use",
        },
    )


def _piece(band: Filter | None, trials: Trials, places: npt.NDArray[np.int64], side: str) -> Piece:
    (place,) = places  # a recording is one trial
    signals = trials.signals[place] * trials.scale  # (n_chans, n_times)
    if band is not None:
        # Before it is clipped: some channels lie hundreds of µV from 0, and would be flat.
        signals = filtered(signals, FORM.sfreq, band)
    label, subject, trial = (int(trials.columns[name][place]) for name in ("y", "subject", "trial"))
    rows = [
        Row(int(start), TASKS[label], str(subject), str(trial), side)
        for start in window_starts(signals.shape[1], round(SECONDS * FORM.sfreq))
    ]
    beyond = int(np.count_nonzero(np.abs(signals) > LIMIT))
    # Before the reference: a loose electrode would be in every channel.
    signals = np.clip(signals, -LIMIT, LIMIT)
    signals = signals - signals.mean(axis=0)
    return Piece(signals.T, rows, {"clipped samples": beyond})
