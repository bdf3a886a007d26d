"""Read a study from a TOML file, scale it down, and build its parts: data, samples, network and methods."""

import logging
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ValidationError

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
from anchorinv.datasets.synthetic import EEG, EMG
from anchorinv.errors import LinesError
from anchorinv.persistence.limits import Architecture, network_of
from anchorinv.signal.preprocessing import facts_of
from anchorinv.study.config import (
    RENAMED_KEYS,
    ClassName,
    Experiment,
    InversionConfig,
    Study,
    SyntheticConfig,
    nearest,
)
from anchorinv.study.runner import Protocol

logger = logging.getLogger(__name__)
_SHIPPED = Path(__file__).parent / "configs"
_OF_THE_STUDY = ("title", "paper", "reference")

# A small network, trained, inverted and finetuned for less time, to see it run.
_QUICK: dict[str, Any] = {
    "geometry": {"depth": 2},
    "protocol": {"trials": 2},
    "training": {"epochs": 10, "lr": 1e-3},
    "inversion": {"steps": 20},
    "finetuning": {"lr": 2e-4, "steps": {"anchorinv": [10], "finetune": [10]}},
    "threads": 1,  # a network this small gains nothing from more
}


def shipped() -> dict[str, Path]:
    """Return the shipped configs, by name."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.toml"))}


def load(config: str, **overrides: Any) -> Study:
    """Read and validate a study.

    Parameters
    ----------
    config : str
        A path, or the name of a shipped config.
    **overrides
        Tables that replace keys of every variant, such as ``protocol={"trials": 5}``.

    Examples
    --------
    >>> study = load("demo", protocol={"trials": 2})
    >>> study.name, study.variants[""].protocol.trials
    ('demo', 2)
    """
    path = _find_config(config)
    tables = _read(path, ())
    variants = tables.pop("variants", [{"name": ""}])
    about = {key: tables.pop(key) for key in _OF_THE_STUDY if key in tables}
    problems: list[str] = []
    experiments: dict[str, Experiment] = {}
    if not isinstance(variants, list) or not all(isinstance(variant, dict) for variant in variants):
        raise ValueError(f"{path}: variants must be a list of tables, [[variants]]")
    for variant in variants:
        name = variant.pop("name", None)
        where = f"{path}, variant {name!r}" if name else str(path)
        if name is None or name in experiments:
            problems.append(f"{path}: each variant needs a unique name, got {name!r}")
            continue
        base = _read(_find_config(variant.pop("extends"), path), (path,)) if "extends" in variant else {}
        for key in (*_OF_THE_STUDY, "variants"):
            base.pop(key, None)
        merged = merge(merge(merge(base, tables), variant), overrides)
        try:
            experiments[name] = Experiment.model_validate(merged)
        except ValidationError as error:
            problems += [f"{where}: {problem}" for problem in _describe_errors(error, Experiment)]
    if not problems:
        try:
            study = Study(name=path.stem, variants=experiments, **{"title": path.stem, **about})
            return _with_valid_reference(study)
        except ValidationError as error:
            problems += [f"{path}: {problem}" for problem in _describe_errors(error, Study)]
    first, *more = dict.fromkeys(problems)
    raise LinesError([first, *(f"  {problem}" for problem in more)])


def _with_valid_reference(study: Study) -> Study:
    """Return the study, compared with its last method where the reference is not among its methods."""
    methods = [method for experiment in study.variants.values() for method in experiment.methods]
    return study if study.reference in methods else study.model_copy(update={"reference": methods[-1]})


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables recursively; other values are replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _find_config(config: str, extended_by: Path | None = None) -> Path:
    path = extended_by.parent / config if extended_by else Path(config)
    if path.is_file():
        return path
    if config in shipped():
        return shipped()[config]
    context = f"{extended_by} extends {config!r}, but " if extended_by else ""
    if path.suffix == ".toml" or len(Path(config).parts) > 1:
        raise ValueError(f"{context}there is no file {path}; `anchorinv run --list` shows what is shipped")
    raise ValueError(
        f"{context}there is no shipped config {config!r} and no such file; `anchorinv run --list` shows "
        f"all; {nearest(config, shipped())}"
    )


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """Return a file's tables, laid over those of the file it extends."""
    if path in above:
        raise ValueError(f"{path} extends itself")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    tables = _with_new_keys(tables, path)
    if (extended := tables.pop("extends", None)) is None:
        return tables
    below = _read(_find_config(str(extended), path), (*above, path))
    for key in ("title", "paper", "variants"):  # these are of a study, not of its settings
        below.pop(key, None)
    return merge(below, tables)


