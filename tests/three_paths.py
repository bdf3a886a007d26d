"""The windows of a recording by its three ways to a model: a prepared folder, a file, a live source."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorinv.datasets.dataset import Dataset
from anchorinv.datasets.own import plan_manifest
from anchorinv.datasets.own_files import ALLOWED
from anchorinv.datasets.prepare import prepare
from anchorinv.serving.files import ReadOptions, from_recording
from anchorinv.serving.streaming import StreamingPredictor
from anchorinv.signal.preprocessing import Preprocessing
from tests.datasets import making

EASY = {"at_least": 1, "allow": frozenset(ALLOWED)}


@dataclass(frozen=True)
class Trained:
    """As much of a model as the ways to it need: what a folder says of its recordings."""

    preprocessing_: Preprocessing

    @property
    def n_times_(self):
        return self.preprocessing_.n_times

    @property
    def n_chans_(self):
        return len(self.preprocessing_.ch_names)

    def _check_fitted(self):
        pass


def prepared(path, options, **row):
    """Return the data set that ``anchorinv prepare own`` makes of one recording."""
    row = {"path": path.name, "label": "a", "split": "train", **row}
    table = making.rows(path.parent / "table.csv", row)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        prepare(plan_manifest(table, options), Path(folder) / "set")
        data = Dataset.open(Path(folder) / "set")
        held = np.array(data.samples)  # the folder goes, its signals stay
    return Dataset(**{name: getattr(data, name) for name in data.__dataclass_fields__} | {"samples": held})


def predicted(model, path, *, step, sfreq=None):
    """Return the windows that ``anchorinv predict`` classifies, ``step`` samples apart."""
    how = model.preprocessing_
    return list(from_recording(model, path, ReadOptions(step=step / how.sfreq, sfreq=sfreq)))


def streamed(model, chunks, *, step, **source):
    """Return the windows of a live source, those that come before its end and those after."""
    live = StreamingPredictor(model, step=step, **source)
    during = [window for chunk in chunks for window in _fed(live, chunk)]
    return during, list(live._windows.finish())


def _fed(live, chunk):
    """What ``feed`` takes for the windows to be classified."""
    windows = []

    class Seen:
        def push(self, samples):
            windows.extend(live_windows.push(samples))
            return ()

    live_windows, live._windows = live._windows, Seen()
    live.feed(chunk)
    live._windows = live_windows
    return windows


def assert_agree(data, *ways, atol=1e-5):
    """Windows of a folder are those of the other ways that have no gaps, from the first one on."""
    spread = data.samples.std(axis=0, dtype=np.float64)[:, None]
    wanted = data.signals(np.arange(len(data)))
    for windows in ways:
        assert all(np.isfinite(window.values).all() for window in windows)
        whole = [window for window in windows if window.complete]
        assert [window.start for window in whole] == data.starts.tolist()
        for window, expected in zip(whole, wanted, strict=True):
            away = np.abs(window.values - expected)
            assert (away <= atol * spread).all(), (window.start, (away / spread).max())
