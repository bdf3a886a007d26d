"""Model files: what goes in comes out bit by bit, what must not be in them is not, old ones stay readable."""

import copy
import json
import math
import multiprocessing
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from anchorinv import GEOMETRIES, AnchorInvClassifier, Conformer, Filter, Preprocessing
from anchorinv.core.heads import HEADS, Cosine, StatisticalHead
from anchorinv.core.registry import METHODS
from anchorinv.core.types import Batch, Standardisation, State, scoped_seed, stream
from anchorinv.persistence.bundle import Bundle, load_bundle, read_facts, save_bundle
from anchorinv.persistence.format import FORMAT, read_container, write_container
from anchorinv.persistence.limits import recipe_for
from anchorinv.persistence.manifest import manifest, manifest_lines
from anchorinv.signal.drift import BaseStatistics
from tests.core.small import SMALL as CORE_SMALL
from tests.core.small import base_spec, same, snapshot, toy, untouched_generators
from tests.models import CHANNELS, SMALL, again, fitted, windows

GOLDEN = Path(__file__).parents[1] / "golden"
OLD_FILTER = {"low": 4.0, "high": 40.0, "order": 3, "causal": True, "attenuation": None}


def saved(model, folder, **options):
    path = folder / "model.anchorinv"
    model.save(path, allow_recordings=True, **options)
    return path


