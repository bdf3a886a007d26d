"""Data sets of MOABB: its readers, trials and labels, with the signal path of this package.

MOABB's paradigms define the trials, their classes and windows; filtering and resampling are those of
:mod:`anchorinv.signal.pipeline`, so that a model can be used live.
"""

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from anchorinv.datasets.prepare import (
    DatasetPlan,
    LabelledWindow,
    PreparedRecording,
    RecordingSource,
    Unavailable,
)
from anchorinv.errors import import_extra, listed, shown
from anchorinv.signal.pipeline import process
from anchorinv.signal.preprocessing import Filter, Preprocessing, pick_channels, renamed

#: Ways to split into train and test.
SPLITS = ("session", "run", "subject")
#: MOABB's paradigm class for each ``paradigm`` of a data set.
_PARADIGMS = {
    "imagery": "MotorImagery",
    "p300": "P300",
    "ssvep": "SSVEP",
    "cvep": "CVEP",
    "rstate": "RestingStateToP300Adapter",
}
_ORDER = 4  # filter order of MOABB
_LONGEST = 300  # characters of MOABB's message in an error


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """The trials of one continuous recording."""

    session: str
    run: str
    raw: Any  # mne.io.Raw
    sfreq: float
    events: npt.NDArray[np.int64]  # (n,): samples from the start of the recording
    labels: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    """A data set with the paradigm that reads it."""

    dataset: Any
    paradigm: Any
    rename: Mapping[str, str]

    @property
    def name(self) -> str:
        return type(self.dataset).__name__

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes in the order of their event codes."""
        events = self.paradigm.used_events(self.dataset)
        return tuple(sorted(events, key=lambda name: (int(np.min(events[name])), name)))

    def band(self, *, causal: bool) -> Filter:
        """Return the band-pass of the paradigm."""
        low, high = self.paradigm.filters[0]
        return Filter(low, high, order=_ORDER, causal=causal)

    def runs(self, subject: Any) -> list[_Run]:
        """Return the runs of a person that have trials, in order of time."""
        from moabb.datasets.base import apply_step
        from moabb.datasets.bids_interface import StepType

        (pipeline,) = self.paradigm.make_process_pipelines(self.dataset, return_epochs=True)
        ((_, epoching),) = pipeline.find_steps(StepType.EPOCHS)
        labelling = self.paradigm.make_labels_pipeline(self.dataset, return_epochs=True)
        runs = []
        with _quiet():
            for session, recordings in _in_time(self._load(subject)):
                for run, raw in _in_time(recordings):
                    epochs = apply_step(epoching, raw)
                    if epochs is None or not len(epochs):
                        continue
                    sfreq = float(raw.info["sfreq"])
                    start = epochs.events[:, 0] - raw.first_samp + round(float(epochs.tmin) * sfreq)
                    runs.append(_Run(session, run, raw, sfreq, start, labelling.transform(epochs)))
        if not runs:
            raise ValueError(f"subject {subject} of {self.name} has no trials; exclude it with --subjects")
        return runs

    def _load(self, subject: Any) -> dict[str, dict[str, Any]]:
        try:
            loaded: dict[str, dict[str, Any]] = self.dataset.get_data([subject])[subject]
        except Exception as error:  # servers, archives and readers raise all kinds of errors
            from mne import get_config

            folder = Path(get_config("MNE_DATA") or Path.home() / "mne_data")
            message = shown(" ".join(str(error).split())[:_LONGEST]) or type(error).__name__
            failed = f"MOABB could not provide subject {subject} of {self.name}: {message.rstrip('.')}"
            put = f"put the files where MOABB looks for them (MNE_DATA, now {folder})"
            again = f"if it was the network, run the same command again, or {put}"
            raise Unavailable(f"{failed}; {again}") from error
        return loaded

    def channels(self, run: _Run) -> tuple[str, ...]:
        """Return the channels that MOABB uses, after renaming."""
        from moabb.datasets.utils import pick_channels_for_modalities

        picks = pick_channels_for_modalities(run.raw.info, self.dataset.return_all_modalities)
        names = renamed(run.raw.ch_names, self.rename, source=self.name)
        return tuple(names[i] for i in picks)

    def samples(self, subject: Any, run: _Run, preprocessing: Preprocessing) -> npt.NDArray[np.float64]:
        """Return the channels (n_inputs, n) of a run, in the unit of the data set."""
        source = f"subject {subject}, session {run.session}, run {run.run} of {self.name}"
        present = renamed(run.raw.ch_names, self.rename, source=source)
        picks = pick_channels(preprocessing.inputs or (), present, source=source)
        return np.asarray(run.raw.get_data(picks, verbose="error") * self.dataset.unit_factor)


class SetFacts(NamedTuple):
    """Facts about a data set that MOABB knows without a download."""

    name: str
    paradigm: str
    n_subjects: int
    n_sessions: int
    classes: tuple[str, ...]


def known_sets() -> list[SetFacts]:
    """Return MOABB's data sets, sorted by name; nothing is downloaded."""
    with _quiet():
        sets = {name: kind() for name, kind in sorted(_registry().items())}
    return [
        SetFacts(name, data.paradigm, len(data.subject_list), data.n_sessions, tuple(data.event_id))
        for name, data in sets.items()
    ]


