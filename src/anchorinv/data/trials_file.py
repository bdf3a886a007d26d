"""A set that comes as one ``.npz`` file of labelled trials: checked, and divided into train and test."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.data.plan import Piece, Plan, Row, Source
from anchorinv.problems import listed, raise_if_any, ranges
from anchorinv.signal.npzfiles import load_arrays
from anchorinv.signal.preprocessing import Preprocessing


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What the file of a set holds.

    Parameters
    ----------
    shape, sfreq : of a trial (n_chans, n_times), and its rate in Hz.
    classes : their names; the column ``y`` counts them from 0.
    columns : the other whole numbers that tell a trial from all others, and what each may be, rising.
    recording : the columns that tell one recording from another.
    part : the column that divides training from test; a recording that has both is divided into two.
    train, test : its values on either side, rising.
    session : the column that is the session in the prepared set; None where there is but one.
    ch_names : as the file must give them; empty where it gives none.
    alike : whether several trials may be the same in all columns; then their signals tell them apart.
    apart : how far a training trial is at least from the test trials of its recording, in units of ``part``;
        nearer ones are left out.
    """

    file: str
    shape: tuple[int, int]
    sfreq: float
    classes: tuple[str, ...]
    columns: Mapping[str, Sequence[int]]
    recording: tuple[str, ...]
    part: str
    train: Sequence[int]
    test: Sequence[int]
    session: str | None = None
    ch_names: tuple[str, ...] = ()
    alike: bool = False
    apart: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """The trials (n, n_chans, n_times) of a file, what a unit of them is worth, and its columns (n,)."""

    signals: npt.NDArray[np.int16]
    scale: float
    columns: dict[str, npt.NDArray[np.int64]]


#: What the trials of one recording add to a set, on the side where they belong.
Read = Callable[[Trials, npt.NDArray[np.int64], str], Piece]


def plan_trials(
    raw: Path, form: Form, read: Read, *, hold_out: str | None, how: Preprocessing, recipe: dict[str, Any]
) -> Plan:
    """Plan to prepare the file of a set, given or somewhere below a folder.

    Parameters
    ----------
    hold_out : such as "2" or "16-20": the training part alone, with these as its test.
    """
    parts, split = divided(form, hold_out)
    path = _found(raw, form)
    trials = read_trials(path, form)
    known = trials.columns[form.part]
    sides = np.full(len(known), "", dtype="<U5")
    for side in ("train", "test"):
        wanted = [part for part, its in parts.items() if its == side]
        sides[np.isin(known, wanted)] = side
        if side not in sides:
            raise ValueError(
                f"{path} has no trial of {form.part} {ranges(wanted)}, which {side}; take the whole file"
            )
    keys = np.stack([trials.columns[name] for name in form.recording], axis=1)
    sources: list[Source] = []
    for key in np.unique(keys[sides != ""], axis=0):
        here = (keys == key).all(axis=1)
        name = "_".join(
            form.classes[value] if column == "y" else f"{column}{value}"
            for column, value in zip(form.recording, key.tolist(), strict=True)
        )
        for side in ("train", "test"):
            (places,) = (here & (sides == side)).nonzero()
            if side == "train" and form.apart:
                places = _far(places, known, known[here & (sides == "test")], form.apart)
            if not len(places):
                continue
            called = name if form.part in form.recording else f"{name}_{side}"
            # The file is hashed with the first alone; if it changed, that one and all after it are read anew.
            files = () if sources else (path,)
            sources.append(Source(called, files, partial(read, trials, places, side)))
    held = {"split": split, "hold_out": hold_out}
    return Plan(
        root=path.parent,
        sources=sources,
        how=replace(how, sfreq=form.sfreq),
        class_names=form.classes,
        recipe=recipe | held,
    )


