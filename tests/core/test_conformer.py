"""The backbone: exact sizes, equality with the two-convolution twin, exchange of weights, golden values."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anchorinv.core.conformer import Conformer
from anchorinv.core.networks import GEOMETRIES, Geometry
from anchorinv.core.types import scoped_seed, stream
from tests.core.small import SMALL, STRIDED, pair, randn, twin, untouched_generators, usual_state, weights_of

GEOMETRY = {
    "stride 1": SMALL,
    "stride 4": STRIDED,
    "one channel, one block": Geometry(
        1, 30, kernel=4, stride=2, pool=3, pool_stride=2, width=6, heads=3, depth=1
    ),
    "gaps between windows": Geometry(
        5, 64, kernel=9, stride=3, pool=4, pool_stride=5, width=4, heads=1, depth=3
    ),
    "one token": Geometry(4, 20, kernel=1, pool=20, width=6, heads=2, depth=2),
}
geometries = pytest.mark.parametrize("geometry", GEOMETRY.values(), ids=GEOMETRY.keys())
papers = pytest.mark.parametrize("name", GEOMETRIES)


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def gradients(network: Conformer) -> dict[str, Tensor]:
    """The gradients under the usual names: exchanging weights is linear, so it maps gradients too."""
    carrier = copy.deepcopy(network)
    with torch.no_grad():
        for parameter, origin in zip(carrier.parameters(), network.parameters(), strict=True):
            assert origin.grad is not None
            parameter.copy_(origin.grad)
    return carrier.to_conv2d_state()


def assert_equal(ours: Tensor, theirs: Tensor, *, scale: float | None = None, name: str = "") -> None:
    """Equal to 1e-9 of the largest value, or of ``scale`` where a value is zero but for rounding."""
    largest = max(theirs.abs().max().item(), scale or 0.0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * largest, msg=lambda m: f"{name}: {m}")


class TestSizes:
    @pytest.mark.parametrize(
        ("name", "total", "front", "dim"),
        [
            ("bci2a", 156_320, 38_000, 2440),
            ("nhie", 135_480, 17_160, 2360),
            ("grabmyo", 167_480, 49_160, 2320),
        ],
    )
    def test_parameters_and_features(self, name: str, total: int, front: int, dim: int) -> None:
        geometry = GEOMETRIES[name]
        network = Conformer(geometry).eval()
        first, *blocks = network.trunk
        assert size(network) == total
        assert size(first) == front
        assert [size(block) for block in blocks] == [19_720] * 5
        assert size(network.tail) == 19_720
        with torch.no_grad():
            features = network(torch.zeros(1, geometry.n_chans, geometry.n_times))
        assert features.shape == (1, dim)

    @geometries
    def test_latents_are_tokens_and_features_their_values(self, geometry: Geometry) -> None:
        network, _ = pair(geometry, 0)
        signals = randn(3, geometry.n_chans, geometry.n_times, seed=0)
        with torch.no_grad():
            latents = network.trunk(signals)
            features = network(signals)
        assert latents.shape == (3, geometry.n_tokens, geometry.width)
        assert features.shape == (3, geometry.dim)
        assert torch.equal(network.tail(latents), features)

    def test_both_convolutions_are_trainable_tensors_and_nothing_else_of_their_size(self) -> None:
        state = Conformer(GEOMETRIES["bci2a"]).trunk.named_parameters()
        sizes = sorted(parameter.numel() for _, parameter in state)[-2:]
        assert sizes == [6_400, 40 * 40 * 22]  # an MLP weight, the spatial weight; no fused copy of 22,000


class TestEquivalence:
    """Against the textbook twin, float64, 1e-9."""

    @geometries
    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
    def test_output_and_all_gradients(self, geometry: Geometry, seed: int, training: bool) -> None:
        network, other = pair(replace(geometry, dropout=0.0), seed)
        network.train(training)
        other.train(training)
        signals = randn(3 + seed, geometry.n_chans, geometry.n_times, seed=seed)
        inputs = [signals.clone().requires_grad_() for _ in range(2)]
        features = [network(inputs[0]), other(inputs[1])]
        assert_equal(features[0], features[1], name="features")

        weighting = randn(*features[0].shape, seed=seed + 10)
        for feature in features:
            (feature * weighting).sum().backward()
        assert inputs[0].grad is not None and inputs[1].grad is not None
        assert_equal(inputs[0].grad, inputs[1].grad, name="signals")
        expected = {name: parameter.grad for name, parameter in other.named_parameters()}
        largest = max(gradient.abs().max().item() for gradient in expected.values())
        ours = gradients(network)
        for name, gradient in expected.items():
            # Some are zero by theory (a bias before a norm, a bias of the keys): rounding is all they are.
            vanishing = gradient.abs().max().item() < 1e-10 * largest
            assert_equal(ours[name], gradient, scale=1e-3 * largest if vanishing else None, name=name)

    @geometries
    def test_running_statistics_after_training_passes(self, geometry: Geometry) -> None:
        network, other = pair(replace(geometry, dropout=0.0), 0)
        before = network.to_conv2d_state()
        network.train()
        other.train()
        for seed in range(2):
            signals = randn(4, geometry.n_chans, geometry.n_times, seed=seed)
            network(signals)
            other(signals)
        after, expected = network.to_conv2d_state(), other.state_dict()
        for name in ("running_mean", "running_var"):
            key = f"0.shallownet.2.{name}"
            assert not torch.equal(after[key], before[key])
            assert_equal(after[key], expected[key], name=name)
        assert after["0.shallownet.2.num_batches_tracked"] == 5
        # What was gathered in training is what evaluation uses.
        signals = randn(2, geometry.n_chans, geometry.n_times, seed=7)
        assert_equal(network.eval()(signals), other.eval()(signals))

    @papers
    def test_float32_features_of_the_papers_geometries(self, name: str) -> None:
        geometry = GEOMETRIES[name]
        other = twin(geometry).float().eval()
        network = Conformer.from_conv2d_state(other.state_dict()).eval()
        signals = randn(2, geometry.n_chans, geometry.n_times, seed=0, dtype=torch.float32)
        with torch.no_grad():
            torch.testing.assert_close(network(signals), other(signals), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
    def test_the_layout_of_signals_in_memory_does_not_matter(self, training: bool) -> None:
        network, _ = pair(replace(SMALL, dropout=0.0), 0)
        network.train(training)
        signals = randn(4, 3, 40, seed=0)
        turned = signals.transpose(1, 2).contiguous().transpose(1, 2)
        wide = torch.zeros(4, 6, 80, dtype=signals.dtype)
        wide[:, ::2, 1::2] = signals
        for strange in (turned, wide[:, ::2, 1::2]):
            assert not strange.is_contiguous()
            assert_equal(network(strange), network(signals))

    @pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
    def test_signals_stay_as_they_are(self, training: bool) -> None:
        network, _ = pair(SMALL, 0)
        signals = randn(4, 3, 40, seed=0)
        kept = signals.clone()
        network.train(training)(signals)
        assert torch.equal(signals, kept)

    def test_dropout_spreads_features_as_the_twins_does(self) -> None:
        # Masks differ, their law does not: mean and spread over 6000 passes of the same two signals.
        network, other = pair(SMALL, 3)
        signals = randn(2, 3, 40, seed=0).repeat(6000, 1, 1)
        with torch.no_grad(), scoped_seed(stream(0)):
            passes = [net.train()(signals).reshape(6000, -1) for net in (network, other)]
        means, stds = zip(*((features.mean(0), features.std(0)) for features in passes), strict=True)
        standard_error = stds[1] * math.sqrt(2 / 6000)
        assert ((means[0] - means[1]).abs() / standard_error).max() < 4.5  # of 176 values
        assert ((means[0] - means[1]) / standard_error).pow(2).mean() < 1.5
        assert stds[1].min() > 0.1
        assert (stds[0] / stds[1] - 1).abs().max() < 0.06


class TestExchange:
    def test_names_and_shapes_are_the_usual_ones(self) -> None:
        state = Conformer(GEOMETRIES["bci2a"]).to_conv2d_state()
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        expected = twin(GEOMETRIES["bci2a"]).state_dict()
        assert shapes == {name: tuple(tensor.shape) for name, tensor in expected.items()}
        listed = {
            "0.shallownet.0.weight": (40, 1, 1, 25),
            "0.shallownet.1.weight": (40, 40, 22, 1),
            "0.shallownet.2.running_var": (40,),
            "0.projection.0.weight": (40, 40, 1, 1),
            "1.5.0.fn.1.queries.weight": (40, 40),
            "1.5.1.fn.1.3.bias": (40,),
        }
        assert listed.items() <= shapes.items()

    @geometries
    def test_there_and_back_is_exact(self, geometry: Geometry) -> None:
        state = usual_state(geometry, 0)
        back = Conformer.from_conv2d_state(state, geometry).to_conv2d_state()
        assert back.keys() == state.keys()
        for name, tensor in state.items():
            assert back[name].dtype == tensor.dtype
            assert torch.equal(back[name], tensor), name

    @geometries
    def test_back_and_there_is_exact(self, geometry: Geometry) -> None:
        network = Conformer(geometry)
        again = Conformer.from_conv2d_state(network.to_conv2d_state(), geometry).state_dict()
        state = network.state_dict()
        assert again.keys() == state.keys()
        assert all(torch.equal(again[name], tensor) for name, tensor in state.items())

    @papers
    def test_a_known_geometry_need_not_be_named(self, name: str) -> None:
        state = Conformer(GEOMETRIES[name]).to_conv2d_state()
        assert Conformer.from_conv2d_state(state).geometry == GEOMETRIES[name]

    def test_depth_is_read_from_the_names(self) -> None:
        shallow = replace(GEOMETRIES["nhie"], depth=2)
        assert Conformer.from_conv2d_state(Conformer(shallow).to_conv2d_state()).geometry == shallow

    def test_weights_are_copies_both_ways(self) -> None:
        state = usual_state(SMALL, 0)
        network = Conformer.from_conv2d_state(state, SMALL)
        kept, ours = {name: tensor.clone() for name, tensor in state.items()}, weights_of(network)
        for tensor in network.to_conv2d_state().values():
            tensor.zero_()
        assert all(torch.equal(tensor, ours[name]) for name, tensor in network.state_dict().items())
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()
        assert all(torch.equal(tensor, kept[name]) for name, tensor in state.items())

    def test_exchange_draws_nothing(self) -> None:
        # All weights are given, so none needs to be drawn.
        state = usual_state(SMALL, 0)
        with untouched_generators():
            Conformer.from_conv2d_state(state, SMALL).to_conv2d_state()

    @pytest.mark.parametrize(
        "missing", ["0.shallownet.0.bias", "0.shallownet.2.running_mean", "1.1.1.fn.1.3.bias"]
    )
    def test_a_missing_name_is_named(self, missing: str) -> None:
        state = usual_state(SMALL, 0)
        del state[missing]
        with pytest.raises(ValueError, match="1 names are missing or unknown") as error:
            Conformer.from_conv2d_state(state, SMALL)
        assert repr(missing) in str(error.value)

    @pytest.mark.parametrize("foreign", ["2.fc.0.weight", "head.weight", "1.norm.weight"])
    @pytest.mark.parametrize("named", [False, True], ids=["geometry found", "geometry given"])
    def test_a_foreign_name_is_named(self, foreign: str, named: bool) -> None:
        geometry = GEOMETRIES["bci2a"]
        state = Conformer(geometry).to_conv2d_state() | {foreign: torch.zeros(2)}
        with pytest.raises(ValueError, match="missing or unknown") as error:
            Conformer.from_conv2d_state(state, geometry if named else None)
        assert repr(foreign) in str(error.value)
        assert "backbone's weights alone" in str(error.value)

    @pytest.mark.parametrize(
        ("name", "shape", "needed"),
        [
            ("0.shallownet.1.weight", (8, 8, 4, 1), (8, 8, 3, 1)),
            ("0.shallownet.0.weight", (8, 5), (8, 1, 1, 5)),  # the right number of values is not enough
            ("1.0.0.fn.1.keys.weight", (8, 9), (8, 8)),
            ("1.1.1.fn.1.0.bias", (8,), (32,)),
        ],
    )
    def test_a_wrong_shape_is_told_with_the_right_one(
        self, name: str, shape: tuple[int, ...], needed: tuple[int, ...]
    ) -> None:
        state = usual_state(SMALL, 0) | {name: torch.zeros(shape, dtype=torch.float64)}
        with pytest.raises(ValueError, match="has shape") as error:
            Conformer.from_conv2d_state(state, SMALL)
        assert f"{name} has shape {shape}, {needed} is needed" in str(error.value)

    def test_an_unknown_geometry_is_asked_for(self) -> None:
        with pytest.raises(ValueError, match="no known geometry") as error:
            Conformer.from_conv2d_state(usual_state(SMALL, 0))
        assert "3 channels, kernel 5 and width 8" in str(error.value)
        assert "geometry=Geometry(3, n_times, kernel=5" in str(error.value)

    @pytest.mark.parametrize("state", [{}, {"fc.weight": torch.zeros(3)}], ids=["empty", "other network"])
    def test_weights_of_another_network_are_refused(self, state: dict[str, Tensor]) -> None:
        with pytest.raises(ValueError, match="no weights of two convolutions"):
            Conformer.from_conv2d_state(state)


GOLDEN = Geometry(2, 12, kernel=3, pool=4, pool_stride=3, width=4, heads=2, depth=2)
#: Features of the first signal below, computed by `by_hand`.
FEATURES = [
    *(-1.72066489877, 0.656981970507, -1.10044490721, -2.77039786335),
    *(-1.83827002082, 0.545842006148, -1.20787232941, -2.84617566618),
    *(-1.90086908336, 0.61194098354, -1.16949360856, -2.84593566413),
]


def by_formula(geometry: Geometry) -> dict[str, Tensor]:
    """Weights without a random generator: a sine over all values in the order of the sorted names."""
    state, count = {}, 0
    for name, fresh in sorted(twin(geometry).state_dict().items()):
        values = torch.sin(1.7 * torch.arange(count, count + fresh.numel(), dtype=torch.float64)) / 2
        positive = name.endswith(("shallownet.2.weight", "running_var", "fn.0.weight"))
        state[name] = (values + positive).reshape(fresh.shape) if fresh.ndim else torch.tensor(1)
        count += fresh.numel()
    return state


def formula_signals(n: int, geometry: Geometry) -> np.ndarray:
    sample, channel, time = np.ogrid[:n, : geometry.n_chans, : geometry.n_times]
    return np.sin(0.7 * (channel + 1) * time + sample) + 0.1 * time


def by_hand(weights: dict[str, Tensor], g: Geometry, signals: np.ndarray, *, divisor: float) -> np.ndarray:
    """The forward pass of the paper in loops and numpy; attention scores are divided by ``divisor``."""
    w = {name: tensor.numpy() for name, tensor in weights.items()}
    features = []
    for signal in signals:
        steps = np.empty((g.width, g.n_steps))
        for t in range(g.n_steps):
            window = signal[:, t * g.stride : t * g.stride + g.kernel]  # (n_chans, kernel)
            filtered = w["0.shallownet.0.weight"][:, 0, 0] @ window.T + w["0.shallownet.0.bias"][:, None]
            mixed = np.tensordot(w["0.shallownet.1.weight"][..., 0], filtered, axes=2)
            steps[:, t] = mixed + w["0.shallownet.1.bias"]
        gain, shift, mean, var = (
            w[f"0.shallownet.2.{name}"][:, None] for name in ("weight", "bias", "running_mean", "running_var")
        )
        steps = (steps - mean) / np.sqrt(var + 1e-5) * gain + shift
        steps = np.where(steps > 0, steps, np.expm1(steps))  # ELU
        starts = [i * g.pool_stride for i in range(g.n_tokens)]
        pooled = np.stack([steps[:, start : start + g.pool].mean(1) for start in starts])
        tokens = pooled @ w["0.projection.0.weight"][:, :, 0, 0].T + w["0.projection.0.bias"]
        for i in range(g.depth):
            tokens = tokens + _attention(w, f"1.{i}.0.fn", _normed(w, f"1.{i}.0.fn.0", tokens), g, divisor)
            inner = _linear(w, f"1.{i}.1.fn.1.0", _normed(w, f"1.{i}.1.fn.0", tokens))
            inner = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2  # GELU
            tokens = tokens + _linear(w, f"1.{i}.1.fn.1.3", inner)
        features.append(tokens.ravel())
    return np.stack(features)


def _linear(w: dict[str, np.ndarray], name: str, values: np.ndarray) -> np.ndarray:
    return values @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _normed(w: dict[str, np.ndarray], name: str, tokens: np.ndarray) -> np.ndarray:
    centred = tokens - tokens.mean(1, keepdims=True)
    return centred / np.sqrt(tokens.var(1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def _attention(
    w: dict[str, np.ndarray], name: str, tokens: np.ndarray, g: Geometry, divisor: float
) -> np.ndarray:
    query, key, value = (_linear(w, f"{name}.1.{part}", tokens) for part in ("queries", "keys", "values"))
    mixed = []
    for head in np.split(np.arange(g.width), g.heads):
        scores = np.exp(query[:, head] @ key[:, head].T / divisor)
        mixed.append(scores / scores.sum(1, keepdims=True) @ value[:, head])
    return _linear(w, f"{name}.1.projection", np.hstack(mixed))


class TestGolden:
    def test_features_are_these(self) -> None:
        weights, signals = by_formula(GOLDEN), formula_signals(1, GOLDEN)
        network = Conformer.from_conv2d_state(weights, GOLDEN).eval()
        with torch.no_grad():
            features = network(torch.from_numpy(signals))[0]
        assert features.tolist() == pytest.approx(FEATURES, rel=1e-9)
        hand = by_hand(weights, GOLDEN, signals, divisor=2.0)[0]
        assert hand.tolist() == pytest.approx(FEATURES, rel=1e-9)

    @pytest.mark.parametrize("geometry", [GOLDEN, SMALL, STRIDED], ids=["golden", "stride 1", "stride 4"])
    def test_attention_is_scaled_by_the_root_of_the_width_not_of_a_head(self, geometry: Geometry) -> None:
        weights, signals = usual_state(geometry, 0), formula_signals(3, geometry)
        network = Conformer.from_conv2d_state(weights, geometry).eval()
        with torch.no_grad():
            features = network(torch.from_numpy(signals)).numpy()
        width, head = math.sqrt(geometry.width), math.sqrt(geometry.width / geometry.heads)
        np.testing.assert_allclose(
            features, by_hand(weights, geometry, signals, divisor=width), rtol=0, atol=1e-10
        )
        assert np.abs(features - by_hand(weights, geometry, signals, divisor=head)).max() > 1e-3
