"""The scikit-learn face: conventions, learning, and one clear sentence for every mistake."""

import random
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import get_scorer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from anchorinv import AnchorInvClassifier, Geometry, Preprocessing, Signals
from anchorinv.core.minimise import OneCycle
from anchorinv.core.training import CrossValidatedFinetune, Training
from anchorinv.datasets import synthetic
from anchorinv.novelty import logits_of
from anchorinv.settings import EPOCHS, GAIN, STEPS, training_of

SMALL = Geometry(4, 64, kernel=9, pool=16, pool_stride=8, width=8, heads=2, depth=2, dropout=0.1)


def model(**changes):
    settings = {
        "geometry": SMALL,
        "epochs": 6,
        "batch_size": 64,
        "lr": 3e-3,
        "n_anchors": 6,
        "inversion_steps": 5,
        "finetune_steps": 5,
        "random_state": 0,
    }
    return AnchorInvClassifier(**{**settings, **changes})


def recordings(n=24, *, classes=("left", "right"), seed=0):
    rng = np.random.default_rng(seed)
    y = np.array(classes)[np.arange(n) % len(classes)]
    X = rng.normal(size=(n, 4, 64))
    for i, label in enumerate(classes):
        X[y == label, (i + len(label)) % 4] *= 3
    return X, y


def shots(label="tongue", n=10, *, seed=1):
    return recordings(n, classes=(label,), seed=seed)


@pytest.fixture(scope="module")
def fitted():
    return model().fit(*recordings())


@pytest.fixture
def taught(fitted):
    return again(fitted).partial_fit(*shots())


def again(fitted):
    """A model in the same state, free to learn: states are values, so sharing one is safe."""
    other = clone(fitted)
    other.__dict__.update(fitted.__dict__)
    return other


