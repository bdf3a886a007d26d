"""Arrays in files: every flipped bit, every claim beyond what the file holds, ends in one sentence."""

import io
import struct
import warnings
import zipfile
import zlib

import numpy as np
import pytest

from anchorinv.data import longterm
from anchorinv.data.dataset import Dataset
from anchorinv.data.own import plan_npz
from anchorinv.data.own_files import Options
from anchorinv.data.trials_file import read_trials
from anchorinv.data.windowed import open_windows
from anchorinv.signal.npzfiles import load_arrays, stored_array, stored_arrays
from tests.reading_whole import read_recording

ALLOWED = frozenset({"few", "flat", "duplicates", "clipped", "nan"})


def as_windows(path):
    file = open_windows(path)
    return sum(len(block) for block in file.blocks(1))


READS = {
    "npz": (as_windows, lambda path: plan_npz(path, Options(at_least=1, allow=ALLOWED)),
            lambda path: read_trials(path, longterm.FORM)),
    "npy": (as_windows, read_recording),
    "folder": (as_windows,),
}  # fmt: skip


def written(folder, kind, *, save=np.savez_compressed):
    """A small file of a kind; return it, and the file of it that is to be damaged."""
    X = np.arange(12, dtype=np.int16).reshape(3, 2, 2)
    if kind == "npz":
        save(folder / "a.npz", X=X, y=np.array(["a", "b", "a"]), sfreq=100.0)
        return (folder / "a.npz",) * 2
    if kind == "npy":
        np.save(folder / "a.npy", X)
        return (folder / "a.npy",) * 2
    Dataset.from_arrays(X, [0, 1, 0], sfreq=100, split=["train", "test", "train"]).write(folder / "set")
    return folder / "set", folder / "set" / "samples.npy"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kind", READS)
def test_a_flipped_bit_is_one_sentence(tmp_path, kind, save):
    path, damaged = written(tmp_path, kind, save=save)
    whole = damaged.read_bytes()
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 1 << at % 8
        damaged.write_bytes(broken)
        for read in READS[kind]:
            try:
                read(path)
            except ValueError as error:
                assert "\n" not in str(error) or "problems" in str(error)


def test_blocks_that_break_later_are_told(tmp_path):
    """The header is sound, and so is the first block."""
    X = np.random.default_rng(0).normal(size=(500, 4, 100))
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", X=X)
        whole = bytearray((tmp_path / "a.npz").read_bytes())
        whole[len(whole) * 3 // 4] ^= 16
        (tmp_path / "a.npz").write_bytes(whole)
        blocks = open_windows(tmp_path / "a.npz").blocks(10)
        np.testing.assert_array_equal(next(blocks), X[:10])
        with pytest.raises(ValueError, match=r"a\.npz is cut short or damaged; save it again"):
            list(blocks)


def test_warnings_are_not_swallowed_between_blocks(tmp_path):
    path, _ = written(tmp_path, "npz")
    blocks = open_windows(path).blocks(1)
    next(blocks)
    with pytest.warns(UserWarning, match="ours"):
        warnings.warn("ours", UserWarning, stacklevel=1)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_blocks_are_the_array(tmp_path, order, size):
    X = np.asarray(np.random.default_rng(0).normal(size=(5, 3, 4)), order=order)
    np.savez(tmp_path / "a.npz", X=X, empty=np.zeros((0, 3)), one=np.array(2.5))
    np.save(tmp_path / "a.npy", X)
    found = stored_arrays(tmp_path / "a.npz", ("X", "empty", "one", "absent"))
    assert found["one"].read() == 2.5 and found["empty"].read().shape == (0, 3) and "absent" not in found
    for array in (found["X"], stored_array(tmp_path / "a.npy")):
        blocks = list(array.blocks(size))
        assert all(len(block) <= size for block in blocks)
        np.testing.assert_array_equal(np.concatenate(blocks), X)
        np.testing.assert_array_equal(array.read(), X)


def header(shape, descr, version=1):
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text


CLAIMS = {
    "shape": header((1 << 31, 4, 1 << 20), "<f8"),
    "negative": header((-1, 4, 64), "<f8"),
    "dtype": header((3,), "<U900000000"),
    "structure": header((3,), [("a", "<f8", (1 << 24,))]),
    "length": b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31),
    "version": header((3,), "<f8", 3),
    "nested": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000,
    "python 2": header((3,), "<f8").replace(b"(3,)", b"(3L,)"),
}


@pytest.mark.parametrize("name", ["X", "y"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_what_a_header_claims_is_held_to_the_file(tmp_path, claim, name):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", CLAIMS[claim] + bytes(1000))
    with pytest.raises(ValueError, match=r"a\.npz"):
        load_arrays(tmp_path / "a.npz", ("X", "y"))
    (tmp_path / "a.npy").write_bytes(CLAIMS[claim] + bytes(1000))
    with pytest.raises(ValueError, match=r"a\.npy"):
        open_windows(tmp_path / "a.npy")


def zeros(n_bytes):
    """So many zeros, compressed a block at a time."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = bytes(1 << 20)
    return b"".join(packer.compress(block) for _ in range(n_bytes >> 20)) + packer.flush()


@pytest.mark.parametrize("name", ["X", "y"])
def test_little_that_unpacks_to_much_is_refused_unread(tmp_path, monkeypatch, name):
    """A member of 32 MB in 32 kB; nothing of it is unpacked but its header."""
    n = 32 << 20
    shape = (n // 400, 1, 400) if name == "X" else (n,)
    head = io.BytesIO()
    facts = {"descr": "|i1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, facts)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", head.getvalue() + bytes(n))
    monkeypatch.setattr(np, "frombuffer", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(ValueError, match=r"a\.npz unpacks to more than 200 times its size"):
        load_arrays(tmp_path / "a.npz", ("X", "y"))
    with pytest.raises(ValueError, match=r"times its size|needs an array X"):
        open_windows(tmp_path / "a.npz")


def test_labels_beyond_a_million_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", X=np.ones((3, 1, 4)), y=rng.integers(0, 2, 1_000_001, dtype=np.int8))
    with pytest.raises(ValueError, match=r"y has 1000001 values, and at most a million"):
        load_arrays(tmp_path / "a.npz", ("X", "y"))


@pytest.mark.parametrize("rate", [0, -1, np.nan, np.inf, 1e300, 1e-300, "fast", [1, 2]])
def test_rates_that_are_none(tmp_path, rate):
    np.savez(tmp_path / "a.npz", X=np.ones((3, 1, 4)), sfreq=rate)
    with pytest.raises(ValueError, match=r"sfreq is .*; one rate in Hz above 0"):
        open_windows(tmp_path / "a.npz")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("letter", [0x110000, 2**32 - 1, 0xD800])
def test_text_that_is_none_is_refused(tmp_path, order, letter):
    names = np.array(["Cz", "Fz"], dtype=f"{order}U2")
    np.savez(tmp_path / "a.npz", X=np.zeros((3, 2, 4)), ch_names=names)
    assert load_arrays(tmp_path / "a.npz", ["ch_names"])["ch_names"].tolist() == ["Cz", "Fz"]
    names.view(f"{order}u4")[1] = letter
    np.savez(tmp_path / "a.npz", X=np.zeros((3, 2, 4)), ch_names=names)
    with pytest.raises(ValueError, match=r"a\.npz: ch_names holds text that is none"):
        load_arrays(tmp_path / "a.npz", ["ch_names"])
