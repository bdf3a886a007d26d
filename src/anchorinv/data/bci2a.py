"""BCI Competition IV 2a: nine people imagine moving left hand, right hand, feet or tongue."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from anchorinv.data.bci2a_forms import (
    CH_NAMES,
    SFREQ,
    WINDOW,
    Trials,
    form_of,
    read_bnci,
    read_converted,
    read_gdf,
    read_labels,
)
from anchorinv.data.plan import Piece, Plan, Row, Source
from anchorinv.problems import listed, raise_if_any
from anchorinv.signal.filters import Filter
from anchorinv.signal.pipeline import process_trials
from anchorinv.signal.preprocessing import Preprocessing

CLASSES = ("left hand", "right hand", "feet", "tongue")
SESSIONS = tuple(f"A{subject:02d}{session}" for subject in range(1, 10) for session in "TE")
N_TRIALS = 288
FORMS: dict[str, Callable[[Path], Trials]] = {"gdf": read_gdf, "bnci": read_bnci, "converted": read_converted}
_STEPS = {
    "gdf": "2 to 6 s of each trial; samples at the recorder's limits set to 0",
    "bnci": "2 to 6 s of each trial; missing samples set to 0",
    "converted": "as converted by others: filter and order unknown",
}


def plan_bci2a(
    raw: Path, *, form: str | None = None, band: Filter | None = None, allow_missing: bool = False
) -> Plan:
    """Plan to prepare a folder of GDF with label files, BNCI ``.mat`` or converted ``.mat`` files.

    Parameters
    ----------
    form : "gdf", "bnci" or "converted", where a folder holds several.
    band : filter for each cut window; None keeps the acquisition's own.
    allow_missing : take what is there.
    """
    found, labels = _found(raw)
    form = _chosen(raw, found, form)
    files = found[form]
    if form == "converted" and band is not None:
        raise ValueError(
            "converted files are already filtered, nobody knows how; prepare the GDF or BNCI files"
        )
    hidden = [name for name in files if form == "gdf" and name.endswith("E") and name not in labels]
    missing = [f"{name} is missing" for name in SESSIONS if name not in files]
    missing += [f"{name} has no true labels ({name}.mat with classlabel)" for name in hidden]
    if not allow_missing:
        raise_if_any(f"{raw} ({form} files)", missing, "download them, or pass --allow-missing to do without")
    used = [name for name in SESSIONS if name in files and name not in hidden]
    raise_if_any(str(raw), [] if used else ["no session of BCI IV 2a can be used", *missing])
    how = Preprocessing(
        CH_NAMES,
        unit=None if form == "converted" else "µV",
        filter=band,
        unrepeatable=_STEPS[form] if form == "converted" else None,
        gaps="zero",
        sfreq=SFREQ,
        by_trial=band is not None,
        n_times=WINDOW[1] - WINDOW[0],
    )
    sources = []
    for name in used:
        truth = labels.get(name) if form == "gdf" else None
        paths = (files[name],) if truth is None else (files[name], truth)
        sources.append(Source(name, paths, partial(_piece, name, form, how, *paths)))
    return Plan(
        root=raw,
        sources=sources,
        how=how,
        class_names=CLASSES,
        recipe={
            "name": "bci2a",
            "form": form,
            "unit": "unknown" if form == "converted" else "µV",
            "steps": [_STEPS[form], *how.steps] if form != "converted" else [_STEPS[form]],
            "missing": missing,
        },
    )


def _found(raw: Path) -> tuple[dict[str, dict[str, Path]], dict[str, Path]]:
    """Return the files by form and session, and the label files by session."""
    if not raw.is_dir():
        raise ValueError(f"{raw} is no folder; give the one with A01T.gdf or A01T.mat to --raw")
    found: dict[str, dict[str, Path]] = {}
    problems = []
    for path in sorted(raw.rglob("*")):
        if path.suffix.lower() in (".gdf", ".mat") and re.fullmatch(r"A0[1-9][TE]", path.stem.upper()):
            try:
                found.setdefault(form_of(path), {}).setdefault(path.stem.upper(), path)
            except ValueError as error:
                problems.append(str(error))
    raise_if_any(str(raw), problems)
    found.pop("", None)
    return found, found.pop("labels", {})


def _chosen(raw: Path, found: dict[str, dict[str, Path]], form: str | None) -> str:
    if form is not None and form not in FORMS:
        raise ValueError(f"a form is one of {', '.join(FORMS)}, got {form!r}")
    if form is not None and form in found:
        return form
    if form is not None or not found:
        wanted = (
            f"{form} files" if form else "A01T.gdf ... A09E.gdf with label files, or A01T.mat ... A09E.mat"
        )
        raise ValueError(f"{raw} holds no {wanted}; download them with anchorinv download bci2a --to DIR")
    if len(found) > 1:
        raise ValueError(f"{raw} holds {listed(sorted(found))} files; choose one with --form")
    return next(iter(found))


def _piece(name: str, form: str, how: Preprocessing, path: Path, truth: Path | None = None) -> Piece:
    trials = FORMS[form](path)
    windows = trials.windows
    n, n_chans, n_times = windows.shape
    if (n_chans, n_times) != (len(CH_NAMES), WINDOW[1] - WINDOW[0]):
        raise ValueError(
            f"{path} has {n_chans} channels of {n_times} samples; {len(CH_NAMES)} of 1000 are wanted"
        )
    labels = trials.labels
    if truth is not None:
        labels = _with_truth(path, labels, truth)
    if (labels < 0).any():
        raise ValueError(
            f"{path} does not say the class of {np.count_nonzero(labels < 0)} trials; add true labels"
        )
    if how.filter is not None:
        windows = process_trials(how, windows).astype(np.float64)
    session = name[-1]
    rows = [
        Row(
            start=i * n_times,
            label=CLASSES[labels[i]],
            subject=name[:3],
            session=session,
            split="train" if session == "T" else "test",
            rejected=bool(trials.rejected[i]),
        )
        for i in range(n)
    ]
    notes = [] if n == N_TRIALS else [f"{name} has {n} trials, {N_TRIALS} expected"]
    samples = windows.transpose(0, 2, 1).reshape(n * n_times, n_chans)
    counts = {"missing samples": trials.missing, "rejected trials": int(trials.rejected.sum())}
    return Piece(samples, rows, counts, notes)


def _with_truth(path: Path, labels: np.ndarray, truth: Path) -> np.ndarray:
    told = read_labels(truth)
    if len(told) != len(labels):
        raise ValueError(
            f"{path} has {len(labels)} trials but {truth} {len(told)} labels; is one of them cut short?"
        )
    if (differing := (labels >= 0) & (labels != told)).any():
        raise ValueError(
            f"{path} and {truth} disagree in {np.count_nonzero(differing)} trials; "
            "are they of the same session?"
        )
    return told
