"""Weights of samples: a whole one is as many samples, in every statistic."""

import numpy as np
import pytest
import torch

from anchorinv.core.closed_form import ledoit_wolf
from anchorinv.core.discriminant import Discriminant
from anchorinv.core.ridge import ProjectedRidge
from anchorinv.core.riemannian import RiemannianMeans, riemannian_mean
from anchorinv.core.types import Batch, Standardisation, stream

FEATURES = torch.randn(30, 6, generator=stream(0)).double() / 3
TARGETS = torch.arange(30) % 3
WEIGHTS = torch.arange(30) % 4 + 1
REPEATED = torch.arange(30).repeat_interleave(WEIGHTS)


@pytest.mark.parametrize(
    "empty",
    [
        Discriminant.empty(6, n_base=2, shrinkage=0.1).double(),
        RiemannianMeans.empty(6).double(),
        ProjectedRidge.empty(torch.randn(6, 9, generator=stream(1)).double(), penalty=0.1),
    ],
    ids=lambda head: head.kind,
)
def test_heads_that_follow_from_statistics(empty):
    weighted, repeated = empty, empty
    for part in (slice(0, 20), slice(20, 30)):  # known classes again, too
        there = torch.arange(30)[part].repeat_interleave(WEIGHTS[part])
        weighted = weighted.learned(FEATURES[part], TARGETS[part], WEIGHTS[part].double())
        repeated = repeated.learned(FEATURES[there], TARGETS[there])
    assert weighted.counts.tolist() == repeated.counts.tolist() and weighted.counts.dtype == torch.float64
    torch.testing.assert_close(weighted(FEATURES), repeated(FEATURES))


def test_ledoit_and_wolfs_shrinkage_is_scikit_learns_of_repeated_samples():
    expected = ledoit_wolf(FEATURES[REPEATED], TARGETS[REPEATED])
    assert ledoit_wolf(FEATURES, TARGETS, WEIGHTS.double()) == pytest.approx(expected, rel=1e-10)
    assert ledoit_wolf(FEATURES, TARGETS, torch.ones(30)) == pytest.approx(ledoit_wolf(FEATURES, TARGETS))
    assert ledoit_wolf(torch.eye(3), torch.arange(3), torch.tensor([1.0, 2, 3])) == 1.0


def test_means_and_standardisation():
    matrices = torch.eye(4).double() + FEATURES[:, :4, None] * FEATURES[:, None, :4]
    torch.testing.assert_close(
        riemannian_mean(matrices, WEIGHTS.double()), riemannian_mean(matrices[REPEATED])
    )
    signals = np.random.default_rng(0).normal(3, 2, size=(30, 2, 16))
    for per_channel in (True, False):
        weighted = Standardisation.of(signals, per_channel=per_channel, weights=WEIGHTS.numpy())
        repeated = Standardisation.of(signals[REPEATED], per_channel=per_channel)
        np.testing.assert_allclose(weighted.mean, repeated.mean)
        np.testing.assert_allclose(weighted.std, repeated.std)


def test_batches_keep_them():
    samples = Batch(FEATURES, TARGETS, weights=WEIGHTS.double())
    assert samples.of(1).weights.tolist() == WEIGHTS[TARGETS == 1].tolist()
    assert samples.with_values(FEATURES[:, :1]).weights is samples.weights
    with pytest.raises(ValueError, match="3 weights for 30 samples"):
        Batch(FEATURES, TARGETS, weights=torch.ones(3))