class TestRoundTrip:
    @pytest.mark.parametrize("method", METHODS)
    def test_predictions_are_the_same_bits(self, method, tmp_path):
        model = fitted(method)
        with untouched_generators():
            other = AnchorInvClassifier.load(saved(model, tmp_path), allow_recordings=True)
        X, _ = windows(40, seed=7)
        assert np.array_equal(other.predict_proba(X), model.predict_proba(X))
        assert np.array_equal(other.predict(X), model.predict(X))
        assert other.classes_.dtype == model.classes_.dtype

    @pytest.mark.parametrize("method", METHODS)
    def test_it_goes_on_learning_as_if_it_had_never_been_a_file(self, method, tmp_path):
        model = again(fitted(method))
        other = AnchorInvClassifier.load(saved(model, tmp_path), allow_recordings=True)
        X, _ = windows(12, seed=7)
        feet = windows(5, classes=("feet",), seed=3)
        assert np.array_equal(
            other.partial_fit(*feet).predict_proba(X), model.partial_fit(*feet).predict_proba(X)
        )

    def test_all_that_was_learned_and_set_comes_back(self, tmp_path):
        how = Preprocessing(CHANNELS, "uV", Filter(4, 40, 3, causal=False))
        model = again(fitted(preprocessing=how, finetune_lr=1e-4))
        model.add_shots(*windows(3, classes=("tongue",), seed=5))
        other = AnchorInvClassifier.load(saved(model, tmp_path))
        assert other.get_params() == model.get_params()
        assert other.history_ == model.history_ and other.preprocessing == how
        assert other.ch_names_ == CHANNELS and other.sfreq_ == 128 and other.seed_ == model.seed_
        assert other.counts_.tolist() == [12, 12, 13]
        mine, theirs = (snapshot(replace(m.state_, signals=None, anchors=None)) for m in (model, other))
        assert same(mine, theirs)

    def test_anchors_to_be_inverted_are_exact_and_the_others_close(self, tmp_path):
        model = fitted()  # the base classes have their replay, the taught class waits for it
        other = AnchorInvClassifier.load(saved(model, tmp_path))
        assert torch.equal(other.state_.anchors.of(2).values, model.state_.anchors.of(2).values)
        mine, theirs = (m.state_.anchors for m in (model, other))
        assert torch.equal(mine.labels, theirs.labels)
        assert torch.allclose(mine.values, theirs.values, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("labels", [[3, 1], [True, False], ["ä b", "=1+1"], [-5, 2**40]])
    def test_labels_of_all_kinds(self, labels, tmp_path):
        X, _ = windows()
        model = AnchorInvClassifier(geometry=SMALL, epochs=1, inversion_steps=1, random_state=0)
        model.fit(X, [labels[i % 2] for i in range(24)])
        other = AnchorInvClassifier.load(saved(model, tmp_path))
        assert other.classes_.tolist() == sorted(labels) and other.history_ == model.history_

    def test_settings_of_odd_types_and_no_numbers_in_the_history(self, tmp_path):
        model = AnchorInvClassifier(
            geometry=SMALL, epochs=np.int64(1), inversion_steps=1, random_state=np.random.RandomState(3)
        ).fit(*windows())
        model.history_ = [{**model.history_[0], "training_loss": float("nan")}]
        other = AnchorInvClassifier.load(saved(model, tmp_path))
        assert other.random_state == model.seed_ and other.epochs == 1
        assert math.isnan(other.history_[0]["training_loss"])

    @pytest.mark.parametrize("method", METHODS)
    def test_a_study_saves_its_states_without_an_estimator(self, method, tmp_path):
        recipe = METHODS[method].build(base_spec())
        data = toy()
        state = recipe.fit_base(data, rng=stream(0))
        each, kept = Standardisation.of(data.values.numpy()), BaseStatistics.of(data.values.numpy())
        bundle = Bundle(method, CORE_SMALL, state, ("a", "b", "c", "d"), each, kept, (8, 8, 8, 8))
        save_bundle(tmp_path / "m", bundle, allow_recordings=True)
        loaded = load_bundle(tmp_path / "m", allow_recordings=True)
        assert torch.equal(recipe.predict(loaded.state, data.values), recipe.predict(state, data.values))
        assert AnchorInvClassifier.from_bundle(loaded).classes_.tolist() == ["a", "b", "c", "d"]


class TestContents:
    @pytest.mark.parametrize("method", METHODS)
    def test_the_manifest_names_the_memory(self, method, tmp_path):
        header, tensors = read_facts(saved(fitted(method), tmp_path))
        facts = manifest(header, tensors)
        assert facts["memory"] == METHODS[method].keeps
        assert bool(any(facts["recordings"].values())) == (method == "real-replay")
        assert json.loads(json.dumps(facts)) == facts and any(
            "hold" in line for line in manifest_lines(facts)
        )
        if method == "anchorinv":
            assert facts["anchors"] == {"left": 6, "right": 6, "tongue": 10}
            assert facts["replay"] == {"left": 6, "right": 6, "tongue": 0}

    @pytest.mark.parametrize("method", METHODS)
    def test_a_method_says_what_its_head_and_its_memory_say(self, method):
        spec, state = METHODS[method], fitted(method).state_
        memory = recipe_for(method, SMALL).memory
        assert spec.memory is type(memory)
        assert spec.head == state.head.kind and type(state.head) is HEADS[spec.head]
        statistical = isinstance(state.head, StatisticalHead)
        assert spec.keeps == ("class statistics" if statistical else memory.keeps)
        assert spec.uses_anchors == ("anchors" in memory.stores and not memory.labels_only)

    def test_recordings_are_refused_unless_allowed(self, tmp_path):
        model, path = fitted("real-replay"), tmp_path / "m"
        with pytest.raises(ValueError, match=r"contains real recordings.*allow_recordings=True"):
            model.save(path)
        assert not path.exists()
        model.save(path, allow_recordings=True)
        with pytest.raises(ValueError, match=r"recordings of people.*--allow-recordings"):
            AnchorInvClassifier.load(path)

    def test_inverted_signals_are_there_only_if_asked_for(self, tmp_path):
        model = fitted()
        without, with_them = read_facts(saved(model, tmp_path)), None
        size = (tmp_path / "model.anchorinv").stat().st_size
        with_them = read_facts(saved(model, tmp_path, with_signals=True))
        assert not any(name.startswith("signals") for name in without[1])
        assert with_them[1]["signals.values"].shape == (12, 4, 64)
        assert (tmp_path / "model.anchorinv").stat().st_size > size + 12 * 4 * 64 * 4 - 1
        other = AnchorInvClassifier.load(tmp_path / "model.anchorinv")
        assert torch.equal(other.state_.signals.values, model.state_.signals.values)

    @pytest.mark.parametrize("with_signals", [False, True])
    def test_no_training_sample_is_in_the_file(self, with_signals, tmp_path):
        model = fitted()
        X = np.concatenate([windows()[0], windows(10, classes=("tongue",), seed=1)[0]])
        standardised = model.standardisation_(X)
        path = saved(model, tmp_path, with_signals=with_signals)
        content = path.read_bytes()
        for dtype in (np.float16, np.float32, np.float64):
            for form in (X, standardised):
                rows = np.ascontiguousarray(form.astype(dtype)).reshape(-1, 64)
                columns = np.ascontiguousarray(form.transpose(0, 2, 1).astype(dtype)).reshape(-1, 16)
                # Eight values in a row are more than chance leaves.
                for row in (*rows[:, 8:16], *rows[:, 40:48], *columns[:, :8]):
                    assert row.tobytes() not in content
        assert nearest(path, standardised) < 0.9

    def test_the_search_finds_what_is_there(self, tmp_path):
        model = fitted("real-replay")
        path = saved(model, tmp_path)
        standardised = model.standardisation_(windows()[0])
        assert nearest(path, standardised) > 0.9999
        held = model.state_.recordings.values[0, 0, 8:16].numpy()
        assert held.tobytes() in path.read_bytes()

    def test_bci_shape_with_four_classes_is_under_4_megabytes(self, tmp_path):
        geometry, rng = GEOMETRIES["bci2a"], stream(0)
        with scoped_seed(rng):
            network = Conformer(geometry).eval()
        labels = torch.arange(200) % 4  # all base classes: fifty anchors each, all inverted
        state = State(
            trunk=network.trunk,
            tail=network.tail,
            head=Cosine(torch.randn(4, geometry.dim, generator=rng)),
            classes=(0, 1, 2, 3),
            n_base=4,
            shape=(22, 1000),
            seed=0,
            anchors=Batch(torch.randn(200, geometry.dim, generator=rng), labels),
            replay=Batch(torch.randn(200, geometry.n_tokens, geometry.width, generator=rng), labels),
            signals=Batch(torch.randn(200, 22, 1000, generator=rng), labels),
        )
        each = Standardisation(np.zeros((22, 1)), np.ones((22, 1)))
        kept = BaseStatistics.of(torch.randn(12, 22, 1000, generator=rng).numpy())
        save_bundle(tmp_path / "m", Bundle("anchorinv", geometry, state, (1, 2, 3, 4), each, kept, (50,) * 4))
        assert (tmp_path / "m").stat().st_size < 4e6


def nearest(path, signals):
    """The largest correlation between a channel of a signal and any stretch of any tensor of a file."""
    size = 48
    parts = signals[:, :, :size].reshape(-1, size).astype(np.float64)
    parts -= parts.mean(1, keepdims=True)
    parts /= np.linalg.norm(parts, axis=1, keepdims=True)
    best = 0.0
    for tensor in read_facts(path)[1].values():
        # In the order of storage, and along every axis: a sample may lie across.
        for axis in range(tensor.ndim):
            flat = tensor.movedim(axis, -1).reshape(-1).double().numpy()
            if len(flat) < size:
                continue
            stretches = np.lib.stride_tricks.sliding_window_view(flat, size)
            stretches = stretches - stretches.mean(1, keepdims=True)
            length = np.linalg.norm(stretches, axis=1, keepdims=True)
            best = max(best, float(np.abs((stretches / np.maximum(length, 1e-12)) @ parts.T).max()))
    return best


class TestGolden:
    """A file of each version of the format, written when it was current. Never write them anew."""

    @pytest.mark.parametrize("version", range(1, FORMAT + 1))
    def test_old_files_are_read_and_predict_as_they_did(self, version):
        model = AnchorInvClassifier.load(GOLDEN / f"format{version}.anchorinv")
        expected = json.loads((GOLDEN / f"format{version}.json").read_text())
        times = np.arange(64) / 64
        X = np.array([[np.sin(2 * np.pi * (i + c + 1) * times + i) for c in range(4)] for i in range(6)])
        assert model.classes_.tolist() == expected["classes"]
        np.testing.assert_allclose(model.predict_proba(X), expected["probabilities"], atol=1e-4)
        assert read_container(GOLDEN / f"format{version}.anchorinv")[0] == version
        assert model.get_params()["preprocessing"] == Preprocessing(CHANNELS, "uV", Filter(1, 40))
        if version == 1:  # of before spectra and covariances were kept
            assert model.check(windows()[0]).verdict.endswith(
                "has no spectra and covariances of its base data"
            )
            assert model.check(1e3 * windows()[0]).unit_factor == 1e3
        feet = windows(4, classes=("feet",), seed=3)
        assert model.partial_fit(*feet).classes_.tolist() == ["feet", *expected["classes"]]

    @pytest.mark.parametrize("method", ["anchorinv-plus", "whitened", "ridge", "discriminant", "mdm"])
    def test_heads_of_former_versions_classify_and_forget_as_they_did(self, method):
        model = AnchorInvClassifier.load(GOLDEN / "heads" / f"{method}.anchorinv")
        expected = json.loads((GOLDEN / "heads" / "probabilities.json").read_text())[method]
        X, _ = windows(40, seed=7)
        np.testing.assert_allclose(model.predict_proba(X)[:6], expected, atol=1e-4)
        assert model.forget_class("right").classes_.tolist() == ["left", "tongue"]
        assert np.isfinite(model.predict_proba(X)).all()

    @pytest.mark.parametrize(
        ("former", "how"),
        [
            ({}, Preprocessing(CHANNELS, "uV")),
            ({"filter": OLD_FILTER}, Preprocessing(CHANNELS, "uV", Filter(4, 40, 3))),
            (
                {"filter": OLD_FILTER | {"low": None, "causal": False, "attenuation": 60.0}, "unit": "mV"},
                Preprocessing(CHANNELS, "mV", Filter(None, 40, 3, causal=False, attenuation=60)),
            ),
            ({"unrepeatable": "conformer"}, Preprocessing(CHANNELS, "uV", unrepeatable="conformer")),
            ({"unit": None}, Preprocessing(CHANNELS)),
        ],
    )
    def test_preprocessing_as_former_versions_wrote_it(self, former, how, tmp_path):
        path = saved(fitted(preprocessing=Preprocessing(CHANNELS)), tmp_path)
        _, header, payload = read_container(path)
        plain = {"ch_names": list(CHANNELS), "unit": "uV", "filter": None, "unrepeatable": None}
        facts = json.loads(header) | {"preprocessing": plain | former}
        write_container(path, json.dumps(facts).encode(), payload)
        model = AnchorInvClassifier.load(path)
        assert model.preprocessing == how
        assert model.preprocessing_ == replace(how, sfreq=128.0, n_times=64)


class TestWriting:
    def test_a_full_disk_leaves_the_old_file(self, tmp_path):
        path = saved(fitted(taught=False), tmp_path)
        before = path.read_bytes()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # of any file, from here on
        try:
            with pytest.raises(OSError, match="File too large; the existing file is untouched"):
                fitted().save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]

    def test_two_processes_writing_one_file_leave_one_of_theirs(self, tmp_path):
        path, bundles = (
            tmp_path / "shared.anchorinv",
            [fitted(taught=False).to_bundle(), fitted().to_bundle()],
        )
        sources = []
        for bundle in bundles:
            save_bundle(path, bundle)
            sources.append(path.read_bytes())
        forks = multiprocessing.get_context("fork")
        start = forks.Barrier(3)

        def write(bundle):
            start.wait()
            for _ in range(50):
                save_bundle(path, bundle)

        writers = [forks.Process(target=write, args=(bundle,)) for bundle in bundles]
        for writer in writers:
            writer.start()
        start.wait()
        seen = set()
        while any(writer.is_alive() for writer in writers):
            seen.add(sources.index(path.read_bytes()))  # one or the other, whole
        for writer in writers:
            writer.join()
        assert [writer.exitcode for writer in writers] == [0, 0] and seen == {0, 1}
        assert path.read_bytes() in sources and len(list(tmp_path.iterdir())) == 1

    def test_places_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_text("")
        for place in (tmp_path / "file" / "m.anchorinv", tmp_path):
            with pytest.raises(OSError, match="cannot be written"):
                fitted().save(place)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    @pytest.mark.parametrize("method", ["protonet", "anchorinv", "anchorinv-plus", "finetune"])
    def test_what_could_not_be_read_does_not_replace_a_good_file(self, method, value, tmp_path):
        path = saved(fitted(method), tmp_path)
        before, model = path.read_bytes(), again(fitted(method))
        head = copy.deepcopy(model.state_.head)
        next(iter(head.state_dict().values())).view(-1)[:1] = value  # an empty tensor takes none
        list(head.state_dict().values())[-1].view(-1)[0] = value
        model.state_ = replace(model.state_, head=head)
        with pytest.raises(ValueError, match=r"is not written.*not finite; the existing file is"):
            model.save(path)
        model.state_, model._columns = fitted(method).state_, model._columns[:2]
        with pytest.raises(ValueError, match=r"is not written.*lists 3 classes, 2 names"):
            model.save(path)
        assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]

    def test_before_fit_there_is_nothing_to_save(self, tmp_path):
        with pytest.raises(ValueError, match="call fit"):
            AnchorInvClassifier().save(tmp_path / "m")
        assert not list(tmp_path.iterdir())

    def test_the_payload_is_safetensors_and_the_header_json(self, tmp_path):
        version, header, payload = read_container(saved(fitted(), tmp_path))
        assert version == FORMAT and json.loads(header)["classes"] == ["left", "right", "tongue"]
        assert save_tensors(load_tensors(payload)) == payload