def divided(form: Form, hold_out: str | None) -> tuple[dict[int, str], str]:
    """Return the side of each part (day, trial, run ...) that is used, and the split in words."""
    train, test, rest = list(form.train), list(form.test), list[int]()
    if hold_out is not None:
        held = _asked(hold_out, within=set(form.train))
        rest, test = test, [part for part in form.train if part in held]
        train = [part for part in form.train if part not in held]
        if not test or not train:
            raise ValueError(
                f"--hold-out takes a {form.part} of {ranges(form.train)}, or a range or list that leaves "
                f"some to train on; got {hold_out!r}"
            )
    words = f"by {form.part}: {ranges(train)} train, {ranges(test)} test"
    left = f"; held out from the training part, {ranges(rest)} left out" if rest else ""
    return dict.fromkeys(train, "train") | dict.fromkeys(test, "test"), words + left


def _asked(hold_out: str, *, within: set[int]) -> set[int]:
    """Return the numbers of "2", "16-20" or "8, 10"; none if it is written otherwise or one is not within."""
    numbers = set[int]()
    for words in hold_out.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", words)
        these = set(range(int(found[1]), int(found[2] or found[1]) + 1)) if found else set[int]()
        if not these or not these <= within:
            return set()
        numbers |= these
    return numbers


def _far(
    places: npt.NDArray[np.int64], known: npt.NDArray[np.int64], test: npt.NDArray[np.int64], apart: int
) -> npt.NDArray[np.int64]:
    """Return the places whose values are ``apart`` from those of the test part."""
    if not len(test):
        return places
    gaps: npt.NDArray[np.int64] = np.abs(known[places][:, None] - test).min(axis=1)
    return places[gaps >= apart]


def row(form: Form, trials: Trials, place: int, *, start: int, side: str) -> Row:
    """Return a window of a trial, with what is known about it."""
    at = {name: int(values[place]) for name, values in trials.columns.items()}
    session = "1" if form.session is None else str(at[form.session])
    return Row(start, form.classes[at["y"]], str(at["subject"]), session, side)


def windows_as_given(form: Form, trials: Trials, places: npt.NDArray[np.int64], side: str) -> Piece:
    """Return the trials of a recording as its windows, one after the other."""
    signals = trials.signals[places] * trials.scale  # (n, n_chans, n_times)
    n, n_chans, n_times = signals.shape
    rows = [row(form, trials, place, start=i * n_times, side=side) for i, place in enumerate(places)]
    return Piece(signals.transpose(0, 2, 1).reshape(n * n_times, n_chans), rows)


def read_trials(path: Path, form: Form) -> Trials:
    """Read the file of a set; whatever is wrong with it is told at once."""
    names = ("X", "scale", "sfreq", "y", *form.columns, *(["ch_names"] if form.ch_names else []))
    inside = load_arrays(path, names)
    wrong = [f"{name} is missing" for name in names if name not in inside]
    wrong += _wrong(inside, form)
    raise_if_any(str(path), wrong, f"{form.file} as docs/data.md describes it is wanted")
    columns = {name: inside[name].astype(np.int64) for name in ("y", *form.columns)}
    told = list(columns.values())
    if form.alike:
        told.append(np.unique(inside["X"].reshape(len(inside["X"]), -1), axis=0, return_inverse=True)[1])
    _, first, count = np.unique(np.stack(told), axis=1, return_index=True, return_counts=True)
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
    # What they are instead is not shown: text in a damaged array need not be text.
    if "ch_names" in inside and inside["ch_names"].tolist() != list(form.ch_names):
        yield f"ch_names are others than {listed(form.ch_names)}"
    for name, allowed in {"y": range(len(form.classes)), **form.columns}.items():
        values = inside.get(name)
        if values is None:
            continue
        if values.ndim != 1 or values.dtype.kind not in "iu":
            yield f"{name} is {values.dtype} {values.shape}, a whole number for each trial is wanted"
        elif n is not None and len(values) != n:
            yield f"{name} has {len(values)} values for {n} trials"
        elif odd := sorted(value for value in set(values.tolist()) if value not in allowed):
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
