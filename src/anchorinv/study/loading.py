"""Read a study from a TOML file, validate it, and scale it down for a trial run."""

import logging
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from anchorinv.core.networks import Geometry
from anchorinv.datasets.synthetic import EEG, EMG
from anchorinv.errors import LinesError
from anchorinv.study.config import RENAMED_KEYS, DataConfig, Experiment, Study, SyntheticConfig, nearest

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
    path = _located(config)
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
        base = _read(_located(variant.pop("extends"), path), (path,)) if "extends" in variant else {}
        for key in (*_OF_THE_STUDY, "variants"):
            base.pop(key, None)
        merged = merge(merge(merge(base, tables), variant), overrides)
        try:
            experiments[name] = Experiment.model_validate(merged)
        except ValidationError as error:
            problems += [f"{where}: {problem}" for problem in _in_words(error, Experiment)]
    if not problems:
        try:
            study = Study(name=path.stem, variants=experiments, **{"title": path.stem, **about})
            return _with_a_reference_that_runs(study)
        except ValidationError as error:
            problems += [f"{path}: {problem}" for problem in _in_words(error, Study)]
    first, *more = dict.fromkeys(problems)
    raise LinesError([first, *(f"  {problem}" for problem in more)])


def _with_a_reference_that_runs(study: Study) -> Study:
    """Return the study, compared with its last method where the reference is not among its methods."""
    methods = [method for each in study.variants.values() for method in each.methods]
    return study if study.reference in methods else study.model_copy(update={"reference": methods[-1]})


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables recursively; other values are replaced.

    Examples
    --------
    >>> merge({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"c": 3}, "d": [2]})
    {'a': {'b': 1, 'c': 3}, 'd': [2]}
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _located(config: str, extended_by: Path | None = None) -> Path:
    path = extended_by.parent / config if extended_by else Path(config)
    if path.is_file():
        return path
    if config in shipped():
        return shipped()[config]
    asked = f"{extended_by} extends {config!r}, but " if extended_by else ""
    if path.suffix == ".toml" or len(Path(config).parts) > 1:
        raise ValueError(f"{asked}there is no file {path}; `anchorinv run --list` shows what is shipped")
    raise ValueError(
        f"{asked}there is no shipped config {config!r} and no such file; `anchorinv run --list` shows "
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
    below = _read(_located(str(extended), path), (*above, path))
    for key in ("title", "paper", "variants"):  # these are of a study, not of its settings
        below.pop(key, None)
    return merge(below, tables)


def _with_new_keys(tables: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a file's tables with former keys renamed, with a note on each."""
    variants = tables.get("variants")
    for each in [tables, *(variants if isinstance(variants, list) else [])]:
        for old, new in RENAMED_KEYS.items():
            table, old_key = old.split(".")
            keys = each.get(table) if isinstance(each, dict) else None
            if isinstance(keys, dict) and old_key in keys:
                logger.warning("%s: %r is called %r now; the old name still works", path, old, new)
                keys[new.split(".")[1]] = keys.pop(old_key)
    return tables


def _in_words(error: ValidationError, model: type[BaseModel]) -> list[str]:
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
    variants = {name: _smaller(each, shots, smoke=smoke) for name, each in study.variants.items()}
    return study.model_copy(update={"scale": scale, "variants": variants})


def _smaller(full: Experiment, shots: int, *, smoke: bool) -> Experiment:
    # Two subjects with two sessions each, so that every kind of study works.
    protocol = full.protocol
    alone = protocol.per_subject or protocol.leave_one_out
    per_class = 2 + (shots if alone else -(-shots // 2))
    # Few but larger steps, so that something is learned.
    most = 2 if smoke else 3
    fewer = {"trials": min(protocol.trials, 2), "seeds": protocol.seeds[:2]}
    training = full.training.model_copy(update={"epochs": 3, "batch_size": 16, "lr": 1e-3})
    inversion = full.inversion.model_copy(update={"steps": min(full.inversion.steps, most), "lr": 0.1})
    steps = {name: _cut(each, most) for name, each in full.finetuning.steps.items()}
    lengths = full.finetuning.lengths
    if full.finetuning.select == "validation":
        lengths = tuple(dict.fromkeys(_cut(lengths, most)))
    shorter = {"steps": steps, "lengths": lengths, "lr": 1e-3}
    n_chans = full.geometry.n_chans if full.geometry else 8
    small = Geometry(n_chans, 104, kernel=9, pool=16, pool_stride=8, width=8, heads=2, depth=2)
    return full.model_copy(
        update={
            "data": full.data.model_copy(update={"sfreq": _rate(full.data)}),
            "synthetic": SyntheticConfig(n_per_class=per_class, difficulty=0.0),
            "geometry": small if smoke else full.geometry,
            "protocol": protocol.model_copy(update=fewer),
            "training": training,
            "threads": 1 if smoke else full.threads,  # short signals gain nothing from more
            "inversion": inversion,
            "finetuning": full.finetuning.model_copy(update=shorter),
        }
    )


def _cut(lengths: tuple[int, ...], most: int) -> tuple[int, ...]:
    return tuple(min(n, most) for n in lengths)


def _rate(full: DataConfig) -> float | None:
    """Return the rate of the data, or the lowest rate of such synthetic recordings."""
    least = EEG.min_sfreq if full.kind == "eeg" else EMG.min_sfreq
    return None if full.sfreq is None else max(full.sfreq, least)


def demo_study(*, quick: bool = False, synthetic: bool = False) -> Study:
    """Return the demo's study, on the shipped recordings or synthetic ones; ``quick`` is shorter."""
    less = _QUICK if quick else {}
    if not synthetic:
        return load("demo-emg", **less)
    study = load("demo", methods=["anchorinv", "protonet", "finetune"], **less)
    return study.model_copy(update={"title": "Three methods on synthetic recordings (anchorinv demo)"})
