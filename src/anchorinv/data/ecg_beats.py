"""MIT-BIH Arrhythmia: heartbeats of half-hour ECG records in two leads, as one ``.npz`` file."""

from functools import partial
from pathlib import Path

from anchorinv.data.plan import Plan
from anchorinv.data.trials_file import Form, plan_trials, windows_as_given
from anchorinv.signal.preprocessing import Preprocessing

#: As PhysioNet writes them: normal, left and right bundle branch block, ventricular and atrial premature,
#: fusion of ventricular and normal, nodal escape.
BEATS = ("N", "L", "R", "V", "A", "F", "j")
N_TIMES = 256
#: A record's samples, of which the first two thirds train.
LENGTH, BORDER = 650_000, 433_333
FORM = Form(
    file="ecg_beats.npz",
    shape=(2, N_TIMES),
    sfreq=360.0,
    classes=BEATS,
    columns={"subject": range(100, 235), "sample": range(LENGTH)},
    recording=("subject",),
    part="sample",
    train=range(BORDER),
    test=range(BORDER, LENGTH),
    apart=N_TIMES,  # windows of fast beats overlap, and must not do so across the border
)


def plan_ecg_beats(raw: Path, *, hold_out: str | None = None) -> Plan:
    """Plan to prepare ``ecg_beats.npz``: a window per beat; of each record, the first two thirds train.

    Parameters
    ----------
    hold_out : samples of the training part, such as "290000-433332": beats there test, and those from
        433333 are left out.
    """
    return plan_trials(
        raw,
        FORM,
        partial(windows_as_given, FORM),
        hold_out=hold_out,
        how=Preprocessing(("ECG1", "ECG2"), "mV", n_times=N_TIMES),
        recipe={
            "name": "ecg-beats",
            "form": "npz",
            "unit": "mV",
            "steps": [
                "whole numbers times scale; windows as given",
                "training windows that overlap a test window left out",
            ],
            "origin": "MIT-BIH Arrhythmia Database 1.0.0 (PhysioNet; Moody & Mark, IEEE EMB 2001)",
            "licence": "ODC-BY 1.0",
        },
    )
