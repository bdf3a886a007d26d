"""Sets of EEG trials as one ``.npz`` file: each trial filtered, clipped, re-referenced, cut into windows."""

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorinv.data.filters import Filter, filtered
from anchorinv.data.plan import Piece, Plan
from anchorinv.data.trials_file import Form, Trials, plan_trials, row
from anchorinv.data.windows import window_starts

#: Beyond this, in µV, it is no brain: eyes, muscles, a loose electrode.
LIMIT = 200.0
REFERENCE = "common average reference"


def plan_eeg(
    raw: Path,
    form: Form,
    *,
    band: Filter | None,
    hold_out: str | None,
    seconds: float,
    trial: str,
    cut: str,
    name: str,
    origin: str,
    licence: str,
) -> Plan:
    """Plan to prepare EEG: each trial is filtered, clipped, re-referenced, and cut into windows.

    Re-referenced means: at every sample, the mean over the channels is 0.

    Parameters
    ----------
    band : filter for each trial, before it is clipped and cut; None for none.
    seconds : of a window; windows do not overlap.
    trial, cut : what a trial of this set is, and how windows are cut from it, in words.
    """
    if band is not None:
        band.sections(form.sfreq)  # whether it fits the rate, before anything is read
    n_times = round(seconds * form.sfreq)
    clipped = f"clipped at ±{LIMIT:g} µV"
    done = f"{clipped}, then {REFERENCE}"
    before = [f"each {trial} filtered: {band}"] if band else []
    return plan_trials(
        raw,
        form,
        partial(_piece, form, band, n_times),
        hold_out=hold_out,
        n_times=n_times,
        ch_names=form.ch_names or tuple(f"EEG{i}" for i in range(1, form.shape[0] + 1)),
        recipe={
            "name": name,
            "form": "npz",
            "unit": "µV",
            "steps": [*before, clipped, REFERENCE, cut],
            # In words: a model cannot repeat the clipping and the reference on a live source.
            "filter": f"{band}, then {done}" if band else done,
            "band": str(band) if band else None,
            "origin": origin,
            "licence": licence,
        },
    )


def _piece(
    form: Form,
    band: Filter | None,
    n_times: int,
    trials: Trials,
    places: npt.NDArray[np.int64],
    side: str,
) -> Piece:
    signals = trials.signals[places] * trials.scale  # (n, n_chans, length)
    if band is not None:
        # Before it is clipped: some channels lie hundreds of µV from 0, and would be flat.
        signals = np.stack([filtered(trial, form.sfreq, band) for trial in signals])
    n, n_chans, length = signals.shape
    rows = [
        row(form, trials, place, start=i * length + int(start), side=side)
        for i, place in enumerate(places)
        for start in window_starts(length, n_times)
    ]
    beyond = int(np.count_nonzero(np.abs(signals) > LIMIT))
    # Before the reference: a loose electrode would be in every channel.
    signals = np.clip(signals, -LIMIT, LIMIT)
    signals = signals - signals.mean(axis=1, keepdims=True)
    samples = signals.transpose(0, 2, 1).reshape(n * length, n_chans)
    return Piece(samples, rows, {"clipped samples": beyond})
