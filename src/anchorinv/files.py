"""Files that are whole or not there: written beside their place, and moved into it when complete."""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write a file or a folder to; it takes the place of ``path`` when the block succeeds.

    If the block fails, or the process is killed, whatever was at ``path`` is still there, untouched.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with replacing(place) as beside:
    ...     _ = beside.write_text("whole")
    >>> place.read_text()
    'whole'
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(f"{path} is a device or a pipe, no file that could be replaced; name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each writer, so that two of them cannot mix; hidden, so that nobody opens it.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield beside
        if beside.is_dir():
            for part in [*beside.rglob("*"), beside]:
                _flush(part)
            with suppress(FileNotFoundError):
                shutil.rmtree(path)
        else:
            _flush(beside)
        beside.replace(path)
        _flush(path.parent)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        was = "; the file that was there is untouched" if path.is_file() else ""
        raise OSError(f"{path} cannot be written: {error.strerror}{was}; make room and try again") from None
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        else:
            beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as readable JSON, whole or not at all."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file; a damaged one is an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is no JSON ({error})") from None


def _flush(path: Path) -> None:
    """Have the disk hold what was written, so that the move cannot overtake it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
