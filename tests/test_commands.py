"""The commands on model files, through their entry point: what they do, say, and refuse."""

import csv
import io
import json
import re
import resource

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier, Preprocessing
from anchorinv.data.dataset import Dataset
from tests.models import CHANNELS, RATE, again, command, fitted, windows
from tests.recording_files import write_edf, write_fif

SHORT = ("--epochs", 2, "--inversion-steps", 1, "--finetune-steps", 2, "--seed", 0, "--anchors", 4)


@pytest.fixture
def files(tmp_path):
    X, y = windows()
    new, _ = windows(10, classes=("tongue",), seed=1)
    about = {"sfreq": RATE, "ch_names": CHANNELS}
    np.savez(tmp_path / "base.npz", X=X, y=y, **about)
    np.savez(tmp_path / "shots.npz", X=new, y=["tongue"] * 10, **about)
    np.savez(tmp_path / "mixed.npz", X=X[:, ::-1], y=y, sfreq=RATE, ch_names=CHANNELS[::-1])
    np.save(tmp_path / "shots.npy", new)
    write_edf(tmp_path / "day.edf", np.concatenate(list(windows(12, seed=4)[0]), axis=1), CHANNELS, RATE)
    fitted(taught=False).save(tmp_path / "m.anchorinv")
    return tmp_path


def with_nan():
    X = windows()[0].copy()
    X[7, 1, 3] = np.nan
    return X


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


class TestTrain:
    def test_from_npz(self, run, files):
        code, out, _ = run("train", "base.npz", "-o", "new/m", *SHORT, "--unit", "uV", "--band", 4, 40)
        assert code == 0 and "24 windows of 2 classes: left, right" in out
        model = AnchorInvClassifier.load(files / "new" / "m")
        assert model.sfreq_ == RATE and model.ch_names_ == CHANNELS and model.preprocessing.unit == "µV"
        assert (model.preprocessing.filter.low, model.preprocessing.filter.causal) == (4, True)
        assert model.method == "discriminant" and model.random_state == 0

    def test_with_anchors(self, run, files):
        code, _, _ = run("train", "base.npz", "-o", "m", *SHORT, "--method", "anchorinv-plus")
        assert code == 0
        assert len(AnchorInvClassifier.load(files / "m").state_.anchors) == 6  # as large as 8 without views

    def test_for_people_who_are_not_there(self, run, files):
        code, _, err = run("train", "base.npz", "-o", "m", *SHORT, "--new-people")
        assert code == 1 and "does not say whose its windows are" in err
        X, y = windows(120)
        np.savez(files / "people.npz", X=X, y=y, sfreq=RATE, groups=np.arange(120) // 12)
        assert run("train", "people.npz", "-o", "m", *SHORT, "--new-people")[0] == 0
        assert np.isfinite(AnchorInvClassifier.load(files / "m").state_.head.centring)
        code, _, _ = run("calibrate", "m", "people.npz", "--force", "-o", "theirs")
        assert code == 0 and (files / "theirs").exists()

    def test_from_a_prepared_folder_its_training_part(self, run, files):
        X, y = windows(30, classes=("a", "b", "c"))
        split = ["train"] * 18 + ["test"] * 12
        told = {"low": 0.5, "high": 30.0, "order": 5, "causal": False}
        made = Dataset.from_arrays(X, y, sfreq=RATE, split=split, ch_names=CHANNELS, filter=told, unit="uV")
        made.write(files / "data")
        code, out, _ = run("train", "data", "-o", "m", *SHORT, "--classes", "a,c")
        assert code == 0 and "12 windows of 2 classes: a, c" in out
        assert not AnchorInvClassifier.load(files / "m").preprocessing.filter.causal
        code, out, _ = run("evaluate", "m", "data", "--json")
        found = json.loads(out)
        assert code == 0 and found["windows"] == 8 and found["unknown"] == {"b": 4}
        assert "not known to the model, left out: b (4)" in run("evaluate", "m", "data")[1]

    def test_recordings_must_be_allowed(self, run, files):
        words = ("train", "base.npz", "-o", "m", *SHORT, "--method", "real-replay")
        code, _, err = run(*words)
        assert code == 1 and "--allow-recordings" in err and not (files / "m").exists()
        assert run(*words, "--allow-recordings")[0] == 0
        for refused in (
            ("predict", "m", "base.npz"),
            ("evaluate", "m", "base.npz"),
            ("forget", "m", "left", "-o", "n"),
        ):
            code, _, err = run(*refused)
            assert code == 1 and "holds real recordings of people" in err
        assert run("predict", "m", "base.npz", "--allow-recordings")[0] == 0
        code, out, _ = run("info", "m")
        assert code == 0 and "IT HOLDS REAL RECORDINGS" in out

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("shots.npy", "-o", "m"), "no labels"),
            (("none.npz", "-o", "m"), "there is no none.npz"),
            (("base.npz", "-o", "."), "is a folder"),
            (("base.npz", "-o", "base.npz/m"), "cannot be written"),
            (("base.npz", "-o", "m", "--method", "magic"), "method .* must be one of"),
            (("base.npz", "-o", "m", "--classes", "left,feet"), "no class 'feet'; it has left, right"),
            (("base.npz", "-o", "m", "--unit", "parsec"), "must be one of V"),
            (("base.npz", "-o", "m", "--band", "40", "4"), "lower one first"),
        ],
    )
    def test_mistakes(self, words, told, run, files):
        code, _, err = run("train", *words)
        assert code == 1 and err.startswith("anchorinv: ") and err.count("\n") == 1
        assert re.search(told, err) and not (files / "m").exists()


