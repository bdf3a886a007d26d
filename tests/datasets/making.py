"""Files in the true formats, written byte by byte or as their own software writes them."""

import csv
import lzma
import struct
from pathlib import Path

import numpy as np
from scipy.io import savemat

from anchorinv.datasets.paper_sets import CH_NAMES

LOW, HIGH = -100.0, 100.0


def gdf(path: Path, digital: np.ndarray, events: list[tuple[int, int]], *, sfreq=250, version="1.25") -> None:
    """Write int16 samples (n_chans, n_samples), -100 to 100 µV, and events (sample from 0, type), as GDF."""
    n_chans, n_samples = digital.shape
    n_records = n_samples // sfreq
    assert n_records * sfreq == n_samples
    first = version < "1.9"
    labels = [*("EEG-Fz" if i == 0 else f"EEG-{i}" for i in range(n_chans))]
    fixed = bytearray(256)
    fixed[:8] = f"GDF {version}".encode()
    if first:
        fixed[8:168] = b" " * 160
        fixed[168:184] = b"2005010112000000"
        struct.pack_into("<q", fixed, 184, 256 * (n_chans + 1))
        struct.pack_into("<qIII", fixed, 236, n_records, 1, 1, n_chans)
    else:
        fixed[8:74] = b"X X".ljust(66)
        fixed[88:152] = b" " * 64
        struct.pack_into("<H", fixed, 184, n_chans + 1)
        struct.pack_into("<qIIHH", fixed, 236, n_records, 1, 1, n_chans, 0)
    head = b"".join(label.encode().ljust(16) for label in labels) + b" " * 80 * n_chans
    if first:
        head += b"uV".ljust(8) * n_chans
    else:
        head += b"uV".ljust(6) * n_chans + struct.pack(f"<{n_chans}H", *[4275] * n_chans)
    head += struct.pack(f"<{2 * n_chans}d", *[LOW] * n_chans, *[HIGH] * n_chans)
    limits = (*[-32768] * n_chans, *[32767] * n_chans)
    head += struct.pack(f"<{2 * n_chans}{'q' if first else 'd'}", *limits)
    head += b" " * 80 * n_chans if first else bytes(80 * n_chans)
    head += struct.pack(f"<{n_chans}i", *[sfreq] * n_chans)
    head += struct.pack(f"<{n_chans}i", *[3] * n_chans)  # int16
    head += bytes(32 * n_chans)
    data = digital.astype("<i2").reshape(n_chans, n_records, sfreq).transpose(1, 0, 2).tobytes()
    places = np.array([at + 1 for at, _ in events], dtype="<u4")  # counted from 1
    kinds = np.array([kind for _, kind in events], dtype="<u2")
    rate = struct.pack("<I", sfreq)[:3]
    count = struct.pack("<I", len(events))
    table = (b"\x01" + rate + count) if first else (b"\x01" + count[:3] + struct.pack("<f", sfreq))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(fixed) + head + data + table + places.tobytes() + kinds.tobytes())


def microvolts(digital: np.ndarray) -> np.ndarray:
    """What the samples of a file of ours mean."""
    return (digital.astype(float) + 32768) / 65535 * (HIGH - LOW) + LOW


