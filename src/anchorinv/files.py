"""Files that are whole or not there: written beside their place, and moved into it when complete.

JSON, tensors with plain facts (safetensors), and hashes by which damage or a change is noticed.
"""

import errno
import fcntl
import hashlib
import json
import os
import platform
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import SEEK_END
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
#: Which machine wrote half a file: nobody here knows whether another machine is still at its own.
HERE = hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()
#: Bytes of a JSON file at the most: in memory it takes some twenty times as much.
MOST_JSON = 1 << 25
#: Samples of more bytes (1 GiB) are hashed in blocks when a run starts, so that it starts within seconds.
LARGE = 1 << 30
_N_BLOCKS, _BLOCK = 256, 1 << 18  # 64 MiB in all
_CHUNK = 1 << 22


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write a file or a folder to; it takes the place of ``path`` when the block succeeds.

    It is hidden, and beside ``path``. If the block fails, or the process is killed, whatever was at ``path``
    is still there, untouched.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with replacing(place) as beside:
    ...     _ = beside.write_text("whole")
    >>> place.read_text()
    'whole'
    """
    if _is_device(path):
        raise OSError(f"{path} is a device or a pipe, no file that could be replaced; name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path)
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


def check_writable(path: Path, *, such_as: str) -> None:
    """Refuse a place where :func:`replacing` could not write a file, by trying; nothing is left there.

    ``such_as`` is a name for a file, to suggest to someone who gave a folder.
    """
    try:
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name a file in it, such as {path / such_as}")
        if _is_device(path):
            raise ValueError(f"{path} is a device or a pipe, no file that could be replaced; name a file")
        # Folders on the way are made later. What may be written to is known to nobody but the system.
        nearest = next(folder for folder in path.absolute().parents if folder.exists())
        if not nearest.is_dir():
            raise ValueError(f"{path} cannot be written: {nearest} is no folder; name a file in one")
        trial = _beside(nearest / path.name)
        trial.touch()
        trial.unlink()
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(f"{path} cannot be written: {why}; name a file in a folder of yours") from None


def _is_device(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def _beside(path: Path) -> Path:
    # A name of its own for each writer, so that two of them cannot mix; hidden, so that nobody opens it.
    return path.with_name(f".{path.name}.{HERE}.{secrets.token_hex(4)}.part")


def write_json(path: Path, value: Any) -> None:
    """Write a value as readable JSON, whole or not at all."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file; a damaged one is an error that names it."""
    check_regular(path)
    with path.open("rb") as file:
        return parsed_json(file.read(MOST_JSON + 1), path)


def parsed_json(text: bytes, path: Path) -> Any:
    """Return the value of JSON that was read from a file; a damaged one is an error that names it."""
    if len(text) > MOST_JSON:
        raise ValueError(f"{path} is damaged: its JSON has over {MOST_JSON >> 20} MiB")
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is no JSON ({error})") from None


def check_regular(path: Path) -> None:
    """Refuse a pipe or a device, which would be read for ever, and a folder."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file but a folder, a device or a pipe; move it away")


def append_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Add to a file and have the disk hold it: all of it, or, where there is no room, nothing."""
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):  # a full disk has taken a part of the last piece
                file.truncate(before)
            raise


def half_written(folder: Path, *names: str) -> list[Path]:
    """Return what :func:`replacing` left in a folder when killed, of files with such names (``*`` any)."""
    return [path for name in names for path in folder.glob(f".{name}.*.part") if path.is_file()]


@contextmanager
def in_use(folder: Path, *names: str) -> Iterator[None]:
    """Mark a folder as in use inside the block; the first to do so removes half-written files of these names.

    They would stay for ever otherwise. Several processes may share the folder: only what this machine wrote
    is removed, and only while no other process uses the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Where a file system cannot lock folders nothing is removed.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in half_written(folder, *names):
                path.unlink()
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", facts: Mapping[str, Any]) -> None:
    """Write tensors and plain JSON values to one file, whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    text = json.dumps(facts)
    with replacing(path) as beside:
        try:
            save_file(dict(tensors), beside, metadata={"facts": text, "digest": _digest(tensors, text)})
        except SafetensorError as error:  # its word for whatever the system said
            raise OSError(errno.ENOSPC, str(error)) from None


def read_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Return what :func:`write_tensors` wrote; a damaged file is an error that names it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies, so that they lie in memory as those that were made here: sums are then the same bits.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        text = metadata["facts"]
        if metadata["digest"] != _digest(tensors, text):
            raise ValueError("its content is not what was written")
        return tensors, json.loads(text)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None


def _digest(tensors: "Mapping[str, Tensor]", facts: str) -> str:
    import torch

    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.view(torch.uint8).numpy().data if tensor.dim() else tensor.numpy().tobytes())
    return digest.hexdigest()


def samples_hash(path: Path, *, in_blocks: bool = False) -> str:
    """Return the hash of the values of an ``.npy`` file, or of its size and evenly spaced blocks of them."""
    import numpy as np

    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:  # not mapped: pages that are read would count as memory
        first = np.load(path, mmap_mode="r", allow_pickle=False).offset
        size = file.seek(0, SEEK_END) - first
        if in_blocks:
            digest.update(str(size).encode())
            for i in range(_N_BLOCKS):
                file.seek(first + i * max(size - _BLOCK, 0) // (_N_BLOCKS - 1))
                digest.update(file.read(_BLOCK))
            return digest.hexdigest()
        file.seek(first)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    """Have the disk hold what was written, so that the move cannot overtake it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
