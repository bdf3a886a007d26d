"""EDF+ files, with a channel of annotations."""

from pathlib import Path

import numpy as np


def edf_plus(path: Path, notes: list[bytes], *, n_chans: int = 4, sfreq: int = 128, width: int = 60) -> Path:
    """Write noise in records of a second with what stands in the annotations of each, as it is."""
    names = ["C3", "C4", "Cz", "Pz"][:n_chans]
    n = n_chans + 1

    def fields(values: list[object], size: int) -> bytes:
        return b"".join(str(value).encode().ljust(size)[:size] for value in values)

    head = fields(["0"], 8) + fields(["X X X X", "Startdate 01-JAN-2024 X X X"], 80) + b"01.01.2412.00.00"
    head += fields([256 * (n + 1)], 8) + fields(["EDF+C"], 44) + fields([len(notes), 1], 8) + fields([n], 4)
    head += fields([*names, "EDF Annotations"], 16) + b" " * 80 * n + fields(["uV"] * n_chans + [""], 8)
    head += fields([-100] * n, 8) + fields([100] * n, 8) + fields([-32768] * n, 8) + fields([32767] * n, 8)
    head += b" " * 80 * n + fields([sfreq] * n_chans + [width], 8) + b" " * 32 * n
    noise = np.random.default_rng(0).integers(-9000, 9000, size=(len(notes), n_chans * sfreq)).astype("<i2")
    records = (
        row.tobytes() + note.ljust(2 * width, b"\x00")[: 2 * width]
        for row, note in zip(noise, notes, strict=True)
    )
    path.write_bytes(head + b"".join(records))
    return path
