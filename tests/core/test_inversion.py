"""Inversion: the textbook's result, for each sample by itself, and never worse than the start."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from anchorinv.core.conformer import Conformer
from anchorinv.core.inversion import Inversion, invert
from anchorinv.core.minimise import EarlyStopping
from anchorinv.core.networks import Geometry, frozen
from anchorinv.core.types import stream
from anchorinv.progress import Tick, listening
from tests import naive
from tests.core.small import pair, randn, same, untouched_generators, weights_of

TINY = Geometry(2, 24, kernel=4, pool=5, pool_stride=3, width=4, heads=2, depth=2)


def task(
    n: int, *, seed: int = 0, geometry: Geometry = TINY
) -> tuple[Conformer, naive.TwoConvConformer, Tensor, Tensor]:
    """A network, its twin, anchors that some signals have, and a start."""
    network, twin = pair(geometry, seed)
    shape = (n, geometry.n_chans, geometry.n_times)
    with torch.no_grad():
        anchors = network(randn(*shape, seed=seed + 1))
    return frozen(network), twin, anchors, randn(*shape, seed=seed + 2)


def distances(network: nn.Module, signals: Tensor, anchors: Tensor) -> Tensor:
    with torch.no_grad():
        return (network(signals) - anchors).abs().mean(1)


def textbook(network: nn.Module, anchors: Tensor, start: Tensor, steps: int, *, eps: float) -> Tensor:
    """The twin's loop, for batches that are not of 100: there the mean needs another eps."""
    network.eval().requires_grad_(False)
    signals = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([signals], lr=1e-2, eps=eps)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.l1_loss(network(signals), anchors).backward()
        optimizer.step()
    return signals.detach()


class TestEquivalence:
    @pytest.mark.parametrize("seed", [0, 1])
    def test_a_hundred_samples_are_the_twins(self, seed: int) -> None:
        network, twin, anchors, start = task(100, seed=seed)
        found = invert(network, anchors, start, Inversion(steps=12))
        assert (found.errors < distances(network, start, anchors)).all()  # so that all of them were kept
        expected = naive.invert(twin, anchors, start, steps=12, lr=1e-2)
        torch.testing.assert_close(found.signals, expected, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("n", [1, 7])
    def test_fewer_samples_are_what_they_would_be_among_a_hundred(self, n: int) -> None:
        network, twin, anchors, start = task(n)
        found = invert(network, anchors, start, Inversion(steps=12))
        expected = textbook(twin, anchors, start, 12, eps=1e-8 * 100 / n)
        torch.testing.assert_close(found.signals, expected, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("batch", [10, 100])
    def test_ten_samples_are_the_twins_where_eps_is_scaled_to_ten(self, batch: int) -> None:
        network, twin, anchors, start = task(10)
        found = invert(network, anchors, start, Inversion(steps=12, batch=batch))
        expected = naive.invert(twin, anchors, start, steps=12, lr=1e-2)
        away = (found.signals - expected).abs().max()
        assert (away < 1e-9) == (batch == 10) and (away > 1e-7) == (batch == 100)

    def test_eps_matters_where_gradients_are_small(self) -> None:
        # The published eps is relative to a mean over 100 samples: not scaled, results would differ.
        network, twin, anchors, start = task(100)
        unscaled = textbook(twin, anchors, start, 12, eps=1e-8 / 100)
        found = invert(network, anchors, start, Inversion(steps=12))
        assert (found.signals - unscaled).abs().max() > 1e-7


class TestIndependence:
    def test_of_the_chunk_size(self) -> None:
        network, _, anchors, start = task(11)
        whole = invert(network, anchors, start, Inversion(steps=15))
        for chunk in (1, 3, 4, 11):
            parts = invert(network, anchors, start, Inversion(steps=15, chunk=chunk))
            for name in ("signals", "errors", "curve"):
                torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=0, atol=1e-9)

    def test_of_the_neighbours(self) -> None:
        network, _, anchors, start = task(6)
        whole = invert(network, anchors, start, Inversion(steps=15))
        strange = torch.cat([100 * anchors[:3], anchors[3:]])
        beside = invert(network, strange, start, Inversion(steps=15))
        alone = invert(network, anchors[3:], start[3:], Inversion(steps=15))
        for other in (beside.signals[3:], alone.signals):
            torch.testing.assert_close(other, whole.signals[3:], rtol=0, atol=1e-9)

    def test_of_the_order(self) -> None:
        network, _, anchors, start = task(6)
        order = torch.tensor([4, 2, 0, 5, 1, 3])
        whole = invert(network, anchors, start, Inversion(steps=15))
        shuffled = invert(network, anchors[order], start[order], Inversion(steps=15))
        torch.testing.assert_close(shuffled.signals, whole.signals[order], rtol=0, atol=1e-9)


class TestNeverWorse:
    @pytest.mark.parametrize("lr", [1.0, 1e3, 1e10])
    @pytest.mark.parametrize("chunk", [2, 100])
    def test_than_the_start_whatever_the_rate(self, lr: float, chunk: int) -> None:
        network, _, anchors, start = task(5)
        start[1] = randn(5, 2, 24, seed=1)[1]  # already there
        before = distances(network, start, anchors)
        found = invert(network, anchors, start, Inversion(steps=4, lr=lr, chunk=chunk))
        assert (found.errors <= before).all()
        assert torch.equal(found.signals[1], start[1])
        torch.testing.assert_close(found.errors, distances(network, found.signals, anchors))
        assert found.curve[-1].item() == pytest.approx(found.errors.mean().item())

    @pytest.mark.parametrize(("dtype", "lr"), [(torch.float32, 3e38), (torch.float64, 1e308)])
    def test_not_even_where_numbers_overflow(self, dtype: torch.dtype, lr: float) -> None:
        network, _, anchors, start = task(3)
        network, anchors, start = network.to(dtype), anchors.to(dtype), start.to(dtype)
        found = invert(network, anchors, start, Inversion(steps=3, lr=lr))
        assert torch.isfinite(found.signals).all()
        assert (found.errors <= distances(network, start, anchors)).all()


class TestStart:
    def test_zeros(self) -> None:
        start = Inversion(from_zeros=True).start(3, (2, 24), rng=stream(0))
        assert torch.equal(start, torch.zeros(3, 2, 24))

    def test_standard_normal_from_the_generator_given(self) -> None:
        with untouched_generators():
            start = Inversion().start(50, (4, 100), rng=stream(0))
        assert start.shape == (50, 4, 100)
        assert abs(start.mean().item()) < 0.03
        assert abs(start.std().item() - 1) < 0.03
        assert torch.equal(Inversion().start(50, (4, 100), rng=stream(0)), start)
        assert not torch.equal(Inversion().start(50, (4, 100), rng=stream(1)), start)

    def test_zeros_can_be_inverted_from(self) -> None:
        network, _, anchors, start = task(4)
        found = invert(network, anchors, torch.zeros_like(start), Inversion(steps=30, lr=0.05))
        assert (found.errors < distances(network, torch.zeros_like(start), anchors)).all()


class TestCurve:
    def test_runs_from_the_first_error_to_the_last(self) -> None:
        network, _, anchors, start = task(6)
        found = invert(network, anchors, start, Inversion(steps=60, lr=0.05))
        before = distances(network, start, anchors)
        assert found.curve.shape == (61,)
        assert found.curve[0].item() == pytest.approx(before.mean().item())
        assert found.curve[-1].item() == pytest.approx(found.errors.mean().item())
        assert (found.errors < 0.5 * before).all()  # it does what it is for
        assert (found.curve.unfold(0, 10, 10).mean(1).diff() < 0).all()

    def test_no_steps(self) -> None:
        network, _, anchors, start = task(3)
        found = invert(network, anchors, start, Inversion(steps=0))
        assert torch.equal(found.signals, start)
        assert found.curve.tolist() == pytest.approx([distances(network, start, anchors).mean().item()])

    def test_an_early_stop_shortens_it(self) -> None:
        network, _, anchors, start = task(3)
        plan = Inversion(steps=200, lr=1e-6)  # so slow that nothing gets better
        stopped = invert(network, anchors, start, replace(plan, stop=EarlyStopping(window=5, patience=2)))
        assert len(stopped.curve) == 15 + 1
        assert len(invert(network, anchors, start, plan).curve) == 201

    def test_a_swift_one_is_closer_in_a_third_of_the_steps(self) -> None:
        network, _, anchors, start = task(4)
        full = invert(network, anchors, start, Inversion(steps=600))
        lbfgs = invert(network, anchors, start, Inversion.lbfgs(200))
        assert (lbfgs.errors <= 1.1 * full.errors).all()
        torch.testing.assert_close(lbfgs.errors, distances(network, lbfgs.signals, anchors))

    def test_a_swift_one_stops_each_sample_by_its_own_curve(self) -> None:
        network, _, anchors, start = task(3)
        start[0] = randn(3, 2, 24, seed=1)[0] + 1e-9  # as good as there
        together = invert(network, anchors, start, Inversion.lbfgs(100))
        alone = [
            invert(network, anchors[i : i + 1], start[i : i + 1], Inversion.lbfgs(100)) for i in range(3)
        ]
        # The first one has nothing left to gain, and stops whatever the others do.
        assert len(alone[0].curve) < 100 < len(alone[1].curve) == len(together.curve)
        assert torch.equal(together.signals[0], start[0])

    def test_a_swift_one_takes_the_steps_that_each_sample_would_alone(self) -> None:
        network, _, anchors, start = task(3)
        # No longer: quasi-Newton steps amplify roundings, which differ between processors.
        together = invert(network, anchors, start, Inversion.lbfgs(30))
        for i in range(3):
            alone = invert(network, anchors[i : i + 1], start[i : i + 1], Inversion.lbfgs(30))
            torch.testing.assert_close(alone.errors, together.errors[i : i + 1], rtol=1e-4, atol=1e-9)

    def test_a_chunk_that_stopped_early_counts_with_its_last_value(self) -> None:
        network, _, anchors, start = task(2)
        with torch.no_grad():
            start[0] = randn(2, 2, 24, seed=1)[0]  # already there: stops after one window
        stop = EarlyStopping(
            window=5, patience=100, enough=0.5 * distances(network, start, anchors)[1].item()
        )
        plan = Inversion(steps=20, lr=1e-3, chunk=1, stop=stop)
        found = invert(network, anchors, start, plan)
        alone = [invert(network, anchors[i : i + 1], start[i : i + 1], plan).curve for i in range(2)]
        assert [len(curve) for curve in alone] == [6, 21]
        assert len(found.curve) == 21
        torch.testing.assert_close(found.curve[:6], (alone[0] + alone[1][:6]) / 2)
        torch.testing.assert_close(found.curve[6:], (alone[0][-1] + alone[1][6:]) / 2)

    def test_the_mean_weighs_samples_not_chunks(self) -> None:
        network, _, anchors, start = task(5)
        found = invert(network, anchors, start, Inversion(steps=3, chunk=4))
        assert found.curve[0].item() == pytest.approx(distances(network, start, anchors).mean().item())


class TestValues:
    def test_nothing_given_is_changed_and_nothing_drawn(self) -> None:
        network, _, anchors, start = task(4)
        kept = weights_of(network), anchors.clone(), start.clone()
        with untouched_generators():
            found = invert(network, anchors, start, Inversion(steps=3))
        assert same((weights_of(network), anchors, start), kept)
        assert all(parameter.grad is None for parameter in network.parameters())
        assert not (found.signals.requires_grad or found.errors.requires_grad or found.curve.requires_grad)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_shape_and_precision_are_those_of_the_start(self, dtype: torch.dtype) -> None:
        network, _, anchors, start = task(4)
        found = invert(network.to(dtype), anchors.to(dtype), start.to(dtype), Inversion(steps=2, chunk=3))
        assert found.signals.shape == start.shape
        assert found.signals.dtype == found.errors.dtype == dtype
        assert found.signals.is_contiguous()

    def test_same_input_same_bits(self) -> None:
        network, _, anchors, start = task(4)
        first, second = (invert(network, anchors, start, Inversion(steps=5)) for _ in range(2))
        assert torch.equal(first.signals, second.signals)
        assert torch.equal(first.curve, second.curve)

    def test_progress_is_told(self) -> None:
        network, _, anchors, start = task(2)
        heard: list[Tick] = []
        with listening(heard.append):
            invert(network, anchors, start, Inversion(steps=10))
        assert {tick.task for tick in heard} == {"inverting"}
