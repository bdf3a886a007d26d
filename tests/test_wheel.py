"""A wheel is all that is needed: built, installed elsewhere, used in an empty folder without the clone."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "anchorinv"

# Commands one after another, each as its script starts it, where the clone cannot be imported; what was
# imported is told in the end.
PROGRAM = """
import json, sys
from pathlib import Path
clone, told = Path(sys.argv.pop(1)), sys.argv.pop(1)
sys.path = [entry for entry in sys.path if entry and not Path(entry).resolve().is_relative_to(clone / "src")]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
from anchorinv.cli import main
from anchorinv.report import formats
from anchorinv.study import loading
formats.FORMATS = {"svg": {"Date": None}}  # what the page shows; others are compared in tests/report
# That networks learn is not what is asked here; what is expected of the default method needs none.
loading._QUICK["training"]["epochs"] = loading._QUICK["inversion"]["steps"] = 2
loading._QUICK["finetuning"]["steps"] = {"anchorinv": [2], "finetune": [2]}
try:
    for words in json.loads(sys.argv[1]):
        sys.argv[1:] = words
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise
finally:
    modules = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    ours = {name: file for name, file in modules.items() if name.partition(".")[0] == "anchorinv"}
    Path(told).write_text(json.dumps(ours))
"""


def done(*command, cwd, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    finished = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (built,) = folder.glob("anchorinv-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel):
    target = wheel.parent / "installed"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    done(*pip, "install", "--no-deps", "--no-index", "--target", target, wheel, cwd=wheel.parent)
    return target


@pytest.fixture
def anchorinv(installed, tmp_path):
    """Return a function that runs commands in an empty folder, and looks where their code came from."""
    told = installed.parent / "modules.json"

    def commands(*lines):
        finished = done(
            *(sys.executable, "-c", PROGRAM, ROOT, told, json.dumps([line.split() for line in lines])),
            cwd=tmp_path,
            PYTHONPATH=str(installed),
            COLUMNS="120",
        )
        files = json.loads(told.read_text())
        assert len(files) > 10
        assert [name for name, file in files.items() if file and installed not in Path(file).parents] == []
        return finished.stdout

    return commands


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        assert "Name: anchorinv" in archive.read(metadata).decode()
    here = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == {path.relative_to(PACKAGE.parent).as_posix() for path in here}
    endings = {Path(name).suffix for name in packed}
    assert {".py", ".toml", ".j2"} <= endings and "anchorinv/py.typed" in packed


def test_the_recordings_in_the_wheel_come_with_their_licence_and_origin(wheel):
    with zipfile.ZipFile(wheel) as archive:
        sizes = {each.filename: each.file_size for each in archive.infolist()}
        about = {Path(name).name: archive.read(name).decode() for name in sizes if name.endswith(".md")}
        licences = [archive.read(name).decode() for name in sizes if name.endswith("/LICENSE")]
        metadata = next(archive.read(name).decode() for name in sizes if name.endswith("/METADATA"))
    assert 1e6 < sizes["anchorinv/datasets/emg_demo/emg_demo.npz"] <= 4e6
    assert "Suguru55/Wearable_Sensor_Long-term_sEMG_Dataset" in about["ORIGIN.md"]
    # Beside the file, and where installers look for licences.
    assert sum("Apache License" in text and "Version 2.0" in text for text in licences) == 2
    assert "License-Expression: BSD-3-Clause AND Apache-2.0" in metadata


def test_the_demo_its_report_a_study_and_its_status(anchorinv, tmp_path):
    shown = anchorinv(
        "demo --quick",
        "run bci2a --scale smoke --methods protonet --trials 2",
        "status runs/bci2a-smoke",
    )
    check_demo(shown, tmp_path / "runs" / "demo-quick" / "results.jsonl")
    assert "Macro-F1" in shown and "no evidence about real people" in shown  # of the study at a small scale
    assert "All 3 jobs are finished" in shown
    assert (tmp_path / "runs" / "demo-quick" / "report" / "report.html").stat().st_size > 100_000


def check_demo(shown, path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    methods = {line["method"] for line in lines}
    assert methods == {"discriminant", "lda", "anchorinv", "protonet"}
    assert all(method in shown for method in ("Discriminant", "LDA", "AnchorInv", "ProtoNet", "report.html"))
    assert "Real forearm EMG of one person" in shown and "After 6 new classes" in shown
    trials = {(line["method"], line["trial"], line["session"]) for line in lines}
    assert trials == {(m, None, 0) for m in methods} | {
        (m, trial, session) for m in methods for trial in range(2) for session in range(1, 7)
    }
    confusion = np.array(next(line for line in lines if line["session"] == 6)["confusion"])
    assert confusion.shape == (16, 16) and (confusion.sum(axis=1) == 20).all()  # ten days, two of each
    assert confusion.trace() > 0.6 * confusion.sum()  # of the default method: it works on real recordings
