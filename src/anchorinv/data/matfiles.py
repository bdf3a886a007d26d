"""Is a MATLAB file sound? Looked at before scipy reads it, which crashes on wrong sizes."""

import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from anchorinv.signal import limits
from anchorinv.signal.limits import room

#: Bytes of a value, by the number of its type.
_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8, 16: 1, 17: 2, 18: 4}
_MATRIX, _COMPRESSED = 14, 15
_CELL, _STRUCT, _CHAR = 1, 2, 4
_NUMBERS = range(6, 16)


def check_mat(path: Path) -> None:
    """Refuse a file that is no MATLAB file (version 5 to 7), is cut short, or has sizes that do not fit."""
    content = memoryview(path.read_bytes())
    order = {b"IM": "<", b"MI": ">"}.get(bytes(content[126:128]))
    if order is None:
        newer = " (7.3: save it with -v7)" if bytes(content[:128]).startswith(b"MATLAB 7.3") else ""
        raise ValueError(f"{path} is no MATLAB file of version 5 to 7{newer}; is it damaged or cut short?")
    try:
        for kind, inside in _elements(content[128:], order, top=True):
            variables = [(kind, inside)]
            if kind == _COMPRESSED:
                variables = list(_elements(_unpacked(inside), order))
            if [number for number, _ in variables] != [_MATRIX]:
                raise ValueError(f"a variable of type {kind}")
            _check_matrix(variables[0][1], order)
    except (ValueError, zlib.error, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}); is it damaged or cut short?") from None


def _unpacked(packed: memoryview) -> memoryview:
    """Unpack a variable and hold it to its checksum, as scipy does not; one without end is refused."""
    most = min(room(len(packed)), 8 * limits.LARGEST)
    stream = zlib.decompressobj()
    found = stream.decompress(packed, most)
    if not stream.eof:
        raise ValueError(f"a compressed variable that is cut short or unpacks to more than {most} bytes")
    return memoryview(found)


def _elements(block: memoryview, order: str, *, top: bool = False) -> Iterator[tuple[int, memoryview]]:
    """Yield type and content of one element after the other."""
    at = 0
    while at < len(block):
        if at + 8 > len(block):
            raise ValueError("an element without its size")
        kind, size = (int(n) for n in np.frombuffer(block, f"{order}u4", 2, at))
        if kind >> 16:  # small ones hold their content where others have their size
            kind, size, start, following = kind & 0xFFFF, kind >> 16, at + 4, at + 8
            if size > 4:
                raise ValueError(f"a small element of {size} bytes")
        else:
            start = at + 8
            padded = size if kind == _COMPRESSED and top else -(-size // 8) * 8
            following = start + padded
        if start + size > len(block):
            raise ValueError(f"an element of {size} bytes where {len(block) - start} are left")
        yield kind, block[start : start + size]
        at = following


def _check_matrix(block: memoryview, order: str) -> None:
    """Hold the parts of an array to what its head says."""
    if not block:  # an empty cell
        return
    parts = list(_elements(block, order))
    if len(parts) < 3 or parts[0][0] != 6 or len(parts[0][1]) != 8 or parts[1][0] != 5 or parts[2][0] != 1:
        raise ValueError("an array without flags, dimensions or name")
    flags = int(np.frombuffer(parts[0][1], f"{order}u4", 1)[0])
    kind, n_parts = flags & 0xFF, 2 if flags & 0x800 else 1
    dims = np.frombuffer(parts[1][1][: len(parts[1][1]) // 4 * 4], f"{order}i4").tolist()
    if len(dims) < 2 or min(dims) < 0:
        raise ValueError(f"an array of dimensions {dims}")
    count, content = math.prod(dims), parts[3:]
    if count > limits.LARGEST:
        raise ValueError(f"an array of dimensions {dims}, too large to be read at once")
    if kind in _NUMBERS:
        _check_numbers(content, count, n_parts)
    elif kind == _CHAR:
        _check_numbers(content, count, 1, text=True)
    elif kind in (_CELL, _STRUCT):
        if kind == _STRUCT:
            n_fields = _n_fields(content, order)
            if count and not n_fields:
                raise ValueError(f"{count} structs without a field")
            count *= n_fields
            content = content[2:]
        if len(content) != count or any(number != _MATRIX for number, _ in content):
            raise ValueError(f"{len(content)} entries where {count} arrays are told")
        for _, inside in content:
            _check_matrix(inside, order)
    else:
        raise ValueError(f"an array of kind {kind}; numbers, text, cells and structs are wanted")


def _check_numbers(
    parts: list[tuple[int, memoryview]], count: int, n_parts: int, *, text: bool = False
) -> None:
    if len(parts) != n_parts and not (text and count == 0):
        raise ValueError(f"{len(parts)} blocks of values where {n_parts} are told")
    for kind, inside in parts:
        width = _WIDTHS.get(kind)
        # Text in UTF-8 may take more bytes than letters.
        fits = len(inside) == (count * width if width else -1) or (
            text and kind == 16 and len(inside) >= count
        )
        if not fits:
            raise ValueError(f"{len(inside)} bytes of type {kind} where {count} values are told")


def _n_fields(parts: list[tuple[int, memoryview]], order: str) -> int:
    if len(parts) < 2 or parts[0][0] != 5 or len(parts[0][1]) != 4 or parts[1][0] != 1:
        raise ValueError("a struct without field names")
    length = int(np.frombuffer(parts[0][1], f"{order}i4", 1)[0])
    names = bytes(parts[1][1])
    if (
        length < 1
        or len(names) % length
        or any(0 not in names[i : i + length] for i in range(0, len(names), length))
    ):
        raise ValueError(f"field names of {length} bytes")
    return len(names) // length
