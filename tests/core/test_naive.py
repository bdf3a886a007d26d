"""The textbook twin is what it claims to be: sizes, names and behaviour of the usual EEG-Conformer."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests import naive

BODY = {"width": 40, "heads": 10, "depth": 6}
BCI = {"n_chans": 22, "n_times": 1000, "kernel": 25, "stride": 1, "pool": 75, "pool_stride": 15, **BODY}
NHIE = {"n_chans": 8, "n_times": 3840, "kernel": 64, "stride": 4, "pool": 75, "pool_stride": 15, **BODY}
GRABMYO = {"n_chans": 28, "n_times": 1280, "kernel": 64, "stride": 1, "pool": 75, "pool_stride": 20, **BODY}
SMALL = {"n_chans": 3, "n_times": 60, "kernel": 5, "stride": 1, "pool": 10, "pool_stride": 5, "width": 4}
SMALL |= {"heads": 2, "depth": 2}

BLOCK = {
    "0.fn.0.weight": (40,),
    "0.fn.0.bias": (40,),
    "0.fn.1.keys.weight": (40, 40),
    "0.fn.1.keys.bias": (40,),
    "0.fn.1.queries.weight": (40, 40),
    "0.fn.1.queries.bias": (40,),
    "0.fn.1.values.weight": (40, 40),
    "0.fn.1.values.bias": (40,),
    "0.fn.1.projection.weight": (40, 40),
    "0.fn.1.projection.bias": (40,),
    "1.fn.0.weight": (40,),
    "1.fn.0.bias": (40,),
    "1.fn.1.0.weight": (160, 40),
    "1.fn.1.0.bias": (160,),
    "1.fn.1.3.weight": (40, 160),
    "1.fn.1.3.bias": (40,),
}


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def small(seed: int = 0) -> tuple[naive.TwoConvConformer, torch.Generator]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = naive.TwoConvConformer(**SMALL).double()
    return network, torch.Generator().manual_seed(seed)


def randn(*shape: int, rng: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=rng)


@pytest.mark.parametrize(
    ("geometry", "total", "convolution", "dim"),
    [(BCI, 156_320, 38_000, 2440), (NHIE, 135_480, 17_160, 2360), (GRABMYO, 167_480, 49_160, 2320)],
    ids=["bci2a", "nhie", "grabmyo"],
)
def test_sizes(geometry: dict[str, Any], total: int, convolution: int, dim: int) -> None:
    network = naive.TwoConvConformer(**geometry).eval()
    assert size(network) == total
    assert size(network[0]) == convolution
    assert [size(block) for block in network[1]] == [19_720] * 6
    with torch.no_grad():
        features = network(torch.zeros(1, geometry["n_chans"], geometry["n_times"]))
    assert features.shape == (1, dim) == (1, network.dim)


def test_names_and_shapes_are_the_usual_ones() -> None:
    state = naive.TwoConvConformer(**BCI).state_dict()
    norm = ("weight", "bias", "running_mean", "running_var")
    expected = {
        "0.shallownet.0.weight": (40, 1, 1, 25),
        "0.shallownet.0.bias": (40,),
        "0.shallownet.1.weight": (40, 40, 22, 1),
        "0.shallownet.1.bias": (40,),
        **{f"0.shallownet.2.{name}": (40,) for name in norm},
        "0.shallownet.2.num_batches_tracked": (),
        "0.projection.0.weight": (40, 40, 1, 1),
        "0.projection.0.bias": (40,),
        **{f"1.{i}.{name}": shape for i in range(6) for name, shape in BLOCK.items()},
    }
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == expected


def test_attention_divides_by_the_root_of_the_width() -> None:
    attention = naive.Attention(4, 2, dropout=0.0).double()
    rng = torch.Generator().manual_seed(0)
    tokens = randn(1, 3, 4, rng=rng)
    q, k, v = (layer(tokens)[0] for layer in (attention.queries, attention.keys, attention.values))
    heads = []
    for part in (slice(0, 2), slice(2, 4)):
        heads.append(torch.softmax(q[:, part] @ k[:, part].T / 2.0, dim=1) @ v[:, part])  # 2 = √4
    expected = attention.projection(torch.cat(heads, dim=1))
    torch.testing.assert_close(attention(tokens)[0], expected)


def test_tokens_follow_each_other_in_time() -> None:
    maps = torch.arange(6.0).reshape(1, 2, 1, 3)
    assert naive.Tokens()(maps).tolist() == [[[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inversion_approaches_the_anchors_and_moves_no_weight(dtype: torch.dtype) -> None:
    network, rng = small()
    network = network.to(dtype).eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    anchors = network(randn(5, 3, 60, rng=rng).to(dtype)).detach()
    start = randn(5, 3, 60, rng=rng).to(dtype)
    kept = start.clone()
    inverted = naive.invert(network, anchors, start, steps=30, lr=0.05)
    assert inverted.dtype == dtype
    assert torch.equal(start, kept)
    errors = [(network(signals) - anchors).abs().mean().item() for signals in (start, inverted)]
    assert errors[1] < 0.7 * errors[0]
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_first_inversion_step_is_adams() -> None:
    # Adam's first step is lr · sign(gradient) up to eps, whatever the gradient's size.
    network, rng = small()
    start = randn(2, 3, 60, rng=rng)
    step = naive.invert(network, randn(2, network.dim, rng=rng), start, steps=1, lr=0.01) - start
    assert step.abs().median().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_lowers_the_loss(dtype: torch.dtype) -> None:
    network, rng = small()
    network = network.to(dtype)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # so that the loss falls without noise
    head = nn.Parameter(randn(2, network.dim, rng=rng).to(dtype))
    optimizer = torch.optim.Adam([*network.parameters(), head], lr=1e-3)
    signals, labels = randn(8, 3, 60, rng=rng).to(dtype), torch.arange(8) % 2
    losses = [naive.train_step(network, head, optimizer, signals, labels).item() for _ in range(20)]
    assert network.training
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finetuning_moves_the_last_block_and_the_new_prototype_only(dtype: torch.dtype) -> None:
    network, rng = small()
    network = network.to(dtype)
    old, new, shots, replay = (
        randn(*shape, rng=rng).to(dtype)
        for shape in ((2, network.dim), (1, network.dim), (4, 3, 60), (6, 3, 60))
    )
    shot_labels, replay_labels = torch.full((4,), 2), torch.arange(6) % 2
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    kept = old.clone(), new.clone()
    moved = naive.finetune(
        network, old, new, shots, shot_labels, replay, replay_labels, steps=3, lr=1e-3, lam=1.0
    )
    assert torch.equal(old, kept[0])
    assert torch.equal(new, kept[1])
    assert not torch.equal(moved, new)
    for name, tensor in network.state_dict().items():
        changed = not torch.equal(before[name], tensor)
        # A bias of the keys shifts all energies of a query alike, so softmax gives it no gradient.
        assert changed == name.startswith("1.1.") or name.endswith("keys.bias"), name


def test_prediction_is_the_nearest_prototype_whatever_the_batch() -> None:
    network, rng = small()
    signals = randn(7, 3, 60, rng=rng)
    prototypes = network.eval()(signals[:3]).detach()
    prototypes *= torch.tensor([[0.5], [1.0], [3.0]])  # length does not count, only direction
    whole = naive.predict(network, prototypes, signals, batch=7)
    assert whole[:3].tolist() == [0, 1, 2]
    assert torch.equal(naive.predict(network, prototypes, signals, batch=2), whole)


def test_logits_are_sixteen_cosines() -> None:
    logits = naive.cosine_logits(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
    assert logits[0].tolist() == pytest.approx([16.0, 16.0 / math.sqrt(2.0)])
