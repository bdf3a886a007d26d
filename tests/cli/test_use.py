"""``anchorinv predict``, ``evaluate``, ``check``, ``info``: what they do, say, and refuse."""

import csv
import io
import json
import resource
from dataclasses import replace

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier, Preprocessing, Smoothing, StreamingPredictor
from anchorinv.cli.options import SteadyOptions
from anchorinv.serving.streaming import preset
from tests.models import CHANNELS, RATE, command, fitted, windows
from tests.recording_files import write_edf, write_fif


def with_nan():
    X = windows()[0].copy()
    X[7, 1, 3] = np.nan
    return X


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


class TestPredict:
    def test_windows(self, run, files):
        code, out, _ = run("predict", "m.anchorinv", "base.npz")
        model = AnchorInvClassifier.load("m.anchorinv")
        rows = table(out)
        assert code == 0 and list(rows[0]) == ["window", "time", "class", "p_left", "p_right"]
        assert [row["class"] for row in rows] == model.predict(windows()[0]).tolist()
        proba = [[float(row["p_left"]), float(row["p_right"])] for row in rows]
        np.testing.assert_allclose(proba, model.predict_proba(windows()[0]), atol=1e-6)

    def test_channels_are_matched_in_windows_too(self, run, files):
        assert run("predict", "m.anchorinv", "mixed.npz")[1] != run("predict", "m.anchorinv", "base.npz")[1]
        fitted(taught=False, preprocessing=Preprocessing(CHANNELS)).save("n")
        assert run("predict", "n", "mixed.npz")[1] == run("predict", "n", "base.npz")[1]

    def test_a_recording_to_a_file(self, run, files):
        code, out, err = run("predict", "m.anchorinv", "day.edf", "--step", 0.25, "--csv", "deep/rows.csv")
        rows = table((files / "deep" / "rows.csv").read_text())
        assert code == 0 and out == "" and "predicting" in err
        assert [float(row["time"]) for row in rows] == [0.25 * i for i in range(len(rows))]
        assert len(rows) == 23 and run("predict", "m.anchorinv", "day.edf", "-q")[2] == ""
        assert err.splitlines()[-1] == "Wrote deep/rows.csv (23 windows)"

    @pytest.mark.parametrize(
        "how", [("--steady", "balanced"), ("--dwell", 0.3), ("--vote", 1, "--hysteresis", 0.1)]
    )
    def test_steadied_rows_are_those_of_a_stream_and_end_with_the_class_of_the_window(self, run, files, how):
        fitted("lda", taught=False).save("n")
        signal = np.concatenate(list(windows(12, seed=4)[0]), axis=1)
        np.save("day.npy", signal)
        recording = ("day.npy", "--sfreq", RATE, "--step", 0.125, "-q")
        raw = table(run("predict", "n", *recording)[1])
        code, out, _ = run("predict", "n", *recording, *how)
        rows = table(out)
        assert code == 0 and list(rows[0]) == [*raw[0], "raw_class"]
        assert [row["raw_class"] for row in rows] == [row["class"] for row in raw]
        assert any(row["raw_class"] != row["class"] for row in rows)
        names = {"--dwell": "dwell", "--vote": "vote", "--hysteresis": "hysteresis"}
        given = dict(zip(how[::2], how[1::2], strict=True))
        steady = given.get("--steady") or Smoothing(**{names[key]: value for key, value in given.items()})
        live = StreamingPredictor(AnchorInvClassifier.load("n"), step=16, steady=steady)
        assert [p.label for p in live.feed(signal)] == [row["class"] for row in rows]

    def test_single_settings_go_before_the_preset(self, run, files):
        model = fitted("lda", taught=False)
        model.save("n")
        options = ("day.edf", "--step", 0.125, "-q", "--dwell", 0.5)
        assert run("predict", "n", *options)[1] != run("predict", "n", *options, "--steady", "balanced")[1]
        window = model.n_times_ / model.sfreq_
        expected = replace(preset("balanced", window), dwell=7.0)
        assert SteadyOptions("balanced", dwell=7.0).settings(model) == expected
        assert SteadyOptions().settings(model) is None

    def test_gaps_of_steadied_rows_are_empty(self, run, files):
        signal = np.concatenate(list(windows(6)[0]), axis=1)
        signal[0, 70] = np.nan
        write_fif(files / "r_raw.fif", signal, CHANNELS, RATE)
        code, out, err = run("predict", "m.anchorinv", "r_raw.fif", "-q", "--steady", "balanced")
        assert code == 0 and "1 of 6 windows hold missing samples" in err
        assert table(out)[1]["class"] == table(out)[1]["raw_class"] == ""

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (
                ("base.npz", "--steady", "balanced"),
                "base.npz contains separate windows, not a sequence in time",
            ),
            (
                ("day.edf", "base.npz", "--dwell", 1),
                "predict the continuous recording, or leave out --steady",
            ),
            (("day.edf", "--steady", "calm"), "none of the presets; choose 'balanced'"),
            (("day.edf", "--vote", -1), "vote (=-1.0) must be a number of seconds above 0"),
        ],
    )
    def test_what_cannot_be_steadied_is_refused_before_any_row(self, run, files, words, message):
        code, out, err = run("predict", "m.anchorinv", *words, "-q", "--csv", "rows.csv")
        assert code == 1 and message in err and out == "" and not (files / "rows.csv").exists()

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
        ("make", "message"),
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
    def test_windows_that_do_not_fit(self, make, message, run, files):
        np.savez("odd.npz", **make())
        code, _, err = run("predict", "m.anchorinv", "odd.npz", "-q", "--csv", "out.csv")
        assert code == 1 and message in err and err.count("\n") == 1 and not (files / "out.csv").exists()

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