class TestLearning:
    def test_classes_are_sorted_after_every_lesson_and_columns_follow_them(self, fitted):
        learned = again(fitted).partial_fit(*shots("tongue")).partial_fit(*shots("feet"))
        assert learned.classes_.tolist() == ["feet", "left", "right", "tongue"]
        assert learned.base_classes_.tolist() == ["left", "right"]
        assert learned.counts_.tolist() == [10, 12, 12, 10]
        X, _ = recordings()
        in_order = torch.softmax(logits_of(learned.state_, torch.from_numpy(learned.standardisation_(X))), 1)
        names = ["left", "right", "tongue", "feet"]  # the state's, as they were learned
        by_name = dict(zip(names, in_order.numpy().T, strict=True))
        for name, column in zip(learned.classes_.tolist(), learned.predict_proba(X).T, strict=True):
            np.testing.assert_allclose(column, by_name[name], rtol=1e-6)
        less = learned.forget_class("left").add_shots(*shots("feet", 3, seed=5))
        assert less.classes_.tolist() == ["feet", "right", "tongue"]
        assert less.base_classes_.tolist() == ["right"] and less.counts_.tolist() == [13, 12, 10]
        assert [line["samples"] for line in less.history_[-2:]] == [{"left": 12}, {"feet": 3}]

    def test_the_log_loss_of_scikit_learn_after_a_class_that_comes_first_by_name(self):
        learned = model(method="protonet", epochs=1).fit(*recordings()).partial_fit(*shots("a_new"))
        X, y = np.random.default_rng(5).normal(size=(30, 4, 64)), np.array(["left", "a_new", "right"] * 10)
        proba = learned.predict_proba(X).astype(np.float64)
        column = {name: i for i, name in enumerate(learned.classes_.tolist())}
        by_hand = np.mean([np.log(row[column[label]]) for row, label in zip(proba, y, strict=True)])
        assert get_scorer("neg_log_loss")(learned, X, y) == pytest.approx(by_hand, rel=1e-5)
        state = learned.state_
        logits = logits_of(state, torch.from_numpy(learned.standardisation_(X)))
        truth = torch.tensor([["left", "right", "a_new"].index(label) for label in y])  # as they were learned
        assert by_hand == pytest.approx(-float(torch.nn.functional.cross_entropy(logits, truth)), rel=1e-5)

    def test_learns_what_is_easy(self):
        X, y = recordings(60)
        assert model(epochs=60, batch_size=12).fit(X, y).score(X, y) > 0.9

    def test_several_new_classes_at_once(self, fitted):
        X, y = recordings(20, classes=("tongue", "feet"), seed=2)
        learned = again(fitted).partial_fit(X, y)
        assert learned.classes_.tolist() == ["feet", "left", "right", "tongue"]
        assert learned.state_.session == 1

    def test_probabilities_follow_predictions_and_sum_to_one(self, taught):
        X, _ = recordings()
        proba = taught.predict_proba(X)
        np.testing.assert_allclose(proba.sum(1), 1, rtol=1e-5)
        assert (taught.classes_[proba.argmax(1)] == taught.predict(X)).all()

    def test_transform_returns_features(self, fitted):
        assert fitted.transform(recordings()[0]).shape == (24, fitted.state_.trunk.dim)
        plus = model(method="anchorinv-plus", epochs=1).fit(*recordings())
        assert plus.transform(recordings()[0]).shape == (24, SMALL.dim)

    def test_history_tells_what_was_learned(self):
        papers = model(method="anchorinv").fit(*recordings()).partial_fit(*shots())
        base, session = papers.history_
        assert base["samples"] == {"left": 12, "right": 12}
        assert session["samples"] == {"tongue": 10}
        assert base["training_steps"] == 6 and base["inversion_steps"] == 5
        assert base["inversion_error"] > 0 and base["training_loss"] > 0 and base["seconds"] > 0
        assert session["finetuning_steps"] == 5 and session["finetuning_loss"] > 0

    def test_without_a_number_of_steps_one_is_chosen(self):
        chosen = model(method="anchorinv", finetune_steps=None, finetune_lr=1e-3).fit(*recordings())
        session = chosen.partial_fit(*shots()).history_[-1]
        assert session["finetuning_steps"] in CrossValidatedFinetune().lengths
        assert [c.values.tolist() for c in chosen.state_.curves if c.name == "steps chosen"] == [
            [session["finetuning_steps"]]
        ]

    def test_the_default_neither_inverts_nor_finetunes(self, taught):
        base, session = taught.history_
        assert taught.method == "discriminant"
        assert taught.state_.replay is None and taught.state_.anchors is None
        assert base["samples"] == {"left": 12, "right": 12} and 0 <= base["shrinkage"] <= 1
        assert 0 <= base["rehearsed_f1"] <= 1 and "training_loss" not in base
        assert session["samples"] == {"tongue": 10} and session["finetuning_steps"] == 0

    def test_more_shots_are_trusted_more(self):
        taught = model(method="anchorinv-plus", epochs=1).fit(*recordings()).partial_fit(*shots())
        more = again(taught).add_shots(*shots(seed=9)).state_.head.shot_correction
        assert taught.state_.head.shot_correction.tolist() == pytest.approx([1, 1, 10 / 11])
        assert more.tolist() == pytest.approx([1, 1, 20 / 21])

    def test_more_shots_move_the_prototype_and_nothing_else(self, taught):
        more = again(taught).add_shots(*shots(seed=9))
        before, after = taught.state_.head.prototypes, more.state_.head.prototypes
        assert torch.equal(before[:2], after[:2]) and not torch.equal(before[2], after[2])
        assert more.state_.trunk is taught.state_.trunk and more.state_.tail is taught.state_.tail
        assert more.counts_.tolist() == [12, 12, 20]

    def test_added_shots_are_replayed_in_the_next_session(self):
        papers = model(method="anchorinv").fit(*recordings()).partial_fit(*shots())
        later = papers.add_shots(*shots(seed=9)).partial_fit(*shots("feet"))
        assert len(later.state_.replay.of(2)) == 20

    def test_the_earlier_model_is_unchanged_by_teaching(self, fitted):
        X, _ = recordings()
        before = fitted.predict_proba(X)
        again(fitted).partial_fit(*shots())
        assert np.array_equal(fitted.predict_proba(X), before)


