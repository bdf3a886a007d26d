"""Steady predictions: each element by hand, by its definition over the whole past, and in streams."""

import importlib.util
import sys
import warnings
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv import Smoothing, StreamingPredictor
from anchorinv.serving import streaming
from anchorinv.serving.streaming import UNKNOWN, Smoother, preset, smoother_of
from tests.models import RATE, again, fitted, windows

NAMES = np.array(["a", "b", "c"])
SURE = {"a": [0.8, 0.1, 0.1], "b": [0.1, 0.8, 0.1], "c": [0.1, 0.1, 0.8], "?": [0.4, 0.3, 0.3], "-": None}
HALF = 1 / np.log(2)  # time constant after which a window of a second ago weighs half


def run(how, rows, *, classes=NAMES, starts=None, sfreq=1.0, rejected=()):
    """Steady rows a second apart; return what is made of each."""
    smoother = Smoother(how, sfreq)
    return [
        smoother(
            start,
            None if row is None else np.array(row),
            classes=classes[: len(row or ())],
            rejected=i in rejected,
        )
        for i, (start, row) in enumerate(zip(starts or range(len(rows)), rows, strict=True))
    ]


def labels(how, text, **more):
    """Steady windows given by their class: ``?`` is rejected, ``-`` a gap."""
    rejected = [i for i, letter in enumerate(text) if letter == "?"]
    steadied = run(how, [SURE[letter] for letter in text], rejected=rejected, **more)
    return "".join({None: "-", UNKNOWN: "?"}.get(each.label, each.label) for each in steadied)


