"""Models that keep statistics alone: through a file, with more shots, without a class; their sizes."""

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier, Geometry
from anchorinv.core.catalogue import CLOSED_FORM, SUMMED
from anchorinv.core.ranpac import N_RANDOM
from anchorinv.model.bundle import read_facts
from anchorinv.model.limits import MOST_BYTES, check_kept
from anchorinv.model.manifest import manifest, told
from tests.models import SMALL, again, fitted, windows

METHODS = (*SUMMED, *CLOSED_FORM)
TEST = windows(30, classes=("left", "right", "tongue"), seed=8)[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_file_predicts_bit_by_bit_and_goes_on_learning(method, tmp_path):
    model = fitted(method)
    model.save(tmp_path / "m")
    found = AnchorInvClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(found.predict_proba(TEST), model.predict_proba(TEST))
    more = windows(10, classes=("feet",), seed=4)
    here, there = (again(each).partial_fit(*more) for each in (model, found))
    np.testing.assert_array_equal(here.predict_proba(TEST), there.predict_proba(TEST))
    facts = manifest(*read_facts(tmp_path / "m"))
    assert facts["memory"] == "class statistics" and not any(facts["anchors"].values())
    lines = " ".join(told(facts))
    assert "It holds no recording" in lines and "of each class a count and" in lines.replace(
        "count, a", "count and"
    )


@pytest.mark.parametrize("method", [*SUMMED, "lda", "discriminant"])
def test_more_shots_later_are_as_good_as_at_once(method):
    X, y = windows(20, classes=("tongue",), seed=1)
    once = again(fitted(method, taught=False)).partial_fit(X, y)
    later = again(fitted(method, taught=False)).partial_fit(X[:7], y[:7]).add_shots(X[7:], y[7:])
    assert later.counts_.tolist() == once.counts_.tolist()
    np.testing.assert_allclose(later.predict_proba(TEST), once.predict_proba(TEST), atol=2e-3)


def test_more_shots_move_the_mean_of_mdm_along_the_geodesic():
    X, y = windows(20, classes=("tongue",), seed=1)
    once = again(fitted("mdm", taught=False)).partial_fit(X, y)
    later = again(fitted("mdm", taught=False)).partial_fit(X[:7], y[:7]).add_shots(X[7:], y[7:])
    assert later.state_.head.counts.tolist() == [12, 12, 20]
    np.testing.assert_allclose(later.predict_proba(TEST), once.predict_proba(TEST), atol=0.1)
    assert (later.predict(TEST) == once.predict(TEST)).mean() > 0.9


def test_ranpac_holds_its_gram_matrix_once_and_its_size_is_foreseen(tmp_path):
    fitted("ranpac").save(tmp_path / "m")
    size = (tmp_path / "m").stat().st_size
    gram = 4 * N_RANDOM * (N_RANDOM + 1) // 2
    assert gram < size < gram + 4 * N_RANDOM * (SMALL.dim + 3) + 200_000
    check_kept("ranpac", SMALL, 1000, 0)
    long = Geometry(1, 10_000_000, kernel=1, stride=1, pool=100, pool_stride=100, width=1, heads=1)
    with pytest.raises(ValueError, match=f"bytes in a file are too many, {MOST_BYTES - (32 << 20)}"):
        check_kept("ranpac", long, 2, 0)


def test_what_stays_of_a_forgotten_class_is_told(tmp_path):
    for method, words in (("ranpac", "squares and products of all classes"), ("mdm", "statistics are gone")):
        again(fitted(method)).forget_class("tongue").save(tmp_path / method)
        assert any(words in line for line in told(manifest(*read_facts(tmp_path / method))))
