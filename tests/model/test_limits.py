"""Limits: what people compute with is far below them, and what is beyond is refused before it is computed."""

import pytest

from anchorinv import GEOMETRIES, AnchorInvClassifier, Filter, Geometry, Preprocessing
from anchorinv.core.catalogue import CATALOGUE
from anchorinv.model.limits import check_geometry, check_kept, kept_by
from tests.models import SETTINGS, SMALL, fitted, windows


@pytest.mark.parametrize("shape", [(1, 16), (64, 2048), (306, 5000), (512, 2000), (8, 500_000), (1024, 4000)])
def test_ordinary_sizes_are_allowed(shape):
    geometry = Geometry.for_shape(*shape)
    for each in (geometry, *GEOMETRIES.values()):
        check_geometry(each)


@pytest.mark.parametrize("method", CATALOGUE)
def test_the_papers_sizes_are_allowed(method):
    for geometry in GEOMETRIES.values():
        check_kept(method, geometry, 16, kept_by(method, [1000] * 16, 50) + 100)


@pytest.mark.parametrize("method", CATALOGUE)
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
        ({"sfreq": 1e-9}, "rate of 1e-09 Hz is beyond"),
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
