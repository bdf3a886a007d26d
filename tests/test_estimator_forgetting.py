"""Drift, forgetting and what a lesson tells."""

import copy
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv import AnchorInvClassifier, Preprocessing, StreamingPredictor
from anchorinv.cli.options import check_target
from anchorinv.cli.train import learn
from anchorinv.core.blocks import view_sizes
from anchorinv.core.mahalanobis import fit_covariance_head
from anchorinv.core.recipe import BaseSpec
from anchorinv.core.registry import METHODS
from anchorinv.core.types import Curve
from anchorinv.persistence.bundle import read_facts
from anchorinv.persistence.manifest import manifest, manifest_lines
from anchorinv.serving.files import from_recording
from anchorinv.signal.drift import Moments
from anchorinv.signal.readers import Recording
from tests.core.small import same
from tests.models import CHANNELS, SMALL, again, fitted, windows

NAMED = Preprocessing(CHANNELS)
#: Methods whose head is measured by the anchors of all classes.
JUDGED = {"whitened", "fecam", "anchorinv-plus"}
# Share one covariance of all classes.
POOLED = {"lda", "discriminant"}


class TestDrift:
    def test_the_base_data_are_no_drift(self):
        found = fitted().check(windows()[0])
        np.testing.assert_allclose(found.scale, 1)
        np.testing.assert_allclose(found.shift, 0, atol=1e-9)
        assert not found.extreme and "like the base data in every channel" in found.verdict

    @pytest.mark.parametrize("per_channel", [True, False])
    def test_a_bad_channel_is_named(self, per_channel):
        X = windows()[0].copy()
        X[:, 2] *= 100
        model = fitted(preprocessing=NAMED, per_channel=per_channel)
        found = model.check(X)
        assert found.extreme and found.verdict.startswith("Cz: far from the base data")
        assert found.distance.argmax() == 2 and (found.distance < 2).sum() == 3

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda X: X * 1e-3, r"every channel: far.*0\.001 times.*another unit\? multiply it by 1000 "),
            (lambda X: X + 1000, r"every channel: far.*is there an offset"),
            (lambda X: X * 5, "every channel: somewhat.*may suffer"),
            (
                lambda X: X * [[[1], [0], [1], [1]]],
                r"C4 is flat and was not in the base data; is an electrode off\?$",
            ),
        ],
    )
    def test_verdicts(self, change, words):
        assert re.search(words, fitted(preprocessing=NAMED).check(change(windows()[0])).verdict)

    def test_predict_warns_when_extreme_and_points_at_its_caller(self):
        with pytest.warns(
            UserWarning, match="about 1000 times its spread; is the recording in another unit"
        ) as caught:
            fitted().predict(windows()[0] * 1e3)
        assert len(caught) == 1 and caught[0].filename == __file__
        fitted().predict(windows()[0] * 5)

    def test_a_channel_that_was_always_flat_is_no_drift(self):
        X, y = windows()
        X[:, 1] = 7.0
        with pytest.warns(UserWarning, match="channel 1 is flat"):
            model = AnchorInvClassifier(geometry=SMALL, epochs=1, inversion_steps=1).fit(X, y)
        assert not model.check(X).extreme
        X[:, 1] = np.random.default_rng(0).normal(size=X[:, 1].shape) * 1e6
        assert model.check(X).extreme

    @given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.floats(-1e3, 1e3))
    @settings(max_examples=30)
    def test_moments_add_up(self, sizes, offset):
        parts = [np.random.default_rng(i).normal(offset, i + 1, size=(n, 2, 7)) for i, n in enumerate(sizes)]
        whole, found = Moments.of(np.concatenate(parts)), Moments.of(parts[0])
        for part in parts[1:]:
            found = found + Moments.of(part)
        np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.variance, whole.variance, rtol=1e-6)


