"""Tables without measure: columns, cells, lines and rows beyond what a table has."""

import gzip
import lzma

import pytest

from anchorinv.data.dataset import Dataset
from anchorinv.data.manifest import read_manifest
from anchorinv.signal.tables import read_table
from tests.reading_whole import read_recording
from tests.signal.test_headers import within


def test_wanted_columns_come_by_name(tmp_path):
    (tmp_path / "t.csv").write_text("\ufeffA , b,C\n1,2,3\n\n4\n'5',\"6\n7\",8,9\n", encoding="utf-8")
    table = read_table(tmp_path / "t.csv", ("a", "b", "d"))
    assert table.names == ("a", "b", "c") and table.lines == [2, 4, 6]
    assert table.columns == {"a": ["1", "4", "'5'"], "b": ["2", "", "6\n7"]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("path,label\n" + "x" * 200_000 + ",a\n", "is no table .*field limit.*line 2"),
        ('path,label\n"' + "x,a\n" * 50_000, "is no table .*; is a quote left open"),
        ("path,label," + "c," * 1_000_000 + "\n", "more than 1000 columns"),
        ("path;label;" + "c;" * 1_000_000 + "\n", "more than 1000 columns"),
        ("path,label\n" + "x" * 5_000 + ".edf,a\n", "line 2: x.* is not there"),
        ("path,label\na\0b.edf,a\n", "line 2: .* is not there"),
        ("path,label,start\na.npy,a,1e308\n", "start lies at 0 or later and before stop"),
        ("path,label,stop\na.npy,a,inf\n", "start lies at 0 or later and before stop"),
        ("path,label,start,stop\na.npy,a,nan,nan\n", "start lies at 0 or later and before stop"),
    ],
)
def test_manifests_without_measure(tmp_path, text, told):
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "a.npy").touch()
    with within(), pytest.raises(ValueError, match=told):
        _, problems = read_manifest(tmp_path / "t.csv")
        raise ValueError("\n".join(problems))


def test_a_table_of_a_million_rows_is_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr("anchorinv.signal.tables.ROWS", 3)
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 3)
    assert len(read_table(tmp_path / "t.csv", ("a",)).lines) == 3
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 4)
    with pytest.raises(ValueError, match="more than a million rows"):
        read_table(tmp_path / "t.csv", ("a",))
    monkeypatch.setattr("anchorinv.signal.limits.TEXT", 5)
    with pytest.raises(ValueError, match=r"t\.csv has 10 bytes, and at most"):
        read_table(tmp_path / "t.csv", ("a",))


def test_a_table_with_an_empty_line_after_each_row_is_read(tmp_path):
    """As Python writes them on Windows, where nobody tells it otherwise."""
    (tmp_path / "t.csv").write_text("a,b\n" + "1,2\n\n" * 3000)
    assert read_recording(tmp_path / "t.csv").signals.shape == (2, 3000)


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"1" * (32 << 20), "a line of more than a million characters"),
        (b"a,b\n1," + b"1" * (32 << 20), "a line of more than a million characters"),
        (b"a,b\n" + b"1,2\n" * 100_000, "more than 200 times its size"),
        (b"a,b\n" + b"1,2\n" + b"\n" * 2000, "lines without values"),
        (b"a,b\n" + b"#\n" * 2000, "lines without values"),
        (b"a," * 100_000 + b"\n" + b"1," * 100_000, "100001 channels"),
    ],
)
def test_recordings_as_tables_without_measure(tmp_path, monkeypatch, pack, text, told):
    """A line, or text, that goes on: refused before it is unpacked."""
    if "times" in told:
        monkeypatch.setattr("anchorinv.signal.limits.SMALL", 1 << 16)
    path = tmp_path / f"r.csv.{'xz' if pack is lzma.compress else 'gz'}"
    path.write_bytes(pack(text))
    del text
    with within(48 << 20), pytest.raises(ValueError, match=told):
        read_recording(path)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("times", ["0,0", "1,0", "nan,1", "0,1e300", "0,1e-300"])
def test_times_of_a_table_that_give_no_rate(tmp_path, times, rows):
    lines = [f"{time},{i}" for i, time in enumerate(times.split(","))][:rows]
    (tmp_path / "r.csv").write_text("time,a\n" + "\n".join(lines) + "\n")
    if rows == 1:
        found = read_recording(tmp_path / "r.csv")
        assert found.sfreq is None and found.signals.shape == (1, 1)
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
    ("file", "content", "told"),
    [
        ("meta.json", "[" * 100_000, "is damaged: it is no JSON"),
        ("meta.json", "[]", "is damaged"),
        ("index.csv", "start,label,subject,session,split\n" + "9" * 30 + ",a,0,0,train\n", "is damaged"),
        ("index.csv", "start,label,subject,session,split\n0," + "a" * 200_000, "is no table"),
        ("index.csv", "start,label,subject,session,split\n" + "0,a,0,0,train\n" * 900, "more than 200 times"),
        ("index.csv", "start,label,subject,session,split\n0\n", "is damaged"),
    ],
)
def test_tables_of_a_folder_that_are_none(tmp_path, file, content, told):
    import numpy as np

    Dataset.from_arrays(np.ones((4, 2, 5)), ["a", "b"] * 2, sfreq=10, split=["train"] * 4).write(
        tmp_path / "set"
    )
    (tmp_path / "set" / file).write_text(content)
    with pytest.raises(ValueError, match=told):
        Dataset.open(tmp_path / "set")