class TestSeveralFiles:
    def test_rows_say_which_file_they_are_of(self, run, files):
        code, out, _ = run("predict", "m.anchorinv", "day.edf", "base.npz", "day.edf", "-q")
        rows = table(out)
        assert code == 0 and list(rows[0]) == ["file", "window", "time", "class", "p_left", "p_right"]
        apart = [table(run("predict", "m.anchorinv", name, "-q")[1]) for name in ("day.edf", "base.npz")]
        day, base = ([{"file": n, **row} for row in own]
                     for n, own in zip(("day.edf", "base.npz"), apart, strict=True))  # fmt: skip
        assert rows == [*day, *base, *day]

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


class TestCheck:
    def test_recordings_like_the_base_data(self, run, place):
        code, out, err = run("check", "m.anchorinv", "base.npz", "-q")
        assert code == 0 and err == "" and "base.npz: 24 windows" in out
        head = out.splitlines()[1].split()
        assert head == ["channel", "scale", "shift", "spectrum", "covariance"] and len(out.splitlines()) == 7
        assert out.splitlines()[-1].startswith("like: the recordings are like the base data in every channel")

    def test_another_unit(self, run, place):
        code, out, _ = run("check", "m.anchorinv", "loud.npy", "-q")
        assert code == 1 and "far: every channel: far from the base data, about 1000 times" in out
        assert "multiply it by 0.001 (--scale 0.001)" in out
        assert run("check", "m.anchorinv", "loud.npy", "-q", "--scale", 0.001)[0] == 0

    def test_another_spectrum(self, run, place):
        code, out, _ = run("check", "m.anchorinv", "tones.npy", "-q")
        assert (
            code == 1 and "the spectrum of every channel is far from the base data's" in out and "Hz" in out
        )

    def test_a_recording(self, run, place):
        write_edf(place / "v.edf", np.concatenate(list(windows(20, seed=4)[0]), axis=1) / 50, CHANNELS, RATE)
        fitted(taught=False).save("plain")
        code, out, _ = run("check", "plain", "v.edf", "-q", "--scale", 50, "--step", 0.25)
        assert code == 0 and "39 windows" in out

    def test_several_as_json(self, run, place):
        code, out, _ = run("check", "m.anchorinv", "base.npz", "loud.npy", "--json", "-q")
        facts = json.loads(out)
        assert code == 1 and facts["far"] and [each["far"] for each in facts["inputs"]] == [False, True]
        assert facts["inputs"][1]["factor"] == pytest.approx(1000, rel=0.3)
        assert len(facts["inputs"][0]["channels"]) == 4
        assert set(facts["inputs"][0]["channels"][0]) == {"name", "scale", "shift", "spectrum", "covariance"}

    def test_many_channels_are_shown_in_part(self, run, place):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(24, 40, 32))
        AnchorInvClassifier(method="lda", random_state=0).fit(X, np.arange(24) % 2).save("many")
        X[:, 33] *= 5
        np.save("x.npy", X)
        code, out, _ = run("check", "many", "x.npy", "-q")
        assert code == 0 and "and 28 channels that differ less" in out and "channel 33 " in out

    def test_an_input_that_cannot_be_read(self, run, place):
        code, out, err = run("check", "m.anchorinv", "none.npz", "-q")
        assert code == 1 and out == "" and "there is no" in err

    def test_windows_a_thousand_times_too_large_are_predicted_with_the_remedy(self, run, place):
        code, _, err = run("predict", "m.anchorinv", "loud.npy", "-q")
        assert code == 0 and err.count("warning") == 1 and "multiply it by 0.001 (--scale 0.001)" in err
        code, out, err = run("predict", "m.anchorinv", "loud.npy", "-q", "--scale", 0.001)
        np.save("right.npy", windows(12, seed=5)[0])
        assert code == 0 and err == "" and out == run("predict", "m.anchorinv", "right.npy", "-q")[1]


class TestInfo:
    def test_info(self, run, files):
        code, out, _ = run("info", "m.anchorinv")
        assert code == 0
        for words in (
            "memory       synthetic",
            "4 channels x 64 samples (0.5 s at 128 Hz)",
            "contains no recording",
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
            ("predict", "m.anchorinv"),
            ("info",),
            ("infoo", "m"),
            ("info", "m", "--what"),
        ],
    )
    def test_wrong_usage_is_2(self, words, run, files):
        assert run(*words)[0] == 2


def test_whoever_reads_a_few_rows_sees_no_error(files):
    # A new process, because a closed pipe is a matter of processes.
    np.save(files / "many.npy", np.tile(windows()[0], (100, 1, 1)))
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
