"""A slice of the campaign: a few damaged inputs of each format; and that it counts what breaks."""

from collections import Counter

import numpy as np
import pytest

from tests.campaigns.damaged_inputs import MOST_BYTES, _count, case, tried
from tests.campaigns.formats import FORMATS
from tests.models import fitted

_LIKE = {name: form for name, form in FORMATS.items() if not name.startswith("genuine")}


@pytest.mark.parametrize("name", _LIKE)
def test_sound_and_damaged_inputs(tmp_path, name):
    form, model = FORMATS[name], fitted()
    path = form.write(tmp_path)
    reads = form.reads[:1]
    assert [tried(path, read, model)["words"] for read in reads] == [""] * len(reads)
    for number in range(5000, 5003):
        path = case(name, number, tmp_path / "case")
        for read in reads:
            found = tried(path, read, model)
            assert found["ended"] in ("read", "refused"), found["words"]
            assert found["bytes"] < MOST_BYTES and not found["noise"], found


def test_what_breaks_a_promise_is_counted(tmp_path):
    def hungry(path, model):
        np.ones(1 << 25)

    def broken(path, model):
        raise KeyError("x")

    def starved(path, model):
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("too much") from error

    assert tried(tmp_path, hungry, None)["bytes"] > 200 << 20
    assert [tried(tmp_path, read, None)["ended"] for read in (broken, starved)] == ["traceback", "memory"]
    count = Counter()
    assert _count(count, None) and count["tracebacks"] == count["above 10 s"] == 1
    assert _count(count, [tried(tmp_path, starved, None)]) and count["above 1 GB"] == 1