def _with_new_keys(tables: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a file's tables with former keys renamed, with a note on each."""
    variants = tables.get("variants")
    for section in [tables, *(variants if isinstance(variants, list) else [])]:
        for old, new in RENAMED_KEYS.items():
            table, old_key = old.split(".")
            keys = section.get(table) if isinstance(section, dict) else None
            if isinstance(keys, dict) and old_key in keys:
                logger.warning("%s: %r is called %r now; the old name still works", path, old, new)
                keys[new.split(".")[1]] = keys.pop(old_key)
    return tables


def _describe_errors(error: ValidationError, model: type[BaseModel]) -> list[str]:
    problems = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] in (
            "extra_forbidden",
            "unexpected_keyword_argument",
        ):  # the latter in data classes
            known = _keys(model, problem["loc"][:-1])
            problems.append(f"unknown key {key!r}; {nearest(str(problem['loc'][-1]), known)}")
        elif problem["type"] == "missing":
            problems.append(f"{key!r} is missing")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            got = "" if problem["type"] == "value_error" else f", got {problem['input']!r}"
            problems.append(f"{key!r}: {message}{got}" if key else message)
    return problems


def _keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys of a table."""
    for part in loc:
        kind: Any = model.model_fields[str(part)].annotation
        kind = next(iter(getattr(kind, "__args__", ())), kind)  # of SyntheticConfig | None, the first
        if kind is Geometry:
            return [field.name for field in fields(Geometry)]
        model = kind
    return list(model.model_fields)


def scaled(study: Study, scale: str) -> Study:
    """Return the study scaled down, on synthetic recordings, to try it before it takes hours.

    Parameters
    ----------
    study : Study
        As it was read.
    scale : {"full", "tiny", "smoke"}
        "tiny" keeps the geometry and the classes, with few epochs, steps, trials and seeds; "smoke" has short
        signals and a small network besides; "full" changes nothing.
    """
    if scale == "full":
        return study
    # Enough shots for every variant, so that variants share their recordings.
    shots = max(experiment.protocol.shots for experiment in study.variants.values())
    smoke = scale == "smoke"
    variants = {
        name: _scale_down(experiment, shots, smoke=smoke) for name, experiment in study.variants.items()
    }
    return study.model_copy(update={"scale": scale, "variants": variants})


def _scale_down(full: Experiment, shots: int, *, smoke: bool) -> Experiment:
    # Two subjects with two sessions each, so that every kind of study works.
    protocol, finetuning = full.protocol, full.finetuning
    one_by_one = protocol.per_subject or protocol.leave_one_out
    least_sfreq = (EEG if full.data.kind == "eeg" else EMG).min_sfreq
    most = 2 if smoke else 3

    def cut(lengths: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(min(n, most) for n in lengths)

    # Few but larger steps, so that something is learned.
    changes: dict[str, dict[str, Any]] = {
        "data": {"sfreq": full.data.sfreq and max(full.data.sfreq, least_sfreq)},
        "protocol": {"trials": min(protocol.trials, 2), "seeds": protocol.seeds[:2]},
        "training": {"epochs": 3, "batch_size": 16, "lr": 1e-3},
        "inversion": {"steps": min(full.inversion.steps, most), "lr": 0.1},
        "finetuning": {"steps": {name: cut(value) for name, value in finetuning.steps.items()}, "lr": 1e-3},
    }
    if finetuning.select == "validation":
        changes["finetuning"]["lengths"] = tuple(dict.fromkeys(cut(finetuning.lengths)))
    smaller = {table: getattr(full, table).model_copy(update=value) for table, value in changes.items()}
    per_class = 2 + (shots if one_by_one else -(-shots // 2))
    smaller["synthetic"] = SyntheticConfig(n_per_class=per_class, difficulty=0.0)
    if smoke:  # short signals gain nothing from more threads
        n_chans = full.geometry.n_chans if full.geometry else 8
        small = Geometry(n_chans, 104, kernel=9, pool=16, pool_stride=8, width=8, heads=2, depth=2)
        smaller |= {"geometry": small, "threads": 1}
    return full.model_copy(update=smaller)


def demo_study(*, quick: bool = False, synthetic: bool = False) -> Study:
    """Return the demo's study, on the shipped recordings or synthetic ones; ``quick`` is shorter."""
    less = _QUICK if quick else {}
    if not synthetic:
        return load("demo-emg", **less)
    study = load("demo", methods=["anchorinv", "protonet", "finetune"], **less)
    return study.model_copy(update={"title": "Three methods on synthetic recordings (anchorinv demo)"})


