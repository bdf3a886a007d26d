"""Known file formats, limits on what files may allocate, and checks of headers before a reader trusts them.

docs/data.md has the limits as a table.
"""

import gzip
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from anchorinv.errors import MissingExtra

#: Suffixes of files: windows, tables of samples, WFDB, and all continuous recordings.
WINDOWS = (".npz", ".npy")
TABLES = (".csv", ".csv.gz", ".csv.xz")
WFDB = (".hea", ".dat")
RECORDINGS = (".edf", ".bdf", ".gdf", ".fif", ".fif.gz", ".vhdr", *WFDB, *TABLES)
FILES = ".npz, .npy, EDF, BDF, GDF, FIF, BrainVision (.vhdr), WFDB (.hea, .dat), CSV"
KNOWN = f"a prepared folder, {FILES}"

#: mne's channel types that are voltages.
VOLTAGES = frozenset(("eeg", "eog", "emg", "ecg", "seeg", "ecog", "dbs", "bio", "resp"))

#: PhysioNet's annotator names; the first is the reference.
ANNOTATORS = (
    "atr", "ann", "ari", "ecg", "qrs", "gqrs", "sqrs", "wqrs", "man", "pu", "pu0", "pu1", "q1c", "q2c", "qt1",
    "qt2", "q1t", "q2t", "st", "sta", "stb", "stc", "stf", "apn", "hyp", "pwave", "wabp", "xws",
)  # fmt: skip

#: Values of a recording in memory (480 MB).
MAX_VALUES = 60_000_000
#: Samples of a channel that is filtered at once, which takes several copies.
MAX_SAMPLES = 15_000_000
#: Bytes that a byte of a file may unpack to, and values that it may encode: signals stay far below.
MAX_EXPANSION = 200
#: Bytes always allowed: a short file of zeros is not an attack.
ALWAYS_UNPACKED = 16 << 20
MAX_CHANNELS = 10_000
#: Rows of a table, labels, windows.
MAX_ROWS = 1_000_000
#: Bytes of a text header or table.
MAX_TEXT = 64 << 20
#: Events in a recording, and in a separate file: heartbeats of two days.
MAX_EVENTS, MAX_BEATS = 20_000, 250_000
#: Sampling rates in Hz.
MIN_SFREQ, MAX_SFREQ = 0.01, 1e7
#: Largest absolute value.
MAX_ABSOLUTE = 1e30

_GDF_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 8, 8: 8, 16: 4, 17: 8, 18: 16, 279: 3, 535: 3}
#: Tags of a FIF file: its directory, and references to the previous and next part of a split recording.
_DIRECTORY, _ROLE, _FILE_NUMBER, _FILE_NAME, _PREVIOUS, _NEXT = 101, 115, 117, 118, 1, 2
_TAGS = 200_000
#: Bytes of a text header, and characters of a line: readers' regular expressions take quadratic time.
_HEADER, _LINE = 4 << 20, 2_000
_SIGNAL = re.compile(r"(\S+)\s+(\d{1,4})(?:x(\d{1,9}))?(?::(\d{1,9}))?(?:\+(\d{1,12}))?(?!\S)")
_RECORD = re.compile(r"([^\s/]+)(/\d+)?\s+(\d{1,9})(?!\S)(?:\s+\S+)?(?:\s+(\d{1,12})(?!\S))?")
_CODEPAGE = re.compile(r"utf-?8|ansi|ascii|latin-?1|(cp|windows-|iso-8859-)\d{1,4}", re.IGNORECASE)


def has_suffix(path: Path, *suffixes: str) -> bool:
    """Return whether a name has one of these suffixes, in any case; ``.fif.gz`` is one suffix."""
    return path.name.lower().endswith(suffixes)


def is_recording(path: Path) -> bool:
    """Return whether a path is a continuous recording; a WFDB record may have no suffix."""
    return has_suffix(path, *RECORDINGS) or header_of(path) is not None


def header_of(path: Path) -> Path | None:
    """Return the header of a WFDB record that is named without a suffix, or by one of its annotators."""
    header = path.with_suffix(".hea")
    is_record = not path.suffix or path.suffix[1:].lower() in ANNOTATORS
    return header if is_record and header.is_file() else None


def unknown_format(path: Path) -> ValueError:
    """Return the error for a file of a format that is not read."""
    header = path.with_suffix(".vhdr")
    if has_suffix(path, ".eeg", ".vmrk") and header.is_file():
        return ValueError(f"{path} is a part of a BrainVision recording; name its header, {header}")
    return ValueError(f"{path} has an unknown format; known formats: {KNOWN}")


