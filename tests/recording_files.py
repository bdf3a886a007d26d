"""Recordings in true formats, written for the tests: EDF byte by byte, FIF by mne, WFDB by wfdb."""

import warnings

import numpy as np


def write_edf(path, signals, ch_names, rate, *, unit="uV", per_volt=1e6):
    """Write signals (n_chans, n) in volts as EDF, one second to a record; the rest of a second is cut off."""
    rate = int(rate)
    values = np.asarray(signals) * per_volt
    n_chans, n_records = len(values), values.shape[1] // rate
    limit = float(np.ceil(np.abs(values).max() * 1.01))

    def field(value, width):
        return str(value)[:width].ljust(width).encode("ascii")

    head = field("0", 8) + field("X", 80) + field("X", 80) + field("01.01.20", 8) + field("00.00.00", 8)
    head += field(256 * (1 + n_chans), 8) + field("", 44) + field(n_records, 8) + field(1, 8)
    head += field(n_chans, 4)
    columns = [(name, 16) for name in ch_names]
    columns += [("", 80)] * n_chans + [(unit, 8)] * n_chans
    columns += [(-limit, 8)] * n_chans + [(limit, 8)] * n_chans
    columns += [(-32768, 8)] * n_chans + [(32767, 8)] * n_chans
    columns += [("", 80)] * n_chans + [(rate, 8)] * n_chans + [("", 32)] * n_chans
    head += b"".join(field(*column) for column in columns)
    digital = np.round((values + limit) * 65535 / (2 * limit) - 32768).astype("<i2")
    records = digital[:, : n_records * rate].reshape(n_chans, n_records, rate).transpose(1, 0, 2)
    path.write_bytes(head + records.tobytes())
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
