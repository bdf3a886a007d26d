"""Lessons from several threads, under inference mode and after a fork."""

import copy
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from sklearn.base import clone

from anchorinv import AnchorInvClassifier, estimator
from anchorinv.core.encoder import Encoder
from tests.models import SETTINGS, again, fitted, windows

METHODS = ("anchorinv-plus", "anchorinv")


def at_once(*functions):
    """Run functions in threads of their own, all at the same time; return what they raised."""
    start, raised = threading.Barrier(len(functions)), []

    def run(function):
        start.wait()
        try:
            function()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.parametrize("method", METHODS)
def test_classes_taught_by_four_threads_fit_the_state(method, tmp_path):
    model = again(fitted(method, taught=False))
    names = [f"class {i}" for i in range(4)]
    lessons = [lambda name=name: model.partial_fit(*windows(4, classes=(name,), seed=3)) for name in names]
    shots = [lambda: model.add_shots(*windows(4, seed=4)), lambda: model.add_shots(*windows(4, seed=5))]
    assert not at_once(*lessons, *shots)
    assert sorted(model.classes_.tolist()) == sorted(["left", "right", *names])
    assert len(model.state_.classes) == len(model.counts_) == len(model.classes_) == 6
    assert model.counts_.tolist() == [4, 4, 4, 4, 16, 16] and len(model.history_) == 7
    model.save(tmp_path / "m")
    X = windows(8, seed=9)[0]
    assert np.array_equal(AnchorInvClassifier.load(tmp_path / "m").predict(X), model.predict(X))


def test_whoever_predicts_meanwhile_sees_a_model_before_or_after():
    model, X, seen, over = again(fitted("anchorinv-plus", taught=False)), windows(2)[0], [], threading.Event()

    def teach():
        for i in range(8):
            model.partial_fit(*windows(3, classes=(f"class {i}",), seed=3))
        for i in range(8):
            model.forget_class(f"class {i}")
        over.set()

    def ask():
        while not over.is_set():
            seen.append(set(model.predict(X).tolist()))
            now = copy.copy(model)
            assert len(now.state_.classes) == len(now.classes_) == len(now.counts_)
            assert model.to_bundle().method == "anchorinv-plus"

    assert not at_once(teach, ask, ask) and seen


def test_a_lesson_in_the_middle_of_a_prediction_does_not_change_its_classes(monkeypatch):
    model, X = again(fitted("protonet")), windows(24)[0]
    wanted, original = model.predict(X).tolist(), estimator.answers_of

    def interrupted(state, signals, **options):
        answers = original(state, signals, **options)
        model.forget_class("left")
        return answers

    monkeypatch.setattr(estimator, "answers_of", interrupted)
    assert model.predict(X).tolist() == wanted and "left" in wanted
    assert "left" not in model.classes_


def test_two_models_learned_at_once_are_the_same_bits_as_one_after_the_other():
    made = []
    fits = [lambda: made.append(AnchorInvClassifier(**SETTINGS, method="finetune").fit(*windows()))] * 4
    assert not at_once(*fits)
    X = windows(4, seed=9)[0]
    wanted = fitted("finetune", taught=False).predict_proba(X)
    assert all(np.array_equal(model.predict_proba(X), wanted) for model in made)


def test_a_model_can_be_copied_and_cloned():
    model = fitted()
    X = windows(4)[0]
    assert np.array_equal(copy.deepcopy(model).predict_proba(X), model.predict_proba(X))
    assert not hasattr(clone(model), "state_")


@pytest.mark.parametrize("method", METHODS)
def test_learning_under_inference_mode_is_learning(method, tmp_path):
    with torch.inference_mode():
        model = AnchorInvClassifier(**SETTINGS, method=method).fit(*windows())
        model.partial_fit(*windows(10, classes=("tongue",), seed=1))
        X = windows(4, seed=9)[0]
        assert np.array_equal(model.predict_proba(X), fitted(method).predict_proba(X))
        model.add_shots(*windows(4)).save(tmp_path / "m")
        other = AnchorInvClassifier.load(tmp_path / "m").forget_class("left")
    for each in (model, other):  # what was made there can be taught here
        each.partial_fit(*windows(4, classes=("feet",), seed=3))
        assert "feet" in each.classes_


FORKED = """
import os, signal
import torch
import anchorinv.estimator
torch.set_num_threads(2)
large = torch.ones(1 << 21).exp()  # by two threads
child = os.fork()
if not child:
    signal.alarm(60)
    large.exp()
    os._exit(0)
raise SystemExit(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_does_not_wait_for_threads_that_are_not_there():
    subprocess.run([sys.executable, "-c", FORKED], check=True, env={**os.environ, "OMP_NUM_THREADS": "2"})


def test_the_default_learns_and_predicts_on_one_thread_of_torch(monkeypatch):
    seen, forward = set(), Encoder.forward

    def spy(self, signals):
        seen.add(torch.get_num_threads())
        return forward(self, signals)

    monkeypatch.setattr(Encoder, "forward", spy)
    torch.set_num_threads(2)  # a fixture of all tests sets it back
    model = AnchorInvClassifier(random_state=0).fit(*windows(24))
    model.partial_fit(*windows(10, classes=("tongue",))).predict(windows(3)[0])
    model.novelty(windows(3)[0])
    assert seen == {1} and torch.get_num_threads() == 2
