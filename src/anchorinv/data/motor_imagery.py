"""EEG Motor Movement/Imagery: imagined movements of twenty people, as one ``.npz`` file."""

from pathlib import Path

from anchorinv.data.bci2a_forms import CH_NAMES
from anchorinv.data.eeg_trials import plan_eeg
from anchorinv.data.plan import Plan
from anchorinv.data.trials_file import Form
from anchorinv.signal.filters import Filter

MOVEMENTS = ("left fist", "right fist", "both fists", "both feet")
SECONDS = 3
FORM = Form(
    file="eeg_motor_imagery.npz",
    shape=(len(CH_NAMES), 480),
    sfreq=160.0,
    classes=MOVEMENTS,
    columns={"subject": range(1, 110), "run": (4, 6, 8, 10, 12, 14)},
    recording=("subject", "run"),
    part="run",
    train=(4, 6, 8, 10),
    test=(12, 14),
    session="run",
    ch_names=CH_NAMES,
    alike=True,  # the trials of a run have no numbers
)


def plan_motor_imagery(raw: Path, *, band: Filter | None = None, hold_out: str | None = None) -> Plan:
    """Plan to prepare ``eeg_motor_imagery.npz``: windows as given; runs 4, 6, 8, 10 train, 12 and 14 test.

    Runs 4, 8 and 12 have left and right fist, runs 6, 10 and 14 both fists and both feet. Each window is
    clipped and then re-referenced: at every sample, the mean over the channels is 0.

    Parameters
    ----------
    band : filter for each window of 3 s by itself, before it is clipped: the file has nothing around it.
    hold_out : runs of the training part, one of each kind, such as "8,10": they test, and runs 12 and 14
        are left out.
    """
    return plan_eeg(
        raw,
        FORM,
        band=band,
        hold_out=hold_out,
        seconds=SECONDS,
        cut_before=True,
        cut=f"windows of {SECONDS} s as given",
        name="eeg-motor-imagery",
        origin="EEG Motor Movement/Imagery 1.0.0 (PhysioNet; Schalk et al., IEEE TBME 2004)",
        licence="ODC-BY 1.0",
    )
