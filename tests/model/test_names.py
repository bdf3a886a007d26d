"""Names: what is accepted looks different to every reader, and comes back from a file as it was."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv import AnchorInvClassifier
from anchorinv.model.names import check_name, check_names
from tests.models import SMALL, again, fitted, windows


@given(st.lists(st.text(max_size=6), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_names_that_are_accepted_differ_in_what_is_seen(names):
    try:
        check_names(names)
    except ValueError as error:
        assert str(error).isprintable()
        return
    assert all(name and "\0" not in name and len(name.splitlines()) == 1 for name in names)
    assert len({unicodedata.normalize("NFC", name) for name in names}) == len(names)


def test_numbers_and_booleans_are_no_names():
    check_names([1, 1, True])


@pytest.mark.parametrize("name", ["", "a" * 201, "a\nb", "\ud800", "left\0", "\x1b[2J", "a\u2029"])
def test_odd_names(name):
    with pytest.raises(ValueError, match="the name"):
        check_name(name)


@pytest.mark.parametrize(
    "labels", [["left\0", "left"], ["left", "le\u200bft"], ["a\n", "b"], ["x" * 300, "y"]]
)
def test_classes_are_refused_before_anything_is_learned(labels):
    X, _ = windows(8)
    model = AnchorInvClassifier(geometry=SMALL, epochs=1)
    with pytest.raises(ValueError, match="the name"):
        model.fit(X, labels * 4)
    assert not hasattr(model, "state_")
    taught = again(fitted(taught=False))
    with pytest.raises(ValueError, match="the name"):
        taught.partial_fit(X[:2], ["le\u00adft"] * 2)  # 'left' is known
    assert taught.classes_.tolist() == ["left", "right"]
