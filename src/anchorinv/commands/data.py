"""``anchorinv data``: what is in a prepared folder, in numbers and in a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from anchorinv.data.dataset import Dataset


def data(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Prepared folder.")],
    picture: Annotated[
        Path | None, typer.Option(help="Where to draw (.png, .pdf, .svg); trials.png in DIR if not given.")
    ] = None,
    by_subject: Annotated[
        bool, typer.Option("--by-subject", help="Windows of each class of each subject.")
    ] = False,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Numbers alone.")] = False,
) -> None:
    """Show what is in a prepared folder, and draw a few trials of each class."""
    from anchorinv.data.dataset import Dataset
    from anchorinv.data.picture import draw_trials
    from anchorinv.terminal import say

    opened = Dataset.open(folder)
    show(opened, folder)
    if by_subject:
        _show_subjects(opened)
    if not no_picture:
        path = picture or folder / "trials.png"
        try:
            draw_trials(opened, path)
        except OSError as error:
            raise OSError(f"cannot draw to {path}: {error.strerror}; choose a file with --picture") from None
        say(f"Picture: {path}")


def show(data: "Dataset", folder: Path) -> None:
    """Print classes by split and subjects, and what was done to the signals."""
    from anchorinv.terminal import Terminal

    console = Terminal()
    console.print(_classes(data))
    meta = data.meta
    counts = [f"{count} {name}" for name, count in meta.get("counts", {}).items() if count]
    facts = {
        "set": f"{meta.get('name', '')} ({meta.get('form', 'arrays')})",
        "windows": f"{data.n_times / data.sfreq:g} s, {data.n_times} samples at {data.sfreq:g} Hz",
        "channels": f"{data.n_chans}: {', '.join(data.ch_names[:8])}{' ...' if data.n_chans > 8 else ''}",
        "unit": meta.get("unit", ""),
        "done to it": "; ".join(meta.get("steps", [])),
        "split": meta.get("split", ""),
        "met": ", ".join(counts),
        "from": ", ".join(filter(None, (meta.get("origin"), meta.get("licence")))),
        "accepted": "; ".join(meta.get("accepted", [])),
        "notes": "; ".join(meta.get("notes", [])),
        "missing": _several(meta.get("missing", [])),
        "folder": f"{folder} ({data.samples.nbytes / 1e6:.1f} MB)",
    }
    for name, fact in facts.items():
        if fact:
            console.say(f"{name}: {fact}")


def _classes(data: "Dataset") -> "Table":
    import numpy as np
    from rich.table import Table

    table = Table("class", "train", "test", "subjects", "recordings", title=f"{len(data)} windows")
    for column in table.columns[1:]:
        column.justify = "right"
    for label, name in [*enumerate(data.class_names), (None, "all")]:
        here = np.ones(len(data), dtype=bool) if label is None else data.labels == label
        table.add_row(
            name,
            str(np.count_nonzero(here & (data.split == "train"))),
            str(np.count_nonzero(here & (data.split == "test"))),
            f"{_distinct(data, here, 'train')} + {_distinct(data, here, 'test')}",
            "" if data.recordings is None else str(len(np.unique(data.recordings[here]))),
        )
    return table


def _show_subjects(data: "Dataset") -> None:
    from collections import Counter

    from rich.table import Table

    from anchorinv.terminal import Terminal

    counts = Counter(zip(data.subjects.tolist(), data.labels.tolist(), data.split.tolist(), strict=True))
    table = Table("subject", "class", "train", "test")
    for subject, label in sorted({(subject, label) for subject, label, _ in counts}):
        sides = (str(counts[subject, label, split]) for split in ("train", "test"))
        table.add_row(subject, data.class_names[label], *sides)
    Terminal().print(table)


def _distinct(data: "Dataset", here: "object", split: str) -> int:
    return len(set(data.subjects[here & (data.split == split)].tolist()))


def _several(sentences: list[str]) -> str:
    more = f" (and {len(sentences) - 10} more)" if len(sentences) > 10 else ""
    return "; ".join(sentences[:10]) + more
