"""Covariances, Riemannian means and tangent vectors, against scikit-learn and pyRiemann."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyriemann.geometry.covariance import covariances
from pyriemann.geometry.mean import mean_riemann
from pyriemann.tangentspace import TangentSpace
from sklearn.covariance import oas
from torch import Tensor

from anchorinv.core.riemannian import (
    MOST_SOURCES,
    Covariance,
    DifferenceCovariance,
    EnvelopeCovariance,
    LaggedCovariance,
    TangentBlock,
    matrix_function,
    oas_covariances,
    riemannian_mean,
    symmetric_matrices,
    tangent_vectors,
)
from tests.core.small import randn

BLOCKS: tuple[type[TangentBlock], ...] = (
    Covariance,
    DifferenceCovariance,
    EnvelopeCovariance,
    LaggedCovariance,
)


def mixed(n: int, n_chans: int, n_times: int, *, seed: int = 0) -> Tensor:
    """Windows of sources that are mixed anew in each window."""
    mixing = torch.eye(n_chans).double() + 0.3 * randn(n, n_chans, n_chans, seed=seed)
    return mixing @ randn(n, n_chans, n_times, seed=seed + 1) + 5 * randn(1, n_chans, 1, seed=seed + 2)


@pytest.mark.parametrize(("n_chans", "n_times"), [(1, 50), (2, 16), (5, 7), (8, 300), (32, 40)])
def test_covariances_are_those_of_scikit_learn_and_pyriemann(n_chans: int, n_times: int) -> None:
    signals = mixed(4, n_chans, n_times)
    found = oas_covariances(signals).numpy()
    theirs = np.stack([oas(window.T.numpy())[0] for window in signals])
    np.testing.assert_allclose(found, theirs, rtol=1e-7, atol=1e-9)
    centred = signals - signals.mean(2, keepdim=True)
    np.testing.assert_allclose(found, covariances(centred.numpy(), estimator="oas"), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("n", "n_chans"), [(1, 3), (2, 2), (30, 5), (12, 16)])
def test_the_mean_is_pyriemanns(n: int, n_chans: int) -> None:
    matrices = oas_covariances(mixed(n, n_chans, 60))
    found = riemannian_mean(matrices).numpy()
    np.testing.assert_allclose(found, mean_riemann(matrices.numpy(), tol=1e-11), rtol=1e-6, atol=1e-9)


@given(st.integers(0, 1000), st.floats(0.1, 3))
@settings(max_examples=25, deadline=None)
def test_no_step_leads_away_from_the_mean_however_far_apart_matrices_are(seed: int, apart: float) -> None:
    drawn = randn(6, 4, 4, seed=seed)
    matrices = matrix_function(apart * (drawn + drawn.transpose(1, 2)) / 2, torch.exp)
    mean = riemannian_mean(matrices)
    inverse = matrix_function(mean, torch.rsqrt)
    gradient = matrix_function(inverse @ matrices @ inverse, torch.log).mean(0)
    assert float(gradient.norm()) < 1e-3, "there the tangent vectors cancel out"


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_mean_moves_with_the_mixing(seed: int) -> None:
    matrices = oas_covariances(mixed(5, 3, 40, seed=seed))
    mixing = torch.eye(3).double() + 0.5 * randn(3, 3, seed=seed + 9)
    moved = riemannian_mean(mixing @ matrices @ mixing.T)
    expected = mixing @ riemannian_mean(matrices) @ mixing.T
    torch.testing.assert_close(moved, expected, rtol=1e-5, atol=1e-7)


def test_tangent_vectors_are_pyriemanns_and_have_the_lengths_of_matrices() -> None:
    matrices = oas_covariances(mixed(7, 4, 60))
    reference = riemannian_mean(matrices)
    whitening = matrix_function(reference, torch.rsqrt)
    found = tangent_vectors(matrices, whitening)
    theirs = TangentSpace(metric="riemann").fit(matrices.numpy()).transform(matrices.numpy())
    np.testing.assert_allclose(found.numpy(), theirs, rtol=1e-5, atol=1e-6)
    flat = symmetric_matrices(found)
    torch.testing.assert_close(flat, flat.transpose(1, 2))
    torch.testing.assert_close(flat.flatten(1).norm(dim=1), found.norm(dim=1))
    root = matrix_function(reference, torch.sqrt)
    torch.testing.assert_close(root @ matrix_function(flat, torch.exp) @ root, matrices)


@pytest.mark.parametrize("n_chans", [33, 300])
def test_of_many_channels_the_strongest_components_are_taken(n_chans: int) -> None:
    signals = randn(40, n_chans, 64, seed=3) * torch.logspace(0, -2, n_chans)[:, None]
    block = Covariance(n_chans, 64).double().fitted(signals)
    assert block.size == MOST_SOURCES * (MOST_SOURCES + 1) // 2
    assert block.components is not None
    torch.testing.assert_close(block.components @ block.components.T, torch.eye(MOST_SOURCES).double())
    mean = oas_covariances(signals).mean(0)
    kept = torch.linalg.eigvalsh(block.components @ mean @ block.components.T)
    torch.testing.assert_close(kept, torch.linalg.eigvalsh(mean)[-MOST_SOURCES:])
    features = block(signals)
    assert features.shape == (40, block.size) and features.isfinite().all()


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("n_chans", [1, 2, 4])
def test_odd_channels_are_far_away_and_not_nowhere(kind: type[TangentBlock], n_chans: int) -> None:
    signals = mixed(20, n_chans, 64).float()
    block = kind(n_chans, 64).fitted(signals)
    odd = signals[:4].clone()
    odd[0] = 0.0  # silence
    odd[1, 0] = 7.0  # a flat channel
    odd[2, -1] = odd[2, 0]  # the same channel twice
    odd[3] *= 1e6
    features = block(odd)
    assert features.shape == (4, block.size) and features.isfinite().all()
    flat = signals.clone()
    flat[:, 0] = 1.0
    assert kind(n_chans, 64).fitted(flat)(signals).isfinite().all(), "flat in all base windows"
    assert kind(n_chans, 64).fitted(torch.zeros_like(signals))(signals).isfinite().all()


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_window_does_not_depend_on_its_neighbours_and_single_precision_is_enough(
    kind: type[TangentBlock],
) -> None:
    signals = mixed(11, 2, 96)
    block = kind(2, 96).double().fitted(signals)
    whole = block(signals)
    parts = torch.cat([block(part) for part in signals.split(3)])
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-9)
    single = kind(2, 96).fitted(signals.float())(signals.float())
    torch.testing.assert_close(single.double(), whole, rtol=1e-4, atol=1e-4 * math.sqrt(block.size))
