"""Files are whole or not there, whatever happens while they are written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anchorinv.files import read_json, replacing, write_json


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_its_place_when_the_block_ends(tmp_path):
    place = tmp_path / "deep" / "file"
    with replacing(place) as beside:
        beside.write_text("new")
        assert not place.exists()
    assert place.read_text() == "new" and listing(place.parent) == ["file"]


@pytest.mark.parametrize("folder", [False, True])
def test_a_failure_leaves_what_was_there(tmp_path, folder):
    place = tmp_path / "file"
    place.write_text("old")
    with pytest.raises(RuntimeError, match="half-way"), replacing(place) as beside:
        if folder:
            beside.mkdir()
            beside = beside / "inside"
        beside.write_text("half")
        raise RuntimeError("half-way")
    assert place.read_text() == "old" and listing(tmp_path) == ["file"]


def test_a_folder_replaces_a_folder(tmp_path):
    for content in ("one", "two"):
        with replacing(tmp_path / "folder") as beside:
            beside.mkdir()
            (beside / content).write_text(content)
    assert listing(tmp_path) == ["folder"] and listing(tmp_path / "folder") == ["two"]


def test_a_killed_writer_leaves_what_was_there(tmp_path):
    place = tmp_path / "file"
    place.write_text("old")
    killed = (
        "import os, signal, sys; from pathlib import Path; from anchorinv.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as beside:\n"
        "    beside.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", killed, str(place)], check=False).returncode == -9
    assert place.read_text() == "old"


def test_json_comes_back_and_damaged_json_is_named(tmp_path):
    write_json(tmp_path / "a.json", {"µ": [1, None]})
    assert read_json(tmp_path / "a.json") == {"µ": [1, None]}
    (tmp_path / "a.json").write_text('{"µ": [1')
    with pytest.raises(ValueError, match=r"a\.json is damaged"):
        read_json(tmp_path / "a.json")


def test_a_pipe_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a device or a pipe"), replacing(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()
