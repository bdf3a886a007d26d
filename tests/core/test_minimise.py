"""The gradient loop: Adam as it is written down, a curve, a stop rule, and progress."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine
from anchorinv.core.minimise import EarlyStopping, OneCycle, Optimiser, minimise
from anchorinv.core.training import Training, train
from anchorinv.core.types import scoped_seed, stream
from anchorinv.progress import Tick, listening
from tests.core.small import SMALL, Drawer, randn, toy


def problem(seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """Two leaves of different shapes, and data that tie them together."""
    return [randn(4, 3, seed=seed), randn(3, seed=seed + 1)], randn(5, 4, seed=seed + 2)


def losses(leaves: list[Tensor], data: Tensor, step: int) -> Tensor:
    """One loss per sample (5,), different in every step."""
    return ((data @ leaves[0]).tanh() @ leaves[1] - step % 3).pow(2)


def adam(leaves: list[Tensor], data: Tensor, plan: Optimiser) -> tuple[list[Tensor], list[float]]:
    """Kingma and Ba, Algorithm 1, on the sum of the losses."""
    values = [leaf.clone().requires_grad_() for leaf in leaves]
    first = [torch.zeros_like(leaf) for leaf in leaves]
    second = [torch.zeros_like(leaf) for leaf in leaves]
    b1, b2 = plan.betas
    curve = []
    for t in range(1, plan.steps + 1):
        each = losses(values, data, t - 1)
        gradients = torch.autograd.grad(each.sum(), values)
        curve.append(each.mean().item())
        with torch.no_grad():
            for value, m, v, gradient in zip(values, first, second, gradients, strict=True):
                m.mul_(b1).add_((1 - b1) * gradient)
                v.mul_(b2).add_((1 - b2) * gradient**2)
                value -= plan.lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + plan.eps)
    return [value.detach() for value in values], curve


def run(plan: Optimiser) -> tuple[list[Tensor], Tensor]:
    start, data = problem()
    leaves = [leaf.requires_grad_() for leaf in start]
    curve = minimise(lambda step: losses(leaves, data, step), leaves, plan)
    return [leaf.detach() for leaf in leaves], curve


class GivenGradient(torch.autograd.Function):
    """A loss whose gradient is given, and lies in memory as it was given."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return leaf.sum()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