class TestConventions:
    def test_init_only_stores(self):
        settings = model().get_params()
        assert AnchorInvClassifier(**settings).get_params() == settings
        assert clone(model(lr=0.5)).lr == 0.5
        assert model().set_params(n_anchors=3).n_anchors == 3

    def test_in_a_pipeline_and_cross_validated(self):
        X, y = recordings(12)
        pipeline = make_pipeline(FunctionTransformer(lambda X: X * 2), model(epochs=1))
        assert cross_val_score(pipeline, X, y, cv=2).shape == (2,)

    def test_same_random_state_same_bits(self):
        X, y = recordings()
        for method in ("discriminant", "anchorinv-plus"):
            one, two, other = (
                model(method=method, random_state=seed).fit(X, y).partial_fit(*shots()).predict_proba(X)
                for seed in (0, 0, 1)
            )
            assert np.array_equal(one, two)
        assert not np.array_equal(one, other)

    @pytest.mark.parametrize("random_state", [0, None])
    def test_global_generators_are_untouched(self, random_state):
        before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
        model(random_state=random_state, epochs=1).fit(*recordings()).partial_fit(*shots()).predict(
            shots()[0]
        )
        assert torch.equal(before[0], torch.get_rng_state())
        assert (before[1] == np.random.get_state()[1]).all()
        assert before[2] == random.getstate()

    def test_random_state_object(self):
        a, b = (model(random_state=np.random.RandomState(3), epochs=1).fit(*recordings()) for _ in range(2))
        assert a.seed_ == b.seed_

    def test_verbose_shows_progress(self, capfd):
        model(verbose=True, epochs=12, method="protonet").fit(*recordings())
        assert "base training" in capfd.readouterr().err

    @pytest.mark.parametrize(
        "labels",
        [
            [0, 1],
            [7, 3],
            [True, False],
            ["a", "bc"],
            [np.int32(5), np.int32(9)],
            [np.str_("x"), np.str_("y")],
        ],
    )
    def test_labels_of_many_kinds_come_back_as_they_were(self, labels):
        X, _ = recordings()
        y = [labels[i % 2] for i in range(24)]
        fitted = model(epochs=1).fit(X, y)
        assert fitted.classes_.tolist() == sorted(labels)
        assert set(fitted.predict(X).tolist()) <= set(labels)


