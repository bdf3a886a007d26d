"""What a study learns from and is scored on: the right people's windows, standardised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from anchorinv.core.geometry import Geometry
from anchorinv.core.protocol import Protocol
from anchorinv.core.standardise import Standardisation
from anchorinv.core.types import Batch
from anchorinv.data import synthetic
from anchorinv.data.dataset import Dataset
from anchorinv.signal.facts import facts_of
from anchorinv.study.config import ClassName, Experiment, nearest

_AT_ONCE = 512  # windows standardised at once: bounds the memory that float64 takes


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The two parts of the data, of which a method is shown pieces of the first alone."""

    train: Batch
    test: Batch


def opened(experiment: Experiment, folders: Mapping[str, Dataset]) -> Dataset:
    """Return the data set of an experiment, checked against what the config says of it."""
    if experiment.synthetic is not None:
        return _generated(experiment)
    named = experiment.data
    if named.name not in folders:
        given = f"got data for {', '.join(folders)}" if folders else "got no data"
        raise ValueError(
            f"this study needs the prepared data set {named.name!r}, {given}; "
            f"pass --data {named.name}=FOLDER, or try --scale tiny, which needs none"
        )
    data = folders[named.name]
    problems = []
    if named.sfreq is not None and data.sfreq != named.sfreq:
        problems.append(f"{data.sfreq:g} Hz where the config says {named.sfreq:g}")
    shape, sizes = (data.n_chans, data.n_times), experiment.geometry
    if sizes is not None and shape != (sizes.n_chans, sizes.n_times):
        problems.append(f"windows of shape {shape} where the config says {(sizes.n_chans, sizes.n_times)}")
    if named.filtered and not _filtered(data):
        problems.append("no filter where the config says that there is one (--filter conformer)")
    done = facts_of(data.preprocessing)
    problems += [
        f"{key} {done.get(key, 'not set')} where the config says {value}"
        for key, value in (named.preprocessing or {}).items()
        if done.get(key) != value
    ]
    if problems:
        raise ValueError(f"data set {named.name!r} has {' and '.join(problems)}; prepare it accordingly")
    return data


def _filtered(data: Dataset) -> bool:
    if "preprocessing" in data.meta:
        return data.preprocessing.filter is not None
    # Folders of former versions: where ``filter`` tells of more than a filter, ``band`` is the filter alone.
    return bool(data.meta.get("band", data.meta.get("filter")))


def people(experiment: Experiment, data: Dataset) -> list[str]:
    """Return whom to study one by one, in order; ``[""]`` where all are pooled."""
    apart = experiment.protocol.per_subject or experiment.protocol.leave_one_out
    return sorted(set(data.subjects.tolist()), key=_by_number) if apart else [""]


def protocol_of(experiment: Experiment, data: Dataset, seed: int) -> Protocol:
    """Return the protocol in class numbers."""
    course = experiment.protocol
    base, new = (
        tuple(_number(name, data.class_names) for name in names)
        for names in (course.base_classes, course.sessions)
    )
    return Protocol(base, new, course.shots, course.trials, seed, course.ways)


def check_samples(experiment: Experiment, data: Dataset, whom: Sequence[str]) -> None:
    """Find out before anything is trained whether every class has its windows, and enough for the shots."""
    protocol = protocol_of(experiment, data, experiment.protocol.seeds[0])
    for person in whom:
        train, _ = _parts(experiment, data, person, protocol)
        for label in protocol.sessions:
            n = int((data.labels[train] == label).sum())
            if n < protocol.shots:
                of = f" of {person}" if person and not experiment.protocol.leave_one_out else ""
                raise ValueError(
                    f"class {data.class_names[label]!r} has {n} training windows{of}, {protocol.shots} shots "
                    f"asked; lower shots or add recordings"
                )


