"""``anchorinv events``: what it lists, and that names do no more than be read."""

import json
from functools import partial

import numpy as np
import pytest

from anchorinv.signal.events import find_events
from tests.datasets.genuine import shared
from tests.datasets.notes import edf_plus
from tests.hostile import NAMES, check_readable
from tests.recording_files import write_edf

pytest.importorskip("mne")


@pytest.fixture
def events(run):
    return partial(run, "events")


def plain(path):
    return write_edf(path, 1e-5 * np.random.default_rng(0).normal(size=(2, 256)), ["C3", "C4"], 128)


def cells(output):
    rows = [line.strip("│ ").split("│") for line in output.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


def test_genuine_recordings(events):
    first = shared("eegmmidb_sample") / "S001R04.edf"
    second = shared("mitdb_sample") / "100.hea"
    code, out, err = events(first, second)
    assert code == 0 and err == ""
    assert f"{first}: 30 events, from annotations\n" in out
    assert f"{second}: 2274 events, from 100.atr\n" in out
    assert cells(out) == [
        ["T0", "15", "0", "4.2"],
        ["T2", "7", "4.2", "4.1"],
        ["T1", "8", "12.5", "4.1"],
        ["(N", "1", "0.05", "0"],
        ["N", "2239", "0.213889", "0"],
        ["A", "33", "5.67778", "0"],
        ["V", "1", "1518.87", "0"],
    ]


def test_json(events, tmp_path):
    path = plain(tmp_path / "a_eeg.edf")
    (tmp_path / "a_events.tsv").write_text("onset\tduration\tvalue\n0.5\t1\tgo\n0.2\t0.25\tgo\n")
    code, out, _ = events("--json", path)
    row = {"event": "go", "count": 2, "first": 0.2, "shortest": 0.25, "longest": 1.0}
    assert code == 0
    assert json.loads(out) == [{"file": str(path), "from": "a_events.tsv", "count": 2, "events": [row]}]
    _, out, _ = events(path)
    assert cells(out) == [["go", "2", "0.2", "0.25-1"]]


def test_none(events, tmp_path):
    path = plain(tmp_path / "a.edf")
    code, out, err = events(path)
    assert (code, err) == (0, "")
    assert (
        out
        == f"{path} has no events: no annotations, no events.tsv beside it, nothing in a stimulus channel\n"
    )
    _, out, _ = events(path, "--json")
    assert json.loads(out) == [{"file": str(path), "from": "", "count": 0, "events": []}]


def test_mistakes_are_a_sentence(events, tmp_path):
    code, out, err = events(tmp_path / "no.edf")
    assert (code, out, err) == (1, "", f"anchorinv: there is no recording {tmp_path / 'no.edf'}\n")
    (tmp_path / "cut.edf").write_bytes(b"0")
    code, _, err = events(tmp_path / "cut.edf")
    assert code == 1 and "is cut short" in err and err.count("\n") == 1
    code, _, _ = events()
    assert code == 2


def test_names_do_no_more_than_be_read(events, tmp_path):
    labels = [name for name in NAMES if name.strip() and not set("\n\r\x85\u2028") & set(name)]
    for i, label in enumerate(labels):
        text = b"+0\x14\x14\x00+0.5\x14" + label.encode() + b"\x14\x00"
        path = edf_plus(tmp_path / f"{i}.edf", [text, b"+1\x14\x14\x00"], width=120)
        assert [event.label for event in find_events(path).events] == [label.strip()]
        for options in ([], ["--json"]):
            code, out, err = events(path, *options)
            assert code == 0 and err == ""
            check_readable(out)
    (tmp_path / "x_events.tsv").write_text(f'onset\tvalue\n1\t"{NAMES[0]}"\n', newline="")
    code, out, _ = events(plain(tmp_path / "x.edf"))
    assert code == 0 and r"left\nanchorinv" in out
    check_readable(out)


def test_many_kinds(events, tmp_path):
    path = plain(tmp_path / "a.edf")
    (tmp_path / "a_events.tsv").write_text("onset\tvalue\n" + "".join(f"1\tword {i}\n" for i in range(203)))
    _, out, _ = events(path)
    assert len(cells(out)) == 200 and out.endswith("and 3 other events; --json lists them all\n")
    (tmp_path / "a_events.tsv").write_text("onset\tvalue\n1\t" + "x" * 500)
    _, out, _ = events(path)
    assert cells(out)[0][0] == "x" * 56 + " ..."
