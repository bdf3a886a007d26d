"""Arrays and tables in files: damage, and claims beyond what the file holds, end in one sentence."""

import gzip
import io
import lzma
import struct
import warnings
import zipfile
import zlib

import numpy as np
import pytest

from anchorinv.datasets.dataset import Dataset, open_windows
from anchorinv.datasets.npz_sets import EMG_LONGTERM, read_trials
from anchorinv.datasets.own import plan_npz, read_manifest
from anchorinv.datasets.own_files import OwnOptions
from anchorinv.signal.arrays import load_arrays, open_array, open_arrays, read_table
from tests.reading_whole import read_recording
from tests.signal.test_headers import within

ALLOWED = frozenset({"few", "flat", "duplicates", "clipped", "nan"})


def as_windows(path):
    file = open_windows(path)
    return sum(len(block) for block in file.blocks(1))


READS = {
    "npz": (as_windows, lambda path: plan_npz(path, OwnOptions(at_least=1, allow=ALLOWED)),
            lambda path: read_trials(path, EMG_LONGTERM)),
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
    arrays = open_arrays(tmp_path / "a.npz", ("X", "empty", "one", "absent"))
    assert arrays["one"].read() == 2.5 and arrays["empty"].read().shape == (0, 3) and "absent" not in arrays
    for array in (arrays["X"], open_array(tmp_path / "a.npy")):
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
    with pytest.raises(ValueError, match=r"sfreq is .*; expected one rate in Hz above 0"):
        open_windows(tmp_path / "a.npz")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("letter", [0x110000, 2**32 - 1, 0xD800])
def test_text_that_is_none_is_refused(tmp_path, order, letter):
    names = np.array(["Cz", "Fz"], dtype=f"{order}U2")
    np.savez(tmp_path / "a.npz", X=np.zeros((3, 2, 4)), ch_names=names)
    assert load_arrays(tmp_path / "a.npz", ["ch_names"])["ch_names"].tolist() == ["Cz", "Fz"]
    names.view(f"{order}u4")[1] = letter
    np.savez(tmp_path / "a.npz", X=np.zeros((3, 2, 4)), ch_names=names)
    with pytest.raises(ValueError, match=r"a\.npz: ch_names contains invalid text"):
        load_arrays(tmp_path / "a.npz", ["ch_names"])


def test_wanted_columns_come_by_name(tmp_path):
    (tmp_path / "t.csv").write_text("\ufeffA , b,C\n1,2,3\n\n4\n'5',\"6\n7\",8,9\n", encoding="utf-8")
    table = read_table(tmp_path / "t.csv", ("a", "b", "d"))
    assert table.names == ("a", "b", "c") and table.lines == [2, 4, 6]
    assert table.columns == {"a": ["1", "4", "'5'"], "b": ["2", "", "6\n7"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\n" + "x" * 200_000 + ",a\n", "is not a table .*field limit.*line 2"),
        ('path,label\n"' + "x,a\n" * 50_000, "is not a table .*; is a quote left open"),
        ("path,label," + "c," * 1_000_000 + "\n", "more than 1000 columns"),
        ("path;label;" + "c;" * 1_000_000 + "\n", "more than 1000 columns"),
        ("path,label\n" + "x" * 5_000 + ".edf,a\n", "line 2: x.* does not exist"),
        ("path,label\na\0b.edf,a\n", "line 2: .* does not exist"),
        ("path,label,start\na.npy,a,1e308\n", "start must be at least 0 and before stop"),
        ("path,label,stop\na.npy,a,inf\n", "start must be at least 0 and before stop"),
        ("path,label,start,stop\na.npy,a,nan,nan\n", "start must be at least 0 and before stop"),
    ],
)
def test_manifests_without_measure(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "a.npy").touch()
    with within(), pytest.raises(ValueError, match=message):
        _, problems = read_manifest(tmp_path / "t.csv")
        raise ValueError("\n".join(problems))


def test_a_table_of_a_million_rows_is_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr("anchorinv.signal.headers.MAX_ROWS", 3)
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 3)
    assert len(read_table(tmp_path / "t.csv", ("a",)).lines) == 3
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 4)
    with pytest.raises(ValueError, match="more than a million rows"):
        read_table(tmp_path / "t.csv", ("a",))
    monkeypatch.setattr("anchorinv.signal.headers.MAX_TEXT", 5)
    with pytest.raises(ValueError, match=r"t\.csv has 10 bytes, and at most"):
        read_table(tmp_path / "t.csv", ("a",))


