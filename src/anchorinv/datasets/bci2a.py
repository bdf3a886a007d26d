"""BCI Competition IV 2a: nine people imagine moving left hand, right hand, feet or tongue.

Three forms of the set are read into the same trials: GDF files with label files, the ``.mat`` files of BNCI
Horizon, and converted ``.mat`` files.
"""

import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.datasets.prepare import DatasetPlan, LabelledWindow, PreparedRecording, RecordingSource
from anchorinv.errors import listed, raise_if_any
from anchorinv.signal import limits
from anchorinv.signal.headers import gdf_limits
from anchorinv.signal.pipeline import process_trials
from anchorinv.signal.preprocessing import Filter, Preprocessing
from anchorinv.signal.readers import open_mne

CLASSES = ("left hand", "right hand", "feet", "tongue")
SESSIONS = tuple(f"A{subject:02d}{session}" for subject in range(1, 10) for session in "TE")
N_TRIALS = 288
SFREQ = 250.0
CH_NAMES = (
    "Fz", "FC3", "FC1", "FCz", "FC2", "FC4", "C5", "C3", "C1", "Cz", "C2", "C4", "C6", "CP3", "CP1", "CPz",
    "CP2", "CP4", "P1", "Pz", "P2", "POz",
)  # fmt: skip
N_CHANS = len(CH_NAMES)
#: 2 s to 6 s of a trial: four seconds from the cue.
WINDOW = (500, 1500)
N_TIMES = WINDOW[1] - WINDOW[0]
#: The amplifier's range in µV and its resolution: values at the limits are clipped.
LIMIT, RESOLUTION = 100.0, 200 / 65535
_CUES = {"769": 0, "770": 1, "771": 2, "772": 3}
_STEPS = {
    "gdf": "2 to 6 s of each trial; samples at the recorder's limits set to 0",
    "bnci": "2 to 6 s of each trial; missing samples set to 0",
    "converted": "as converted by others: filter and order unknown",
}
#: Types of elements in a MATLAB file, and classes of arrays: cells, structs, text and numbers.
_MAT_MATRIX, _MAT_COMPRESSED = 14, 15
_MAT_TYPES = (*range(1, 8), 9, *range(12, 19))
_MAT_CELL, _MAT_STRUCT = 1, 2
_MAT_TEXT, _MAT_VALUES = 4, (4, *range(6, 16))


def plan_bci2a(
    raw: Path, *, form: str | None = None, band: Filter | None = None, allow_missing: bool = False
) -> DatasetPlan:
    """Plan the preparation of a folder; ``form`` is "gdf", "bnci" or "converted", where it holds several.

    ``band`` filters each window, in addition to the filter of the acquisition. ``allow_missing`` prepares an
    incomplete set.
    """
    forms, labels = _find(raw)
    form = _choose(raw, forms, form)
    files = forms[form]
    if form == "converted" and band is not None:
        raise ValueError(
            "converted files are already filtered in an unknown way; prepare the GDF or BNCI files"
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
        n_times=N_TIMES,
    )
    sources = []
    for name in used:
        label_file = labels.get(name) if form == "gdf" else None
        paths = (files[name],) if label_file is None else (files[name], label_file)
        sources.append(RecordingSource(name, paths, partial(_read_session, name, form, how, *paths)))
    return DatasetPlan(
        root=raw,
        sources=sources,
        preprocessing=how,
        class_names=CLASSES,
        meta={
            "name": "bci2a",
            "form": form,
            "unit": "unknown" if form == "converted" else "µV",
            "steps": [_STEPS[form], *how.steps] if form != "converted" else [_STEPS[form]],
            "missing": missing,
        },
    )


def _find(raw: Path) -> tuple[dict[str, dict[str, Path]], dict[str, Path]]:
    """Return the files by form and session, and the label files by session."""
    if not raw.is_dir():
        raise ValueError(f"{raw} is not a folder; pass the one with A01T.gdf or A01T.mat to --raw")
    forms: dict[str, dict[str, Path]] = {}
    problems = []
    for path in sorted(raw.rglob("*")):
        if path.suffix.lower() in (".gdf", ".mat") and re.fullmatch(r"A0[1-9][TE]", path.stem.upper()):
            try:
                forms.setdefault(form_of(path), {}).setdefault(path.stem.upper(), path)
            except ValueError as error:
                problems.append(str(error))
    raise_if_any(str(raw), problems)
    forms.pop("", None)
    return forms, forms.pop("labels", {})