_AT_ONCE = 512  # windows standardised at once, to bound memory


class Samples(NamedTuple):
    """The standardised training and test windows; methods only see parts of the former."""

    train: Batch
    test: Batch


def open_data(experiment: Experiment, folders: Mapping[str, Dataset]) -> Dataset:
    """Return the data set of an experiment, checked against the config."""
    if experiment.synthetic is not None:
        return _generate(experiment, experiment.synthetic)
    named = experiment.data
    if named.name not in folders:
        available = f"got data for {', '.join(folders)}" if folders else "got no data"
        raise ValueError(
            f"this study needs the prepared data set {named.name!r}, {available}; "
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
        problems.append("no filter where the config requires one (--filter conformer)")
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
    if not (experiment.protocol.per_subject or experiment.protocol.leave_one_out):
        return [""]
    return sorted(set(data.subjects.tolist()), key=lambda name: (int(name) if name.isdigit() else 0, name))


def protocol_of(experiment: Experiment, data: Dataset, seed: int) -> Protocol:
    """Return the protocol in class numbers."""
    config = experiment.protocol
    base, new = (
        tuple(_number(name, data.class_names) for name in names)
        for names in (config.base_classes, config.sessions)
    )
    return Protocol(base, new, config.shots, config.trials, seed, config.ways)


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
                    f"needed; lower shots or add recordings"
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
    classes = [*protocol.base_classes, *protocol.sessions]
    of_classes = np.isin(data.labels, classes)
    train, test = of_classes & (data.split == "train"), of_classes & (data.split == "test")
    if person and experiment.protocol.leave_one_out:
        # Nothing of the left-out person was learned from, so all of it is test data.
        train, test = train & (data.subjects != person), of_classes & (data.subjects == person)
    elif person:
        train, test = train & (data.subjects == person), test & (data.subjects == person)
    whose = f" of {person}" if person else ""
    for part, mask in {"training": train, "test": test}.items():
        present = set(data.labels[mask].tolist())
        if missing := [label for label in classes if label not in present]:
            name = data.class_names[missing[0]]
            raise ValueError(f"class {name!r} has no {part} windows{whose}; drop it or add recordings")
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


def _generate(experiment: Experiment, config: SyntheticConfig) -> Dataset:
    sizes = experiment.geometry
    named = [*experiment.protocol.base_classes, *experiment.protocol.sessions]
    if not all(isinstance(name, int) for name in named):
        raise ValueError("classes of synthetic recordings are numbers; name them 0, 1, ... in the config")
    recordings = (synthetic.eeg if experiment.data.kind == "eeg" else synthetic.emg)(
        **config.model_dump(),
        n_classes=max(int(name) for name in named) + 1,
        n_chans=sizes.n_chans if sizes else 8,
        n_times=sizes.n_times if sizes else 250,
        sfreq=experiment.data.sfreq or 250.0,
    )
    return Dataset.from_arrays(
        recordings.signals,
        recordings.labels,
        sfreq=recordings.sfreq,
        split=np.where(recordings.sessions == recordings.sessions.max(), "test", "train"),
        subjects=recordings.subjects,
        sessions=recordings.sessions,
        ch_names=recordings.ch_names,
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
