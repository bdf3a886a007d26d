import json
import sys

import pytest

from benchmarks import __main__ as bench
from benchmarks.cases import CASES
from benchmarks.latency import latency
from benchmarks.timing import Case, measure


def counting(calls):
    def prepare(twin_steps, our_steps):
        return (
            lambda: calls.append(("twin", sum(range(20_000 * twin_steps)))),
            lambda: calls.append(("ours", sum(range(2_000 * our_steps)))),
        )

    return Case("toy", "sums", 1, 2, 4, prepare)


def test_sides_take_turns_and_the_warm_up_does_not_count():
    calls, ticks = [], []
    figure = measure(counting(calls), 3, tick=lambda: ticks.append(1))
    assert [side for side, _ in calls] == ["twin", "ours"] * 4 and len(ticks) == 4
    assert figure.ratio == pytest.approx(figure.twin_ms / figure.ours_ms)
    assert figure.repeats == 3 and figure.spread >= 0


def test_the_cases_of_the_issue_are_there():
    musts = {case.name: case.must for case in CASES}
    assert musts == {
        "inversion-step-bci": 5,
        "training-step-bci": 3,
        "finetuning-step-bci": 10,
        "help-start": 2,
    }


def test_json_has_name_ratio_and_spread(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "CASES", [counting([])])
    monkeypatch.setattr(bench, "latency", lambda repeats: [1.0 + i for i in range(repeats)])
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--json", str(tmp_path / "out.json")])
    bench.main()
    (figure,) = json.loads((tmp_path / "out.json").read_text())
    assert figure["name"] == "toy" and {"ratio", "spread"} <= figure.keys()
    shown = capsys.readouterr().out
    assert "toy" in shown and "10.5 ms per live window on one core" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_latency_is_measured_window_by_window():
    times = latency(3)
    assert len(times) == 3 and all(time > 0 for time in times)