def _choose(raw: Path, forms: dict[str, dict[str, Path]], form: str | None) -> str:
    if form not in (None, *FORMS):
        raise ValueError(f"a form is one of {', '.join(FORMS)}, got {form!r}")
    if form is None and len(forms) > 1:
        raise ValueError(f"{raw} holds {listed(sorted(forms))} files; choose one with --form")
    wanted = f"{form} files" if form else "A01T.gdf ... A09E.gdf with label files, or A01T.mat ... A09E.mat"
    form = form or next(iter(forms), "")
    if form not in forms:
        raise ValueError(f"{raw} holds no {wanted}; download them with anchorinv download bci2a --to DIR")
    return form


@dataclass(frozen=True, slots=True, eq=False)
class SessionTrials:
    """The trials of a file, in its order."""

    windows: npt.NDArray[np.float64]  # (n, n_chans, n_times) in µV, missing samples set to 0
    labels: npt.NDArray[np.int64]  # class indices; -1 where the file does not say
    rejected: npt.NDArray[np.bool_]  # marked by an expert
    missing: int  # samples


def _read_session(
    name: str, form: str, how: Preprocessing, path: Path, label_file: Path | None = None
) -> PreparedRecording:
    trials = FORMS[form](path)
    windows, labels = trials.windows, trials.labels
    n, n_chans, n_times = windows.shape
    if (n_chans, n_times) != (N_CHANS, N_TIMES):
        raise ValueError(f"{path} has {n_chans} channels of {n_times} samples; expected {N_CHANS} of 1000")
    if label_file is not None:
        true = read_labels(label_file)
        if len(true) != n:
            raise ValueError(
                f"{path} has {n} trials but {label_file} {len(true)} labels; is one of them cut short?"
            )
        if (differing := (labels >= 0) & (labels != true)).any():
            raise ValueError(
                f"{path} and {label_file} disagree in {np.count_nonzero(differing)} trials; "
                "are they of the same session?"
            )
        labels = true
    if (labels < 0).any():
        raise ValueError(
            f"{path} does not say the class of {np.count_nonzero(labels < 0)} trials; add true labels"
        )
    if how.filter is not None:
        windows = process_trials(how, windows).astype(np.float64)
    subject, session = name[:3], name[-1]
    split = "train" if session == "T" else "test"
    labelled = [
        LabelledWindow(i * n_times, CLASSES[labels[i]], subject, session, split, bool(trials.rejected[i]))
        for i in range(n)
    ]
    return PreparedRecording(
        windows.transpose(0, 2, 1).reshape(n * n_times, n_chans),
        labelled,
        {"missing samples": trials.missing, "rejected trials": int(trials.rejected.sum())},
        [] if n == N_TRIALS else [f"{name} has {n} trials, {N_TRIALS} expected"],
    )


def form_of(path: Path) -> str:
    """Return the kind of a file by its content: "gdf", "bnci", "converted", "labels" or ""."""
    if path.suffix.lower() == ".gdf":
        return "gdf"
    from scipy.io import whosmat

    with limits.reading(path):
        check_mat(path)
        kinds = {name: kind for name, _, kind in whosmat(path)}
    if "classlabel" in kinds:
        return "labels"
    if "data" in kinds and "label" in kinds:
        return "converted"
    # scipy names an array of structs "struct"; older writers wrap it into a cell.
    return "bnci" if kinds.get("data") in ("struct", "cell") else ""


def read_labels(path: Path) -> npt.NDArray[np.int64]:
    """Return the true labels (n,) of a session, from 0."""
    with limits.reading(path):
        return _class_indices(path, _load_mat(path, "classlabel")["classlabel"])


def read_gdf(path: Path) -> SessionTrials:
    """Read a GDF session; where it hides the classes (783), labels are -1."""
    with limits.reading(path):
        raw = open_mne(path)
        if raw.info["sfreq"] != SFREQ or len(raw.ch_names) < N_CHANS:
            raise ValueError(
                f"{path} has {len(raw.ch_names)} channels at {raw.info['sfreq']:g} Hz; "
                f"expected {N_CHANS} and three EOG channels at {SFREQ:g} Hz"
            )
        # By the names of events: mne's numbers for them differ from file to file.
        events = np.array([str(name) for name in raw.annotations.description])
        onsets = np.rint(raw.annotations.onset * SFREQ).astype(np.int64) - raw.first_samp
        starts = np.sort(onsets[events == "768"])
        cues = sorted(
            (onsets[i], _CUES.get(name, -1)) for i, name in enumerate(events) if name in {*_CUES, "783"}
        )
        within = [0 <= cue - start < WINDOW[1] for (cue, _), start in zip(cues, starts, strict=False)]
        if len(cues) != len(starts) or not within or not all(within):
            raise ValueError(
                f"{path} has {len(starts)} trials (768) and {len(cues)} cues (769-772, 783), one in each is "
                "wanted; is it whole?"
            )
        if starts.min() < 0 or starts.max() + WINDOW[1] > raw.n_times or _overlapping(starts):
            raise ValueError(f"{path} is cut short: its last trial ends after the file")
        low, high = gdf_limits(path)[:, :N_CHANS]
        windows = np.empty((len(starts), N_CHANS, N_TIMES))
        missing = 0
        for window, start in zip(windows, starts + WINDOW[0], strict=True):
            window[:] = raw.get_data(picks=range(N_CHANS), start=int(start), stop=int(start) + N_TIMES) * 1e6
            missing += _zero_missing(window, low, high)
    labels = np.array([label for _, label in cues], dtype=np.int64)
    return SessionTrials(windows, labels, np.isin(starts, onsets[events == "1023"]), missing)