def find_set(name: str) -> Any:
    """Return a data set of MOABB by its name, in any spelling: BNCI2014_001, bnci2014-001."""
    sets = {_normalise(candidate): kind for candidate, kind in _registry().items()}
    key = _normalise(name)
    if key not in sets:
        longer = [candidate for candidate in sets if key and candidate.startswith(key)]
        names = [sets[candidate].__name__ for candidate in longer or get_close_matches(key, sets)][:3]
        hint = f"did you mean {' or '.join(names)}? " if names else ""
        hint += f"anchorinv prepare moabb --list shows all {len(sets)}"
        raise ValueError(f"MOABB has no data set {shown(name)!r}; {hint}")
    return sets[key]()


def _registry() -> dict[str, Any]:
    with _quiet():
        sets = import_extra("moabb.datasets.utils", extra="moabb")
    return dict(sets.dataset_dict)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence MOABB and MNE, except for progress bars."""
    import_extra("moabb", extra="moabb")
    mne = import_extra("mne", extra="moabb")
    logger = logging.getLogger("moabb")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with mne.utils.use_log_level("ERROR"), warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _in_time(parts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Sort sessions or runs by the number at the start of their names: 0train, 1test."""
    return sorted(parts.items(), key=lambda part: int((re.match(r"\d+", part[0]) or "0")[0]))