class TestLearn:
    @pytest.mark.parametrize("source", [("shots.npz",), ("shots.npy", "--label", "tongue")])
    def test_from_windows(self, source, run, files):
        code, out, _ = run("learn", "m.anchorinv", *source, "-o", "m2")
        assert code == 0
        effect, apart, written = out.splitlines()
        assert effect.startswith("Old classes: ") and "12 samples kept" in effect
        assert apart.startswith("Class 'tongue': ") and "of 10 examples" in apart
        assert written == "Model: m2 knows left, right, tongue"
        here = again(fitted(taught=False)).partial_fit(np.load("shots.npy"), ["tongue"] * 10)
        X, _ = windows(20, seed=9)
        assert np.array_equal(AnchorInvClassifier.load("m2").predict_proba(X), here.predict_proba(X))

    def test_from_a_recording_over_the_model_itself(self, run, files):
        code, out, _ = run("learn", "m.anchorinv", "day.edf", "--label", "rest", "-o", "m.anchorinv")
        assert code == 0 and "knows left, right, rest" in out
        assert AnchorInvClassifier.load("m.anchorinv").counts_.tolist() == [12, 12, 12]

    def test_an_old_class_is_noticed(self, run, files):
        fitted(taught=False, epochs=60).save("m.anchorinv")
        np.save("more.npy", windows(12, classes=("left",), seed=11)[0])
        code, _, err = run("learn", "m.anchorinv", "more.npy", "--label", "gauche", "-o", "m2")
        assert code == 0 and "warning: class 'gauche' looks like 'left'" in err

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("shots.npy",), "name the class of its examples with --label"),
            (("base.npz",), "'left' and 'right' are known already"),
            (("shots.npz", "--label", "left"), "'left' is known already"),
            (("day.edf",), "--label"),
        ],
    )
    def test_mistakes_leave_no_file(self, words, told, run, files):
        code, _, err = run("learn", "m.anchorinv", *words, "-o", "m2", "-q")
        assert code == 1 and told in err and err.count("\n") == 1 and not (files / "m2").exists()


