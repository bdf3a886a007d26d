"""Fetch files politely: a few at a time, resumed, retried, checked, and never half there.

A file is written as ``NAME.part`` and continued there after a break. pooch checks it and moves it into place;
what its source publishes no checksum for is held to the one it had when it came (``.checksums.json``).
"""

import logging
import shutil
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from anchorinv.core.progress import tick
from anchorinv.data.archives import ARCHIVES, place_of, unpack
from anchorinv.data.client import Client
from anchorinv.data.homes import Remote
from anchorinv.data.writing import sha256
from anchorinv.files import read_json, write_json
from anchorinv.problems import needed, raise_if_any

_LEDGER = ".checksums.json"


def download(files: Sequence[Remote], to: Path, client: Client) -> list[str]:
    """Fetch all files that are not there already, unpack archives, and return notes on what was mended."""
    pooch = needed("pooch", extra="download")
    # pooch's word on each file would break the progress bar; a file's troubles are told by us.
    pooch.get_logger().setLevel(logging.ERROR)
    to.mkdir(parents=True, exist_ok=True)
    ledger = _ledger(to / _LEDGER)
    places = {remote.name: place_of(to, remote.name) for remote in files}
    problems: list[str] = []
    notes: list[str] = []
    expected = max(1, sum(r.size or 0 for r in files if not places[r.name].is_file()) >> 20)
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
            tick("downloading (MB)", min(client.received >> 20, expected - 1), expected)
    finally:
        client.stop()
        pool.shutdown(cancel_futures=True)
        write_json(to / _LEDGER, dict(sorted(ledger.items())))
    tick("downloading (MB)", expected, expected)
    raise_if_any(str(to), problems)
    for remote in files:
        if remote.name.lower().endswith(ARCHIVES):
            unpack(places[remote.name], to)
    return notes


def _ledger(path: Path) -> dict[str, str]:
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{path} is damaged: it is no list of checksums; delete it")
    return found


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
        client.fetch(url, part, size=remote.size)
        part.replace(output)

    resumed = part.is_file()
    while True:
        try:
            pooch.retrieve(
                remote.url, remote.checksum, fname=place.name, path=place.parent, downloader=downloader
            )
            break
        except ValueError as error:
            if "hash" not in str(error):
                raise
            if not resumed:
                raise ValueError(
                    "it is not what its source publishes (another checksum) and was thrown away; "
                    "try again, and if it stays so, tell the source"
                ) from None
            resumed = False  # two halves of different files; once more from the start
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
