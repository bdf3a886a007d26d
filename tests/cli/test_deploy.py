"""docs/deploy.md as it stands there: every command in its order, and all Python."""

import csv
import io
import re
import shlex
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from anchorinv import cli
from anchorinv.core.registry import METHODS
from tests.models import CHANNELS, RATE
from tests.recording_files import write_edf

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
pytest.importorskip("mne")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


COMMANDS = [shlex.split(line) for line in "".join(blocks("console")).splitlines()]


def samples(n, classes, seed):
    """Windows (n, 4, 64) in microvolts, a rhythm on one channel to each class, and their labels."""
    rng = np.random.default_rng(seed)
    y = np.array(classes)[np.arange(n) % len(classes)]
    X = 10 * rng.normal(size=(n, 4, 64))
    places = {"left": (0, 6), "right": (1, 10), "tongue": (2, 20)}
    for window, label in zip(X, y, strict=True):
        channel, hertz = places[label]
        window[channel] += 30 * np.sin(2 * np.pi * (hertz * np.arange(64) / RATE + rng.uniform()))
    return X, y


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """What each command shows, and the folder in which all of them ran."""
    folder = tmp_path_factory.mktemp("bedside")
    for name, n, seed in (("base", 32, 0), ("test", 12, 1)):
        X, y = samples(n, ["left", "right"], seed)
        np.savez(folder / f"{name}.npz", X=X, y=y, sfreq=RATE, ch_names=CHANNELS)
    np.savez(folder / "afternoon.npz", X=samples(60, ["left", "right", "tongue"], 6)[0], sfreq=RATE)
    for name, seed in (("tongue", 2), ("more", 4)):
        np.save(folder / f"{name}.npy", samples(10, ["tongue"], seed)[0])
    for name, seed in (("session", 3), ("evening", 5)):
        signals = 1e-6 * np.concatenate(list(samples(20, ["left", "right"], seed)[0]), axis=1)
        write_edf(folder / f"{name}.edf", signals[[3, 0, 2, 1]], [CHANNELS[i] for i in (3, 0, 2, 1)], RATE)
    shown = {}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")  # as users have it
        patch.chdir(folder)
        patch.setattr(warnings, "formatwarning", warnings.formatwarning)
        for program, *words in COMMANDS:
            assert program == "anchorinv"
            patch.setattr(sys, "argv", ["anchorinv", *words])
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as done:
                cli.main()
            assert not done.value.code, err.getvalue()
            shown[" ".join(words)] = out.getvalue()
    return folder, shown


def shown_by(shown, start):
    return next(text for words, text in shown.items() if words.startswith(start))


def test_the_page_shows_all_commands():
    assert {words[1] for words in COMMANDS} == {
        "train",
        "info",
        "evaluate",
        "predict",
        "learn",
        "add",
        "suggest",
        "calibrate",
        "forget",
        "check",
    }


def test_the_story(story):
    folder, shown = story
    assert "Trained on 32 windows of 2 classes: left, right" in shown_by(shown, "train")
    info = shown_by(shown, "info")
    assert (
        "memory       class statistics" in info and "It contains no recording" in info and "2-40 Hz" in info
    )
    assert "12 windows: accuracy" in shown_by(shown, "evaluate")
    rows = list(csv.DictReader((folder / "session.csv").read_text().splitlines()))
    assert [float(row["time"]) for row in rows] == [0.25 * i for i in range(39)]
    for row in rows:
        assert row["class"] in ("left", "right")
        assert float(row["p_left"]) + float(row["p_right"]) == pytest.approx(1, abs=1e-5)
    day = list(csv.DictReader((folder / "day.csv").read_text().splitlines()))
    assert [row["file"] for row in day] == ["session.edf"] * 20 + ["evening.edf"] * 20
    assert [float(row["time"]) for row in day] == [0.5 * i for i in range(20)] * 2
    learned = shown_by(shown, "learn")
    assert "drawn from their statistics" in learned and "of 10 examples" in learned
    assert "Class 'tongue': 10 more examples, 20 in all" in shown_by(shown, "add")
    suggested = shown_by(shown, "suggest")
    assert "resemble each other" in suggested and "afternoon.npz: windows" in suggested
    with np.load(folder / "shots.npz") as shots:
        assert shots["X"].shape == (10, 4, 64) and shots["ch_names"].tolist() == list(CHANNELS)
    assert "knows right, tongue" in shown_by(shown, "forget")
    written = {path.name for path in folder.iterdir() if path.suffix == ".anchorinv"}
    assert written == {"hand.anchorinv", "taught.anchorinv", "theirs.anchorinv", "less.anchorinv"}


def test_the_lines_of_python(story, monkeypatch, capsys):
    folder, _ = story
    monkeypatch.chdir(folder)
    scope = {}
    for block in blocks("python"):
        exec(block, scope)
    assert scope["model"].classes_.tolist() == ["left", "right", "tongue"]
    assert (folder / "mine.anchorinv").exists()
    assert len(capsys.readouterr().out.splitlines()) == 1 + (512 - 64) // 16 + 1


def test_the_readme_shows_commands_of_this_page():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    ours = re.findall(
        r"^\.venv/bin/anchorinv ((?:train|learn|add|predict|info|evaluate|forget).*)$", readme, re.MULTILINE
    )
    assert ours and set(ours) <= {shlex.join(words[1:]) for words in COMMANDS}


def test_the_memory_kinds_of_the_security_page_are_those_of_the_code():
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| ([a-z ]+) \| ([a-z, -]+) \|", page, re.MULTILINE))
    table.pop("memory")
    assert {m: kind for kind, methods in table.items() for m in methods.split(", ")} == {
        name: spec.keeps for name, spec in METHODS.items()
    }
