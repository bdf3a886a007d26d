"""The three forms in which BCI Competition IV 2a is passed around, read into the same trials."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.io import loadmat, whosmat

from anchorinv.data.matfiles import check_mat
from anchorinv.signal.headers import gdf_limits
from anchorinv.signal.limits import reading
from anchorinv.signal.readers import open_mne

SFREQ = 250.0
CH_NAMES = (
    "Fz", "FC3", "FC1", "FCz", "FC2", "FC4", "C5", "C3", "C1", "Cz", "C2", "C4", "C6", "CP3", "CP1", "CPz",
    "CP2", "CP4", "P1", "Pz", "P2", "POz",
)  # fmt: skip
N_CHANS = len(CH_NAMES)
#: 2 s to 6 s of a trial: four seconds from the cue.
WINDOW = (500, 1500)
#: The amplifier's range in µV and its resolution: what lies at the limits was not measured.
LIMIT, RESOLUTION = 100.0, 200 / 65535
_CUES = {"769": 0, "770": 1, "771": 2, "772": 3}


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """The trials of a file, in its order.

    Parameters
    ----------
    windows : (n, n_chans, n_times) in µV, missing samples set to 0.
    labels : (n,) class numbers from 0; -1 where the file does not say.
    rejected : (n,) trials that an expert marked.
    missing : how many samples were missing.
    """

    windows: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]
    rejected: npt.NDArray[np.bool_]
    missing: int


def form_of(path: Path) -> str:
    """Tell by its content what a file is: "gdf", "bnci", "converted" or "labels"; "" if none of them."""
    if path.suffix.lower() == ".gdf":
        return "gdf"
    with reading(path):
        check_mat(path)
        inside = {name: kind for name, _, kind in whosmat(path)}
    if "classlabel" in inside:
        return "labels"
    if "data" in inside and "label" in inside:
        return "converted"
    # scipy names an array of structs "struct"; older writers wrap it into a cell.
    return "bnci" if inside.get("data") in ("struct", "cell") else ""


def read_labels(path: Path) -> npt.NDArray[np.int64]:
    """Return the true labels (n,) of a session, from 0."""
    with reading(path):
        return _class_numbers(path, _loaded(path, "classlabel")["classlabel"])


def read_gdf(path: Path) -> Trials:
    """Read a GDF session; where it hides the classes (783), labels are -1."""
    with reading(path):
        raw = open_mne(path)
        if raw.info["sfreq"] != SFREQ or len(raw.ch_names) < N_CHANS:
            raise ValueError(
                f"{path} has {len(raw.ch_names)} channels at {raw.info['sfreq']:g} Hz; "
                f"{N_CHANS} and three for the eyes at {SFREQ:g} Hz are wanted"
            )
        # By what an event is called, never by a reader's numbers for it: these shift from file to file.
        called = np.array([str(name) for name in raw.annotations.description])
        at = np.rint(raw.annotations.onset * SFREQ).astype(np.int64) - raw.first_samp
        begun = np.sort(at[called == "768"])
        cues = sorted(
            (at[i], _CUES.get(name, -1)) for i, name in enumerate(called) if name in {*_CUES, "783"}
        )
        within = [0 <= cue - start < WINDOW[1] for (cue, _), start in zip(cues, begun, strict=False)]
        if len(cues) != len(begun) or not within or not all(within):
            raise ValueError(
                f"{path} has {len(begun)} trials (768) and {len(cues)} cues (769-772, 783), one in each is "
                "wanted; is it whole?"
            )
        if begun.min() < 0 or begun.max() + WINDOW[1] > raw.n_times or _crowded(begun):
            raise ValueError(f"{path} is cut short: its last trial ends after the file")
        low, high = gdf_limits(path)[:, :N_CHANS]
        windows = np.empty((len(begun), N_CHANS, WINDOW[1] - WINDOW[0]))
        gaps = 0
        for window, start in zip(windows, begun + WINDOW[0], strict=True):
            stop = start + windows.shape[2]
            window[:] = raw.get_data(picks=range(N_CHANS), start=int(start), stop=int(stop)) * 1e6
            gaps += _fill(window, low, high)
    labels = np.array([label for _, label in cues], dtype=np.int64)
    return Trials(windows, labels, np.isin(begun, at[called == "1023"]), gaps)


def read_bnci(path: Path) -> Trials:
    """Read a session as BNCI Horizon publishes it: runs of a struct, the first ones without trials."""
    windows, labels, rejected = [], [], []
    with reading(path):
        for run in np.ravel(_loaded(path, "data")["data"]):
            fields = _struct(run)
            starts = np.ravel(fields["trial"]).astype(np.float64) - 1  # counted from 1
            if not len(starts):
                continue  # eye movements
            if float(np.ravel(fields["fs"])[0]) != SFREQ:
                raise ValueError(
                    f"{path} has a rate of {np.ravel(fields['fs'])[0]} Hz; {SFREQ:g} Hz is wanted"
                )
            signals = np.asarray(fields["X"], dtype=np.float64)
            beyond = not ((starts >= 0) & (starts + WINDOW[1] <= len(signals))).all()
            if signals.ndim != 2 or signals.shape[1] < N_CHANS or beyond or _crowded(starts):
                raise ValueError(
                    f"{path} is cut short: a run has shape {signals.shape}, a trial at {starts.max()}"
                )
            starts = starts.astype(np.int64)
            windows += [signals[start + WINDOW[0] : start + WINDOW[1], :N_CHANS].T for start in starts]
            numbers = _class_numbers(path, fields["y"])
            marks = np.ravel(fields["artifacts"]) if "artifacts" in fields else np.zeros(len(starts))
            if not len(numbers) == len(marks) == len(starts):
                raise ValueError(f"{path}: a run has {len(starts)} trials but {len(numbers)} labels")
            labels.append(numbers)
            rejected.append(marks.astype(bool))
        if not windows:
            raise ValueError(f"{path} holds no trials")
    stacked = np.stack(windows)
    gaps = sum(_fill(window, np.full(N_CHANS, -LIMIT), np.full(N_CHANS, LIMIT)) for window in stacked)
    return Trials(stacked, np.concatenate(labels), np.concatenate(rejected), gaps)


def read_converted(path: Path) -> Trials:
    """Read ``data`` (times, channels, trials) and ``label`` as they are, whatever was done to them."""
    with reading(path):
        inside = _loaded(path, "data", "label")
        data = np.asarray(inside["data"], dtype=np.float64)
        labels = _class_numbers(path, inside["label"])
        if data.ndim != 3 or data.shape[2] != len(labels):
            raise ValueError(
                f"{path}: data has shape {data.shape} (times, channels, trials), label {len(labels)}"
            )
    windows = np.ascontiguousarray(data.transpose(2, 1, 0))
    gaps = ~np.isfinite(windows)
    windows[gaps] = 0.0
    return Trials(windows, labels, np.zeros(len(labels), dtype=bool), int(gaps.sum()))


def _loaded(path: Path, *names: str) -> dict[str, Any]:
    check_mat(path)
    found: dict[str, Any] = loadmat(path, variable_names=names)
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{path} has no variable {', '.join(missing)}; is it what it should be?")
    return found


def _crowded(starts: npt.NDArray[Any]) -> bool:
    """Tell whether trials (n,) begin within each other's window: each of them would be a copy of the rest."""
    return bool((np.diff(np.sort(starts)) < WINDOW[1] - WINDOW[0]).any())


def _fill(window: npt.NDArray[np.float64], low: npt.NDArray[Any], high: npt.NDArray[Any]) -> int:
    """Set to 0 what is missing or at a limit (n_chans,), and count it."""
    near = RESOLUTION / 2
    gaps = ~np.isfinite(window)
    gaps |= (np.abs(window - low[:, None]) < near) | (np.abs(window - high[:, None]) < near)
    window[gaps] = 0.0
    return int(gaps.sum())


def _class_numbers(path: Path, told: npt.ArrayLike) -> npt.NDArray[np.int64]:
    numbers = np.ravel(np.asarray(told)).astype(np.int64)
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
