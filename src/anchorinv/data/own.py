"""Anybody's own recordings: a table of files, or one file of trials, into a prepared folder."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.core.progress import tick
from anchorinv.data import bids
from anchorinv.data.checks import ALLOWED, Facts, Finding, facts_of, findings, split_findings, window_length
from anchorinv.data.labelling import Labelling, rows_of_events
from anchorinv.data.manifest import Entry, read_manifest
from anchorinv.data.own_files import Options, open_material, with_splits
from anchorinv.data.plan import Piece, Plan, Row, Source
from anchorinv.data.splits import grouped_split
from anchorinv.data.writing import sha256
from anchorinv.problems import listed, raise_if_any
from anchorinv.signal.pipeline import process
from anchorinv.signal.readers import companions

GIVEN = "as given"


def plan_manifest(manifest: Path, options: Options, labelling: Labelling | None = None) -> Plan:
    """Plan to prepare the recordings that a table lists; whatever is wrong with them is told at once.

    Parameters
    ----------
    labelling : takes labels from the recordings' own events; None has them in the table.
    """
    entries, problems = read_manifest(manifest, labelled=labelling is None)
    if labelling is not None and entries:
        entries, more = rows_of_events(entries, labelling, sfreq=options.sfreq)
        problems += more
    return _plan(manifest, entries, problems, options)


def plan_recordings(
    files: Sequence[Path], options: Options, labelling: Labelling, *, split: str = ""
) -> Plan:
    """Plan to prepare recordings by their own events.

    Parameters
    ----------
    split : where all of them belong, "train" or "test"; "" divides them.
    """
    given = [Entry(i, path.name, path, split=split) for i, path in enumerate(files, start=1)]
    entries, problems = rows_of_events(given, labelling, sfreq=options.sfreq)
    return _plan(files[0], entries, problems, options)


def plan_bids(root: Path, options: Options, labelling: Labelling, **chosen: Any) -> Plan:
    """Plan to prepare recordings of a BIDS folder by their events.

    Parameters
    ----------
    chosen : ``task``, ``subjects``, ``sessions``, ``datatype``, as `find_recordings` takes them.
    """
    entries, problems = bids.entries(root, labelling.wanted, labelling.start, labelling.stop, **chosen)
    return _plan(root, entries, problems, options)


def plan_npz(file: Path, options: Options) -> Plan:
    """Plan to prepare one ``.npz`` file with ``X`` (n, channels, times) and ``y``."""
    if not file.is_file():
        raise ValueError(f"{file} is not there; --npz takes a file with X (n, channels, times) and y")
    if file.suffix.lower() != ".npz":
        raise ValueError(f"{file} is no .npz file; list other formats in a table for --manifest")
    return _plan(file, [Entry(1, file.name, file)], [], options)


def _plan(table: Path, entries: Sequence[Entry], problems: list[str], options: Options) -> Plan:
    if unknown := sorted(options.allow - set(ALLOWED)):
        raise ValueError(f"--allow takes {', '.join(ALLOWED)}; got {listed(unknown)}")
    files: dict[Path, list[Entry]] = {}
    for entry in entries:
        files.setdefault(entry.path.resolve(), []).append(entry)
    every: list[Facts] = []
    for i, group in enumerate(files.values()):
        tick("checking recordings", i, len(files))
        try:
            facts, wrong = _looked_at(group, options)
        except (ValueError, OSError) as error:
            problems.append(str(error))
        else:
            problems += wrong
            every.append(facts)
    tick("checking recordings", len(files), len(files))
    met: list[Finding] = []
    how = GIVEN
    if every and any(facts.parts for facts in every):
        met += findings(every, options)
        try:
            every, how = _divided(every, options)
            met += split_findings(every, options, given=how == GIVEN)
        except ValueError as error:
            problems.append(str(error))
    problems += [
        f"{sentence} (or pass --allow {kind}: {ALLOWED[kind]})" if kind else sentence
        for kind, sentence in met
        if kind not in options.allow
    ]
    raise_if_any(str(table), problems)
    return _agreed(table, files, every, options, [text for kind, text in met if kind in options.allow], how)


def _looked_at(group: Sequence[Entry], options: Options) -> tuple[Facts, Sequence[str]]:
    """Return what is known of a file and what is wrong with its rows; its signals are let go."""
    material = open_material(group, options)
    return facts_of(group[0].name, material), material.wrong


def _divided(every: Sequence[Facts], options: Options) -> tuple[list[Facts], str]:
    """Give each part its side where the table gives none: by subject, session, file or trial."""
    parts = [(facts.name, part) for facts in every for part in facts.parts]
    if all(part.split for _, part in parts):
        return list(every), GIVEN
    choices = {
        "subject": [part.subject for _, part in parts],
        "session": [part.session for _, part in parts],
        "file": [name for name, _ in parts],
    }
    if all(name.endswith(".npz") for name, _ in parts):
        choices["trial"] = [f"{name} {part.first}" for name, part in parts]
    how, groups = next(
        ((name, found) for name, found in choices.items() if len(set(found)) > 1), ("file", choices["file"])
    )
    sides = iter(grouped_split([part.label for _, part in parts], groups, seed=options.seed))
    divided = [
        replace(facts, parts=tuple(with_splits(facts.parts, [next(sides) for _ in facts.parts])))
        for facts in every
    ]
    return divided, f"80-20 by {how}, {'first fold' if options.seed is None else f'seed {options.seed}'}"


def _agreed(
    table: Path,
    files: dict[Path, list[Entry]],
    every: Sequence[Facts],
    options: Options,
    notes: Sequence[str],
    how_divided: str,
) -> Plan:
    """Return the plan for recordings that passed all checks."""
    n_times = window_length(every, options)
    step = max(1, round(n_times * (1 - options.overlap)))
    # Trials that were cut before cannot be repeated on a recording; one such file is enough.
    how = replace(
        every[0].how, n_times=n_times, step=step, by_trial=any(facts.how.by_trial for facts in every)
    )
    steps = [*how.steps, *([f"resampled to {options.resample:g} Hz"] if options.resample else [])]
    if options.window:
        steps.append(f"windows of {options.window:g} s, {100 * options.overlap:g} % overlap")
    settings: dict[str, Any] = asdict(options) | {"allow": sorted(options.allow)}
    return Plan(
        root=table.resolve() if table.is_dir() else table.resolve().parent,
        sources=[
            Source(facts.name, companions(path), partial(_piece, group, options, facts, n_times))
            for (path, group), facts in zip(files.items(), every, strict=True)
        ],
        how=how,
        class_names=_class_names(every),
        recipe={
            "name": table.stem,
            "form": "own",
            "unit": listed(sorted(set(every[0].units))) or "as given",
            "steps": steps or ["as recorded"],
            "split": how_divided,
            "options": settings,
            "accepted": list(notes),
            "table_sha256": sha256(table) if table.is_file() else None,
        },
    )


def _class_names(every: Sequence[Facts]) -> tuple[str, ...]:
    """Return the classes in order; numbers by their size."""
    names = {part.label for facts in every for part in facts.parts}
    return tuple(
        sorted(names, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    )


def _piece(entries: Sequence[Entry], options: Options, facts: Facts, n_times: int) -> Piece:
    material = open_material(entries, options)
    n_samples = material.signals.shape[1]
    step = material.trial or n_samples
    done = [
        process(material.how, material.signals[:, start : start + step], material.sfreq).samples
        for start in range(0, n_samples, step)
    ]
    rows = [
        Row(int(start), part.label, part.subject or "0", part.session or "0", part.split)
        for part in facts.parts
        for start in facts.starts(part, n_times, options.overlap)
    ]
    return Piece(np.concatenate(done), rows, {"missing samples": facts.missing})