class TestForgetting:
    @pytest.mark.parametrize("label", ["left", "right", "tongue"])
    @pytest.mark.parametrize("method", sorted(set(METHODS) - JUDGED - POOLED))
    def test_predictions_among_the_others_are_unchanged(self, method, label):
        model, X = fitted(method), windows(60, seed=8)[0]
        kept = model.classes_ != label
        before = model._logits(X).numpy()[:, kept]
        less = again(model).forget_class(label)
        assert less.classes_.tolist() == model.classes_[kept].tolist()
        after = less._logits(X).numpy()
        np.testing.assert_allclose(after, before, atol=1e-5)
        sure = np.abs(before[:, 0] - before[:, 1]) > 1e-4
        assert (after.argmax(1) == before.argmax(1))[sure].all()

    @pytest.mark.parametrize("method", sorted(POOLED))
    def test_a_discriminant_is_as_if_it_had_never_been_taught(self, method):
        X, y = windows()
        before = AnchorInvClassifier(method=method, random_state=0).fit(X, y)
        shots = windows(10, seed=4)[0]
        taught = again(before).partial_fit(shots, ["other"] * 10)
        forgot = again(taught).forget_class("other")
        assert not np.array_equal(taught.state_.head.counts, before.state_.head.counts)
        assert same(forgot.state_.head.state_dict(), before.state_.head.state_dict())
        assert np.array_equal(forgot.predict_proba(X), before.predict_proba(X))

    @pytest.mark.parametrize("method", sorted(JUDGED))
    def test_the_covariance_is_measured_without_the_class(self, method):
        state = again(fitted(method)).forget_class("left").state_
        shot_correction = torch.tensor([1.0, 10 / 11])  # a base class, and one of ten shots
        views = view_sizes(state)
        kind = type(state.head)
        others = fit_covariance_head(
            state.head.prototypes, state.anchors, shot_correction=shot_correction, views=views, kind=kind
        )
        assert same(others.state_dict(), state.head.state_dict())

    @pytest.mark.parametrize("method", METHODS)
    def test_nothing_of_the_class_is_left_but_in_the_weights(self, method, tmp_path):
        model = again(fitted(method))
        number = 0
        gone = [
            tensor
            for name in ("anchors", "replay", "recordings", "signals")
            if (batch := getattr(model.state_, name))
            for tensor in batch.of(number).values
            if tensor.numel()
        ]
        model.forget_class("left").save(tmp_path / "m", with_signals=True, allow_recordings=True)
        header, tensors = read_facts(tmp_path / "m")
        content = (tmp_path / "m").read_bytes()
        for tensor in gone:
            for dtype in (torch.float32, torch.float16):
                assert tensor.to(dtype).numpy().tobytes() not in content
        facts = manifest(header, tensors)
        assert facts["classes"] == ["right", "tongue"] and facts["forgotten"] == ["left"]
        assert any("may keep traces" in line for line in manifest_lines(facts))
        for labels in (t for name, t in tensors.items() if name.endswith("labels")):
            assert number not in labels.tolist()

    @pytest.mark.parametrize("method", METHODS)
    def test_new_classes_are_learned_after_it_and_it_can_come_back(self, method):
        model = again(fitted(method)).forget_class("left")
        model.partial_fit(*windows(6, classes=("feet",), seed=3))
        model.partial_fit(*windows(6, classes=("left",), seed=4))
        assert model.classes_.tolist() == ["feet", "left", "right", "tongue"]
        assert model.base_classes_.tolist() == ["right"]
        assert len(set(model.state_.classes)) == 4 and model.counts_.tolist() == [6, 6, 12, 10]
        if method in ("anchorinv", "protonet", "latent-replay"):
            model.add_shots(*windows(3, classes=("tongue",), seed=5))
            assert model.counts_.tolist() == [6, 6, 12, 13]

    @pytest.mark.parametrize(
        ("model", "label", "words"),
        [
            (lambda: fitted(), "feet", "'feet' is not known.*known are 'left', 'right', 'tongue'"),
            (lambda: fitted(), True, "True is not known"),
            (lambda: fitted(taught=False), "left", "at least two classes must remain"),
            (lambda: AnchorInvClassifier(), "left", "call fit"),
        ],
    )
    def test_mistakes_change_nothing(self, model, label, words):
        model = model()
        before = dict(model.__dict__)
        with pytest.raises(ValueError, match=words):
            model.forget_class(label)
        assert model.__dict__ == before

    def test_a_base_class_must_remain(self):
        model = again(fitted()).partial_fit(*windows(6, classes=("feet",), seed=3)).forget_class("left")
        with pytest.raises(ValueError, match="last base class"):
            model.forget_class("right")


