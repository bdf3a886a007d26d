"""The recordings that come with the package: what they are, where they are from, and the demo on them."""

import json
import runpy
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anchorinv.cli.study import folders_of
from anchorinv.datasets.npz_sets import EMG_DEMO, EMG_LONGTERM, emg_demo
from anchorinv.datasets.prepare import prepare
from anchorinv.report.gather import command, gather
from anchorinv.report.page import fill_marks, marks_of
from anchorinv.study.config import Study
from anchorinv.study.loading import demo_study, load
from tests.datasets.genuine import shared

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src" / "anchorinv" / "datasets" / "emg_demo" / EMG_DEMO.file
RECORD = ROOT / "docs" / "results" / "demo-emg.jsonl"


@pytest.fixture(scope="module")
def data():
    return emg_demo()


def test_days_lie_between_training_and_test(data):
    assert FILE.stat().st_size <= 4e6
    assert (data.n_chans, data.n_times, data.sfreq, len(data)) == (8, 300, 200, 960)
    assert set(data.subjects) == {"1"} and data.class_names == EMG_LONGTERM.classes[:16]
    days = {part: {int(day) for day in data.sessions[data.split == part]} for part in ("train", "test")}
    assert days == {"train": set(range(1, 21)), "test": set(range(21, 31))}
    for part, n_days in (("train", 20), ("test", 10)):
        assert np.bincount(data.labels[data.split == part]).tolist() == [2 * n_days] * 16
    assert data.meta["licence"] == "Apache-2.0" and "Suguru55/" in data.meta["origin"]


def test_they_are_cut_from_the_public_file_by_the_stated_rule():
    whole = shared("emg_longterm.npz")
    cut = runpy.run_path(str(ROOT / "docs" / "demo_data.py"))["cut"](whole)
    with np.load(FILE, allow_pickle=False) as there:
        assert sorted(there.files) == sorted(cut)
        assert all(np.array_equal(there[name], cut[name]) for name in cut)


def test_studies_of_them_need_no_folder_and_take_one_all_the_same(data, tmp_path):
    found = folders_of([load("demo-emg")], [])
    assert list(found) == ["emg-demo"] and found["emg-demo"].fingerprint == data.fingerprint
    prepare(EMG_DEMO.plan(FILE), tmp_path / "mine")
    given = folders_of([load("demo-emg")], [str(tmp_path / "mine")])
    assert isinstance(given["emg-demo"].samples, np.memmap)
    assert folders_of([load("emg-longterm"), load("demo")], []) == {}


def test_the_demo_compares_the_default_with_the_papers_method_on_ten_and_six_motions():
    (full,), (quick,) = (demo_study(quick=quick).variants.values() for quick in (False, True))
    for each in (full, quick):
        assert each.synthetic is None and each.methods == ("discriminant", "lda", "anchorinv", "protonet")
        assert each.protocol.base_classes == (*range(10),) and each.protocol.sessions == (*range(10, 16),)
    assert quick.protocol.trials < full.protocol.trials and quick.training.epochs < full.training.epochs
    (synthetic,) = demo_study(synthetic=True).variants.values()
    assert synthetic.synthetic is not None and synthetic.methods == ("anchorinv", "protonet", "finetune")


def test_the_readme_shows_what_a_run_of_the_demo_came_to():
    """The table from the record, the figure drawn from it, and the record one of the demo as it is."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    runs = gather([RECORD])
    found = fill_marks(text, runs, "README")
    assert [mark.what for mark in marks_of(text)] == ["last"] and not found.waiting
    assert text == found.text, "the README's table is not what its record says; make results"
    picture = Image.open(ROOT / "docs" / "real-data.png")
    assert picture.text["Source"] == sha256(RECORD.read_bytes()).hexdigest(), "make results"
    first = json.loads(RECORD.read_text(encoding="utf-8").partition("\n")[0])
    assert Study.model_validate(first["study"]) == demo_study(), "record a run of the demo anew"
    assert first["data"]["emg-demo"]["fingerprint"] == emg_demo().fingerprint
    assert command(runs[0]) == "anchorinv run demo-emg --out runs/demo-emg"