def test_a_table_with_an_empty_line_after_each_row_is_read(tmp_path):
    """As Python writes them on Windows, where nobody tells it otherwise."""
    (tmp_path / "t.csv").write_text("a,b\n" + "1,2\n\n" * 3000)
    assert read_recording(tmp_path / "t.csv").signals.shape == (2, 3000)


@pytest.mark.parametrize("sep", [";", "\t"])
def test_columns_that_commas_do_not_separate(tmp_path, sep):
    (tmp_path / "t.csv").write_text(f"a{sep}b\n0,5{sep}1,5\n")
    with pytest.raises(ValueError, match=r"t\.csv separates its columns by .*; write it with commas"):
        read_recording(tmp_path / "t.csv")


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"1" * (32 << 20), "a line of more than a million characters"),
        (b"a,b\n1," + b"1" * (32 << 20), "a line of more than a million characters"),
        (b"a,b\n" + b"1,2\n" * 100_000, "more than 200 times its size"),
        (b"a,b\n" + b"1,2\n" + b"\n" * 2000, "lines without values"),
        (b"a,b\n" + b"#\n" * 2000, "lines without values"),
        (b"a," * 100_000 + b"\n" + b"1," * 100_000, "100001 channels"),
    ],
)
def test_recordings_as_tables_without_measure(tmp_path, monkeypatch, pack, text, message):
    """A line, or text, that goes on: refused before it is unpacked."""
    if "times" in message:
        monkeypatch.setattr("anchorinv.signal.headers.ALWAYS_UNPACKED", 1 << 16)
    path = tmp_path / f"r.csv.{'xz' if pack is lzma.compress else 'gz'}"
    path.write_bytes(pack(text))
    del text
    with within(48 << 20), pytest.raises(ValueError, match=message):
        read_recording(path)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("times", ["0,0", "1,0", "nan,1", "0,1e300", "0,1e-300"])
def test_times_of_a_table_that_give_no_rate(tmp_path, times, rows):
    lines = [f"{time},{i}" for i, time in enumerate(times.split(","))][:rows]
    (tmp_path / "r.csv").write_text("time,a\n" + "\n".join(lines) + "\n")
    if rows == 1:
        recording = read_recording(tmp_path / "r.csv")
        assert recording.sfreq is None and recording.signals.shape == (1, 1)
        return
    with pytest.raises(ValueError, match=r"r\.csv.*(evenly spaced|says a rate)"):
        read_recording(tmp_path / "r.csv")


META = {
    "n_times": [0, -1, 1e300, "many", None, [4], 2**41],
    "sfreq": [0, -5, 1e300, "fast", None, float("nan")],
    "class_names": ["ab", 5, [1, 2], [None], [["a"]], {}],
    "ch_names": [[], "ab", [1, 2], {"a": 1}, ["a"] * 10_001],
    "steps": ["one", [1], {"a": 1}],
    "counts": [[1], {"a": "b"}, 5],
    "notes": [5, [[]]],
    "name": [5, ["a"]],
    "samples_blake2b": [5, []],
    "format": [2, "1.5", None, []],
}


@pytest.mark.parametrize("key", META)
def test_facts_of_a_folder_that_are_of_another_kind(tmp_path, key):
    import json

    import numpy as np

    X = np.ones((4, 2, 5))
    Dataset.from_arrays(X, ["a", "b"] * 2, sfreq=10, split=["train", "test"] * 2).write(tmp_path / "set")
    whole = json.loads((tmp_path / "set" / "meta.json").read_text())
    for value in META[key]:
        (tmp_path / "set" / "meta.json").write_text(json.dumps(whole | {key: value}))
        with pytest.raises(ValueError, match=r"set is damaged: .*; prepare it again") as error:
            Dataset.open(tmp_path / "set")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("meta.json", "[" * 100_000, "is damaged: it is not valid JSON"),
        ("meta.json", "[]", "is damaged"),
        ("index.csv", "start,label,subject,session,split\n" + "9" * 30 + ",a,0,0,train\n", "is damaged"),
        ("index.csv", "start,label,subject,session,split\n0," + "a" * 200_000, "is not a table"),
        ("index.csv", "start,label,subject,session,split\n" + "0,a,0,0,train\n" * 900, "more than 200 times"),
        ("index.csv", "start,label,subject,session,split\n0\n", "is damaged"),
    ],
)
def test_tables_of_a_folder_that_are_none(tmp_path, file, content, message):
    import numpy as np

    Dataset.from_arrays(np.ones((4, 2, 5)), ["a", "b"] * 2, sfreq=10, split=["train"] * 4).write(
        tmp_path / "set"
    )
    (tmp_path / "set" / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        Dataset.open(tmp_path / "set")
