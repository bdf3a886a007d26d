"""A small sound file of every format that is read, and the functions by which commands read it."""

import contextlib
import gzip
import io
import random
import shutil
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorinv import AnchorInvClassifier, Filter, Preprocessing
from anchorinv.cli.data import _show_subjects, show
from anchorinv.datasets.dataset import Dataset, draw_trials, open_windows
from anchorinv.datasets.npz_sets import (
    ECG_BEATS,
    EEG_MOTOR_IMAGERY,
    EEG_STRESS,
    EMG_LONGTERM,
    NpzSet,
    read_trials,
)
from anchorinv.datasets.own import plan_manifest, plan_npz
from anchorinv.datasets.own_files import ALLOWED, OwnOptions
from anchorinv.datasets.paper_sets import FORMS, form_of, plan_nhie, read_gdf, read_labels
from anchorinv.datasets.prepare import prepare
from anchorinv.serving.evaluation import evaluate_file
from anchorinv.serving.files import ReadOptions, predict_file, read_shots
from anchorinv.serving.streaming import DriftMonitor
from anchorinv.study.loading import load, shipped
from anchorinv.validation import read_labels as checked_labels
from anchorinv.validation import read_signals
from tests.campaigns.damage import damaged, inside_gz, inside_mat, inside_npz, inside_xz
from tests.datasets import making
from tests.datasets.genuine import PLACE
from tests.models import CHANNELS, windows
from tests.recording_files import write_edf, write_fif, write_gdf, write_wfdb

RATE = 128
EASY = OwnOptions(
    band=Filter(1, 20),
    reference="average",
    at_least=1,
    allow=frozenset(ALLOWED),
    sfreq=RATE,
    resample=64.0,
    window=0.5,
)
Read = Callable[[Path, AnchorInvClassifier], object]


@dataclass(frozen=True)
class Format:
    """``write`` puts a sound input into a folder and returns what commands are given; ``how`` damages it."""

    write: Callable[[Path], Path]
    reads: tuple[Read, ...]
    damage: tuple[str, ...] = ("*",)
    how: Callable[[bytes, random.Random], bytes] = damaged


def _own(path: Path, model: AnchorInvClassifier) -> None:
    lines = [{"path": path.name, "label": "a", "split": side} for side in ("train", "test")]
    table = making.rows(path.parent / "table.csv", *lines)
    prepare(plan_manifest(table, EASY), path.parent / "out", replace=True)


def _own_npz(path: Path, model: AnchorInvClassifier) -> None:
    prepare(plan_npz(path, EASY), path.parent / "out", replace=True)


def _own_table(path: Path, model: AnchorInvClassifier) -> None:
    prepare(plan_manifest(path, EASY), path.parent / "out", replace=True)


def _predict(path: Path, model: AnchorInvClassifier) -> None:
    watch = DriftMonitor(model)
    list(predict_file(model, path, ReadOptions(sfreq=128.0), note=watch))
    assert watch.drift is None or watch.drift.verdict is not None


def _predict_processed(path: Path, model: AnchorInvClassifier) -> None:
    """Through a filter, a reference and a change of rate, by overlapping windows."""
    other = copy(model)
    other.preprocessing = Preprocessing(filter=Filter(1, 20), reference="average")
    other.sfreq_ = 100.0
    list(predict_file(other, path, ReadOptions(step=0.25, sfreq=128.0), note=DriftMonitor(other)))


def _learn(path: Path, model: AnchorInvClassifier) -> None:
    read_shots(model, path, ReadOptions(sfreq=128.0))


def _evaluate(path: Path, model: AnchorInvClassifier) -> None:
    evaluate_file(model, path).lines()


def _train(path: Path, model: AnchorInvClassifier) -> None:
    file = open_windows(path, split="train")
    signals = read_signals(file.all())
    checked_labels(file.labels, len(signals.values))


def _data(path: Path, model: AnchorInvClassifier) -> None:
    data = Dataset.open(path)
    with contextlib.redirect_stdout(io.StringIO()):
        show(data, path)
        _show_subjects(data)


