"""Hand-written gradients: each kernel is the line of torch in its docstring, in value and gradient."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anchorinv.core import kernels
from anchorinv.core.kernels import attend, convolve, elu_pool
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
    monkeypatch.setattr(kernels, "SCORES", 2 * 8 * length**2)
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
