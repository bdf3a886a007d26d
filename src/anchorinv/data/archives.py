"""Unpack archives without letting them write anywhere else."""

import shutil
import stat
import zipfile
import zlib
from lzma import LZMAError
from pathlib import Path, PurePosixPath

from anchorinv.core.progress import tick
from anchorinv.files import replacing
from anchorinv.problems import raise_if_any

ARCHIVES = (".zip",)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip file into a folder; files already there with the right size stay.

    Names that lead out of the folder, links, and more than the disk holds are refused before anything is
    written.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            members = [member for member in file.infolist() if not member.is_dir()]
            raise_if_any(
                str(archive), [problem for member in members if (problem := _unsafe(member, folder))]
            )
            places = [folder / member.filename for member in members]
            new = [
                (member, place)
                for member, place in zip(members, places, strict=True)
                if not place.is_file() or place.stat().st_size != member.file_size
            ]
            size, free = sum(member.file_size for member, _ in new), shutil.disk_usage(folder).free
            if size > free:
                raise ValueError(f"{archive} unpacks to {size / 1e9:.2f} GB and {free / 1e9:.2f} GB are free")
            for i, (member, place) in enumerate(new):
                tick(f"unpacking {archive.name}", i, len(new))
                with file.open(member) as source, replacing(place) as beside, beside.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
            tick(f"unpacking {archive.name}", len(new), len(new))
    except (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{archive} is a damaged archive ({error}); delete it and download it again"
        ) from None


def place_of(folder: Path, name: str) -> Path:
    """Return where a file goes; a name that leads out of the folder is refused."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name or not path.parts or name.startswith("/"):
        raise ValueError(f"{name!r} would lie outside {folder}; its source is not to be trusted")
    place = folder.joinpath(*path.parts)
    if not place.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name!r} would lie outside {folder}, through a link; remove the link")
    return place


def _unsafe(member: zipfile.ZipInfo, folder: Path) -> str:
    if stat.S_ISLNK(member.external_attr >> 16):
        return f"{member.filename!r} is a link; nothing was unpacked"
    try:
        place_of(folder, member.filename)
    except ValueError as error:
        return f"{error}; nothing was unpacked"
    return ""