class TestDescend:
    @pytest.mark.parametrize(
        "plan",
        [
            Optimiser(1, 0.1),
            Optimiser(30, 0.01),
            Optimiser(30, 0.05, (0.5, 0.999)),
            Optimiser(30, 0.05, eps=0.3),
        ],
        ids=["one step", "usual", "published betas", "large eps"],
    )
    def test_is_adam_and_the_curve_is_the_mean_loss_before_each_step(self, plan: Optimiser) -> None:
        found, curve = run(plan)
        expected, expected_curve = adam(*problem(), plan)
        for value, other in zip(found, expected, strict=True):
            torch.testing.assert_close(value, other, rtol=1e-12, atol=1e-12)
        assert curve.tolist() == pytest.approx(expected_curve, rel=1e-12)

    def test_losses_of_samples_are_summed(self) -> None:
        start, data = problem()
        found = []
        for reduce in (lambda each: each, lambda each: each.sum()):
            leaves = [leaf.clone().requires_grad_() for leaf in start]
            plan = Optimiser(10, 0.05, eps=0.1)  # with a large eps Adam's steps show the gradients' size
            minimise(lambda step, r=reduce, at=leaves: r(losses(at, data, step)), leaves, plan)
            found.append(leaves)
        for value, other in zip(*found, strict=True):
            torch.testing.assert_close(value, other, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize(
        "laid_out",
        [
            lambda gradient: gradient.T.contiguous().T,
            lambda gradient: torch.cat([gradient, gradient], 1)[:, :3],
            lambda gradient: gradient[:1].expand(4, 3),
        ],
        ids=["turned", "part of a wider one", "one row for all"],
    )
    def test_the_layout_of_a_gradient_in_memory_does_not_matter(
        self, laid_out: Callable[[Tensor], Tensor]
    ) -> None:
        given = laid_out(randn(4, 3, seed=1))
        assert not given.is_contiguous()
        found = []
        for gradient in (given, given.contiguous()):
            leaf = randn(4, 3, seed=0).requires_grad_()
            minimise(lambda step, at=leaf, g=gradient: GivenGradient.apply(at, g), [leaf], Optimiser(3, 0.1))
            found.append(leaf.detach())
        assert torch.equal(*found)

    def test_no_steps_change_nothing_and_ask_nothing(self) -> None:
        leaf = randn(3, seed=0).requires_grad_()

        def never(step: int) -> Tensor:
            raise AssertionError("asked for a loss")

        curve = minimise(never, [leaf], Optimiser(0, 0.1))
        assert curve.shape == (0,)
        assert torch.equal(leaf, randn(3, seed=0))

    def test_parameters_may_come_from_a_generator(self) -> None:
        leaves, data = problem()
        plan = Optimiser(3, 0.1)
        minimise(lambda step: losses(leaves, data, step), (leaf.requires_grad_() for leaf in leaves), plan)
        expected, _ = adam(*problem(), plan)
        torch.testing.assert_close(leaves[1].detach(), expected[1])

    def test_works_where_gradients_are_off(self) -> None:
        with torch.no_grad():
            leaf = torch.ones(2, requires_grad=True)
            minimise(lambda step: leaf**2, [leaf], Optimiser(5, 0.1))
            assert not torch.is_grad_enabled()
        assert leaf.max() < 1

    def test_the_curve_has_no_history(self) -> None:
        _, curve = run(Optimiser(4, 0.1))
        assert curve.shape == (4,)
        assert not curve.requires_grad

    def test_stops_when_the_rule_says_so(self) -> None:
        leaf = torch.zeros(1, requires_grad=True)
        flat = Optimiser(100, 0.1, stop=EarlyStopping(window=5, patience=2))
        assert len(minimise(lambda step: leaf * 0 + 1, [leaf], flat)) == 15  # the first, then two no better

    def test_a_rule_that_never_holds_changes_nothing(self) -> None:
        with_rule, _ = run(Optimiser(20, 0.01, stop=EarlyStopping(window=3, patience=100)))
        without, _ = run(Optimiser(20, 0.01))
        assert all(map(torch.equal, with_rule, without))


class TestPlateau:
    @staticmethod
    def curve(*means: float, window: int = 2) -> Tensor:
        """A curve whose window means are these, though no single value is."""
        swing = torch.linspace(-0.3, 0.3, window)
        return torch.cat([mean + swing for mean in torch.tensor(means)])

    def test_a_falling_curve_has_not_got_there(self) -> None:
        rule = EarlyStopping(window=2, tolerance=0.1, patience=1)
        assert not any(rule.reached(self.curve(*(0.5**i for i in range(n)))) for n in range(1, 8))

    @pytest.mark.parametrize("patience", [1, 2, 3])
    def test_a_flat_curve_has_after_patience_windows(self, patience: int) -> None:
        rule = EarlyStopping(window=3, patience=patience)
        reached = [rule.reached(self.curve(*[1.0] * n, window=3)) for n in range(1, 6)]
        assert reached.index(True) == patience  # the first window is what the others are compared with

    def test_windows_are_looked_at_when_they_are_full(self) -> None:
        rule = EarlyStopping(window=3, patience=1)
        flat = torch.ones(12)
        assert [n for n in range(1, 13) if rule.reached(flat[:n])] == [6, 9, 12]

    def test_a_better_window_starts_the_count_anew(self) -> None:
        rule = EarlyStopping(window=2, tolerance=0.1, patience=2)
        assert not rule.reached(self.curve(1.0, 1.0, 0.5))
        assert not rule.reached(self.curve(1.0, 1.0, 0.5, 0.5))
        assert rule.reached(self.curve(1.0, 1.0, 0.5, 0.5, 0.5))

    def test_better_is_by_a_fraction_of_the_best_so_far(self) -> None:
        rule = EarlyStopping(window=2, tolerance=0.1, patience=1)
        assert rule.reached(self.curve(1.0, 0.92))
        assert not rule.reached(self.curve(1.0, 0.88))
        assert rule.reached(self.curve(1.0, 2.0))

    def test_many_small_gains_add_up(self) -> None:
        # Each is below tolerance, but they are measured from the best that counted.
        rule = EarlyStopping(window=2, tolerance=0.1, patience=3)
        assert not rule.reached(self.curve(1.0, 0.95, 0.92, 0.89, 0.85, 0.82))

    def test_enough_is_enough_though_still_falling(self) -> None:
        rule = EarlyStopping(window=2, patience=3, enough=0.2)
        assert not rule.reached(self.curve(1.0, 0.5))
        assert rule.reached(self.curve(1.0, 0.5, 0.15))
        assert rule.reached(self.curve(0.15))

    def test_enough_is_off_unless_asked_for(self) -> None:
        assert not EarlyStopping(window=2).reached(torch.zeros(2))


class TestProgress:
    @staticmethod
    def ticks(plan: Optimiser) -> tuple[list[Tick], Tensor]:
        heard: list[Tick] = []
        leaf = torch.ones(2, requires_grad=True)
        with listening(heard.append):
            curve = minimise(lambda step: leaf**2, [leaf], plan, task="shrinking")
        return heard, curve

    def test_arrives_every_ten_steps_and_at_the_end(self) -> None:
        heard, curve = self.ticks(Optimiser(25, 0.01))
        assert [(tick.task, tick.done, tick.total) for tick in heard] == [
            ("shrinking", done, 25) for done in (10, 20, 25)
        ]
        assert [tick.loss for tick in heard] == pytest.approx(curve[[9, 19, 24]].tolist())

    def test_an_early_end_is_reported_as_the_end(self) -> None:
        heard, curve = self.ticks(Optimiser(100, 1e-9, stop=EarlyStopping(window=4, patience=1)))
        assert len(curve) == 8
        assert (heard[-1].done, heard[-1].total) == (100, 100)

    def test_nobody_listens_outside_the_block(self) -> None:
        heard, _ = self.ticks(Optimiser(10, 0.01))
        run(Optimiser(10, 0.01))
        assert len(heard) == 1

    def test_listeners_nest(self) -> None:
        outer: list[Tick] = []
        with listening(outer.append):
            self.ticks(Optimiser(10, 0.01))
            assert outer == []
            run(Optimiser(10, 0.01))
        assert len(outer) == 1

    def test_a_listener_that_fails_is_not_left_listening(self) -> None:
        def fails(tick: Tick) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), listening(fails):
            run(Optimiser(10, 0.01))
        _, curve = run(Optimiser(10, 0.01))
        assert len(curve) == 10


