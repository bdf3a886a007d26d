"""Limits: what people compute with is far below them, and what is beyond is refused before it is computed."""

import numpy as np
import pytest

from anchorinv import GEOMETRIES, AnchorInvClassifier, Conformer, Filter, Geometry, Preprocessing
from anchorinv.core.registry import METHODS
from anchorinv.persistence.limits import _weights, check_geometry, check_kept, inversion_batch, kept_by
from tests.models import SETTINGS, SMALL, fitted, windows


@pytest.mark.parametrize(
    "shape", [(1, 16), (64, 2048), (306, 5000), (512, 2000), (8, 500_000), (1024, 4000), (64, 122_880)]
)
def test_ordinary_sizes_are_allowed(shape):
    geometry = Geometry.for_shape(*shape)
    for each in (geometry, *GEOMETRIES.values()):
        check_geometry(each)


@pytest.mark.parametrize("method", METHODS)
def test_the_papers_sizes_are_allowed(method):
    for geometry in GEOMETRIES.values():
        check_kept(method, geometry, 16, kept_by(method, [1000] * 16, 50) + 100)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "real-replay"])
@pytest.mark.parametrize(
    ("shape", "n_classes"),
    [((22, 122_880), 2), ((128, 15_000), 4), ((256, 10_000), 4), ((32, 7680), 22)],
)
def test_long_windows_of_many_channels_are_allowed(shape, n_classes, method):
    kept = kept_by(method, [100] * n_classes, 25 if method in ("deepdream", "deepinv") else 50)
    check_kept(method, Geometry.for_shape(*shape), n_classes, kept)


@pytest.mark.parametrize(
    ("method", "shape", "n_kept", "remedies"),
    [
        ("real-replay", (1, 1_000_000), 140, ("bytes in a file", "windows", "rate", "channels", "--anchors")),
        ("anchorinv", (64, 122_880), 100, ("signals to invert", "windows", "rate", "channels", "--anchors")),
        ("deepinv", (8, 1000), 5000, ("scores of attention", "--anchors")),
        ("ridge", (8, 1000), 9000, ("samples kept", "--anchors")),
        ("latent-replay", (8, 1000), 20_000, ("samples kept", "--anchors")),
    ],
)
def test_what_is_refused_says_what_helps(method, shape, n_kept, remedies):
    with pytest.raises(ValueError, match="at most; use") as refusal:
        check_kept(method, Geometry.for_shape(*shape), 2, n_kept)
    assert all(words in str(refusal.value) for words in remedies)


@pytest.mark.parametrize("shape", [(64, 400_000), (2000, 64), (128, 1_200_000)])
def test_windows_that_are_refused_say_what_helps(shape):
    with pytest.raises(ValueError, match=r"at most; use .*fewer channels"):
        check_geometry(Geometry.for_shape(*shape))


def test_weights_that_no_file_has_room_for():
    for geometry in (
        Geometry(1000, 64, 1, pool=1, width=1024, heads=1),
        Geometry(1, 64, 9, pool=1, width=1024, depth=64, heads=1),
    ):
        with pytest.raises(ValueError, match="bytes of weights"):
            check_geometry(geometry)


@pytest.mark.parametrize("geometry", [*GEOMETRIES.values(), SMALL])
def test_foreseen_weights_are_those_of_the_network(geometry):
    network = Conformer(geometry)
    assert _weights(geometry) == sum(each.numel() for each in network.state_dict().values()) - 1  # a counter


def test_few_long_windows_are_inverted_at_once():
    assert {inversion_batch(each, 50) for each in GEOMETRIES.values()} == {50}
    assert inversion_batch(Geometry.for_shape(22, 122_880), 50) == 6
    assert inversion_batch(Geometry.for_shape(128, 100_000), 50) == 1


def test_recordings_that_no_file_has_room_for_are_refused_before_training():
    geometry = Geometry(1, 500_000, kernel=9, stride=500, pool=16, pool_stride=16, width=8, heads=2, depth=1)
    model = AnchorInvClassifier(method="real-replay", geometry=geometry, n_anchors=100, epochs=1)
    with pytest.raises(ValueError, match="bytes in a file"):
        model.fit(np.zeros((200, 1, 500_000), dtype=np.float32), ["a", "b"] * 100)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_keeps_is_foreseen(method):
    state = fitted(method, taught=False).state_
    kept = max((len(part) for part in (state.anchors, state.replay, state.recordings) if part), default=0)
    assert kept <= kept_by(method, [12, 12], SETTINGS["n_anchors"])
    assert (
        kept == kept_by(method, [12, 12], SETTINGS["n_anchors"]) or method == "anchorinv-plus"
    )  # wide anchors


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"inversion_steps": 10**7}, "inversion_steps.*at most 100000"),
        ({"n_anchors": 10**6}, "n_anchors.*at most 10000"),
        ({"method": "deepdream", "n_anchors": 10**4}, "samples kept are too many"),
        ({"random_state": 2**64}, "random_state"),
        ({"sfreq": 1e9}, "sfreq"),
        ({"sfreq": 1e-9}, r"sfreq \(=1e-09 Hz\) must be"),
        ({"verbose": "much"}, "verbose"),
        ({"preprocessing": Preprocessing(filter=Filter(1e-9, 4))}, "filter.low is wrong"),
        ({"preprocessing": Preprocessing(unrepeatable="x\n")}, "unrepeatable is wrong"),
        ({"preprocessing": Preprocessing(("a", "b", "c", "c\u200b"))}, "look the same"),
        (
            {"geometry": Geometry(4, 64, 1, pool=1, pool_stride=1, width=1040, heads=1040)},
            "of width",
        ),
    ],
)
def test_what_could_not_be_saved_is_not_learned(settings, words):
    model = AnchorInvClassifier(**{"geometry": SMALL, **settings})
    with pytest.raises(ValueError, match=words):
        model.fit(*windows())
