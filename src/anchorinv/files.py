"""Atomic files: written to a temporary name, and renamed when complete.

JSON, tensors with metadata (safetensors), and hashes that detect damage or changes.
"""

import errno
import fcntl
import hashlib
import json
import os
import platform
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from io import SEEK_END
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
#: The machine that wrote a partial file: another machine may still be writing its own.
HERE = hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()
#: Maximum size of a JSON file in bytes; in memory it takes about twenty times as much.
MOST_JSON = 1 << 25
#: Samples of more bytes (1 GiB) are hashed in blocks when a run starts, so that it starts within seconds.
LARGE = 1 << 30
_N_BLOCKS, _BLOCK = 256, 1 << 18  # 64 MiB in all
_CHUNK = 1 << 22
#: Maximum number of files beside a missing one whose names are compared with it.
_NEIGHBOURS = 1000


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` when the block succeeds.

    It is a hidden file or folder next to ``path``. If the block fails, or the process is killed, ``path`` is
    untouched.
    """
    if _is_device(path):
        raise OSError(f"{path} is a device or a pipe, not a file; name a file")
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
        was = "; the existing file is untouched" if path.is_file() else ""
        raise OSError(
            f"{path} cannot be written: {error.strerror}{was}; free some space and try again"
        ) from None
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        else:
            beside.unlink(missing_ok=True)


def missing(path: Path, kind: str = "") -> FileNotFoundError:
    """Return the error about an input that is not there; the name of a similar file is suggested.

    ``kind`` is what the sentence calls it, such as "model file".
    """
    near: list[str] = []
    with suppress(OSError):
        names = [entry.name for entry in islice(path.parent.iterdir(), _NEIGHBOURS)]
        near = get_close_matches(path.name, [name for name in names if name[0] != "."], n=1, cutoff=0.7)
    hint = f"; did you mean {path.with_name(near[0])}?" if near else ""
    return FileNotFoundError(f"there is no {kind}{' ' if kind else ''}{path}{hint}")


def check_model_path(path: Path) -> None:
    """Refuse a path that is not a file, before it is opened: a pipe would block."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise missing(path, "model file") from None
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise ValueError(f"{path} is {kind}, not a model file; name the file that train or save wrote")


def check_writable(path: Path, *, such_as: str) -> None:
    """Refuse a path where :func:`replacing` could not write, by trying; nothing is left behind.

    ``such_as`` is a file name to suggest where a folder was given.
    """
    try:
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name a file in it, such as {path / such_as}")
        if _is_device(path):
            raise ValueError(f"{path} is a device or a pipe, not a file; name a file")
        # Missing folders are made later. Only the system knows where it is allowed to write.
        nearest = next(folder for folder in path.absolute().parents if folder.exists())
        if not nearest.is_dir():
            raise ValueError(f"{path} cannot be written: {nearest} is not a folder; name a file in one")
        trial = _beside(nearest / path.name)
        trial.touch()
        trial.unlink()
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(f"{path} cannot be written: {why}; name a file in a folder of yours") from None


def _is_device(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def _beside(path: Path) -> Path:
    # A unique name, so that two writers cannot mix; hidden, so that it is not opened by mistake.
    return path.with_name(f".{path.name}.{HERE}.{secrets.token_hex(4)}.part")


def write_json(path: Path, value: Any) -> None:
    """Write a value as readable JSON, atomically."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file; a damaged file is an error that names it."""
    check_regular(path)
    with path.open("rb") as file:
        return parsed_json(file.read(MOST_JSON + 1), path)


def parsed_json(text: bytes, path: Path) -> Any:
    """Return the value of JSON that was read from a file; a damaged file is an error that names it."""
    if len(text) > MOST_JSON:
        raise ValueError(f"{path} is damaged: its JSON has over {MOST_JSON >> 20} MiB")
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not valid JSON ({error})") from None


def check_regular(path: Path) -> None:
    """Refuse a folder, and a pipe or a device, which could be read forever."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a folder, a device or a pipe, not a file; move it away")


def append_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Append to a file and sync it to disk: all, or on a full disk nothing."""
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):  # a full disk may have taken a part
                file.truncate(before)
            raise


def half_written(folder: Path, *names: str) -> list[Path]:
    """Return temporary files that a killed :func:`replacing` left in a folder, by name patterns."""
    return [path for name in names for path in folder.glob(f".{name}.*.part") if path.is_file()]


@contextmanager
def in_use(folder: Path, *names: str) -> Iterator[None]:
    """Lock a folder for the block; its first user removes leftover temporary files of these names.

    Several processes may share the folder: only files that this machine wrote are removed, and only while no
    other process uses the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Nothing is removed on file systems that cannot lock folders.
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
    """Write tensors and plain JSON values to one file, atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    text = json.dumps(facts)
    with replacing(path) as beside:
        try:
            save_file(dict(tensors), beside, metadata={"facts": text, "digest": _digest(tensors, text)})
        except SafetensorError as error:  # wraps the system's error
            raise OSError(errno.ENOSPC, str(error)) from None


def read_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Return what :func:`write_tensors` wrote; a damaged file is an error that names it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies are aligned like tensors made here, so that sums are identical to the last bit.
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
    """Return a hash of the values of an ``.npy`` file, or of its size and evenly spaced blocks."""
    import numpy as np

    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:  # not memory-mapped: pages that were read would count as memory
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
    """Sync a file to disk before it is renamed."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