class TestCheckpoint:
    @staticmethod
    def train(checkpoint: Drawer | None) -> tuple[list[Tensor], Tensor]:
        """Train a network whose dropout draws from the global generator, on batches in a shuffled order."""
        with scoped_seed(stream(0, "start")):
            network = Conformer(replace(SMALL, dropout=0.5))
            head = Cosine.start(4, SMALL.dim)
        plan = Training(epochs=4, batch_size=12, lr=1e-3)
        curve = train(network, head, toy(), plan, checkpoint=checkpoint, rng=stream(7))
        return [*network.state_dict().values(), *head.state_dict().values()], curve

    def test_a_training_taken_up_anywhere_ends_the_same_bit_by_bit(self) -> None:
        whole, curve = self.train(None)
        drawer = Drawer()
        self.train(drawer)
        assert len(drawer.kept) == 4  # after each epoch
        for left in drawer.kept:
            again, its_curve = self.train(Drawer(left))
            assert torch.equal(curve, its_curve)
            assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))

    def test_what_is_left_is_a_copy(self) -> None:
        drawer = Drawer()
        self.train(drawer)
        first, last = drawer.kept[0], drawer.kept[-1]
        assert any(not torch.equal(first[name], last[name]) for name in first if name.startswith("tensor"))

    def test_a_stop_rule_ends_it_where_it_would_have_ended(self) -> None:
        def optimiser(checkpoint: Drawer) -> Tensor:
            place = torch.tensor([1.0], requires_grad=True)
            rule = EarlyStopping(window=2, patience=2)
            plan = Optimiser(40, 1e-9, stop=rule)
            return minimise(lambda step: place.square().sum(), [place], plan, checkpoint=checkpoint)

        drawer = Drawer()
        curve = optimiser(drawer)
        assert len(curve) < 40
        assert all(torch.equal(optimiser(Drawer(left)), curve) for left in drawer.kept)


