"""Damaged model files: whatever happened to them, one clear sentence or a whole model; nothing else."""

import json
import os
import random
import re
import struct
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from anchorinv import AnchorInvClassifier
from anchorinv.core.types import Curve
from anchorinv.persistence.bundle import read_facts
from anchorinv.persistence.format import MAGIC, assemble, read_container
from anchorinv.persistence.limits import MOST_HEADER
from tests.campaigns.damaged_models import in_a_child
from tests.campaigns.model_damage import corrupted, crafted, reshaped, rewritten, split, tampered
from tests.models import again, fitted, windows

N_BYTES, N_FACTS, N_TENSORS, N_CONFIDENCES = 2000, 200, 75, 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "model.anchorinv"
    fitted(n_anchors=2).save(path, with_signals=True)
    return path.read_bytes()


@pytest.fixture
def place(tmp_path):
    return tmp_path / "model.anchorinv"


def outcome(place, content):
    """Load what was made of a file: a model that predicts, or one sentence that names the file."""
    place.write_bytes(content)
    _, looked = attempt(read_facts, place)
    model, refusal = attempt(partial(AnchorInvClassifier.load, allow_recordings=True), place)
    assert refusal == looked  # info describes what load accepts, and nothing else
    if refusal is not None:
        assert place.name in refusal and refusal.isprintable() and 20 < len(refusal) < 600, refusal
        return refusal
    _, refusal = attempt(model.predict_proba, windows(2)[0])
    assert refusal is None or "are not finite" in refusal
    return model


def attempt(function, value):
    """What a function makes of a value, and the sentence by which it refuses it."""
    try:
        return function(value), None
    except (ValueError, OSError) as error:
        return None, str(error)


def test_accidents_of_all_kinds(whole, place):
    draw, refused = random.Random(0), 0
    for _ in range(N_BYTES):
        damaged = corrupted(whole, draw)
        result = outcome(place, damaged)
        assert isinstance(result, str) or damaged == whole
        refused += isinstance(result, str)
    assert refused > 0.95 * N_BYTES  # the others happened to change nothing


def test_facts_that_were_tampered_with(whole, place):
    place.write_bytes(whole)
    _, header, payload = read_container(place)
    facts, draw, refused = json.loads(header), random.Random(1), 0
    for _ in range(N_FACTS):
        text = json.dumps(rewritten(facts, draw)).encode()
        refused += isinstance(outcome(place, assemble(text, payload)), str)
    assert refused > N_FACTS / 2  # a name or a number of seconds may be anything


def test_tensors_that_were_tampered_with(whole, place):
    place.write_bytes(whole)
    _, header, payload = read_container(place)
    draw, refused = random.Random(2), 0
    for _ in range(N_TENSORS):
        tensors = tampered(load_tensors(payload), draw)
        refused += isinstance(outcome(place, assemble(header, save_tensors(tensors))), str)
    assert refused > 0.6 * N_TENSORS  # some parts may be missing, and integers may stay integers


def test_payloads_that_say_something_else(whole, place):
    header, payload = split(whole)
    draw = random.Random(4)
    for _ in range(100):
        outcome(place, assemble(header, reshaped(payload, draw)))


def test_raw_payloads_that_were_tampered_with(whole, place):
    place.write_bytes(whole)
    _, header, payload = read_container(place)
    draw = random.Random(3)
    for _ in range(150):
        outcome(place, assemble(header, corrupted(payload, draw)))


@pytest.mark.parametrize(("rows", "n_labels"), [(1, 100_000), (0, 100_000), (3, 2)])
def test_small_tensors_do_not_unfold_into_large_ones(rows, n_labels, whole, place):
    place.write_bytes(whole)
    _, header, payload = read_container(place)
    labels = torch.zeros(n_labels, dtype=torch.int64)
    tensors = load_tensors(payload) | {
        "anchors.pending": torch.zeros(rows, 100_000),
        "anchors.labels": labels,
    }
    tracemalloc.start()
    refusal = outcome(place, assemble(header, save_tensors(tensors)))
    assert "do not fit" in refusal and tracemalloc.get_traced_memory()[1] < 5e7
    tracemalloc.stop()


