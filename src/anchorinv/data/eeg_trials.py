"""Sets of EEG trials as one ``.npz`` file: each trial filtered, clipped, re-referenced, cut into windows."""

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorinv.data.plan import Piece, Plan
from anchorinv.data.trials_file import Form, Trials, plan_trials, row
from anchorinv.signal.filters import Filter
from anchorinv.signal.pipeline import process
from anchorinv.signal.preprocessing import AVERAGE, Preprocessing
from anchorinv.signal.windows import window_starts

#: Beyond this, in µV, it is no brain: eyes, muscles, a loose electrode.
LIMIT = 200.0


def plan_eeg(
    raw: Path,
    form: Form,
    *,
    band: Filter | None,
    hold_out: str | None,
    seconds: float,
    cut_before: bool,
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
    cut_before : whether a trial was cut before it is filtered; otherwise it is a recording of its own.
    cut : how windows are cut from a trial, in words.
    """
    if band is not None:
        band.sections(form.sfreq)  # whether it fits the rate, before anything is read
    n_times = round(seconds * form.sfreq)
    how = Preprocessing(
        form.ch_names or tuple(f"EEG{i}" for i in range(1, form.shape[0] + 1)),
        "µV",
        filter=band,
        limit=LIMIT,  # before the reference: a loose electrode would be in every channel
        reference=AVERAGE,
        sfreq=form.sfreq,
        by_trial=cut_before and band is not None,
        n_times=n_times,
    )
    return plan_trials(
        raw,
        form,
        partial(_piece, form, how),
        hold_out=hold_out,
        how=how,
        recipe={
            "name": name,
            "form": "npz",
            "unit": "µV",
            "steps": [*how.steps, cut],
            "origin": origin,
            "licence": licence,
        },
    )


def _piece(form: Form, how: Preprocessing, trials: Trials, places: npt.NDArray[np.int64], side: str) -> Piece:
    assert how.n_times is not None
    done = [process(how, trials.signals[place] * trials.scale) for place in places]
    length = form.shape[1]
    rows = [
        row(form, trials, place, start=i * length + int(start), side=side)
        for i, place in enumerate(places)
        for start in window_starts(length, how.n_times)
    ]
    clipped = sum(each.n_clipped for each in done)
    return Piece(np.concatenate([each.samples for each in done]), rows, {"clipped samples": clipped})
