"""``anchorinv suggest``: what it says, what it writes, and what it refuses."""

import json
import shutil

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier, Preprocessing
from tests.models import CHANNELS, RATE


def samples(n, classes, seed):
    """Windows (n, 4, 64), a rhythm on one channel to each class, and their labels."""
    rng = np.random.default_rng(seed)
    y = np.array(classes)[np.arange(n) % len(classes)]
    X = 10 * rng.normal(size=(n, 4, 64))
    for window, label in zip(X, y, strict=True):
        channel, hertz = {"left": (0, 6), "right": (1, 10), "tongue": (2, 20)}[label]
        window[channel] += 30 * np.sin(2 * np.pi * (hertz * np.arange(64) / RATE + rng.uniform()))
    return X, y


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suggest")
    about = Preprocessing(CHANNELS, sfreq=RATE)
    model = AnchorInvClassifier(random_state=0, preprocessing=about, network="never")
    model.fit(*samples(32, ["left", "right"], 0)).save(folder / "m")
    known, new = samples(40, ["left", "right"], 1)[0], samples(20, ["tongue"], 2)[0]
    np.save(folder / "known.npy", known)
    np.save(folder / "new.npy", new)
    recording = np.concatenate([*known[:20], *new], axis=1)
    recording[1, 64 * 20 + 5] = np.nan  # in the first window that is new
    np.save(folder / "day.npy", recording)
    return folder


@pytest.fixture
def here(made, tmp_path):
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def test_a_class_is_suggested_written_and_taught(run, here):
    code, out, _ = run("suggest", "m", "known.npy", "new.npy", "-o", "shots.npz", "-q")
    lines = out.splitlines()
    assert code == 0 and "windows that fit no known class resemble each other" in lines[0]
    assert "  new.npy: windows 0-19" in lines and lines[-1].startswith("Windows: shots.npz has these")
    with np.load("shots.npz") as shots:
        assert sorted(shots) == ["X", "ch_names", "sfreq"] and shots["X"].shape == (10, 4, 64)
        new = np.load("new.npy")
        assert all((np.abs(new - window).max((1, 2)) < 1e-3).any() for window in shots["X"])
    code, out, err = run("learn", "m", "shots.npz", "--label", "tongue", "-o", "taught", "-q")
    assert code == 0 and "knows left, right, tongue" in out, err
    code, out, _ = run("suggest", "taught", "known.npy", "new.npy", "-o", "again.npz", "-q")
    assert code == 1 and "There is no class to suggest" in out and not (here / "again.npz").exists()


RECORDING = ("day.npy", "--sfreq", RATE, "--channels", "ch1=C3,ch2=C4,ch3=Cz,ch4=Pz", "-q")


def test_windows_of_a_recording_are_told_by_time_and_gaps_left_out(run, here):
    code, out, err = run("suggest", "m", *RECORDING, "--json", "-o", "shots.npz")
    assert err.splitlines()[-1] == "Wrote shots.npz (10 windows)"
    facts = json.loads(out)["suggestion"]
    assert code == 0 and json.loads(out)["windows"] == 39, err
    places = {row["window"]: row["time"] for row in facts["group"]}
    assert 20 not in places and places[21] == 10.5 and {row["file"] for row in facts["group"]} == {"day.npy"}
    assert sum(row["shot"] for row in facts["group"]) == 10 and facts["separation"] > 0.8
    _, out, _ = run("suggest", "m", *RECORDING)
    assert "  day.npy: at " in out and "10.5, " in out


def test_nothing_new(run, here):
    code, out, err = run("suggest", "m", "known.npy", "-q")
    assert (code, err) == (1, "") and out.startswith(
        "There is no class to suggest: fewer than 10 of 40 windows"
    )
    code, out, _ = run("suggest", "m", "known.npy", "--json", "-q")
    assert code == 1 and json.loads(out) == {"windows": 40, "suggestion": None}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-o", "shots.npy"), "windows are written as .npz, got shots.npy; name a file such as shots.npz"),
        (("--reject", 2), "reject (=2.0) must be a share between 0 and 1, as 0.05"),
        (("--least", 1), "least (=1) must be a whole number of windows, 2 or more"),
    ],
)
def test_what_means_nothing_is_refused(run, here, words, sentence):
    code, out, err = run("suggest", "m", "known.npy", *words, "-q")
    assert (code, out) == (1, "") and sentence in err