def read_bnci(path: Path) -> SessionTrials:
    """Read a session as BNCI Horizon publishes it: a struct per run, the first ones without trials."""
    windows, labels, rejected = [], [], []
    with limits.reading(path):
        for run in np.ravel(_load_mat(path, "data")["data"]):
            fields = _struct(run)
            starts = np.ravel(fields["trial"]).astype(np.float64) - 1  # counted from 1
            if not len(starts):
                continue  # eye movements
            if float(np.ravel(fields["fs"])[0]) != SFREQ:
                raise ValueError(
                    f"{path} has a rate of {np.ravel(fields['fs'])[0]} Hz; expected {SFREQ:g} Hz"
                )
            signals = np.asarray(fields["X"], dtype=np.float64)
            inside = ((starts >= 0) & (starts + WINDOW[1] <= len(signals))).all()
            if signals.ndim != 2 or signals.shape[1] < N_CHANS or not inside or _overlapping(starts):
                raise ValueError(
                    f"{path} is cut short: a run has shape {signals.shape}, a trial at {starts.max()}"
                )
            starts = starts.astype(np.int64)
            windows += [signals[start + WINDOW[0] : start + WINDOW[1], :N_CHANS].T for start in starts]
            numbers = _class_indices(path, fields["y"])
            marks = np.ravel(fields["artifacts"]) if "artifacts" in fields else np.zeros(len(starts))
            if not len(numbers) == len(marks) == len(starts):
                raise ValueError(f"{path}: a run has {len(starts)} trials but {len(numbers)} labels")
            labels.append(numbers)
            rejected.append(marks.astype(bool))
        if not windows:
            raise ValueError(f"{path} holds no trials")
    stacked = np.stack(windows)
    limit = np.full(N_CHANS, LIMIT)
    missing = sum(_zero_missing(window, -limit, limit) for window in stacked)
    return SessionTrials(stacked, np.concatenate(labels), np.concatenate(rejected), missing)


def read_converted(path: Path) -> SessionTrials:
    """Read ``data`` (times, channels, trials) and ``label`` as they are."""
    with limits.reading(path):
        variables = _load_mat(path, "data", "label")
        data = np.asarray(variables["data"], dtype=np.float64)
        labels = _class_indices(path, variables["label"])
        if data.ndim != 3 or data.shape[2] != len(labels):
            raise ValueError(
                f"{path}: data has shape {data.shape} (times, channels, trials), label {len(labels)}"
            )
    windows = np.ascontiguousarray(data.transpose(2, 1, 0))
    missing = ~np.isfinite(windows)
    windows[missing] = 0.0
    return SessionTrials(windows, labels, np.zeros(len(labels), dtype=bool), int(missing.sum()))


FORMS = {"gdf": read_gdf, "bnci": read_bnci, "converted": read_converted}


def _overlapping(starts: npt.NDArray[Any]) -> bool:
    """Return whether windows of trials overlap, in which case each would copy the same samples."""
    return bool((np.diff(np.sort(starts)) < N_TIMES).any())


def _zero_missing(window: npt.NDArray[np.float64], low: npt.NDArray[Any], high: npt.NDArray[Any]) -> int:
    """Set to 0 what is NaN or at a limit (n_chans,), in place, and count it."""
    near = RESOLUTION / 2
    missing = ~np.isfinite(window)
    missing |= (np.abs(window - low[:, None]) < near) | (np.abs(window - high[:, None]) < near)
    window[missing] = 0.0
    return int(missing.sum())


