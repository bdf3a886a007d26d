"""A set that comes as one ``.npz`` file of labelled trials: checked, and divided by day or trial."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.data.npzfiles import load_arrays
from anchorinv.data.plan import Piece, Plan, Source
from anchorinv.data.problems import listed, raise_if_any, ranges


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What the file of a set holds.

    Parameters
    ----------
    shape, sfreq : of a trial (n_chans, n_times), and its rate in Hz.
    classes : their names; the column ``y`` counts them from 0.
    columns : the other whole numbers that tell a trial from all others, and what each may be.
    recording : the columns that tell one recording from another.
    part : the column that divides training from test.
    train, test : its values on either side.
    """

    file: str
    shape: tuple[int, int]
    sfreq: float
    classes: tuple[str, ...]
    columns: Mapping[str, range]
    recording: tuple[str, ...]
    part: str
    train: range
    test: range


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """The trials (n, n_chans, n_times) of a file, what a unit of them is worth, and its columns (n,)."""

    signals: npt.NDArray[np.int16]
    scale: float
    columns: dict[str, npt.NDArray[np.int64]]


#: What the trials of one recording add to a set, on the side where they belong.
Read = Callable[[Trials, npt.NDArray[np.int64], str], Piece]


def plan_trials(
    raw: Path, form: Form, read: Read, *, hold_out: str | None, recipe: dict[str, Any], **about: Any
) -> Plan:
    """Plan to prepare the file of a set, given or somewhere below a folder.

    Parameters
    ----------
    hold_out : such as "2" or "16-20": the training part alone, with these as its test.
    """
    sides, split = divided(form, hold_out)
    path = _found(raw, form)
    trials = read_trials(path, form)
    known = trials.columns[form.part]
    for side in ("train", "test"):
        wanted = [part for part, its in sides.items() if its == side]
        if not np.isin(known, wanted).any():
            raise ValueError(
                f"{path} has no trial of {form.part} {ranges(wanted)}, which {side}; take the whole file"
            )
    keys = np.stack([trials.columns[name] for name in form.recording], axis=1)
    sources: list[Source] = []
    for key in np.unique(keys[np.isin(known, list(sides))], axis=0):
        (places,) = (keys == key).all(axis=1).nonzero()
        name = "_".join(
            form.classes[value] if column == "y" else f"{column}{value}"
            for column, value in zip(form.recording, key.tolist(), strict=True)
        )
        piece = partial(read, trials, places, sides[int(known[places[0]])])
        # The file is hashed with the first alone; if it changed, that one and all after it are read anew.
        sources.append(Source(name, () if sources else (path,), piece))
    held = {"split": split, "hold_out": hold_out}
    return Plan(
        root=path.parent,
        sources=sources,
        sfreq=form.sfreq,
        class_names=form.classes,
        recipe=recipe | held,
        **about,
    )


def divided(form: Form, hold_out: str | None) -> tuple[dict[int, str], str]:
    """Return the side of each day or trial that is used, and the split in words."""
    train, test, rest = list(form.train), list(form.test), list[int]()
    if hold_out is not None:
        asked = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", hold_out.strip())
        rest, test = test, list(range(int(asked[1]), int(asked[2] or asked[1]) + 1)) if asked else []
        train = [part for part in form.train if part not in test]
        if not test or not train or not set(test) <= set(form.train):
            raise ValueError(
                f"--hold-out takes a {form.part} of {ranges(form.train)}, or a range that leaves some to "
                f"train on; got {hold_out!r}"
            )
    words = f"by {form.part}: {ranges(train)} train, {ranges(test)} test"
    left = f"; held out from the training part, {ranges(rest)} left out" if rest else ""
    return dict.fromkeys(train, "train") | dict.fromkeys(test, "test"), words + left


def read_trials(path: Path, form: Form) -> Trials:
    """Read the file of a set; whatever is wrong with it is told at once."""
    names = ("X", "scale", "sfreq", "y", *form.columns)
    inside = load_arrays(path, names)
    wrong = [f"{name} is missing" for name in names if name not in inside]
    wrong += _wrong(inside, form)
    raise_if_any(str(path), wrong, f"{form.file} as docs/data.md describes it is wanted")
    columns = {name: inside[name].astype(np.int64) for name in ("y", *form.columns)}
    _, first, count = np.unique(
        np.stack(list(columns.values())), axis=1, return_index=True, return_counts=True
    )
    if (count > 1).any():
        place = first[count > 1].min()
        named = listed([f"{name} {values[place]}" for name, values in columns.items()])
        raise ValueError(
            f"{path} has {int((count - 1).sum())} trials twice, the first {named}; keep one of each"
        )
    return Trials(inside["X"], float(inside["scale"].item()), columns)


def _wrong(inside: Mapping[str, npt.NDArray[Any]], form: Form) -> Iterator[str]:
    signals = inside.get("X")
    n = None if signals is None or not signals.ndim else len(signals)
    if signals is not None and not (n and signals.dtype == np.int16 and signals.shape == (n, *form.shape)):
        wanted = ", ".join(map(str, form.shape))
        yield f"X is {signals.dtype} {signals.shape}, int16 (n, {wanted}) is wanted"
    if "scale" in inside and not 0 < _number(inside["scale"]) < np.inf:
        yield f"scale is {_shown(inside['scale'])}, one number above 0 is wanted"
    if "sfreq" in inside and _number(inside["sfreq"]) != form.sfreq:
        yield f"sfreq is {_shown(inside['sfreq'])}, {form.sfreq:g} (Hz) is wanted"
    for name, allowed in {"y": range(len(form.classes)), **form.columns}.items():
        values = inside.get(name)
        if values is None:
            continue
        if values.ndim != 1 or values.dtype.kind not in "iu":
            yield f"{name} is {values.dtype} {values.shape}, a whole number for each trial is wanted"
        elif n is not None and len(values) != n:
            yield f"{name} has {len(values)} values for {n} trials"
        elif odd := sorted(set(values.tolist()) - set(allowed)):
            yield f"{name} has {listed(odd, most=3)}, {ranges(allowed)} is wanted"


def _number(found: npt.NDArray[Any]) -> float:
    """Return the one number of an array, NaN where it holds something else."""
    return float(found.item()) if found.size == 1 and found.dtype.kind in "fiu" else np.nan


def _shown(found: npt.NDArray[Any]) -> str:
    return str(found.item()) if found.size == 1 else f"{found.dtype} {found.shape}"


def _found(raw: Path, form: Form) -> Path:
    if raw.is_file():
        return raw
    if not raw.is_dir():
        raise ValueError(f"{raw} is not there; give {form.file}, or the folder that it lies in, to --raw")
    below: Sequence[Path] = sorted(raw.rglob(form.file))
    if not below:
        raise ValueError(f"{raw} holds no {form.file}; docs/data.md says what is in it")
    return below[0]