class TestInputs:
    def test_kinds_of_arrays(self, fitted):
        X, _ = recordings()

        class Wrapped:
            def __array__(self, dtype=None, copy=None):
                return X

        for other in (torch.from_numpy(X), torch.from_numpy(X).requires_grad_(), X.tolist(), Wrapped()):
            assert np.array_equal(fitted.predict(other), fitted.predict(X))
        with pytest.warns(UserWarning, match="far from the base data"):  # a hundred times as large
            assert fitted.predict((X * 100).astype(np.int16)).shape == (24,)

    def test_signals_that_are_objects(self, fitted):
        X, _ = recordings()
        apart = np.empty(len(X), dtype=object)  # as a column of a table of pandas holds them
        apart[:] = list(X)
        for other in (X.astype(object), apart):
            assert np.array_equal(fitted.predict(other), fitted.predict(X))
        for wrong, words in (
            (X.astype(str).astype(object), "signals must be real numbers, got text"),
            (np.where(X > 2, None, X), "hold .* missing values"),
            (np.where(X > 2, 1j, X.astype(object)), "signals must be real numbers, got complex"),
        ):
            with pytest.raises(ValueError, match=words):
                fitted.predict(wrong)
        apart[3] = X[3, :, :30]
        with pytest.raises(ValueError, match="differ in shape"):
            fitted.predict(apart)

    @pytest.mark.parametrize(
        ("labels", "dtype"),
        [
            (["left", "right"], object),
            (["left", "right"], "string"),
            (["left", "right"], "category"),
            ([3, 5], "Int64"),
            ([3, 5], object),
            ([False, True], "boolean"),
            ([False, True], object),
        ],
    )
    def test_labels_as_pandas_gives_them(self, labels, dtype):
        pandas = pytest.importorskip("pandas")
        X, _ = recordings()
        column = pandas.Series(labels * 12, dtype=dtype)
        for y in (column, pandas.Index(column), column.to_numpy()):
            found = AnchorInvClassifier(method="mdm").fit(X, y).classes_
            assert found.tolist() == labels and found.dtype.kind in "Uib"
        gone = column.astype(object)
        gone[7] = pandas.NA
        with pytest.raises(ValueError, match="the label of sample 7 is missing"):
            AnchorInvClassifier().fit(X, gone)

    @pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy before 2")
    def test_labels_of_numpys_own_text(self):
        X, y = recordings()
        found = AnchorInvClassifier(random_state=0).fit(X, y.astype(np.dtypes.StringDType())).classes_
        assert found.tolist() == ["left", "right"] and found.dtype.kind == "U"

    def test_units_do_not_matter(self):
        X, y = recordings()
        volts, microvolts = (model(epochs=2).fit(X * unit, y).predict_proba(X * unit) for unit in (1e-6, 1.0))
        np.testing.assert_allclose(volts, microvolts, atol=1e-3)

    def test_a_large_offset_does_not_matter(self):
        X, y = recordings()
        here, there = (model(epochs=2).fit(X + shift, y).predict_proba(X + shift) for shift in (0, 1e6))
        np.testing.assert_allclose(here, there, atol=1e-3)

    def test_mne_epochs_bring_the_names_of_their_events_as_labels(self):
        mne = pytest.importorskip("mne")
        X, y = recordings()
        names, numbers = np.unique(y, return_inverse=True)
        events = np.stack([np.arange(len(y)), np.zeros(len(y), int), 7 + numbers], axis=1)
        event_id = {str(name): 7 + i for i, name in enumerate(names)}
        info = mne.create_info(X.shape[1], 128, "eeg")
        epochs = mne.EpochsArray(X, info, events, event_id=event_id, verbose="error")
        learned = model(method="lda").fit(epochs)
        assert learned.classes_.tolist() == names.tolist()
        assert model(method="lda").fit(epochs, numbers).classes_.tolist() == sorted(set(numbers.tolist()))
        epochs.event_id = {}
        assert learned.predict(epochs).tolist() == learned.predict(X).tolist()
        with pytest.raises(ValueError, match="the label of sample 0 is missing"):
            learned.fit(epochs)

    def test_mne_epochs(self, fitted):
        mne = pytest.importorskip("mne")
        X, y = recordings()
        kinds = ["eeg"] * 4 + ["stim"]
        info = mne.create_info(["C3", "C4", "Cz", "Pz", "STI"], 128, kinds)
        with_trigger = np.concatenate([X, np.zeros((24, 1, 64))], axis=1)
        epochs = mne.EpochsArray(with_trigger, info, verbose="error")
        seen = model(sfreq=128, epochs=2).fit(epochs, y)
        assert np.array_equal(seen.predict(epochs), model(epochs=2).fit(X, y).predict(X))
        assert seen.ch_names_ == ("C3", "C4", "Cz", "Pz") and seen.sfreq_ == 128
        swapped = epochs.copy().reorder_channels(["C4", "C3", "Cz", "Pz", "STI"])
        assert np.array_equal(seen.predict_proba(swapped), seen.predict_proba(epochs)), "taken by name"
        told = swapped.copy().rename_channels({"C3": "EEG 1"})
        with pytest.raises(ValueError, match="lacks 1 of 4 channels: C3; it has C4, EEG 1, Cz, Pz"):
            seen.predict(told)
        mixed = Signals(X[:, [2, 0, 1, 3]], ch_names=["Cz", "C3", "C4", "Pz"])
        for named in (Signals(told, rename={"EEG 1": "C3"}), mixed):
            np.testing.assert_allclose(seen.predict_proba(named), seen.predict_proba(X), atol=1e-6)
        with pytest.raises(ValueError, match="3 names, signals have 4 channels"):
            seen.predict(Signals(X, ch_names=["C3", "C4", "Cz"]))
        # Epochs are in volts; a model that knows its unit takes them in that.
        small = model(epochs=2, preprocessing=Preprocessing(unit="µV")).fit(1e6 * X, y)
        np.testing.assert_allclose(small.predict_proba(epochs), small.predict_proba(1e6 * X), atol=1e-6)
        np.testing.assert_allclose(
            small.predict_proba(Signals(1e3 * X, unit="mV")), small.predict_proba(1e6 * X), atol=1e-6
        )
        with pytest.raises(ValueError, match="must be one of V, mV"):
            small.predict(Signals(X, unit="furlong"))
        with pytest.raises(ValueError, match="sampled at 128 Hz, the model at 250 Hz"):
            model(sfreq=250).fit(epochs, y)
        other = mne.EpochsArray(with_trigger, mne.create_info(info.ch_names, 250, kinds), verbose="error")
        with pytest.raises(ValueError, match="sampled at 250 Hz, the model at 128 Hz"):
            model(epochs=1).fit(epochs, y).predict(other)


