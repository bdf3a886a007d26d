"""Names that try to do more than be read, from a run to its page, tables and figures."""

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from anchorinv.datasets.dataset import Dataset
from anchorinv.errors import shown
from anchorinv.report import feature_figures, formats
from anchorinv.report.formats import Column, Number, Table, as_csv, as_latex, as_markdown, document
from tests.hostile import NAMES, SENTENCE, check_readable
from tests.models import RATE, windows
from tests.test_terminal import main

LATEX = shutil.which("pdflatex")
#: A title, what it is of the paper's, three classes, two variants and their data sets.
CONFIG = """
title = {0}
paper = {1}
methods = ["protonet", "anchorinv"]
threads = 1
protocol = {{base_classes = [{2}, {3}], sessions = [{4}], shots = 2, trials = 1, seeds = [5]}}
training = {{epochs = 1}}
inversion = {{steps = 1}}
anchors = {{per_class = 4}}
[geometry]
n_chans = 4
n_times = 64
kernel = 9
pool = 16
pool_stride = 8
width = 8
heads = 2
depth = 2
[finetuning.steps]
anchorinv = [1]
[[variants]]
name = {5}
data.name = {6}
[[variants]]
name = {7}
data.name = {8}
"""
SETS = [NAMES[i : i + 9] for i in (0, 10)]


def toml(name: str) -> str:
    """A TOML string; JSON's escapes are its own, but DEL and what is above ASCII must be escaped as well."""
    return json.dumps(name).replace("\x7f", r"\u007f")


def recordings(folder: Path, names) -> Path:
    X, y = windows(48, classes=tuple(names))
    split = ["train"] * 24 + ["test"] * 24
    channels = (*names, "$C3$")
    Dataset.from_arrays(X, y, sfreq=RATE, split=split, ch_names=channels, unit="µV").write(folder)
    return folder


@pytest.mark.parametrize("names", SETS)
def test_a_run_and_its_report(names, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "FORMATS", {"svg": {"Date": None}})
    monkeypatch.setattr(feature_figures, "ITERATIONS", 250)
    monkeypatch.setattr(feature_figures, "LEAST_STEPS", 1)
    data = [f"../{names[0].replace('=', '')}", f"b{names[1].replace('=', '')}"]
    names = [*names[:5], f"a{names[5]}", data[0], f"b{names[6]}", data[1]]
    (tmp_path / "c.toml").write_text(CONFIG.format(*map(toml, names)), encoding="utf-8")
    folders = []
    for i, name in enumerate(data):
        folders += ["--data", f"{name}={recordings(tmp_path / str(i), names[2:5])}"]
    run = tmp_path / f"run {NAMES[6].replace('/', '')} \x1b"
    said, _ = main("run", tmp_path / "c.toml", *folders, "--out", run, "--log-level", "info")
    assert shown(names[0]) in said and shown(names[5]).strip() in said
    check_readable((run / "run.log").read_text(encoding="utf-8"))
    for name in ("scores", "comparisons"):
        text = (run / f"{name}.csv").read_text(encoding="utf-8")
        check_readable(text)
        assert all(not row[0].startswith(("=", "@")) for row in csv.reader(text.splitlines()))
    said, _ = main("status", run, "--results")
    assert shown(names[0]) in said and shown(names[7]).strip() in said
    main("report", run, *folders)
    report = run / "report"
    check_readable((report / "report.html").read_text(encoding="utf-8"))
    for path in [*report.glob("tables/*"), *report.glob("figures/*.svg")]:
        text = path.read_text(encoding="utf-8")
        check_readable(text)
        if path.suffix == ".svg":
            ET.fromstring(text)
    drawn = "".join(
        ET.tostring(ET.parse(path).getroot(), "unicode", "text") for path in report.glob("figures/*.svg")
    )
    for name in (*names[2:5], "$C3$"):
        assert "".join(shown(name).split()) in "".join(drawn.split()), name
    assert {path.name for path in report.iterdir()} == {"report.html", "tables", "figures"}
    assert not list(run.glob("*.svg")), "no figure is written beside its folder"


@pytest.fixture(scope="module")
def table():
    columns = [Column("name"), *(Column(name, name) for name in NAMES)]
    rows = [[name, *(Number(-0.5, 0.1, signed=True, mark="†") for _ in NAMES)] for name in NAMES]
    return Table("hostile", NAMES[0], columns, rows, list(NAMES))


def test_a_table_in_all_forms(table):
    for text in (as_csv(table), as_latex(table), as_markdown(table)):
        check_readable(text)
    head, *rows = csv.reader(as_csv(table).splitlines())
    assert [row[0].removeprefix("'") for row in rows] == list(map(shown, NAMES))
    assert all(row[1] == "-0.50" for row in rows) and len({len(row) for row in [head, *rows]}) == 1
    assert len(re.findall(r"^\|", as_markdown(table), flags=re.MULTILINE)) == 2 + len(NAMES)
    assert not re.search(rf"^{SENTENCE}", as_latex(table), flags=re.MULTILINE)


def test_it_compiles(table, tmp_path):
    if not LATEX:
        pytest.skip("no LaTeX here")
    (tmp_path / "hostile.tex").write_text(as_latex(table), encoding="utf-8")
    (tmp_path / "all.tex").write_text(document(["hostile"]), encoding="utf-8")
    done = subprocess.run(
        [LATEX, "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
