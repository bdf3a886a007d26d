"""Reports on learning: what it did to the old classes, and whether a new class looks like another one."""

import numpy as np
import pytest

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.registry import METHODS
from anchorinv.serving.evaluation import Separation, learn_classes
from tests.models import again, fitted, windows


def examples(n, **options):
    signals, labels = windows(n, **options)
    return signals, labels.tolist()


class TestLearnClasses:
    def test_a_report_tells_its_effect(self):
        report = learn_classes(again(fitted(taught=False)), *examples(10, classes=("tongue",), seed=1))
        assert report.n_known == 12 and 0 <= report.after <= 1 and 0 <= report.before <= 1
        (apart,) = report.separations
        assert apart.name == "tongue" and apart.shots == 10
        assert "12 samples kept" in report.lines()[0] and "of 10 examples" in report.lines()[1]

    def test_an_old_class_under_a_new_name_is_noticed(self):
        model = fitted(taught=False, epochs=60)
        X, _ = windows(12, classes=("left",), seed=11)
        report = learn_classes(again(model), X, ["gauche"] * 12)
        assert "looks like 'left'" in report.warnings()[0]

    @pytest.mark.filterwarnings("ignore:.*the spectrum of channel 2 is far")
    def test_a_class_that_stands_apart_is_not(self):
        model = fitted(taught=False, epochs=60)
        X = np.random.default_rng(3).normal(size=(10, 4, 64)) * 0.2
        X[:, 2] += 8 * np.sin(np.arange(64))
        report = learn_classes(again(model), X, ["loud"] * 10)
        assert not report.warnings() and report.separations[0].own == 10

    def test_examples_lost_to_several_classes_are_noticed_too(self):
        assert Separation("new", 10, 3, "left", 3).alike  # seven lost, three of them to the nearest
        assert not Separation("new", 10, 7, "left", 3).alike
        assert not Separation("new", 1, 0, None, 0).alike

    def test_two_classes_at_once_are_told_from_each_other(self):
        model = fitted(taught=False, epochs=60)
        X, _ = windows(10, classes=("x",), seed=12)
        report = learn_classes(again(model), np.concatenate([X, X]), ["a"] * 10 + ["b"] * 10)
        assert len(report.separations) == 2 and any(each.rival in ("a", "b") for each in report.separations)

    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_has_something_to_tell(self, method):
        model = again(fitted(method, taught=False))
        lines = learn_classes(model, *examples(4, classes=("tongue",), seed=1)).lines()
        assert lines[0].startswith("Old classes: ")
        # From a mean and a covariance windows can be drawn; other statistics tell nothing of samples.
        draws = isinstance(model.state_.head, Discriminant)
        keeps_no_samples = METHODS[method].keeps in ("none", "class statistics")
        assert ("cannot be measured" in lines[0]) == (keeps_no_samples and not draws)
        assert ("drawn from their statistics" in lines[0]) == draws

    @pytest.mark.parametrize(("shots", "few"), [(3, True), (5, False)])
    def test_few_examples(self, shots, few):
        report = learn_classes(again(fitted(taught=False)), *examples(shots, classes=("x",)))
        advice = f"Class 'x': {shots} examples are few, and ten are better; add more with anchorinv add."
        assert (advice in report.lines()) == few

    def test_a_single_example(self):
        with pytest.warns(UserWarning, match="single example"):
            report = learn_classes(again(fitted(taught=False)), *examples(1, classes=("x",)))
        assert "a single example" in report.lines()[1] and not report.warnings()
