"""``anchorinv run`` and ``status`` as people use them: every shipped config, stopped, gone on with."""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from anchorinv import GEOMETRIES, Conformer
from anchorinv.cli import app, main
from anchorinv.core.heads import Cosine
from anchorinv.core.recipe import BaseSpec
from anchorinv.core.registry import METHODS
from anchorinv.core.training import Training
from anchorinv.datasets import synthetic
from anchorinv.datasets.dataset import Dataset
from anchorinv.study.execute import run_study
from anchorinv.study.folder import RunFolder
from anchorinv.study.loading import load, methods_of, scaled, shipped
from tests.campaigns.kill_runs import campaign
from tests.study.little import lines

COMMAND = [sys.executable, "-m", "anchorinv"]
FEW = ["--methods", "protonet,finetune", "--scale", "smoke"]
BASELINES = ["fecam", "ranpac", "lda", "mdm", "discriminant"]
OTHERS = ["real-replay", "latent-replay", "ridge", "whitened", "anchorinv-plus"]


def called(*args: object, expect: int = 0) -> str:
    """Run a command in this process and return what it printed."""
    done = CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "120"})
    if expect == 0 and done.exception:
        raise done.exception
    assert done.exit_code == expect, done.output
    return done.output


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_config_runs(name, tmp_path):
    study = load(name)
    # One seed and one trial of each, but of the README's, which runs all of its methods. The others run a few
    # and build the rest: what a method computes does not depend on the config.
    less = [] if name == "bci2a" else ["--seed", 5, "--trials", 1]
    many = min(len(each.methods) for each in study.variants.values()) > 3
    if many and name != "bci2a":
        spec = BaseSpec(partial(Conformer, GEOMETRIES["bci2a"]), Cosine.start, Training())
        assert all(len(methods_of(each, spec)) == len(each.methods) for each in study.variants.values())
        few = OTHERS if name == "emg-longterm" else ["protonet", "anchorinv"]
        less += ["--methods", ",".join(few)]
        study = load(name, methods=few)
    shown = called("run", name, "--scale", "smoke", *less, "--out", tmp_path / "run")
    assert study.title in shown and "Synthetic recordings" in shown
    assert "Macro-F1" in shown and "no evidence about real people" in shown
    results = lines(tmp_path / "run")
    assert {line["variant"] for line in results} == set(study.variants)
    for variant, experiment in study.variants.items():
        own = [line for line in results if line["variant"] == variant]
        assert {line["method"] for line in own} == set(experiment.methods)
        last = max(line["session"] for line in own)
        assert last == len(experiment.protocol.sessions)
    assert (tmp_path / "run" / "scores.csv").read_text().count("\n") > len(results) / 2
    n_jobs = len({(x["variant"], x["person"], x["base_seed"], x["method"], x["trial"]) for x in results})
    assert f"All {n_jobs} jobs are finished" in called("status", tmp_path / "run")
    assert less or n_jobs == 21


def test_every_method_runs_in_some_study():
    assert {*load("bci2a").variants[""].methods, *BASELINES, *OTHERS} == set(METHODS)


def test_list_shows_what_is_shipped():
    shown = called("run", "--list")
    assert all(name in shown for name in shipped()) and "Table 2a" in shown