def test_other_methods_take_more_shots_if_they_have_prototypes():
    with pytest.raises(ValueError, match="finetune has no prototypes to move"):
        again(fitted("finetune")).add_shots(*windows())
    latent = again(fitted("latent-replay"))
    before = latent.state_.replay
    assert latent.add_shots(*windows(4)).state_.replay is before and latent.state_.anchors is None


class TestOutputsThatAreNotFinite:
    """Weights that are finite, and so large that nothing computed with them is."""

    @pytest.fixture
    def overflowing(self):
        model = again(fitted("protonet", taught=False))
        trunk = copy.deepcopy(model.state_.trunk)
        trunk[0].projection.weight.fill_(3e38)
        model.state_ = replace(model.state_, trunk=trunk)
        return model

    def test_predictions_are_refused(self, overflowing):
        X = windows(5)[0]
        for ask in (overflowing.predict, overflowing.predict_proba):
            with pytest.raises(ValueError, match=r"outputs for 5 of 5 signals are not finite.*earlier copy"):
                ask(X)
        live = StreamingPredictor(overflowing, step=64)
        with pytest.raises(ValueError, match="outputs for 1 of 1 signals are not finite"):
            live.feed(X[0])

    @pytest.mark.parametrize("label", ["tongue", "left"])
    def test_lessons_are_refused_and_change_nothing(self, label, overflowing):
        before = dict(vars(overflowing))
        learn = overflowing.add_shots if label == "left" else overflowing.partial_fit
        with pytest.raises(ValueError, match="are not finite"):
            learn(*windows(4, classes=(label,), seed=3))
        assert all(vars(overflowing)[name] is value for name, value in before.items())

    def test_fit_is_refused_and_changes_nothing(self, monkeypatch):
        model = again(fitted("protonet", taught=False))
        before = dict(vars(model))
        monkeypatch.setattr(BaseSpec, "fit", _overflowing_fit(BaseSpec.fit))
        with pytest.raises(ValueError, match="are not finite"):
            model.fit(*windows())
        assert all(vars(model)[name] is value for name, value in before.items())

    def test_the_command_leaves_the_good_file(self, overflowing, tmp_path):
        good, bad = tmp_path / "good.anchorinv", tmp_path / "bad.anchorinv"
        fitted("protonet", taught=False).save(good)
        overflowing.save(bad)  # its weights are numbers
        before = good.read_bytes()
        np.save(tmp_path / "shots.npy", windows(4, classes=("tongue",))[0])
        with pytest.raises(ValueError, match="are not finite"):
            learn(
                model=bad,
                shots=[tmp_path / "shots.npy"],
                out=good,
                label="tongue",
                overwrite=True,
                quiet=True,
            )
        assert good.read_bytes() == before


def _overflowing_fit(fit):
    def overflowing(self, samples, **options):
        state = fit(self, samples, **options)
        state.trunk[0].projection.weight.fill_(3e38)
        return state

    return overflowing


def test_a_loss_that_was_infinite_long_ago_does_not_stop_lessons():
    model = again(fitted("anchorinv", taught=False))
    curve = Curve("base", 0, torch.tensor([torch.inf, 1.0]))
    model.state_ = replace(model.state_, curves=(curve, *model.state_.curves[1:]))
    assert "tongue" in model.partial_fit(*windows(4, classes=("tongue",))).classes_


def test_a_recording_of_a_rate_far_from_the_models_is_refused(monkeypatch):
    far = Recording(Path("x.edf"), CHANNELS, ("V",) * 4, 1e6, 10**9, lambda *_: np.zeros((4, 1)))
    monkeypatch.setattr("anchorinv.serving.files.open_recording", lambda path: far)
    with pytest.raises(ValueError, match=r"at 1e\+06 Hz cannot be brought to 128 Hz"):
        next(from_recording(fitted(), Path("x.edf")))


def test_a_pipe_is_no_target(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is a device or a pipe"):
        check_target(tmp_path / "pipe")