def _normalise(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def plan_moabb(
    source: Any,
    *,
    subjects: str | None = None,
    split: str | None = None,
    band: Filter | Literal["paradigm"] | None = "paradigm",
    causal: bool = True,
    resample: float | None = None,
    channels: tuple[Sequence[str], Mapping[str, str]] = ((), {}),
    reference: str | None = None,
    start: float | None = None,
    stop: float | None = None,
) -> DatasetPlan:
    """Plan the preparation of a MOABB data set; MOABB downloads missing files.

    Parameters
    ----------
    source : str or moabb.datasets.base.BaseDataset
        A name of ``known_sets()``, or a data set of your own.
    subjects : str or None, default=None
        Such as "1-3,7"; None takes all.
    split : {"session", "run", "subject"} or None, default=None
        Test on the last quarter of each person's sessions or runs, or of people; None for the first possible.
    band : Filter, "paradigm" or None, default="paradigm"
        Band-pass of the recordings; "paradigm" for the band of MOABB's paradigm.
    causal : bool, default=True
        Whether the filter of the paradigm is causal; MOABB's own is zero-phase.
    resample : float or None, default=None
        Sampling rate in Hz; None for that of the first recording.
    channels : tuple of names and renamings
        As returned by ``parse_channels``; without names, all EEG channels of the first recording.
    reference : str or None, default=None
        As in :class:`~anchorinv.signal.preprocessing.Preprocessing`.
    start, stop : float or None, default=None
        Of a window, in seconds from the start of MOABB's; None for MOABB's.
    """
    dataset = find_set(source) if isinstance(source, str) else source
    people = _select_subjects(dataset, subjects)
    if split not in (None, *SPLITS):
        raise ValueError(f"--split is one of {', '.join(SPLITS)}, got {split!r}")
    names, rename = channels
    reader = _Reader(dataset, _paradigm(dataset, start, stop), rename)
    # Planning reads the first person, and so does preparing next: the cache saves reading twice.
    load = lru_cache(maxsize=1)(reader.runs)
    runs = load(people[0])
    band = reader.band(causal=causal) if isinstance(band, str) else band
    if band is not None:
        band.sections(runs[0].sfreq)  # raises early if the band does not fit the rate
    tmin, tmax = _interval(dataset, reader.paradigm)
    sfreq = resample or runs[0].sfreq
    n_times = round((tmax - tmin) * sfreq)
    ch_names = tuple(names) or reader.channels(runs[0])
    unit = "µV" if dataset.unit_factor == 1e6 else None
    preprocessing = Preprocessing(ch_names, unit, band, reference=reference, sfreq=sfreq, n_times=n_times)
    by = split or _default_split(runs, people)
    test = _test_people(reader.name, people) if by == "subject" else set()
    read = partial(_read, reader, load, by, test, preprocessing)
    sources = [RecordingSource(f"subject {person}", (), partial(read, person)) for person in people]
    meta = _meta(reader, preprocessing, by, (tmin, tmax))
    return DatasetPlan(Path(reader.name), sources, preprocessing, reader.classes, meta)


def _paradigm(dataset: Any, start: float | None, stop: float | None) -> Any:
    kind = _PARADIGMS.get(dataset.paradigm)
    if kind is None:
        known = f"supported are {', '.join(_PARADIGMS)}"
        raise ValueError(f"{type(dataset).__name__} has the paradigm {dataset.paradigm!r}; {known}")
    with _quiet():
        paradigm = getattr(import_extra("moabb.paradigms", extra="moabb"), kind)()
    for name, value in (("tmin", start), ("tmax", stop)):
        if value is not None:
            setattr(paradigm, name, value)
    tmin, tmax = _interval(dataset, paradigm)
    if tmax <= tmin:
        origin = f"--from and --to count from the start of MOABB's window, {dataset.interval[0]:g} s"
        raise ValueError(f"a window from {tmin:g} to {tmax:g} s after the event is empty; {origin}")
    if not paradigm.is_valid(dataset):
        raise ValueError(f"MOABB's {kind} does not accept {type(dataset).__name__}: it lacks events")
    paradigm.prepare_process(dataset)
    return paradigm


def _interval(dataset: Any, paradigm: Any) -> tuple[float, float]:
    """Return the start and end of a window, in seconds from the event."""
    begin, end = dataset.interval
    return begin + paradigm.tmin, end if paradigm.tmax is None else begin + paradigm.tmax


def _select_subjects(dataset: Any, text: str | None) -> list[Any]:
    """Parse a list of people such as "1-3,7", in the order of the data set; None for all."""
    people = {str(person): person for person in dataset.subject_list}
    if text is None:
        return list(people.values())
    names = set[str]()
    for part in (part.strip() for part in text.split(",")):
        span = None if part in people else re.fullmatch(r"(\d{1,6})-(\d{1,6})", part)
        names |= {str(i) for i in range(int(span[1]), int(span[2]) + 1)} if span else {part}
    if unknown := sorted(names - set(people)):
        subjects = f"it has {listed(list(people))}, and --subjects takes 1,2 or 1-3"
        raise ValueError(f"{type(dataset).__name__} has no subject {listed(unknown, most=3)}; {subjects}")
    return [person for name, person in people.items() if name in names]


def _default_split(runs: Sequence[_Run], people: Sequence[Any]) -> str:
    """Return the first way to split that leaves data in both parts."""
    if by := next((by for by in ("session", "run") if _test_units(runs, by)), None):
        return by
    if len(people) > 1:
        return "subject"
    raise ValueError("one person with one run cannot be split; add people with --subjects")


def _test_people(name: str, people: Sequence[Any]) -> set[Any]:
    if len(people) < 2:
        remedy = "add people with --subjects, or use --split session or run"
        raise ValueError(f"{name} with one person cannot be split by subject; {remedy}")
    return set(people[-_quarter(len(people)) :])


def _test_units(runs: Sequence[_Run], by: str) -> set[tuple[str, ...]]:
    """Return the last sessions or runs: a quarter, or more until both parts have every class; or none."""
    units = list(dict.fromkeys(_unit(run, by) for run in runs))
    for n in range(_quarter(len(units)), len(units)):
        test = set(units[-n:])
        train_classes = {label for run in runs if _unit(run, by) not in test for label in run.labels}
        test_classes = {label for run in runs if _unit(run, by) in test for label in run.labels}
        if train_classes == test_classes:
            return test
    return set()


def _unit(run: _Run, by: str) -> tuple[str, ...]:
    return (run.session,) if by == "session" else (run.session, run.run)


def _quarter(n: int) -> int:
    return -(-n // 4)


def _read(
    reader: _Reader,
    load: Callable[[Any], list[_Run]],
    by: str,
    test_people: set[Any],
    preprocessing: Preprocessing,
    person: Any,
) -> PreparedRecording:
    runs, notes = load(person), list[str]()
    test_units = set() if by == "subject" else _test_units(runs, by)
    if by != "subject" and not test_units:
        reason = f"cannot be split by {by} with all classes in both parts"
        notes.append(f"subject {person} {reason}; used for training only")
    pieces, windows, offset = [], list[LabelledWindow](), 0
    n_missing = n_incomplete = 0
    for run in runs:
        signals = reader.samples(person, run, preprocessing)
        missing = np.flatnonzero(~np.isfinite(signals).all(axis=0))
        processed = process(preprocessing, signals, run.sfreq)
        split = "test" if person in test_people or _unit(run, by) in test_units else "train"
        name = f"{person}_{run.session}_{run.run}"
        ratio = (preprocessing.sfreq or run.sfreq) / run.sfreq
        for event, label in zip(run.events.tolist(), run.labels, strict=True):
            first = round(event * ratio)
            stop = first + (preprocessing.n_times or 0)
            before, until = np.searchsorted(missing, (event, round(stop / ratio)))
            if first < 0 or stop > len(processed.samples) or before < until:
                n_incomplete += 1
                continue
            facts = (label, str(person), run.session, split)
            windows.append(LabelledWindow(offset + first, *facts, recording=name))
        pieces.append(processed.samples)
        offset += len(processed.samples)
        n_missing += processed.n_missing
    counts = {"missing samples": n_missing, "trials that were not recorded completely": n_incomplete}
    return PreparedRecording(np.concatenate(pieces), windows, counts, notes)


def _meta(
    reader: _Reader, preprocessing: Preprocessing, by: str, window: tuple[float, float]
) -> dict[str, Any]:
    import moabb

    dataset = reader.dataset
    documented = getattr(getattr(dataset, "metadata", None), "documentation", None)
    what = "people" if by == "subject" else f"{by}s of each person"
    words = f"the last {what} are the test part: a quarter, or as many as contain every class"
    return {
        "name": str(dataset.code).lower(),
        "form": "moabb",
        "unit": preprocessing.unit or "as MOABB gives it",
        "steps": [*preprocessing.steps, f"{window[0]:g} to {window[1]:g} s from each event"],
        "origin": f"{dataset.code} ({dataset.doi or 'no DOI'}), read by MOABB {moabb.__version__}",
        "licence": getattr(documented, "license", None),
        "split": words,
        "paradigm": dataset.paradigm,
        "moabb": moabb.__version__,
    }
