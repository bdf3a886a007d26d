"""Suggested classes: what is offered, what is not, and what comes of teaching it."""

import warnings
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anchorinv import AnchorInvClassifier
from anchorinv.core.confidence import Confidence, Scores
from anchorinv.core.heads import Cosine, Head
from anchorinv.core.networks import encode
from anchorinv.core.types import State
from anchorinv.datasets import synthetic
from anchorinv.novelty import MOST, Suggestion, suggested_class

pytestmark = pytest.mark.filterwarnings("ignore:.*(base data|electrode):UserWarning")


def state(head=None, n_classes=2):
    """A model whose features are its signals (n, 4, 1), and that rejects what is unlike its prototypes."""
    surprise = -torch.linspace(0.001, 1, 200).log()
    table = Scores.stack([Scores.of(torch.linspace(-16, -12, 200)), Scores.of(surprise)])
    sure = Confidence(torch.ones(3), table, table, Scores.stack([table.rows[0]] * (n_classes + 3)))
    head = Cosine(torch.zeros(0, 4), torch.eye(4)[:n_classes]) if head is None else head
    return State(
        nn.Flatten(), nn.Identity(), head, tuple(range(n_classes)), n_classes, (4, 1), 0, confidence=sure
    )


def points(*rows, n=1, spread=0.02, seed=0):
    """Signals (n · n_rows, 4, 1) around points of the feature space."""
    rng = np.random.default_rng(seed)
    around = np.repeat(np.array(rows, dtype=float), n, axis=0)
    return torch.from_numpy((around + spread * rng.normal(size=around.shape)).astype(np.float32))[..., None]


E0, E1, E2, E3 = np.eye(4)


def suggest(signals, model=None, *, names=("fist", "open"), least=10, artefact=lambda group: False):
    return suggested_class(model or state(), signals, names, reject=0.05, least=least, artefact=artefact)


class TestGroups:
    def test_by_hand(self):
        # 0-4 and 5-9 are known, 10-22 resemble each other beyond the second class, 23 and 24 lie opposite.
        new = points(0.4 * E1 + E2, n=13, spread=0.05, seed=2)
        signals = torch.cat([points(E0, E1, n=5), new, points(-E2 - 0.1 * E3, -E2 + 0.1 * E3)])
        found = suggest(signals)
        assert found.indices.tolist() == list(range(10, 23))
        assert (found.n_rejected, found.own, found.separation, found.nearest) == (15, 13, 1.0, "open")
        unit = new[..., 0].numpy() / np.linalg.norm(new[..., 0].numpy(), axis=1, keepdims=True)
        middle = new[..., 0].numpy().mean(0)
        assert found.shots.tolist() == (10 + np.argsort(-unit @ middle)[:10]).tolist()

    def test_it_is_the_same_a_few_windows_at_a_time(self, monkeypatch):
        signals, sizes = torch.cat([points(E0, E1, n=5), points(0.4 * E1 + E2, n=13, seed=2)]), []
        whole = suggest(signals)

        def few(module, values):
            sizes.append(len(values))
            return encode(module, values)

        monkeypatch.setattr("anchorinv.novelty._AT_ONCE", 2 * 4)
        monkeypatch.setattr("anchorinv.novelty.encode", few)
        found = suggest(signals)
        assert sizes == [2] * 11 + [1, 23] and found.shots.tolist() == whole.shots.tolist()  # then the head

    def test_of_two_groups_the_larger_one(self):
        # Nearer to the mean of both than to a known class, but nearer to that than to each other.
        signals = torch.cat([points(E0, n=5), points(E2 + 0.6 * E0, n=11), points(E3 + 0.6 * E0, n=14)])
        assert suggest(signals).indices.tolist() == list(range(16, 30))

    def test_faults_of_the_recording_are_passed_over(self):
        signals = torch.cat([points(E0, n=5), points(E2 + 0.6 * E0, n=11), points(E3 + 0.6 * E0, n=14)])
        found = suggest(signals, artefact=lambda group: bool((group >= 16).any()))
        assert found.indices.tolist() == list(range(5, 16)) and len(found.shots) == 10
        assert suggest(signals, artefact=lambda group: True) is None

    def test_too_few(self):
        signals = torch.cat([points(E0, n=5), points(E2, n=9)])
        assert suggest(signals) is None
        found = suggest(signals, least=9)
        assert found.indices.tolist() == found.shots[np.argsort(found.shots)].tolist() == list(range(5, 14))

    def test_what_does_not_resemble_each_other_is_no_class(self):
        # Each is a little off a known class, in a direction of its own: nearer to that than to each other.
        off = np.random.default_rng(0).normal(size=(40, 4))
        off[:, :2] = 0
        signals = torch.from_numpy((off + 2 * np.repeat([E0, E1], 20, axis=0)).astype(np.float32))[..., None]
        assert suggest(signals) is None

    @pytest.mark.parametrize("seed", range(3))
    def test_a_permutation_of_windows_permutes_what_is_found(self, seed):
        signals = torch.cat([points(E0, E1, n=6), points(E2 + 0.3 * E0, n=14, spread=0.1), points(-E0, -E1)])
        before = suggest(signals)
        order = np.random.default_rng(seed).permutation(len(signals))
        after = suggest(signals[order])
        assert np.sort(order[after.indices]).tolist() == before.indices.tolist()
        assert order[after.shots].tolist() == before.shots.tolist()
        assert (after.own, after.nearest, str(after)) == (before.own, before.nearest, str(before))

    def test_of_very_many_some_are_compared(self):
        found = suggest(torch.cat([points(E0, n=3), points(E2, n=MOST + 200)]))
        assert found.n_rejected == MOST + 200 and len(found.indices) == MOST

    def test_without_class_means_windows_that_fit_stand_for_them(self):
        signals = torch.cat([points(E1, n=5), points(0.4 * E1 + E2, n=12, spread=0.05)])
        found = suggest(signals, state(_Logits()))
        assert found.indices.tolist() == list(range(5, 17)) and found.nearest == "open"
        with pytest.raises(
            ValueError, match=r"keeps nothing that tells where its classes lie.*add windows of"
        ):
            suggest(signals[5:], state(_Logits()))


