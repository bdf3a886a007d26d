"""Calibration in reports: numbers anew from the lines, and what there is without probabilities."""

import json
from pathlib import Path

import numpy as np
import pytest

from anchorinv.core.metrics import SplitReliability
from anchorinv.report.formats import Number
from anchorinv.report.gather import gather, groups_of
from anchorinv.report.page import chapter, fill_marks
from anchorinv.report.score_figures import calibration_figure, reliability_figure
from anchorinv.report.tables import calibration_table
from tests.report.made import made, smoke

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five trials; finetune has no probabilities."""
    path = tmp_path_factory.mktemp("made") / "run"
    return made(path, smoke("bci2a", trials=5), measured=lambda part: part.method != "finetune")


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("without") / "old"
    return made(path, smoke("bci2a", trials=2), measured=lambda part: False)


def by_hand(folder: Path, method: str, part: str) -> tuple[list[float], list[float]]:
    """Calibration error and Brier score of each trial after the last session, from the lines."""
    errors, scores = [], []
    for line in (folder / "results.jsonl").read_text().splitlines():
        r = json.loads(line)
        if (r["method"], r["session"]) == (method, 2):
            bins = r["reliability"][part]
            gaps = zip(bins["confidence"], bins["correct"], strict=True)
            errors.append(sum(abs(a - b) for a, b in gaps) / sum(bins["counts"]))
            scores.append(bins["brier"] / sum(bins["counts"]))
    return errors, scores


def test_the_table_has_means_and_spreads_over_trials(folder):
    (run,) = gather([folder])
    table = calibration_table(run)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["Finetune"] == ["", "", "", ""]
    for method, line in (("anchorinv", "AnchorInv"), ("protonet", "ProtoNet")):
        (ece_base, brier_base), (ece_new, brier_new) = (by_hand(folder, method, p) for p in ("base", "new"))
        for cell, values in zip(rows[line], (ece_base, ece_new, brier_base, brier_new), strict=True):
            assert (cell.value, cell.spread) == pytest.approx((np.mean(values), np.std(values)))
    for place in range(1, 5):
        numbers = [row[place] for row in table.rows if isinstance(row[place], Number)]
        assert [n.best for n in numbers].count(True) == 1
        assert next(n for n in numbers if n.best).value == min(n.value for n in numbers)
    assert "5 of 35 results have no probabilities" in table.notes[-1]


def test_a_panel_for_each_method_with_probabilities(folder):
    (run,) = gather([folder])
    figure = calibration_figure("x", groups_of(run)[0])
    assert figure.alt.startswith("6 reliability diagrams")
    lines = groups_of(run)[0].lines["AnchorInv"]
    last = lines[lines["session"] == 2]["reliability"].tolist()
    both = sum(last[1:], last[0])
    assert f"AnchorInv: base classes {both.base.ece:.3f}, new classes {both.new.ece:.3f}" in figure.alt


def test_the_page_and_a_page_of_ones_own_have_both(folder):
    (run,) = gather([folder])
    slug = f"{run.slug}-calibration"
    made_chapter = chapter(run, "", {}, None, [])
    assert slug in [table.slug for table in made_chapter.details]
    assert slug in [figure.slug for figure in made_chapter.figures]
    marks = "<!-- table: run calibration -->\n<!-- end -->\n<!-- figure: run calibration -->\n<!-- end -->\n"
    page = fill_marks(marks, [run], "shown")
    assert "| AnchorInv | " in page.text and "(shown/run-calibration.png)" in page.text
    assert [figure.slug for figure in page.figures] == ["run-calibration"]


def test_a_run_without_probabilities_has_neither(without):
    (run,) = gather([without])
    assert calibration_table(run) is None and calibration_figure("x", groups_of(run)[0]) is None
    made_chapter = chapter(run, "", {}, None, [])
    assert not [each for each in (*made_chapter.details, *made_chapter.figures) if "calibration" in each.slug]
    for kind in ("table", "figure"):
        with pytest.raises(ValueError, match="no probabilities of its predictions; run the study again"):
            fill_marks(f"<!-- {kind}: old calibration -->\n<!-- end -->\n", [run], "shown")


def test_the_base_session_alone_has_no_new_classes(tmp_path):
    path = made(tmp_path / "run", smoke("bci2a", trials=1), skip=lambda part: part.trial is not None)
    (run,) = gather([path])
    assert {type(cell) for row in calibration_table(run).rows for cell in row[1:]} == {Number, str}
    assert "new classes" not in calibration_figure("x", groups_of(run)[0]).alt


@pytest.mark.parametrize("is_base", [[True, False], [True, True], [False, False]])
def test_the_diagram_of_one_model(is_base):
    both = SplitReliability.of([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1], is_base)
    figure = reliability_figure("x", both, "a model")
    assert ("new classes" in figure.alt) == (not all(is_base))
