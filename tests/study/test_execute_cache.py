"""Base models on disk: made once, found by what determines them, never trusted when damaged."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anchorinv.core import catalogue
from anchorinv.core.inversion import Inversion
from anchorinv.core.minimise import Checkpoint
from anchorinv.core.recipe import BaseSpec
from anchorinv.core.registry import METHODS
from anchorinv.core.types import State, stream
from anchorinv.files import HERE, in_use, read_tensors, write_tensors
from anchorinv.study import execute as caching
from anchorinv.study.execute import ModelCache
from tests.core.small import base_spec, same, snapshot, toy

BASE = toy().of(0, 1)


class Maker:
    """Trains base models and counts how often it was asked to."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, checkpoint: Checkpoint | None) -> State:
        self.times += 1
        return base_spec().fit(BASE, checkpoint=checkpoint, rng=stream(0))


def kept(folder: Path, make: Maker, *by: Any, base: BaseSpec | None = None) -> State:
    return ModelCache(folder, *(by or ("data", 5))).base(base or base_spec(), make)[0]


def test_a_base_model_is_made_once_and_found_again(tmp_path):
    make = Maker()
    first, again = kept(tmp_path, make), kept(tmp_path, make)
    assert make.times == 1
    assert same(snapshot(first), snapshot(again))


def test_the_seconds_are_those_it_took(tmp_path):
    taken = [ModelCache(tmp_path, 1).base(base_spec(), Maker())[1] for _ in range(2)]
    assert taken[0] == taken[1] > 0