def edf(
    path: Path, digital: np.ndarray, names: list[str], *, sfreq: int, unit="uV", bdf=False, limit=1000.0
) -> None:
    """Write samples (n_chans, n_samples) as EDF or BDF, with records of a second."""
    n_chans, n_samples = digital.shape
    n_records = n_samples // sfreq
    largest = 2**23 - 1 if bdf else 2**15 - 1

    def fields(values, width):
        return b"".join(str(value).encode("latin-1").ljust(width)[:width] for value in values)

    head = (b"\xffBIOSEMI" if bdf else b"0".ljust(8)) + b" " * 160 + b"01.01.2412.00.00"
    head += fields([256 * (n_chans + 1)], 8) + b" " * 44
    head += fields([n_records, 1], 8) + fields([n_chans], 4)
    head += fields(names, 16) + fields([""] * n_chans, 80) + fields([unit] * n_chans, 8)
    head += fields([-limit] * n_chans, 8) + fields([limit] * n_chans, 8)
    head += fields([-largest - 1] * n_chans, 8) + fields([largest] * n_chans, 8)
    head += fields([""] * n_chans, 80) + fields([sfreq] * n_chans, 8) + b" " * 32 * n_chans
    blocks = digital.reshape(n_chans, n_records, sfreq).transpose(1, 0, 2)
    if bdf:
        raw = (
            np.ascontiguousarray(blocks, dtype="<i4")
            .view(np.uint8)
            .reshape(*blocks.shape, 4)[..., :3]
            .tobytes()
        )
    else:
        raw = np.ascontiguousarray(blocks, dtype="<i2").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + raw)


def edf_values(digital: np.ndarray, *, limit=1000.0, bdf=False) -> np.ndarray:
    """What the samples of an EDF file of ours mean, in its unit."""
    largest = 2**23 - 1 if bdf else 2**15 - 1
    return (digital.astype(float) + largest + 1) / (2 * largest + 1) * 2 * limit - limit


def bnci(path: Path, runs: list[dict[str, np.ndarray]], *, compressed=True) -> None:
    """Write runs with X (samples, 25), trial, y, artifacts as BNCI Horizon's struct array."""
    names = ("X", "trial", "y", "fs", "classes", "artifacts", "gender", "age")
    data = np.empty((1, len(runs)), dtype=object)
    for i, run in enumerate(runs):
        n = len(run["trial"])
        full = {
            "fs": 250,
            "classes": np.array(["left hand", "right hand", "feet", "tongue"], dtype=object),
            "artifacts": np.zeros((n, 1)),
            "gender": "female",
            "age": 22,
            **{key: np.asarray(value).reshape(-1, 1) if key != "X" else value for key, value in run.items()},
        }
        data[0, i] = {name: full[name] for name in names}
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"data": data}, do_compression=compressed)


def labels(path: Path, numbers: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"classlabel": np.array(numbers)[:, None]})


def table_xz(path: Path, signals: np.ndarray, names: list[str], sfreq: float) -> None:
    """Write signals (n_chans, n_samples) as NHIE's .csv.xz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    times = np.arange(signals.shape[1]) / sfreq
    with (
        lzma.open(path, "wt", preset=0, encoding="utf-8") if path.suffix == ".xz" else path.open("w") as file
    ):
        file.write(",".join(["time", *names]) + "\n")
        np.savetxt(file, np.column_stack([times, signals.T]), delimiter=",", fmt="%.6g")


def wfdb_record(
    folder: Path, name: str, digital: np.ndarray, names: list[str], gains, baselines, *, sfreq=2048, unit="mV"
) -> None:
    """Write int16 samples (n_chans, n_samples) with wfdb itself."""
    import wfdb

    folder.mkdir(parents=True, exist_ok=True)
    wfdb.wrsamp(
        name,
        fs=sfreq,
        units=[unit] * len(names),
        sig_name=names,
        d_signal=digital.T.astype(np.int64),
        fmt=["16"] * len(names),
        adc_gain=list(gains),
        baseline=list(baselines),
        write_dir=str(folder),
    )


def brainvision(path: Path, values: np.ndarray, names: list[str], *, sfreq=128) -> None:
    """The three text and binary files of BrainVision, as its exporter writes them."""
    stem = path.stem
    channels = "\n".join(f"Ch{i}={name},,0.1,µV" for i, name in enumerate(names, 1))
    path.write_text(
        "Brain Vision Data Exchange Header File Version 1.0\n[Common Infos]\n"
        f"Codepage=UTF-8\nDataFile={stem}.eeg\nMarkerFile={stem}.vmrk\nDataFormat=BINARY\n"
        "DataOrientation=MULTIPLEXED\n"
        f"NumberOfChannels={len(names)}\nSamplingInterval={1e6 / sfreq}\n"
        "[Binary Infos]\nBinaryFormat=INT_16\n"
        f"[Channel Infos]\n{channels}\n",
        encoding="utf-8",
    )
    path.with_suffix(".vmrk").write_text(
        "Brain Vision Data Exchange Marker File, Version 1.0\n[Common Infos]\nCodepage=UTF-8\n"
        f"DataFile={stem}.eeg\n[Marker Infos]\nMk1=New Segment,,1,1,0,20240101120000000000\n",
        encoding="utf-8",
    )
    path.with_suffix(".eeg").write_bytes(np.rint(values / 0.1).astype("<i2").T.tobytes())


def rows(path: Path, *lines: dict[str, object]) -> Path:
    """Write a manifest."""
    columns = list(dict.fromkeys(key for line in lines for key in line))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, restval="")
        table.writeheader()
        table.writerows(lines)
    return path


def damaged(whole: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Bytes with other values in some places."""
    broken = bytearray(whole)
    for at, value in changes:
        broken[at] = value
    return bytes(broken)