class TestPredict:
    def test_windows(self, run, files):
        code, out, _ = run("predict", "m.anchorinv", "base.npz")
        model = AnchorInvClassifier.load("m.anchorinv")
        found = table(out)
        assert code == 0 and list(found[0]) == ["window", "time", "class", "p_left", "p_right"]
        assert [row["class"] for row in found] == model.predict(windows()[0]).tolist()
        proba = [[float(row["p_left"]), float(row["p_right"])] for row in found]
        np.testing.assert_allclose(proba, model.predict_proba(windows()[0]), atol=1e-6)

    def test_channels_are_matched_in_windows_too(self, run, files):
        assert run("predict", "m.anchorinv", "mixed.npz")[1] != run("predict", "m.anchorinv", "base.npz")[1]
        fitted(taught=False, preprocessing=Preprocessing(CHANNELS)).save("n")
        assert run("predict", "n", "mixed.npz")[1] == run("predict", "n", "base.npz")[1]

    def test_a_recording_to_a_file(self, run, files):
        code, out, err = run("predict", "m.anchorinv", "day.edf", "--step", 0.25, "--csv", "deep/rows.csv")
        found = table((files / "deep" / "rows.csv").read_text())
        assert code == 0 and out == "" and "predicting" in err
        assert [float(row["time"]) for row in found] == [0.25 * i for i in range(len(found))]
        assert len(found) == 23 and run("predict", "m.anchorinv", "day.edf", "-q")[2] == ""

    def test_another_unit_is_warned_about_once(self, run, files):
        code, _, err = run("predict", "m.anchorinv", "day.edf", "--scale", 1e-5, "-q")
        assert code == 0 and err.count("warning") == 1 and "(--scale 1)" in err
        assert "about 1e-05 times its spread; is the recording in another unit? multiply it by 100000" in err
        code, _, err = run("predict", "m.anchorinv", "day.edf", "--scale", 1e3, "-q")
        assert code == 0 and "multiply it by 0.001 (--scale 1)" in err

    def test_gaps_are_counted(self, run, files):
        signal = np.concatenate(list(windows(6)[0]), axis=1)
        signal[0, 70] = np.nan
        write_fif(files / "r_raw.fif", signal, CHANNELS, RATE)
        code, out, err = run("predict", "m.anchorinv", "r_raw.fif", "-q")
        assert code == 0 and "1 of 6 windows hold missing samples" in err
        assert table(out)[1] == {"window": "1", "time": "0.5", "class": "", "p_left": "", "p_right": ""}

    @pytest.mark.parametrize(
        ("make", "told"),
        [
            (lambda: {"X": windows()[0][:, :, :50]}, "windows of 50 samples, the model takes 64"),
            (lambda: {"X": windows()[0][:, :3]}, "3 channels, the model takes 4"),
            (lambda: {"X": windows()[0][0]}, "for one window use X[None]"),
            (lambda: {"X": windows()[0], "sfreq": 256}, "sampled at 256 Hz, the model at 128 Hz"),
            (lambda: {"X": with_nan()}, "odd.npz has NaN or infinite values in window 7; drop or repair"),
            (lambda: {"X": windows()[0], "ch_names": ["a"]}, "1 names in ch_names"),
            (lambda: {"X": windows()[0], "y": [1]}, "labels of shape (1,)"),
            (lambda: {"Y": windows()[0]}, "needs an array X"),
            (lambda: {"X": np.array([{}], dtype=object)}, "holds Python objects"),
        ],
    )
    def test_windows_that_do_not_fit(self, make, told, run, files):
        np.savez("odd.npz", **make())
        code, _, err = run("predict", "m.anchorinv", "odd.npz", "-q", "--csv", "out.csv")
        assert code == 1 and told in err and err.count("\n") == 1 and not (files / "out.csv").exists()

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half a zip", b"\x93NUMPY\x01\x00"])
    @pytest.mark.parametrize("name", ["x.npz", "x.npy"])
    def test_damaged_windows(self, name, content, run, files):
        (files / name).write_bytes(content)
        code, _, err = run("predict", "m.anchorinv", name, "-q")
        assert code == 1 and err.startswith("anchorinv: ") and err.count("\n") == 1

    def test_layouts_and_types_of_arrays(self, run, files):
        X = windows()[0].astype(np.float32)
        np.savez_compressed("c.npz", X=np.asfortranarray(X))
        np.savez("d.npz", X=X)
        np.save("e.npy", X)
        assert run("predict", "m.anchorinv", "c.npz")[1] == run("predict", "m.anchorinv", "d.npz")[1]
        assert run("predict", "m.anchorinv", "e.npy")[1] == run("predict", "m.anchorinv", "d.npz")[1]


class TestForgetAndInfo:
    def test_forget(self, run, files):
        fitted().save("t")
        code, out, _ = run("forget", "t", "left", "-o", "t2")
        assert code == 0 and "knows right, tongue" in out and "traces" in out
        code, out, _ = run("info", "t2")
        assert code == 0 and "Class 'left' was forgotten" in out and "may keep traces" in out
        assert run("forget", "t", "feet", "-o", "t3")[0] == 1 and not (files / "t3").exists()

    def test_numbers_and_booleans_as_classes(self, run, files):
        X, _ = windows(24)
        short = {**fitted().get_params(), "epochs": 1}
        AnchorInvClassifier(**short).fit(X, np.arange(24) % 3).save("n")
        assert run("forget", "n", "1", "-o", "n2")[0] == 0
        assert AnchorInvClassifier.load("n2").classes_.tolist() == [0, 2]
        code, _, err = run("forget", "n", "one", "-o", "n2")
        assert code == 1 and "classes are whole numbers, got 'one'" in err
        assert run("learn", "n2", "shots.npy", "--label", "7", "-o", "n3")[0] == 0
        assert AnchorInvClassifier.load("n3").classes_.tolist() == [0, 2, 7]

    def test_info(self, run, files):
        code, out, _ = run("info", "m.anchorinv")
        assert code == 0
        for words in (
            "memory       synthetic",
            "4 channels x 64 samples (0.5 s at 128 Hz)",
            "holds no recording",
        ):
            assert words in out
        facts = json.loads(run("info", "m.anchorinv", "--json")[1])
        assert (
            facts["replay"] == {"left": 6, "right": 6}
            and facts["bytes"] == (files / "m.anchorinv").stat().st_size
        )

    @pytest.mark.parametrize("name", ["info", "predict", "learn", "evaluate", "forget", "check"])
    def test_damaged_models(self, name, run, files):
        content = (files / "m.anchorinv").read_bytes()
        (files / "m.anchorinv").write_bytes(content[:-5])
        more = {
            "predict": ["base.npz"],
            "check": ["base.npz"],
            "evaluate": ["base.npz"],
            "forget": ["left", "-o", "n"],
        }
        words = more.get(name, []) if name != "learn" else ["shots.npz", "-o", "n"]
        code, _, err = run(name, "m.anchorinv", *words)
        assert code == 1 and "m.anchorinv is cut short" in err and not (files / "n").exists()

    @pytest.mark.parametrize(
        "words",
        [
            ("train",),
            ("train", "base.npz"),
            ("learn", "m"),
            ("predict", "m"),
            ("info",),
            ("infoo", "m"),
            ("info", "m", "--what"),
        ],
    )
    def test_wrong_usage_is_2(self, words, run, files):
        assert run(*words)[0] == 2