class TestOptions:
    def test_trials_methods_seed_and_threads(self, tmp_path):
        shown = called("run", "bci2a", *FEW, "--trials", 3, "--seed", 8, "--out", tmp_path / "run")
        assert "│ ProtoNet" in shown and "│ Finetune" in shown and "│ protonet" not in shown
        results = lines(tmp_path / "run")
        assert {x["base_seed"] for x in results} == {8} and {x["trial"] for x in results} == {None, 0, 1, 2}
        assert list(dict.fromkeys(x["method"] for x in results)) == ["protonet", "finetune"]

    def test_the_default_folder_is_named_after_the_study(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        called("run", "nhie", *FEW)
        assert (tmp_path / "runs" / "nhie-smoke" / "results.jsonl").exists()

    def test_bases_are_shared_over_runs(self, tmp_path):
        for trials in (1, 2):
            called(
                "run",
                "bci2a",
                *FEW,
                "--trials",
                trials,
                "--out",
                tmp_path / f"run{trials}",
                "--bases",
                tmp_path / "b",
            )
        assert len(list((tmp_path / "b").glob("base-*"))) == 2
        assert lines(tmp_path / "run1") == [x for x in lines(tmp_path / "run2") if x["trial"] != 1]

    def test_the_log_is_in_the_folder_and_shown_on_request(self, tmp_path, run):
        code, shown, said = run("run", "bci2a", *FEW, "--trials", 1, "--out", "run", "--log-level", "info")
        assert code == 0 and "info: finished protonet, trial 0" in said
        assert "finished protonet, trial 0" in (tmp_path / "run" / "run.log").read_text()
        # Not a terminal: plain lines, no control characters.
        assert "\x1b" not in shown + said


class TestMistakes:
    @pytest.mark.parametrize(
        ("args", "code", "message"),
        [
            (["run", "bci2b"], 1, "did you mean 'bci2a'"),
            (["run", "bci2a"], 1, "pass --data bci2a=FOLDER, or try --scale tiny"),
            (["run", "bci2a", "--data", "nowhere"], 1, "nowhere is not a prepared data set"),
            (["run", "bci2a", "--data", "nhie=x"], 1, "no data set 'nhie'"),
            (["run", "anchor-selection", "--data", "x"], 1, "pass NAME=FOLDER for each"),
            (["run", "bci2a", "--methods", "tean"], 1, "did you mean 'teen'"),
            (["run", "bci2a", "--trials", "0", "--scale", "smoke"], 1, "'protocol.trials'"),
            (["run", "bci2a", "--scale", "huge"], 2, "huge"),
            (["run", "bci2a", "--log-level", "loud"], 2, "loud"),
            (["run"], 2, "--list"),
            (["run", "own.toml"], 1, "unknown key 'training.epoch'; did you mean 'epochs'?"),
            (["status", "nowhere"], 1, "there is no run folder nowhere"),
            (["run", "bci2a", "--scale", "smoke", "--out", "own.toml"], 1, "cannot write to own.toml"),
        ],
    )
    def test_end_in_a_sentence_and_a_code(self, tmp_path, monkeypatch, capfd, args, code, message):
        (tmp_path / "own.toml").write_text('extends = "bci2a"\n[training]\nepoch = 3')
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["anchorinv", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code
        said = capfd.readouterr().err
        assert message in re.sub(r"\s+", " ", said.replace("│", " ")), said
        assert "Traceback" not in said
        assert [path.name for path in tmp_path.iterdir()] == ["own.toml"]

    def test_workers_without_ray_say_how_to_get_it(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", None)
        for option in (["--workers", 2], ["--cluster", "auto"]):
            with pytest.raises(ValueError, match=r"pip install 'anchorinv\[cluster\]'"):
                called("run", "bci2a", *FEW, *option, "--out", tmp_path / "run")
        called("run", "bci2a", *FEW, "--trials", 1, "--workers", 1, "--out", tmp_path / "run")

    def test_gpus_are_for_workers(self, tmp_path):
        with pytest.raises(ValueError, match="--gpus-per-worker needs"):
            called("run", "bci2a", *FEW, "--gpus-per-worker", 1, "--out", tmp_path / "run")

    def test_another_config_in_the_same_folder(self, tmp_path, run):
        called("run", "bci2a", *FEW, "--trials", 1, "--out", tmp_path / "run")
        before = (tmp_path / "run" / "results.jsonl").read_bytes()
        code, _, said = run("run", "nhie", *FEW, "--trials", 1, "--out", "run")
        assert code == 1 and "has another run: name was bci2a, is nhie" in said
        assert (tmp_path / "run" / "results.jsonl").read_bytes() == before


class TestStopped:
    METHODS = "finetune,protonet,anchorinv,deepinv"
    ARGS = ("run", "grabmyo-4base", "--methods", METHODS, "--scale", "smoke", "--trials", 5)

    def begun(self, *args, cwd):
        return subprocess.Popen(
            [*COMMAND, *map(str, args), "--log-level", "info"],
            cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "COLUMNS": "120"},
        )  # fmt: skip

    def test_ctrl_c_says_how_to_go_on(self, tmp_path):
        # More trials than can be finished between the line and the signal, however busy the machine is.
        process = self.begun(*self.ARGS[:-1], 500, "--out", "run", cwd=tmp_path)
        for line in process.stderr:
            if "finished finetune, trial 2" in line:
                process.send_signal(signal.SIGINT)
                break
        _, message = process.communicate()
        assert process.returncode == 130 and "Traceback" not in message
        assert "Run the same command again to continue" in message
        shown = called("status", tmp_path / "run")
        assert (
            re.search(r"Finetune\s+│\s+1 of 1 │\s+\d+ of 500", shown)
            and "the same command continues it" in shown
        )
        assert re.search(r"\d+ of 2004 jobs are finished", shown)

    def test_killed_inside_a_write_it_ends_like_a_run_that_never_was(self, tmp_path):
        """The campaign in short: 40 rounds and random moments by python -m tests.campaigns.kill_runs."""
        counts = campaign(tmp_path, 3, trials=2, seed=0, places=("checkpoint", "replay", "append"))
        assert [counts[f"killed in: {place}"] for place in ("checkpoint", "replay", "append")] == [1, 1, 1]

    def test_status_of_a_torn_run(self, tmp_path, run):
        called("run", "bci2a", *FEW, "--trials", 1, "--out", tmp_path / "run")
        path = tmp_path / "run" / "results.jsonl"
        path.write_text(path.read_text()[:-40])
        shown = " ".join(called("status", tmp_path / "run").split())
        assert "has 1 damaged line (line 6: cut off)" in shown and "the next run repairs it" in shown
        assert "mean" in called("status", tmp_path / "run", "--results")
        (tmp_path / "run" / "config.json").write_text(json.dumps({"study": {}}))
        code, _, said = run("status", "run")
        assert code == 1 and "config.json is damaged" in said


@pytest.mark.parametrize(
    ("config", "runs"), [("eeg-motor-imagery", ["one", "other"]), ("ecg-beats", ["one"])]
)
def test_baselines_are_computed_kept_and_repeat(config, runs, tmp_path):
    study = scaled(load(config, methods=BASELINES, protocol={"seeds": [1]}), "smoke")
    assert study.reference == "discriminant"
    repeats = []
    for name in runs:
        folder = tmp_path / name
        run_study(study, folder)
        run = RunFolder(folder)
        results = run.read().results
        assert {result.method for result in results} == set(BASELINES)
        assert len({(r.base_seed, r.method, r.trial) for r in results}) == len(run.jobs())
        repeats.append(results)
        run_study(study, folder)  # nothing is left to do
        assert len(run.read().results) == len(results)
    for one, other in zip(repeats[0], repeats[-1], strict=True):
        np.testing.assert_array_equal(one.confusion, other.confusion)
    penalties = [r.facts["penalty"] for r in repeats[0] if r.method == "ranpac" and r.trial is None]
    assert penalties and all(penalty > 0 for penalty in penalties)


DOCS = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")


class TestDocs:
    def test_the_commands_work(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        commands = "".join(re.findall(r"```console\n(.*?)```", DOCS, flags=re.DOTALL)).splitlines()
        assert len(commands) == 4
        for command in commands:
            assert called(*command.split()[1:])

    def test_the_config_is_one_and_runs(self, tmp_path, monkeypatch):
        (text,) = re.findall(r"```toml\n(.*?)```", DOCS, flags=re.DOTALL)
        (tmp_path / "mine.toml").write_text(text)
        study = load(str(tmp_path / "mine.toml"))
        assert list(study.variants) == ["50 anchors", "10 anchors"]
        sizes = {"n_classes": 3, "n_subjects": 1, "n_per_class": 12, "n_chans": 4, "n_times": 128}
        data = synthetic.eeg(n_sessions=2, **sizes, seed=0)
        names = np.array(["feet", "left", "right"])[data.labels]
        split = np.where(data.sessions == 0, "train", "test")
        Dataset.from_arrays(data.signals, names, sfreq=250, split=split).write(tmp_path / "set")
        quick = text.replace("epochs = 100", "epochs = 1").replace("trials = 20", "trials = 1")
        quick = quick.replace("[200]", "[2]")
        (tmp_path / "mine.toml").write_text(
            quick.replace('[[variants]]\nname = "50', '[inversion]\nsteps = 2\n\n[[variants]]\nname = "50')
        )
        where = ("--data", tmp_path / "set", "--out", tmp_path / "run")
        called("run", tmp_path / "mine.toml", *where, "--threads", 1)
        assert {x["base_seed"] for x in lines(tmp_path / "run")} == {5, 6, 7}

    def test_every_shipped_config_is_listed(self):
        assert all(f"`{name}`" in DOCS for name in shipped())
