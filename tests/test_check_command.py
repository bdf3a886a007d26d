"""``anchorinv check``, and wrong units in the other commands: what is said, written, refused, and forced."""

import json

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier
from tests.models import CHANNELS, RATE, fitted, windows
from tests.recording_files import write_edf
from tests.test_commands import files  # noqa: F401


@pytest.fixture
def place(files):  # noqa: F811
    np.save(files / "loud.npy", 1e3 * windows(12, seed=5)[0])
    tones = np.sin(np.arange(64) * np.arange(1, 13)[:, None, None] / 40 + np.arange(4)[:, None])
    np.save(files / "tones.npy", 2 * tones)
    np.save(files / "new_loud.npy", 1e3 * windows(10, classes=("tongue",), seed=1)[0])
    return files


def test_recordings_like_the_base_data(run, place):
    code, out, err = run("check", "m.anchorinv", "base.npz", "-q")
    assert code == 0 and err == "" and "base.npz: 24 windows" in out
    head = out.splitlines()[1].split()
    assert head == ["channel", "scale", "shift", "spectrum", "covariance"] and len(out.splitlines()) == 7
    assert out.splitlines()[-1].startswith("like: the recordings are like the base data in every channel")


def test_another_unit(run, place):
    code, out, _ = run("check", "m.anchorinv", "loud.npy", "-q")
    assert code == 1 and "far: every channel: far from the base data, about 1000 times" in out
    assert "multiply it by 0.001 (--scale 0.001)" in out
    assert run("check", "m.anchorinv", "loud.npy", "-q", "--scale", 0.001)[0] == 0


def test_another_spectrum(run, place):
    code, out, _ = run("check", "m.anchorinv", "tones.npy", "-q")
    assert code == 1 and "the spectrum of every channel is far from the base data's" in out and "Hz" in out


def test_a_recording(run, place):
    write_edf(place / "v.edf", np.concatenate(list(windows(20, seed=4)[0]), axis=1) / 50, CHANNELS, RATE)
    fitted(taught=False).save("plain")
    code, out, _ = run("check", "plain", "v.edf", "-q", "--scale", 50, "--step", 0.25)
    assert code == 0 and "39 windows" in out


def test_several_as_json(run, place):
    code, out, _ = run("check", "m.anchorinv", "base.npz", "loud.npy", "--json", "-q")
    facts = json.loads(out)
    assert code == 1 and facts["far"] and [each["far"] for each in facts["inputs"]] == [False, True]
    assert facts["inputs"][1]["factor"] == pytest.approx(1000, rel=0.3)
    assert len(facts["inputs"][0]["channels"]) == 4
    assert set(facts["inputs"][0]["channels"][0]) == {"name", "scale", "shift", "spectrum", "covariance"}


def test_many_channels_are_shown_in_part(run, place):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 40, 32))
    AnchorInvClassifier(method="lda", random_state=0).fit(X, np.arange(24) % 2).save("many")
    X[:, 33] *= 5
    np.save("x.npy", X)
    code, out, _ = run("check", "many", "x.npy", "-q")
    assert code == 0 and "and 28 channels that differ less" in out and "channel 33 " in out


def test_an_input_that_cannot_be_read(run, place):
    code, out, err = run("check", "m.anchorinv", "none.npz", "-q")
    assert code == 1 and out == "" and "there is no" in err


def test_windows_a_thousand_times_too_large_are_predicted_with_the_remedy(run, place):
    code, _, err = run("predict", "m.anchorinv", "loud.npy", "-q")
    assert code == 0 and err.count("warning") == 1 and "multiply it by 0.001 (--scale 0.001)" in err
    code, out, err = run("predict", "m.anchorinv", "loud.npy", "-q", "--scale", 0.001)
    np.save("right.npy", windows(12, seed=5)[0])
    assert code == 0 and err == "" and out == run("predict", "m.anchorinv", "right.npy", "-q")[1]


def test_a_lesson_in_another_unit_is_refused_and_nothing_written(run, place):
    words = ("learn", "m.anchorinv", "new_loud.npy", "--label", "tongue", "-o", "t", "-q")
    code, out, err = run(*words)
    assert code == 1 and out == "" and err.count("\n") == 1 and not (place / "t").exists()
    assert "about 1000 times its spread" in err and "--scale 0.001" in err and "--force" in err
    code, _, err = run(*words, "--scale", 1e3)
    assert code == 1 and "about 1e+06 times" in err and "multiply it by 1e-06 (--scale 0.001)" in err
    assert run(*words, "--scale", 0.001)[0] == 0


@pytest.mark.filterwarnings("ignore")
def test_a_lesson_in_another_unit_can_be_forced(run, place):
    words = ("learn", "m.anchorinv", "new_loud.npy", "--label", "tongue", "-o", "t", "-q", "--force")
    code, out, _ = run(*words)
    assert code == 0 and "knows left, right, tongue" in out


def test_a_calibration_in_another_unit_is_refused(run, place):
    fitted("discriminant", taught=False).save("d")
    code, _, err = run("calibrate", "d", "loud.npy", "-o", "c", "-q")
    assert code == 1 and "--scale 0.001" in err and not (place / "c").exists()
