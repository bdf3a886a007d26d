"""Where a model comes from: fingerprints, dates, who and what, whole loss curves; in files and in memory."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv import AnchorInvClassifier
from anchorinv.core.types import Curve
from anchorinv.persistence.bundle import read_facts
from anchorinv.persistence.format import read_container, write_container
from anchorinv.persistence.manifest import manifest, manifest_lines
from anchorinv.persistence.provenance import (
    OPTIMISATIONS,
    fingerprint,
    origin,
    score_lines,
    subsample,
    utc_date,
    with_curves,
)
from tests.models import SETTINGS, again, fitted, windows


class TestFingerprint:
    @settings(max_examples=20)
    @given(st.integers(0, 99), st.sampled_from([np.float64, np.float32, ">f8", np.int16]))
    def test_order_and_storage_do_not_matter(self, seed, dtype):
        rng = np.random.default_rng(seed)
        X, y = rng.integers(-99, 99, (6, 3, 5)), np.array(["a", "b"] * 3)
        order = rng.permutation(6)
        stored = np.asfortranarray(X.astype(dtype))
        assert fingerprint(stored[order], y[order]) == fingerprint(X, y)

    def test_every_value_label_and_shape_does(self):
        X, y = windows(4)
        others = [fingerprint(X, y[::-1]), fingerprint(X[:3], y[:3]), fingerprint(X[:, :, ::-1], y)]
        others += [fingerprint(X.reshape(4, 2, 128), y), fingerprint(np.concatenate([X, X]), [*y, *y])]
        for place in np.ndindex(2, 4, 3):
            other = X.copy()
            other[place] += 1e-3
            others.append(fingerprint(other, y))
        assert len({fingerprint(X, y), *others}) == 1 + len(others)
        assert fingerprint(X, [0, 1, 0, 1]) != fingerprint(X, ["0", "1", "0", "1"])

    def test_zero_is_zero_and_beyond_single_precision_all_is_the_same(self):
        X, y = windows(4)
        assert fingerprint(0 * X, y) == fingerprint(-0.0 * X, y)
        assert fingerprint(X, y) == fingerprint(X.astype(np.float32), y)

    def test_it_stays_as_it_is(self):
        """Files have it: another rule would call the same data different."""
        X = np.arange(24, dtype=float).reshape(2, 3, 4)
        assert fingerprint(X, ["left", "right"]) == "ef457dfc586861c318d134ad7e7ff112"


class TestHistory:
    def test_the_clock_is_given(self):
        X, y = windows(4)
        line = origin(X, y, np.array([0, 0, 1, 1]), clock=lambda: 1e9)
        assert line["date"] == "2001-09-09T01:46:40Z" and line["groups"] == 2
        assert line["fingerprint"] == fingerprint(X, y) and {"anchorinv", "torch"} < set(line["versions"])

    def test_each_lesson_says_when_and_from_what(self):
        before = utc_date()
        model = again(fitted("discriminant"))
        model.add_shots(*windows(3, classes=("tongue",), seed=5)).forget_class("left")
        base, taught, more, forgotten = model.history_
        assert taught["fingerprint"] == fingerprint(*windows(10, classes=("tongue",), seed=1))
        assert more["fingerprint"] == fingerprint(*windows(3, classes=("tongue",), seed=5))
        assert "fingerprint" not in base, "of what is forgotten nothing is to be confirmed"
        assert all(re.fullmatch(r"\d{4}(-\d\d){2}T(\d\d:){2}\d\dZ", each["date"]) for each in model.history_)
        assert before <= more["date"] <= forgotten["date"] <= utc_date()

    def test_the_same_seed_learns_the_same_whatever_the_date(self):
        changing = ("date", "seconds", "versions")
        one, two = (AnchorInvClassifier(**SETTINGS, method="protonet").fit(*windows()) for _ in range(2))
        mine, theirs = ({k: v for k, v in m.history_[0].items() if k not in changing} for m in (one, two))
        assert mine == theirs and np.array_equal(
            one.predict_proba(windows()[0]), two.predict_proba(windows()[0])
        )

    def test_whole_curves_end_with_the_losses(self):
        base, taught = fitted().history_
        assert set(base["curves"]) == {"training_loss", "inversion_error"}
        assert len(base["curves"]["training_loss"]) == base["training_steps"]
        assert set(taught["curves"]) == {"finetuning_loss"}
        for line in (base, taught):
            assert all(values[-1] == line[name] for name, values in line["curves"].items())

    def test_curves_go_to_the_lessons_that_they_are_of(self):
        def curve(name, *values):
            return Curve(name, 9, torch.tensor(values))

        lines = [{"training_loss": 1, "inversion_error": 2}, {"kind": "shots"}, {"finetuning_loss": 0}]
        lines.append({"inversion_error": 4, "finetuning_loss": 5})
        row = [curve("base", 1.0), curve("invert", 2.0), curve("weight of x", 7.0), curve("finetune")]
        row += [curve("invert", 4.0), curve("finetune", 6.0, 5.0), curve("steps chosen", 2.0)]
        found = [line["curves"] for line in with_curves(lines, row)]
        assert found[0] == {"training_loss": [1.0], "inversion_error": [2.0]} and found[1:3] == [{}, {}]
        assert found[3] == {"inversion_error": [4.0], "finetuning_loss": [6.0, 5.0]}

    def test_networks_of_the_default_method_have_theirs(self):
        model = AnchorInvClassifier(**{**SETTINGS, "epochs": 1, "network": "always"}).fit(*windows())
        names = {OPTIMISATIONS[f"network {i}"][1] for i in (1, 2, 3)}
        assert set(model.history_[0]["curves"]) == names
        assert again(model).history_ == model.history_

    def test_some_of_a_curve(self):
        assert subsample([1.0, 2.0], 5) == [1.0, 2.0] and subsample(list(range(9)), 3) == [0, 4, 8]


class TestFiles:
    def test_who_and_what_are_of_the_last_lesson(self, tmp_path):
        model = again(fitted("discriminant"))
        model.save(tmp_path / "m", author="Ärztin", note="left arm | <b>")
        other = AnchorInvClassifier.load(tmp_path / "m")
        assert other.history_[0] == model.history_[0] and other.history_[1]["note"] == "left arm | <b>"
        assert [line.get("author") for line in other.history_] == [None, "Ärztin"]
        other.add_shots(*windows(3, classes=("tongue",), seed=5)).save(tmp_path / "m", note="more")
        lines = manifest_lines(manifest(*read_facts(tmp_path / "m")))
        said = "\n".join(lines)
        assert "by Ärztin" in said and "note: left arm | <b>" in said and "note: more" in said
        assert f"fingerprint {model.history_[0]['fingerprint']}" in said and "macro-F1" in said

    @pytest.mark.parametrize("words", [{"note": "a\nb"}, {"note": ""}, {"author": "x" * 201}, {"author": 3}])
    def test_words_that_cannot_be_shown_are_refused(self, words, tmp_path):
        with pytest.raises(ValueError, match=f"{next(iter(words))} must be text of 1 to"):
            again(fitted("discriminant")).save(tmp_path / "m", **words)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("name", "value"), [("date", "soon"), ("fingerprint", "xyz"), ("note", "a\x1b"), ("odd", 1)]
    )
    def test_odd_facts_of_a_file_are_refused(self, name, value, tmp_path):
        fitted("discriminant").save(tmp_path / "m")
        _, header, payload = read_container(tmp_path / "m")
        facts = json.loads(header)
        facts["history"][0]["origin"][name] = value
        write_container(tmp_path / "m", json.dumps(facts).encode(), payload)
        with pytest.raises(ValueError, match=f"its history.0.origin.{name} is wrong"):
            AnchorInvClassifier.load(tmp_path / "m")

    def test_a_file_without_any_of_it_opens(self, tmp_path):
        bundle = fitted().to_bundle()
        keys = ("kind", "session", "samples", "seconds", "training_loss", "inversion_error")
        bare = [{k: line[k] for k in keys if k in line} for line in bundle.history]
        AnchorInvClassifier.from_bundle(replace(bundle, history=tuple(bare))).save(tmp_path / "m")
        _, header, payload = read_container(tmp_path / "m")
        facts = json.loads(header)
        for line in facts["history"]:
            assert line.pop("origin") == {}
        write_container(tmp_path / "m", json.dumps(facts).encode(), payload)
        other = AnchorInvClassifier.load(tmp_path / "m")
        assert other.history_[0]["curves"]["training_loss"] == bundle.history[0]["curves"]["training_loss"]
        said = "\n".join(manifest_lines(manifest(*read_facts(tmp_path / "m"))))
        assert "no score" in said and "fingerprint" not in said and "UTC" not in said


def test_scores_say_what_they_were_measured_on():
    line = {"samples": {"a": 9, "b": 9, "c": 9}, "rehearsed_f1": 0.5, "classical_base_f1": 0.25}
    classical, rehearsed = score_lines(line)
    assert classical.startswith("25.0 % macro-F1 of base classes") and "same recordings" in classical
    assert "taught from 10 windows each" in rehearsed and "which also chose settings" in rehearsed
    assert "whole groups" in score_lines({**line, "groups": 4})[0]
    assert score_lines({"samples": {}, "training_loss": 0.1}) == [], "resubstitution is no score"
