"""Heads: cosine similarity to prototypes of which the old are fixed, and a classifier that grows."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anchorinv.core.heads import Cosine, Mlp, class_means, uniform_rows
from anchorinv.core.types import scoped_seed, stream
from tests import naive
from tests.core.small import randn, same, untouched_generators, weights_of

quick = settings(max_examples=50)
factors = st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4).map(
    lambda values: torch.tensor(values, dtype=torch.float64)[:, None]
)
seeds = st.integers(0, 1000)


def mlp(n_classes: int = 3, dim: int = 10, *, seed: int = 0) -> Mlp:
    with scoped_seed(stream(seed)):
        return Mlp.start(n_classes, dim).eval()


class TestCosine:
    def test_by_hand(self) -> None:
        head = Cosine(torch.tensor([[0.0, 5.0], [1.0, 1.0]]), torch.tensor([[2.0, 0.0]]), scale=10.0)
        logits = head(torch.tensor([[3.0, 0.0], [-1.0, -1.0]]))
        root = math.sqrt(2)
        assert logits.flatten().tolist() == pytest.approx([10, 0, 10 / root, -10 / root, -10 / root, -10])

    def test_scale_is_16_and_logits_are_the_twins(self) -> None:
        features, prototypes = randn(5, 7, seed=0), randn(3, 7, seed=1)
        logits = Cosine(prototypes[2:], prototypes[:2])(features)
        torch.testing.assert_close(logits, naive.cosine_logits(features, prototypes), rtol=1e-12, atol=0)
        assert Cosine(prototypes)(prototypes).diagonal().tolist() == pytest.approx([16.0] * 3)

    @quick
    @given(seeds, factors, factors)
    def test_lengths_of_features_and_prototypes_do_not_matter(
        self, seed: int, of_features: Tensor, of_prototypes: Tensor
    ) -> None:
        features, prototypes = randn(4, 6, seed=seed), randn(4, 6, seed=seed + 1)
        scaled = of_prototypes * prototypes
        logits = Cosine(scaled[3:], scaled[:3])(of_features * features)
        torch.testing.assert_close(logits, Cosine(prototypes)(features), rtol=1e-9, atol=1e-9)

    @quick
    @given(seeds)
    def test_logits_are_bounded_by_the_scale(self, seed: int) -> None:
        logits = Cosine(randn(4, 3, seed=seed), scale=7.0)(randn(9, 3, seed=seed + 1))
        assert logits.abs().max() <= 7.0 * (1 + 1e-12)

    def test_a_feature_of_length_zero_has_no_preference(self) -> None:
        assert Cosine(randn(3, 5, seed=0))(torch.zeros(1, 5, dtype=torch.float64)).tolist() == [[0.0] * 3]

    def test_fixed_prototypes_are_no_parameters(self) -> None:
        head = Cosine(randn(1, 5, seed=0), randn(2, 5, seed=1))
        assert [name for name, _ in head.named_parameters()] == ["free"]
        head.loss(randn(4, 5, seed=2), torch.tensor([0, 1, 2, 2])).backward()
        assert head.free.grad is not None and head.free.grad.abs().max() > 0
        assert not head.fixed.requires_grad

    def test_the_loss_is_the_weighted_cross_entropy(self) -> None:
        head, features = Cosine(randn(3, 5, seed=0)), randn(4, 5, seed=1)
        targets, weights = torch.tensor([0, 1, 1, 2]), torch.tensor([1.0, 2.0, 5.0]).double()
        log = torch.log_softmax(head(features), 1)[torch.arange(4), targets]
        assert head.loss(features, targets).item() == pytest.approx(-log.mean().item())
        w = weights[targets]
        expected = -((w * log).sum() / w.sum()).item()
        assert head.loss(features, targets, weights).item() == pytest.approx(expected)

    def test_extended_fixes_what_there_was_and_frees_the_new(self) -> None:
        head = Cosine(randn(2, 5, seed=0), randn(1, 5, seed=1), scale=3.0)
        before, rows = weights_of(head), randn(2, 5, seed=2)
        grown = head.add_classes(rows)
        assert grown.scale == 3.0
        assert torch.equal(grown.fixed, head.prototypes)
        assert torch.equal(grown.free, rows)
        assert torch.equal(grown.prototypes, torch.cat([head.prototypes, rows]))
        with torch.no_grad():
            grown.free.zero_()
            grown.fixed.zero_()
        assert same(weights_of(head), before)  # nothing is shared with the old head ...
        assert torch.equal(rows, randn(2, 5, seed=2))  # ... nor with the rows

    def test_with_prototypes_fixes_them_all(self) -> None:
        head, prototypes = Cosine(randn(2, 5, seed=0), scale=3.0), randn(4, 5, seed=1)
        replaced = head.with_prototypes(prototypes)
        assert replaced.scale == 3.0
        assert torch.equal(replaced.prototypes, prototypes)
        assert sum(parameter.numel() for parameter in replaced.parameters()) == 0
        prototypes.zero_()
        assert replaced.prototypes.abs().min() > 0

    def test_settled_is_the_class_means_all_fixed(self) -> None:
        features, targets = randn(6, 5, seed=0), torch.tensor([1, 0, 1, 2, 2, 2])
        finalise = Cosine(randn(3, 5, seed=1)).finalise(features, targets)
        torch.testing.assert_close(finalise.fixed, class_means(features, targets))
        assert len(finalise.free) == 0

    def test_the_start_is_that_of_a_linear_layer(self) -> None:
        with scoped_seed(stream(0)):
            head = Cosine.start(50, 400)
        assert head.prototypes.shape == (50, 400)
        assert 0.045 < head.prototypes.abs().max() <= 0.05  # 1 / √400
        assert abs(head.prototypes.mean().item()) < 1e-3


class TestClassMeans:
    @quick
    @given(st.permutations([0, 0, 0, 1, 2, 2, 3, 3, 3, 3]), seeds)
    def test_are_numpys(self, targets: list[int], seed: int) -> None:
        features, labels = randn(10, 4, seed=seed), np.array(targets)
        expected = np.stack([features.numpy()[labels == label].mean(0) for label in range(4)])
        means = class_means(features, torch.tensor(targets))
        np.testing.assert_allclose(means.numpy(), expected, rtol=1e-12, atol=1e-12)

    def test_precision_is_kept(self) -> None:
        assert class_means(torch.ones(2, 3), torch.tensor([0, 1])).dtype == torch.float32
        assert class_means(torch.ones(2, 3).double(), torch.tensor([0, 1])).dtype == torch.float64


class TestUniformRows:
    def test_rows_are_drawn_from_the_generator_given(self) -> None:
        with untouched_generators():
            rows = uniform_rows(30, 100, rng=stream(0))
            assert torch.equal(uniform_rows(30, 100, rng=stream(0)), rows)
            assert not torch.equal(uniform_rows(30, 100, rng=stream(1)), rows)
        assert 0.095 < rows.abs().max() <= 0.1

    def test_or_from_the_global_one(self) -> None:
        with scoped_seed(stream(0)):
            first = uniform_rows(2, 5)
        with scoped_seed(stream(0)):
            assert torch.equal(uniform_rows(2, 5), first)


class TestMlp:
    def test_layers_are_those_of_eeg_conformer(self) -> None:
        shapes = [tuple(parameter.shape) for parameter in mlp(4, 88).parameters()]
        assert shapes == [(256, 88), (256,), (32, 256), (32,), (4, 32), (4,)]

    def test_evaluation_by_hand(self) -> None:
        head, features = mlp().double(), randn(5, 10, seed=0)
        w1, b1, w2, b2, w3, b3 = head.parameters()
        hidden = F.elu(F.elu(features @ w1.T + b1) @ w2.T + b2)
        torch.testing.assert_close(head(features), hidden @ w3.T + b3, rtol=1e-12, atol=1e-12)

    def test_both_dropouts_are_active_in_training(self) -> None:
        head, ones = mlp().train(), torch.ones(4000, 10)
        recorded: dict[int, float] = {}
        for index, layer in enumerate(head.hidden):
            layer.register_forward_hook(
                lambda _, __, out, i=index: recorded.update({i: (out == 0).double().mean().item()})
            )
        with scoped_seed(stream(0)):
            head(ones)
        rates = [rate for rate in recorded.values() if rate > 0]
        assert rates == pytest.approx([0.5, 0.3], abs=0.01)

    @pytest.mark.parametrize("n_new", [1, 2, 5])
    @pytest.mark.parametrize("n", [1, 7, 130])
    def test_extended_keeps_the_old_logits(self, n_new: int, n: int) -> None:
        head, features = mlp(), randn(n, 10, seed=0, dtype=torch.float32)
        rows, biases = torch.ones(n_new, 32), torch.arange(float(n_new))
        with untouched_generators():
            grown = head.add_classes(rows, biases).eval()
        assert torch.equal(grown.last.weight[:3], head.last.weight)
        assert torch.equal(grown.last.bias[:3], head.last.bias)
        logits = grown(features)
        assert logits.shape == (n, 3 + n_new)
        # The same products, though a wider matrix may be summed in another order.
        torch.testing.assert_close(logits[:, :3], head(features), rtol=1e-6, atol=1e-6)
        expected = head.hidden(features).sum(1, keepdim=True) + biases
        torch.testing.assert_close(logits[:, 3:], expected, rtol=1e-5, atol=1e-5)

    def test_extended_leaves_the_old_head_and_the_rows_alone(self) -> None:
        head = mlp()
        before = weights_of(head)
        rows, biases = torch.ones(1, 32), torch.ones(1)
        grown = head.add_classes(rows, biases)
        with torch.no_grad():
            grown.last.weight.zero_()
            grown.last.bias.zero_()
        assert same(weights_of(head), before)
        assert rows.min() == biases.min() == 1

    def test_it_settles_as_it_was_trained(self) -> None:
        head = mlp()
        before = weights_of(head)
        finalise = head.finalise(randn(4, 10, seed=0), torch.tensor([0, 1, 2, 0]))
        assert same(weights_of(finalise), before)
