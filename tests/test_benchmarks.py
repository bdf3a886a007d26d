import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inverted
from anchorinv.core.metrics import confusion
from anchorinv.core.networks import Geometry, encode, frozen
from anchorinv.core.training import Training
from benchmarks import __main__ as bench
from benchmarks import arithmetic, live, quality, steps, timing
from benchmarks.adaptation import Sizes, experiment, our_adaptation, twin_adaptation
from benchmarks.arithmetic import Cost
from benchmarks.cases import CASES
from benchmarks.growth import SWEEPS, USUAL, Point, exponent, measure_point
from benchmarks.latency import latency
from benchmarks.machine import Machine, measured
from benchmarks.memory import peak_resident, resident
from benchmarks.timing import Case, measure, timed
from tests import naive
from tests.core.small import SMALL, pair, randn

# Eight channels, because the gradient of the signals pads them to a multiple of that.
COUNTED = Geometry(8, 60, kernel=5, pool=6, pool_stride=3, width=8, heads=2, depth=3)
MACHINE = Machine(cores=2, threads=2, peak=1e9, bandwidth=1e9)


@pytest.fixture(autouse=True)
def _no_garbage(monkeypatch):
    """What the whole suite left behind is not looked through before each measurement."""
    monkeypatch.setattr(timing, "gc", SimpleNamespace(collect=lambda: None))


def counting(calls):
    def prepare(quick):
        def side(name, value):
            def work():
                calls.append(name)
                return value

            return work

        return side("twin", 20.0), side("ours", 2.0)

    return Case("toy", "sums", 1, 4, prepare, Cost(flop=1e6, bytes=1e3), repeats=5, quick_repeats=3)


def test_sides_take_turns_and_the_warm_up_does_not_count():
    calls, ticks = [], []
    figure = measure(counting(calls), MACHINE, quick=True, tick=lambda: ticks.append(1))
    assert calls == ["twin", "ours"] * 4 and len(ticks) == 4
    assert figure.ratio == 10 and figure.spread == 0 and figure.repeats == 3
    assert (
        figure.of_limit == 0.5
    )  # a million operations at a thousand million per second, in two milliseconds


def test_a_side_takes_milliseconds_per_unit():
    done = []
    assert timed(lambda: done.append(1), units=1e12)() < 1e-6 < timed(lambda: sum(range(10**5)))()
    assert done == [1]


def test_the_cases_of_the_issue_are_there():
    rows = {case.name: (case.must, case.aim) for case in CASES if case.must is not None}
    assert rows == {
        "inversion-step-bci": (5, 12),
        "training-step-bci": (3.5, 8),
        "finetuning-step-bci": (12, 30),
        "inference-bci": (4.5, 10),
        "scoring-bci": (15, 40),
        "inversion-memory-grabmyo": (5, 10),
        "adaptation-bci": (8, 25),
        "help-start": (2, None),
        "live-signal-path": (10, None),
        "live-signal-least": (0.6, 1),
        "live-confidence": (0.9, None),
    }
    names = {case.name for case in CASES}
    for kind in ("inversion-step", "training-step", "finetuning-step", "inference"):
        assert {f"{kind}-nhie", f"{kind}-grabmyo"} <= names


def test_time_to_equal_quality_is_there():
    rows = {case.name: case for case in CASES}
    aims = {"training-to-score-emg": 20, "inversion-to-error-bci": 30, "first-model-emg": 100}
    for name, aim in aims.items():
        figure = measure(rows[name], MACHINE, quick=True)
        assert figure.aim == aim and figure.repeats == 1 and 0 < figure.ratio < float("inf")


def uncovered(work, units=1):
    """What a side does and how many of its units that is, in place of a clock."""
    return work, units


def test_our_inversion_ends_at_the_error_of_the_textbook(monkeypatch):
    monkeypatch.setattr(quality, "timed", uncovered)
    (_, share), (ours, _) = quality.inversion_to_error(COUNTED, 3, 150, twin_steps=5)
    twin, network = steps.networks(COUNTED)
    start = steps.signals(COUNTED, 3, "start")
    anchors = encode(frozen(network), steps.signals(COUNTED, 3, "wanted"))
    found = naive.invert(twin, anchors, start, 150, 1e-2)
    reached = (twin(found) - anchors).abs().mean()
    assert ours().errors.mean() <= 1.001 * reached
    assert share == 5 / 150 and len(ours().curve) - 1 < 150