class _Logits(Head):
    """A head that classifies by the first two features, and knows no more of its classes."""

    def forward(self, features):
        return 16 * F.normalize(features)[:, :2]

    def fits(self, expected):
        return True

    def without(self, column, anchors=None):
        return self

    @classmethod
    def n_values(cls, dim, n_classes, n_anchors):
        return 0


class TestSentence:
    def test_it_can_be_read(self):
        found = Suggestion(np.arange(12), np.arange(10), 12, 11, 3)
        assert str(found).startswith(
            "12 of 12 windows that fit no known class resemble each other; 11 of these"
        )
        assert "(3 is the closest)" in str(found) and found.separation == 11 / 12


@lru_cache
def recordings():
    """Base windows and labels, known windows of later, and windows of a class that was not taught."""
    data = synthetic.emg(n_classes=4, n_subjects=1, n_sessions=1, n_per_class=60, seed=0)
    X, y = data.signals, data.labels
    early = np.concatenate([np.flatnonzero(y == c)[:20] for c in range(3)])
    late = np.concatenate([np.flatnonzero(y == c)[20:40] for c in range(3)])
    return X[early], y[early], X[late], X[y == 3]


@lru_cache
def model():
    X, y, *_ = recordings()
    return AnchorInvClassifier(random_state=0, network="never").fit(X, y)


class TestJourney:
    def test_a_class_is_found_taught_and_known(self):
        _, _, known, new = recordings()
        X = np.concatenate([known, new[:30]])
        found = model().suggest_class(X)
        assert (found.indices >= 60).mean() > 0.8 and (found.shots >= 60).all() and len(found.shots) == 10
        learner = AnchorInvClassifier.from_bundle(model().to_bundle())
        learner.partial_fit(X[found.shots], [3] * len(found.shots))
        assert (learner.predict(new[30:]) == 3).mean() > 0.8
        assert learner.suggest_class(X) is None  # it is known now

    def test_known_windows_suggest_nothing(self):
        assert model().suggest_class(recordings()[2]) is None

    @pytest.mark.parametrize("fault", ["noise", "gain", "flat"])
    def test_faults_suggest_nothing(self, fault):
        known = recordings()[2]
        noise = np.random.default_rng(0).normal(size=known[:20].shape) * known.std((0, 2), keepdims=True)
        faulty = {"noise": noise, "gain": 10 * known[:20], "flat": 0 * known[:20]}[fault]
        assert (model().novelty(faulty) <= 0.05).all()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert model().suggest_class(np.concatenate([known, faulty])) is None

    def test_the_threshold_is_the_models_or_given(self):
        _, _, known, new = recordings()
        X = np.concatenate([known, new[:30]])
        careful = AnchorInvClassifier.from_bundle(model().to_bundle()).set_params(reject=1e-9)
        assert careful.suggest_class(X) is None
        assert careful.suggest_class(X, reject=0.05).n_rejected == model().suggest_class(X).n_rejected

    @pytest.mark.parametrize("wrong", [{"reject": 0}, {"reject": 5}, {"least": 1}, {"least": 2.5}])
    def test_settings_that_mean_nothing(self, wrong):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} .*must be"):
            model().suggest_class(recordings()[2], **wrong)

    def test_a_model_that_cannot_tell_says_so(self):
        bundle = model().to_bundle()
        unsure = replace(bundle, state=replace(bundle.state, confidence=None))
        with pytest.raises(ValueError, match="no windows were held out when it was trained"):
            AnchorInvClassifier.from_bundle(unsure).suggest_class(recordings()[2])
