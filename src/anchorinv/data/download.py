"""Fetch files politely: a few at a time, resumed, retried, checked, and never half there.

A file is written as ``NAME.part`` and continued there after a break. pooch checks it and moves it into place;
what its source publishes no checksum for is held to the one it had when it came (``.checksums.json``).
"""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from anchorinv._version import __version__
from anchorinv.core.progress import tick
from anchorinv.data.archives import ARCHIVES, unpack
from anchorinv.data.homes import Remote
from anchorinv.data.problems import needed, raise_if_any
from anchorinv.data.writing import sha256
from anchorinv.files import read_json, write_json

_LEDGER = ".checksums.json"
_CHUNK = 1 << 18
#: Answers of a server that is busy, not wrong.
_BUSY = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Manners:
    """How to ask.

    Parameters
    ----------
    jobs : files at a time.
    tries : per file and break.
    timeout : seconds without a byte until a connection counts as broken.
    pause : seconds before the second try; doubled before each further one.
    """

    jobs: int = 2
    tries: int = 5
    timeout: float = 30.0
    pause: float = 1.0


class Gone(ValueError):  # noqa: N818 (what the server says)
    """A file that the server does not have, or not for us: asking again does not help."""


@dataclass(slots=True)
class Client:
    """A connection to servers over http, with our manners."""

    manners: Manners = field(default_factory=Manners)
    received: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def text(self, url: str) -> str:
        """Return the text at an address."""
        return str(self._persist(url, lambda: self._get(url).text))

    def size(self, url: str) -> int | None:
        """Return the size of what lies at an address, where the server says."""
        length = self._persist(url, lambda: self._head(url)).headers.get("Content-Length")
        return int(length) if length and length.isdigit() else None

    def fetch(self, url: str, part: Path) -> None:
        """Fetch a file into ``part``, going on from what is already there."""
        self._persist(url, lambda: self._continue(url, part))

    def _persist(self, url: str, attempt: Any) -> Any:
        requests = needed("requests", extra="download")
        for failed in range(self.manners.tries):
            try:
                return attempt()
            except (requests.exceptions.RequestException, OSError) as error:
                if failed + 1 == self.manners.tries:
                    raise ValueError(
                        f"{url} could not be fetched in {self.manners.tries} tries ({_short(error)}); "
                        "run the same command again to go on"
                    ) from None
                time.sleep(self.manners.pause * 2**failed)
        raise AssertionError("tries is at least 1")

    def _get(self, url: str, **options: Any) -> Any:
        requests = needed("requests", extra="download")
        headers = {"User-Agent": f"anchorinv/{__version__}", "Accept-Encoding": "identity"}
        headers |= options.pop("headers", {})
        answer = requests.get(url, headers=headers, timeout=self.manners.timeout, **options)
        return self._accepted(url, answer)

    def _head(self, url: str) -> Any:
        requests = needed("requests", extra="download")
        headers = {"User-Agent": f"anchorinv/{__version__}", "Accept-Encoding": "identity"}
        answer = requests.head(url, headers=headers, timeout=self.manners.timeout, allow_redirects=True)
        return self._accepted(url, answer)

    def _accepted(self, url: str, answer: Any) -> Any:
        if answer.status_code in _BUSY:
            asked = answer.headers.get("Retry-After", "")
            time.sleep(min(float(asked), 60.0) if asked.isdigit() else 0.0)
            answer.raise_for_status()
        if answer.status_code >= 400 and answer.status_code != 416:
            raise Gone(f"{url} answered {answer.status_code} {answer.reason}; has the data set moved?")
        return answer

    def _continue(self, url: str, part: Path) -> None:
        marks = part.with_name(part.name + ".json")
        have, mark = part.stat().st_size if part.is_file() else 0, ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            mark = str(read_json(marks)["mark"])
        if not mark:  # without knowing that it is still the same file, nothing may be added to it
            have = 0
        headers = {"Range": f"bytes={have}-", "If-Range": mark} if have else {}
        with contextlib.closing(self._get(url, headers=headers, stream=True)) as answer:
            if answer.status_code == 416:  # more here than there
                part.unlink()
                raise OSError("the file on the server has become shorter")
            resumed = answer.status_code == 206
            mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            write_json(marks, {"mark": mark})
            whole = _whole(answer)
            with part.open("r+b" if resumed else "wb") as file:
                file.seek(have if resumed else 0)
                file.truncate()
                for block in answer.iter_content(_CHUNK):
                    file.write(block)
                    with self._lock:
                        self.received += len(block)
                got = file.tell()
        if whole is not None and got != whole:
            raise OSError(f"connection cut after {got} of {whole} bytes")
        marks.unlink()


