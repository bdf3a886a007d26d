"""Windows come back as they went in, from memory and from a folder; a damaged folder is named."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorinv.data.dataset import Dataset

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
        (lambda f: (f / "index.csv").unlink(), "index.csv is missing"),
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
    with pytest.raises(ValueError, match="is no prepared data set"):
        Dataset.open(tmp_path / "nowhere")


def test_writing_again_replaces(tmp_path):
    made().write(tmp_path / "set")
    made(n=12).write(tmp_path / "set")
    assert len(Dataset.open(tmp_path / "set")) == 12
    shutil.rmtree(tmp_path / "set")


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds something else"):
        made().write(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
