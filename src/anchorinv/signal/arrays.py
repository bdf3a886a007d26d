"""Read ``.npz``, ``.npy``, ``.mat`` and text tables safely: no pickles, and headers are checked."""

import csv
import gzip
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from io import BytesIO, StringIO
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from anchorinv.errors import listed
from anchorinv.files import check_regular
from anchorinv.signal import headers

_HEADERS = {
    b"\x01\x00": (2, np.lib.format.read_array_header_1_0),
    b"\x02\x00": (4, np.lib.format.read_array_header_2_0),
}
_MAX_HEADER = 10_000  # numpy's own limit, which it checks after reading
_MAX_COLUMN_BYTES = 64 << 20  # of an array that is not the signals
_MAX_COLUMNS = 1000  # of a table
_MAX_LINE = 1 << 20  # characters of a line of samples
_MAX_SKIPPED = 1000  # excess of lines without values
#: Types of elements in a MATLAB file, and classes of arrays: cells, structs, text and numbers.
_MAT_MATRIX, _MAT_COMPRESSED = 14, 15
_MAT_TYPES = (*range(1, 8), 9, *range(12, 19))
_MAT_CELL, _MAT_STRUCT = 1, 2
_MAT_TEXT, _MAT_VALUES = 4, (4, *range(6, 16))


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """An array that stays in its file; a damaged part raises when it is read."""

    path: Path
    member: str  # its name in an .npz file; "" in an .npy file
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    offset: int  # of its values in the file, in bytes

    @property
    def n_bytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> npt.NDArray[Any]:
        """Return all of it."""
        with _reading(self.path), ExitStack() as stack:
            return self._part(self._open(stack), self.shape)

    def blocks(self, size: int) -> Iterator[npt.NDArray[Any]]:
        """Yield it block by block, ``size`` entries of the first axis at a time."""
        n = self.shape[0]
        if not self.member or self.fortran_order:  # in Fortran order, entries are not contiguous
            values = self.read() if self.member else self.memmap()
            for start in range(0, n, size):
                yield np.array(values[start : start + size])
            return
        with ExitStack() as stack:
            # Each read is guarded separately: the caller's warnings are not silenced.
            with _reading(self.path):
                file = self._open(stack)
            for start in range(0, n, size):
                with _reading(self.path):
                    block = self._part(file, (min(size, n - start), *self.shape[1:]))
                yield block

    def memmap(self) -> npt.NDArray[Any]:
        """Memory-map the array of an ``.npy`` file."""
        with headers.reading(self.path):
            if not self.n_bytes:
                return np.empty(self.shape, self.dtype)
            return np.memmap(self.path, self.dtype, "r", self.offset, self.shape, self._order)

    @property
    def _order(self) -> Any:
        return "F" if self.fortran_order else "C"

    def _open(self, stack: ExitStack) -> IO[bytes]:
        if self.member:
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            file = stack.enter_context(archive.open(f"{self.member}.npy"))
        else:
            file = stack.enter_context(self.path.open("rb"))
        file.read(self.offset)
        return file

    def _part(self, file: IO[bytes], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        raw = file.read(math.prod(shape) * self.dtype.itemsize)
        return np.frombuffer(raw, self.dtype).reshape(shape, order=self._order)


def open_array(path: Path, *, remedy: str | None = None) -> StoredArray:
    """Return the array of an ``.npy`` file, values unread; ``remedy`` is that of a damaged one."""
    remedy = _save_again(path) if remedy is None else remedy
    with headers.reading(path, remedy=remedy):
        _refuse_text(path)
        with path.open("rb") as file:
            return _parse_header(path, "", file, path.stat().st_size, remedy)


def open_arrays(path: Path, names: Collection[str]) -> dict[str, StoredArray]:
    """Return those of the named arrays that an ``.npz`` file holds, their values unread."""
    arrays = {}
    with _reading(path):
        _refuse_text(path)
    with _reading(path), zipfile.ZipFile(path) as archive:
        members = {member.filename: member for member in archive.infolist()}
        for name in names:
            if (member := members.get(f"{name}.npy")) is None:
                continue
            packed = min(member.compress_size, path.stat().st_size)
            if member.file_size > headers.unpacked_limit(packed):
                unpacks = f"{path} unpacks to more than {headers.MAX_EXPANSION} times its size ({name})"
                raise ValueError(f"{unpacks}; {_save_again(path)}")
            with archive.open(member) as file:
                arrays[name] = _parse_header(path, name, file, member.file_size, _save_again(path))
    return arrays


def load_arrays(path: Path, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the values of those of the named arrays that an ``.npz`` file holds; ``X`` is the large one."""
    return {name: load_array(array) for name, array in open_arrays(path, names).items()}


def load_array(array: StoredArray) -> npt.NDArray[Any]:
    """Return the values of an array of bounded size: ``X`` as a recording is, others as columns are."""
    count = math.prod(array.shape)
    if array.member == "X":
        headers.check_size(array.path, 1, count, filtered=False)
    elif count > headers.MAX_ROWS:
        raise ValueError(f"{array.path}: {array.member} has {count} values, and at most a million are read")
    elif array.n_bytes > _MAX_COLUMN_BYTES:
        raise ValueError(f"{array.path}: {array.member} has {array.n_bytes} bytes, at most 64 MB are read")
    values = array.read()
    if values.dtype.kind == "U" and values.dtype.itemsize and not _is_text(values):
        raise ValueError(f"{array.path}: {array.member} contains invalid text; is it damaged?")
    return values


def _is_text(values: npt.NDArray[np.str_]) -> bool:
    """Return whether all characters are valid: NumPy stores any four bytes, and Python fails on some."""
    letters = np.ascontiguousarray(values).reshape(-1).view(values.dtype.byteorder.replace("|", "=") + "u4")
    return not ((letters > 0x10FFFF) | ((letters >= 0xD800) & (letters < 0xE000))).any()


def read_sfreq(path: Path, values: npt.NDArray[Any] | None) -> float | None:
    """Return the one sampling rate that an array ``sfreq`` holds, if there is such an array."""
    if values is None:
        return None
    rates, low, high = np.ravel(values), headers.MIN_SFREQ, headers.MAX_SFREQ
    if len(rates) != 1 or rates.dtype.kind not in "fiu" or not low <= rates[0] <= high:
        expected = f"expected one rate in Hz above 0, from {low:g} to {high:g}"
        raise ValueError(f"{path}: sfreq is {listed(rates.tolist(), most=3)}; {expected}")
    return float(rates[0])


def _reading(path: Path) -> AbstractContextManager[None]:
    return headers.reading(path, remedy=_save_again(path))


def _save_again(path: Path) -> str:
    call = "np.savez({!r}, X=X, y=y)" if path.suffix.lower() == ".npz" else "np.save({!r}, X)"
    return f"save it again with {call.format(path.name)}, or copy it anew"


def _refuse_text(path: Path) -> None:
    """Refuse a text file named like a file of arrays: it is not damaged, but of another kind."""
    check_regular(path)
    with path.open("rb") as file:
        start = file.read(1000)
    text = start.decode("utf-8", errors="ignore")
    if len(text.encode()) >= len(start) - 3 and text and all(c.isprintable() or c.isspace() for c in text):
        raise ValueError(f"{path} is a text file without arrays; known formats: {headers.KNOWN}")


def _parse_header(path: Path, name: str, file: IO[bytes], size: int, remedy: str) -> StoredArray:
    """Parse the header of an array, checked against the ``size`` bytes available."""
    source = f"{path}: {name}" if name else str(path)
    start = file.read(8)
    width, parse = _HEADERS.get(start[6:], (0, None))
    if start[:6] != np.lib.format.MAGIC_PREFIX or parse is None:
        raise ValueError(
            headers.damaged(source, "it is no array in NumPy's format 1 or 2" if start else "", remedy)
        )
    prefix = file.read(width)
    if (length := int.from_bytes(prefix, "little")) > _MAX_HEADER:
        raise ValueError(headers.damaged(source, f"it has a header of {length} bytes", remedy))
    header = prefix + file.read(length)
    shape, fortran_order, dtype = parse(BytesIO(header))
    if dtype.hasobject:
        kinds, example = ("numbers", "float") if name in ("", "X") else ("numbers or text", "str")
        call = f"np.array({name or 'X'}, dtype={example})"
        raise ValueError(f"{source} holds Python objects; save it as {kinds}, as in {call}")
    array = StoredArray(path, name, shape, dtype, fortran_order, len(start) + len(header))
    if dtype.kind == "V" or min(shape, default=0) < 0 or array.n_bytes != size - array.offset:
        reason = f"it declares {dtype} {shape}, and has {size - array.offset} bytes"
        raise ValueError(headers.damaged(source, reason, remedy))
    return array


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a text table."""

    names: tuple[str, ...]  # of all columns, in lower case
    columns: dict[str, list[str]]  # the wanted ones by name, a text for each row
    lines: list[int]  # the line of each row in the file


def read_table(path: Path, wanted: Collection[str], *, delimiters: str = ",") -> Table:
    """Read columns of a table by their names (in lower case) in its first line; empty lines are skipped.

    Missing columns are left out. The delimiter is the most frequent one of the first line.
    """
    text = headers.read_text(path)
    first = text.partition("\n")[0]
    if max(map(first.count, delimiters)) >= _MAX_COLUMNS:
        raise ValueError(f"{path} has more than {_MAX_COLUMNS} columns; is it the right table?")
    rows = csv.reader(StringIO(text, newline=""), delimiter=max(delimiters, key=first.count))
    same: dict[str, str] = {}  # repeated texts are stored once
    lines: list[int] = []
    try:
        names = tuple(name.strip().casefold() for name in next(rows, []))
        places = {name: i for i, name in enumerate(names) if name in wanted}
        columns: dict[str, list[str]] = {name: [] for name in places}
        for cells in filter(None, rows):
            if len(lines) == headers.MAX_ROWS:
                raise ValueError(f"{path} has more than a million rows; is it the right table?")
            lines.append(rows.line_num)
            for name, i in places.items():
                cell = cells[i] if i < len(cells) else ""
                columns[name].append(same.setdefault(cell, cell))
    except csv.Error as error:
        raise ValueError(
            f"{path} is not a table ({error}, line {rows.line_num}); is a quote left open?"
        ) from None
    return Table(names, columns, lines)


def read_sample_table(path: Path) -> tuple[tuple[str, ...], npt.NDArray[np.float64], float | None]:
    """Read a table, possibly compressed, with a column per channel and names in the first line.

    Returns
    -------
    ch_names : tuple of str
    signals : array, shape (n_chans, n_times)
        An empty cell is NaN.
    sfreq : float or None
        From a column ``time`` in seconds; None without one.
    """
    openers: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open}
    with openers.get(path.suffix.lower(), open)(path, "rt", encoding="utf-8-sig") as file:
        lines = _lines(path, file)
        names = [name.strip().strip('"') for name in next(lines, "").rstrip("\r\n").split(",")]
        headers.check_claim(path, len(names), 0)
        if len(names) == 1 and (other := re.search("[;\t]", names[0])):
            pandas = f"pandas: read_csv(..., sep={other[0]!r}, decimal=',').to_csv(..., index=False)"
            remedy = f"write it with commas, and points in numbers ({pandas})"
            raise ValueError(f"{path} separates its columns by {other[0]!r}; {remedy}")
        if names and all(map(_is_number, names)):
            raise ValueError(f"{path} begins with numbers; a first line that names its channels is needed")
        # One row more than allowed: numpy would allocate all of them at once.
        most = min(headers.MAX_SAMPLES, headers.MAX_VALUES // len(names)) + 1
        form: dict[str, Any] = {"delimiter": ",", "ndmin": 2, "usecols": range(len(names))}
        try:
            values = np.loadtxt(islice(lines, most), **form)
        except ValueError as error:
            if str(error).startswith(str(path)):
                raise
            # An empty cell is a missing sample; checking each cell is slow.
            file.seek(0)
            lines = _lines(path, file)
            next(lines)
            values = np.loadtxt(islice(lines, most), converters=lambda x: float(x.strip() or "nan"), **form)
    headers.check_size(path, len(names), len(values))
    times = next((i for i, name in enumerate(names) if name.casefold() in ("time", "time_s")), None)
    sfreq = _rate(path, values[:, times]) if times is not None and len(values) > 1 else None
    ch_names = tuple(name for i, name in enumerate(names) if i != times)
    # If time is the first column, as usual, nothing is copied.
    signals = values.T[1:] if times == 0 else values.T if times is None else np.delete(values.T, times, 0)
    return ch_names, signals, sfreq


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    """Yield the lines of a table; too long lines, or too many, are refused."""
    n_left, n_skipped = headers.unpacked_limit(path.stat().st_size), 0
    while line := file.readline(_MAX_LINE + 1):
        n_left -= len(line)
        n_skipped += 1 if line.lstrip()[:1] in ("", "#") else -1
        if len(line) > _MAX_LINE:
            raise ValueError(f"{path} has a line of more than a million characters; is it a table?")
        if n_left < 0:
            raise ValueError(
                f"{path} unpacks to more than {headers.MAX_EXPANSION} times its size; is it damaged?"
            )
        if n_skipped > _MAX_SKIPPED:
            raise ValueError(f"{path} has {_MAX_SKIPPED} more lines without values than with; is it damaged?")
        yield line


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rate(path: Path, times: npt.NDArray[np.float64]) -> float:
    """Return the rate of evenly spaced times in seconds, rounded if nearly a whole number."""
    steps = np.diff(times)
    rate = (len(times) - 1) / (times[-1] - times[0])
    if not np.isfinite(rate) or np.abs(steps * rate - 1).max() > 0.5:
        raise ValueError(f"{path}: the column time is not evenly spaced; samples are missing or unordered")
    return float(round(rate)) if abs(rate - round(rate)) < 1e-3 * rate else float(rate)


def load_mat(path: Path, *names: str) -> dict[str, Any]:
    """Return the named variables of a MATLAB file, after :func:`check_mat`."""
    from scipy.io import loadmat

    check_mat(path)
    variables: dict[str, Any] = loadmat(path, variable_names=names)
    if missing := [name for name in names if name not in variables]:
        raise ValueError(f"{path} has no variable {', '.join(missing)}; is it the right file?")
    return variables


def check_mat(path: Path) -> None:
    """Refuse a MATLAB file that declares more than its bytes: scipy would allocate it before reading."""
    content = memoryview(path.read_bytes())
    order = {b"IM": "<", b"MI": ">"}.get(bytes(content[126:128]))
    if order is None:
        newer = " (7.3: save it with -v7)" if bytes(content[:128]).startswith(b"MATLAB 7.3") else ""
        raise ValueError(f"{path} is not a MATLAB file of version 5 to 7{newer}; is it damaged or cut short?")
    for kind, block in _mat_elements(content[128:], order, padded=False):
        inner = [(kind, block)]
        if kind == _MAT_COMPRESSED:
            most = min(headers.unpacked_limit(len(block)), 8 * headers.MAX_VALUES)
            stream = zlib.decompressobj()
            unpacked = memoryview(stream.decompress(block, most))  # checks its checksum, which scipy does not
            if not stream.eof:
                raise ValueError(f"a variable is cut short or unpacks to more than {most} bytes")
            inner = list(_mat_elements(unpacked, order))
        if [number for number, _ in inner] != [_MAT_MATRIX]:
            raise ValueError(f"a variable of type {kind}")
        _check_mat_array(inner[0][1], order)


def _mat_elements(block: memoryview, order: str, *, padded: bool = True) -> Iterator[tuple[int, memoryview]]:
    """Yield type and content of the data elements in a block; each must fit into it."""
    at = 0
    while at < len(block):
        if at + 8 > len(block):
            raise ValueError("an element without its size")
        kind, size = (int(n) for n in np.frombuffer(block, f"{order}u4", 2, at))
        start = at + 8
        if kind >> 16:  # small elements have their content in place of their size
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        if kind not in _MAT_TYPES:  # scipy would crash
            raise ValueError(f"an element of type {kind}")
        if start + size > len(block) or (start == at + 4 and size > 4):
            raise ValueError(f"an element of {size} bytes where {len(block) - start} are left")
        yield kind, block[start : start + size]
        at = max(at + 8, start + size)
        if padded or kind != _MAT_COMPRESSED:
            at += -at % 8


def _check_mat_array(block: memoryview, order: str) -> None:
    """Refuse an array whose elements do not match its header."""
    elements = list(_mat_elements(block, order))
    if not elements:  # an empty cell
        return
    kinds, parts = [kind for kind, _ in elements], [content for _, content in elements]
    if kinds[:3] != [6, 5, 1] or len(parts[0]) != 8:
        raise ValueError("an array without flags, dimensions or name")
    flags = int(np.frombuffer(parts[0], f"{order}u4", 1)[0])
    kind, n_blocks = flags & 0xFF, 2 if flags & 0x800 else 1  # of complex numbers two
    dims = np.frombuffer(parts[1][: len(parts[1]) // 4 * 4], f"{order}i4").tolist()
    count = math.prod(dims)
    if not 2 <= len(dims) <= 32 or min(dims) < 0 or count > min(len(block), headers.MAX_VALUES):
        raise ValueError(f"an array of dimensions {dims[:8]} in {len(block)} bytes")
    if kind not in (_MAT_CELL, _MAT_STRUCT):
        if kind not in _MAT_VALUES or {_MAT_MATRIX, _MAT_COMPRESSED} & set(kinds):
            raise ValueError(f"an array of kind {kind}; expected numbers, text, cells or structs")
        if len(parts) - 3 != n_blocks and (count or kind != _MAT_TEXT):
            raise ValueError(f"{len(parts) - 3} blocks of values where {n_blocks} are claimed")
        return
    first = 3
    if kind == _MAT_STRUCT:  # before its entries: the length of a field's name, and the names
        if kinds[3:5] != [5, 1] or (length := int(np.frombuffer(parts[3], f"{order}i4", 1)[0])) < 1:
            raise ValueError("a struct without field names")
        first, count = 5, count * (len(parts[4]) // length)
    if len(kinds) - first != count or set(kinds[first:]) - {_MAT_MATRIX}:
        raise ValueError(f"{len(kinds) - first} entries where {count} arrays are claimed")
    for entry in parts[first:]:
        _check_mat_array(entry, order)