def missing_labels(path: Path) -> ValueError:
    """Return the error for windows, or a recording, without labels."""
    events = "name its events with --events, or " if is_recording(path) else ""
    remedy = f"{events}use a prepared folder (anchorinv prepare own), or an .npz with X and y"
    return ValueError(f"{path} has no labels of its windows; {remedy}")


def unpacked_limit(n_bytes: int) -> int:
    """Return the bytes that a file of this size may unpack to."""
    return ALWAYS_UNPACKED + MAX_EXPANSION * n_bytes


@contextmanager
def reading(path: Path, *, remedy: str | None = None) -> Iterator[None]:
    """Turn any error of a reader into one that names the file, and silence its warnings.

    ``remedy`` is that of a damaged file; with it, the library's own message is left out.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except MissingExtra:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):  # already a message
            raise
        if remedy is not None and not isinstance(error, OSError | MemoryError):
            raise ValueError(damaged(path, "", remedy)) from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{path} cannot be read ({reason}); is it damaged or cut short?") from error


def damaged(source: object, reason: str, remedy: str) -> str:
    """Return the message for a damaged file, with reason and remedy if known."""
    reason, remedy = reason and f": {reason}", remedy and f"; {remedy}"
    return f"{source} is cut short or damaged{reason}{remedy}"


def check_size(path: Path, n_chans: int, n_samples: int, *, filtered: bool = True) -> None:
    """Refuse signals that do not fit into memory; filtering takes several copies of a channel."""
    if filtered and n_samples > MAX_SAMPLES:
        most = f"at most {MAX_SAMPLES // 10**6} million are filtered at once; cut it into several files"
        raise ValueError(f"{path} has {n_samples} samples in each channel, and {most}")
    if (size := n_chans * n_samples) > MAX_VALUES:
        most = f"at most {MAX_VALUES // 10**6} million are read at once"
        raise ValueError(f"{path} holds {size} values, and {most}; choose fewer channels, or cut it")


def check_claim(path: Path, n_chans: int, n_samples: int, *files: Path) -> None:
    """Refuse a header that declares more values than the bytes of ``files`` (or ``path``) can encode."""
    n_bytes = sum(file.stat().st_size for file in files or (path,))
    if n_chans > MAX_CHANNELS:
        raise ValueError(f"{path} declares {n_chans} channels, and at most {MAX_CHANNELS} are read")
    if n_chans * n_samples > unpacked_limit(n_bytes):
        claim = f"{n_samples} samples in {n_chans} channels, which {n_bytes} bytes cannot hold"
        raise ValueError(f"{path} declares {claim}; is its header damaged?")


def check_rate(path: Path, sfreq: float) -> float:
    """Return a sampling rate if it is plausible."""
    if not MIN_SFREQ <= sfreq <= MAX_SFREQ:
        allowed = f"{MIN_SFREQ:g} to {MAX_SFREQ:g} are allowed"
        raise ValueError(f"{path} says a rate of {sfreq} Hz, {allowed}; is its header damaged?")
    return float(sfreq)


def check_range(path: Path, signals: npt.NDArray[np.float64]) -> None:
    """Refuse signals (n_chans, n_samples), which may have gaps, with too large values."""
    for channel in signals:
        if (largest := np.max(np.abs(channel), where=np.isfinite(channel), initial=0.0)) > MAX_ABSOLUTE:
            why = "is its header damaged, or its unit another?"
            raise ValueError(f"{path} has values up to {largest:.1e}, too large to compute with; {why}")


def read_text(path: Path, *, encoding: str = "utf-8-sig") -> str:
    """Return the text of a header or a table; binary or too long files are refused."""
    if (size := path.stat().st_size) > MAX_TEXT:
        raise ValueError(f"{path} has {size} bytes, and at most {MAX_TEXT >> 20} MB of a table or header")
    try:
        return path.read_bytes().decode(encoding)  # keep line ends: a quoted one is part of a name
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; save the table as CSV (UTF-8)") from None


def check_header(path: Path) -> None:
    """Refuse a file that is not EDF, BDF, GDF, FIF or BrainVision, or whose header does not fit it."""
    suffix = path.suffix.lower()
    if suffix in (".fif", ".gz"):
        _check_fif(path)
    elif suffix == ".vhdr":
        _check_brainvision(path)
    else:
        _check_records(path)


def check_wfdb(path: Path) -> None:
    """Refuse a WFDB header that refers to other folders, or declares more than its files contain."""
    header = path.with_suffix(".hea")
    lines = [line for line in _lines(header) if not line.startswith("#")]
    record = _RECORD.match(lines[0]) if lines else None
    if record is None:
        raise ValueError(f"{path} is not a WFDB header; is it damaged?")
    if record[2]:
        raise ValueError(f"{path} is a record of several segments; name one of them")
    if int(record[3]) != len(lines) - 1:
        raise ValueError(f"{path} declares {record[3]} signals and describes {len(lines) - 1}")
    signals = [_SIGNAL.match(line) for line in lines[1:]]
    if not signals or None in signals:
        raise ValueError(f"{path} has no signals, or invalid lines; is it damaged?")
    fields = [signal for signal in signals if signal is not None]
    files = {_beside(path, signal[1]) for signal in fields}
    n_samples = int(record[4] or 0)
    per_frame = sum(int(signal[3] or 1) for signal in fields)
    check_claim(path, len(fields), 0)
    check_claim(path, 1, per_frame * max(1, n_samples), *files)
    if any(int(signal[4] or 0) > n_samples for signal in fields):
        raise ValueError(f"{path} shifts signals by more than their length; is it damaged?")


def _check_brainvision(path: Path) -> None:
    """Refuse a BrainVision header that refers to other folders, or would keep a reader busy forever."""
    lines = _lines(path)
    folded = [line.casefold() for line in lines]
    lines = lines[: folded.index("[comment]")] if "[comment]" in folded else lines
    keys = ("DataFile", "MarkerFile", "NumberOfChannels", "SkipLines", "Codepage")
    values: dict[str, list[str]] = {key: [] for key in keys}
    for line, delimiter, key in product(lines, "=:", keys):
        name, _, value = line.partition(delimiter)
        if name.strip().casefold() == key.casefold():
            values[key].append(value.strip())
    _beside(path, *values["DataFile"])
    for name in filter(None, values["MarkerFile"]):
        _check_plain(path, name)
    for key, most in (("NumberOfChannels", MAX_CHANNELS), ("SkipLines", 1000)):
        for value in values[key]:
            if not re.fullmatch(r"\d{1,6}", value) or int(value) > most:
                raise ValueError(f"{path} has {key} {value[:40]!r}, and at most {most} are allowed")
    channels = (re.match(r"Ch\d+(?=\s*=)", line, re.IGNORECASE) for line in lines)
    described = {channel[0].casefold() for channel in channels if channel}
    if [str(len(described))] != values["NumberOfChannels"]:
        claimed = ", ".join(values["NumberOfChannels"]) or "no"
        raise ValueError(f"{path} declares {claimed} channels and describes {len(described)}")
    markers = [path.parent / name for name in values["MarkerFile"]] + [path.with_suffix(".vmrk")]
    for file in {marker for marker in markers if marker.is_file()}:
        events = _lines(file)
        if sum(line.startswith("Mk") for line in events) > MAX_EVENTS:
            raise ValueError(f"{file} has more than {MAX_EVENTS} markers; is it damaged?")
        values["Codepage"] += [line.partition("=")[2] for line in events if "codepage=" in line.casefold()]
    for name in values["Codepage"]:
        if not _CODEPAGE.fullmatch(name.strip()):
            raise ValueError(f"{path} is written in {name[:40]!r}, which is not a known encoding")


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"{path} is missing; keep the header next to its samples")
    if path.stat().st_size > _HEADER:
        raise ValueError(f"{path} has more than {_HEADER >> 20} MB, too much for a header; is it damaged?")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:  # an older encoding; names are only compared with file names
        text = content.decode("latin-1")
    lines = [line.strip() for line in text.splitlines()]
    if max(map(len, lines), default=0) > _LINE:
        raise ValueError(f"{path} has a line of more than {_LINE} characters; is it damaged?")
    return list(filter(None, lines))


def _beside(path: Path, *names: str) -> Path:
    if len(names) != 1:
        raise ValueError(f"{path} names {len(names)} files of samples, expected one; is it damaged?")
    _check_plain(path, names[0])
    if not (path.parent / names[0]).is_file():
        raise ValueError(f"{path} refers to {names[0]}, which is not next to it; keep both in one folder")
    return path.parent / names[0]


def _check_plain(path: Path, name: str) -> None:
    if not name or re.search(r"[/\\:%\0]", name) or name in (".", ".."):
        raise ValueError(f"{path} names {name[:80]!r}, which is not in its folder, so it is not read")


def _check_records(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        fixed = file.read(256)
        if len(fixed) < 256:
            raise ValueError(f"{path} is cut short: a header has 256 bytes, the file {len(fixed)}")
        gdf = fixed[:3] == b"GDF"
        if gdf != (path.suffix.lower() == ".gdf"):
            raise ValueError(f"{path} is not a {path.suffix[1:].upper()} file: it starts with {fixed[:8]!r}")
        try:
            claimed = _gdf(fixed, file, size) if gdf else _edf(path, fixed, file, size)
        except (ValueError, KeyError, IndexError, OverflowError) as error:
            raise ValueError(f"{path} has a damaged header ({error}); download or export it again") from None
    if claimed > size:
        short = f"{path} is cut short: its header declares {claimed} bytes, the file has {size}"
        raise ValueError(f"{short}; download or export it again")


def _check_fif(path: Path, *before: Path) -> None:
    """Follow the tags of a split FIF recording: a cycle of parts would be read forever."""
    packed = path.suffix.lower() == ".gz"
    opener: Any = gzip.open if packed else open
    with opener(path, "rb") as file:
        name = _next_part(path, file, _unpacked(path) if packed else path.stat().st_size)
    if name is not None:
        _check_plain(path, name)
        following = path.parent / name
        if following in (path, *before) or not following.is_file():
            other = f"{path} continues in another file, {name!r}, which is missing or was read already"
            raise ValueError(f"{other}; keep all parts of a recording in one folder, under their own names")
        _check_fif(following, path, *before)


def _unpacked(path: Path) -> int:
    most, size = unpacked_limit(path.stat().st_size), 0
    with gzip.open(path, "rb") as file:
        while block := file.read(1 << 20):
            size += len(block)
            if size > most:
                raise ValueError(
                    f"{path} unpacks to more than {MAX_EXPANSION} times its size; is it damaged?"
                )
    return size


def _next_part(path: Path, file: IO[bytes], size: int) -> str | None:
    at, role, n_tags, directory = 0, 0, 0, -1
    name, places = None, set()
    while at < size:
        kind, _, length, following = _tag(path, file, at)
        end = at + 16 + length
        if not at < end <= size or (following > 0 and not at < following <= size) or following < -1:
            raise ValueError(f"{path} is damaged or cut short: a tag at {at} points to {end} of {size} bytes")
        if (n_tags := n_tags + 1) > _TAGS:
            raise ValueError(f"{path} has more than {_TAGS} tags; is it damaged?")
        if kind in (_ROLE, _DIRECTORY):
            value = int.from_bytes(file.read(length)[:4], "big", signed=True)
            role, directory = (value, directory) if kind == _ROLE else (role, value)
        if kind in (_FILE_NUMBER, _FILE_NAME):
            other = file.read(min(length, 1000)).decode("latin-1") if kind == _FILE_NAME else name
            name = name or other if role == _NEXT else name
            if role not in (_PREVIOUS, _NEXT) or (role == _NEXT and (not other or other != name)):
                raise ValueError(f"{path} continues in another file that it does not name; is it damaged?")
            places.add(at)
        if following == -1:
            break
        at = following or end
    if 0 < directory < size:
        _check_directory(path, file, directory, places)
    return name


def _tag(path: Path, file: IO[bytes], at: int) -> tuple[int, ...]:
    file.seek(at)
    tag = file.read(16)
    if len(tag) < 16:
        raise ValueError(f"{path} is cut short: it ends within a tag")
    return tuple(np.frombuffer(tag, ">i4").tolist())


def _check_directory(path: Path, file: IO[bytes], at: int, places: set[int]) -> None:
    """Check the directory at the end of a file, which readers trust, against references to other files."""
    length = _tag(path, file, at)[2]
    if not 0 <= length <= 16 * _TAGS:
        raise ValueError(f"{path} has a directory of {length} bytes; is it damaged?")
    content = file.read(length)
    entries = np.frombuffer(content[: len(content) // 16 * 16], ">i4").reshape(-1, 4)
    references = entries[np.isin(entries[:, 0], (_FILE_NUMBER, _FILE_NAME))]
    if not set(references[:, 3].tolist()) <= places:
        raise ValueError(f"{path} continues in another file that it does not name; is it damaged?")


def _edf(path: Path, fixed: bytes, file: IO[bytes], size: int) -> int:
    n_chans, n_records = int(fixed[252:256]), int(fixed[236:244])
    header, seconds = int(fixed[184:192]), float(fixed[244:252])
    if n_chans < 1 or not header == 256 * (n_chans + 1) <= size:
        raise ValueError(f"{n_chans} signals in a header of {header} bytes")
    rest = file.read(256 * n_chans)
    at = 216 * n_chans
    samples = [int(rest[at + 8 * i : at + 8 * (i + 1)]) for i in range(n_chans)]
    if min(samples) < 1:
        raise ValueError(f"{min(samples)} samples in a record")
    _check_rate(max(samples), seconds)
    width = 3 if path.suffix.lower() == ".bdf" else 2
    per_record = sum(samples) * width
    labels = [rest[16 * i : 16 * (i + 1)].strip() for i in range(n_chans)]
    for i, name in enumerate(labels):
        if name in (b"EDF Annotations", b"BDF Annotations"):
            length = samples[i] * width
            starts = range(header + sum(samples[:i]) * width, size - length + 1, per_record)
            _check_annotations(_pieces(file, starts, length), len(starts))
    # -1 records: the recording was not closed, and readers use the size of the file.
    return header + max(n_records, 0) * per_record


def _check_rate(samples: int, seconds: float) -> None:
    if not seconds > 0 or not MIN_SFREQ <= samples / seconds <= MAX_SFREQ:
        raise ValueError(f"{samples} samples in data records of {seconds} s")


def _pieces(file: IO[bytes], starts: range, length: int) -> Iterator[bytes]:
    """Yield the bytes of a signal in each record, about a megabyte at a time."""
    many = max(1, (1 << 20) // length)
    for first in range(0, len(starts), many):
        piece = bytearray()
        for start in starts[first : first + many]:
            file.seek(start)
            piece += file.read(length)
        yield bytes(piece)


def _check_annotations(pieces: Iterable[bytes], n_records: int) -> None:
    """Refuse annotations for which mne's regular expression would take quadratic time."""
    n_events, tail = -n_records, b""  # each record has one with only its time
    for piece in pieces:
        annotations = tail + piece
        n_events += annotations.count(b"\x14\x00")
        if re.search(rb"[0-9]{40}", annotations) or n_events > MAX_EVENTS:
            raise ValueError("invalid annotations, or too many")
        for line in annotations.split(b"\n"):
            tail = line.rpartition(b"\x14\x00")[2]
            if len(tail) > 1000 and b"\x14" in tail:
                raise ValueError("annotations without an end")
        tail = tail if b"\x14" in tail else tail[-100:]  # one may begin at the end of a chunk


