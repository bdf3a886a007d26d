"""Ways to damage a file: flipped bits, cuts, insertions, and numbers that a header should not hold."""

import gzip
import io
import lzma
import random
import re
import zipfile
import zlib

_TEXT = (
    b"0",
    b"-1",
    b"1",
    b"99999999",
    b"4294967296",
    b"1e308",
    b"nan",
    b"inf",
    b"",
    b"../../etc/passwd",
    b"\x00",
)
_BINARY = (0, 1, -1, 127, 255, 65535, 2**31 - 1, 2**32 - 1, 2**40, 2**62)


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Return other bytes, damaged in one or two ways."""
    for _ in range(rng.choice((1, 1, 1, 2))):
        whole = rng.choice(WAYS)(whole, rng)
    return whole


def _at(whole: bytes, rng: random.Random) -> int:
    """Return a place; every other one near the beginning, where headers are, or at the end."""
    n = max(1, len(whole))
    return rng.choice(
        (rng.randrange(n), rng.randrange(min(n, 1024)), max(0, n - 1 - rng.randrange(min(n, 256))))
    )


def flipped(whole: bytes, rng: random.Random) -> bytes:
    broken = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 8, 64)) if broken else 0):
        broken[_at(whole, rng)] ^= 1 << rng.randrange(8)
    return bytes(broken)


def cut(whole: bytes, rng: random.Random) -> bytes:
    return whole[: _at(whole, rng)]


def inserted(whole: bytes, rng: random.Random) -> bytes:
    at, n = _at(whole, rng), rng.choice((1, 3, 16, 1000))
    return whole[:at] + rng.choice((rng.randbytes(n), bytes(n), b"9" * n, b",\n" * n)) + whole[at:]


def removed(whole: bytes, rng: random.Random) -> bytes:
    at = _at(whole, rng)
    return whole[:at] + whole[at + rng.choice((1, 2, 8, 256)) :]


def number(whole: bytes, rng: random.Random) -> bytes:
    """Put another number where four or eight bytes may hold one."""
    width = rng.choice((1, 2, 4, 8))
    value = rng.choice(_BINARY) % (1 << 8 * width)
    at = _at(whole, rng) // width * width
    return whole[:at] + value.to_bytes(width, rng.choice(("little", "big"))) + whole[at + width :]


def text_number(whole: bytes, rng: random.Random) -> bytes:
    """Put another number, or none, where digits stand in the first kilobytes."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", whole[:4096]))
    if not found:
        return flipped(whole, rng)
    where = rng.choice(found)
    new = rng.choice(_TEXT)
    if rng.random() < 0.5:  # headers with fields of fixed width stay as long as they are
        new = new.ljust(where.end() - where.start())[: where.end() - where.start()]
    return whole[: where.start()] + new + whole[where.end() :]


WAYS = (flipped, flipped, cut, inserted, removed, number, number, text_number, text_number)


def inside_xz(whole: bytes, rng: random.Random) -> bytes:
    """Damage what is packed, and pack it again: its checksum does not tell."""
    return lzma.compress(damaged(lzma.decompress(whole), rng), preset=0)


def inside_gz(whole: bytes, rng: random.Random) -> bytes:
    return gzip.compress(damaged(gzip.decompress(whole), rng))


def inside_npz(whole: bytes, rng: random.Random) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        chosen = rng.choice(old.namelist())
        for name in old.namelist():
            new.writestr(name, damaged(old.read(name), rng) if name == chosen else old.read(name))
    return made.getvalue()


def inside_mat(whole: bytes, rng: random.Random) -> bytes:
    """Of a file with one variable, which begins after 136 bytes."""
    packed = zlib.compress(damaged(zlib.decompress(whole[136:]), rng))
    return whole[:128] + (15).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed
