"""Reports of what there is: every shipped config, several runs, unfinished and damaged ones."""

import json
import re
import shutil
import subprocess

import pytest

from anchorinv.report.page import make_report
from anchorinv.study.loading import load, shipped
from tests.report.made import made, smoke
from tests.report.reading import in_page

LATEX = shutil.which("pdflatex")


@pytest.mark.parametrize("config", shipped())
def test_every_shipped_config_has_a_report(config, tmp_path, undrawn):
    run = made(tmp_path / "run", smoke(config))
    page = make_report([run], tmp_path / "report").read_text()
    assert "smoke run" in page and 'class="warning"' in page
    slugs = set(in_page(tmp_path / "report"))
    assert {f"{config}-scores", f"{config}-cost"} <= slugs
    expected = {
        "anchor-selection": "selection",
        "bci2a-base-pairs": "pairs",
        "grabmyo-reduced-base": "base-classes",
    }
    ablations = {f"{config}-{name}" for name in expected.values()}
    assert slugs & ablations == ({f"{config}-{expected[config]}"} if config in expected else set())
    drawn = set(re.findall(r'id="figure-([^"]+)"', page))
    assert f"{config}-cost" in drawn and any("-sessions" in name for name in drawn)
    assert any("-confusion" in name for name in drawn)
    sweeps = {"bci2a-shots": "shots", "bci2a-anchors": "per-class", "grabmyo-reduced-base": "base-classes"}
    assert all((f"{config}-{name}" in drawn) == (key == config) for key, name in sweeps.items())
    # No base model was made, and the page says so instead of the figure.
    assert page.count("needs the base model") == (9 if config == "anchor-selection" else 3)


def test_the_selection_table_is_the_papers(tmp_path, undrawn):
    run = made(tmp_path / "run", smoke("anchor-selection", trials=6))
    make_report([run], tmp_path / "report")
    head, *rows = (tmp_path / "report/tables/anchor-selection-selection.csv").read_text().splitlines()
    assert [name for name in head.split(",") if "(" not in name] == [
        "Anchor selection",
        "bci2a",
        "nhie",
        "grabmyo",
    ]
    assert len(rows) == 6 and {row.split(",")[0] for row in rows} >= {"Random sample", "5 k-means clusters"}


def test_runs_side_by_side(tmp_path, undrawn):
    runs = [made(tmp_path / name, smoke(name)) for name in ("bci2a", "grabmyo", "grabmyo-4base")]
    page = make_report(runs, tmp_path / "report").read_text()
    rows = in_page(tmp_path / "report")["together"]
    assert [row[0] for row in rows][-1] == "AnchorInv" and len(rows[0]) == 4
    assert 'id="figure-together-sessions"' in page and 'id="figure-together-base-classes-grabmyo"' in page
    assert page.count("is a smoke run") == 3
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_two_runs_of_one_study_are_told_apart(tmp_path, undrawn):
    runs = [made(tmp_path / name, smoke("bci2a-shots")) for name in ("first", "second")]
    page = make_report(runs, tmp_path / "report").read_text()
    assert "bci2a-shots (first)" in page and "bci2a-shots (second)" in page
    with pytest.raises(ValueError, match="named twice"):
        make_report([runs[0], runs[0]], tmp_path / "report")


def test_an_unfinished_run_says_what_is_missing(tmp_path, undrawn):
    study = smoke("bci2a", trials=3)
    late = ("deepinv", "anchorinv")
    run = made(tmp_path / "run", study, skip=lambda part: part.method in late and part.trial in (1, 2))
    page = make_report([run], tmp_path / "report").read_text()
    assert "is not finished: 24 of 28 jobs are finished" in page
    assert "Missing jobs: deepinv: 2; anchorinv: 2." in page
    assert "over 1 to 3 trials" in page


@pytest.mark.parametrize("nothing", ["results", "new classes"])
def test_a_run_that_has_hardly_begun(nothing, tmp_path, undrawn):
    study = smoke("bci2a")
    run = made(tmp_path / "run", study, skip=lambda part: nothing == "results" or part.trial is not None)
    page = make_report([run], tmp_path / "report").read_text()
    assert "nothing to compare" in page and "is not finished" in page
    assert ("Macro-F1 (all classes)" in page) == (nothing == "new classes")


def test_a_torn_run_is_shown_as_far_as_it_is_whole(tmp_path, undrawn):
    run = made(tmp_path / "run", smoke("bci2a"))
    text = (run / "results.jsonl").read_text()
    (run / "results.jsonl").write_text(text[: len(text) * 2 // 3])
    page = make_report([run], tmp_path / "report").read_text()
    assert re.search(r"has 1 damaged line \(line \d+: cut off\)", page) and "is not finished" in page


def test_damage_ends_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run folder: config\.json is missing"):
        make_report([tmp_path], tmp_path / "report")
    run = made(tmp_path / "run", smoke("bci2a"))
    (run / "config.json").write_text('{"study": {"name": ')
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        make_report([run], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_only_studies_of_the_paper_have_lengths_of_the_papers_choosing(tmp_path, undrawn):
    for config, papers in {"bci2a-published": True, "eeg-motor-imagery-published": False}.items():
        run = made(tmp_path / config / "run", smoke(config))
        page = make_report([run], tmp_path / config / "report").read_text()
        assert ("chose them on the test set" in page) == papers
        assert ("The numbers of finetuning steps are the config" in page) != papers


def test_the_provenance(tmp_path, undrawn):
    run = made(tmp_path / "run", smoke("bci2a", trials=4))
    page = make_report([run], tmp_path / "report").read_text()
    about = json.loads((run / "config.json").read_text())
    for fact in (
        about["hash"],
        "0" * 24,
        "torch 2",
        "chose them on the test set",
        "nothing of later classes leaks",
    ):
        assert fact in page, fact
    assert f"anchorinv run bci2a --scale smoke --trials 4 --out {run}" in page
    assert f"anchorinv report {run} --out {tmp_path / 'report'}" in page


def test_a_full_run_on_recordings_is_not_in_red(tmp_path, undrawn):
    run = made(tmp_path / "run", load("bci2a-shots", protocol={"trials": 2}))
    page = make_report([run], tmp_path / "report").read_text()
    assert 'class="warning"' not in page
    assert "pass --data bci2a=FOLDER to anchorinv report" in page
    assert "anchorinv run bci2a-shots --trials 2 --data bci2a=FOLDER" in page


def test_the_page_is_one_small_file_beside_its_figures(with_features):
    page = (with_features / "report.html").read_text()
    assert len(page) < 5e6
    assert not re.findall(r'(?:src|href)="(?!#|data:|tables/|figures/)[^"]*"', page)
    assert "http://" not in re.sub(r"data:[^\"]*", "", page) and "https://" not in page
    for path in re.findall(r'href="((?:tables|figures)/[^"]+)"', page):
        assert (with_features / path).stat().st_size > 0, path
    images = re.findall(r'<img (?:[^>"]|"[^"]*")*>', page)  # a drawing has brackets of its own
    assert images and all(re.search(r'alt="[^"]{40,}"', image) for image in images)


def test_the_tables_compile(drawn, tmp_path):
    if not LATEX:
        pytest.skip("no LaTeX here")
    shutil.copytree(drawn / "tables", tmp_path / "tables")
    done = subprocess.run(
        [LATEX, "-interaction=nonstopmode", "-halt-on-error", "all-tables.tex"],
        cwd=tmp_path / "tables",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "tables" / "all-tables.pdf").stat().st_size > 10_000
