"""What the commands say to a mistake: one sentence with what was wanted, what came, and what to do."""

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import anchorinv
from anchorinv import AnchorInvClassifier
from anchorinv.signal.headers import FILES, KNOWN, RECORDINGS, WINDOWS
from anchorinv.signal.readers import FORMATS
from tests.models import CHANNELS, RATE, fitted, windows
from tests.recording_files import write_edf

SOURCES = Path(anchorinv.__file__).parent


@pytest.fixture
def files(tmp_path):
    """A folder with a model, windows that fit it, and inputs of every wrong kind."""
    X, y = windows()
    np.savez(tmp_path / "base.npz", X=X, y=y, sfreq=RATE, ch_names=CHANNELS)
    np.save(tmp_path / "base.npy", X)
    np.savez(tmp_path / "objects.npz", X=X, y=y.astype(object))
    np.savez(tmp_path / "numbers.npz", X=X.astype(object), y=y)
    np.savez(tmp_path / "turned.npz", X=X.transpose(0, 2, 1), y=y)
    for name in ("notes.txt", "notes", "text.npz", "text.npy"):
        (tmp_path / name).write_text("Subject 3 was tired after lunch.\n")
    for name in ("base.npz", "base.npy"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / f"cut{name[4:]}").write_bytes(whole[: len(whole) // 2])
        (tmp_path / f"short{name[4:]}").write_bytes(whole[:20])
        (tmp_path / f"empty{name[4:]}").write_bytes(b"")
        (tmp_path / f"noise{name[4:]}").write_bytes(bytes(range(256)))
    write_edf(tmp_path / "day.edf", np.concatenate(list(windows(12, seed=4)[0]), axis=1), CHANNELS, RATE)
    fitted(taught=False).save(tmp_path / "m")
    return tmp_path


#: The commands that read windows or recordings, before and after the input.
READING = {
    "train": (["train"], ["-o", "out", "-q"]),
    "evaluate": (["evaluate", "m"], ["-q"]),
    "predict": (["predict", "m"], ["--csv", "out", "-q"]),
    "learn": (["learn", "m"], ["--label", "rest", "-o", "out", "-q"]),
    "add": (["add", "m"], ["--label", "left", "-o", "out", "-q"]),
    "calibrate": (["calibrate", "m"], ["-o", "out", "-q"]),
    "suggest": (["suggest", "m"], ["-q"]),
}
#: Those of them that write, with an input that is good.
WRITING = {
    name: ([*before, "base.npz"], after) for name, (before, after) in READING.items() if "out" in after
}
reading = pytest.mark.parametrize("name", READING)


@pytest.fixture
def told(run, files):
    """The sentence that a command ends in, when it is given an input; nothing is written."""

    def call(name, source):
        before, after = READING[name]
        code, out, err = run(*before, source, *after)
        assert code == 1 and out == "" and err.startswith("anchorinv: ") and err.count("\n") == 1, err
        assert not (files / "out").exists()
        return err

    return call


class TestKinds:
    @reading
    @pytest.mark.parametrize("source", ["notes.txt", "notes", "text.npz", "text.npy", "m"])
    def test_what_is_of_no_known_kind(self, name, source, told):
        assert source in (said := told(name, source)) and KNOWN in said

    def test_the_list_is_whole_and_the_same_for_tables(self, run, files):
        for kind in ("prepared folder", ".npz", ".npy", "EDF", "BDF", "GDF", "FIF", ".vhdr", ".hea", "CSV"):
            assert kind in KNOWN
        (files / "table.csv").write_text("path,label\nnotes.txt,a\n")
        code, _, err = run("prepare", "own", "--manifest", "table.csv", "--out", "made")
        assert code == 1 and f"line 2: notes.txt has an unknown format; known formats: {FILES}" in err

    def test_the_list_is_that_of_the_readers(self):
        assert set(WINDOWS + RECORDINGS) == FORMATS

    @pytest.mark.parametrize("name", ["train", "evaluate"])
    def test_a_recording_without_labels(self, name, told, files):
        assert "day.edf has no labels of its windows; name its events with --events, or use" in told(
            name, "day.edf"
        )
        assert "base.npy has no labels of its windows; use" in told(name, "base.npy")
        (files / "day.csv").write_text("C3,C4\n1,2\n")
        assert "day.csv has no labels of its windows; name its events with --events" in told(name, "day.csv")
        np.save(files / "long.npy", np.zeros((4, 999)))
        assert "long.npy has no labels of its windows" in told(name, "long.npy")

    @pytest.mark.parametrize("name", ["predict", "learn"])
    def test_samples_whose_header_is_beside_them(self, name, told, files):
        (files / "day.eeg").write_bytes(bytes(100))
        (files / "day.vhdr").write_text("BrainVision")
        assert "name its header, day.vhdr" in told(name, "day.eeg")


class TestArrays:
    @reading
    @pytest.mark.parametrize("ending", ["npz", "npy"])
    @pytest.mark.parametrize("damage", ["cut", "short", "empty", "noise"])
    def test_damage(self, name, ending, damage, told):
        said = told(name, f"{damage}.{ending}")
        save = "np.savez" if ending == "npz" else "np.save"
        assert re.search(rf"{damage}\.{ending} is cut short or damaged.*; save it again with {save}\(", said)
        for jargon in ("EOF", "magic", "zip file", "allow_pickle"):
            assert jargon not in said

    @reading
    def test_objects_say_how_to_save_them(self, name, told):
        assert "y holds Python objects; save it as numbers or text, as in np.array(y, dtype=str)" in told(
            name, "objects.npz"
        )
        assert "X holds Python objects; save it as numbers, as in np.array(X, dtype=float)" in told(
            name, "numbers.npz"
        )

    def test_a_folder_that_is_not_prepared(self, told, files):
        (files / "folder").mkdir()
        assert "folder is not a prepared data set" in (said := told("train", "folder"))
        assert "anchorinv prepare" in said

    def test_a_damaged_prepared_folder_has_one_remedy(self, told, files):
        from anchorinv.datasets.dataset import Dataset

        X, y = windows()
        Dataset.from_arrays(X, y, sfreq=RATE, split=["train"] * 24).write(files / "made")
        samples = files / "made" / "samples.npy"
        samples.write_bytes(samples.read_bytes()[:500])
        said = told("train", "made")
        assert said.rstrip().endswith("; prepare it again") and "np.save" not in said


class TestShapes:
    @pytest.mark.parametrize("name", ["evaluate", "predict", "learn", "add", "calibrate", "suggest"])
    def test_transposed_windows_offer_the_swap(self, name, told):
        assert (
            "turned.npz: the model takes 4 channels of 64 samples, got 64 channels of 4; "
            "X.transpose(0, 2, 1) swaps them"
        ) in told(name, "turned.npz")

    def test_in_training_too(self, told):
        assert "64 channels of 4 samples" in (said := told("train", "turned.npz"))
        assert "X.transpose(0, 2, 1)" in said


class TestTargets:
    @pytest.fixture
    def never(self, monkeypatch):
        """Nothing may be read or learned before the target is known to be good."""
        for module in ("anchorinv.datasets.dataset", "anchorinv.estimator"):
            for name in ("open_windows", "load_bundle"):
                monkeypatch.setattr(
                    f"{module}.{name}", lambda *_, **__: pytest.fail("something was read"), raising=False
                )

    @pytest.mark.parametrize(
        ("target", "words"),
        [
            (".", "is a folder; name a file in it"),
            ("base.npz/out", "base.npz is not a folder"),
            ("base.npz/deep/out", "base.npz is not a folder"),
            ("/proc/out", "/proc/out cannot be written"),
            ("/proc/deep/out", "/proc/deep/out cannot be written"),
            ("/dev/null", "is a device or a pipe"),
            ("a" * 250, "cannot be written"),
            ("a" * 300, "cannot be written"),
            ("base.npz", "base.npz is one of the inputs; name another file"),
        ],
    )
    @pytest.mark.parametrize("name", WRITING)
    def test_places_where_nothing_can_be_written(self, name, target, words, run, files, never):
        before, after = WRITING[name]
        lines = [*before, *(target if word == "out" else word for word in after)]
        kept = {path: path.read_bytes() for path in files.iterdir()}
        code, out, err = run(*lines)
        assert code == 1 and out == "" and words in err and err.count("\n") == 1
        assert "Errno" not in err and {path: path.read_bytes() for path in files.iterdir()} == kept

    @pytest.mark.parametrize("target", [".", "base.npz/out", "/proc/out"])
    def test_forget_writes_there_neither(self, target, run, files, never):
        code, _, err = run("forget", "m", "left", "-o", target)
        assert code == 1 and err.count("\n") == 1 and re.search("is a folder|is not a folder|cannot be", err)

    def test_folders_that_are_missing_are_made_only_when_there_is_something_to_write(self, run, files):
        assert run("train", "notes.txt", "-o", "new/deep/out", "-q")[0] == 1 and not (files / "new").exists()
        assert run("train", "base.npz", "-o", "new/deep/out", "-q")[0] == 0
        assert AnchorInvClassifier.load(files / "new" / "deep" / "out").classes_.tolist() == ["left", "right"]


class TestNames:
    def test_a_class_that_looks_like_a_known_one(self, run, files):
        X, _ = windows(10, classes=("left",), seed=3)
        np.savez("odd.npz", X=X, y=[" left"] * 10)
        code, _, err = run("learn", "m", "odd.npz", "-o", "out", "-q")
        assert code == 1 and "class ' left' looks like the known class 'left'" in err
        assert "anchorinv add" in err and err.count("\n") == 1 and not (files / "out").exists()
        code, _, err = run("add", "m", "odd.npz", "-o", "out", "-q")
        assert code == 1 and "' left' looks like 'left'; teach" in err
        code, _, err = run("evaluate", "m", "odd.npz", "-q")
        assert code == 1 and "' left' looks like 'left'" in err
        code, _, err = run("forget", "m", "Left", "-o", "out")
        assert code == 1 and "'Left' looks like 'left'" in err

    def test_names_that_only_begin_alike_are_learned(self, run, files):
        np.save("shots.npy", windows(10, classes=("tongue",), seed=1)[0])
        for name, label in (("out", "rest"), ("out2", "Rest position")):
            assert (
                run(
                    "learn", "m" if name == "out" else "out", "shots.npy", "--label", label, "-o", name, "-q"
                )[0]
                == 0
            )
        assert AnchorInvClassifier.load("out2").classes_.tolist() == [
            "Rest position",
            "left",
            "rest",
            "right",
        ]

    def test_evaluate_tells_of_labels_that_look_like_known_ones(self, run, files):
        X, y = windows()
        np.savez("odd.npz", X=X, y=[" left", *y[1:]])
        code, out, _ = run("evaluate", "m", "odd.npz", "-q")
        assert code == 0 and "left out: ' left' (1), which looks like 'left'" in out


#: What people who type commands cannot call, with the command that does it.
COMMANDS = {
    "partial_fit": "anchorinv learn",
    "add_shots": "anchorinv add",
    "forget_class": "anchorinv forget",
}


def sentences():
    """Every text inside a raised error or a warning of ours, with where it stands."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_warning = isinstance(node, ast.Call) and ast.unparse(node.func) in ("_warn", "warnings.warn")
            if isinstance(node, ast.Raise) or is_warning:
                parts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                yield f"{path.name}:{node.lineno}", "".join(part for part in parts if isinstance(part, str))


def test_whoever_is_told_to_call_a_function_is_told_the_command_too():
    found = list(sentences())
    assert len(found) > 300 and any("partial_fit" in text for _, text in found)
    for where, text in found:
        for function, command in COMMANDS.items():
            assert function not in text or command in text, f"{where}: {text}"
        assert "train it with sfreq" not in text or "--sfreq" in text, f"{where}: {text}"


class TestMoreOfAKnownClass:
    def test_learn_names_the_command(self, run, files):
        code, _, err = run("learn", "m", "base.npz", "-o", "out", "-q")
        assert code == 1 and "anchorinv add" in err and err.count("\n") == 1

    def test_add_names_the_other_one(self, run, files):
        np.savez("new.npz", X=windows()[0], y=["tongue"] * 24)
        code, _, err = run("add", "m", "new.npz", "-o", "out", "-q")
        assert code == 1 and "'tongue' is not among the known ones" in err and "anchorinv learn" in err

    def test_one_class_is_too_few_to_train_on(self, run, files):
        np.savez("one.npz", X=windows()[0], y=["tongue"] * 24)
        code, _, err = run("train", "one.npz", "-o", "out", "-q")
        assert (
            code == 1 and "at least two classes, got one class ('tongue')" in err and "anchorinv learn" in err
        )


class TestOneSentenceWithARemedy:
    @pytest.mark.parametrize("name", ["predict", "learn", "add", "calibrate", "suggest"])
    def test_a_single_window_is_no_recording(self, name, told, files):
        np.save(files / "one.npy", windows()[0][0])
        assert (
            "one.npy: (4, 64) is read as one recording of 4 channels; a single window is (1, 4, 64), save "
            "X[None]"
        ) in told(name, "one.npy")

    def test_a_label_for_each_window(self, told, files):
        X, y = windows()
        np.savez(files / "bad.npz", X=X, y=y[:-5])
        assert (
            "bad.npz has 24 windows in X and labels of shape (19,); y needs one value for each window, shape "
            "(24,)"
        ) in told("train", "bad.npz")

    @pytest.mark.parametrize("name", ["train", "learn"])
    @pytest.mark.parametrize("content", ["", "C3,C4,Cz,Pz\n"])
    def test_an_empty_table(self, name, content, told, files):
        (files / "empty.csv").write_text(content)
        assert "empty.csv holds no samples" in told(name, "empty.csv")

    def test_too_few_channels(self, told, files):
        np.save(files / "chan2.npy", windows()[0][:, :2])
        assert (
            "chan2.npy has 2 channels, the model takes 4, and the model has no names to choose them by; "
            "save a file of these 4 alone, in the model's order"
        ) in told("learn", "chan2.npy")

    def test_a_class_that_is_misspelt(self, run, files):
        code, _, err = run("forget", "m", "rigth", "-o", "out")
        assert code == 1 and err.endswith("known are 'left', 'right'; did you mean 'right'?\n")


class TestInputs:
    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["train", "bas.npz", "-o", "out"], "there is no bas.npz; did you mean base.npz?"),
            (["train", "folder/none.npz", "-o", "out"], "there is no folder/none.npz"),
            (["learn", "m", "base.npz", "zzz.npy", "--label", "x", "-o", "out"], "there is no zzz.npy"),
            (["predict", "model", "base.npz"], "there is no model file model"),
            (["info", "."], ". is a folder, not a model file; name the file that train or save wrote"),
            (["evaluate", "m", "nowhere"], "there is no nowhere"),
            (["export", "m", "out", "--data", "zzz"], "there is no zzz"),
            (["audit", "m", "--members", "base.npz", "--others", "zzz"], "there is no zzz"),
            (["status", "runs/demo"], "there is no run folder runs/demo"),
            (["live", "m", "--replay", "zzz.edf"], "there is no zzz.edf"),
        ],
    )
    def test_missing_ones_are_noticed_before_libraries_are_imported(
        self, run, files, monkeypatch, words, sentence
    ):
        for module in ("anchorinv.estimator", "anchorinv.persistence.bundle", "anchorinv.study.folder"):
            monkeypatch.setitem(sys.modules, module, None)
        assert run(*words) == (1, "", f"anchorinv: {sentence}\n")

    def test_a_record_is_named_without_its_suffix(self, run, files):
        (files / "100.hea").write_text("100 1 360 10\n")
        assert "there is no" not in run("check", "m", "100", "-q")[2]


class Interrupted:
    """A module in whose import somebody presses Ctrl-C."""

    def __getattr__(self, name):
        raise KeyboardInterrupt


class TestInterruption:
    @pytest.mark.parametrize(
        ("words", "module", "left"),
        [
            ("train base.npz -o out", "estimator", "nothing was written"),
            ("learn m base.npz --label x -o out", "serving.evaluation", "nothing was written"),
            ("forget m left -o out", "core.registry", "nothing was written"),
            ("export m out.onnx", "estimator", "nothing was written"),
            ("predict m base.npz --csv out", "estimator", "no file was written"),
            (
                "prepare own --npz base.npz --out out",
                "datasets.prepare",
                "run the same command again to continue",
            ),
            ("run smoke --out out", "study.execute", "run the same command again to continue"),
        ],
    )
    def test_while_libraries_are_imported(self, run, files, monkeypatch, words, module, left):
        monkeypatch.setitem(sys.modules, f"anchorinv.{module}", Interrupted())
        code, out, err = run(*words.split())
        assert (code, out, err) == (130, "", f"\nanchorinv: stopped; {left}\n")
        assert not (files / "out").exists()

    def test_while_the_commands_are_imported(self, monkeypatch, capsys):
        from anchorinv.__main__ import main

        monkeypatch.setitem(sys.modules, "anchorinv.cli", Interrupted())
        with pytest.raises(SystemExit, match="130"):
            main()
        assert capsys.readouterr().err == "\nanchorinv: stopped; nothing was written\n"
