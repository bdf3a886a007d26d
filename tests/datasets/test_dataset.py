"""Windows come back as they went in, from memory and from a folder; a damaged folder is named."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorinv import files
from anchorinv.datasets import dataset
from anchorinv.datasets.dataset import Dataset

HEAD = "start,label,subject,session,split\n"


def made(n=6, n_chans=3, n_times=20, **options) -> Dataset:
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(n, n_chans, n_times)).astype(np.float32)
    columns = {
        "split": ["train", "test"] * (n // 2),
        "subjects": ["anna", "bob", "bob"] * (n // 3),
        "sessions": ["1"] * n,
    }
    return Dataset.from_arrays(signals, ["up", "down", "up"] * (n // 3), sfreq=50, **(columns | options))


def test_windows_come_back(tmp_path):
    data = made()
    data.write(tmp_path / "set")
    again = Dataset.open(tmp_path / "set")
    everything = np.arange(len(data))
    assert np.array_equal(again.signals(everything), data.signals(everything))
    assert np.array_equal(again.signals(again.split == "test"), data.signals([1, 3, 5]))
    for name in ("labels", "subjects", "sessions", "split", "starts"):
        assert getattr(again, name).tolist() == getattr(data, name).tolist()
    assert (again.class_names, again.sfreq, again.n_times) == (("down", "up"), 50, 20)
    assert again.fingerprint == data.fingerprint
    assert isinstance(again.samples, np.memmap)


@given(st.integers(1, 12), st.integers(1, 9))
def test_overlapping_windows_are_views_of_one_recording(n_times, step):
    recording = np.arange(60, dtype=np.float32).reshape(30, 2)
    starts = np.arange(0, 30 - n_times + 1, step)
    n = len(starts)
    data = Dataset(
        recording, starts, n_times, np.zeros(n, int), *(np.full(n, "0"),) * 2, np.full(n, "train"), 10.0,
        ("rest",), ("a", "b"),
    )  # fmt: skip
    windows = data.signals(np.arange(n))
    for window, start in zip(windows, starts, strict=True):
        assert np.array_equal(window.T, recording[start : start + n_times])


@pytest.mark.parametrize(
    "change", [{"sfreq": 51}, {"split": ["train"] * 6}, {"subjects": ["a"] * 6}, {"n_chans": 2}]
)
def test_the_fingerprint_sees_every_change(change):
    options = {"sfreq": 50} | change
    other = made(**{k: v for k, v in options.items() if k != "sfreq"})
    if "sfreq" in change:
        other = Dataset(**{**other.__dict__, "sfreq": 51.0})
    assert other.fingerprint != made().fingerprint


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: (f / "index.csv").unlink(), "it lacks index.csv"),
        (lambda f: (f / "meta.json").write_text("{"), "meta.json is damaged"),
        (lambda f: (f / "samples.npy").write_bytes((f / "samples.npy").read_bytes()[:200]), "damaged"),
        (lambda f: (f / "samples.npy").write_bytes(b"not an array"), "damaged"),
        (lambda f: (f / "index.csv").write_text("start,label\n0,up\n"), "'subject' is missing"),
        (lambda f: (f / "index.csv").write_text(HEAD + "9999,up,a,1,train\n"), "beyond"),
        (lambda f: (f / "index.csv").write_text(HEAD + "0,left,a,1,train\n"), "'left'"),
        (lambda f: (f / "meta.json").write_text(json.dumps({"format": 99})), "format 99"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_named(tmp_path, damage, told):
    made().write(tmp_path / "set")
    damage(tmp_path / "set")
    with pytest.raises(ValueError, match=told) as error:
        Dataset.open(tmp_path / "set")
    assert "set" in str(error.value)


def test_no_folder_at_all(tmp_path):
    with pytest.raises(ValueError, match="is not a prepared data set"):
        Dataset.open(tmp_path / "nowhere")


def test_writing_again_replaces(tmp_path):
    made().write(tmp_path / "set")
    made(n=12).write(tmp_path / "set")
    assert len(Dataset.open(tmp_path / "set")) == 12
    shutil.rmtree(tmp_path / "set")


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="contains something other"):
        made().write(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def flipped(path: Path, at: int) -> None:
    """Change one bit of a file, and nothing else of it."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


class TestChecked:
    """A prepared folder is held against what was prepared."""

    def test_an_untouched_one_passes(self, tmp_path):
        made().write(tmp_path / "set")
        Dataset.open(tmp_path / "set").check()
        made().check()

    @pytest.mark.parametrize("at", [-1, -700, 128])
    def test_one_bit_of_the_signals_is_noticed(self, tmp_path, at):
        made().write(tmp_path / "set")
        flipped(tmp_path / "set" / "samples.npy", at)
        with pytest.raises(ValueError, match=r"set has changed since it was prepared: samples\.npy; restore"):
            Dataset.open(tmp_path / "set").check()

    @pytest.mark.parametrize(
        ("name", "old", "new"),
        [("index.csv", "anna", "anne"), ("index.csv", '"test"', '"train"'), ("meta.json", "50", "60")],
    )
    def test_changed_tables_are_noticed(self, tmp_path, name, old, new):
        made().write(tmp_path / "set")
        path = tmp_path / "set" / name
        path.write_text(path.read_text().replace(old, new, 1))
        with pytest.raises(ValueError, match=r"changed since it was prepared: index\.csv or meta\.json"):
            Dataset.open(tmp_path / "set").check()

    def test_a_folder_of_an_earlier_version_passes(self, tmp_path):
        made().write(tmp_path / "set")
        path = tmp_path / "set" / "meta.json"
        meta = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in meta.items() if key != "fingerprint"}))
        Dataset.open(tmp_path / "set").check()

    def test_a_part_of_a_folder_in_memory_has_a_fingerprint_of_its_own(self, tmp_path):
        made().write(tmp_path / "set")
        data = Dataset.open(tmp_path / "set")
        for samples in (data.samples + 1, np.array(data.samples) + 1):
            other = replace(data, samples=samples)
            assert other.fingerprint != data.fingerprint
            other.check()

    def test_of_large_signals_blocks_are_read_unless_all_are_asked_for(self, tmp_path, monkeypatch):
        monkeypatch.setattr(dataset, "LARGE", 2000)
        monkeypatch.setattr(files, "_N_BLOCKS", 3)
        monkeypatch.setattr(files, "_BLOCK", 64)
        made(n=12).write(tmp_path / "set")  # 2880 bytes
        path = tmp_path / "set" / "samples.npy"
        Dataset.open(tmp_path / "set").check()
        for at in (128, -1, path.stat().st_size // 2 + 64):  # first, last and middle block
            flipped(path, at)
            with pytest.raises(ValueError, match=r"changed since it was prepared: samples\.npy"):
                Dataset.open(tmp_path / "set").check()
            flipped(path, at)
        flipped(path, 128 + 700)  # between blocks
        Dataset.open(tmp_path / "set").check()
        with pytest.raises(ValueError, match=r"changed since it was prepared: samples\.npy"):
            Dataset.open(tmp_path / "set").check(whole=True)
        # A folder of an earlier version knows no blocks, so it is read as a whole.
        meta = json.loads((tmp_path / "set" / "meta.json").read_text())
        (tmp_path / "set" / "meta.json").write_text(
            json.dumps({k: meta[k] for k in meta if k != "blocks_blake2b"})
        )
        with pytest.raises(ValueError, match=r"changed since it was prepared: samples\.npy"):
            Dataset.open(tmp_path / "set").check()
