"""Read an ``.npz`` file: nothing in it is run, and nothing too large is opened."""

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.data.readers import check_size, reading


def load_arrays(path: Path, keys: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return those of the arrays ``keys`` that a file holds; ``X``, the largest, is measured first."""
    _check_told_size(path)
    with reading(path), np.load(path, allow_pickle=False) as file:
        found = {}
        for name in file.files:
            if name in keys:
                try:
                    found[name] = file[name]
                except ValueError as error:
                    if "pickle" not in str(error):
                        raise
                    raise ValueError(
                        f"{path}: {name} holds Python objects; save it as numbers or text, "
                        f"as in np.array({name}, dtype=str)"
                    ) from None
    return found


def _check_told_size(path: Path) -> None:
    """Refuse an X that is too large by its header, before it fills the memory."""
    with reading(path), zipfile.ZipFile(path) as archive:
        if "X.npy" in archive.namelist():
            with archive.open("X.npy") as file:
                one = np.lib.format.read_magic(file) == (1, 0)
                header = np.lib.format.read_array_header_1_0 if one else np.lib.format.read_array_header_2_0
                check_size(path, 1, math.prod(header(file)[0]), in_one=False)
