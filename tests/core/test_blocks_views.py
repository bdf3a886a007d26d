"""Views: what scipy and linear algebra say of a signal, beside what the network says."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import logm
from scipy.signal import welch
from torch import nn

from anchorinv.core import catalogue
from anchorinv.core.blocks import (
    BANDS,
    FLOOR_OF_COVARIANCES,
    VIEWS,
    TailWithViews,
    add_views,
    band_powers,
    log_covariances,
    view_sizes,
    without_views,
)
from anchorinv.core.conformer import Conformer
from anchorinv.core.networks import Geometry, encode
from anchorinv.core.types import Session, stream
from tests.core.small import SMALL, base_spec, randn, toy


def test_the_spectrum_is_welchs() -> None:
    signals = randn(4, 3, 400, seed=0)
    _, power = welch(signals.numpy(), nperseg=100, window="hann", noverlap=50, scaling="spectrum")
    # scipy's window is periodic and the last bin is not doubled: within a fifth, in logarithms.
    means = np.stack([part.mean(2) for part in np.array_split(power[:, :, 1:], BANDS, axis=2)], axis=2)
    found = band_powers(signals).reshape(4, 3, BANDS).numpy()
    level = (np.log(means) - found).mean()
    np.testing.assert_allclose(found + level, np.log(means), atol=0.2)


def test_a_tone_is_in_its_band_and_its_channel() -> None:
    times = torch.arange(200)
    signals = 0.01 * randn(1, 2, 200, seed=1)
    signals[0, 1] += torch.sin(np.pi * 0.5 * times)  # half of half the sampling rate: the third band
    found = band_powers(signals).reshape(2, BANDS)
    assert found.argmax().item() == BANDS + 2


def test_covariances_are_the_logarithm_of_their_matrix() -> None:
    signals = randn(3, 4, 50, seed=2)
    rows, cols = np.triu_indices(4)
    for signal, found in zip(signals, log_covariances(signals), strict=True):
        matrix = np.cov(signal.numpy(), bias=True)
        expected = logm(matrix + FLOOR_OF_COVARIANCES * np.trace(matrix) / 4 * np.eye(4))
        weights = np.where(rows == cols, 1, np.sqrt(2))
        np.testing.assert_allclose(found.numpy(), expected[rows, cols] * weights, atol=1e-5)


@pytest.mark.parametrize("name", VIEWS)
@given(st.integers(1, 5), st.integers(2, 40), st.floats(0.1, 1e3))
def test_views_are_finite_and_differences_know_no_gain(
    name: str, n_chans: int, n_times: int, gain: float
) -> None:
    view = VIEWS[name].features
    flat = randn(1, n_chans, n_times, seed=3)
    flat[0, 0] = 0
    assert view(flat).isfinite().all()
    two = randn(2, n_chans, 40, seed=n_times)
    (quiet, other), (loud, louder) = view(two), view(gain * two)
    torch.testing.assert_close(loud - louder, quiet - other, atol=1e-3, rtol=1e-3)


def test_of_silence_too() -> None:
    for view in VIEWS.values():
        assert view.features(torch.zeros(2, 3, 40)).isfinite().all()


def test_the_network_sees_what_it_saw() -> None:
    network = Conformer(SMALL).eval()
    trunk, tail = add_views(network.trunk, network.tail, ("covariance", "spectrum"), (3, 40))
    signals = randn(5, 3, 40, seed=4, dtype=torch.float32)
    wide = encode(tail, encode(trunk, signals))
    own, covariance, spectrum = torch.split(wide, list(tail.sizes), dim=1)
    torch.testing.assert_close(own, encode(network, signals))
    torch.testing.assert_close(covariance, log_covariances(signals))
    torch.testing.assert_close(spectrum, band_powers(signals))


class TestState:
    def test_prototypes_are_the_means_of_all_that_is_seen(self) -> None:
        train = toy()
        state = catalogue.anchorinv_plus(base_spec()).fit_base(train.of(0, 1), rng=stream(0))
        seen = encode(state.tail, encode(state.trunk, train.of(1).values))
        torch.testing.assert_close(state.head.prototypes[1], seen.mean(0))  # type: ignore[index, operator]
        assert view_sizes(state) == (3 * BANDS, 6)

    def test_anchors_take_no_more_memory_than_without_views(self) -> None:
        train = toy(4, 40)
        base, shots = train.of(0, 1), toy(4, 10).of(2, 3)
        sizes = []
        for make in (catalogue.fecam, catalogue.anchorinv_plus):
            recipe = make(base_spec(), per_class=30)
            state = recipe.fit_base(base, rng=stream(0))
            state = recipe.learn_session(state, Session(1, shots), rng=stream(1))
            assert state.anchors is not None
            sizes.append(state.anchors.values.numel())
        assert 0.9 * sizes[0] < sizes[1] <= sizes[0]

    def test_covariances_of_very_many_channels_are_left_out(self) -> None:
        geometry = Geometry(15, 40, kernel=5, pool=6, pool_stride=3, width=8, heads=2, depth=2)
        many = toy(geometry=geometry)
        base = replace(base_spec(), backbone=partial(Conformer, geometry))
        recipe = catalogue.anchorinv_plus(base)
        state = recipe.fit_base(many.of(0, 1), rng=stream(0))
        assert geometry.dim < VIEWS["covariance"].size(15) and view_sizes(state) == (
            VIEWS["spectrum"].size(15),
        )

    def test_bare_is_the_network(self) -> None:
        recipe = catalogue.anchorinv_plus(base_spec())
        state = recipe.fit_base(toy().of(0, 1), rng=stream(0))
        trunk, tail = without_views(state)
        assert not any(isinstance(module, TailWithViews) for module in nn.Sequential(trunk, tail).modules())
