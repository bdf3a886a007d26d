"""Download public data sets: in parallel, resumed, retried and verified.

pooch verifies each file. pooch 1.9 cannot resume, its retries cannot be interrupted in a thread, and its
``Unzip`` limits neither size nor location, so these parts are here. Files without a published checksum are
compared with that of the first download (``.checksums.json``).
"""

import contextlib
import json
import re
import shutil
import stat
import threading
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from fnmatch import fnmatch
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import Any

from anchorinv import __version__
from anchorinv.datasets.paper_sets import SESSIONS
from anchorinv.datasets.prepare import sha256
from anchorinv.errors import import_extra, raise_if_any
from anchorinv.files import read_json, replacing, write_json
from anchorinv.progress import tick
from anchorinv.signal.headers import MAX_TEXT

_CHECKSUMS = ".checksums.json"
_CHUNK = 1 << 16
#: Tolerance in bytes beyond the listed size, and the maximum for files without one.
_TOLERANCE, _UNLISTED = 1 << 20, 4 << 30
#: HTTP status codes to retry.
_BUSY = (408, 429, 500, 502, 503, 504)


class NotAvailable(ValueError):  # noqa: N818 (named after the server's answer)
    """A file that the server does not have or refuses: a retry does not help."""


@dataclass(slots=True)
class HttpClient:
    """HTTP requests with retries, and resumed downloads."""

    jobs: int = 2  # files at a time
    tries: int = 5  # attempts per file
    timeout: float = 30.0  # seconds without a byte after which a connection counts as broken
    pause: float = 1.0  # seconds before the second attempt; doubled before each further one
    received: int = 0  # bytes so far
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Stop running downloads; partial files are kept and resumed later."""
        self._stopped.set()

    def text(self, url: str) -> str:
        """Return the text at an address."""
        return str(self._with_retries(url, lambda: self._text(url)))

    def size(self, url: str) -> int | None:
        """Return the size of what is at an address, if the server says."""
        length = self._with_retries(url, lambda: self._request("HEAD", url)).headers.get("Content-Length")
        return int(length) if length and length.isdigit() else None

    def fetch(self, url: str, part: Path, *, size: int | None = None) -> None:
        """Download into ``part``, resuming it; far more than its listed ``size`` is refused."""
        most = _UNLISTED if size is None else size + max(_TOLERANCE, size // 10)
        self._with_retries(url, lambda: self._resume(url, part, most))

    def _with_retries(self, url: str, attempt: Callable[[], Any]) -> Any:
        requests = import_extra("requests", extra="download")
        for failures in range(self.tries):
            try:
                return attempt()
            except (requests.exceptions.RequestException, OSError) as error:
                if failures + 1 == self.tries:
                    reason = " ".join(str(error).split())[:160] or type(error).__name__
                    failed = f"{url} could not be fetched in {self.tries} tries ({reason})"
                    raise ValueError(f"{failed}; run the same command again to continue") from None
                self._stopped.wait(self.pause * 2**failures)
        raise AssertionError("tries is at least 1")

    def _request(self, method: str, url: str, headers: dict[str, str] | None = None) -> Any:
        requests = import_extra("requests", extra="download")
        headers = {"User-Agent": f"anchorinv/{__version__}", "Accept-Encoding": "identity"} | (headers or {})
        options = {"timeout": self.timeout, "allow_redirects": True, "stream": method == "GET"}
        response = requests.request(method, url, headers=headers, **options)
        status = response.status_code
        if status >= 400:
            response.close()
        if status in _BUSY:
            seconds = response.headers.get("Retry-After", "")
            self._stopped.wait(min(float(seconds), 60.0) if seconds.isdigit() else 0.0)
            response.raise_for_status()
        if status >= 400 and status != 416:
            raise NotAvailable(f"{url} answered {status} {response.reason}; has the data set moved?")
        return response

    def _text(self, url: str) -> str:
        content = bytearray()
        with contextlib.closing(self._request("GET", url)) as response:
            for block in response.iter_content(_CHUNK):
                content += block
                if len(content) > MAX_TEXT:
                    raise NotAvailable(f"{url} sent more than {MAX_TEXT >> 20} MB; is it the right address?")
        return content.decode("utf-8", errors="replace")

    def _resume(self, url: str, part: Path, most: int) -> None:
        tags = part.with_name(part.name + ".json")
        n_bytes, tag = part.stat().st_size if part.is_file() else 0, ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            tag = str(read_json(tags)["mark"])
        # Without an ETag it may be another file by now.
        headers = {"Range": f"bytes={n_bytes}-", "If-Range": tag} if n_bytes and tag else {}
        with contextlib.closing(self._request("GET", url, headers)) as response:
            if response.status_code == 416:  # longer than on the server
                part.unlink(missing_ok=True)
                raise OSError("the file on the server has become shorter")
            start = n_bytes if response.status_code == 206 else 0
            fields = response.headers
            total = fields.get("Content-Range", "").rpartition("/")[2] or fields.get("Content-Length", "")
            with part.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.truncate()
                # Only now: an ETag must never be stored with the bytes of another file.
                write_json(tags, {"mark": fields.get("ETag") or fields.get("Last-Modified") or ""})
                for block in response.iter_content(_CHUNK):
                    if self._stopped.is_set():
                        raise NotAvailable("stopped")
                    if file.tell() + len(block) > most:
                        file.truncate(0)
                        raise NotAvailable(f"{url} sends more than the expected {most} bytes; stopped")
                    file.write(block)
                    with self._lock:
                        self.received += len(block)
                size = file.tell()
        if total.isdigit() and size != int(total):
            raise OSError(f"connection cut after {size} of {total} bytes")
        tags.unlink()


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to download."""

    name: str  # path below the target folder
    url: str
    size: int | None = None  # in bytes
    checksum: str | None = None  # "sha256:..." or "md5:..."; None where the source publishes none


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """The source of a public set: URL, licence, and a function that lists its files."""

    address: str
    licence: str
    list_files: Callable[[str, HttpClient], list[RemoteFile]]