def emg_longterm(path: Path, days=(1, 2, 15, 16, 20, 21, 30), **change) -> dict[str, np.ndarray]:
    """Write an ``emg_longterm.npz`` with two motions of two people; return its arrays. None drops a key."""
    columns = {"y": [0, 21], "subject": [1, 3], "day": days, "repetition": [4]}
    return _trials_file(path, (8, 300), 200.0, columns, change)


def eeg_stress(path: Path, subjects=(1, 20), **change) -> dict[str, np.ndarray]:
    """Write an ``eeg_stress.npz`` with all tasks and trials of two people; return its arrays."""
    columns = {"y": range(4), "subject": subjects, "trial": [1, 2, 3]}
    return _trials_file(path, (32, 3200), 128.0, columns, change)


def eeg_motor_imagery(path: Path, subjects=(1, 20), **change) -> dict[str, np.ndarray]:
    """Write an ``eeg_motor_imagery.npz`` with two trials of each movement in each run of two people."""
    columns = {"y": range(4), "subject": subjects, "run": [4, 6, 8, 10, 12, 14], "again": range(2)}
    named = {"ch_names": np.array(CH_NAMES), "again": None}
    # Left or right fist in runs 4, 8 and 12, both fists or feet in the others.
    return _trials_file(
        path,
        (22, 480),
        160.0,
        columns,
        named | change,
        lambda grid: (grid[0] // 2 == 1) == (grid[2] % 4 == 2),
    )


def ecg_beats(path: Path, samples=(300, 289_822, 290_008, 433_332, 433_588, 649_799), **change):
    """Write an ``ecg_beats.npz`` with beats of two kinds at these places of two records."""
    # At each place one beat: the kinds take turns.
    columns = {"y": [0, 5], "subject": [101, 223], "sample": samples}
    turns = dict(zip(samples, np.arange(len(samples)) % 2 * 5, strict=True))
    return _trials_file(
        path, (2, 256), 360.0, columns, change, lambda grid: grid[0] == [turns[at] for at in grid[2].tolist()]
    )


def _trials_file(path, shape, sfreq, columns, change, keep=None) -> dict[str, np.ndarray]:
    """Write a trial of everything that the columns can be, or of what is kept of it, in any order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    grid = np.stack([each.ravel() for each in np.meshgrid(*columns.values())])
    grid = grid if keep is None else grid[:, keep(grid)]
    grid = grid[:, rng.permutation(grid.shape[1])].astype(np.int32)
    signals = rng.integers(-1500, 1500, size=(grid.shape[1], *shape), dtype=np.int16)
    found = {"X": signals, "scale": np.array(0.1), "sfreq": np.array(sfreq)}
    found |= dict(zip(columns, grid, strict=True)) | change
    np.savez(path, **{name: value for name, value in found.items() if value is not None})
    return found
