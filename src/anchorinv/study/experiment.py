"""Build the parts of an experiment from its settings: data set, samples, protocol, network and methods."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from anchorinv.backbones import architecture_for
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion, Prior, energy, length, roughness
from anchorinv.core.minimise import OneCycle
from anchorinv.core.networks import Geometry
from anchorinv.core.prototypes import mean_of_shots, random_rows, selection
from anchorinv.core.recipe import BaseSpec
from anchorinv.core.registry import METHODS
from anchorinv.core.training import CrossValidatedFinetune, Finetune, Training
from anchorinv.core.types import Batch, Standardisation
from anchorinv.datasets import synthetic
from anchorinv.datasets.dataset import Dataset
from anchorinv.persistence.limits import Architecture, network_of
from anchorinv.signal.preprocessing import facts_of
from anchorinv.study.config import ClassName, Experiment, InversionConfig, SyntheticConfig, nearest
from anchorinv.study.runner import Protocol

_AT_ONCE = 512  # windows standardised at once, to bound memory


class Samples(NamedTuple):
    """The standardised training and test windows; methods only see parts of the former."""

    train: Batch
    test: Batch


def opened(experiment: Experiment, folders: Mapping[str, Dataset]) -> Dataset:
    """Return the data set of an experiment, checked against the config."""
    if experiment.synthetic is not None:
        return _generated(experiment, experiment.synthetic)
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
        problems.append(f"{data.sfreq:g} Hz where the config has {named.sfreq:g}")
    shape, sizes = (data.n_chans, data.n_times), experiment.geometry
    if sizes is not None and shape != (sizes.n_chans, sizes.n_times):
        problems.append(f"windows of shape {shape} where the config has {(sizes.n_chans, sizes.n_times)}")
    if named.filtered and not _filtered(data):
        problems.append("no filter where the config asks for one (--filter conformer)")
    done = facts_of(data.preprocessing)
    problems += [
        f"{key} {done.get(key, 'not set')} where the config has {value}"
        for key, value in (named.preprocessing or {}).items()
        if done.get(key) != value
    ]
    if problems:
        raise ValueError(f"data set {named.name!r} has {' and '.join(problems)}; prepare it accordingly")
    return data


def _filtered(data: Dataset) -> bool:
    if "preprocessing" in data.meta:
        return data.preprocessing.filter is not None
    # Folders from earlier versions: ``filter`` may describe more than a filter, ``band`` is the filter.
    return bool(data.meta.get("band", data.meta.get("filter")))


def people(experiment: Experiment, data: Dataset) -> list[str]:
    """Return the subjects to study separately, in order; ``[""]`` where all are pooled."""
    apart = experiment.protocol.per_subject or experiment.protocol.leave_one_out
    by_number = {name: (int(name) if name.isdigit() else 0, name) for name in data.subjects.tolist()}
    return sorted(by_number, key=by_number.__getitem__) if apart else [""]


def protocol_of(experiment: Experiment, data: Dataset, seed: int) -> Protocol:
    """Return the protocol in class numbers."""
    asked = experiment.protocol
    base, new = (
        tuple(_number(name, data.class_names) for name in names)
        for names in (asked.base_classes, asked.sessions)
    )
    return Protocol(base, new, asked.shots, asked.trials, seed, asked.ways)


def check_samples(experiment: Experiment, data: Dataset, whom: Sequence[str]) -> None:
    """Check before training that every class has windows, and enough for the shots."""
    protocol = protocol_of(experiment, data, experiment.protocol.seeds[0])
    for person in whom:
        train, _ = _split(experiment, data, person, protocol)
        for label in protocol.sessions:
            if (n := int((data.labels[train] == label).sum())) < protocol.shots:
                of = f" of {person}" if person and not experiment.protocol.leave_one_out else ""
                raise ValueError(
                    f"class {data.class_names[label]!r} has {n} training windows{of}, {protocol.shots} shots "
                    f"asked; lower shots or add recordings"
                )


def samples_of(experiment: Experiment, data: Dataset, person: str, protocol: Protocol) -> Samples:
    """Return the training and test windows of a person, of all but one (``leave_one_out``), or of all.

    Statistics come from the training part alone; by default from its base classes.
    """
    train, test = _split(experiment, data, person, protocol)
    of_base = experiment.standardise.by == "base"
    by = train & np.isin(data.labels, protocol.base_classes) if of_base else train
    fitted = Standardisation.of(data.signals(by), per_channel=experiment.standardise.per_channel)
    train_batch, test_batch = _batch(data, train, fitted), _batch(data, test, fitted)
    if experiment.protocol.leave_one_out:  # settings are chosen for unseen people
        _, people = np.unique(data.subjects[train].astype(str), return_inverse=True)
        train_batch = replace(train_batch, groups=torch.from_numpy(people))
    return Samples(train_batch, test_batch)


def _split(
    experiment: Experiment, data: Dataset, person: str, protocol: Protocol
) -> tuple[np.ndarray, np.ndarray]:
    """Return masks (n,) of the training and the test windows."""
    wanted = np.isin(data.labels, [*protocol.base_classes, *protocol.sessions])
    train, test = wanted & (data.split == "train"), wanted & (data.split == "test")
    if person:
        own = data.subjects == person
        # Nothing of the left-out person was learned from, so all of it is test data.
        left_out = experiment.protocol.leave_one_out
        train, test = (train & ~own, wanted & own) if left_out else (train & own, test & own)
    named = f" of {person}" if person else ""
    for part, mask in {"training": train, "test": test}.items():
        there = set(data.labels[mask].tolist())
        if missing := [c for c in (*protocol.base_classes, *protocol.sessions) if c not in there]:
            name = data.class_names[missing[0]]
            raise ValueError(f"class {name!r} has no {part} windows{named}; drop it or add recordings")
    return train, test


def geometry_of(experiment: Experiment, data: Dataset) -> Architecture:
    """Return the network's sizes, of the config or derived from the data; or another backbone."""
    sizes = experiment.geometry or Geometry.for_shape(data.n_chans, data.n_times)
    return architecture_for(experiment.backbone, sizes, len(experiment.protocol.base_classes), data.sfreq)