def _list_bci2a(address: str, client: HttpClient) -> list[RemoteFile]:
    """There is no listing; files are named after sessions."""
    urls = [f"{address}/{session}.mat" for session in SESSIONS]
    return [RemoteFile(url.rpartition("/")[2], url, client.size(url)) for url in urls]


def _list_nhie(address: str, client: HttpClient) -> list[RemoteFile]:
    """Zenodo lists names, sizes and checksums; the recordings in CSV are duplicates."""
    files, text = [], client.text(address)
    try:
        for file in json.loads(text)["files"]:
            name, size = str(file["key"]), max(0, int(file["size"]))
            if not re.search(r"csv_format|csv\.(xz|zip)$", name, flags=re.IGNORECASE):
                url = f"{address}/files/{name}/content"
                files.append(RemoteFile(name, url, size, str(file["checksum"])))
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
        raise ValueError(f"{address} did not return a list of files; try again later") from None
    return files


def _list_grabmyo(address: str, client: HttpClient) -> list[RemoteFile]:
    """PhysioNet lists names and checksums; gesture 17, rest, is not used."""
    files = []
    for line in client.text(f"{address}/SHA256SUMS.txt").splitlines():
        checksum, _, name = line.strip().partition(" ")
        name = name.strip().lstrip("*")
        if re.search(r"_gesture(1[0-6]|[1-9])_trial\d+\.(dat|hea)$", name):
            # 32 signals of 10240 samples in two bytes; a header has about three thousand.
            size = 655_360 if name.endswith(".dat") else 3_100
            files.append(RemoteFile(name, f"{address}/{name}", size, f"sha256:{checksum}"))
    return files


REMOTES = {
    "bci2a": RemoteSource("https://bnci-horizon-2020.eu/database/data-sets/001-2014",
                          "CC BY-ND 4.0; cite Tangermann et al. 2012", _list_bci2a),
    "nhie": RemoteSource("https://zenodo.org/api/records/6587973",
                         "CC BY 4.0; cite O'Toole et al. 2023", _list_nhie),
    "grabmyo": RemoteSource("https://physionet.org/files/grabmyo/1.1.0",
                            "CC BY 4.0; cite Pradhan et al. 2022", _list_grabmyo),
}  # fmt: skip


def remote_files(
    name: str, client: HttpClient, *, mirror: str | None = None, only: str = "*"
) -> list[RemoteFile]:
    """List the files of a public set whose names match ``only``; a ``mirror`` has the same files."""
    if name not in REMOTES:
        raise ValueError(f"{name!r} is not a known data set; known: {', '.join(REMOTES)}")
    address = (mirror or REMOTES[name].address).rstrip("/")
    files = [file for file in REMOTES[name].list_files(address, client) if fnmatch(file.name, only)]
    if not files:
        raise ValueError(f"{address} has no files of {name}{'' if only == '*' else f' that match {only!r}'}")
    return files