def _class_indices(path: Path, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    numbers = np.ravel(np.asarray(values)).astype(np.int64)
    if len(numbers) and not 1 <= numbers.min() <= numbers.max() <= 4:
        raise ValueError(f"{path}: labels lie between 1 and 4, got {numbers.min()} to {numbers.max()}")
    return numbers - 1


def _struct(run: Any) -> dict[str, Any]:
    """Return the fields of a run, unwrapped from the cells that scipy leaves around them."""
    while isinstance(run, np.ndarray) and run.dtype.names is None and run.size == 1:
        run = run.flat[0]
    while isinstance(run, np.ndarray) and run.shape:
        run = run.flat[0]
    return {name: run[name] for name in run.dtype.names}


def _load_mat(path: Path, *names: str) -> dict[str, Any]:
    from scipy.io import loadmat

    check_mat(path)
    variables: dict[str, Any] = loadmat(path, variable_names=names)
    if missing := [name for name in names if name not in variables]:
        raise ValueError(f"{path} has no variable {', '.join(missing)}; is it the right file?")
    return variables


def check_mat(path: Path) -> None:
    """Refuse a MATLAB file that declares more than its bytes: scipy would allocate it before reading."""
    content = memoryview(path.read_bytes())
    order = {b"IM": "<", b"MI": ">"}.get(bytes(content[126:128]))
    if order is None:
        newer = " (7.3: save it with -v7)" if bytes(content[:128]).startswith(b"MATLAB 7.3") else ""
        raise ValueError(f"{path} is not a MATLAB file of version 5 to 7{newer}; is it damaged or cut short?")
    for kind, block in _mat_elements(content[128:], order, padded=False):
        inner = [(kind, block)]
        if kind == _MAT_COMPRESSED:
            most = min(limits.room(len(block)), 8 * limits.LARGEST)
            stream = zlib.decompressobj()
            unpacked = memoryview(stream.decompress(block, most))  # checks its checksum, which scipy does not
            if not stream.eof:
                raise ValueError(f"a variable is cut short or unpacks to more than {most} bytes")
            inner = list(_mat_elements(unpacked, order))
        if [number for number, _ in inner] != [_MAT_MATRIX]:
            raise ValueError(f"a variable of type {kind}")
        _check_mat_array(inner[0][1], order)


def _mat_elements(block: memoryview, order: str, *, padded: bool = True) -> Iterator[tuple[int, memoryview]]:
    """Yield type and content of the data elements in a block; each must fit into it."""
    at = 0
    while at < len(block):
        if at + 8 > len(block):
            raise ValueError("an element without its size")
        kind, size = (int(n) for n in np.frombuffer(block, f"{order}u4", 2, at))
        start = at + 8
        if kind >> 16:  # small elements have their content in place of their size
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        if kind not in _MAT_TYPES:  # scipy would crash
            raise ValueError(f"an element of type {kind}")
        if start + size > len(block) or (start == at + 4 and size > 4):
            raise ValueError(f"an element of {size} bytes where {len(block) - start} are left")
        yield kind, block[start : start + size]
        at = max(at + 8, start + size)
        if padded or kind != _MAT_COMPRESSED:
            at += -at % 8


def _check_mat_array(block: memoryview, order: str) -> None:
    """Refuse an array whose elements do not match its header."""
    elements = list(_mat_elements(block, order))
    if not elements:  # an empty cell
        return
    kinds, parts = [kind for kind, _ in elements], [content for _, content in elements]
    if kinds[:3] != [6, 5, 1] or len(parts[0]) != 8:
        raise ValueError("an array without flags, dimensions or name")
    flags = int(np.frombuffer(parts[0], f"{order}u4", 1)[0])
    kind, n_blocks = flags & 0xFF, 2 if flags & 0x800 else 1  # of complex numbers two
    dims = np.frombuffer(parts[1][: len(parts[1]) // 4 * 4], f"{order}i4").tolist()
    count = math.prod(dims)
    if not 2 <= len(dims) <= 32 or min(dims) < 0 or count > min(len(block), limits.LARGEST):
        raise ValueError(f"an array of dimensions {dims[:8]} in {len(block)} bytes")
    if kind not in (_MAT_CELL, _MAT_STRUCT):
        if kind not in _MAT_VALUES or {_MAT_MATRIX, _MAT_COMPRESSED} & set(kinds):
            raise ValueError(f"an array of kind {kind}; expected numbers, text, cells or structs")
        if len(parts) - 3 != n_blocks and (count or kind != _MAT_TEXT):
            raise ValueError(f"{len(parts) - 3} blocks of values where {n_blocks} are claimed")
        return
    first = 3
    if kind == _MAT_STRUCT:  # before its entries: the length of a field's name, and the names
        if kinds[3:5] != [5, 1] or (length := int(np.frombuffer(parts[3], f"{order}i4", 1)[0])) < 1:
            raise ValueError("a struct without field names")
        first, count = 5, count * (len(parts[4]) // length)
    if len(kinds) - first != count or set(kinds[first:]) - {_MAT_MATRIX}:
        raise ValueError(f"{len(kinds) - first} entries where {count} arrays are claimed")
    for entry in parts[first:]:
        _check_mat_array(entry, order)