def front(content, *, magic=MAGIC, version=1, header=None, payload=None):
    _, _, n_header, n_payload = struct.unpack("<8sIIQ", content[:24])
    sizes = n_header if header is None else header, n_payload if payload is None else payload
    return struct.pack("<8sIIQ", magic, version, *sizes) + content[24:]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda c: b"", "no anchorinv model"),
        (lambda c: c[:7], "no anchorinv model"),
        (lambda c: c[:30], "cut short"),
        (lambda c: c[:-1], "cut short"),
        (lambda c: c + b"x", "longer than it says"),
        (lambda c: c[:-3] + bytes([c[-3] ^ 1]) + c[-2:], "do not match its digest"),
        (lambda c: front(c, magic=b"ANCHRINW"), "no anchorinv model"),
        (lambda c: front(c, version=2), r"format 2, and this anchorinv reads up to 1; update"),
        (lambda c: front(c, version=0), "damaged"),
        (lambda c: front(c, header=MOST_HEADER + 1), "damaged"),
        (lambda c: front(c, header=2**32 - 1), "damaged"),
        (lambda c: front(c, payload=2**63), "cut short"),
        (lambda c: save_tensors({"weight": torch.zeros(3)}), "safetensors file of another program"),
        (lambda c: assemble(b"[" * 100_000, b""), "header is wrong"),
        (lambda c: assemble(b'{"package": 1e999}', b""), "is wrong"),
        (lambda c: assemble(b"\xff\xfe", b""), "is wrong"),
        (lambda c: b"PK\x03\x04" + bytes(100), "no anchorinv model"),
    ],
)
def test_each_has_its_sentence(damage, words, whole, place):
    place.write_bytes(damage(whole))
    with pytest.raises(ValueError, match=words):
        AnchorInvClassifier.load(place)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no model file"):
        AnchorInvClassifier.load(tmp_path / "nothing.anchorinv")
    with pytest.raises(ValueError, match="is a folder"):
        AnchorInvClassifier.load(tmp_path)


def test_a_file_that_claims_to_be_huge_is_not_read(place, whole):
    with place.open("wb") as file:
        file.write(front(whole, payload=2**40))
        file.truncate(2**40)  # takes no room
    with pytest.raises(ValueError, match="too large for a model file"):
        AnchorInvClassifier.load(place)


def test_a_slice_of_the_campaign(whole, place):
    for seed in range(25):
        place.write_bytes(crafted(whole, seed)[1])
        facts = in_a_child(place)
        done = {fact["step"]: fact["done"] for fact in facts}
        assert not [fact["fault"] for fact in facts if fact["fault"]] and done["load"] == done["info"]
        assert max(fact["bytes"] for fact in facts) < 1e9


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_file_is_refused_before_it_is_opened(kind, tmp_path):
    path = tmp_path / "model.anchorinv"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    path = Path("/dev/zero") if kind == "device" else path
    wanted = "is a folder, not" if kind == "folder" else "is a device or a pipe, not"
    for read in (AnchorInvClassifier.load, read_facts):
        with pytest.raises(ValueError, match=wanted):
            read(path)


def set_facts(*path, to):
    def change(facts, tensors):
        *parents, last = path
        for key in parents:
            facts = facts[key]
        facts[last] = to

    return change


def named(*classes):
    def change(facts, tensors):
        facts["classes"] = list(classes)

    return change


def long_windows(facts, tensors):
    facts["geometry"] |= {"n_times": 60_000, "pool": 1, "pool_stride": 1}
    facts["state"]["shape"] = [4, 60_000]


def grown(name, rows):
    def change(facts, tensors):
        for part in (name, f"{name}.values", f"{name}.labels"):
            if part in tensors:
                tensors[part] = tensors[part].repeat(rows, *[1] * (tensors[part].ndim - 1))[:rows]

    return change


def statistic(name, change_to):
    def change(facts, tensors):
        tensors[f"statistics.{name}"] = change_to(tensors[f"statistics.{name}"]).contiguous()

    return change


