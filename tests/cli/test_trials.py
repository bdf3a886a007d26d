"""Labels from recordings, on the command line: train, evaluate, learn, add, and what is refused."""

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier
from tests.datasets import making

# A class with a rhythm of its own is unlike the base data, and the last trial reaches beyond its recording.
pytestmark = pytest.mark.filterwarnings("ignore:the spectrum of", "ignore:.*reach beyond their recording")
pytest.importorskip("mne")
NAMES = ["C3", "Cz", "C4"]
RATE = 128


def recording(path, seed, kinds):
    """Write an EDF file and a table of events beside it; each kind of event has a rhythm of its own."""
    rng = np.random.default_rng(seed)
    n = 4 * 24 + 4
    values = rng.normal(size=(3, n * RATE))
    time = np.arange(2 * RATE) / RATE
    rows = ["onset\tduration\ttrial_type"]
    for i in range(24):
        kind = kinds[i % len(kinds)]
        at = (2 + 4 * i) * RATE
        rhythm = {"T1": 6, "T2": 12, "T3": 24}[kind]
        values[:, at : at + 2 * RATE] += 3 * np.sin(2 * np.pi * rhythm * time)
        rows.append(f"{2 + 4 * i}\t2\t{kind}")
    making.edf(path, np.round(300 * values).astype(int), NAMES, sfreq=RATE)
    path.with_name(f"{path.stem}_events.tsv").write_text("\n".join(rows) + "\n")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recording(tmp_path / "day1.edf", 0, ("T1", "T2"))
    recording(tmp_path / "day2.edf", 1, ("T1", "T2", "T3"))
    return tmp_path


EVENTS = ("--events", "T1=slow,T2=fast", "--to", 2)


def test_from_training_to_more_examples(run, here):
    code, out, err = run("train", "day1.edf", *EVENTS, "--band", 2, 40, "-o", "m", "--seed", 1, "-q")
    assert code == 0 and "Trained on 24 windows of 2 classes: fast, slow" in out, err
    model = AnchorInvClassifier.load("m")
    assert model.preprocessing_.ch_names == tuple(NAMES) and model.preprocessing_.unit == "µV"
    assert model.preprocessing_.not_live is None and model.n_times_ == 2 * RATE
    code, out, _ = run("evaluate", "m", "day2.edf", *EVENTS, "-q")
    assert code == 0 and out.startswith("16 windows: accuracy 100.0%")
    code, out, err = run("learn", "m", "day2.edf", "--events", "T3=fastest", "--to", 2, "-o", "m2", "-q")
    assert code == 0 and "knows fast, fastest, slow" in out, err
    code, out, err = run("add", "m2", "day2.edf", "--events", "T1=slow", "--to", 2, "-o", "m3", "-q")
    assert code == 0 and "Class 'slow': 8 more examples, 20 in all" in out, err
    every = ("--events", "T1=slow,T2=fast,T3=fastest", "--to", 2)
    code, out, _ = run("evaluate", "m3", "day2.edf", *every, "-q")
    assert code == 0 and out.startswith("24 windows: accuracy 100.0%")


def test_channels_with_other_names(run, here):
    assert run("train", "day1.edf", *EVENTS, "-o", "m", "--seed", 1, "-q")[0] == 0
    rng = np.random.default_rng(0)
    making.edf(here / "x.edf", rng.integers(-300, 300, size=(3, 4 * RATE)), ["A", "C4", "Cz"], sfreq=RATE)
    code, _, err = run("predict", "m", "x.edf", "-q")
    assert code == 1 and "lacks 1 of 3 channels: C3; it has A, C4, Cz" in err and "--channels OLD=NEW" in err
    code, out, _ = run("predict", "m", "x.edf", "--channels", "A=C3", "-q")
    assert code == 0 and out.count("\n") == 3
    code, _, err = run("predict", "m", "x.edf", "--channels", "C3", "-q")
    assert code == 1 and "--channels takes OLD=NEW here" in err
    code, _, err = run("predict", "m", "x.edf", "--channels", "B=C3", "-q")
    assert code == 1 and "x.edf: there is no channel 'B' to be called 'C3'" in err


def test_a_recording_that_does_not_say_its_rate(run, here):
    assert run("train", "day1.edf", *EVENTS, "-o", "m", "--seed", 1, "-q")[0] == 0
    np.save("r.npy", np.random.default_rng(0).normal(size=(3, 8 * RATE)))
    names = ("--channels", "ch1=C3,ch2=Cz,ch3=C4", "-q")
    for rate, n_windows in ((RATE, 4), (2 * RATE, 2)):
        code, out, err = run("predict", "m", "r.npy", *names, "--sfreq", rate)
        assert code == 0 and out.count("\n") == 1 + n_windows, err
    code, _, err = run("predict", "m", "r.npy", *names)
    assert code == 1 and "has no sampling rate; pass it with --sfreq (the model's is 128 Hz)" in err
    code, _, err = run("predict", "m", "r.npy", *names, "--sfreq", -1)
    assert code == 1 and "--sfreq must be a rate in Hz above 0, got -1" in err