def base_spec_of(experiment: Experiment, geometry: Architecture, base_classes: Sequence[int]) -> BaseSpec:
    """Return how base models are trained; class weights are in the config's order."""
    settings = experiment.training.model_dump()
    settings["schedule"] = OneCycle() if settings["schedule"] == "one-cycle" else None
    if isinstance(sizes := settings["class_weights"], tuple):
        # A network's outputs are ordered by class number.
        settings["class_weights"] = tuple(size for _, size in sorted(zip(base_classes, sizes, strict=True)))
    return BaseSpec(network_of(geometry), Cosine.start, Training(**settings))


def methods_of(experiment: Experiment, base_spec: BaseSpec) -> dict[str, Any]:
    """Return the methods of an experiment by name, in its order; each takes the options that it knows."""
    methods: dict[str, Any] = {}
    for name in experiment.methods:
        method = METHODS[name].make(base_spec, method_options(name, experiment))
        refreshed = experiment.finetuning.refresh and METHODS[name].replays
        methods[name] = replace(method, refresh=True) if refreshed else method
    return methods


def inversion_of(settings: InversionConfig) -> Inversion:
    """Return how replay signals are made."""
    make = Inversion.lbfgs if settings.lbfgs else Inversion
    plain = settings.model_dump(exclude={"smoothness", "lbfgs", "noise", "l2"})
    return make(**plain, shared_noise=settings.noise == "shared")


def method_options(name: str, experiment: Experiment) -> dict[str, Any]:
    """Return all options of an experiment; each method uses those it knows."""
    finetuning, protocol, anchors = experiment.finetuning, experiment.protocol, experiment.anchors
    options: dict[str, Any] = {
        "n_all": len(protocol.base_classes) + len(protocol.sessions),
        "whole_network": finetuning.scope == "all",
        "start": mean_of_shots if finetuning.start == "mean" else random_rows,
        "per_class": anchors.per_class,
        "select": selection(anchors.select, anchors.measure),
        "inversion": inversion_of(experiment.inversion),
        "l2": length if experiment.inversion.l2 == "norm" else energy,
    }
    if smoothness := experiment.inversion.smoothness:
        options["priors"] = (Prior("smoothness", roughness, smoothness),)
    if METHODS[name].replays and finetuning.select == "validation":
        options["adapt"] = CrossValidatedFinetune(
            finetuning.lengths,
            finetuning.lrs,
            finetuning.folds,
            from_mean=finetuning.start == "mean",
            refresh=finetuning.refresh,
            betas=finetuning.betas,
            replay_weight=finetuning.replay_weight,
        )
    elif steps := finetuning.steps.get(name):
        options["adapt"] = Finetune(steps, finetuning.lr, finetuning.betas, finetuning.replay_weight)
    return options


def _batch(data: Dataset, chosen: np.ndarray, fitted: Standardisation) -> Batch:
    (places,) = chosen.nonzero()
    # Allocated by torch, whose fixed alignment makes sums identical in every process.
    signals = torch.empty(len(places), data.n_chans, data.n_times)
    for first in range(0, len(places), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        signals[part] = torch.from_numpy(fitted(data.signals(places[part])))
    return Batch(signals, torch.from_numpy(data.labels[places]))


def _generated(experiment: Experiment, asked: SyntheticConfig) -> Dataset:
    sizes = experiment.geometry
    named = [*experiment.protocol.base_classes, *experiment.protocol.sessions]
    if not all(isinstance(name, int) for name in named):
        raise ValueError("classes of synthetic recordings are numbers; name them 0, 1, ... in the config")
    made = (synthetic.eeg if experiment.data.kind == "eeg" else synthetic.emg)(
        **asked.model_dump(),
        n_classes=max(int(name) for name in named) + 1,
        n_chans=sizes.n_chans if sizes else 8,
        n_times=sizes.n_times if sizes else 250,
        sfreq=experiment.data.sfreq or 250.0,
    )
    return Dataset.from_arrays(
        made.signals,
        made.labels,
        sfreq=made.sfreq,
        split=np.where(made.sessions == made.sessions.max(), "test", "train"),
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
