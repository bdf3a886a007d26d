"""The blocks of Python in the docs run, in their order."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def run_blocks(page):
    scope = {"__name__": "__docs__"}
    for block in re.findall(
        r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL
    ):
        exec(compile(block, page, "exec"), scope)
    return scope


def test_data():
    assert run_blocks("data.md")["data"].class_names == ("fist", "rest")


def test_own_method():
    scope = run_blocks("own-method.md")
    found = {(r.method, r.trial, r.session) for r in scope["results"]}
    methods = ("protonet", "halfway", "power")
    assert found == {(m, None, 0) for m in methods} | {
        (m, t, s) for m in methods for t in (0, 1) for s in (1, 2)
    }
    assert all(r.confusion.sum() == 12 * len(r.classes) for r in scope["results"])