def test_each_file_of_a_lesson_is_held_to_its_unit(run, here):
    assert run("train", "day1.edf", *EVENTS, "-o", "m", "--seed", 1, "-q")[0] == 0
    X = AnchorInvClassifier.load("m").statistics_.std[None] * np.random.default_rng(0).normal(
        size=(30, 3, 2 * RATE)
    )
    np.save("right.npy", X)
    np.save("loud.npy", 1e3 * X[:2])
    code, _, err = run("learn", "m", "right.npy", "loud.npy", "--label", "x", "-o", "m2", "-q")
    assert code == 1 and "loud.npy: every channel" in err and "--scale 0.001" in err
    assert not (here / "m2").exists()


def test_an_event_must_occur_in_one_file_not_in_each(run, here):
    recording(here / "slow.edf", 5, ("T1",))
    recording(here / "fast.edf", 6, ("T2",))
    assert run("train", "slow.edf", "fast.edf", *EVENTS, "-o", "m", "--seed", 1, "-q")[0] == 0
    code, out, err = run("add", "m", "slow.edf", "fast.edf", *EVENTS, "-o", "m2", "-q")
    assert code == 0 and "24 more examples, 48 in all" in out, err


def test_problems_of_several_recordings_are_not_those_of_the_first(run, here):
    two = ("--recording", "day1.edf", "--recording", "day2.edf", "--events", "T1=slow,T3=fastest")
    code, _, err = run("prepare", "own", *two, "--to", 2, "--at-least", 99, "--out", "p")
    assert code == 1 and "day1.edf, day2.edf: 3 problems" in err, err
    code, _, err = run("prepare", "own", *two, "--to", 2, "--at-least", 99, "--allow", "few", "--out", "p")
    assert code == 0, err


def test_the_trials_of_one_recording_are_divided_if_that_is_allowed(run, here):
    words = ("prepare", "own", "--recording", "day1.edf", *EVENTS, "--at-least", 1, "--out", "p")
    code, _, err = run(*words)
    assert code == 1 and "day1.edf is the only recording" in err and "--allow shared-recordings" in err
    code, out, err = run(*words, "--allow", "shared-recordings")
    assert code == 0 and "split: 80-20 by trial, first fold" in out, err


def test_events_of_two_classes_at_once(run, here):
    assert run("train", "day1.edf", *EVENTS, "-o", "m", "--seed", 1, "-q")[0] == 0
    with (here / "day2_events.tsv").open("a") as table:
        table.write("2\t2\tT2\n")
    code, _, err = run("evaluate", "m", "day2.edf", *EVENTS, "-q")
    assert code == 1 and "day2.edf is 'slow' and 'fast' at 2 s; events of two classes may not coincide" in err


def test_a_table_without_names_is_none(run, here):
    (here / "plain.csv").write_text("1,2,3\n4,5,6\n")
    assert run("train", "day1.edf", *EVENTS, "-o", "m", "--seed", 1, "-q")[0] == 0
    code, _, err = run("predict", "m", "plain.csv", "-q")
    assert code == 1 and "a first line that names its channels is needed" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "day1.edf", "-o", "m"), "has no labels of its windows; name its events with --events"),
        (("train", "day1.edf", "--to", 2, "-o", "m"), "--from and --to need --events"),
        (
            ("train", "day1.edf", *EVENTS[:2], "--to", 9, "-o", "m"),
            "22 trials of day1.edf overlap the one before (first at 6 s); bring --from",
        ),
        (("train", "day1.edf", "--events", "T1=", "-o", "m"), "--events takes EVENT=CLASS"),
        (("train", "day1.edf", "day2.edf", "-o", "m"), "several inputs must be recordings with --events"),
        (("train", "trials.npz", "--window", 1, "-o", "m"), "--window is for recordings that --events cuts"),
        (("train", "trials.npz", *EVENTS, "-o", "m"), "contains windows, and --events is for recordings"),
        (("train", "day1.edf", *EVENTS, "--unit", "mV", "-o", "m"), "--unit is for windows"),
        (("train", "day1.edf", *EVENTS, "--sfreq", 99, "-o", "m"), "says 128 Hz, --sfreq 99 Hz"),
        (("train", "day1.edf", *EVENTS, "--overlap", 0.5, "-o", "m"), "--overlap needs --window"),
        (("train", "day1.edf", *EVENTS, "--zero-phase", "-o", "m"), "give its edges with --band"),
        (("predict", "ours", "trials.npz", "--channels", "a=b"), "--channels maps names"),
        (("predict", "ours", "trials.npz", "--scale", "nan"), "scale (=nan) must be a number other than 0"),
        (("predict", "ours", "trials.npz", "--step", "inf"), "step (=inf) must be a number above 0"),
        (("evaluate", "ours", "day1.edf"), "name its events with --events"),
        (("learn", "ours", "day1.edf", "--label", "x", *EVENTS, "-o", "m"), "leave one of them out"),
    ],
)
def test_mistakes_are_a_sentence(words, message, run, here):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3, 2 * RATE)), ["slow", "fast"] * 10
    np.savez("trials.npz", X=X, y=y, sfreq=RATE)
    AnchorInvClassifier(method="lda", sfreq=RATE).fit(X, y).save("ours")
    code, out, err = run(*words, "-q")
    assert code == 1 and out == "" and message in err and "Traceback" not in err
    assert not (here / "m").exists()
