import csv
import io
import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anchorinv
from anchorinv.errors import as_json, csv_line, pip_install, shown
from tests.hostile import NAMES, ORDINARY, check_readable, names

anything = names | st.text() | st.characters(categories=["Cs"])


@given(anything)
def test_whatever_is_shown_is_one_printable_line_that_utf_8_can_hold(text):
    assert shown(text).isprintable() and shown(text).encode().decode() == shown(text)
    assert shown(shown(text)) == shown(text)


@pytest.mark.parametrize("name", [*ORDINARY, "C:\\data\\new", "50 % ± 3", ""])
def test_ordinary_text_stays(name):
    assert shown(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\r\t", r"a\nb\r\t"),
        ("\x9b\x7f", r"\x9b\x7f"),
        ("\u202e\ufeff", r"\u202e\ufeff"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("\u3164", r"\u3164"),
    ],
)
def test_what_cannot_be_seen_is_escaped(name, said):
    assert shown(name) == said


@given(st.dictionaries(anything, anything | st.floats(allow_nan=False) | st.none(), max_size=3))
def test_json_says_the_same(value):
    check_readable(as_json(value))
    assert json.loads(as_json(value)) == value


@given(st.lists(anything | st.integers() | st.floats(allow_nan=False), min_size=2, max_size=4))
def test_a_row_is_read_as_text_and_numbers_and_never_computed(cells):
    line = csv_line(cells)
    check_readable(line[:-1])
    (row,) = csv.reader(io.StringIO(line))
    for cell, got in zip(cells, row, strict=True):
        if isinstance(cell, str):
            assert got.removeprefix("'") == shown(cell).removeprefix("'")
            assert not got.lstrip().startswith(("=", "@"))
            assert not got.startswith(("+", "-")) or float(got) is not None
        else:
            assert type(cell)(got) == cell


@pytest.mark.parametrize("name", [name for name in NAMES if name[0] in "=+-@"])
def test_formulas_get_an_apostrophe(name):
    (row,) = csv.reader(io.StringIO(csv_line([name, -0.5, "+1.20", -math.inf])))
    assert row == [f"'{name}", "-0.5", "+1.20", "-inf"]


def test_a_semicolon_ends_no_cell():
    assert csv_line(["a;=1+1"]) == '"a;=1+1"\n'


class TestAdviceToInstall:
    def test_it_is_for_this_interpreter(self, monkeypatch, tmp_path):
        monkeypatch.setattr(sys, "executable", "/opt/py 3/bin/python")
        assert pip_install("anchorinv[live]") == "'/opt/py 3/bin/python' -m pip install 'anchorinv[live]'"
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "executable", str(Path.cwd() / ".venv/bin/python"))
        assert pip_install("braindecode==1.2") == ".venv/bin/python -m pip install braindecode==1.2"

    def test_it_is_written_in_one_place(self):
        sources = Path(anchorinv.__file__).parent
        found = [path.name for path in sources.rglob("*.py") if "pip install" in path.read_text("utf-8")]
        assert found == ["errors.py"]
