"""Headers of EDF, BDF, GDF and FIF files: do they fit the file? Looked at before a reader believes them."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

_GDF_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 8, 8: 8, 16: 4, 17: 8, 18: 16, 279: 3, 535: 3}


def check_header(path: Path) -> None:
    """Refuse an EDF, BDF, GDF or FIF file that is not one, or is shorter than its header says."""
    if path.suffix.lower() == ".fif":
        _check_tags(path)
    if path.suffix.lower() not in (".edf", ".bdf", ".gdf"):
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        fixed = file.read(256)
        if len(fixed) < 256:
            raise ValueError(f"{path} is cut short: a header has 256 bytes, the file {len(fixed)}")
        gdf = fixed[:3] == b"GDF"
        if gdf != (path.suffix.lower() == ".gdf"):
            raise ValueError(f"{path} is no {path.suffix[1:].upper()} file: it starts with {fixed[:8]!r}")
        try:
            told = (
                _gdf(fixed, file.read(65536 * 256), size) if gdf else _edf(path, fixed, file.read(9999 * 256))
            )
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(f"{path} has a damaged header ({error}); download or export it again") from None
    if told > size:
        raise ValueError(
            f"{path} is cut short: its header speaks of {told} bytes, the file has {size}; "
            "download or export it again"
        )


def _check_tags(path: Path) -> None:
    """Follow the tags of a FIF file; one that leads back would have a reader go round for ever."""
    size = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at < size:
            file.seek(at)
            tag = file.read(16)
            if len(tag) < 16:
                raise ValueError(f"{path} is cut short: it ends within a tag")
            _, _, length, following = (int(n) for n in np.frombuffer(tag, ">i4", 4))
            end = at + 16 + length
            if not at < end <= size or (following > 0 and not at < following <= size) or following < -1:
                raise ValueError(
                    f"{path} is damaged or cut short: a tag at {at} leads to {end} of {size} bytes"
                )
            if following == -1:
                return
            at = following or end


def _edf(path: Path, fixed: bytes, rest: bytes) -> int:
    n_chans, n_records = int(fixed[252:256]), int(fixed[236:244])
    header = int(fixed[184:192])
    if n_chans < 1 or header != 256 * (n_chans + 1) or len(rest) < 256 * n_chans:
        raise ValueError(f"{n_chans} signals in a header of {header} bytes")
    if not float(fixed[244:252]) > 0:
        raise ValueError(f"data records of {float(fixed[244:252])} s")
    at = 216 * n_chans
    samples = [int(rest[at + 8 * i : at + 8 * (i + 1)]) for i in range(n_chans)]
    if min(samples) < 1:
        raise ValueError(f"{min(samples)} samples in a record")
    width = 3 if path.suffix.lower() == ".bdf" else 2
    # -1 records: the recording was not closed, and readers go by the size of the file.
    return header + max(n_records, 0) * sum(samples) * width


def _gdf(fixed: bytes, rest: bytes, size: int) -> int:
    version = float(fixed[4:8])
    first = version < 1.9
    header = _integer(fixed, 184, "<i8") if first else 256 * _integer(fixed, 184, "<u2")
    n_chans = _integer(fixed, 252, "<u4" if first else "<u2")
    n_records = _integer(fixed, 236, "<i8")
    if n_chans < 1 or not 256 * (n_chans + 1) <= header <= size or n_records < 0:
        raise ValueError(f"{n_chans} signals and {n_records} records in a header of {header} bytes")
    samples = np.frombuffer(rest, "<i4", n_chans, 216 * n_chans).astype(np.int64)
    kinds = np.frombuffer(rest, "<i4", n_chans, 220 * n_chans)
    if samples.min() < 1:
        raise ValueError(f"{samples.min()} samples in a record")
    per_record = sum(int(n) * _GDF_BYTES[int(kind)] for n, kind in zip(samples, kinds, strict=True))
    return header + n_records * per_record


def gdf_limits(path: Path) -> npt.NDArray[np.float64]:
    """Return the lowest and highest value (2, n_chans) that channels of a GDF file can hold, in its units."""
    with path.open("rb") as file:
        fixed = file.read(256)
        n_chans = _integer(fixed, 252, "<u4" if float(fixed[4:8]) < 1.9 else "<u2")
        # Labels (16 bytes), transducers (80) and units (8) stand before.
        file.seek(256 + 104 * n_chans)
        return np.frombuffer(file.read(16 * n_chans), "<f8").reshape(2, n_chans).copy()


def _integer(block: bytes, at: int, kind: str) -> int:
    return int(np.frombuffer(block, kind, 1, at)[0])
