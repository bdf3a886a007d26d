"""Ask servers for files: with patience, from where the last attempt broke off."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anchorinv._version import __version__
from anchorinv.files import read_json, write_json
from anchorinv.problems import needed
from anchorinv.signal.limits import TEXT

_CHUNK = 1 << 16
#: Bytes beyond what is listed that are still taken, and those of a file that nobody lists.
_MORE, _UNLISTED = 1 << 20, 4 << 30
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
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Let whatever is under way end soon; what has come stays to be continued."""
        self._stopped.set()

    def text(self, url: str) -> str:
        """Return the text at an address."""
        return str(self._persist(url, lambda: self._text(url)))

    def size(self, url: str) -> int | None:
        """Return the size of what lies at an address, where the server says."""
        length = self._persist(url, lambda: self._ask("HEAD", url)).headers.get("Content-Length")
        return int(length) if length and length.isdigit() else None

    def fetch(self, url: str, part: Path, *, size: int | None = None) -> None:
        """Fetch a file into ``part``, from where it broke off; stop well beyond its listed ``size``."""
        most = _UNLISTED if size is None else size + max(_MORE, size // 10)
        self._persist(url, lambda: self._continue(url, part, most))

    def _persist(self, url: str, attempt: Callable[[], Any]) -> Any:
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
                self._stopped.wait(self.manners.pause * 2**failed)
        raise AssertionError("tries is at least 1")

    def _ask(self, method: str, url: str, **options: Any) -> Any:
        requests = needed("requests", extra="download")
        headers = {"User-Agent": f"anchorinv/{__version__}", "Accept-Encoding": "identity"}
        headers |= options.pop("headers", {})
        answer = requests.request(
            method, url, headers=headers, timeout=self.manners.timeout, allow_redirects=True, **options
        )
        if answer.status_code >= 400:
            answer.close()
        if answer.status_code in _BUSY:
            asked = answer.headers.get("Retry-After", "")
            self._stopped.wait(min(float(asked), 60.0) if asked.isdigit() else 0.0)
            answer.raise_for_status()
        if answer.status_code >= 400 and answer.status_code != 416:
            raise Gone(f"{url} answered {answer.status_code} {answer.reason}; has the data set moved?")
        return answer

    def _text(self, url: str) -> str:
        found = bytearray()
        with contextlib.closing(self._ask("GET", url, stream=True)) as answer:
            for block in answer.iter_content(_CHUNK):
                found += block
                if len(found) > TEXT:
                    raise Gone(f"{url} answered with more than {TEXT >> 20} MB; is it the right address?")
        return found.decode("utf-8", errors="replace")

    def _continue(self, url: str, part: Path, most: int) -> None:
        marks = part.with_name(part.name + ".json")
        have, mark = part.stat().st_size if part.is_file() else 0, ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            mark = str(read_json(marks)["mark"])
        if not mark:  # without knowing that it is still the same file, nothing may be added to it
            have = 0
        headers = {"Range": f"bytes={have}-", "If-Range": mark} if have else {}
        with contextlib.closing(self._ask("GET", url, headers=headers, stream=True)) as answer:
            if answer.status_code == 416:  # more here than there
                part.unlink(missing_ok=True)
                raise OSError("the file on the server has become shorter")
            resumed = answer.status_code == 206
            mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            whole = _whole(answer)
            with part.open("r+b" if resumed else "wb") as file:
                file.seek(have if resumed else 0)
                file.truncate()
                # Only now: a mark must never stand beside the bytes of another file.
                write_json(marks, {"mark": mark})
                for block in answer.iter_content(_CHUNK):
                    if self._stopped.is_set():
                        raise Gone("stopped")
                    if file.tell() + len(block) > most:
                        file.truncate(0)
                        raise Gone(
                            f"{url} sends more than the {most} bytes that were to be expected; stopped"
                        )
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
