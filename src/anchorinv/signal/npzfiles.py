"""Arrays in ``.npz`` and ``.npy`` files: nothing in them is run, and no header is believed unchecked."""

import math
import zipfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from anchorinv.files import check_regular
from anchorinv.problems import listed
from anchorinv.signal.kinds import KNOWN
from anchorinv.signal.limits import FASTEST, ROWS, SLOWEST, check_size, damaged, reading, room

_HEADERS = {
    b"\x01\x00": (2, np.lib.format.read_array_header_1_0),
    b"\x02\x00": (4, np.lib.format.read_array_header_2_0),
}
_LONGEST_HEADER = 10_000  # numpy's own limit, seen only after it was read
_BESIDE = 64 << 20  # bytes of an array that is not the signals


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """An array that stays in its file; whatever is wrong with a part of it is told when that part is read.

    Parameters
    ----------
    member : its name in an ``.npz`` file; "" in an ``.npy`` file.
    by_column : whether it is laid out the other way round (Fortran's).
    offset : bytes before its values.
    """

    path: Path
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool
    offset: int

    @property
    def n_bytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> npt.NDArray[Any]:
        """Return all of it."""
        with reading(self.path, anew=_anew(self.path)), ExitStack() as stack:
            return self._part(self._opened(stack), self.shape)

    def blocks(self, size: int) -> Iterator[npt.NDArray[Any]]:
        """Yield it piece by piece, ``size`` entries of the first axis at a time."""
        n = self.shape[0]
        if not self.member or self.by_column:  # in the other order no entry is in one place
            whole = self.mapped() if not self.member else self.read()
            for start in range(0, n, size):
                yield np.array(whole[start : start + size])
            return
        with ExitStack() as stack:
            # Each read is guarded by itself: whoever takes the blocks has warnings of his own.
            with reading(self.path, anew=_anew(self.path)):
                file = self._opened(stack)
            for start in range(0, n, size):
                with reading(self.path, anew=_anew(self.path)):
                    block = self._part(file, (min(size, n - start), *self.shape[1:]))
                yield block

    def mapped(self) -> npt.NDArray[Any]:
        """Return the array of an ``.npy`` file, read from the disk where it is looked at."""
        with reading(self.path):
            if not self.n_bytes:
                return np.empty(self.shape, self.dtype)
            order: Any = "F" if self.by_column else "C"
            return np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order)

    def _opened(self, stack: ExitStack) -> IO[bytes]:
        """Return the file at the first value."""
        if self.member:
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            file = stack.enter_context(archive.open(f"{self.member}.npy"))
        else:
            file = stack.enter_context(self.path.open("rb"))
        file.read(self.offset)
        return file

    def _part(self, file: IO[bytes], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        raw = file.read(math.prod(shape) * self.dtype.itemsize)
        return np.frombuffer(raw, self.dtype).reshape(shape, order="F" if self.by_column else "C")


def stored_array(path: Path, *, anew: str | None = None) -> StoredArray:
    """Return the array of an ``.npy`` file, its values unread; ``anew``: how a damaged one is made again."""
    anew = _anew(path) if anew is None else anew
    with reading(path, anew=anew):
        _refuse_text(path)
    with reading(path, anew=anew), path.open("rb") as file:
        return _described(path, "", file, path.stat().st_size, anew)


def stored_arrays(path: Path, names: Collection[str]) -> dict[str, StoredArray]:
    """Return those of the arrays that an ``.npz`` file holds, their values unread."""
    found, anew = {}, _anew(path)
    with reading(path, anew=anew):
        _refuse_text(path)
    with reading(path, anew=anew), zipfile.ZipFile(path) as archive:
        held = {m.filename.removesuffix(".npy"): m for m in archive.infolist() if m.filename.endswith(".npy")}
        for name in held.keys() & set(names):
            if held[name].file_size > room(min(held[name].compress_size, path.stat().st_size)):
                raise ValueError(f"{path} unpacks to more than 200 times its size ({name}); {anew}")
            with archive.open(f"{name}.npy") as file:
                found[name] = _described(path, name, file, held[name].file_size, anew)
    return found


def load_arrays(path: Path, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return those of the arrays that an ``.npz`` file holds; ``X`` is the large one."""
    return {name: load_array(array) for name, array in stored_arrays(path, names).items()}


def load_array(array: StoredArray) -> npt.NDArray[Any]:
    """Return an array of bounded size: ``X`` as a recording is, others as columns are."""
    count = math.prod(array.shape)
    if array.member == "X":
        check_size(array.path, 1, count, in_one=False)
    elif count > ROWS:
        raise ValueError(f"{array.path}: {array.member} has {count} values, and at most a million are read")
    elif array.n_bytes > _BESIDE:
        raise ValueError(
            f"{array.path}: {array.member} has {array.n_bytes} bytes, and at most 64 MB are read"
        )
    found = array.read()
    if found.dtype.kind == "U" and found.dtype.itemsize and not _is_text(found):
        raise ValueError(f"{array.path}: {array.member} holds text that is none; is it damaged?")
    return found


def _is_text(values: npt.NDArray[np.str_]) -> bool:
    """Say whether all letters are letters: NumPy keeps any four bytes for one, and Python breaks on them."""
    letters = np.ascontiguousarray(values).reshape(-1).view(values.dtype.byteorder.replace("|", "=") + "u4")
    return not ((letters > 0x10FFFF) | ((letters >= 0xD800) & (letters < 0xE000))).any()


def told_rate(path: Path, found: npt.NDArray[Any] | None) -> float | None:
    """Return the one rate that an array ``sfreq`` holds, if there is one."""
    if found is None:
        return None
    told = np.ravel(found)
    if len(told) != 1 or told.dtype.kind not in "fiu" or not SLOWEST <= told[0] <= FASTEST:
        raise ValueError(
            f"{path}: sfreq is {listed(told.tolist(), most=3)}; one rate in Hz above 0 is wanted, "
            f"from {SLOWEST:g} to {FASTEST:g}"
        )
    return float(told[0])


def _anew(path: Path) -> str:
    """Say how a file of arrays is made again."""
    call = "np.savez({!r}, X=X, y=y)" if path.suffix.lower() == ".npz" else "np.save({!r}, X)"
    return f"save it again with {call.format(path.name)}, or copy it anew"


def _refuse_text(path: Path) -> None:
    """Refuse a text by the name of a file of arrays: it is another kind of file, not a damaged one."""
    check_regular(path)
    with path.open("rb") as file:
        start = file.read(1000)
    text = start.decode("utf-8", errors="ignore")
    if len(text.encode()) >= len(start) - 3 and text and all(c.isprintable() or c.isspace() for c in text):
        raise ValueError(f"{path} is a text and holds no arrays; known are {KNOWN}")


def _described(path: Path, name: str, file: IO[bytes], size: int, anew: str) -> StoredArray:
    """Return what the header of an array says, held to the ``size`` bytes that there are."""
    what = f"{path}: {name}" if name else str(path)
    start = file.read(8)
    width, parse = _HEADERS.get(start[6:], (0, None))
    if start[:6] != np.lib.format.MAGIC_PREFIX or parse is None:
        raise ValueError(damaged(what, "it is no array in NumPy's format 1 or 2" if start else "", anew))
    length = file.read(width)
    if int.from_bytes(length, "little") > _LONGEST_HEADER:
        why = f"it has a header of {int.from_bytes(length, 'little')} bytes"
        raise ValueError(damaged(what, why, anew))
    head = length + file.read(int.from_bytes(length, "little"))
    shape, by_column, dtype = parse(BytesIO(head))
    if dtype.hasobject:
        signals = name in ("", "X")
        raise ValueError(
            f"{what} holds Python objects; save it as numbers{'' if signals else ' or text'}, as in "
            f"np.array({name or 'X'}, dtype={'float' if signals else 'str'})"
        )
    array = StoredArray(path, name, shape, dtype, by_column, len(start) + len(head))
    if dtype.kind == "V" or min(shape, default=0) < 0 or array.n_bytes != size - array.offset:
        why = f"it speaks of {dtype} {shape}, and has {size - array.offset} bytes"
        raise ValueError(damaged(what, why, anew))
    return array