def test_our_training_ends_at_the_score_of_the_recipe(monkeypatch):
    monkeypatch.setattr(quality, "timed", uncovered)
    windows = quality.Windows(3, 4, 100, 4)
    (_, share), (ours, _) = quality.training_to_score(windows, twin_steps=2)
    learned, tested = windows.parts()
    assert len(learned) == 2 * len(tested) == 72 and share == 2 / 4
    recipe = quality.score(Geometry.for_shape(8, 100), Training(epochs=4), learned, tested)
    network, prototypes = ours()
    guessed = naive.predict(network, prototypes, tested.values, 20)
    assert (guessed == tested.labels).double().mean() >= recipe


def test_steps_are_looked_for_no_further_than_needed():
    curve, asked = torch.linspace(1, 0, 1001), []

    def lbfgs(length):
        asked.append(length)
        # The end lies a little above the way there, as where a last step is taken back.
        return Inverted(torch.zeros(1), curve[length : length + 1] + 0.0105, curve[: length + 1])

    assert quality.enough_steps(torch.tensor(0.7501), lbfgs, 1000) == 262
    assert asked == [100, 200, 400, 250, 262]
    with pytest.raises(RuntimeError, match="1000 steps did not reach"):
        quality.enough_steps(torch.tensor(-1.0), lbfgs, 1000)


def test_live_windows_of_both_sides_are_the_same():
    signals, sections = live.recording(5), live.BAND.sections(250)
    chunks = live.chunked(signals)
    ours = list(live.our_windows(chunks))
    assert [window.start for window in ours] == [0, 25, 50, 75, 100, 125, 150, 175, 200, 225, 250]
    textbook = list(naive.live_windows(sections, chunks, 1000))
    for window, twin in zip(ours, textbook[39:], strict=True):
        so_far = signals[:, : window.start + 1000]
        np.testing.assert_allclose(window.values, twin, atol=1e-9)
        np.testing.assert_allclose(window.values, naive.refiltered_window(sections, so_far, 1000), atol=1e-9)


def test_the_signal_path_is_measured(monkeypatch):
    monkeypatch.setattr(live, "N_WINDOWS", 20)
    for name in ("live-signal-path", "live-signal-least"):
        figure = measure(next(case for case in CASES if case.name == name), MACHINE, quick=True)
        assert figure.unit == "µs" and 0 < figure.ratio < float("inf")


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(bench, "CASES", [counting([]), replace(counting([]), name="other")])
    monkeypatch.setattr(bench, "measured", lambda: MACHINE)
    monkeypatch.setattr(bench, "latency", lambda repeats: [1.0 + i for i in range(repeats)])


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    bench.main()


def test_json_has_name_ratio_and_spread(tmp_path, monkeypatch, capsys, fast):
    run(monkeypatch, "--quick", "--json", str(tmp_path / "out.json"))
    figure, _ = json.loads((tmp_path / "out.json").read_text())
    assert figure["name"] == "toy" and {"ratio", "spread", "of_limit", "peak_gflops"} <= figure.keys()
    shown = capsys.readouterr().out
    assert "toy" in shown and "10.5 ms per live window on one core" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_only_some_rows(monkeypatch, capsys, fast):
    run(monkeypatch, "--quick", "--only", "oth")
    shown = capsys.readouterr().out
    assert "other" in shown and "toy" not in shown
    with pytest.raises(SystemExit):
        run(monkeypatch, "--only", "nothing")
    assert "no row starts with nothing; there are toy, other" in capsys.readouterr().err


def test_latency_is_measured_window_by_window():
    times = latency(3)
    assert len(times) == 3 and all(time > 0 for time in times)


def test_a_machine_and_a_process_have_sizes():
    machine = measured(repeats=1)
    assert machine.cores >= 1 and machine.peak > 0 and machine.bandwidth > 0
    held = torch.ones(10**7)
    assert held.nbytes < resident() <= peak_resident()


@pytest.fixture
def textbook_attention(monkeypatch):
    """Ours has rows of ones in its products, which the formulas rightly do not count."""

    def attend(qkv, *, heads, scale, mask=None):
        query, key, value = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        return (torch.softmax(scale * query @ key.mT, dim=3) @ value).transpose(1, 2).flatten(2)

    monkeypatch.setattr("anchorinv.core.conformer.attend", attend)


