"""Dropout from cheap bits has the law of the usual one."""

import math

import pytest
import torch
from torch import Tensor

from anchorinv.core.dropout import Dropout
from anchorinv.core.rng import scoped_seed, stream

rates = pytest.mark.parametrize("p", [0.5, 0.3])


def dropped(p: float, values: Tensor, *, seed: int = 0) -> Tensor:
    with scoped_seed(stream(seed)):
        return Dropout(p).train()(values)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 0.9])
def test_evaluation_is_the_identity_and_draws_nothing(p: float) -> None:
    values = torch.linspace(-1, 1, 7)
    before = torch.get_rng_state()
    assert torch.equal(Dropout(p).eval()(values), values)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_dropout_is_the_identity_in_training() -> None:
    values = torch.linspace(-1, 1, 7)
    assert torch.equal(dropped(0.0, values), values)


@rates
def test_what_is_kept_is_scaled_exactly_and_the_rest_is_zero(p: float) -> None:
    values = torch.linspace(1, 2, 1001, dtype=torch.float64)
    after = dropped(p, values)
    kept = after != 0
    assert 0 < kept.sum() < 1001
    torch.testing.assert_close(after[kept], values[kept] / (1 - p), rtol=1e-15, atol=0)


@pytest.mark.parametrize("p", [0.5, 0.3, 0.05, 0.95])
@pytest.mark.parametrize("seed", [0, 1])
def test_keep_rate(p: float, seed: int) -> None:
    n = 400_000
    kept = (dropped(p, torch.ones(n), seed=seed) != 0).double().mean().item()
    assert abs(kept - (1 - p)) < 4 * math.sqrt(p * (1 - p) / n)


@rates
def test_neighbours_are_independent(p: float) -> None:
    # Four values share one 64-bit draw; their bits must not.
    n = 100_000
    kept = (dropped(p, torch.ones(n, 4)) != 0).double()
    both = kept.T @ kept / n  # (4, 4) how often two are kept together
    expected = torch.full((4, 4), (1 - p) ** 2, dtype=torch.float64).fill_diagonal_(1 - p)
    assert (both - expected).abs().max() < 4.5 * math.sqrt(0.25 / n)
    next_draw = (kept[1:, 0] * kept[:-1, 3]).mean().item()
    assert abs(next_draw - (1 - p) ** 2) < 4 * math.sqrt(0.25 / n)


@rates
def test_the_gradient_is_the_mask(p: float) -> None:
    values = torch.linspace(1, 2, 101, dtype=torch.float64).requires_grad_()
    after = dropped(p, values)
    after.sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad, after.detach() / values.detach())
    assert set(values.grad.tolist()) == {0.0, 1 / (1 - p)}


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (5,), (3, 7), (2, 3, 5, 5), (0,), (0, 4), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_size_and_precision(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    seen: set[float] = set()
    for seed in range(20):
        after = dropped(0.5, torch.ones(shape, dtype=dtype), seed=seed)
        assert after.shape == shape
        assert after.dtype == dtype
        seen |= set(after.flatten().tolist())
    assert seen == ({0.0, 2.0} if math.prod(shape) else set())


def test_the_layout_in_memory_does_not_decide_what_is_dropped() -> None:
    values = torch.arange(1.0, 25.0).reshape(2, 3, 4)
    turned = values.transpose(1, 2).contiguous().transpose(1, 2)
    assert not turned.is_contiguous()
    assert torch.equal(dropped(0.5, turned), dropped(0.5, values))


def test_every_pass_has_its_own_mask_and_a_seed_repeats_it() -> None:
    layer, ones = Dropout(0.5).train(), torch.ones(200)
    with scoped_seed(stream(0)):
        first, second = layer(ones), layer(ones)
    assert not torch.equal(first, second)
    assert torch.equal(dropped(0.5, ones), first)
    assert not torch.equal(dropped(0.5, ones, seed=1), first)
    agree = (first == second).double().mean().item()
    assert 0.35 < agree < 0.65


def test_values_are_not_changed_in_place() -> None:
    values = torch.ones(50)
    dropped(0.5, values)
    assert torch.equal(values, torch.ones(50))
