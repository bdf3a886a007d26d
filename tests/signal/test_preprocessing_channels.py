"""Channels by name: what is the same, what is not, and what is never guessed."""

import pytest

from anchorinv.signal.preprocessing import parse_channels, pick_channels, renamed


@pytest.mark.parametrize(
    ("wanted", "present", "places"),
    [
        (["C3", "Cz"], ["EEG CZ-REF", "EOG", "EEG C3-REF"], [2, 0]),
        (["C3"], ["C3.."], [0]),
        (["EEG C3"], ["c3"], [0]),
        (["C3"], ["C3", "EEG C3"], [0]),
        (["muscle1", "muscle2"], ["Muscle2", "Muscle1"], [1, 0]),
        (["EMG 1", "EEG 1"], ["EEG 1", "EMG 1"], [1, 0]),
    ],
)
def test_the_same_under_another_spelling(wanted, present, places):
    assert pick_channels(wanted, present, source="r") == places


@pytest.mark.parametrize(
    ("wanted", "present"),
    [
        (["Muscle1"], ["Muscle2"]),  # a reference behind a name is set apart from it
        (["C3-LE1"], ["C3-LE2"]),
        (["needle"], ["Need"]),
        (["EMG 1"], ["EEG 1", "EEG 2"]),  # kinds differ
        (["c3"], ["C3 ", "EEG C3", "c3."]),  # two would do
    ],
)
def test_others_are_not_taken_for_it(wanted, present):
    with pytest.raises(ValueError, match="r lacks 1 of 1 channels"):
        pick_channels(wanted, present, source="r")


def test_no_channel_serves_twice():
    with pytest.raises(ValueError, match="M1, M1-REF would all be its channel 'M1'; name each channel once"):
        pick_channels(["M1", "M1-REF"], ["M1", "q"], source="r")


def test_renaming():
    assert renamed(["E1", "E2"], {"e1": "C3"}, source="r") == ("C3", "E2")
    assert renamed(["C3", "E2"], {"E1": "C3"}, source="r") == ("C3", "E2"), "one file of many has it already"
    with pytest.raises(ValueError, match="r: there is no channel 'E9' to be called 'C4'; there is E1, E2"):
        renamed(["E1", "E2"], {"E9": "C4"}, source="r")
    with pytest.raises(ValueError, match="two channels would be called 'E2'"):
        renamed(["E1", "E2"], {"E1": "E2"}, source="r")


@pytest.mark.parametrize("text", ["", "C3,,C4", "C3=", "=C3", "C3,C3", "a=C3,a=C4", "a=C3,b=C3"])
def test_what_cannot_be_read(text):
    with pytest.raises(ValueError, match="channel"):
        parse_channels([text])


def test_many_channels_take_no_time():
    names = [f"EEG {i}" for i in range(3000)]
    assert pick_channels([f"{i}-REF" for i in range(3000)], names, source="r") == list(range(3000))
