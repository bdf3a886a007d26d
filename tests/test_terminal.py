"""Whatever a name tries, commands show it as text: no control, no markup, no line of its own."""

import io
import json
import logging
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table

from anchorinv import AnchorInvClassifier, cli
from anchorinv.datasets.dataset import Dataset
from anchorinv.errors import Problems, _seen, check_name, shown
from anchorinv.progress import tick
from anchorinv.terminal import Terminal, logging_to, progress_bars
from tests.hostile import NAMES, ORDINARY, SENTENCE, check_readable, names
from tests.models import RATE, fitted, windows

few = settings(max_examples=6)
three = st.lists(names, min_size=3, max_size=3, unique_by=lambda name: name.strip("\0"))


def main(*words, expect=0):
    """Run a command as the console script does; return both outputs, which are fit to be read."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["anchorinv", *map(str, words)]),
        mock.patch.object(warnings, "formatwarning"),
        mock.patch.dict("os.environ", COLUMNS="200"),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as done,
    ):
        cli.main()
    check_readable(out.getvalue())
    check_readable(err.getvalue())
    assert "Traceback" not in err.getvalue()
    assert int(done.value.code or 0) == expect, err.getvalue()
    return out.getvalue(), err.getvalue()


def prepared(folder, classes, **meta):
    """A prepared folder whose classes, channels, subjects and facts have these names."""
    X, _ = windows(12)
    split = ["train"] * 6 + ["test"] * 6
    names = np.array(classes, dtype=object)[np.arange(12) % len(classes)].astype(str)
    subjects = np.where(np.arange(12) < 6, classes[0], classes[1])
    channels = tuple(f"{i}{name}" for i, name in enumerate([*classes, "C3"][:4]))
    about = {"name": classes[0], "notes": list(classes), "origin": classes[1], **meta}
    made = Dataset.from_arrays(
        X, names, sfreq=RATE, split=split, subjects=subjects, ch_names=channels, **about
    )
    made.write(folder)
    return folder


def named(name, said):
    """Whether a sentence names a class, as it is shown or as Python quotes it."""
    return shown(name) in said or repr(name) in said


def allowed(name):
    """Whether a model may have a class of this name: control characters are refused."""
    try:
        return check_name(name).strip()
    except ValueError:
        return False


class TestModels:
    @few
    @given(st.lists(names.filter(allowed), min_size=3, max_size=3, unique_by=_seen))
    def test_every_command_on_a_model_file(self, tmp_path_factory, classes):
        path = tmp_path_factory.mktemp("hostile")
        model = path / "m.anchorinv"
        bundle = fitted().to_bundle()
        channels = tuple(f"{i}{name}" for i, name in enumerate([*classes, "C3"]))
        renamed = replace(bundle, classes=tuple(classes), ch_names=channels, preprocessing=None)
        AnchorInvClassifier.from_bundle(renamed).save(model)
        X, _ = windows(6)
        np.savez(path / "x.npz", X=X, y=np.array([*classes, "feet\u202e"] * 2)[:6])
        said, _ = main("info", model)
        assert all(shown(name) in said for name in classes)
        assert json.loads(main("info", model, "--json")[0])["classes"] == classes
        said, _ = main("evaluate", model, path / "x.npz")
        assert all(shown(name) in said for name in classes) and r"feet\u202e" in said
        main("evaluate", model, path / "x.npz", "--json")
        said, _ = main("predict", model, path / "x.npz")
        assert said.count("\n") == 7
        assert named(classes[0], main("learn", model, path / "x.npz", "-o", path / "n", expect=1)[1])
        np.save(path / "x.npy", X)
        said, _ = main("learn", model, path / "x.npy", "--label", "feet\u202e", "-o", path / "n")
        assert all(shown(name) in said for name in [*classes, "feet\u202e"])
        said, _ = main("forget", "-o", path / "f", "--", model, classes[0])
        assert shown(classes[1]) in said
        assert repr(classes[0]) in main("info", path / "f")[0]
        np.savez(path / "odd.npz", X=X, y=["\x1b]0;"] * 6)
        assert named(classes[2], main("evaluate", model, path / "odd.npz", expect=1)[1])

    def test_training(self, tmp_path):
        X, y = windows()
        few = ("--epochs", 1, "--inversion-steps", 0, "-q", "--overwrite", "-o", tmp_path / "m")
        np.savez(tmp_path / "x.npz", X=X, y=np.where(y == "left", NAMES[5], NAMES[6]), sfreq=RATE)
        said, _ = main("train", tmp_path / "x.npz", *few)
        assert shown(NAMES[5]) in said and shown(NAMES[6]) in said
        np.savez(tmp_path / "x.npz", X=X, y=np.where(y == "left", NAMES[0], NAMES[6]), sfreq=RATE)
        _, said = main("train", tmp_path / "x.npz", *few, expect=1)
        assert r"left\nanchorinv" in said and "invisible character" in said


class TestData:
    @few
    @given(three)
    def test_prepared_folders(self, tmp_path_factory, classes):
        folder = prepared(tmp_path_factory.mktemp("hostile") / "set", classes)
        said, _ = main("data", folder, "--no-picture", "--by-subject")
        assert all(shown(name).strip() in said for name in classes)

    def test_a_picture_is_drawn(self, tmp_path):
        folder = prepared(tmp_path / "set", NAMES[3:10])
        for ending in ("svg", "png"):
            main("data", folder, "--picture", tmp_path / f"p.{ending}")
        svg = (tmp_path / "p.svg").read_text()
        check_readable(svg)

    def test_preparing(self, tmp_path):
        X, _ = windows(24)
        np.savez(tmp_path / "x.npz", X=X, y=np.array([*NAMES[:4]] * 6), sfreq=RATE)
        said, _ = main(
            "prepare", "own", "--npz", tmp_path / "x.npz", "--at-least", 1, "--out", tmp_path / "set"
        )
        assert all(shown(name) in said for name in NAMES[:4])
        opened = Dataset.open(tmp_path / "set")
        assert sorted(opened.class_names) == sorted(NAMES[:4]), "what we read back is as it was"

    @pytest.mark.parametrize("name", NAMES[:6])
    def test_a_file_that_is_not_there(self, tmp_path, name):
        for words in (("data", "--no-picture"), ("info",), ("status",), ("run",)):
            _, said = main(*words, tmp_path / name, expect=1)
            assert said.startswith("anchorinv: ") and said.count("\n") == 1
        main(f"--{name}", expect=2)
        main(f"x{name}", expect=2)
        main("run", "bci2a", "--scale", name, expect=2)

    def test_problems_keep_their_own_lines(self, tmp_path):
        error = Problems(f"a\n{SENTENCE}", [f"b\n{SENTENCE}", "c"], "mend them")
        with mock.patch.object(cli, "app", side_effect=error):
            _, said = main(expect=1)
        assert said.splitlines() == [
            rf"anchorinv: a\n{SENTENCE}: 2 problems", rf"  - b\n{SENTENCE}", "  - c", "mend them"
        ]  # fmt: skip

    def test_warnings_are_a_line(self):
        warning = cli._plain_warning(f"x\n{SENTENCE}\x1b", UserWarning, "f", 1)
        assert warning == f"anchorinv: warning: x {SENTENCE}\\x1b\n"


class TestTerminal:
    @given(names)
    def test_strings_and_cells_are_plain_text(self, name):
        for forced in (False, True):
            file = io.StringIO()
            terminal = Terminal(file=file, force_terminal=forced, width=200)
            terminal.say(name)
            terminal.say(name, style="bold")
            table = Table(name, "b", title=name, caption=name)
            table.add_row(name, name)
            terminal.print(table)
            check_readable(file.getvalue())
            assert file.getvalue().count(shown(name).strip()) >= 7

    @pytest.mark.parametrize("name", ORDINARY)
    def test_ordinary_names_stay(self, name):
        file = io.StringIO()
        Terminal(file=file).say(name)
        assert file.getvalue() == f"{name}\n"

    def test_our_styles_are_styles(self):
        file = io.StringIO()
        Terminal(file=file, force_terminal=True, color_system="standard").say("x", style="bold red")
        assert file.getvalue() == "\x1b[1;31mx\x1b[0m\n"

    @given(names)
    def test_bars(self, name):
        for forced in (False, True):
            file = io.StringIO()
            with progress_bars(Terminal(file=file, force_terminal=forced, width=200, color_system=None)):
                tick(f"]{name}\x1b]0;", 1, 2, note=name)
                tick(f"]{name}\x1b]0;", 2, 2)
            ours = ("\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[1A", "\r")
            text = file.getvalue()
            for each in ours if forced else ():
                text = text.replace(each, "")
            check_readable(text)
            assert shown(f"]{name}\x1b]0;") in text

    @given(names)
    def test_logs(self, tmp_path_factory, name):
        path, file = tmp_path_factory.mktemp("logs") / "run.log", io.StringIO()
        with logging_to(path, "info", Terminal(file=file)):
            logging.getLogger("anchorinv").info("finished %s", name)
        for text in (path.read_text(encoding="utf-8"), file.getvalue()):
            check_readable(text)
            assert shown(name) in text and text.count("\n") == 1

    def test_letters_that_a_terminal_does_not_know(self, tmp_path):
        raw = io.BytesIO()
        plain = io.TextIOWrapper(raw, encoding="ascii")
        folder = prepared(tmp_path / "set", ORDINARY[:3])
        with (
            mock.patch.object(sys, "argv", ["anchorinv", "data", str(folder), "--no-picture"]),
            mock.patch.object(warnings, "formatwarning"),
            redirect_stdout(plain),
            pytest.raises(SystemExit) as done,
        ):
            cli.main()
        plain.flush()
        assert not done.value.code and rb"H\xe4ndedruck" in raw.getvalue()
