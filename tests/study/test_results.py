import numpy as np
import pytest

from anchorinv.core.runner import SessionResult
from anchorinv.study import results as store


def result(method="AnchorInv", trial=0, session=1, confusion=((3, 1, 0), (0, 4, 0), (2, 0, 2))):
    confusion = np.array(confusion)
    return SessionResult(method, 5, trial, session, tuple(range(len(confusion))), 2, confusion, 1.23456)


def test_a_line_holds_a_result_and_gives_it_back():
    line = store.to_line(result(trial=None, session=0))
    assert "\n" not in line
    back = store.from_line(line)
    assert (back.method, back.trial, back.session, back.n_base) == ("AnchorInv", None, 0, 2)
    assert back.classes == (0, 1, 2) and back.confusion.dtype == np.int64
    assert np.array_equal(back.confusion, result().confusion)


def test_results_are_appended_and_read_in_order(tmp_path):
    path = tmp_path / "results.jsonl"
    for trial in range(3):
        store.append(path, result(trial=trial))
    assert [r.trial for r in store.read(path)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("query", "count"),
    [({}, 4), ({"method": "a"}, 2), ({"session": 2}, 2), ({"method": "b", "session": 1}, 1)],
)
def test_select(query, count):
    some = [result(method=m, session=s) for m in ("a", "b") for s in (1, 2)]
    assert len(store.select(some, **query)) == count
