"""How far things are: a line now and then where there is no terminal, bars without widgets in a notebook."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given

from anchorinv.errors import shown
from anchorinv.progress import has_listener, tell, tick
from anchorinv.terminal import Terminal, progress_bars
from tests.hostile import check_readable, names


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def logged(*script):
    """Return the lines that ticks, each so many seconds after the last one, leave in a log."""
    file, clock = io.StringIO(), Clock()
    with progress_bars(Terminal(file=file, width=200), clock=clock):
        for seconds, *arguments in script:
            clock.now += seconds
            tick(*arguments)
    check_readable(file.getvalue())
    return file.getvalue().splitlines()


class TestLines:
    def test_short_tasks_are_named_once_when_they_are_done(self):
        assert logged(*[(0.1, "features", i % 3, 2) for i in range(9)]) == ["features: done"]

    def test_long_ones_after_two_seconds_and_every_ten(self):
        lines = logged(*[(1, "base training", i, 30, 0.5) for i in range(31)])
        assert lines == [
            "base training: 1 of 30, loss 0.500, about 29 s left at this pace",
            "base training: 11 of 30, loss 0.500, about 19 s left at this pace",
            "base training: 21 of 30, loss 0.500, about 9 s left at this pace",
            "base training: done, loss 0.500",
        ]

    def test_what_was_done_before_says_nothing_of_the_pace(self):
        (line,) = logged((3, "whole study", 90, 100))
        assert line == "whole study: 90 of 100"
        assert logged((0, "whole study", 90, 100), (60, "whole study", 91, 100)) == [
            "whole study: 91 of 100, about 9 min left at this pace"
        ]

    def test_the_whole_comes_before_its_part(self):
        lines = logged((0, "whole study", 0, 4), (1, "inverting", 10, 20), (2, "inverting", 15, 20))
        assert lines == ["whole study: 0 of 4; inverting: 15 of 20, about 2 s left at this pace"]

    def test_many_at_once_are_a_line_all_the_same(self):
        script = [(0.01, f"worker {i % 8}", i // 8, 1000) for i in range(4000)]
        assert len(logged(*script)) == 4

    def test_sentences_are_said_at_once(self):
        file = io.StringIO()
        assert not has_listener()
        tell("nobody hears this")
        with progress_bars(Terminal(file=file)):
            assert has_listener()
            tell("about 3 min")
        assert file.getvalue() == "about 3 min\n"


@pytest.fixture
def notebook(monkeypatch):
    """What IPython would show, look by look."""
    looks = []
    handle = SimpleNamespace(update=lambda look, raw: looks.append(look))

    def display(look, *, raw, display_id):
        assert raw and display_id
        looks.append(look)
        return handle

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return looks


class TestNotebook:
    def test_bars_move_and_go(self, notebook):
        clock, file = Clock(), io.StringIO()
        with progress_bars(Terminal(force_jupyter=True, file=file), clock=clock):
            tell("about 3 min")
            for i in range(101):
                clock.now += 0.1
                tick("base training", i, 100, 0.25)
        assert 20 < len(notebook) < 45, "not at every step"
        values = [int(v) for look in notebook for v in re.findall(r'value="(\d+)"', look["text/html"])]
        assert values == sorted(values) and values[-1] > 90
        assert "left at this pace" in notebook[-2]["text/html"]
        assert notebook[-1] == {"text/plain": "about 3 min", "text/html": "<div>about 3 min</div>"}
        assert file.getvalue() == ""

    def test_an_error_leaves_no_bar(self, notebook):
        with pytest.raises(KeyboardInterrupt), progress_bars(Terminal(force_jupyter=True)):
            tick("base training", 1, 2)
            raise KeyboardInterrupt
        assert notebook[-1]["text/html"] == ""

    def test_without_ipython_there_are_lines(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "IPython.display", None)
        file = io.StringIO()
        with progress_bars(Terminal(force_jupyter=True, force_terminal=False, file=file)):
            assert has_listener()


@given(names)
def test_names_are_text_in_notebooks(name):
    looks = []
    with pytest.MonkeyPatch.context() as patch:
        handle = SimpleNamespace(update=lambda look, raw: looks.append(look))
        shows = SimpleNamespace(display=lambda look, raw, display_id: handle)
        patch.setitem(sys.modules, "IPython.display", shows)
        with progress_bars(Terminal(force_jupyter=True), clock=Clock()):
            tick(name, 1, 2)
    tags = re.sub(r'</?div>|<progress value="1" max="2"></progress>', "", looks[0]["text/html"])
    assert "<" not in tags and shown(name) in looks[0]["text/plain"]
