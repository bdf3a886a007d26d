"""``anchorinv learn``, ``add``, ``forget``, ``calibrate``: what they do, say, and refuse."""

import re

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier
from tests.models import again, fitted, windows


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
        assert code == 0 and "knows left, rest, right" in out
        assert AnchorInvClassifier.load("m.anchorinv").counts_.tolist() == [12, 12, 12]

    def test_an_old_class_is_noticed(self, run, files):
        fitted(taught=False, epochs=60).save("m.anchorinv")
        np.save("more.npy", windows(12, classes=("left",), seed=11)[0])
        code, _, err = run("learn", "m.anchorinv", "more.npy", "--label", "gauche", "-o", "m2")
        assert code == 0 and "warning: class 'gauche' looks like 'left'" in err

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("shots.npy",), "name the class of its examples with --label"),
            (("base.npz",), "'left' and 'right' are known already"),
            (("shots.npz", "--label", "left"), "'left' is known already"),
            (("day.edf",), "--label"),
        ],
    )
    def test_mistakes_leave_no_file(self, words, message, run, files):
        code, _, err = run("learn", "m.anchorinv", *words, "-o", "m2", "-q")
        assert code == 1 and message in err and err.count("\n") == 1 and not (files / "m2").exists()


class TestAdd:
    @pytest.mark.parametrize("source", [("more.npz",), ("more.npy", "--label", "left")])
    def test_more_examples_of_a_known_class(self, source, run, files):
        X, y = windows(10, classes=("left",), seed=5)
        np.savez("more.npz", X=X, y=y)
        np.save("more.npy", X)
        code, out, err = run("add", "m.anchorinv", *source, "-o", "m2", "-q")
        assert code == 0 and err == ""
        message, written = out.splitlines()
        assert re.fullmatch(
            r"Class 'left': 10 more examples, 22 in all; \d+ of the 10 were classified correctly before, "
            r"\d+ are now\.",
            message,
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
            assert run("add", name, "more.npz", "-o", "m2", "-q", "--overwrite")[0] == 0
            assert (AnchorInvClassifier.load("m2").state_.signals is not None) == wanted

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("shots.npy",), "name the class of its examples with --label"),
            (("shots.npz",), "'tongue' is not among the known ones.*anchorinv learn"),
            (("none.npz",), "there is no none.npz"),
        ],
    )
    def test_mistakes_leave_no_file(self, words, message, run, files):
        code, _, err = run("add", "m.anchorinv", *words, "-o", "m2", "-q")
        assert code == 1 and re.search(message, err) and err.count("\n") == 1 and not (files / "m2").exists()

    def test_a_method_without_prototypes(self, run, files):
        fitted("finetune", taught=False).save("f")
        np.savez("more.npz", X=windows()[0], y=windows()[1])
        code, _, err = run("add", "f", "more.npz", "-o", "m2", "-q")
        assert code == 1 and "finetune has no prototypes to move" in err


class TestForget:
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
        code, _, err = run("forget", "n", "one", "-o", "n4")
        assert code == 1 and "classes are whole numbers, got 'one'" in err
        assert run("learn", "n2", "shots.npy", "--label", "7", "-o", "n3")[0] == 0
        assert AnchorInvClassifier.load("n3").classes_.tolist() == [0, 2, 7]


class TestUnits:
    def test_a_lesson_in_another_unit_is_refused_and_nothing_written(self, run, place):
        words = ("learn", "m.anchorinv", "new_loud.npy", "--label", "tongue", "-o", "t", "-q")
        code, out, err = run(*words)
        assert code == 1 and out == "" and err.count("\n") == 1 and not (place / "t").exists()
        assert "about 1000 times its spread" in err and "--scale 0.001" in err and "--force" in err
        code, _, err = run(*words, "--scale", 1e3)
        assert code == 1 and "about 1e+06 times" in err and "multiply it by 1e-06 (--scale 0.001)" in err
        assert run(*words, "--scale", 0.001)[0] == 0

    @pytest.mark.filterwarnings("ignore")
    def test_a_lesson_in_another_unit_can_be_forced(self, run, place):
        words = ("learn", "m.anchorinv", "new_loud.npy", "--label", "tongue", "-o", "t", "-q", "--force")
        code, out, _ = run(*words)
        assert code == 0 and "knows left, right, tongue" in out

    def test_a_calibration_in_another_unit_is_refused(self, run, place):
        fitted("discriminant", taught=False).save("d")
        code, _, err = run("calibrate", "d", "loud.npy", "-o", "c", "-q")
        assert code == 1 and "--scale 0.001" in err and not (place / "c").exists()


WRITES = {
    "train": ("base.npz", "--epochs", 1, "--network", "never", "-q"),
    "learn": ("m.anchorinv", "shots.npz", "-q"),
    "add": ("m.anchorinv", "base.npz", "-q"),
    "forget": ("m.anchorinv", "right"),
    "calibrate": ("m.anchorinv", "day.edf", "--force", "-q"),
    "suggest": ("m.anchorinv", "day.edf", "-q"),
    "export": ("m.anchorinv", "-q"),
    "info": ("m.anchorinv", "--card"),
}


class TestOverwriting:
    """A model that took minutes to train is not lost by a wrong name."""

    @pytest.mark.parametrize("command", WRITES)
    def test_another_file_is_refused_before_anything_is_read(self, command, run, files):
        name = {"suggest": "other.npz", "export": "other.onnx"}.get(command, "other.anchorinv")
        (files / name).write_bytes(b"valuable")
        (files / "m.anchorinv").write_bytes(b"not read")
        code, out, err = run(command, *WRITES[command], "-o", name)
        assert code == 1 and not out, err
        assert f"{name} exists; name another file, or pass --overwrite to replace it" in err
        assert (files / name).read_bytes() == b"valuable"

    def test_the_option_replaces_it(self, run, files):
        (files / "m2").write_bytes(b"valuable")
        assert run("learn", "m.anchorinv", "shots.npz", "-q", "-o", "m2", "--overwrite")[0] == 0
        assert len(AnchorInvClassifier.load("m2").classes_) == 3
        code, _, err = run("learn", "m.anchorinv", "shots.npz", "-q", "-o", "shots.npz", "--overwrite")
        assert code == 1 and "shots.npz is one of the inputs" in err

    def test_the_model_itself_may_be_updated_by_any_of_its_names(self, run, files):
        (files / "link").symlink_to("m.anchorinv")
        assert run("add", "m.anchorinv", "base.npz", "-q", "-o", "./m.anchorinv")[0] == 0
        assert run("add", "link", "base.npz", "-q", "-o", "m.anchorinv")[0] == 0
        assert AnchorInvClassifier.load("m.anchorinv").counts_.tolist() == [36, 36]
