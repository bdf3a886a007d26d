"""Cut the recordings of `anchorinv demo` from a larger file: python docs/demo_data.py emg_longterm.npz.

The rule was made before any score was seen: the first person; the motions of the study, 1 to 16; all thirty
days; of the four repetitions of a day the first two. Amplitudes are rounded to steps sixteen times as large,
0.8 % of their mean, which compress to 3.3 MB instead of 4.1.
"""

import sys
from pathlib import Path

import numpy as np

OUT = Path(__file__).parents[1] / "src" / "anchorinv" / "datasets" / "emg_demo" / "emg_demo.npz"
COARSER = 16


def cut(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the smaller file, in the layout of the larger one."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    kept = (arrays["subject"] == 1) & (arrays["y"] < 16) & (arrays["repetition"] <= 2)
    columns = {name: arrays[name][kept] for name in ("y", "subject", "day", "repetition")}
    rounded = np.rint(arrays["X"][kept] / COARSER).astype(np.int16)
    return {"X": rounded, "scale": arrays["scale"] * COARSER, "sfreq": arrays["sfreq"], **columns}


if __name__ == "__main__":
    np.savez_compressed(OUT, **cut(Path(sys.argv[1])))
