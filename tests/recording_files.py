"""Recordings in true formats, written for the tests: EDF and GDF byte by byte, FIF by mne, WFDB by wfdb."""

import struct
import warnings

import numpy as np


def digital(signals, rate):
    """Return microvolts as 16-bit records of one second, and the limit that the extremes stand for."""
    values = 1e6 * np.asarray(signals)
    n_records = values.shape[1] // rate
    limit = float(np.ceil(np.abs(values).max() * 1.01))
    whole = np.round((values + limit) * 65535 / (2 * limit) - 32768).astype("<i2")[:, : n_records * rate]
    return whole.reshape(len(values), n_records, rate).transpose(1, 0, 2), limit


def text(value, width):
    return str(value)[:width].ljust(width).encode("ascii")


def write_edf(path, signals, ch_names, rate):
    """Write signals (n_chans, n) in volts as EDF; the rest of a second is cut off."""
    records, limit = digital(signals, int(rate))
    n_records, n, _ = records.shape
    head = [("0", 8), ("X", 80), ("X", 80), ("01.01.20", 8), ("00.00.00", 8), (256 * (1 + n), 8)]
    head += [("", 44), (n_records, 8), (1, 8), (n, 4)]
    head += [(name, 16) for name in ch_names] + [("", 80)] * n + [("uV", 8)] * n
    head += [(-limit, 8)] * n + [(limit, 8)] * n + [(-32768, 8)] * n + [(32767, 8)] * n
    head += [("", 80)] * n + [(int(rate), 8)] * n + [("", 32)] * n
    path.write_bytes(b"".join(text(*field) for field in head) + records.tobytes())
    return path


def write_gdf(path, signals, ch_names, rate):
    """Write signals (n_chans, n) in volts as GDF 1.25, without events."""
    records, limit = digital(signals, int(rate))
    n_records, n, _ = records.shape
    head = text("GDF 1.25", 8) + text("X X", 80) + text("X", 80) + text("2020010100000000", 16)
    head += struct.pack("<q44xqIII", 256 * (1 + n), n_records, 1, 1, n)
    head += b"".join(text(name, 16) for name in ch_names) + text("", 80 * n) + text("uV", 8) * n
    head += struct.pack(f"<{2 * n}d", *[-limit] * n, *[limit] * n)
    head += struct.pack(f"<{2 * n}q", *[-32768] * n, *[32767] * n) + text("", 80 * n)
    head += struct.pack(f"<{2 * n}i", *[int(rate)] * n, *[3] * n) + bytes(32 * n)  # 3 is int16
    no_events = bytes([1]) + int(rate).to_bytes(3, "little") + bytes(4)
    path.write_bytes(head + records.tobytes() + no_events)
    return path


def write_fif(path, signals, ch_names, rate):
    """Write signals (n_chans, n) in volts as FIF."""
    import mne

    raw = mne.io.RawArray(signals, mne.create_info(list(ch_names), rate, "eeg"), verbose="error")
    raw.save(path, verbose="error", overwrite=True)
    return path


def write_wfdb(path, signals, ch_names, rate):
    """Write signals (n_chans, n) in volts as a WFDB record in millivolts; return its header's path."""
    import wfdb

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # wfdb's own, about pandas
        wfdb.wrsamp(
            path.name,
            fs=rate,
            units=["mV"] * len(signals),
            sig_name=list(ch_names),
            p_signal=1e3 * np.asarray(signals).T,
            fmt=["16"] * len(signals),
            write_dir=str(path.parent),
        )
    return path.with_suffix(".hea")
