"""Hashes of prepared samples, by which a change of them is noticed."""

import hashlib
from io import SEEK_END
from pathlib import Path

import numpy as np

#: Larger samples (1 GiB; bytes) are read in blocks when a run starts, so that it starts within seconds.
LARGE = 1 << 30
_N_BLOCKS, _BLOCK = 256, 1 << 18  # 64 MiB in all
_CHUNK = 1 << 22


def samples_hash(path: Path, *, in_blocks: bool = False) -> str:
    """Return the hash of an array in an ``.npy`` file: of all, or of its size and evenly spaced blocks."""
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:  # not mapped: pages that are read would count as memory
        first = np.load(path, mmap_mode="r", allow_pickle=False).offset
        size = file.seek(0, SEEK_END) - first
        if in_blocks:
            found.update(str(size).encode())
            for i in range(_N_BLOCKS):
                file.seek(first + i * max(size - _BLOCK, 0) // (_N_BLOCKS - 1))
                found.update(file.read(_BLOCK))
            return found.hexdigest()
        file.seek(first)
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