def torchs(steps: int, rise: float, lr: float = 0.3) -> list[float]:
    leaf = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.Adam([leaf], lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, lr, total_steps=steps, pct_start=rise, cycle_momentum=False
    )
    rates = []
    for _ in range(steps):
        rates.append(float(optimiser.param_groups[0]["lr"]))
        optimiser.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(("steps", "rise"), [(11, 0.3), (100, 0.3), (57, 0.15), (7, 0.5)])
def test_is_that_of_torch(steps: int, rise: float) -> None:
    plan = Optimiser(steps, 0.3, schedule=OneCycle(rise))
    assert [plan.rate(step) for step in range(steps)] == pytest.approx(torchs(steps, rise), rel=1e-12)


def test_rises_then_falls_between_first_highest_and_last() -> None:
    rates = [OneCycle(0.25, first=0.1, last=0.01)(step, 44) for step in range(44)]
    top = rates.index(max(rates))
    assert top == 10 and rates[0] == pytest.approx(0.1) and rates[-1] == pytest.approx(0.01)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_by_hand() -> None:
    # Of 20 steps 0 to 9 rise and 9 to 19 fall; half way down lies half way between the two rates.
    schedule = OneCycle(0.5, first=0.2, last=0.1)
    assert schedule(0, 20) == pytest.approx(0.2)
    assert schedule(9, 20) == pytest.approx(1.0)
    assert schedule(3, 20) == pytest.approx(1.0 - 0.4 * (1 + math.cos(math.pi / 3)))
    assert schedule(14, 20) == pytest.approx(0.55)
    assert schedule(19, 20) == pytest.approx(0.1)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_few_steps_have_rates_too(steps: int) -> None:
    rates = [OneCycle()(step, steps) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)
    assert max(rates) > 0.7  # no training at next to no rate


@pytest.mark.parametrize("wrong", [{"rise": 0.0}, {"rise": 1.0}, {"first": 0.0}, {"last": 2.0}])
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} "):
        OneCycle(**wrong)


def moved(plan: Optimiser) -> tuple[Tensor, Tensor]:
    leaf = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    curve = minimise(lambda step: (leaf**2).sum() + leaf.sin().sum() * step / 7, [leaf], plan)
    return leaf.detach(), curve


def test_the_loop_follows_it() -> None:
    ours, curve = moved(Optimiser(30, 0.1, schedule=OneCycle()))
    leaf = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([leaf], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=30, cycle_momentum=False)
    losses = []
    for step in range(30):
        optimiser.zero_grad()
        loss = (leaf**2).sum() + leaf.sin().sum() * step / 7
        losses.append(loss.item())
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    torch.testing.assert_close(ours, leaf.detach(), rtol=0, atol=1e-12)
    assert curve.tolist() == pytest.approx(losses)


def test_without_one_the_rate_stays() -> None:
    plan = Optimiser(9, 0.1)
    assert {plan.rate(step) for step in range(9)} == {0.1}
    assert not torch.equal(moved(plan)[0], moved(Optimiser(9, 0.1, schedule=OneCycle()))[0])