def test_whoever_reads_a_few_rows_sees_no_error(files):
    # A new process, because a closed pipe is a matter of processes.
    np.save(files / "many.npy", np.tile(windows()[0], (200, 1, 1)))
    done = command("predict", "m.anchorinv", "many.npy", "-q", cwd=files, into="head -n 2")
    assert done.stdout.count("\n") == 2 and done.stderr == ""


def test_help_of_all_commands_comes_without_torch(files):
    done = command("--help", cwd=files)
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("train", "learn", "predict", "check", "info", "forget"))


def test_a_full_disk_leaves_the_old_rows(run, files):
    (files / "rows.csv").write_text("old")
    np.save("many.npy", np.tile(windows()[0], (10, 1, 1)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        code, _, err = run("predict", "m.anchorinv", "many.npy", "--csv", "rows.csv", "-q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 1 and err.startswith("anchorinv: rows.csv cannot be written: File too large; ")
    assert (files / "rows.csv").read_text() == "old" and len(list(files.glob(".rows*"))) == 0


def test_an_input_that_is_not_there_leaves_no_row(run, files):
    for name in ("none.npz", "none.edf"):
        code, out, err = run("predict", "m.anchorinv", name, "-q")
        assert code == 1 and out == "" and "there is no" in err


class TestAdd:
    @pytest.mark.parametrize("source", [("more.npz",), ("more.npy", "--label", "left")])
    def test_more_examples_of_a_known_class(self, source, run, files):
        X, y = windows(10, classes=("left",), seed=5)
        np.savez("more.npz", X=X, y=y)
        np.save("more.npy", X)
        code, out, err = run("add", "m.anchorinv", *source, "-o", "m2", "-q")
        assert code == 0 and err == ""
        told, written = out.splitlines()
        assert re.fullmatch(
            r"Class 'left': 10 more examples, 22 in all; \d+ of the 10 were classified rightly before, "
            r"\d+ are now\.",
            told,
        )
        assert written == "Model: m2 has examples of left (22), right (12)"
        here = again(fitted(taught=False)).add_shots(X, y)
        held = windows(20, seed=9)[0]
        there = AnchorInvClassifier.load("m2")
        assert np.array_equal(there.predict_proba(held), here.predict_proba(held))
        assert there.counts_.tolist() == [22, 12] and there.classes_.tolist() == ["left", "right"]

    def test_several_files_of_several_classes_over_the_model_itself(self, run, files):
        X, y = windows(12, seed=6)
        np.savez("a.npz", X=X, y=y)
        code, out, _ = run("add", "m.anchorinv", "a.npz", "a.npz", "-o", "m.anchorinv", "-q")
        assert code == 0 and [line.split(":")[0] for line in out.splitlines()[:2]] == [
            "Class 'left'",
            "Class 'right'",
        ]
        assert AnchorInvClassifier.load("m.anchorinv").counts_.tolist() == [24, 24]

    def test_from_a_recording_and_with_classes_that_are_numbers(self, run, files):
        code, out, _ = run("add", "m.anchorinv", "day.edf", "--label", "left", "--step", 0.25, "-o", "m2")
        assert code == 0 and "23 more examples, 35 in all" in out
        AnchorInvClassifier(epochs=1, random_state=0).fit(windows()[0], np.arange(24) % 2).save("n")
        assert run("add", "n", "shots.npy", "--label", "1", "-o", "n2", "-q")[0] == 0
        assert AnchorInvClassifier.load("n2").counts_.tolist() == [12, 22]

    def test_signals_in_the_file_stay_in_it_and_none_come_in(self, run, files):
        np.savez("more.npz", X=windows(10)[0], y=windows(10)[1])
        model = fitted(taught=False)
        model.save("with", with_signals=True)
        for name, wanted in (("with", True), ("m.anchorinv", False)):
            assert run("add", name, "more.npz", "-o", "m2", "-q")[0] == 0
            assert (AnchorInvClassifier.load("m2").state_.signals is not None) == wanted

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("shots.npy",), "name the class of its examples with --label"),
            (("shots.npz",), "'tongue' is not among the known ones.*anchorinv learn"),
            (("none.npz",), "there is no none.npz"),
        ],
    )
    def test_mistakes_leave_no_file(self, words, told, run, files):
        code, _, err = run("add", "m.anchorinv", *words, "-o", "m2", "-q")
        assert code == 1 and re.search(told, err) and err.count("\n") == 1 and not (files / "m2").exists()

    def test_a_method_without_prototypes(self, run, files):
        fitted("finetune", taught=False).save("f")
        np.savez("more.npz", X=windows()[0], y=windows()[1])
        code, _, err = run("add", "f", "more.npz", "-o", "m2", "-q")
        assert code == 1 and "finetune has no prototypes to move" in err


