"""What a newcomer does, as they do it: the README's commands and lines, in a fresh folder.

The demo and a small study, which take their time, run once, from a wheel: tests/test_wheel.py.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier
from anchorinv.study import loading

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND = Path(sys.executable).with_name("anchorinv")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands():
    lines = "".join(blocks("console")).splitlines()
    return [line.split("#")[0].strip() for line in lines if line.strip()]


def started(*command, cwd, **variables):
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def on_model_files():
    """Commands that docs/deploy.md shows too: tests/cli/test_deploy.py runs that page, files and all."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    run_there = re.findall(r"^anchorinv .*$", page, flags=re.MULTILINE)
    return [command for command in commands() if command.removeprefix(".venv/bin/") in run_there]


def test_every_command_of_the_readme_is_run_below_or_from_a_wheel():
    assert sorted(set(commands())) == sorted([
        "make demo",
        "make test",
        ".venv/bin/anchorinv run bci2a --scale smoke",
        *on_model_files(),
    ])  # fmt: skip


def not_ours():
    """Whether ``make`` would install into an environment that is not this clone's own, or is not there."""
    ours = Path(sys.executable).parent == ROOT / ".venv" / "bin" and not (ROOT / ".venv").is_symlink()
    return not ours or not shutil.which("make")


def test_make_demo_runs_the_demo_and_installs_once(tmp_path):
    if not_ours():
        pytest.skip("make demo would install into .venv; these tests run from elsewhere")
    assert started("make", ".venv/.runtime", cwd=ROOT).returncode == 0
    # The demo itself runs from a wheel; asking for its help takes a moment instead of a minute.
    done = started("make", "demo", "ARGS=--help", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "anchorinv demo" in done.stdout and "--quick" in done.stdout
    assert "pip install" not in done.stdout, "a second run installs nothing"


def test_make_test_is_check_and_the_suite():
    if not shutil.which("make"):
        pytest.skip("no make here")
    planned = started("make", "-n", "test", cwd=ROOT).stdout
    assert re.search(r"ruff format --check.*ruff check.*mypy.*pytest", planned, flags=re.DOTALL)


def test_make_bench_runs_the_benchmarks():
    if not_ours():
        pytest.skip("make bench would install into .venv; these tests run from elsewhere")
    done = started("make", "bench", "ARGS=--help", cwd=ROOT)
    assert done.returncode == 0 and "--json" in done.stdout


def test_help_comes_without_torch(tmp_path):
    done = started(COMMAND, "--help", cwd=tmp_path)
    assert done.returncode == 0 and "demo" in done.stdout
    looked = "import sys, anchorinv.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert started(sys.executable, "-c", looked, cwd=tmp_path).returncode == 0


def test_mistakes_end_in_a_sentence_and_a_non_zero_exit(tmp_path, run):
    (tmp_path / "file").write_text("not a folder")
    code, _, said = run("demo", "--quick", "--out", "file/runs")
    assert code == 1 and said.startswith("anchorinv: ")
    assert started(COMMAND, "dmo", cwd=tmp_path).returncode == 2
    assert started(COMMAND, "--version", cwd=tmp_path).stdout.startswith("anchorinv 0.")


def test_a_bad_target_is_found_before_anything_is_computed(tmp_path, run):
    (tmp_path / "results.jsonl").mkdir()
    code, _, said = run("demo", "--out", ".")
    assert code == 1 and "is not a run folder, it contains results.jsonl; choose an empty" in said


def test_the_demo_on_synthetic_recordings_says_so(tmp_path, run, monkeypatch):
    small = loading.scaled(loading.demo_study(synthetic=True, quick=True), "smoke")
    monkeypatch.setattr(loading, "demo_study", lambda **asked: small if asked["synthetic"] else None)
    monkeypatch.setattr("anchorinv.report.page.make_report", lambda runs, to, data: to / "report.html")
    code, shown, _ = run("demo", "--synthetic", "--quick")
    assert code == 0 and shown.startswith("Synthetic EMG-like recordings: no person's data")
    assert "After 3 new classes" in shown and "Real" not in shown.partition("Macro-F1")[0]
    assert (tmp_path / "runs" / "demo-synthetic-quick" / "results.jsonl").exists()


def test_ctrl_c_says_what_is_kept(tmp_path, run, monkeypatch):
    """As if it were pressed; a true signal stops a run in tests/cli/test_study.py."""

    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("anchorinv.study.execute.run_study", pressed)
    code, _, message = run("demo", "--quick")
    assert code == 130 and "anchorinv: stopped; finished trials are in" in message
    assert not list(tmp_path.rglob("results.jsonl"))


def names(shape):
    rng = np.random.default_rng(0)
    return {
        "signals": rng.normal(size=shape),
        "labels": ["left", "right"] * (shape[0] // 2),
        "ten_new_signals": rng.normal(size=(10, *shape[1:])),
    }


@pytest.mark.parametrize("shape", [(60, 8, 300), (40, 22, 1000), (30, 1, 600)])
def test_the_four_lines(shape, monkeypatch):
    # The settings alone are cut short; one shape runs with the true defaults below.
    for name, value in {"epochs": 2, "inversion_steps": 2, "finetune_steps": 2}.items():
        monkeypatch.setitem(AnchorInvClassifier.__init__.__kwdefaults__, name, value)
    scope = names(shape)
    exec(blocks("python")[0], scope)
    assert scope["model"].classes_.tolist() == ["left", "right", "tongue"]
    assert scope["model"].predict(scope["signals"]).shape == (shape[0],)


def test_the_four_lines_with_defaults():
    scope = names((20, 1, 200))
    scope["signals"][::2] *= 3  # classes that are separated by classical features: no network is trained
    exec(blocks("python")[0], scope)
    probabilities = scope["model"].predict_proba(scope["ten_new_signals"])
    assert probabilities.shape == (10, 3) and np.isfinite(probabilities).all()


def test_own_data_from_a_file(tmp_path, monkeypatch, capfd):
    for name, value in {"epochs": 2, "inversion_steps": 2}.items():
        monkeypatch.setitem(AnchorInvClassifier.__init__.__kwdefaults__, name, value)
    scope = names((20, 4, 128))
    np.savez(tmp_path / "recordings.npz", X=scope["signals"], y=scope["labels"])
    monkeypatch.chdir(tmp_path)
    file = np.load("recordings.npz")
    model = AnchorInvClassifier(verbose=True).fit(file["X"], file["y"])
    assert model.classes_.tolist() == ["left", "right"]
    assert "rehearsal" in capfd.readouterr().err