class TestByHand:
    def test_a_vote(self):
        assert labels(Smoothing(vote=3), "aabaabbccc") == "aaaaaabbcc"

    def test_a_tie_is_for_the_one_that_holds_otherwise_for_the_latest(self):
        assert labels(Smoothing(vote=2), "abbc") == "aabb"
        assert labels(Smoothing(vote=2), "abc") == "aac"

    def test_a_vote_goes_by_time_not_by_number(self):
        assert labels(Smoothing(vote=3), "aabb", starts=[0, 1, 2, 3]) == "aaab"
        assert labels(Smoothing(vote=3), "aabb", starts=[0, 1, 4, 5]) == "aabb"

    def test_averaging(self):
        made = run(Smoothing(time_constant=HALF), [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        np.testing.assert_allclose([each.probabilities for each in made], [[1, 0], [0.5, 0.5], [0.25, 0.75]])
        assert [each.label for each in made][::2] == ["a", "b"]

    def test_averaging_goes_by_time(self):
        made = run(Smoothing(time_constant=HALF), [[1.0, 0.0], [0.0, 1.0]], starts=[0, 3])
        np.testing.assert_allclose(made[1].probabilities, [0.125, 0.875])

    def test_hysteresis(self):
        rows = [[0.75, 0.25], [0.45, 0.55], [0.375, 0.625], [0.25, 0.75], [0.5, 0.5], [0.75, 0.25]]
        assert [each.label for each in run(Smoothing(hysteresis=0.25), rows)] == list("aaabba")
        assert [each.label for each in run(Smoothing(hysteresis=0), rows)] == list("abbbba")

    def test_hysteresis_of_votes_compares_their_shares(self):
        assert labels(Smoothing(vote=3, hysteresis=0.5), "aabbb") == "aaaab"

    def test_a_dwell(self):
        assert labels(Smoothing(dwell=2), "abbabbbb") == "aaaaaabb"
        assert labels(Smoothing(dwell=2), "abbcccc") == "aaaaacc"  # another rival starts anew

    def test_times_are_rounded_to_samples(self):
        how, starts = Smoothing(dwell=0.3, vote=0.1), [0, 1, 2, 3, 4]  # 0.3 · 10 is not quite 3
        assert labels(how, "abbbb", starts=starts, sfreq=10.0) == "aaaab"


class TestUnknown:
    def test_it_is_one_more_outcome(self):
        assert labels(Smoothing(), "a?b") == "a?b"
        assert labels(Smoothing(vote=3), "aa?a??b") == "aaaa???"
        assert labels(Smoothing(dwell=1), "a?a??b?bb") == "aaaa????b"
        assert labels(Smoothing(hysteresis=0.75), "a?ab") == "a?aa"

    def test_its_averaged_share_is_that_of_rejected_windows(self):
        made = run(Smoothing(time_constant=HALF), [[0.6, 0.4], [0.6, 0.4], [0.2, 0.8]], rejected=[1, 2])
        assert [each.unknown for each in made] == pytest.approx([0, 0.5, 0.75])
        assert [each.label for each in made] == ["a", UNKNOWN, UNKNOWN]
        # Probabilities are of the windows that were not rejected.
        np.testing.assert_allclose([each.probabilities for each in made], [[0.6, 0.4]] * 3)

    def test_without_any_other_window_probabilities_are_its_own(self):
        made = run(Smoothing(time_constant=HALF), [[0.6, 0.4]], rejected=[0])
        assert made[0].label == UNKNOWN and made[0].probabilities.tolist() == [0.6, 0.4]

    def test_its_label_can_be_another(self):
        smoother = Smoother(Smoothing(dwell=1), 1.0, unknown=-1)
        assert smoother(0, np.array([0.5, 0.5]), classes=[3, 4], rejected=True).label == -1


class TestGaps:
    def test_they_have_no_class_and_interrupt_a_dwell(self):
        assert labels(Smoothing(dwell=2), "ab-bbb") == "aa-aab"
        assert run(Smoothing(), [[0.9, 0.1], None])[1].probabilities is None

    def test_a_short_one_keeps_what_holds_and_a_long_one_does_not(self):
        how = Smoothing(hysteresis=0.9)
        assert labels(how, "a-b") == "a-a"  # a second, see SHORT_GAP
        assert labels(how, "a--b") == "a--b"

    def test_how_long_is_for_the_settings_to_say(self):
        assert Smoothing(hysteresis=0.1).memory == 1
        assert Smoothing(vote=2, time_constant=1.5, dwell=4).memory == 4.5
        assert labels(Smoothing(hysteresis=0.9, time_constant=1), "aaa---b") == "aaa---a"
        assert labels(Smoothing(hysteresis=0.9, time_constant=1), "aaa----b") == "aaa----b"


class TestClasses:
    """Classes are taught and forgotten while a stream runs."""

    def test_they_are_matched_by_name(self):
        smoother = Smoother(Smoothing(time_constant=HALF), 1.0)
        smoother(0, np.array([0.8, 0.2]), classes=["b", "d"])
        made = smoother(1, np.array([0.5, 0.3, 0.2]), classes=["a", "b", "d"])
        np.testing.assert_allclose(made.probabilities, [0.25, 0.55, 0.2])
        made = smoother(2, np.array([0.6, 0.3, 0.1]), classes=["d", "a", "b"])
        np.testing.assert_allclose(made.probabilities, [0.4, 0.275, 0.325])

    def test_shares_of_a_forgotten_one_go_to_the_others(self):
        smoother = Smoother(Smoothing(time_constant=HALF), 1.0)
        smoother(0, np.array([0.5, 0.4, 0.1]), classes=["a", "b", "c"])
        made = smoother(1, np.array([0.6, 0.4]), classes=["b", "c"])
        np.testing.assert_allclose(made.probabilities, [0.7, 0.3])  # half of (0.8, 0.2), half of (0.6, 0.4)

    @pytest.mark.parametrize("how", [Smoothing(dwell=5), Smoothing(hysteresis=0.9), Smoothing(vote=9)])
    def test_the_one_that_holds_stays_unless_it_is_forgotten(self, how):
        smoother = Smoother(how, 1.0)
        smoother(0, np.array([0.3, 0.7]), classes=["b", "c"])
        assert smoother(1, np.array([0.6, 0.2, 0.2]), classes=["a", "b", "c"]).label == "c"
        assert smoother(2, np.array([0.6, 0.4]), classes=["a", "b"]).label == "a"

    def test_a_dwell_goes_on_under_the_same_name(self):
        smoother = Smoother(Smoothing(dwell=1), 1.0)
        smoother(0, np.array([0.7, 0.3]), classes=["b", "c"])
        smoother(1, np.array([0.3, 0.7]), classes=["b", "c"])
        assert smoother(2, np.array([0.2, 0.1, 0.7]), classes=["a", "b", "c"]).label == "c"
        smoother(3, np.array([0.2, 0.7, 0.1]), classes=["a", "b", "c"])
        assert smoother(4, np.array([0.9, 0.1]), classes=["a", "c"]).label == "c"  # the rival is gone

    def test_all_that_was_averaged_may_be_forgotten(self):
        smoother = Smoother(Smoothing(time_constant=5), 1.0)
        smoother(0, np.array([1.0, 0.0]), classes=["a", "b"])
        assert smoother(1, np.array([0.5, 0.5]), classes=["b", "c"]).probabilities.tolist() == [0.5, 0.5]


ROW = st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(lambda row: np.array(row) / sum(row))
ROWS = st.lists(ROW, min_size=1, max_size=25)
SETTINGS = st.builds(
    Smoothing,
    vote=st.none() | st.floats(0.1, 6),
    time_constant=st.none() | st.floats(0.1, 6),
    hysteresis=st.none() | st.floats(0, 0.9),
    dwell=st.none() | st.floats(0.1, 6),
)


class TestByDefinition:
    @given(ROWS, st.floats(0.1, 9), st.sets(st.integers(0, 24)))
    def test_averaging_is_a_weighted_mean_of_all_windows(self, rows, constant, rejected):
        made = run(Smoothing(time_constant=constant), [row.tolist() for row in rows], rejected=rejected)
        shares = np.array([[0, 0, 0, 1] if i in rejected else [*row, 0] for i, row in enumerate(rows)])
        for i, each in enumerate(made):
            weights = np.exp((np.arange(i + 1) - i) / constant) * (1 - np.exp(-1 / constant))
            weights[0] = 1 - weights[1:].sum()  # as if the first had always been there
            mean = weights @ shares[: i + 1]
            assert each.unknown == pytest.approx(mean[3])
            if mean[:3].sum() > 1e-9:
                np.testing.assert_allclose(each.probabilities, mean[:3] / mean[:3].sum(), rtol=1e-6)

    @given(st.text("abc?", min_size=1, max_size=30), st.integers(1, 7))
    def test_a_vote_is_for_what_most_windows_are(self, text, n):
        for i, label in enumerate(labels(Smoothing(vote=n), text)):
            counts = Counter(text[max(0, i + 1 - n) : i + 1])
            assert counts[label] == max(counts.values())

    @given(ROWS, st.floats(0, 0.9))
    def test_hysteresis_switches_where_the_margin_is_exceeded(self, rows, margin):
        made = [each.label for each in run(Smoothing(hysteresis=margin), [row.tolist() for row in rows])]
        for row, before, now in zip(rows[1:], made, made[1:], strict=False):
            by_name = dict(zip(NAMES, row, strict=True))
            exceeded = max(by_name.values()) - by_name[before] > margin
            assert (now != before) == exceeded and (not exceeded or by_name[now] == max(by_name.values()))

    @given(st.text("abc?-", min_size=1, max_size=30), st.integers(1, 5))
    def test_a_dwell_switches_to_what_has_been_there_for_so_long(self, text, n):
        made = labels(Smoothing(dwell=n), text)
        held = None
        for i, now in enumerate(made):
            if text[i] == "-":
                assert now == "-"
                held = None if "-" * (n + 1) in text[: i + 1] else held  # not looked at after a long gap
                continue
            if held not in (None, now):
                assert set(text[i - n : i + 1]) == {now}
            held = now

    @given(st.lists(st.permutations([0.6, 0.3, 0.1]), min_size=1), SETTINGS, st.permutations(range(3)))
    def test_the_order_of_classes_does_not_matter(self, rows, how, order):
        how = replace(how, time_constant=None)  # means may be tied but for their last bits
        here = [each.label for each in run(how, rows)]
        there = run(how, [[row[i] for i in order] for row in rows], classes=NAMES[order])
        assert [each.label for each in there] == here

    @given(ROWS)
    def test_switched_off_nothing_changes(self, rows):
        smoother = Smoother(Smoothing(), 7.0)
        for start, row in enumerate(rows):
            made = smoother(start, row, classes=NAMES)
            assert made.probabilities is row and made.label == NAMES[row.argmax()]

    @given(ROWS, SETTINGS)
    def test_after_a_reset_it_is_as_new(self, rows, how):
        smoother = Smoother(how, 1.0)
        first = [smoother(i, row, classes=NAMES) for i, row in enumerate(rows)]
        smoother.reset()
        second = [smoother(i, row, classes=NAMES) for i, row in enumerate(rows)]
        assert [each.label for each in first] == [each.label for each in second]
        np.testing.assert_array_equal(
            [each.probabilities for each in first], [each.probabilities for each in second]
        )


class TestMistakes:
    @pytest.mark.parametrize("name", ["vote", "time_constant", "dwell"])
    @pytest.mark.parametrize("value", [0, -1, np.inf, np.nan, "1", True])
    def test_times(self, name, value):
        with pytest.raises(ValueError, match=rf"{name} \(=.*\) must be a number of seconds above 0"):
            Smoothing(**{name: value})

    def test_all_are_named_at_once(self):
        with pytest.raises(ValueError, match=r"2 problems\n.*vote .*\n.*hysteresis \(=1\) must be a margin"):
            Smoothing(vote=0, hysteresis=1)

    def test_windows_out_of_order(self):
        with pytest.raises(ValueError, match=r"a window at 3 came after one at 5; .*reset\(\)"):
            run(Smoothing(), [[0.5, 0.5]] * 2, starts=[5, 3])

    @pytest.mark.parametrize(
        ("steady", "words"),
        [("calm", r"none of the presets; choose 'balanced'"), (3, "must be None, 'balanced' or Smoothing")],
    )
    def test_other_values(self, steady, words):
        with pytest.raises(ValueError, match=words):
            StreamingPredictor(fitted(), step=8, steady=steady)

    def test_a_model_without_a_rate(self):
        with pytest.raises(ValueError, match=r"has no sampling rate; train it with sfreq"):
            StreamingPredictor(fitted(sfreq=None), step=8, steady="balanced")
        assert smoother_of(Smoothing(), fitted(sfreq=None)) is None


def test_the_preset_goes_by_the_length_of_windows():
    short, long = preset("balanced", 0.4), preset("balanced", 4.0)
    assert long.hysteresis == short.hysteresis and long.time_constant == 10 * short.time_constant
    assert smoother_of("balanced", fitted()).settings == preset("balanced", 64 / RATE)


def test_the_preset_is_what_the_record_of_the_study_chooses():
    path = Path(__file__).parents[2] / "docs" / "steady_study.py"
    spec = importlib.util.spec_from_file_location("steady_study", path)
    study = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "steady_study", study)  # dataclasses look their module up
        spec.loader.exec_module(study)
    assert study.choose(study.read()) == preset("balanced", study.WINDOW / study.RATE)


SIGNAL = np.concatenate(list(windows(16, classes=("left", "right"), seed=3)[0]), axis=1)


def row_by_row(model, signals):
    """Stand in for a model whose probabilities do not depend on the batch, to the last bit."""
    loud = np.array([signal.std(axis=1)[:3] for signal in signals])
    return (loud / loud.sum(axis=1, keepdims=True)).astype(np.float32), None


def fed(model, signal, step, *, steady, places=()):
    live = StreamingPredictor(model, step=step, steady=steady)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [p for chunk in np.split(signal, sorted(places), axis=1) for p in live.feed(chunk)]


class TestStreams:
    @given(
        st.lists(st.integers(0, SIGNAL.shape[1]), max_size=8),
        st.integers(4, 90),
        SETTINGS,
        st.integers(0, SIGNAL.shape[1]),
    )
    @settings(max_examples=40, deadline=None)
    def test_chunks_do_not_matter(self, places, step, how, gap):
        model, signal = fitted(), SIGNAL.copy()
        signal[0, gap : gap + 5] = np.nan
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streaming, "probabilities", row_by_row)
            whole = fed(model, signal, step, steady=how)
            parts = fed(model, signal, step, steady=how, places=places)
        assert [(p.start, p.label, p.raw_label) for p in parts] == [
            (p.start, p.label, p.raw_label) for p in whole
        ]
        for part, one in zip(parts, whole, strict=True):
            np.testing.assert_array_equal(part.probabilities, one.probabilities)

    @pytest.mark.parametrize("steady", [Smoothing(dwell=0.3), "balanced"])
    def test_raw_labels_are_those_without(self, steady):
        raw = fed(fitted(), SIGNAL, 8, steady=None)
        steadied = fed(fitted(), SIGNAL, 8, steady=steady)
        assert [p.raw_label for p in steadied] == [p.label for p in raw] == [p.raw_label for p in raw]
        assert sum(p.label != p.raw_label for p in steadied) > 3
        changes = [sum(a.label != b.label for a, b in pairwise(p)) for p in (steadied, raw)]
        assert changes[0] < changes[1]

    def test_switched_off_it_is_bit_by_bit_as_before(self):
        for one, other in zip(
            fed(fitted(), SIGNAL, 8, steady=Smoothing()), fed(fitted(), SIGNAL, 8, steady=None), strict=True
        ):
            assert (one.start, one.label) == (other.start, other.label)
            np.testing.assert_array_equal(one.probabilities, other.probabilities)

    def test_reset_is_a_new_beginning(self):
        live = StreamingPredictor(fitted(), step=8, steady=Smoothing(vote=0.5, dwell=0.2))
        first = live.feed(SIGNAL[:, :500])
        live.reset()
        second = live.feed(SIGNAL[:, :500])
        assert [(p.start, p.label) for p in first] == [(p.start, p.label) for p in second]
        live.reset()
        with pytest.warns(UserWarning, match="about 1000 times its spread"):
            live.feed(1e3 * SIGNAL[:, :64])
        live.reset()
        with pytest.warns(UserWarning, match="about 1000 times its spread"):
            live.feed(1e3 * SIGNAL[:, :64])

    def test_a_class_may_be_taught_and_forgotten_meanwhile(self):
        model = again(fitted("lda", taught=False))
        live = StreamingPredictor(model, step=8, steady=Smoothing(time_constant=1.0, hysteresis=0.1))
        live.feed(SIGNAL[:, :200])
        model.partial_fit(*windows(10, classes=("ankle",), seed=1))
        taught = live.feed(SIGNAL[:, 200:400])[-1]
        assert len(taught.probabilities) == 3 and taught.probabilities.sum() == pytest.approx(1)
        model.forget_class(taught.label)
        left = live.feed(SIGNAL[:, 400:600])
        assert {p.label for p in left} <= set(model.classes_) and len(left[-1].probabilities) == 2
