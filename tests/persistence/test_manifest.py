"""Model cards: what the file says, what the author has to say, and names that are only text."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier
from anchorinv.core.registry import METHODS
from anchorinv.persistence.bundle import read_facts
from anchorinv.persistence.manifest import LIMITS, TO_FILL_IN, literal, manifest, model_card
from tests.models import again, fitted, windows
from tests.test_terminal import main


def card_of(model, folder):
    model.save(folder / "m.anchorinv", author="A. Miller", note="left arm", allow_recordings=True)
    facts = manifest(*read_facts(folder / "m.anchorinv"))
    return "\n".join(model_card({**facts, "file": str(folder / "m.anchorinv"), "bytes": 1000}))


@pytest.mark.parametrize("method", ["discriminant", "anchorinv", "real-replay"])
def test_it_says_what_the_file_says(method, tmp_path):
    model = again(fitted(method))
    page = card_of(model, tmp_path)
    assert page.startswith("# Model card: m.anchorinv\n") and literal(METHODS[method].citation) in page
    assert re.search(r"\| left \| base \| 12 \|", page) and re.search(
        r"\| tongue \| taught later \| 10 \|", page
    )
    assert f"`{model.history_[0]['fingerprint']}`" in page and "0.5 s at 128 Hz" in page
    assert "by A. Miller" in page and "note: left arm" in page
    assert all(f"**{what}**: *to be filled in" in page for what in TO_FILL_IN) and all(
        each in page for each in LIMITS
    )
    assert ("IT CONTAINS REAL RECORDINGS" in page) == (method == "real-replay")
    measured = page.partition("## Scores at training")[2].partition("##")[0]
    assert ("macro-F1" in measured) == (method == "discriminant"), "a loss at the end is no score"


def test_names_are_only_text(tmp_path):
    odd = ("![x](http://e)", "<script>|$1$", "# `code` *b* \\")
    bundle = replace(fitted("discriminant").to_bundle(), classes=odd, ch_names=None, preprocessing=None)
    page = card_of(AnchorInvClassifier.from_bundle(bundle), tmp_path)
    for name in odd:
        assert literal(name) in page and name not in page
    bare = re.sub(r"\\.", "", page)  # what is escaped does nothing
    assert not re.search(r"<|\$|!\[|\]\(", bare)
    rows = [line for line in bare.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {8}


def test_the_command(tmp_path):
    model, card = tmp_path / "m.anchorinv", tmp_path / "card.md"
    again(fitted("discriminant")).save(model)
    shown, _ = main("info", model, "--card")
    assert shown.startswith("# Model card: m.anchorinv")
    main("info", "--card", model, "-o", card)
    assert card.read_text("utf-8") == shown
    assert "exists; name another file" in main("info", "--card", model, "-o", card, expect=1)[1]
    assert card.read_text("utf-8") == shown
    assert "needs --card" in main("info", model, "-o", tmp_path / "x.md", expect=1)[1]
    assert "leave one of them out" in main("info", model, "--card", "--json", expect=1)[1]
    facts = json.loads(main("info", model, "--json")[0])
    assert facts["sessions"][0]["origin"]["fingerprint"] and facts["base_classes"] == ["left", "right"]


def test_commands_keep_who_and_what(tmp_path):
    X, y = windows(24)
    np.savez(tmp_path / "x.npz", X=X, y=y, sfreq=128.0)
    np.savez(tmp_path / "new.npz", X=windows(6, classes=("tongue",))[0], y=["tongue"] * 6, sfreq=128.0)
    made, taught = tmp_path / "m", tmp_path / "n"
    said = main("train", tmp_path / "x.npz", "-o", made, "--note", "a\nb", expect=1)[1]
    assert "note must be text" in said and not made.exists()
    main("train", tmp_path / "x.npz", "-q", "-o", made, "--note", "left arm", "--author", "A. Miller")
    main("learn", made, tmp_path / "new.npz", "-q", "-o", taught, "--author", "B. Clinic")
    main("add", taught, tmp_path / "x.npz", "-q", "-o", taught, "--note", "again")
    lines = [(line.get("author"), line.get("note")) for line in AnchorInvClassifier.load(taught).history_]
    assert lines == [("A. Miller", "left arm"), ("B. Clinic", None), (None, "again")]