def _draw(path: Path, model: AnchorInvClassifier) -> None:
    data = Dataset.open(path)
    if len(data) and len(data.class_names) < 10:
        draw_trials(data, path.parent / "trials.png")


def _mat(path: Path, model: AnchorInvClassifier) -> None:
    form = form_of(path)
    if form:
        (read_labels if form == "labels" else FORMS[form])(path)


def _nhie(path: Path, model: AnchorInvClassifier) -> None:
    plan_nhie(path, allow_missing=True)


def _volts(n_seconds: int = 4) -> np.ndarray:
    return 2e-5 * np.random.default_rng(0).normal(size=(4, n_seconds * RATE))


def _recording(write: Callable[..., Path], name: str) -> Callable[[Path], Path]:
    return lambda folder: write(folder / name, _volts(), CHANNELS, RATE)


def _csv(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        making.table_xz(folder / name, 1e6 * _volts(), list(CHANNELS), RATE)
        return folder / name

    return write


def _fif_gz(folder: Path) -> Path:
    plain = write_fif(folder / "r_raw.fif", _volts(), CHANNELS, RATE)
    (folder / "r_raw.fif.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return folder / "r_raw.fif.gz"


def _bdf(folder: Path) -> Path:
    digital = np.random.default_rng(0).integers(-(2**20), 2**20, size=(4, 4 * RATE))
    making.edf(folder / "r.bdf", digital, list(CHANNELS), sfreq=RATE, bdf=True)
    return folder / "r.bdf"


def _edf_plus(folder: Path) -> Path:
    """With a channel of annotations."""
    from tests.datasets.notes import edf_plus

    return edf_plus(folder / "r.edf", [b"+0\x14\x14\x00+0.5\x151\x14eyes closed\x14\x00", b"+1\x14\x14\x00"])


def _brainvision(folder: Path) -> Path:
    making.brainvision(folder / "r.vhdr", 1e6 * _volts(), list(CHANNELS), sfreq=RATE)
    return folder / "r.vhdr"


def _gdf_session(version: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        digital = np.random.default_rng(0).integers(-30000, 30000, size=(25, 250 * 20))
        events = [(0, 768), (500, 769), (2000, 768), (2500, 783), (2500, 1023)]
        making.gdf(folder / "A01T.gdf", digital, events, version=version)
        return folder / "A01T.gdf"

    return write


def _bnci(*, compressed: bool) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        run = {"X": np.random.default_rng(0).normal(size=(3500, 25)), "trial": [1, 1800], "y": [1, 4]}
        making.bnci(folder / "A01T.mat", [run], compressed=compressed)
        return folder / "A01T.mat"

    return write


def _npz(*, save: Callable[..., None]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        X, y = windows(12)
        save(folder / "a.npz", X=X.astype(np.float32), y=y, sfreq=128.0, ch_names=list(CHANNELS))
        return folder / "a.npz"

    return write


def _npy(folder: Path) -> Path:
    np.save(folder / "a.npy", windows(12)[0])
    return folder / "a.npy"


def _flat_npy(folder: Path) -> Path:
    np.save(folder / "a.npy", 1e6 * _volts())
    return folder / "a.npy"


def _folder(folder: Path) -> Path:
    X, y = windows(12)
    split = ["train", "test"] * 6
    meta = {"name": "a", "steps": ["b"], "counts": {"c": 1}, "unit": "uV"}
    Dataset.from_arrays(X, y, sfreq=128, split=split, **meta).write(folder / "set")
    return folder / "set"


def _table(folder: Path) -> Path:
    _csv("r.csv")(folder)
    (folder / "kept").mkdir()
    (folder / "r.csv").rename(folder / "kept" / "r.csv")
    cells = {"path": "kept/r.csv", "label": "a", "subject": "1", "session": "1"}
    parts = [{"split": "train", "start": 0, "stop": 2}, {"split": "test", "start": 2, "stop": 4}]
    return making.rows(folder / "table.csv", *(cells | part for part in parts))


def _grades(folder: Path) -> Path:
    rows = [{"file_ID": f"ID0{i}_epoch1", "baby_ID": f"ID0{i}", "grade": i % 4 + 1} for i in range(1, 9)]
    making.rows(folder / "raw" / "metadata.csv", *rows)
    (folder / "raw" / "ID01_epoch1.edf").write_bytes(b"")
    return folder / "raw"


def _toml(folder: Path) -> Path:
    shutil.copy(shipped()["bci2a-anchors"], folder / "study.toml")
    return folder / "study.toml"


def _trials(form: NpzSet, write_file: Callable[..., object], **options: object) -> Format:
    def write(folder: Path) -> Path:
        write_file(folder / form.file, **options)
        return folder / form.file

    return Format(write, (lambda path, _: read_trials(path, form),))


def _genuine(*names: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        for name in names:
            shutil.copy(PLACE / name, folder)
            (folder / Path(name).name).chmod(0o644)
        return folder / Path(names[0]).name

    return write


_GRABMYO = "grabmyo_sample/Session1/session1_participant1/session1_participant1_gesture10_trial1"
_STREAM = (_own, _predict, _predict_processed, _learn)
_WINDOWS = (_predict, _learn, _evaluate, _train)
FORMATS: dict[str, Format] = {
    "edf": Format(_recording(write_edf, "r.edf"), _STREAM),
    "edf+": Format(_edf_plus, _STREAM),
    "bdf": Format(_bdf, _STREAM),
    "gdf": Format(_recording(write_gdf, "r.gdf"), _STREAM),
    "gdf 1 session": Format(_gdf_session("1.25"), (lambda path, model: read_gdf(path),)),
    "gdf 2 session": Format(_gdf_session("2.20"), (lambda path, model: read_gdf(path),)),
    "fif": Format(_recording(write_fif, "r_raw.fif"), _STREAM),
    "fif.gz": Format(_fif_gz, _STREAM),
    "brainvision": Format(_brainvision, _STREAM),
    "wfdb": Format(_recording(write_wfdb, "r"), _STREAM),
    "csv": Format(_csv("r.csv"), _STREAM),
    "csv.xz": Format(_csv("r.csv.xz"), _STREAM),
    "npz": Format(_npz(save=np.savez), (_own_npz, *_WINDOWS)),
    "npz compressed": Format(_npz(save=np.savez_compressed), (_own_npz, *_WINDOWS)),
    "npz emg-longterm": _trials(EMG_LONGTERM, making.emg_longterm, days=(1, 21)),
    "npz eeg-stress": _trials(EEG_STRESS, making.eeg_stress, subjects=(1,)),
    "npz eeg-motor-imagery": _trials(EEG_MOTOR_IMAGERY, making.eeg_motor_imagery, subjects=(1,)),
    "npz ecg-beats": _trials(ECG_BEATS, making.ecg_beats),
    "fif in gz": Format(_fif_gz, _STREAM, how=inside_gz),
    "csv in xz": Format(_csv("r.csv.xz"), _STREAM, how=inside_xz),
    "arrays in npz": Format(_npz(save=np.savez_compressed), (_own_npz, *_WINDOWS), how=inside_npz),
    "variables in mat": Format(_bnci(compressed=True), (_mat,), how=inside_mat),
    "npy windows": Format(_npy, (_predict, _learn)),
    "npy recording": Format(_flat_npy, _STREAM),
    "mat": Format(_bnci(compressed=False), (_mat,)),
    "mat compressed": Format(_bnci(compressed=True), (_mat,)),
    "prepared folder": Format(_folder, (_data, *_WINDOWS, _draw)),
    "manifest": Format(_table, (_own_table,), damage=("table.csv",)),
    "grades": Format(_grades, (_nhie,), damage=("raw/metadata.csv",)),
    "study toml": Format(_toml, (lambda path, model: load(str(path)),)),
}
if (PLACE / "eegmmidb_sample").is_dir():
    FORMATS |= {
        "genuine edf+": Format(_genuine("eegmmidb_sample/S001R04.edf"), (_own,)),
        "genuine wfdb": Format(_genuine(f"{_GRABMYO}.hea", f"{_GRABMYO}.dat"), (_own,)),
        "genuine mat": Format(_genuine("bci2a_true_labels/A01E.mat"), (_mat,)),
    }
