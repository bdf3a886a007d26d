"""Minimum distance to mean, against pyRiemann and its own definition."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyriemann.classification import MDM
from pyriemann.geometry.distance import distance_riemann
from pyriemann.geometry.geodesic import geodesic_riemann
from torch import Tensor

from anchorinv.core import catalogue
from anchorinv.core.closed_form import MinimumDistance
from anchorinv.core.encoder import CLASSICAL, make_blocks
from anchorinv.core.riemannian import (
    RiemannianMeans,
    geodesic,
    matrix_function,
    oas_covariances,
    positive_definite,
    squared_distances,
    tangent_vectors,
)
from anchorinv.core.types import Batch, Session, stream
from tests.core.small import base_spec, randn


def windows(n: int, n_chans: int, classes: tuple[int, ...], *, seed: int = 0) -> Batch:
    """Windows whose classes mix the same sources differently."""
    labels = torch.tensor(classes)[torch.arange(n) % len(classes)]
    mixings = torch.eye(n_chans).double() + 0.6 * randn(8, n_chans, n_chans, seed=77)
    own = mixings[labels] + 0.1 * randn(n, n_chans, n_chans, seed=seed)
    return Batch(own @ randn(n, n_chans, 80, seed=seed + 1), labels)


def as_pyriemann(samples: Batch) -> tuple[np.ndarray, np.ndarray]:
    return oas_covariances(samples.values).numpy(), samples.labels.numpy()


@pytest.mark.parametrize("n_chans", [1, 3, 8])
def test_a_base_model_and_new_classes_are_those_of_pyriemann(n_chans: int) -> None:
    base, new, test = (
        windows(n, n_chans, classes, seed=seed)
        for n, classes, seed in ((60, (0, 1, 2), 1), (10, (3,), 5), (40, (0, 1, 2, 3), 9))
    )
    recipe = catalogue.mdm(base_spec())
    state = recipe.fit_base(base, rng=stream(0))
    for known in (base, Batch(torch.cat([base.values, new.values]), torch.cat([base.labels, new.labels]))):
        theirs = MDM(metric="riemann").fit(*as_pyriemann(known))
        matrices, _ = as_pyriemann(test)
        logits = state.head(state.trunk(test.values))
        np.testing.assert_allclose(-logits.numpy(), theirs.transform(matrices) ** 2, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(recipe.predict(state, test.values).numpy(), theirs.predict(matrices))
        np.testing.assert_allclose(logits.softmax(1).numpy(), theirs.predict_proba(matrices), atol=1e-5)
        if state.session == 0:
            state = recipe.learn_session(state, Session(1, new), rng=stream(1))


def test_of_many_channels_principal_components_are_compared() -> None:
    samples = windows(30, 40, (0, 1))
    state = MinimumDistance().fit(samples, rng=stream(0))
    assert state.head.means.shape == (2, 32 * 33 // 2)
    logits = state.head(state.trunk(samples.values))
    assert (logits.argmax(1) == samples.labels).float().mean() > 0.9


@given(st.integers(0, 1000), st.floats(0, 1))
@settings(max_examples=20, deadline=None)
def test_distance_and_geodesic_are_pyriemanns(seed: int, share: float) -> None:
    logarithms = randn(2, 4, 4, seed=seed)
    logarithms = logarithms + logarithms.transpose(1, 2)
    one, other = matrix_function(logarithms, torch.exp)
    squared = squared_distances(one[None], logarithms[1:])[0, 0]
    assert float(squared) == pytest.approx(distance_riemann(one.numpy(), other.numpy()) ** 2, rel=1e-6)
    between = geodesic(one, other, share).numpy()
    np.testing.assert_allclose(
        between, geodesic_riemann(one.numpy(), other.numpy(), share), rtol=1e-6, atol=1e-8
    )


@given(st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_the_mixing_of_the_channels_does_not_matter(seed: int) -> None:
    samples = windows(24, 3, (0, 1))
    mixing = torch.eye(3).double() + 0.5 * randn(3, 3, seed=seed)
    # Of the covariances themselves: shrinkage, which comes before them, does know a sphere.
    matrices = oas_covariances(samples.values)
    logits = []
    for seen in (matrices, mixing @ matrices @ mixing.T):
        vectors = _logarithms(seen)
        head = RiemannianMeans.empty(6).double().learned(vectors, samples.labels)
        logits.append(head(vectors))
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-5)


def _logarithms(matrices: Tensor) -> Tensor:
    return tangent_vectors(matrices, torch.eye(matrices.shape[1]).to(matrices))


class TestMoreShots:
    def test_of_matrices_that_commute_it_is_the_mean_of_all(self) -> None:
        scales = randn(9, 1, seed=3)
        vectors = scales * torch.tensor([[1.0, 0.0, 0.5]]).double()
        targets = torch.zeros(9, dtype=torch.int64)
        whole = RiemannianMeans.empty(3).double().learned(vectors, targets)
        parts = RiemannianMeans.empty(3).double()
        for part in vectors.split(2):
            parts = parts.learned(part, targets[: len(part)])
        torch.testing.assert_close(parts.means, whole.means)
        torch.testing.assert_close(whole.means[0], vectors.mean(0))
        assert parts.counts.tolist() == whole.counts.tolist() == [9]

    def test_otherwise_it_is_near_the_mean_of_all(self) -> None:
        samples = windows(40, 4, (0, 1))
        state = MinimumDistance().fit(samples, rng=stream(0))
        features = state.trunk(samples.values)
        whole = state.head
        half = RiemannianMeans.empty(10).double().learned(features[:10], samples.labels[:10])
        both = half.learned(features[10:], samples.labels[10:])
        means, all_means = (positive_definite(head.means) for head in (both, whole))
        distances = distance_riemann(means.numpy(), all_means.numpy())
        between = distance_riemann(all_means[0].numpy(), all_means[1].numpy())
        assert (distances < 0.05 * between).all() and both.counts.tolist() == [20, 20]

    def test_a_class_is_forgotten_exactly(self) -> None:
        samples = windows(30, 3, (0, 1, 2))
        features = randn(30, 6, seed=1)
        head = RiemannianMeans.empty(6).double().learned(features, samples.labels)
        less = head.without(1)
        torch.testing.assert_close(less(features), head(features)[:, [0, 2]])


def test_what_is_no_number_makes_no_number() -> None:
    head = RiemannianMeans.empty(3).learned(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))
    assert head(torch.tensor([[torch.nan, 0, 0]])).isnan().all()
    far = head(torch.tensor([[15.0, 0, -15.0]]))
    assert float(far) == pytest.approx(-450, rel=1e-3)
    assert head(torch.tensor([[100.0, 0, -100.0]])).isfinite().all()


def test_blocks_on_the_meta_device_need_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a model file makes them there; ``torch.eye`` would load torch's compiler first, for seconds."""
    on_the_cpu = make_blocks((40, 64), CLASSICAL)
    with torch.device("meta"):
        torch.zeros(1)  # the first call looks up all functions that take a device
        monkeypatch.delattr(torch, "eye")
        made = make_blocks((40, 64), CLASSICAL)
    for one, other in zip(made, on_the_cpu, strict=True):
        shapes = [{name: tensor.shape for name, tensor in block.named_buffers()} for block in (one, other)]
        assert shapes[0] == shapes[1] and all(tensor.is_meta for tensor in one.buffers())
