"""SAM 40: EEG of twenty people, relaxed and in three stressful tasks, as one ``.npz`` file."""

from pathlib import Path

from anchorinv.data.eeg_trials import plan_eeg
from anchorinv.data.plan import Plan
from anchorinv.data.trials_file import Form
from anchorinv.signal.filters import Filter

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
    session="trial",
)
SECONDS = 4


def plan_stress(raw: Path, *, band: Filter | None = None, hold_out: str | None = None) -> Plan:
    """Plan to prepare ``eeg_stress.npz``: windows of 4 s; trials 1 and 2 train, 3 tests.

    Each recording is clipped and then re-referenced: at every sample, the mean over the channels is 0.

    Parameters
    ----------
    band : filter for each recording of 25 s, before it is clipped and cut; None for none.
    hold_out : a trial of the training part, "1" or "2": it tests, and trial 3 is left out.
    """
    return plan_eeg(
        raw,
        FORM,
        band=band,
        hold_out=hold_out,
        seconds=SECONDS,
        cut_before=False,
        cut=f"windows of {SECONDS} s without overlap, cut after the split",
        name="eeg-stress",
        origin="SAM 40 (Data in Brief 2022), through wavesresearch/eeg_stress_detection",
        licence="research use",
    )