def _whole(answer: Any) -> int | None:
    """Return the size of the whole file, where the answer says."""
    told = answer.headers.get("Content-Range", "").rpartition("/")[2] or answer.headers.get(
        "Content-Length", ""
    )
    return int(told) if told.isdigit() else None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def place_of(folder: Path, name: str) -> Path:
    """Return where a file goes; a name that leads out of the folder is refused."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name or not path.parts or name.startswith("/"):
        raise ValueError(f"{name!r} would lie outside {folder}; the list of files is not to be trusted")
    place = folder.joinpath(*path.parts)
    if not place.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name!r} would lie outside {folder}, through a link; remove the link")
    return place


def download(files: Sequence[Remote], to: Path, client: Client) -> list[str]:
    """Fetch all files that are not there already, unpack archives, and return notes on what was mended."""
    pooch = needed("pooch", extra="download")
    # pooch's word on each file would break the progress bar; a file's troubles are told by us.
    pooch.get_logger().setLevel(logging.ERROR)
    to.mkdir(parents=True, exist_ok=True)
    ledger: dict[str, str] = read_json(to / _LEDGER) if (to / _LEDGER).is_file() else {}
    places = {remote.name: place_of(to, remote.name) for remote in files}
    problems: list[str] = []
    notes: list[str] = []
    expected = max(1, sum(r.size or 0 for r in files if not places[r.name].is_file()) >> 10)
    pool = ThreadPoolExecutor(client.manners.jobs)
    try:
        tasks = {pool.submit(_fetched, r, places[r.name], ledger.get(r.name), client): r for r in files}
        pending = set(tasks)
        while pending:
            done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for task in done:
                try:
                    ledger[tasks[task].name], note = task.result()
                    notes += [note] if note else []
                except (ValueError, OSError) as error:
                    problems.append(f"{tasks[task].name}: {error}")
            tick("downloading (KB)", min(client.received >> 10, expected - 1), expected)
    finally:
        pool.shutdown(cancel_futures=True)
        write_json(to / _LEDGER, dict(sorted(ledger.items())))
    tick("downloading (KB)", expected, expected)
    raise_if_any(str(to), problems)
    for remote in files:
        if remote.name.lower().endswith(ARCHIVES):
            unpack(places[remote.name], to)
    return notes


def _fetched(remote: Remote, place: Path, known: str | None, client: Client) -> tuple[str, str]:
    """Have a file in its place; return its checksum, and a note if an older copy had to go."""
    pooch = needed("pooch", extra="download")
    checksum = remote.checksum or known
    note = ""
    if place.is_file():
        if checksum is None or pooch.hashes.hash_matches(str(place), checksum):
            return checksum or f"sha256:{sha256(place)}", note
        note = f"{remote.name} was broken or changed, and was fetched again"
        place.unlink()
    part = place.with_name(place.name + ".part")
    place.parent.mkdir(parents=True, exist_ok=True)

    def downloader(url: str, output: str, _: object) -> None:
        client.fetch(url, part)
        part.replace(output)

    try:
        pooch.retrieve(
            remote.url, remote.checksum, fname=place.name, path=place.parent, downloader=downloader
        )
    except ValueError as error:
        if "hash" not in str(error):
            raise
        raise ValueError(
            f"came with another {remote.checksum.partition(':')[0]} checksum than its source publishes, and was "
            "thrown away; try again, and if it stays so, tell the source"
            if remote.checksum
            else str(error)
        ) from None
    return remote.checksum or f"sha256:{sha256(place)}", note


def still_to_come(files: Sequence[Remote], to: Path) -> tuple[int, int, int]:
    """Return how many files are not there yet, their bytes, and for how many of them the size is unknown."""
    away = [remote for remote in files if not place_of(to, remote.name).is_file()]
    return len(away), sum(r.size or 0 for r in away), sum(r.size is None for r in away)


def check_space(to: Path, n_bytes: int) -> None:
    """Refuse to start what the disk cannot hold."""
    at = next(folder for folder in (to, *to.absolute().parents) if folder.exists())
    free = shutil.disk_usage(at).free
    if free < n_bytes:
        raise ValueError(
            f"{n_bytes / 1e9:.2f} GB are needed in {to} and {free / 1e9:.2f} GB are free; choose another disk"
        )