def _gdf(fixed: bytes, file: IO[bytes], size: int) -> int:
    version = float(fixed[4:8])
    if not 1 <= version < 3:
        raise ValueError(f"version {version}")
    first = version < 1.9
    header = _integer(fixed, 184, "<i8") if first else 256 * _integer(fixed, 184, "<u2")
    n_chans = _integer(fixed, 252, "<u4" if first else "<u2")
    n_records = _integer(fixed, 236, "<i8")
    if not 1 <= n_chans <= MAX_CHANNELS or not 256 * (n_chans + 1) <= header <= size or n_records < 0:
        raise ValueError(f"{n_chans} signals and {n_records} records in a header of {header} bytes")
    rest = file.read(256 * n_chans)
    samples = np.frombuffer(rest, "<i4", n_chans, 216 * n_chans).astype(np.int64)
    kinds = np.frombuffer(rest, "<i4", n_chans, 220 * n_chans)
    if samples.min() < 1:
        raise ValueError(f"{samples.min()} samples in a record")
    # A numerator of 0 means 1 s.
    _check_rate(int(samples.max()) * _integer(fixed, 248, "<u4"), max(1, _integer(fixed, 244, "<u4")))
    per_record = sum(int(n) * _GDF_BYTES[int(kind)] for n, kind in zip(samples, kinds, strict=True))
    events = header + n_records * per_record
    if events < size:
        file.seek(events)
        return events + _event_bytes(file.read(8), version)
    return events


def _event_bytes(table: bytes, version: float) -> int:
    """Return the size of a table of events: sample and type, optionally channel and duration."""
    if len(table) < 8:
        raise ValueError("a table of events without its size")
    n_events = int.from_bytes(table[4:8] if version < 1.94 else table[1:4], "little")
    if n_events > MAX_EVENTS:
        raise ValueError(f"{n_events} events, and at most {MAX_EVENTS} are read")
    return 8 + n_events * (12 if table[0] == 3 else 6)


def gdf_limits(path: Path) -> npt.NDArray[np.float64]:
    """Return the lowest and the highest value (2, n_chans) that channels of a GDF file can hold."""
    with path.open("rb") as file:
        fixed = file.read(256)
        n_chans = _integer(fixed, 252, "<u4" if float(fixed[4:8]) < 1.9 else "<u2")
        # After labels (16 bytes), transducers (80) and units (8).
        file.seek(256 + 104 * n_chans)
        return np.frombuffer(file.read(16 * n_chans), "<f8").reshape(2, n_chans).copy()


def _integer(block: bytes, at: int, kind: str) -> int:
    return int(np.frombuffer(block, kind, 1, at)[0])
