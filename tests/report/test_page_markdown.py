"""A Markdown page filled from records: numbers anew from the lines; docs/results.md is so."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score
from typer.testing import CliRunner

from anchorinv.cli import app
from anchorinv.report.formats import Column, Number, Table, as_markdown
from anchorinv.report.gather import gather
from anchorinv.report.page import fill, fill_marks, make_report, marks_of
from anchorinv.study.folder import RunFolder, write_record
from anchorinv.study.loading import load
from tests.report.made import made, smoke

DOCS = Path(__file__).parents[2] / "docs"
END = "<!-- end -->"
N_METHODS = len(load("eeg-stress").variants[""].methods)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """All methods, two base seeds, five trials, two sessions; the results were drawn."""
    folder = tmp_path_factory.mktemp("record")
    run = made(folder / "run", smoke("eeg-stress", trials=5))
    return write_record(RunFolder(run), folder / "eeg.jsonl").path


def page(*marks: str) -> str:
    return "# Words\n\n" + "".join(f"before\n<!-- {mark} -->\n{END}\nafter\n" for mark in marks)


def table(path: Path, mark: str) -> tuple[list[str], dict[str, list[str]], str]:
    """The head, the rows by their first cell, and the notes of a table that a page was filled with."""
    text = fill_marks(page(f"table: {path.stem} {mark}"), gather([path]), "figures").text
    inside = text.split("-->\n")[1].split("<!--")[0]
    head, _, *rows = [line.strip("| ").split(" | ") for line in inside.splitlines() if line.startswith("|")]
    return head, {row[0]: row[1:] for row in rows}, inside.rpartition("|\n")[2].strip()


def f1(path: Path, session: int, classes: str = "all") -> dict[str, dict[tuple[int, int], float]]:
    """Macro-F1 in percent by method, base seed and trial, from the lines by scikit-learn."""
    found: dict[str, dict[tuple[int, int], float]] = {}
    for line in path.read_text().splitlines()[1:]:
        r = json.loads(line)
        if r["session"] != session:
            continue
        true = np.repeat(r["classes"], np.sum(r["confusion"], axis=1))
        guessed = np.concatenate([np.repeat(r["classes"], row) for row in r["confusion"]])
        n = r["n_base"]
        labels = {"all": r["classes"], "base": r["classes"][:n], "new": r["classes"][n:]}[classes]
        score = 100 * f1_score(true, guessed, labels=labels, average="macro", zero_division=0)
        found.setdefault(r["method"], {})[r["base_seed"], r["trial"] or 0] = score
    return found


def number(text: str) -> float:
    return float(text.strip("*†").replace("−", "-"))


def test_scores_are_those_of_scikit_learn(record):
    head, rows, notes = table(record, "scores")
    assert head == ["Method", "base", "1", "2", "base classes after 2", "new classes after 2"]
    columns = [f1(record, 0), f1(record, 1), f1(record, 2), f1(record, 2, "base"), f1(record, 2, "new")]
    for method, name in (("anchorinv", "AnchorInv"), ("finetune", "Finetune"), ("nc-fscil", "NC-FSCIL")):
        values = [list(column[method].values()) for column in columns]
        assert [re.sub(r"[*†]", "", cell) for cell in rows[name]] == [
            f"{np.mean(v):.1f} ± {np.std(v):.1f}" for v in values
        ]
    assert len(rows) == N_METHODS and "over 10 trials" in notes
    assert rows["AnchorInv"][2].startswith("**"), "drawn with the most skill"
    assert rows["Finetune"][2].endswith("†") and "† differs from Discriminant" in notes


@pytest.mark.parametrize(
    ("mark", "one", "sign"),
    [
        ("differences", "discriminant", 1),
        ("differences protonet", "protonet", 1),
        ("advantage deepinv", "deepinv", -1),
    ],
)
def test_differences_are_paired_within_base_seeds(record, mark, one, sign):
    head, rows, notes = table(record, mark)
    scores = f1(record, 2)
    names = {"finetune": "Finetune", "teen": "TEEN", "real-replay": "RealReplay"}
    raw = {
        m: stats.wilcoxon([scores[m][k] - scores[one][k] for k in scores[one]]).pvalue
        for m in scores
        if m != one
    }
    ranked = sorted(raw, key=lambda m: raw[m])
    for method, name in names.items():
        d = {k: sign * (scores[method][k] - scores[one][k]) for k in scores[one]}
        values = np.array(list(d.values()))
        seeds = [np.mean([v for k, v in d.items() if k[0] == seed]) for seed in (1, 2)]
        low, high = stats.t.interval(0.95, 9, values.mean(), values.std(ddof=1) / np.sqrt(10))
        cells = rows[name]
        assert number(cells[0]) == pytest.approx(values.mean(), abs=0.0051)
        assert [number(x) for x in cells[1].split(" to ")] == pytest.approx([low, high], abs=0.0051)
        upto = ranked[: ranked.index(method) + 1]
        holm = max(min(1.0, (N_METHODS - 1 - i) * raw[m]) for i, m in enumerate(upto))
        assert number(cells[2]) == pytest.approx(holm, abs=0.00006)
        assert cells[3] == "10"
        assert [number(x) for x in cells[4:6]] == pytest.approx(seeds, abs=0.0051)
        assert cells[6] == ("yes" if np.sign(seeds[0]) == np.sign(seeds[1]) else "no")
    assert len(rows) == N_METHODS - 1 and {row[-1] for row in rows.values()} <= {"yes", "no"}
    assert head[5:] == ["Seed 1", "Seed 2", "Same sign for every seed"]
    assert f"Holm-corrected over the {N_METHODS - 1} comparisons" in notes


def test_the_base_session_and_the_last_alone(record):
    head, rows, _ = table(record, "scores")
    fewer, cells, notes = table(record, "last")
    last = head.index(f"base classes after {head[-1].split()[-1]}") - 1
    kept = [0, 1, *range(last, len(head))]
    assert fewer == [head[i] for i in kept] and last > 2 and "the base session and the last" in notes
    assert cells == {name: [row[i - 1] for i in kept[1:]] for name, row in rows.items()}


def test_cost_and_choices(record, tmp_path):
    _, rows, _ = table(record, "cost")
    lines = [json.loads(line) for line in record.read_text().splitlines()[1:]]
    seconds = [r["seconds"] for r in lines if r["method"] == "teen" and r["session"]]
    assert number(rows["TEEN"][1]) == pytest.approx(np.mean(seconds), abs=0.0051)
    run = made(tmp_path / "shots", smoke("bci2a-shots", trials=2))
    head, rows, _ = table(write_record(RunFolder(run), tmp_path / "shots.jsonl").path, "choices")
    assert len(rows) == len(RunFolder(run).study().variants) and head[1:4] == [
        "all classes", "base classes", "new classes",
    ]  # fmt: skip
    assert head[-2:] == ["Trials", "Seconds a session"] and all(number(row[-1]) > 0 for row in rows.values())


def test_words_stay_and_filling_again_changes_nothing(record, tmp_path):
    text = page("table: eeg scores", "table: other scores", "figure: eeg sessions protonet")
    (tmp_path / "page.md").write_text(text)
    found = fill(tmp_path / "page.md", gather([record]))
    once = (tmp_path / "page.md").read_text()
    assert once.count("before\n") == once.count(f"{END}\nafter\n") == 3
    assert f"<!-- table: other scores -->\n{END}" in once
    assert [mark.runs for mark in found.waiting] == [("other",)]
    assert "](page/eeg-sessions-protonet.png)" in once
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["eeg-sessions-protonet.png"]
    assert (tmp_path / "page/eeg-sessions-protonet.png").read_bytes().startswith(b"\x89PNG")
    fill(tmp_path / "page.md", gather([record]))
    assert (tmp_path / "page.md").read_text() == once


def test_a_figure_of_two_runs_has_a_panel_for_each(record, tmp_path, undrawn):
    run = made(tmp_path / "emg", smoke("emg-longterm", trials=2))
    mark = "figure: emg eeg advantage anchorinv"
    text = fill_marks(page(mark), gather([record, run]), "figures").text
    assert "(figures/emg-eeg-advantage-anchorinv.png)" in text
    alt = text.split("![")[1].split("](")[0]
    assert alt.index("emg: Finetune +") < alt.index("eeg: Finetune +")
    assert "Right of zero, AnchorInv is better" in text


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        ("table: eeg score", "not a valid mark; it takes a run, then one of scores, last, diff"),
        ("table: scores", "not a valid mark"),
        ("table: eeg other scores", "not a valid mark"),
        ("figure: eeg cost", "one of sessions, differences, advantage"),
        ("table: eeg advantage anchorinv-minus", "has no results of anchorinv-minus; it has finetune,"),
        ("table: eeg scores -->\n<!-- table: eeg cost", "scores --> has no end; close it with <!-- end -->"),
    ],
)  # fmt: skip
def test_a_mark_that_cannot_be_filled(record, mark, told):
    with pytest.raises(ValueError, match=told):
        fill_marks(page(mark), gather([record]), "figures")


def test_a_torn_record_fills_nothing(record, tmp_path):
    (tmp_path / "eeg.jsonl").write_text(record.read_text()[:-9])
    (tmp_path / "page.md").write_text(page("table: eeg scores"))
    with pytest.raises(ValueError, match=r"eeg\.jsonl has 1 damaged line \(line \d+: cut off\)"):
        fill(tmp_path / "page.md", gather([tmp_path / "eeg.jsonl"]))
    lines = record.read_text().splitlines()
    wrong = {**json.loads(lines[1]), "confusion": [[1, 2], [3, -4]]}
    (tmp_path / "eeg.jsonl").write_text("\n".join([lines[0], json.dumps(wrong), ""]))
    with pytest.raises(ValueError, match=r"eeg\.jsonl has 1 damaged line \(line 2: 'confusion\.1\.1'"):
        fill(tmp_path / "page.md", gather([tmp_path / "eeg.jsonl"]))


def test_a_report_of_a_record_is_that_of_its_run(record, tmp_path, undrawn):
    make_report([record], tmp_path / "1")
    make_report([record.parent / "run"], tmp_path / "2")
    tables = sorted(path.name for path in (tmp_path / "1" / "tables").iterdir())
    assert "eeg-stress-scores.csv" in tables
    for name in tables:
        assert (tmp_path / "1/tables" / name).read_text() == (tmp_path / "2/tables" / name).read_text()
    shown = (tmp_path / "1" / "report.html").read_text()
    assert "anchorinv run eeg-stress --scale smoke --trials 5 --out runs/eeg" in shown
    assert "SHA-256 of eeg.jsonl" in shown and "None" not in shown.partition("Machine")[2][:200]


def test_the_commands(record, tmp_path):
    def called(*args: object, expect: int = 0) -> str:
        done = CliRunner().invoke(app, ["report", *map(str, args)], env={"COLUMNS": "150"})
        assert done.exit_code == expect, done.output
        return done.output

    run = record.parent / "run"
    assert f"mine.jsonl: {22 * N_METHODS} results, 0." in called(run, "--export", tmp_path / "mine.jsonl")
    assert (tmp_path / "mine.jsonl").read_bytes() == record.read_bytes()
    (tmp_path / "page.md").write_text(page("table: mine scores", "table: other cost"))
    shown = called(tmp_path / "mine.jsonl", "--into", tmp_path / "page.md")
    assert "filled from mine" in shown and "left alone: cost of other" in shown
    assert "| AnchorInv |" in (tmp_path / "page.md").read_text()
    assert "exclude each other" in called(run, "--export", "a.jsonl", "--into", "b.md", expect=2)
    assert "takes one run, got 2" in called(run, record, "--export", tmp_path / "a.jsonl", expect=2)
    assert "writes a .jsonl file" in called(run, "--export", tmp_path / "a.csv", expect=2)
    with pytest.raises(ValueError, match="has no marks to fill"):
        (tmp_path / "page.md").write_text("words")
        fill(tmp_path / "page.md", [])
    with pytest.raises(ValueError, match="not a readable page"):
        fill(tmp_path / "away.md", [])


def test_markdown_prints_what_a_table_holds():
    columns = [Column("Method"), Column("now", "F1"), Column("p")]
    rows = [
        ["a|b*", Number(-1.25, 0.5, best=True, mark="†"), ""],
        ["<i>", "", Number(2, digits=0, signed=True)],
    ]
    assert as_markdown(Table("slug", "Title", columns, rows, ["One.", "Two: p < 1."])) == (
        "| Method | F1: now | p |\n"
        "| --- | --: | --: |\n"
        "| a\\|b\\* | **−1.25 ± 0.50**† |  |\n"
        "| \\<i> |  | +2 |\n"
        "\nOne. Two: p < 1.\n"
    )


@pytest.mark.parametrize(
    ("page", "kinds"),
    [("results.md", {"scores", "differences", "advantage", "cost"}), ("choices.md", {"choices"})],
)
def test_pages_of_results_are_what_their_records_say(page, kinds, undrawn):
    """Every table and figure of a page from the committed records; nothing where there is none."""
    text = (DOCS / page).read_text(encoding="utf-8")
    records = sorted((DOCS / "results").glob("*.jsonl"))
    found = fill_marks(text, gather(records), "results")
    assert text == found.text, f"docs/{page} is not what its records say; make results"
    assert not [mark for mark in found.waiting if text[mark.start : mark.stop].strip()], (
        "numbers without a record"
    )
    assert all((DOCS / "results" / f"{figure.slug}.png").is_file() for figure in found.figures)
    assert kinds <= {mark.what for mark in marks_of(text)}