@pytest.mark.parametrize(
    ("by", "base"),
    [
        (("other data", 5), None),
        (("data", 6), None),
        (("data", 5), base_spec(epochs=4)),
        (("data", 5), catalogue.finetune(base_spec()).base_spec),
    ],
)
def test_whatever_determines_it_makes_another(tmp_path, by, base):
    make = Maker()
    kept(tmp_path, make)
    kept(
        tmp_path,
        make,
        *by,
        base=base and replace(base, head=base_spec().head, backbone=base_spec().backbone),
    )
    if base is not None and base.training == base_spec().training:
        kept(tmp_path, make, *by, base=replace(base_spec(), head=base.head))
    assert make.times == 2


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "foreign"])
def test_a_damaged_file_is_said_and_made_again(tmp_path, damage, caplog):
    make = Maker()
    first = kept(tmp_path, make)
    (path,) = tmp_path.glob("base-*")
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[-5] ^= 1
    path.write_bytes(
        {
            "truncated": content[: len(content) // 2],
            "flipped": bytes(flipped),
            "emptied": b"",
            "foreign": b"x" * 99,
        }[damage]
    )
    with caplog.at_level(logging.WARNING, logger="anchorinv"):
        again = kept(tmp_path, make)
    assert make.times == 2 and "is damaged" in caplog.text and "made again" in caplog.text
    assert same(snapshot(first), snapshot(again))
    assert len(path.read_bytes()) == len(content)


class TestReplay:
    @staticmethod
    def recalled(folder, method, counts):
        cache = ModelCache(folder, "data", 5)
        base = method.start(cache.base(method.base_spec, Maker())[0], BASE, rng=stream(0))

        def make():
            counts.append(1)
            return method.recall(base, rng=stream(1))

        return cache.recalled(method.base_spec, method.memory, make)

    def test_inverted_signals_are_made_once(self, tmp_path):
        method, counts = catalogue.anchorinv(base_spec(), per_class=3, inversion=Inversion(steps=2)), []
        first, again = (self.recalled(tmp_path, method, counts) for _ in range(2))
        assert len(counts) == 1 and same(snapshot(first), snapshot(again))
        other = catalogue.anchorinv(base_spec(), per_class=3, inversion=Inversion(steps=3))
        self.recalled(tmp_path, other, counts)
        assert len(counts) == 2

    @pytest.mark.parametrize("name", ["real-replay", "protonet", "latent-replay"])
    def test_recordings_are_never_written_nor_what_costs_nothing(self, tmp_path, name):
        method, counts = METHODS[name].build(base_spec()), []
        for _ in range(2):
            self.recalled(tmp_path, method, counts)
        assert len(counts) == 2 and not list(tmp_path.glob("replay-*"))
        written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert not any(signal.numpy().tobytes()[:64] in written for signal in BASE.values)


class TestUnfinishedTraining:
    def test_goes_on_where_it_was_left(self, tmp_path, caplog):
        whole = kept(tmp_path / "whole", Maker())

        class KilledError(Exception):
            pass

        def killed_after_one_epoch(checkpoint: Checkpoint | None) -> State:
            class Watched:
                def load(self):
                    return checkpoint.load()

                def save(self, values):
                    checkpoint.save(values)
                    raise KilledError

            return base_spec().fit(BASE, checkpoint=Watched(), rng=stream(0))

        cache = ModelCache(tmp_path / "left", "data", 5, seconds=0)
        with pytest.raises(KilledError):
            cache.base(base_spec(), killed_after_one_epoch)
        assert [path.suffix for path in (tmp_path / "left").iterdir()] == [".unfinished"]
        with caplog.at_level(logging.INFO, logger="anchorinv"):
            state, _ = ModelCache(tmp_path / "left", "data", 5, seconds=0).base(base_spec(), Maker())
        assert "training resumes after 2 steps" in caplog.text
        assert same(snapshot(state), snapshot(whole))
        assert [path.suffix for path in (tmp_path / "left").iterdir()] == [".safetensors"]

    def test_a_damaged_one_is_said_and_training_starts_again(self, tmp_path, caplog):
        make = Maker()
        whole = kept(tmp_path, make)
        (path,) = tmp_path.glob("base-*")
        path.unlink()
        path.with_suffix(".unfinished").write_bytes(b"torn")
        again = kept(tmp_path, make)
        assert "training starts again" in caplog.text and same(snapshot(whole), snapshot(again))


class TestTensorFiles:
    def test_come_back(self, tmp_path):
        tensors = {
            "a": torch.randn(3, 4),
            "none": torch.zeros(5, 0),
            "one": torch.tensor(3),
            "b": torch.arange(4),
        }
        write_tensors(tmp_path / "t", tensors, {"µ": [1, None]})
        found, facts = read_tensors(tmp_path / "t")
        assert facts == {"µ": [1, None]} and found.keys() == tensors.keys()
        assert all(torch.equal(found[k], tensors[k]) and found[k].dtype == tensors[k].dtype for k in tensors)

    def test_a_file_without_our_digest_is_refused(self, tmp_path):
        from safetensors.torch import save_file

        save_file({"a": torch.zeros(1)}, tmp_path / "t")
        with pytest.raises(ValueError, match="is damaged"):
            read_tensors(tmp_path / "t")


NAME = "0123456789abcdef" * 2
HALVES = [
    f".base-{NAME[:24]}.safetensors.{HERE}.01234567.part",
    f".base-{NAME[:24]}.unfinished.{HERE}.89abcdef.part",
    f".replay-{NAME[:24]}.safetensors.{HERE}.01234567.part",
]
OTHERS = [
    ".notes.part",
    ".base-.safetensors.part",
    f".base-{NAME[:8]}.safetensors.{HERE}.01234567.part",
    f".base-{NAME[:24]}.safetensors.other000.01234567.part",
    f"base-{NAME[:24]}.safetensors",
    f"base-{NAME[:24]}.unfinished",
    ".results.jsonl.01234567.part",
]


def littered(folder: Path) -> Path:
    for name in (*HALVES, *OTHERS):
        (folder / name).write_text("half of it")
    return folder


def test_what_killed_processes_left_is_swept_and_nothing_else(tmp_path):
    with in_use(littered(tmp_path), *caching.HALVES):
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(OTHERS)


def test_nothing_is_swept_while_others_use_the_folder(tmp_path):
    with in_use(tmp_path, *caching.HALVES):
        littered(tmp_path)
        with in_use(tmp_path, *caching.HALVES):
            pass
        assert len(list(tmp_path.iterdir())) == len(HALVES + OTHERS)
    with in_use(tmp_path, *caching.HALVES):
        assert len(list(tmp_path.iterdir())) == len(OTHERS)


def test_a_folder_of_others_that_cannot_be_changed_can_be_used(tmp_path, monkeypatch):
    def refused(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "unlink", refused)
    with in_use(littered(tmp_path), *caching.HALVES):
        pass
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == len(HALVES + OTHERS)
