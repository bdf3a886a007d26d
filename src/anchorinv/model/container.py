"""The outside of a model file: a magic word, sizes and a digest over everything, then header and payload.

::

    0   8  "ANCHRINV"
    8   4  version of the format, little-endian like all numbers
    12  4  length of the header in bytes, MOST_HEADER at the most
    16  8  length of the payload in bytes
    24  32 BLAKE2b-256 of bytes 0 to 24, the header and the payload
    56  …  the header: JSON in UTF-8
    …   …  the payload: tensors as safetensors

The digest finds accidents. It is no signature: whoever writes a file can write its digest.
"""

import hashlib
import stat
import struct
from pathlib import Path

from anchorinv.files import replacing
from anchorinv.model.limits import MOST_BYTES, MOST_HEADER

MAGIC = b"ANCHRINV"
FORMAT = 1
_FRONT = struct.Struct("<8sIIQ")
_DIGEST = 32
_START = _FRONT.size + _DIGEST


def assemble(header: bytes, payload: bytes) -> bytes:
    """Return the bytes of a model file."""
    if len(header) > MOST_HEADER or len(payload) > MOST_BYTES:
        raise ValueError(
            f"the model is too large for a file: {len(header)} bytes of facts ({MOST_HEADER} at the most), "
            f"{len(payload)} of tensors ({MOST_BYTES} at the most); leave out signals (with_signals), "
            f"or train with a smaller n_anchors (--anchors), shorter windows or a lower sampling rate"
        )
    front = _FRONT.pack(MAGIC, FORMAT, len(header), len(payload))
    return front + _digest(front, header, payload) + header + payload


def read_container(path: Path) -> tuple[int, bytes, bytes]:
    """Return the version, header and payload of a model file; anything amiss is one sentence."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # before it is opened: a pipe would wait for its other end
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device or a pipe"
            raise ValueError(f"{path} is {kind}, not a model file; name the file that train or save wrote")
        size = found.st_size
        with path.open("rb") as file:
            if size > MOST_HEADER + MOST_BYTES + _START:
                raise ValueError(f"{path} is too large for a model file ({size} bytes)")
            start = file.read(_START)
            n_header = _header_length(path, start, size)
            header, payload = file.read(n_header), file.read(size - _START - n_header)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no model file {path}") from None
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror or error}") from None
    front, digest = start[: _FRONT.size], start[_FRONT.size :]
    if _digest(front, header, payload) != digest:
        raise ValueError(f"{path} is damaged: its contents do not match its digest; copy it anew")
    return _FRONT.unpack(front)[1], header, payload


def write_container(path: Path, header: bytes, payload: bytes) -> None:
    """Write a model file, whole or not at all."""
    content = assemble(header, payload)
    try:
        with replacing(path) as beside:
            beside.write_bytes(content)
    except OSError as error:
        if error.errno is None:  # said in full already
            raise
        was = "; the file that was there is untouched" if path.is_file() else ""
        raise OSError(f"{path} cannot be written: {error.strerror or error}{was}") from None


def _header_length(path: Path, start: bytes, size: int) -> int:
    """Check the first bytes of a file of a size; return the length of the header."""
    if start[:8] != MAGIC:
        foreign = start[8:9] == b"{" and int.from_bytes(start[:8], "little") < size
        kind = "a safetensors file, but of another program" if foreign else "no anchorinv model"
        raise ValueError(f"{path} is {kind}; a model is what `anchorinv train` or model.save wrote")
    if len(start) < _START:
        raise ValueError(f"{path} is cut short: it ends within its first {_START} bytes; copy it anew")
    _, version, n_header, n_payload = _FRONT.unpack(start[: _FRONT.size])
    if version > FORMAT:
        raise ValueError(
            f"{path} has format {version}, and this anchorinv reads up to {FORMAT}; update anchorinv"
        )
    if version < 1 or n_header > MOST_HEADER:
        raise ValueError(f"{path} is damaged: format {version}, header of {n_header} bytes; copy it anew")
    if size != _START + n_header + n_payload:
        state = "cut short" if size < _START + n_header + n_payload else "longer than it says"
        raise ValueError(f"{path} is {state}: {size} bytes instead of {_START + n_header + n_payload}")
    return int(n_header)


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        digest.update(part)
    return digest.digest()
