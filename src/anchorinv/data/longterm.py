"""Long-term EMG: an armband on three forearms on thirty days, 22 motions, as one ``.npz`` file."""

from functools import partial
from pathlib import Path

from anchorinv.data.plan import Plan
from anchorinv.data.trials_file import Form, plan_trials, windows_as_given
from anchorinv.signal.preprocessing import Preprocessing

MOTIONS = tuple(f"motion {i}" for i in range(1, 23))
FORM = Form(
    file="emg_longterm.npz",
    shape=(8, 300),
    sfreq=200.0,
    classes=MOTIONS,
    columns={"subject": range(1, 4), "day": range(1, 31), "repetition": range(1, 5)},
    recording=("subject", "day"),
    part="day",
    train=range(1, 21),
    test=range(21, 31),
    session="day",
)


def plan_longterm(raw: Path, *, hold_out: str | None = None) -> Plan:
    """Plan to prepare ``emg_longterm.npz``: every window as it is; days 1-20 train, 21-30 test.

    Parameters
    ----------
    hold_out : days of the training part, such as "16-20": they test, and days 21-30 are left out.
    """
    n_chans, n_times = FORM.shape
    return plan_trials(
        raw,
        FORM,
        partial(windows_as_given, FORM),
        hold_out=hold_out,
        how=Preprocessing(tuple(f"EMG{i}" for i in range(1, n_chans + 1)), n_times=n_times),
        recipe={
            "name": "emg-longterm",
            "form": "npz",
            "unit": "as given",
            "steps": ["whole numbers times scale; windows as given"],
            "origin": "Suguru55/Wearable_Sensor_Long-term_sEMG_Dataset",
            "licence": "Apache-2.0",
        },
    )
