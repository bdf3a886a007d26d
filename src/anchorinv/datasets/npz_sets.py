"""Public sets that are one ``.npz`` file of labelled trials each; a part of one is shipped."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorinv.datasets.dataset import Dataset
from anchorinv.datasets.paper_sets import CH_NAMES as BCI2A_CHANNELS
from anchorinv.datasets.prepare import (
    DatasetPlan,
    LabelledWindow,
    PreparedRecording,
    RecordingSource,
    prepare_in_memory,
)
from anchorinv.errors import listed, raise_if_any, ranges
from anchorinv.signal.arrays import load_arrays
from anchorinv.signal.pipeline import process_trials, window_starts
from anchorinv.signal.preprocessing import AVERAGE, Filter, Preprocessing

#: Larger amplitudes, in µV, are artefacts: eyes, muscles, a loose electrode.
_EEG_LIMIT = 200.0
_AS_GIVEN = "whole numbers times scale; windows as given"


@dataclass(frozen=True, slots=True, eq=False)
class StoredTrials:
    """The trials (n, n_chans, n_times) of a file, the value of one unit, and its columns (n,)."""

    signals: npt.NDArray[np.int16]
    scale: float
    columns: dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class NpzSet:
    """A public set that is one ``.npz`` file: what the file, named after the set, holds and how it is used.

    EEG trials (``seconds`` given) are filtered if a band is given, clipped, re-referenced to the common
    average, and cut without overlap; of other sets each trial is one window, as it is.
    """

    name: str
    _: KW_ONLY
    ch_names: tuple[str, ...]
    classes: tuple[str, ...]  # the column ``y`` holds their indices
    n_times: int  # of a trial
    sfreq: float
    # The other columns of whole numbers that identify a trial, and the values allowed in each, ascending.
    columns: Mapping[str, Sequence[int]]
    recording: tuple[str, ...]  # the columns that identify a recording
    split_by: str  # the column that separates train from test; a recording that has both becomes two
    train: Sequence[int]  # its values, ascending
    test: Sequence[int]
    steps: tuple[str, ...]  # description of further steps
    origin: str
    licence: str
    unit: str | None = None  # None where it is unknown
    seconds: float | None = None  # length of the windows that EEG trials are cut into
    pre_cut: bool = False  # whether EEG trials were cut from a recording before they are filtered here
    session: str | None = None  # the column that becomes the session; None where there is only one
    gives_names: bool = False  # whether the file has ``ch_names``, which must be these
    repeated: bool = False  # whether trials may agree in all columns; their signals then identify them
    # Least distance of training trials from the test trials of their recording, in units of ``split_by``;
    # nearer ones are left out.
    margin: int = 0

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.name.replace('-', '_')}.npz"

    def plan(self, raw: Path, *, band: Filter | None = None, hold_out: str | None = None) -> DatasetPlan:
        """Plan the preparation of the file, or of the one below a folder; ``band`` filters each EEG trial.

        ``hold_out`` has values such as "2" or "16-20" of the column that splits: the training part only,
        with these as its test part; the test part proper is left out.
        """
        preprocessing = Preprocessing(self.ch_names, self.unit, sfreq=self.sfreq, n_times=self.n_times)
        if self.seconds is not None:
            if band is not None:
                band.sections(self.sfreq)  # check the rate before anything is read
            preprocessing = replace(
                preprocessing,
                filter=band,
                limit=_EEG_LIMIT,  # before the reference: a loose electrode would affect every channel
                reference=AVERAGE,
                by_trial=self.pre_cut and band is not None,
                n_times=round(self.seconds * self.sfreq),
            )
        split, words = split_values(self, hold_out)
        path = self._find(raw)
        meta = {
            "name": self.name,
            "form": "npz",
            "unit": self.unit or "as given",
            "steps": [*preprocessing.steps, *self.steps],
            "origin": self.origin,
            "licence": self.licence,
            "split": words,
            "hold_out": hold_out,
        }
        sources = list(self._sources(path, split, preprocessing))
        return DatasetPlan(path.parent, sources, preprocessing, self.classes, meta)

    def _find(self, raw: Path) -> Path:
        if raw.is_file():
            return raw
        if not raw.is_dir():
            raise ValueError(f"{raw} does not exist; pass {self.file}, or its folder, to --raw")
        paths = sorted(raw.rglob(self.file))
        if not paths:
            raise ValueError(f"{raw} holds no {self.file}; docs/data.md says what is in it")
        return paths[0]

    def _sources(
        self, path: Path, split: Mapping[int, str], preprocessing: Preprocessing
    ) -> Iterator[RecordingSource]:
        """Yield the recordings of a file, training and test parts separately."""
        trials = read_trials(path, self)
        values = trials.columns[self.split_by]
        splits = np.array([split.get(value, "") for value in values.tolist()])  # "" where left out
        for part in ("train", "test"):
            if part not in splits:
                of_part = ranges(value for value, its_part in split.items() if its_part == part)
                lacks = f"{path} has no trial of {self.split_by} {of_part}, which {part}"
                raise ValueError(f"{lacks}; take the whole file")
        keys = np.stack([trials.columns[name] for name in self.recording], axis=1)
        files: tuple[Path, ...] = (path,)
        for key in np.unique(keys[splits != ""], axis=0):
            of_recording = (keys == key).all(axis=1)
            name = "_".join(
                self.classes[value] if column == "y" else f"{column}{value}"
                for column, value in zip(self.recording, key.tolist(), strict=True)
            )
            test = values[of_recording & (splits == "test")]
            for part in ("train", "test"):
                (chosen,) = (of_recording & (splits == part)).nonzero()
                if part == "train" and self.margin and len(test):
                    distance = np.abs(values[chosen][:, None] - test).min(axis=1)
                    chosen = chosen[distance >= self.margin]
                if len(chosen):
                    unique = name if self.split_by in self.recording else f"{name}_{part}"
                    read = partial(self._read, trials, chosen, part, preprocessing)
                    yield RecordingSource(unique, files, read)
                    # The file is hashed with the first recording only; if it has changed, all are read again.
                    files = ()

    def _read(
        self, trials: StoredTrials, chosen: npt.NDArray[np.int64], split: str, preprocessing: Preprocessing
    ) -> PreparedRecording:
        """Return trials one after the other, EEG filtered, clipped and re-referenced, cut into windows."""
        signals = trials.signals[chosen] * trials.scale  # (n, n_chans, n_times)
        processed = process_trials(preprocessing, signals)
        counts = {} if preprocessing.limit is None else {"clipped samples": processed.n_clipped}
        windows = []
        starts = window_starts(self.n_times, preprocessing.n_times or self.n_times).tolist()
        for i, trial in enumerate(chosen):
            facts = {name: int(values[trial]) for name, values in trials.columns.items()}
            session = "1" if self.session is None else str(facts[self.session])
            named = (self.classes[facts["y"]], str(facts["subject"]), session, split)
            windows += [LabelledWindow(i * self.n_times + start, *named) for start in starts]
        return PreparedRecording(processed.samples, windows, counts)


#: An armband on three forearms on thirty days. Every window as it is; days 1-20 train, 21-30 test.
EMG_LONGTERM = NpzSet(
    "emg-longterm",
    ch_names=tuple(f"EMG{i}" for i in range(1, 9)),
    classes=tuple(f"motion {i}" for i in range(1, 23)),
    n_times=300,
    sfreq=200.0,
    columns={"subject": range(1, 4), "day": range(1, 31), "repetition": range(1, 5)},
    recording=("subject", "day"),
    session="day",
    split_by="day",
    train=range(1, 21),
    test=range(21, 31),
    steps=(_AS_GIVEN,),
    origin="Suguru55/Wearable_Sensor_Long-term_sEMG_Dataset",
    licence="Apache-2.0",
)

#: Shipped with the package, for the demo: one person, sixteen motions, two repetitions on each day.
EMG_DEMO = replace(
    EMG_LONGTERM,
    name="emg-demo",
    classes=EMG_LONGTERM.classes[:16],
    columns={"subject": range(1, 2), "day": range(1, 31), "repetition": range(1, 3)},
)

#: SAM 40: EEG of twenty people, relaxed and in three stressful tasks. Trials 1 and 2 train, 3 tests.
EEG_STRESS = NpzSet(
    "eeg-stress",
    ch_names=tuple(f"EEG{i}" for i in range(1, 33)),
    classes=("relax", "arithmetic", "mirror", "stroop"),
    n_times=3200,
    sfreq=128.0,
    unit="µV",
    columns={"subject": range(1, 21), "trial": range(1, 4)},
    recording=("subject", "y", "trial"),
    session="trial",
    split_by="trial",
    train=range(1, 3),
    test=range(3, 4),
    seconds=4,
    steps=("windows of 4 s without overlap, cut after the split",),
    origin="SAM 40 (Data in Brief 2022), through wavesresearch/eeg_stress_detection",
    licence="research use",
)

#: EEG Motor Movement/Imagery: imagined movements of twenty people. Runs 4, 6, 8, 10 train, 12 and 14 test;
#: runs 4, 8 and 12 have left and right fist, the others both fists and both feet.
EEG_MOTOR_IMAGERY = NpzSet(
    "eeg-motor-imagery",
    ch_names=BCI2A_CHANNELS,
    gives_names=True,
    classes=("left fist", "right fist", "both fists", "both feet"),
    n_times=480,
    sfreq=160.0,
    unit="µV",
    columns={"subject": range(1, 110), "run": (4, 6, 8, 10, 12, 14)},
    recording=("subject", "run"),
    session="run",
    split_by="run",
    train=(4, 6, 8, 10),
    test=(12, 14),
    repeated=True,  # the trials of a run have no numbers
    seconds=3,
    pre_cut=True,
    steps=("windows of 3 s as given",),
    origin="EEG Motor Movement/Imagery 1.0.0 (PhysioNet; Schalk et al., IEEE TBME 2004)",
    licence="ODC-BY 1.0",
)

#: MIT-BIH Arrhythmia: a window per heartbeat in two leads; the first two thirds of each record train. Classes
#: as PhysioNet writes them: normal, left and right bundle branch block, ventricular and atrial premature,
#: fusion of ventricular and normal, nodal escape.
ECG_BEATS = NpzSet(
    "ecg-beats",
    ch_names=("ECG1", "ECG2"),
    classes=("N", "L", "R", "V", "A", "F", "j"),
    n_times=256,
    sfreq=360.0,
    unit="mV",
    columns={"subject": range(100, 235), "sample": range(650_000)},
    recording=("subject",),
    split_by="sample",
    train=range(433_333),
    test=range(433_333, 650_000),
    margin=256,  # windows of fast beats overlap, and must not do so across the split
    steps=(_AS_GIVEN, "training windows that overlap a test window left out"),
    origin="MIT-BIH Arrhythmia Database 1.0.0 (PhysioNet; Moody & Mark, IEEE EMB 2001)",
    licence="ODC-BY 1.0",
)


def emg_demo() -> Dataset:
    """Return the real recordings shipped with the package, as used by ``anchorinv demo``.

    Surface EMG of one forearm on thirty days, eight channels at 200 Hz: 960 windows of 1.5 s, two of each of
    16 motions on each day; days 1 to 20 are the training part, 21 to 30 the test part. From
    Suguru55/Wearable_Sensor_Long-term_sEMG_Dataset under the Apache License 2.0, included beside the file.

    Examples
    --------
    >>> data = emg_demo()
    >>> train = data.split == "train"
    >>> data.signals(train).shape, data.class_names[:2]
    ((640, 8, 300), ('motion 1', 'motion 2'))
    """
    return prepare_in_memory(EMG_DEMO.plan(Path(__file__).parent / "emg_demo" / EMG_DEMO.file))


def split_values(data_set: NpzSet, hold_out: str | None) -> tuple[dict[int, str], str]:
    """Return the part (train or test) of each value (day, trial, run ...), and a description of the split."""
    train, test, unused = list(data_set.train), list(data_set.test), list[int]()
    if hold_out is not None:
        held = _parse_values(hold_out, allowed=set(data_set.train))
        unused, test = test, [value for value in data_set.train if value in held]
        train = [value for value in data_set.train if value not in held]
        if not test or not train:
            form = f"a {data_set.split_by} of {ranges(data_set.train)}, or a range or list"
            raise ValueError(f"--hold-out takes {form} that leaves some to train on; got {hold_out!r}")
    words = f"by {data_set.split_by}: {ranges(train)} train, {ranges(test)} test"
    if unused:
        words += f"; held out from the training part, {ranges(unused)} left out"
    return dict.fromkeys(train, "train") | dict.fromkeys(test, "test"), words


def _parse_values(text: str, *, allowed: set[int]) -> set[int]:
    """Return the numbers of "2", "16-20" or "8, 10"; none if the text, or a number, is invalid."""
    numbers = set[int]()
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", item)
        span = set(range(int(match[1]), int(match[2] or match[1]) + 1)) if match else set[int]()
        if not span or not span <= allowed:
            return set()
        numbers |= span
    return numbers


def read_trials(path: Path, data_set: NpzSet) -> StoredTrials:
    """Read the file of a set; all its problems are in one message."""
    names = ("X", "scale", "sfreq", "y", *data_set.columns, *(["ch_names"] if data_set.gives_names else []))
    arrays = load_arrays(path, names)
    problems = [f"{name} is missing" for name in names if name not in arrays]
    problems += _problems(arrays, data_set)
    raise_if_any(str(path), problems, f"{data_set.file} must be as described in docs/data.md")
    columns = {name: arrays[name].astype(np.int64) for name in ("y", *data_set.columns)}
    identity = list(columns.values())
    if data_set.repeated:
        flat = arrays["X"].reshape(len(arrays["X"]), -1)
        identity.append(np.unique(flat, axis=0, return_inverse=True)[1])
    _, first, count = np.unique(np.stack(identity), axis=1, return_index=True, return_counts=True)
    if (count > 1).any():
        trial = first[count > 1].min()
        named = listed([f"{name} {values[trial]}" for name, values in columns.items()])
        n_twice = int((count - 1).sum())
        raise ValueError(f"{path} has {n_twice} trials twice, the first {named}; keep one of each")
    return StoredTrials(arrays["X"], float(arrays["scale"].item()), columns)


def _problems(arrays: Mapping[str, npt.NDArray[Any]], data_set: NpzSet) -> Iterator[str]:
    signals = arrays.get("X")
    n = None if signals is None or not signals.ndim else len(signals)
    shape = len(data_set.ch_names), data_set.n_times
    if signals is not None and not (n and signals.dtype == np.int16 and signals.shape == (n, *shape)):
        yield f"X is {signals.dtype} {signals.shape}, expected int16 (n, {shape[0]}, {shape[1]})"
    if "scale" in arrays and not 0 < _number(arrays["scale"]) < np.inf:
        yield f"scale is {_describe(arrays['scale'])}, expected one number above 0"
    if "sfreq" in arrays and _number(arrays["sfreq"]) != data_set.sfreq:
        yield f"sfreq is {_describe(arrays['sfreq'])}, expected {data_set.sfreq:g} (Hz)"
    # The wrong names are not shown: they may not be valid text.
    if "ch_names" in arrays and arrays["ch_names"].tolist() != list(data_set.ch_names):
        yield f"ch_names are others than {listed(data_set.ch_names)}"
    for name, allowed in {"y": range(len(data_set.classes)), **data_set.columns}.items():
        values = arrays.get(name)
        if values is None:
            continue
        if values.ndim != 1 or values.dtype.kind not in "iu":
            yield f"{name} is {values.dtype} {values.shape}, expected a whole number for each trial"
        elif n is not None and len(values) != n:
            yield f"{name} has {len(values)} values for {n} trials"
        elif invalid := sorted(value for value in set(values.tolist()) if value not in allowed):
            yield f"{name} has {listed(invalid, most=3)}, expected {ranges(allowed)}"


def _number(array: npt.NDArray[Any]) -> float:
    """Return the only number of an array, NaN where it holds something else."""
    return float(array.item()) if array.size == 1 and array.dtype.kind in "fiu" else np.nan


def _describe(array: npt.NDArray[Any]) -> str:
    return str(array.item()) if array.size == 1 else f"{array.dtype} {array.shape}"