def download(files: Sequence[RemoteFile], to: Path, client: HttpClient) -> list[str]:
    """Download missing files and unpack archives; return notes on files that were replaced."""
    import_extra("pooch", extra="download")
    to.mkdir(parents=True, exist_ok=True)
    checksums = _read_checksums(to / _CHECKSUMS)
    paths = {file.name: confined_path(to, file.name) for file in files}
    problems: list[str] = []
    notes: list[str] = []
    expected = max(1, sum(file.size or 0 for file in files if not paths[file.name].is_file()) >> 20)
    pool = ThreadPoolExecutor(client.jobs)
    try:
        tasks = {pool.submit(_fetch, f, paths[f.name], checksums.get(f.name), client): f for f in files}
        pending = set(tasks)
        while pending:
            done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for task in done:
                try:
                    checksums[tasks[task].name], note = task.result()
                    notes += [note] if note else []
                except (ValueError, OSError) as error:
                    problems.append(f"{tasks[task].name}: {error}")
            tick("downloading (MB)", min(client.received >> 20, expected - 1), expected)
    finally:
        client.stop()
        pool.shutdown(cancel_futures=True)
        write_json(to / _CHECKSUMS, dict(sorted(checksums.items())))
    tick("downloading (MB)", expected, expected)
    raise_if_any(str(to), problems)
    for file in files:
        if file.name.lower().endswith(".zip"):
            unpack(paths[file.name], to)
    return notes


def _read_checksums(path: Path) -> dict[str, str]:
    checksums = read_json(path) if path.is_file() else {}
    if not isinstance(checksums, dict) or not all(isinstance(value, str) for value in checksums.values()):
        raise ValueError(f"{path} is damaged: it is not a list of checksums; delete it")
    return checksums


def _fetch(file: RemoteFile, path: Path, known: str | None, client: HttpClient) -> tuple[str, str]:
    """Provide a file; return its checksum, and a note if an earlier copy was replaced."""
    pooch = import_extra("pooch", extra="download")
    checksum, note = file.checksum or known, ""
    if path.is_file():
        if checksum is None or pooch.hashes.hash_matches(str(path), checksum):
            return checksum or f"sha256:{sha256(path)}", note
        note = f"{file.name} was broken or changed, and was fetched again"
        path.unlink()
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2 if part.is_file() else 1):  # a resumed file may have parts of two: then it is restarted
        client.fetch(file.url, part, size=file.size)
        if file.checksum is None or pooch.hashes.hash_matches(str(part), file.checksum):
            part.replace(path)
            return file.checksum or f"sha256:{sha256(path)}", note
        part.unlink()
    remedy = "try again, and report it to the source if it persists"
    raise ValueError(f"its checksum is not the published one, so it was deleted; {remedy}")


def count_missing(files: Sequence[RemoteFile], to: Path) -> tuple[int, int, int]:
    """Return the number of missing files, their bytes, and how many have no listed size."""
    missing = [file for file in files if not confined_path(to, file.name).is_file()]
    return len(missing), sum(file.size or 0 for file in missing), sum(file.size is None for file in missing)


def check_space(to: Path, n_bytes: int) -> None:
    """Refuse downloads that do not fit on the disk."""
    existing = next(folder for folder in (to, *to.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < n_bytes:
        raise ValueError(f"{n_bytes / 1e9:.2f} GB needed in {to}, {free / 1e9:.2f} free; choose another disk")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip file; existing members of the right size are kept.

    Names that lead out of the folder, links, and more than the disk holds are refused before anything is
    written: zipfile, and pooch's ``Unzip`` with it, would write such members elsewhere in the folder.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            new, problems = [], []
            for member in file.infolist():
                if member.is_dir():
                    continue
                try:
                    if stat.S_ISLNK(member.external_attr >> 16):
                        raise ValueError(f"{member.filename!r} is a link")
                    path = confined_path(folder, member.filename)
                    if not path.is_file() or path.stat().st_size != member.file_size:
                        new.append((member, path))
                except ValueError as error:
                    problems.append(f"{error}; nothing was unpacked")
            raise_if_any(str(archive), problems)
            size, free = sum(member.file_size for member, _ in new), shutil.disk_usage(folder).free
            if size > free:
                raise ValueError(f"{archive} unpacks to {size / 1e9:.2f} GB and {free / 1e9:.2f} GB are free")
            for i, (member, path) in enumerate(new):
                tick(f"unpacking {archive.name}", i, len(new))
                with file.open(member) as source, replacing(path) as beside, beside.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
            tick(f"unpacking {archive.name}", len(new), len(new))
    except (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{archive} is a damaged archive ({error}); delete and download it again") from None


def confined_path(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder; a name that leads out of it is refused."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name or not path.parts or name.startswith("/"):
        raise ValueError(f"{name!r} would be outside {folder}; do not trust its source")
    target = folder.joinpath(*path.parts)
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name!r} would be outside {folder}, through a link; remove the link")
    return target
