"""Where the public data sets live, and what is to be had there."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch

from anchorinv.data.bci2a import SESSIONS

#: Asks an address for its text, and for the size of what lies there (None where the server does not say).
Ask = Callable[[str], str]
Size = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class Remote:
    """A file to be had.

    Parameters
    ----------
    name : path below the target folder.
    size : in bytes; None where unknown.
    checksum : as "sha256:..." or "md5:..."; None where the source publishes none.
    """

    name: str
    url: str
    size: int | None = None
    checksum: str | None = None


@dataclass(frozen=True, slots=True)
class Home:
    """The public home of a data set: its address, its terms, and how its files are listed."""

    address: str
    licence: str
    listing: Callable[[str, Ask, Size], list[Remote]]


def _bci2a(address: str, ask: Ask, size: Size) -> list[Remote]:
    """Nothing is listed there; a session's name is its file's."""
    urls = {f"{name}.mat": f"{address}/{name}.mat" for name in SESSIONS}
    return [Remote(name, url, size(url)) for name, url in urls.items()]


def _nhie(address: str, ask: Ask, size: Size) -> list[Remote]:
    """Zenodo lists names, sizes and checksums; the recordings in CSV are the same ones once more."""
    found, text = [], ask(address)
    try:
        for file in json.loads(text)["files"]:
            name, size_told = str(file["key"]), int(file["size"])
            if not re.search(r"csv_format|csv\.(xz|zip)$", name, flags=re.IGNORECASE):
                url = f"{address}/files/{name}/content"
                found.append(Remote(name, url, max(0, size_told), str(file["checksum"])))
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
        raise ValueError(f"{address} did not answer with a list of files; try again later") from None
    return found


def _grabmyo(address: str, ask: Ask, size: Size) -> list[Remote]:
    """PhysioNet lists names and checksums; rest (gesture 17) is not used, so it is not fetched."""
    found = []
    for line in ask(f"{address}/SHA256SUMS.txt").splitlines():
        checksum, _, name = line.strip().partition(" ")
        name = name.strip().lstrip("*")
        if re.search(r"_gesture(1[0-6]|[1-9])_trial\d+\.(dat|hea)$", name):
            # 32 signals of 10240 samples in two bytes; a header has about three thousand.
            usual = 655_360 if name.endswith(".dat") else 3_100
            found.append(Remote(name, f"{address}/{name}", usual, f"sha256:{checksum}"))
    return found


HOMES = {
    "bci2a": Home(
        "https://bnci-horizon-2020.eu/database/data-sets/001-2014",
        "CC BY-ND 4.0; cite Tangermann et al. 2012",
        _bci2a,
    ),
    "nhie": Home(
        "https://zenodo.org/api/records/6587973", "CC BY 4.0; cite O'Toole et al. 2023", _nhie
    ),
    "grabmyo": Home(
        "https://physionet.org/files/grabmyo/1.1.0", "CC BY 4.0; cite Pradhan et al. 2022", _grabmyo
    ),
}  # fmt: skip


def remote_files(
    name: str, ask: Ask, size: Size, *, mirror: str | None = None, only: str = "*"
) -> list[Remote]:
    """Return what there is of a data set; ``only`` is a pattern for names, such as "Session1/*"."""
    if name not in HOMES:
        raise ValueError(f"{name!r} is no known data set; known are {', '.join(HOMES)}")
    address = (mirror or HOMES[name].address).rstrip("/")
    found = [remote for remote in HOMES[name].listing(address, ask, size) if fnmatch(remote.name, only)]
    if not found:
        raise ValueError(
            f"{address} lists no files of {name}{'' if only == '*' else f' that match {only!r}'}"
        )
    return found
