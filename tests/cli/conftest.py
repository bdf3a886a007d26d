"""Model files and inputs that the tests of commands share."""

import shutil

import numpy as np
import pytest

from tests.models import CHANNELS, RATE, fitted, windows
from tests.recording_files import write_edf


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """A terminal in which no table is cut."""
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(scope="session")
def made_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    X, y = windows()
    new, _ = windows(10, classes=("tongue",), seed=1)
    about = {"sfreq": RATE, "ch_names": CHANNELS}
    np.savez(folder / "base.npz", X=X, y=y, **about)
    np.savez(folder / "shots.npz", X=new, y=["tongue"] * 10, **about)
    np.savez(folder / "mixed.npz", X=X[:, ::-1], y=y, sfreq=RATE, ch_names=CHANNELS[::-1])
    np.save(folder / "shots.npy", new)
    write_edf(folder / "day.edf", np.concatenate(list(windows(12, seed=4)[0]), axis=1), CHANNELS, RATE)
    fitted(taught=False).save(folder / "m.anchorinv")
    return folder


@pytest.fixture
def files(made_files, tmp_path):
    """A folder with a model, ``m.anchorinv``, and with windows and a recording for it."""
    return shutil.copytree(made_files, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def place(files):
    """The same folder with windows in another unit, and windows of another spectrum."""
    np.save(files / "loud.npy", 1e3 * windows(12, seed=5)[0])
    tones = np.sin(np.arange(64) * np.arange(1, 13)[:, None, None] / 40 + np.arange(4)[:, None])
    np.save(files / "tones.npy", 2 * tones)
    np.save(files / "new_loud.npy", 1e3 * windows(10, classes=("tongue",), seed=1)[0])
    return files