class TestSeveralFiles:
    def test_rows_say_which_file_they_are_of(self, run, files):
        code, out, _ = run("predict", "m.anchorinv", "day.edf", "base.npz", "day.edf", "-q")
        found = table(out)
        assert code == 0 and list(found[0]) == ["file", "window", "time", "class", "p_left", "p_right"]
        apart = [table(run("predict", "m.anchorinv", name, "-q")[1]) for name in ("day.edf", "base.npz")]
        day, base = ([{"file": n, **row} for row in rows]
                     for n, rows in zip(("day.edf", "base.npz"), apart, strict=True))  # fmt: skip
        assert found == [*day, *base, *day]

    def test_to_a_file(self, run, files):
        code, out, _ = run("predict", "m.anchorinv", "base.npz", "day.edf", "--csv", "rows.csv", "-q")
        assert code == 0 and out == "" and len(table((files / "rows.csv").read_text())) == 24 + 12

    @pytest.mark.parametrize("target", ["-", "rows.csv"])
    @pytest.mark.parametrize("broken", ["gone.npz", "day.txt", "short.npy", "other.npz"])
    def test_one_that_is_wrong_is_named_and_nothing_is_written(self, broken, target, run, files):
        (files / "rows.csv").write_text("old")
        (files / "day.txt").write_text("tired")
        (files / "short.npy").write_bytes((files / "shots.npy").read_bytes()[:-8])
        np.savez("other.npz", X=windows()[0][:, :3])
        code, out, err = run("predict", "m.anchorinv", "base.npz", broken, "--csv", target, "-q")
        assert code == 1 and out == "" and broken in err and err.count("\n") == 1
        assert (files / "rows.csv").read_text() == "old"

    def test_what_goes_wrong_late_is_named_and_leaves_the_old_rows(self, run, files):
        X = np.tile(windows()[0], (20, 1, 1))
        X[-1, 0, 0] = np.nan
        np.save("late.npy", X)
        (files / "rows.csv").write_text("old")
        code, _, err = run("predict", "m.anchorinv", "base.npz", "late.npy", "--csv", "rows.csv", "-q")
        assert code == 1 and "late.npy has NaN" in err and (files / "rows.csv").read_text() == "old"

    def test_a_model_that_knows_no_rate_names_the_file_all_the_same(self, run, files):
        fitted(taught=False, sfreq=None).save("n")
        code, out, err = run("predict", "n", "base.npz", "day.edf", "-q")
        assert code == 1 and out == "" and "day.edf" in err and "--sfreq" in err

    def test_warnings_name_the_file(self, run, files):
        signal = np.concatenate(list(windows(6)[0]), axis=1)
        signal[0, 70] = np.nan
        write_fif(files / "r_raw.fif", signal, CHANNELS, RATE)
        np.save("loud.npy", 1e4 * windows()[0])
        code, _, err = run("predict", "m.anchorinv", "base.npz", "r_raw.fif", "loud.npy", "-q")
        gaps, far = err.splitlines()
        assert code == 0 and "warning: r_raw.fif: 1 of 6 windows hold missing samples" in gaps
        assert (
            "warning: loud.npy: " in far and "is the recording in another unit? multiply it by 0.0001" in far
        )
