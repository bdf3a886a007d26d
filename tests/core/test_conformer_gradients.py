"""Hand-written gradients: each kernel is the line of torch in its docstring, in value and gradient."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core import conformer
from anchorinv.core.conformer import Dropout, attend, convolve, elu_pool
from anchorinv.core.types import scoped_seed, stream
from tests.core.small import randn

Function = Callable[..., Tensor]


def assert_same(fast: Function, plain: Function, *inputs: Tensor) -> None:
    """Equal in value and in the gradient of every input, in any layout of what flows back."""
    results = []
    for function in (fast, plain):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        value = function(*leaves)
        weighting = randn(*value.shape, seed=9)
        flows = [weighting, weighting.transpose(1, -1).contiguous().transpose(1, -1)]
        gradients = [torch.autograd.grad(value, leaves, flow, retain_graph=True) for flow in flows]
        results.append((value, gradients))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-12)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=1e-11)


def channels_last(function: Function) -> Function:
    """Call with signals in the layout that the front end uses."""
    return lambda first, *rest: function(first.contiguous(memory_format=torch.channels_last), *rest)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spread", [1.0, 30.0], ids=["usual", "wide"])
@pytest.mark.parametrize(("width", "length"), [(4, 11), (1, 3), (5, 1)])
def test_attend(
    masked: bool, spread: float, width: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Parts of two and of one head: they are put together as they were; and scores past what exp can take.
    monkeypatch.setattr(conformer, "SCORES", 2 * 8 * length**2)
    heads, n = 3, 2
    mask = 2.0 * (randn(n * heads, length, length, seed=4) > 0) if masked else None

    def plain(qkv: Tensor) -> Tensor:
        query, key, value = qkv.view(n, length, 3, heads, width).permute(2, 0, 3, 1, 4).flatten(1, 2)
        weights = torch.softmax(0.7 * query @ key.mT, dim=-1)
        mixed = (weights if mask is None else weights * mask) @ value
        return mixed.view(n, heads, length, width).transpose(1, 2).flatten(2)

    qkv = spread * randn(n, length, 3 * heads * width, seed=0)
    assert_same(lambda qkv: attend(qkv, heads=heads, scale=0.7, mask=mask), plain, qkv)


@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_attend_in_single_precision(spread: float) -> None:
    qkv = spread * randn(2, 9, 24, seed=0, dtype=torch.float32)
    for found in (qkv, qkv.clone().requires_grad_()):
        value = attend(found, heads=2, scale=1.0)
        assert value.isfinite().all()
        exact = attend(qkv.double(), heads=2, scale=1.0)
        torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5 * spread)


def test_attend_tells_of_what_is_no_number() -> None:
    qkv = randn(2, 9, 24, seed=0)
    qkv[0, 3, 1] = float("nan")
    attended = attend(qkv, heads=2, scale=1.0)
    assert attended[0].isnan().any() and attended[1].isfinite().all()


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("n_chans", [1, 3, 8, 9])
@pytest.mark.parametrize("kernel", [1, 5])
def test_convolve(stride: int, n_chans: int, kernel: int) -> None:
    planes, weight = randn(3, n_chans, 1, 22, seed=0), randn(4, n_chans, 1, kernel, seed=1)
    fast = channels_last(lambda *inputs: convolve(*inputs, stride=stride))
    assert_same(fast, lambda *inputs: F.conv2d(*inputs, stride=(1, stride)), planes, weight, randn(4, seed=2))


@pytest.mark.parametrize(
    ("pool", "stride"),
    [(6, 3), (5, 3), (3, 3), (4, 6), (1, 1), (2, 5), (30, 15), (31, 2), (75, 15), (75, 20)],
)
@pytest.mark.parametrize("n_steps", [77, 80, 91])
def test_elu_pool(pool: int, stride: int, n_steps: int) -> None:
    # 91 - 75 and such leave steps at the end that lie in no window: their gradient is zero.
    fast = channels_last(lambda steps: elu_pool(steps, pool=pool, stride=stride))
    assert_same(
        fast,
        lambda steps: F.avg_pool2d(F.elu(steps), (1, pool), (1, stride)),
        randn(2, 3, 1, n_steps, seed=0),
    )


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
