"""A wheel is all that is needed: built, installed elsewhere, used in an empty folder without the clone."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
pytestmark = pytest.mark.xdist_group("wheel")

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "anchorinv"

# The command line as its script starts it, where the clone cannot be imported; what was is told in the end.
PROGRAM = """
import json, sys
from pathlib import Path
clone, told = Path(sys.argv.pop(1)), sys.argv.pop(1)
sys.path = [entry for entry in sys.path if entry and not Path(entry).resolve().is_relative_to(clone / "src")]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
from anchorinv.cli import main
try:
    main()
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
    """Return a function that runs a command in an empty folder, and looks where its code came from."""
    told = installed.parent / "modules.json"

    def command(*words):
        finished = done(
            *(sys.executable, "-c", PROGRAM, ROOT, told, *words),
            cwd=tmp_path,
            PYTHONPATH=str(installed),
            COLUMNS="120",
        )
        files = json.loads(told.read_text())
        assert len(files) > 10
        assert [name for name, file in files.items() if file and installed not in Path(file).parents] == []
        return finished.stdout

    return command


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        assert "Name: anchorinv" in archive.read(metadata).decode()
    here = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == {path.relative_to(PACKAGE.parent).as_posix() for path in here}
    endings = {Path(name).suffix for name in packed}
    assert {".py", ".toml", ".j2"} <= endings and "anchorinv/py.typed" in packed


def test_the_demo(anchorinv, tmp_path):
    shown = anchorinv("demo", "--quick")
    assert "Macro-F1" in shown and "report.html" in shown
    assert (tmp_path / "runs" / "demo-quick" / "report" / "report.html").stat().st_size > 100_000


def test_a_study_and_its_report(anchorinv, tmp_path):
    anchorinv("run", "bci2a", "--scale", "smoke", "--methods", "protonet", "--trials", "2", "--out", "run")
    anchorinv("report", "run")
    assert (tmp_path / "run" / "report" / "report.html").stat().st_size > 100_000