def stowaway(name):
    def change(facts, tensors):
        tensors[name] = torch.zeros(3, 4, 64)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (named("l" * 250_000, "right", "tongue"), "has 250000 characters; 1 to 200"),
        (named("left", "left\0", "tongue"), r"contains the invisible character '\\x00'"),
        (named("left", "le\u200bft", "tongue"), "look the same"),
        (named("\u00e4", "a\u0308", "tongue"), "look the same"),
        (named("left", "\x1b[31m", "tongue"), r"invisible character '\\x1b'"),
        (named("left", "a\u2028b", "tongue"), "invisible character"),
        (set_facts("ch_names", to=["C3", "C3", "Cz", "Pz"]), "look the same"),
        (set_facts("classes", to=list(range(5000))), "classes is wrong"),
        (named("left", "", "tongue"), r"its classes\.1 is wrong"),
        (set_facts("history", 0, "numbers", "loss", to="x"), r"its history\.0\.numbers\.loss is wrong"),
        (grown("curves.0", 1 << 21), "its curves have 2097.* values, 1048576 at most"),
        (grown("signals", 40), "signals are more than anchorinv keeps"),
        (long_windows, "scores of attention.*are too many, .*; use shorter windows"),
        (set_facts("geometry", "kernel", to=2**30), "geometry.kernel is wrong"),
        (set_facts("sfreq", to=1e300), "sfreq is wrong"),
        (set_facts("sfreq", to=1e-300), "sfreq is wrong"),
        (set_facts("settings", "finetune_steps", to=10**12), "settings.finetune_steps is wrong"),
        (set_facts("settings", "inversion_steps", to=10**12), "settings.inversion_steps is wrong"),
        (set_facts("settings", "epochs", to=0), "settings.epochs is wrong"),
        (set_facts("settings", "\x1b[2J", to=0), r"settings.\\x1b\[2J is wrong"),
        (set_facts("history", 0, "numbers", "loss", to=10**400), "numbers.*is wrong"),
        (set_facts("state", "head", to={"kind": "mlp"}), "its head is mlp, anchorinv has cosine"),
        (set_facts("state", "views", to=["spectrum"]), "do not fit anchorinv"),
        (set_facts("method", to="protonet"), "protonet keeps no anchors"),
        (stowaway("stowaway.recordings"), "'stowaway.recordings', which does not belong to a model"),
        (stowaway("statistics.recordings"), "'statistics.recordings'"),
        (stowaway("statistics.pairs"), "'statistics.pairs'"),
        (stowaway("statistics.spectra.mean"), "'statistics.spectra.mean' is torch.float32"),
        (statistic("spectra.mean", lambda t: t[:, 1:]), "statistics.spectra do not fit 4 channels"),
        (statistic("spectra.std", lambda t: t.T), "statistics.spectra do not fit 4 channels"),
        (statistic("pairs.std", lambda t: t.repeat(2)), "statistics.pairs do not fit 4 channels"),
        (statistic("shared.std", lambda t: -1 - t), "a standard deviation is below 0"),
        (statistic("shared.mean", lambda t: t + 1e300), "statistics.shared are out of range"),
        (statistic("pairs.mean", lambda t: t * torch.nan), "not finite"),
        (lambda facts, tensors: tensors.pop("statistics.pairs.std"), "statistics.pairs do not fit"),
        (lambda facts, tensors: tensors.pop("statistics.shared.mean"), "statistics.shared do not fit"),
        (stowaway("recordings.values"), "anchorinv keeps no recordings"),
        (stowaway("head.more"), "do not fit this network"),
        (lambda facts, tensors: tensors.update({"curves.0": torch.zeros(2, 2)}), "'curves.0' has 2 dim"),
        (lambda facts, tensors: tensors.pop("anchors.labels"), "anchors"),
        (
            lambda facts, tensors: tensors.update({"anchors.labels": torch.zeros(300, 300).long()}),
            "'anchors.labels' has 2 dimensions",
        ),
    ],
)
def test_crafted_files_are_refused_by_name(change, words, whole, place):
    header, payload = split(whole)
    facts, tensors = json.loads(header), load_tensors(payload)
    change(facts, tensors)
    assert re.search(words, outcome(place, assemble(json.dumps(facts).encode(), save_tensors(tensors))))


@pytest.mark.parametrize(
    ("method", "name", "rows", "words"),
    [
        ("nc-fscil", "head.vertices", 513, "the head does not fit"),
        ("nc-fscil", "replay", 30, "replay are more than nc-fscil keeps, 3 at most"),
        ("fecam", "head.scatters.0", 50, "the head does not fit"),
        ("anchorinv-plus", "head.scatters.1", 50, "the head does not fit"),
        ("ranpac", "head.gram", 30, "the head does not fit"),
        ("mdm", "head.means", 30, "the head does not fit"),
        ("mdm", "head.counts", 2, "the head does not fit"),
        ("real-replay", "replay", 60, "replay are more than real-replay keeps"),
    ],
)
def test_known_tensors_hold_no_more_than_was_learned(method, name, rows, words, place):
    fitted(method, n_anchors=2).save(place, allow_recordings=True)
    header, payload = split(place.read_bytes())
    tensors = load_tensors(payload)
    for part in [part for part in tensors if part.startswith(name) and tensors[part].ndim]:
        tensors[part] = tensors[part].repeat(rows, *[1] * (tensors[part].ndim - 1))[:rows].contiguous()
    assert words in outcome(place, assemble(header, save_tensors(tensors)))


