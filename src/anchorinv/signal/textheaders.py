"""Headers in text, of WFDB and BrainVision recordings: held to the files beside them, and to no others."""

import re
from pathlib import Path

from anchorinv.signal.limits import CHANNELS, EVENTS, check_claim

_HEADER = 4 << 20
_LINE = 2_000  # readers match lines by patterns that take the square of their length
_SIGNAL = re.compile(r"(\S+)\s+(\d{1,4})(?:x(\d{1,9}))?(?::(\d{1,9}))?(?:\+(\d{1,12}))?(?!\S)")
_RECORD = re.compile(r"([^\s/]+)(/\d+)?\s+(\d{1,9})(?!\S)(?:\s+\S+)?(?:\s+(\d{1,12})(?!\S))?")
_CODEPAGE = re.compile(r"utf-?8|ansi|ascii|latin-?1|(cp|windows-|iso-8859-)\d{1,4}", re.IGNORECASE)


def check_wfdb(path: Path) -> None:
    """Refuse a WFDB header that names files elsewhere, or speaks of more than its files hold."""
    header = path.with_suffix(".hea")
    lines = [line for line in _lines(header) if not line.startswith("#")]
    record = _RECORD.match(lines[0]) if lines else None
    if record is None:
        raise ValueError(f"{path} is no WFDB header; is it damaged?")
    if record[2]:
        raise ValueError(f"{path} is a record of several segments; hand in one of them")
    if int(record[3]) != len(lines) - 1:
        raise ValueError(f"{path} speaks of {record[3]} signals and describes {len(lines) - 1}")
    signals = [_SIGNAL.match(line) for line in lines[1:]]
    if not signals or None in signals:
        raise ValueError(f"{path} has no signals, or lines that describe none; is it damaged?")
    told = [signal.groups() for signal in signals if signal is not None]
    files = {_beside(path, name) for name, *_ in told}
    n_samples = int(record[4] or 0)
    per_frame = sum(int(many or 1) for _, _, many, _, _ in told)
    check_claim(path, len(told), 0)
    check_claim(path, 1, per_frame * max(1, n_samples), *files)
    if any(int(skew or 0) > n_samples for _, _, _, skew, _ in told):
        raise ValueError(f"{path} shifts signals by more than their length; is it damaged?")


def check_brainvision(path: Path) -> None:
    """Refuse a BrainVision header that names files elsewhere, or has a reader wait for ever."""
    lines = _lines(path)
    folded = [line.casefold() for line in lines]
    lines = lines[: folded.index("[comment]")] if "[comment]" in folded else lines
    told = {
        key: [
            line.partition(delimiter)[2].strip()
            for line in lines
            for delimiter in "=:"
            if _says(line, key, delimiter)
        ]
        for key in ("DataFile", "MarkerFile", "NumberOfChannels", "SkipLines", "Codepage")
    }
    _beside(path, *told["DataFile"])
    for name in filter(None, told["MarkerFile"]):
        check_plain(path, name)
    for key, most in (("NumberOfChannels", CHANNELS), ("SkipLines", 1000)):
        for value in told[key]:
            if not re.fullmatch(r"\d{1,6}", value) or int(value) > most:
                raise ValueError(f"{path} has {key} {value[:40]!r}, and at most {most} are taken")
    described = {found[0].casefold() for line in lines if (found := re.match(r"Ch\d+(?=\s*=)", line, re.I))}
    if [str(len(described))] != told["NumberOfChannels"]:
        claimed = ", ".join(told["NumberOfChannels"]) or "no"
        raise ValueError(f"{path} speaks of {claimed} channels and describes {len(described)}")
    markers = [path.parent / name for name in told["MarkerFile"]] + [path.with_suffix(".vmrk")]
    for file in {marker for marker in markers if marker.is_file()}:
        events = _lines(file)
        if sum(line.startswith("Mk") for line in events) > EVENTS:
            raise ValueError(f"{file} has more than {EVENTS} markers; is it damaged?")
        told["Codepage"] += [line.partition("=")[2] for line in events if "codepage=" in line.casefold()]
    for name in told["Codepage"]:
        if not _CODEPAGE.fullmatch(name.strip()):
            raise ValueError(f"{path} is written in {name[:40]!r}, which is no known code page")


def _lines(path: Path) -> list[str]:
    """Return the lines of a header that are not empty."""
    if not path.is_file():
        raise ValueError(f"{path} is not there; keep the header beside its samples")
    if path.stat().st_size > _HEADER:
        raise ValueError(f"{path} has more than {_HEADER >> 20} MB, too much for a header; is it damaged?")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:  # an older code page; names in it are only compared with those of files
        text = content.decode("latin-1")
    lines = [line.strip() for line in text.splitlines()]
    if max(map(len, lines), default=0) > _LINE:
        raise ValueError(f"{path} has a line of more than {_LINE} characters; is it damaged?")
    return list(filter(None, lines))


def _says(line: str, key: str, delimiter: str) -> bool:
    return line.partition(delimiter)[0].strip().casefold() == key.casefold()


def _beside(path: Path, *names: str) -> Path:
    """Return the one file of samples that a header names; it lies beside the header, or nowhere."""
    if len(names) != 1:
        raise ValueError(f"{path} names {len(names)} files of samples, one is wanted; is it damaged?")
    check_plain(path, names[0])
    if not (path.parent / names[0]).is_file():
        raise ValueError(f"{path} speaks of {names[0]}, which is not beside it; keep both in one folder")
    return path.parent / names[0]


def check_plain(path: Path, name: str) -> None:
    """Refuse a name that a header gives a file, unless it can only lie beside the header."""
    if not name or re.search(r"[/\\:%\0]", name) or name in (".", ".."):
        raise ValueError(
            f"{path} names {name[:80]!r}, which does not lie beside it; files elsewhere are not read"
        )
