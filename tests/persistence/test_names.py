"""Names: what is accepted looks different to every reader, and comes back from a file as it was."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv import AnchorInvClassifier
from anchorinv.errors import check_name, check_names, looks_like
from tests.models import SMALL, again, fitted, windows


@given(st.lists(st.text(max_size=6), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
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


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("gest00", " gest00"),
        ("gest00", "Gest00"),
        ("gest00", "gest 00"),
        ("gest_00", "gest 00 "),
        ("left hand", "left  hand"),
        ("left_hand", "LeftHand"),
        ("Straße", "STRASSE"),
    ],
)
def test_names_that_differ_in_spaces_or_case_are_alike(name, other):
    assert looks_like(other, ["something", name]) == name
    taught = again(fitted(taught=False))
    taught.classes_ = np.array([name, "right"])
    X, _ = windows(8)
    with pytest.raises(ValueError, match=r"looks like the known class .*add_shots.*anchorinv add"):
        taught.partial_fit(X, [other] * 8)
    with pytest.raises(ValueError, match=r"not among the known ones; .* looks like"):
        taught.add_shots(X, [other] * 8)
    assert taught.classes_.tolist() == [name, "right"]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("rest", "Rest position"),
        ("arm_1_2", "arm_12"),  # the second finger of arm 1, and the twelfth
        ("A", "a"),  # annotations of beats: an atrial premature one, and an aberrated one
        ("left", "right"),
        ("T1", "T 10"),
        ("_", "__"),
    ],
)
def test_names_that_differ_in_more_are_not(name, other):
    assert looks_like(other, [name]) is None


def test_numbers_look_like_themselves_alone():
    assert looks_like(1, [11, True]) is None


def test_two_new_classes_that_look_alike_are_refused_in_a_lesson():
    taught = again(fitted(taught=False))
    with pytest.raises(ValueError, match="'tongue ' looks like 'tongue'"):
        taught.partial_fit(windows(8)[0], ["tongue", "tongue "] * 4)


def test_base_classes_that_look_alike_are_a_warning():
    X, _ = windows(24)
    with pytest.warns(UserWarning, match="classes 'Rest' and 'rest' differ in spaces or case alone") as seen:
        model = AnchorInvClassifier(network="never", random_state=0).fit(
            X, ["rest", "Rest", "Rest position"] * 8
        )
    assert len(seen) == 1 and len(model.classes_) == 3