def samples_of(experiment: Experiment, data: Dataset, person: str, protocol: Protocol) -> Samples:
    """Return the training and test windows of a person, of all but one (``leave_one_out``), or of all.

    Statistics come from the training part alone; by default from its base classes.
    """
    train, test = _parts(experiment, data, person, protocol)
    by = train
    if experiment.standardise.by == "base":
        by = train & np.isin(data.labels, protocol.base_classes)
    fitted = Standardisation.of(data.signals(by), per_channel=experiment.standardise.per_channel)
    learned, judged = _batch(data, train, fitted), _batch(data, test, fitted)
    if experiment.protocol.leave_one_out:  # whoever chooses, chooses for people who were not seen
        _, people = np.unique(data.subjects[train].astype(str), return_inverse=True)
        learned = replace(learned, groups=torch.from_numpy(people))
    return Samples(learned, judged)


def _parts(
    experiment: Experiment, data: Dataset, person: str, protocol: Protocol
) -> tuple[np.ndarray, np.ndarray]:
    """Return masks (n,) of the training and the test windows."""
    wanted = np.isin(data.labels, [*protocol.base_classes, *protocol.sessions])
    train, test = wanted & (data.split == "train"), wanted & (data.split == "test")
    if person:
        own = data.subjects == person
        # Left out: nothing of that person was learned from, so all of it can be tested on.
        train, test = (
            (train & ~own, wanted & own) if experiment.protocol.leave_one_out else (train & own, test & own)
        )
    named = f" of {person}" if person else ""
    for part, mask in {"training": train, "test": test}.items():
        there = set(data.labels[mask].tolist())
        if missing := [c for c in (*protocol.base_classes, *protocol.sessions) if c not in there]:
            name = data.class_names[missing[0]]
            raise ValueError(f"class {name!r} has no {part} windows{named}; drop it or add recordings")
    return train, test


def geometry_of(experiment: Experiment, data: Dataset) -> Geometry:
    """Return the network's sizes: the config's, or those that fit the data."""
    if experiment.geometry is None:
        return Geometry.for_shape(data.n_chans, data.n_times)
    return Geometry(**experiment.geometry.model_dump())


def _batch(data: Dataset, chosen: np.ndarray, fitted: Standardisation) -> Batch:
    (places,) = chosen.nonzero()
    # Allocated by torch, which aligns memory always alike: sums are then the same bits in every process.
    signals = torch.empty(len(places), data.n_chans, data.n_times)
    for first in range(0, len(places), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        signals[part] = torch.from_numpy(fitted(data.signals(places[part])))
    return Batch(signals, torch.from_numpy(data.labels[places]))


def _generated(experiment: Experiment) -> Dataset:
    asked, sizes = experiment.synthetic, experiment.geometry
    assert asked is not None
    course = experiment.protocol
    named = [*course.base_classes, *course.sessions]
    if not all(isinstance(name, int) for name in named):
        raise ValueError("classes of synthetic recordings are numbers; name them 0, 1, ... in the config")
    n_classes = max(int(name) for name in named) + 1
    make = synthetic.eeg if experiment.data.kind == "eeg" else synthetic.emg
    made = make(
        n_classes=n_classes,
        n_subjects=asked.n_subjects,
        n_sessions=asked.n_sessions,
        n_per_class=asked.n_per_class,
        n_chans=sizes.n_chans if sizes else 8,
        n_times=sizes.n_times if sizes else 250,
        sfreq=experiment.data.sfreq or 250.0,
        difficulty=asked.difficulty,
        seed=asked.seed,
    )
    last = made.sessions == made.sessions.max()
    return Dataset.from_arrays(
        made.signals,
        made.labels,
        sfreq=made.sfreq,
        split=np.where(last, "test", "train"),
        subjects=made.subjects,
        sessions=made.sessions,
        ch_names=made.ch_names,
        source="synthetic",
    )


def _number(name: ClassName, class_names: tuple[str, ...]) -> int:
    if isinstance(name, int):
        if name >= len(class_names):
            raise ValueError(
                f"class {name} is not in the data, whose classes are 0 to {len(class_names) - 1}: "
                f"{', '.join(class_names)}"
            )
        return name
    if name not in class_names:
        raise ValueError(f"class {name!r} is not in the data; {nearest(name, class_names)}")
    return class_names.index(name)


def _by_number(name: str) -> tuple[int, str]:
    return (int(name) if name.isdigit() else 0, name)