def counted(work) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_arithmetic_of_inversion_inference_and_scoring(textbook_attention):
    network, n = Conformer(COUNTED).eval().requires_grad_(False), 5
    signals = torch.randn(n, 8, 60)
    head = Cosine(torch.randn(3, COUNTED.dim)).requires_grad_(False)
    assert counted(lambda: head(network(signals))) == arithmetic.inference(COUNTED, n, 3).flop
    assert counted(lambda: network.trunk(signals)) == arithmetic.encoding(COUNTED, n).flop
    latents = network.trunk(signals)
    assert counted(lambda: head(network.tail(latents))) == arithmetic.scoring(COUNTED, n, 3).flop
    leaf = signals.requires_grad_()
    # The gradient of the signals is computed as a convolution of a padded gradient: zeros count there.
    zeros = 2 * n * (COUNTED.n_times - COUNTED.n_steps) * COUNTED.width * COUNTED.n_chans * COUNTED.kernel
    assert (
        counted(lambda: network(leaf).sum().backward()) == arithmetic.inversion_step(COUNTED, n).flop + zeros
    )


def test_arithmetic_of_training_and_finetuning(textbook_attention):
    network, head, n = Conformer(COUNTED), Cosine(torch.randn(2, COUNTED.dim)), 5
    signals, targets = torch.randn(n, 8, 60), torch.arange(n) % 2
    training = counted(lambda: head.loss(network.train()(signals), targets).backward())
    assert training == arithmetic.training_step(COUNTED, n, 2).flop
    latents = network.eval().trunk(signals).detach()
    tuning = counted(lambda: head.loss(network.tail(latents), targets).backward())
    # Nobody asks for the gradient of the latents, but the norm before the block's first map has weights.
    assert tuning == arithmetic.finetuning_step(COUNTED, n, 2).flop


def test_costs_add_up():
    cost = Cost(2, 30) + 2 * Cost(1, 5)
    assert cost == Cost(4, 40)
    assert cost.seconds(peak=2, bandwidth=10) == 4 and cost.seconds(peak=0.5, bandwidth=10) == 8


def test_weights_are_counted():
    network = Conformer(COUNTED)
    held = [*network.parameters(), network.trunk[0].norm.running_mean, network.trunk[0].norm.running_var]
    assert arithmetic.weights(COUNTED) == sum(4 * tensor.numel() for tensor in held)


def test_our_trials_predict_what_the_twins_do():
    ours, twin = pair(SMALL, seed=1)
    sizes = Sizes(trials=2, steps=3, per_class=4, shots=3, n_train=8, n_tests=9, lr=1e-2)
    base, train, test = experiment(ours, sizes)
    assert randn(1, seed=0).dtype == train.values.dtype == torch.float64
    results = [r for r in our_adaptation(ours, base, train, test, sizes) if r.trial is not None]
    predicted = twin_adaptation(twin, base, train, test, sizes)
    assert len(results) == len(predicted) == 4
    for result, guesses in zip(results, predicted, strict=True):
        truth = test.labels[test.labels <= result.session + 1]
        assert (result.confusion == confusion(truth.numpy(), guesses.numpy(), result.classes)).all()
        assert len(set(guesses.tolist())) > 1  # it takes more than one answer to tell them apart


def test_growth_has_an_exponent():
    assert exponent([Point("trials", n, 3.0 * n**1.5, 1, 1) for n in (1, 2, 7)]) == pytest.approx(1.5)
    assert SWEEPS.keys() == USUAL.keys()


def test_growth_is_measured_written_and_drawn(tmp_path, monkeypatch, capsys):
    found = measure_point(trials=1, shots=2, anchors=2, classes=1, channels=2)
    assert found["seconds"] > 0 and found["peak_mb"] >= found["beyond_mb"]
    points = [
        Point(name, n, found["seconds"] * n, 100 + n, n) for name in ("trials", "shots") for n in (1, 2)
    ]
    monkeypatch.setattr(bench, "grown", lambda: points)
    run(monkeypatch, "growth", "--json", str(tmp_path / "g.json"), "--figure", str(tmp_path / "g.png"))
    assert [point["size"] for point in json.loads((tmp_path / "g.json").read_text())] == [1, 2, 1, 2]
    shown = capsys.readouterr().out
    assert "size^1.00" in shown and "+1%" in shown
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
