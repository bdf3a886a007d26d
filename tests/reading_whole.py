"""Read a recording in one go, voltages in µV, as tests compare them."""

from types import SimpleNamespace

from anchorinv.signal.preprocessing import Preprocessing
from anchorinv.signal.readers import open_recording, select_inputs


def read_recording(path, *, channels=None):
    recording = open_recording(path)
    names = recording.ch_names if channels is None else tuple(channels)
    taken = select_inputs(recording, Preprocessing(names, "µV"))
    signals = recording.load(taken.channels) * taken.factors
    return SimpleNamespace(
        signals=signals,
        sfreq=recording.sfreq,
        ch_names=tuple(recording.ch_names[i] for i in taken.channels),
        units=tuple("µV" if recording.units[i] == "V" else recording.units[i] for i in taken.channels),
    )
