"""Quasi-Newton steps: downhill, sample by sample, and to where they should lead."""

from collections.abc import Callable

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from anchorinv.core.minimise import BatchedLBFGS, EarlyStopping, Optimiser, minimise
from tests.core.small import randn


def valley(points: Tensor) -> Tensor:
    """Rosenbrock's, of each point (n, 2): curved, narrow, with its minimum at (1, 1)."""
    x, y = points[:, 0], points[:, 1]
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def bowl(points: Tensor) -> Tensor:
    """A stretched quadratic of each point (n, 2, 3), with its minimum at 2."""
    steep = torch.tensor([1.0, 10, 100, 1000, 5, 50], dtype=points.dtype).reshape(2, 3)
    return (steep * (points - 2) ** 2).sum((1, 2))


def walked(
    loss: Callable[[Tensor], Tensor], start: Tensor, steps: int, **options: int
) -> tuple[Tensor, list[Tensor]]:
    leaf, seen = start.clone().requires_grad_(), []
    newton = BatchedLBFGS(leaf, **options)
    for _ in range(steps):
        losses = loss(leaf)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        seen.append(losses.detach())
        newton.step(losses.detach(), gradient)
    newton.finish()
    return leaf.detach(), seen


@pytest.mark.parametrize("memory", [2, 8])
def test_finds_the_bottom_of_a_curved_valley(memory: int) -> None:
    start = torch.tensor([[-1.2, 1.0], [0.0, 0.0], [3.0, -4.0]], dtype=torch.float64)
    found, _ = walked(valley, start, 150, memory=memory)
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=1e-6)


def test_takes_about_as_many_evaluations_as_scipys() -> None:
    start = torch.tensor([[-1.2, 1.0]], dtype=torch.float64)
    theirs = minimize(
        lambda x: valley(torch.tensor(x[None])).item(), start[0].numpy(), method="L-BFGS-B", jac="2-point"
    )
    evaluations = theirs.nfev // 3  # the gradient of two numbers took two of three
    _, seen = walked(valley, start, 2 * evaluations)
    assert seen[-1].item() < 1e-8


def test_is_far_ahead_of_adam_where_the_loss_is_stretched() -> None:
    start = randn(3, 2, 3, seed=1)
    ours, _ = walked(bowl, start, 60)
    leaf = start.clone().requires_grad_()
    minimise(lambda step: bowl(leaf), [leaf], Optimiser(60, 0.1))
    assert (bowl(ours) < 1e-6 * bowl(leaf.detach())).all()


def test_samples_go_their_own_way() -> None:
    start = torch.cat([randn(1, 2, seed=1), torch.tensor([[50.0, -80.0]]), randn(2, 2, seed=2)])
    together, _ = walked(valley, start, 40)
    for i in range(len(start)):
        alone, _ = walked(valley, start[i : i + 1], 40)
        torch.testing.assert_close(alone, together[i : i + 1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 5, 17])
def test_ends_where_the_last_good_step_led(steps: int) -> None:
    start = torch.tensor([[-1.2, 1.0], [5.0, 5.0]], dtype=torch.float64)
    found, seen = walked(valley, start, steps)
    assert (valley(found) <= torch.stack(seen).min(0).values * (1 + 1e-12)).all()


def test_a_sample_that_is_held_stays() -> None:
    start = randn(2, 2, seed=3)
    leaf = start.clone().requires_grad_()
    newton = BatchedLBFGS(leaf)
    for step in range(20):
        losses = valley(leaf)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        newton.step(losses.detach(), gradient)
        if step == 5:
            newton.freeze(torch.tensor([True, False]))
            newton.finish()
            kept = leaf.detach().clone()
    newton.finish()
    assert torch.equal(leaf[0], kept[0])
    assert (leaf[1] != kept[1]).any()


def test_where_there_is_no_slope_nothing_moves() -> None:
    found, _ = walked(bowl, torch.full((2, 2, 3), 2.0), 5)
    assert torch.equal(found, torch.full((2, 2, 3), 2.0))


def test_a_rule_ends_it_when_every_sample_is_there() -> None:
    leaf = randn(4, 2, 3, seed=4).requires_grad_()
    rule = EarlyStopping(window=5, tolerance=0.1, patience=1, enough=1e-10)
    curve = minimise(lambda step: bowl(leaf), [leaf], Optimiser(1000, 1.0, stop=rule, use_lbfgs=True))
    assert len(curve) < 100
    assert (bowl(leaf.detach()) < 1e-6).all()
