"""One number, everywhere the same, and what scikit-learn makes of the results."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score

from tests.report.reading import in_csv, in_latex, in_page

PARTS = ("f1_all", "f1_base", "f1_new")


def recomputed(run: Path) -> dict[tuple[str, int, str], str]:
    """Mean ± population std of macro-F1 in percent, from results.jsonl by scikit-learn."""
    values: dict[tuple[str, int, str], list[float]] = {}
    for line in (run / "results.jsonl").read_text().splitlines():
        result = json.loads(line)
        confusion, classes = np.array(result["confusion"]), np.array(result["classes"])
        true = np.repeat(classes, confusion.sum(1))
        predicted = np.concatenate([np.repeat(classes, row) for row in confusion])
        groups = {
            "f1_all": classes,
            "f1_base": classes[: result["n_base"]],
            "f1_new": classes[result["n_base"] :],
        }
        for part, labels in groups.items():
            if len(labels):
                score = f1_score(true, predicted, labels=labels, average="macro", zero_division=0)
                values.setdefault((result["method"], result["session"], part), []).append(100 * score)
    return {
        key: f"{np.mean(some):.2f} ± {np.std(some):.2f}" if len(some) > 1 else f"{some[0]:.2f}"
        for key, some in values.items()
    }


@pytest.mark.parametrize("which", ["drawn", "with_features"])
def test_scores_are_those_of_scikit_learn(which, request):
    report = request.getfixturevalue(which)
    expected = recomputed(report.parent)
    methods = list(dict.fromkeys(method for method, _, _ in expected))
    last = max(session for _, session, _ in expected)
    columns = [(part, s) for part in PARTS for s in range(0 if part == "f1_all" else 1, last + 1)]
    rows = [[expected[method, session, part] for part, session in columns] for method in methods]
    for found in (
        in_page(report)["bci2a-scores"],
        in_csv(report, "bci2a-scores"),
        in_latex(report, "bci2a-scores"),
    ):
        assert [row[1:] for row in found] == rows
    assert len(rows) == (7 if which == "drawn" else 3)


@pytest.mark.parametrize("which", ["drawn", "with_features"])
def test_page_csv_and_latex_say_the_same(which, request):
    report = request.getfixturevalue(which)
    tables = in_page(report)
    assert {"bci2a-scores", "bci2a-paper", "bci2a-tests", "bci2a-cost"} <= set(tables)
    for slug, rows in tables.items():
        assert rows == in_csv(report, slug), slug
        assert rows == in_latex(report, slug), slug


def test_differences_from_the_paper_are_ours_minus_theirs(drawn):
    for row in in_csv(drawn, "bci2a-paper"):
        for i in range(2, len(row), 3):
            if row[i]:
                ours, paper, difference = (float(cell.split(" ±")[0]) for cell in row[i : i + 3])
                assert difference == pytest.approx(ours - paper, abs=0.006)
    assert "‡" in (drawn / "tables" / "bci2a-paper.csv").read_text()


def test_the_best_is_bold_and_differences_are_marked(drawn):
    text = (drawn / "tables" / "bci2a-scores.tex").read_text()
    rows = {row.split(" & ")[0]: row for row in text.splitlines() if " & " in row}
    # Drawn with the most skill, over eight trials: p = 2 / 2 ** 8, six times corrected.
    assert r"\textbf" in rows["AnchorInv"] and r"\dagger" not in rows["AnchorInv"]
    assert all(r"\dagger" in rows[name] for name in ("Finetune", "ProtoNet"))
    assert "Holm" in text and "not for other base models" in text


def test_tests_are_those_of_the_study(drawn):
    from anchorinv.study.folder import RunFolder
    from anchorinv.study.scores import comparisons, method_title

    found = {(row[0], row[1]): row for row in in_csv(drawn, "bci2a-tests")}
    expected = list(comparisons(RunFolder(drawn.parent).read().results, "anchorinv"))
    assert len(found) == len(expected) == 12
    for each in expected:
        row, c = found[method_title(each.method), str(each.session)], each
        assert row[2:8] == [
            f"{c.difference:+.2f}", f"{c.low:+.2f}", f"{c.high:+.2f}", f"{c.p:.4f}", f"{c.p_holm:.4f}",
            f"{c.effect:+.2f}",
        ]  # fmt: skip
