"""The one-cycle rate: PyTorch's own scheduler is the oracle, and the loop follows it step by step."""

import math

import pytest
import torch
from torch import Tensor

from anchorinv.core.descend import Descent, descend
from anchorinv.core.schedule import OneCycle


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
    plan = Descent(steps, 0.3, schedule=OneCycle(rise))
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


def moved(plan: Descent) -> tuple[Tensor, Tensor]:
    leaf = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    curve = descend(lambda step: (leaf**2).sum() + leaf.sin().sum() * step / 7, [leaf], plan)
    return leaf.detach(), curve


def test_the_loop_follows_it() -> None:
    ours, curve = moved(Descent(30, 0.1, schedule=OneCycle()))
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
    plan = Descent(9, 0.1)
    assert {plan.rate(step) for step in range(9)} == {0.1}
    assert not torch.equal(moved(plan)[0], moved(Descent(9, 0.1, schedule=OneCycle()))[0])
