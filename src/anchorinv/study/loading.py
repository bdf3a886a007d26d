"""Read a study from a TOML file, ours or anybody's; what is wrong with it is said by key and file."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from anchorinv.problems import LinesError
from anchorinv.study.config import Experiment, Study, nearest

_SHIPPED = Path(__file__).parent / "configs"
_OF_THE_STUDY = ("title", "paper", "reference")


def shipped() -> dict[str, Path]:
    """Return the configs that come with the package, by name."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.toml"))}


def load(config: str, **overrides: Any) -> Study:
    """Read and check a study.

    Parameters
    ----------
    config : a path, or the name of a shipped config.
    overrides : tables that replace keys of every variant, such as ``protocol={"trials": 5}``.
    """
    path = _located(config)
    tables = _read(path, ())
    variants = tables.pop("variants", [{"name": ""}])
    about = {key: tables.pop(key) for key in _OF_THE_STUDY if key in tables}
    problems: list[str] = []
    found: dict[str, Experiment] = {}
    if not isinstance(variants, list) or not all(isinstance(variant, dict) for variant in variants):
        raise ValueError(f"{path}: variants must be a list of tables, [[variants]]")
    for variant in variants:
        name = variant.pop("name", None)
        where = f"{path}, variant {name!r}" if name else str(path)
        if name is None or name in found:
            problems.append(f"{path}: each variant needs a name of its own, got {name!r}")
            continue
        base = _read(_located(variant.pop("extends"), path), (path,)) if "extends" in variant else {}
        for key in (*_OF_THE_STUDY, "variants"):
            base.pop(key, None)
        merged = merge(merge(merge(base, tables), variant), overrides)
        try:
            found[name] = Experiment.model_validate(merged)
        except ValidationError as error:
            problems += [f"{where}: {problem}" for problem in _in_words(error, Experiment)]
    if not problems:
        try:
            study = Study(name=path.stem, variants=found, **{"title": path.stem, **about})
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
    """Lay tables over tables; what is no table is replaced.

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
        f"{asked}there is no shipped config {config!r} and no such file; {nearest(config, shipped())} "
        f"`anchorinv run --list` shows all"
    )


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """Return a file's tables, laid over those of the file it extends."""
    if path in above:
        raise ValueError(f"{path} extends itself")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from None
    extended = tables.pop("extends", None)
    if extended is None:
        return tables
    below = _read(_located(str(extended), path), (*above, path))
    for key in ("title", "paper", "variants"):  # these are of a study, not of its settings
        below.pop(key, None)
    return merge(below, tables)


def _in_words(error: ValidationError, model: type[BaseModel]) -> list[str]:
    problems = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = _keys(model, problem["loc"][:-1])
            problems.append(f"unknown key {key!r}; {nearest(str(problem['loc'][-1]), known)}")
        elif problem["type"] == "missing":
            problems.append(f"{key!r} is missing")
        else:
            said = problem["msg"].removeprefix("Value error, ")
            got = "" if problem["type"] == "value_error" else f", got {problem['input']!r}"
            problems.append(f"{key!r}: {said}{got}" if key else said)
    return problems


def _keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that a table of a model may have."""
    for part in loc:
        kinds = [model.model_fields[str(part)].annotation]
        kinds += list(getattr(kinds[0], "__args__", ()))  # Sizes | None
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(model.model_fields)