class TestConfidence:
    """What a model keeps of held-out windows, of which p-values and sets of classes are made."""

    @pytest.fixture(scope="class")
    @classmethod
    def known(cls, tmp_path_factory):
        path = tmp_path_factory.mktemp("known") / "model.anchorinv"
        fitted("discriminant").save(path)
        header, payload = split(path.read_bytes())
        return header, load_tensors(payload)

    def judged(self, place, header, tensors):
        """What is said of damaged tensors: a sentence, or p-values that are some."""
        result = outcome(place, assemble(header, save_tensors(tensors)))
        if isinstance(result, str):
            return result
        p, refusal = attempt(result.novelty, windows(6)[0])
        assert refusal or ((p > 0) & (p <= 1)).all()
        sets, unsure = attempt(result.predict_set, windows(6)[0])
        assert unsure == refusal and (refusal or sets.any(axis=1).all())
        return result

    def test_whatever_was_done_to_it(self, known, place):
        header, tensors = known
        confidence = {name: each for name, each in tensors.items() if name.startswith("confidence.")}
        draw, refused = random.Random(5), 0
        for _ in range(N_CONFIDENCES):
            refused += isinstance(
                self.judged(place, header, {**_without(tensors, confidence), **tampered(confidence, draw)}),
                str,
            )
        assert refused > N_CONFIDENCES / 2  # a count may be another one, and a table may be another's

    def test_without_all_of_it_a_model_is_one_of_a_former_version(self, known, place):
        header, tensors = known
        rest = {name: each for name, each in tensors.items() if not name.startswith("confidence.")}
        model = self.judged(place, header, rest)
        assert model.state_.confidence is None

    @pytest.mark.parametrize(
        ("name", "change", "words"),
        [
            ("base.values", lambda t: t[:2].contiguous(), "its confidence does not fit its classes"),
            ("misfits.values", lambda t: t[1:].contiguous(), "its confidence does not fit its classes"),
            ("factors", lambda t: 1e4 * t, "its confidence holds values that no windows give"),
            ("taught.values", lambda t: -t, "its confidence holds values that no windows give"),
            ("base.counts", lambda t: t - 2**40, "its confidence holds values that no windows give"),
            ("base.counts", lambda t: t.float(), "is torch.float32, torch.int64 was expected"),
            ("factors", lambda t: t * torch.nan, "holds values that are not finite"),
            ("base.values", None, "its confidence lacks base.values"),
            (
                "more.values",
                lambda t: torch.zeros(3),
                "'confidence.more.values', which does not belong to a model",
            ),
        ],
    )
    def test_each_has_its_sentence(self, name, change, words, known, place):
        header, tensors = known
        name, tensors = f"confidence.{name}", dict(tensors)
        old = tensors.pop(name, None)
        tensors |= {} if change is None else {name: change(old)}
        assert words in self.judged(place, header, tensors)

    def test_that_of_another_head_is_refused(self, known, place):
        """A discriminant has three statistics of novelty; a table of one would be read beyond its end."""
        header, tensors = known
        for table in ("base", "taught"):
            for part in ("values", "counts"):
                name = f"confidence.{table}.{part}"
                tensors = {**tensors, name: tensors[name][:2].contiguous()}
        assert "its confidence does not fit" in self.judged(place, header, tensors)


def _without(tensors, names):
    return {name: each for name, each in tensors.items() if name not in names}


def test_long_curves_are_thinned_when_they_are_written(place):
    model = again(fitted())
    long = Curve("base", 0, torch.arange(3e6))
    model.state_ = replace(model.state_, curves=(long, *model.state_.curves[1:]))
    model.save(place)
    curves = AnchorInvClassifier.load(place).state_.curves
    assert 100_000 < len(curves[0].values) < 2**20 and curves[0].values[0] == 0
    assert [len(each.values) for each in curves[1:]] == [len(each.values) for each in model.state_.curves[1:]]


def test_a_class_of_countless_examples_can_be_forgotten(whole, place):
    header, payload = split(whole)
    facts = json.loads(header) | {"counts": [2**53] * 3}
    model = outcome(place, assemble(json.dumps(facts).encode(), payload)).forget_class("left")
    assert model.history_[-1]["samples"] == {"left": 2**53}
