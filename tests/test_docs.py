"""The blocks of Python in the docs run, in their order."""

import re
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from anchorinv.core.blocks import BLOCKS
from anchorinv.core.heads import HEADS
from anchorinv.core.registry import METHODS
from anchorinv.study.loading import load
from tests.models import windows

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(autouse=True)
def _methods_as_they_were():
    """Take off what a page has registered."""
    registries = (METHODS, HEADS, BLOCKS)
    before = [set(registry) for registry in registries]
    yield
    for registry, names in zip(registries, before, strict=True):
        for name in set(registry) - names:
            registry.unregister(name)


def run_blocks(page, **given):
    scope = {"__name__": "__docs__", **given}
    text = (DOCS / page).read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(dedent(block), page, "exec"), scope)
    return scope


def test_data():
    assert run_blocks("data.md")["data"].class_names == ("fist", "rest")


def test_moabb(tmp_path, monkeypatch):
    pytest.importorskip("moabb", reason="the extra moabb is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_MNE_FAKE_HOME_DIR", str(tmp_path))
    scope = run_blocks("moabb.md")
    assert len(scope["scores"]) == 6 and scope["taught"].classes_.tolist() == [0, 1, 2]
    (config,) = re.findall(r"```toml\n(.*?)```", (DOCS / "moabb.md").read_text("utf-8"), flags=re.DOTALL)
    (tmp_path / "mine.toml").write_text(config, encoding="utf-8")
    (study,) = load("mine.toml").variants.values()
    assert study.protocol.sessions == ("feet", "rest")


@pytest.mark.filterwarnings("ignore:Parameter 'final_layer")  # of EEGNet's own
def test_backbones(tmp_path, monkeypatch):
    pytest.importorskip("torchinfo", reason="the extra braindecode is not installed")
    monkeypatch.chdir(tmp_path)
    signals, labels = windows(30, classes=("left", "right", "feet"))
    scope = run_blocks("backbones.md", signals=np.tile(signals, 4), labels=labels)
    assert scope["model"].backbone is scope["make"] and (tmp_path / "mine.anchorinv").exists()
    assert type(scope["network"]).__name__ == "EEGNet"


def test_privacy():
    assert run_blocks("privacy.md")["found"].figures[0].measure == "AUROC"


def test_own_method():
    results = run_blocks("own-method.md")["results"]
    methods = ("protonet", "halfway", "power")
    assert {(r.method, r.trial, r.session) for r in results} == {(m, None, 0) for m in methods} | {
        (m, t, s) for m in methods for t in (0, 1) for s in (1, 2)
    }
    assert all(r.confusion.sum() == 12 * len(r.classes) for r in results)
