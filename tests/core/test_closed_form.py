"""Calibration: what a person differs by is taken away, can be given back, and is refused where it harms."""

import math
from copy import deepcopy
from functools import cache

import pytest
import torch

from anchorinv.core import catalogue
from anchorinv.core.closed_form import calibrated, check_calibration, uncalibrated
from anchorinv.core.discriminant import Discriminant
from anchorinv.core.networks import encode
from anchorinv.core.types import State, stream
from tests.core.small import base_spec, same, snapshot, toy


@cache
def fitted() -> State:
    return catalogue.discriminant(base_spec()).fit_base(toy(n_per_class=30), rng=stream(1))


def model(centring: float = 0.1) -> State:
    state = deepcopy(fitted())
    assert isinstance(state.head, Discriminant)
    state.head.centring = centring
    return state


def test_the_middle_of_the_features_becomes_that_of_the_base_windows() -> None:
    state, base = model(), toy(n_per_class=30).values
    other = 1.5 * toy(n_per_class=30, seed=4).values + 0.2
    moved = calibrated(state, other)
    torch.testing.assert_close(
        encode(moved.trunk, other).mean(0), encode(state.trunk, base).mean(0), rtol=0, atol=1e-4
    )


def test_base_windows_calibrate_to_nothing() -> None:
    state, base = model(), toy(n_per_class=30)
    assert calibrated(state, base.values).trunk.shift.abs().max() < 1e-4


def test_it_can_be_undone_and_repeated() -> None:
    state, other = model(), toy(n_per_class=30, seed=4).values * 2
    before = snapshot(state)
    once = calibrated(state, other)
    assert same(snapshot(state), before)
    assert same(snapshot(uncalibrated(once)), before)
    assert same(snapshot(calibrated(once, other)), snapshot(once))


@pytest.mark.parametrize(
    ("centring", "n", "words"),
    [(0.1, 9, "too few"), (math.nan, 50, "unknown whether"), (-0.05, 50, "advises against")],
)
def test_it_is_refused_with_a_reason(centring: float, n: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_calibration(model(centring), n, force=False)
    if n >= 10:
        check_calibration(model(centring), n, force=True)


def test_networks_have_nothing_to_calibrate() -> None:
    state = catalogue.protonet(base_spec()).fit_base(toy(), rng=stream(1))
    with pytest.raises(ValueError, match="only the methods"):
        calibrated(state, toy().values)