def bad(X, y, value):
    X = X.copy()
    X[3, 1, 20] = value
    return X, y


class TestMistakes:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda X, y: (X[0], y), r"shape \(n, channels, times\), got \(4, 64\)"),
            (lambda X, y: (X[None], y), r"got \(1, 24, 4, 64\)"),
            (lambda X, y: bad(X, y, np.nan), "first in sample 3, channel 1, time 20"),
            (lambda X, y: bad(X, y, np.inf), "first in sample 3, channel 1, time 20"),
            (lambda X, y: (X, y[:-1]), "24 signals but 23 labels"),
            (lambda X, y: (X, None), "labels are missing"),
            (lambda X, y: (X, np.stack([y, y], 1)), r"labels must have shape \(n,\)"),
            (lambda X, y: (X, np.linspace(0, 1, 24)), "text, whole numbers or booleans"),
            (lambda X, y: (X, ["a", 1] * 12), "mix text and whole numbers|use one kind"),
            (lambda X, y: (X, [""] + ["a"] * 23), "label of sample 0 is empty"),
            (lambda X, y: (X, ["left"] * 24), "at least two classes, got one"),
            (lambda X, y: (X[:0], y[:0]), "signals are empty"),
            (lambda X, y: (X.astype(complex), y), "real numbers"),
            (lambda X, y: ([X[0], X[1, :, :30]], y[:2]), "differ in shape"),
            (lambda X, y: (X[:, :3], y), "geometry is for 4 channels"),
        ],
    )
    def test_fit(self, change, words):
        with pytest.raises(ValueError, match=words):
            model().fit(*change(*recordings()))

    @pytest.mark.parametrize(
        ("y", "words"),
        [
            (lambda y: set(y), r"got a set; use list\(y\)"),
            (lambda y: (label for label in y), r"got a generator; use list\(y\)"),
            (lambda y: "left", "got a str"),
            (lambda y: [None, *y[1:]], "label of sample 0 is missing"),
            (lambda y: [*y[:-1], float("nan")], "label of sample 23 is missing"),
            (lambda y: np.r_[np.nan, np.zeros(23)], "label of sample 0 is missing"),
            (lambda y: np.r_[1e30, np.zeros(23)], "too large"),
            (lambda y: np.array([2**63 + 5] + [0] * 23, dtype=np.uint64), "too large; number the classes"),
            (lambda y: np.ma.masked_array(np.arange(24) % 2, mask=np.arange(24) == 3), "masked"),
            (lambda y: y.astype("S"), "convert them first"),
            (lambda y: [[0, 1]] * 24, "the label of sample 0 holds several values"),
            (lambda y: [{"a": 1}] * 24, "got object; convert them first"),
        ],
    )
    def test_labels(self, y, words):
        X, labels = recordings()
        with pytest.raises(ValueError, match=words):
            model().fit(X, y(labels))

    def test_whole_numbers_of_any_kind_are_the_same(self):
        X, _ = recordings()
        for y in ([1, 2.0] * 12, np.tile([1.0, 2.0], 12), np.tile(np.uint8([1, 2]), 12)):
            assert model(epochs=1).fit(X, y).classes_.dtype == np.int64

    def test_too_short_a_signal_says_the_minimum(self):
        with pytest.raises(ValueError, match="10 samples are too short: at least 16"):
            model(geometry=None).fit(np.ones((4, 2, 10)), [0, 1, 0, 1])

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("new_prototype", "median"),
            ("batch_size", 0),
            ("batch_size", 2.5),
            ("n_anchors", 0),
            ("epochs", 0),
            ("epochs", 1.5),
            ("lr", -1),
            ("lr", float("nan")),
            ("inversion_steps", -5),
            ("finetune_steps", 1.5),
            ("finetune_lr", "fast"),
            ("replay_weight", -0.1),
            ("sfreq", -3),
            ("geometry", (4, 64)),
        ],
    )
    def test_settings(self, name, value, fitted):
        with pytest.raises(ValueError, match=rf"^{name} \(="):
            model(**{name: value}).fit(*recordings())
        with pytest.raises(ValueError, match=rf"^{name} \(="):
            again(fitted).set_params(**{name: value}).partial_fit(*shots())

    def test_all_wrong_settings_are_named_at_once(self):
        with pytest.raises(ValueError, match=r"^epochs .*; batch_size .*; lr "):
            model(epochs=0, batch_size=-1, lr=0).fit(*recordings())

    def test_before_fit(self):
        for call in (lambda m: m.partial_fit(*shots()), lambda m: m.predict(shots()[0])):
            with pytest.raises(NotFittedError, match="call fit with the base classes first"):
                call(model())

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda X, y: (X, ["left"] * 10), "'left' is known already.*add_shots"),
            (
                lambda X, y: (X, ["left", "tongue"] * 5),
                "'left' is known already.*nothing was learned.*add_shots",
            ),
            (lambda X, y: (X[:, :3], y), "takes 4 channels of 64 samples, got 3 channels"),
            (lambda X, y: (X[:, :, :50], y), "got 4 channels of 50 samples"),
            (lambda X, y: bad(X, y, np.nan), "NaN"),
            (lambda X, y: (X[:0], y[:0]), "empty"),
            (lambda X, y: (X, [3] * 10), "classes are text, these labels are whole numbers"),
        ],
    )
    def test_partial_fit_refuses_and_changes_nothing(self, fitted, change, words):
        learner = again(fitted)
        before = dict(learner.__dict__)
        with pytest.raises(ValueError, match=words):
            learner.partial_fit(*change(*shots()))
        assert learner.__dict__ == before

    def test_transposed_signals_offer_the_swap(self, fitted):
        X, y = recordings()
        told = r"takes 4 channels of 64 samples, got 64 channels of 4; X\.transpose\(0, 2, 1\) swaps them"
        with pytest.raises(ValueError, match=told):
            fitted.predict(X.transpose(0, 2, 1))
        with pytest.raises(ValueError, match=r"geometry is for .*; X\.transpose\(0, 2, 1\) swaps them"):
            model().fit(X.transpose(0, 2, 1), y)
        with pytest.raises(ValueError, match=r"64 channels of 4 samples.*X\.transpose\(0, 2, 1\)"):
            model(geometry=None).fit(X.transpose(0, 2, 1), y)

    @pytest.mark.parametrize(("shape", "warned"), [((100, 20), True), ((64, 16), False), ((4, 64), False)])
    def test_far_more_channels_than_samples_warn(self, shape, warned):
        X, y = np.random.default_rng(0).normal(size=(24, *shape)), [0, 1] * 12
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            AnchorInvClassifier(method="protonet", epochs=1, random_state=0).fit(X, y)
        said = [str(each.message) for each in caught]
        assert len(said) == warned
        assert not warned or ("100 channels of 20 samples" in said[0] and "X.transpose(0, 2, 1)" in said[0])

    def test_a_failed_second_fit_keeps_the_first(self, fitted):
        learner = again(fitted)
        before = dict(learner.__dict__)
        with pytest.raises(ValueError, match="one"):
            learner.fit(recordings()[0], ["left"] * 24)
        assert learner.__dict__ == before

    def test_more_shots_of_an_unknown_class(self, fitted):
        with pytest.raises(ValueError, match=r"'tongue' is not among the known ones.*partial_fit"):
            again(fitted).add_shots(*shots())

    def test_one_shot_is_learned_with_a_warning(self, fitted):
        with pytest.warns(UserWarning, match="'tongue' has a single example"):
            learned = again(fitted).partial_fit(*shots(n=1))
        assert "tongue" in learned.classes_

    @pytest.mark.parametrize("factor", [1e31, 1e300, 1e-32, 1e-300])
    def test_values_beyond_computing(self, factor, fitted):
        X, y = recordings()
        with pytest.raises(ValueError, match="use another unit"):
            model().fit(X * factor, y)
        with pytest.raises(ValueError, match="use another unit"):
            fitted.predict(X * factor)

    def test_masked_signals(self):
        X, y = recordings()
        with pytest.raises(ValueError, match="masked"):
            model().fit(np.ma.masked_greater(X, 2), y)

    @pytest.mark.parametrize("call", ["partial_fit", "add_shots", "predict"])
    def test_other_units_are_refused_and_change_nothing(self, fitted, call):
        learner = again(fitted)
        before = dict(learner.__dict__)
        X, y = shots("left" if call == "add_shots" else "tongue")
        with pytest.raises(ValueError, match="times the spread of the base data"):
            getattr(learner, call)(*((X * 1e8,) if call == "predict" else (X * 1e8, y)))
        assert learner.__dict__ == before

    @pytest.mark.parametrize("factor", [1e4, 1e-6])
    def test_suspicious_units_warn(self, fitted, factor):
        words = f"about {factor:g} times its spread; is the recording in another unit.*{1 / factor:g}"
        with pytest.warns(UserWarning, match=words.replace("+", r"\+")):
            fitted.predict(shots()[0] * factor)

    @pytest.mark.parametrize("call", ["partial_fit", "add_shots", "calibrate"])
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda X: 1e3 * X, r"about 1000 times its spread.*multiply it by 0\.001"),
            (lambda X: 1e-6 * X, r"multiply it by 1e\+06 \(--scale 1e\+06\)"),
            (lambda X: X * [[[0.0], [1], [1], [1]]], "is an electrode off"),
            (lambda X: X + 500, "is there an offset"),
        ],
    )
    def test_lessons_in_another_unit_are_refused_unless_forced(self, fitted, call, change, words):
        learner = again(fitted)
        before = dict(learner.__dict__)
        X, y = shots("left" if call == "add_shots" else "tongue", 12)
        given = (change(X),) if call == "calibrate" else (change(X), y)
        if call != "calibrate":  # whose rehearsal asks first
            with pytest.raises(ValueError, match=f"{words}.*nothing was learned: pass force=True"):
                getattr(learner, call)(*given)
        else:
            learner.state_.head.centring, told = 1.0, learner.state_.head.centring
            try:
                with pytest.raises(ValueError, match=words):
                    learner.calibrate(*given)
            finally:
                learner.state_.head.centring = told
        assert learner.__dict__ == before
        with pytest.warns(UserWarning, match="the base data"):
            getattr(learner, call)(*given, force=True)
        assert learner.state_ is not before["state_"]

    def test_a_lesson_that_is_quiet_as_muscles_at_rest_is_learned(self, fitted):
        X, y = shots()
        assert "tongue" in again(fitted).partial_fit(X / 40, y).classes_

    def test_a_new_class_may_have_a_spectrum_of_its_own(self, fitted):
        X, y = shots()
        X = np.sin(np.arange(64) / 10 + X[:, :, :1])
        learner = again(fitted).partial_fit(X, y)  # without a warning, which would be an error here
        assert "tongue" in learner.classes_
        with pytest.warns(UserWarning, match="the spectrum of every channel is far from the base data's"):
            learner.predict(X)

    def test_training_that_diverges_is_refused(self, fitted):
        learner = again(fitted).set_params(lr=1e30, epochs=4, method="protonet")
        before = learner.state_
        with pytest.raises(ValueError, match=r"diverged.*lower lr"):
            learner.fit(*recordings())
        assert learner.state_ is before

    def test_many_single_shots_are_one_warning(self):
        X, _ = recordings()
        with pytest.warns(UserWarning, match="24 classes have a single example each, such as 0") as caught:
            model(epochs=1).fit(X, np.arange(24))
        assert len(caught) == 1

    def test_a_flat_channel_warns(self):
        X, y = recordings()
        X[:, 2] = 7.0
        with pytest.warns(UserWarning, match="channel 2 is flat in every sample"):
            fitted = model().fit(X, y)
        assert np.isfinite(fitted.predict_proba(X)).all()


