"""``anchorinv download``: public data sets from their public homes."""

from pathlib import Path
from typing import Annotated

import typer


def download(
    name: Annotated[str, typer.Argument(metavar="SET", help="bci2a, nhie or grabmyo.")],
    to: Annotated[Path, typer.Option(help="Folder for the files.")],
    only: Annotated[str, typer.Option(help='Only files of this pattern, such as "Session1/*".')] = "*",
    jobs: Annotated[int, typer.Option(min=1, max=4, help="Files at a time; be kind to the server.")] = 2,
    mirror: Annotated[
        str | None,
        typer.Option("--from", help="Another address with the same files.", envvar="ANCHORINV_MIRROR"),
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="Attempts per file.")] = 5,
    timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds without a byte that count as a break.")
    ] = 30.0,
    pause: Annotated[float, typer.Option(min=0.0, help="Seconds before the second attempt.")] = 1.0,
) -> None:
    """Fetch a public data set; a broken download goes on where it stopped."""
    from anchorinv.bars import progress_bars
    from anchorinv.data.client import Client, Manners
    from anchorinv.data.download import check_space, still_to_come
    from anchorinv.data.download import download as fetch
    from anchorinv.data.homes import HOMES, remote_files
    from anchorinv.terminal import complain, say

    client = Client(Manners(jobs=jobs, tries=tries, timeout=timeout, pause=pause))
    files = remote_files(name, client.text, client.size, mirror=mirror, only=only)
    n_files, n_bytes, unknown = still_to_come(files, to)
    size = f"{n_bytes / 1e9:.2f} GB" if n_bytes > 1e8 else f"{n_bytes / 1e6:.2f} MB"
    more = f", and {unknown} files of unknown size" if unknown else ""
    say(f"{name}: {n_files} of {len(files)} files to fetch, about {size}{more}; terms: {HOMES[name].licence}")
    check_space(to, n_bytes)
    try:
        with progress_bars():
            notes = fetch(files, to, client)
    except KeyboardInterrupt:
        complain("", "anchorinv: stopped; run the same command again to go on from here")
        raise typer.Exit(130) from None
    say(
        *notes,
        f"All {len(files)} files are in {to}. Next: anchorinv prepare {name} --raw {to} --out PREPARED",
    )