def test_default_geometry_and_settings_learn_synthetic_recordings():
    data = synthetic.emg(
        n_classes=3, n_subjects=1, n_sessions=2, n_per_class=12, n_times=100, difficulty=0, seed=3
    )
    train, test = (data.select(data.sessions == i) for i in (0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = AnchorInvClassifier(random_state=0, epochs=40, lr=2e-3, batch_size=12, inversion_steps=3)
        fitted.fit(train.signals, train.labels)
    assert fitted.score(test.signals, test.labels) > 0.5  # chance is a third


class TestNetwork:
    def test_a_network_is_one_block_more_and_is_kept_in_a_file(self, tmp_path):
        X, y = recordings()
        learned = model(network="always").fit(X, y).partial_fit(*shots())
        assert learned.state_.trunk.names.count("network") == 3
        learned.save(tmp_path / "model.anchorinv")
        loaded = AnchorInvClassifier.load(tmp_path / "model.anchorinv")
        assert np.array_equal(loaded.predict_proba(X), learned.predict_proba(X))
        assert loaded.partial_fit(*shots("feet")).classes_.tolist() == ["feet", "left", "right", "tongue"]

    def test_none_is_trained_where_classical_features_suffice(self):
        learned = model().fit(*recordings(60))
        assert "network" not in learned.state_.trunk.names
        assert learned.history_[0]["classical_base_f1"] > 0.9
        assert "network_base_f1" not in learned.history_[0]

    def test_they_are_tried_where_classical_features_fail_and_the_history_says_so(self):
        X, y = recordings(60)
        X = np.random.default_rng(3).normal(size=X.shape)
        learned = model(epochs=1).fit(X, y)
        line = learned.history_[0]
        used = "network" in learned.state_.trunk.names
        assert used == (line["network_base_f1"] > line["classical_base_f1"])
        assert np.isfinite(learned.partial_fit(*shots()).predict_proba(X)).all()

    def test_other_words_are_refused(self):
        with pytest.raises(ValueError, match="never, rehearse, always"):
            model(network="maybe").fit(*recordings())


class TestCalibration:
    def test_it_is_rehearsed_where_groups_are_known_and_can_be_undone(self):
        X, y = recordings(240)
        people = np.arange(240) // 24
        X = X + 4 * np.random.default_rng(0).normal(size=(10, 4, 1))[people] * X.std()
        fitted = model().fit(X, y, groups=people)
        # Not probabilities: classes this far apart have exactly 0 and 1.
        before = fitted.decision_function(X)
        fitted.calibrate(X[people == 3] * 2, force=True)
        assert not np.array_equal(fitted.decision_function(X), before)
        assert np.array_equal(fitted.uncalibrate().decision_function(X), before)

    def test_without_groups_it_asks(self, fitted):
        with pytest.raises(ValueError, match="unknown whether"):
            again(fitted).calibrate(recordings()[0])

    def test_of_a_network_it_is_refused(self):
        with pytest.raises(ValueError, match="only the methods"):
            model(method="protonet", epochs=1).fit(*recordings()).calibrate(recordings()[0], force=True)

    def test_it_is_kept_in_a_file(self, taught, tmp_path):
        X = 3 * recordings()[0]
        learned = again(taught).calibrate(X, force=True)
        learned.save(tmp_path / "model.anchorinv")
        loaded = AnchorInvClassifier.load(tmp_path / "model.anchorinv")
        assert np.array_equal(loaded.predict_proba(X), learned.predict_proba(X))


class TestSchedule:
    def test_the_number_of_steps_stays_within_bounds(self):
        for n in (2, 20, 200, 1800, 20_000, 200_000, 5_000_000):
            plan = training_of(None, 64, 1e-3, n)
            n_batches = -(-n // 64)
            assert STEPS[0] <= plan.epochs * n_batches <= max(STEPS[-1], n_batches)
            assert plan.schedule == OneCycle() and plan.patience >= 3 and plan.converged is None
        assert training_of(None, 16, 1e-3, 2400).epochs == EPOCHS
        assert training_of(7, 64, 1e-3, 2400) == Training(7, 64, 1e-3, schedule=OneCycle(), gain=GAIN)

    def test_two_samples_of_each_class_are_enough(self):
        X, y = recordings(4)
        few = model(epochs=None, method="protonet").fit(X, y)
        assert few.history_[0]["training_steps"] == STEPS[0]
        assert few.predict(X).tolist() == y.tolist()

    def test_groups_are_kept_aside_whole(self, monkeypatch):
        monkeypatch.setattr("anchorinv.settings.STEPS", range(10, 41))
        X, y = recordings(240)
        people = np.repeat([f"P{i}" for i in range(10)], 24)
        fitted, other = (
            model(epochs=None, batch_size=120, method="protonet").fit(X, y, groups=groups)
            for groups in (people, None)
        )
        assert not np.array_equal(fitted.transform(X), other.transform(X))
        again = model(epochs=None, batch_size=120, method="protonet").fit(X, y, torch.arange(240) // 24)
        assert np.array_equal(fitted.transform(X), again.transform(X))

    def test_groups_that_do_not_fit_are_refused(self):
        X, y = recordings()
        with pytest.raises(ValueError, match=r"groups must have shape \(24,\), got \(3,\)"):
            model().fit(X, y, groups=["a", "b", "c"])
