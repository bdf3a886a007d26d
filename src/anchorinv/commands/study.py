"""``anchorinv run`` and ``anchorinv status``: studies, and how far they are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anchorinv.data.dataset import Dataset
    from anchorinv.study.config import Study
    from anchorinv.study.work import Executor

_LEVELS = ("debug", "info", "warning", "error")
_SCALES = ("full", "tiny", "smoke")


def run(
    config: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped config.")] = "",
    data: Annotated[
        list[str] | None,
        typer.Option(help="Prepared folder, or NAME=FOLDER once for each data set of the study."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; the same command goes on there.  [default: runs/CONFIG]")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Trials instead of the config's.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods instead of the config's: a,b,c.")] = None,
    seed: Annotated[int | None, typer.Option(help="Base seed instead of the config's.")] = None,
    scale: Annotated[
        str, typer.Option(help="full, or on synthetic data: tiny (minutes), smoke (seconds).")
    ] = "full",
    bases: Annotated[
        Path | None, typer.Option(help="Folder of base models that several runs share.  [default: OUT/bases]")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads instead of the config's.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Trials at the same time.  [default: 1; with --cluster as many as fit]"),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Address of an existing Ray cluster: HOST:PORT, or auto.")
    ] = None,
    gpus_per_worker: Annotated[float, typer.Option(min=0, help="GPUs that each worker is given.")] = 0.0,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all recordings for changes, also above 1 GiB.")
    ] = False,
    list_configs: Annotated[bool, typer.Option("--list", help="Show the shipped configs.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Run a study: every method, trial and session, into a folder. Started again, it goes on."""
    _one_of(log_level, _LEVELS, "--log-level")
    _one_of(scale, _SCALES, "--scale")
    if not config and not list_configs:
        raise typer.BadParameter("name a config, or use --list to see those that are shipped")
    from anchorinv.show_study import configs_table
    from anchorinv.terminal import Terminal

    if list_configs:
        Terminal().print(configs_table())
        return
    from anchorinv.study.loading import load
    from anchorinv.study.scale import scaled

    study = scaled(load(config, **_overrides(trials, methods, seed, threads)), scale)
    if scale != "full" and trials:
        study = _with_trials(study, trials)
    folder = out or Path("runs") / (study.name if scale == "full" else f"{study.name}-{scale}")
    executor = _executor(workers, cluster, gpus_per_worker)
    _run(study, folder, folders_of([study], data or []), bases, executor, log_level, verify)


def status(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    results: Annotated[bool, typer.Option(help="Show the results so far, too.")] = False,
) -> None:
    """Show what is done and what is left of a run."""
    from anchorinv.show_study import show_results, show_status
    from anchorinv.study.folder import RunFolder
    from anchorinv.terminal import Terminal

    folder, console = RunFolder(run), Terminal()
    show_status(console, folder)
    if results:
        show_results(console, folder.study(), folder.read().results)


def _executor(workers: int | None, cluster: str | None, gpus: float) -> "Executor | None":
    """Return who computes: None is this process."""
    if cluster is None and workers in (None, 1):
        if gpus:
            raise ValueError("--gpus-per-worker is for workers; say how many with --workers, or --cluster")
        return None
    from anchorinv.cluster.executor import RayExecutor
    from anchorinv.cluster.library import ray

    ray()  # missing? said before anything begins
    return RayExecutor(workers, cluster, gpus)


def _run(
    study: "Study",
    out: Path,
    folders: "dict[str, Dataset]",
    bases: Path | None,
    executor: "Executor | None",
    log_level: str,
    verify: bool,
) -> None:
    from anchorinv.bars import progress_bars
    from anchorinv.logs import logging_to
    from anchorinv.show_study import show_results
    from anchorinv.study.execute import run_study
    from anchorinv.study.folder import RunFolder
    from anchorinv.study.work import Unfinished
    from anchorinv.terminal import Terminal

    console, told = Terminal(), Terminal(stderr=True)
    folder = RunFolder(out)
    console.say(study.title)
    console.say(f"into {out}")
    try:
        with logging_to(folder.log, log_level, told), progress_bars(told):
            run_study(study, out, folders, shelf=bases, executor=executor, verify=verify)
    except Unfinished:
        show_results(console, study, folder.read().results)
        raise
    except KeyboardInterrupt:
        told.say()
        told.say(f"anchorinv: stopped; what is finished is in {out}. Run the same command again to go on.")
        raise typer.Exit(130) from None
    show_results(console, study, folder.read().results)
    for path in folder.write_tables():
        console.say(f"Wrote {path}")


def _overrides(
    trials: int | None, methods: str | None, seed: int | None, threads: int | None
) -> dict[str, Any]:
    protocol: dict[str, Any] = {}
    if trials is not None:
        protocol["trials"] = trials
    if seed is not None:
        protocol["seeds"] = [seed]
    overrides: dict[str, Any] = {"protocol": protocol} if protocol else {}
    if methods is not None:
        overrides["methods"] = [name.strip() for name in methods.split(",") if name.strip()]
    if threads is not None:
        overrides["threads"] = threads
    return overrides


def _with_trials(study: "Study", trials: int) -> "Study":
    """Return a scaled study with as many trials as were asked for."""
    variants = {
        name: each.model_copy(update={"protocol": each.protocol.model_copy(update={"trials": trials})})
        for name, each in study.variants.items()
    }
    return study.model_copy(update={"variants": variants})


def folders_of(studies: "Sequence[Study]", given: list[str]) -> "dict[str, Dataset]":
    """Open what --data names; a folder alone is the studies' only data set."""
    from anchorinv.data.dataset import Dataset
    from anchorinv.study.config import nearest

    variants = [each for study in studies for each in study.variants.values()]
    needed = list(dict.fromkeys(each.data.name for each in variants if each.synthetic is None))
    found = {}
    for text in given:
        name, is_named, folder = text.partition("=")
        if not is_named:
            if not needed:
                raise ValueError("this study is on synthetic recordings and takes no --data")
            if len(needed) != 1:
                raise ValueError(
                    f"this study has the data sets {', '.join(needed) or 'none'}; say NAME=FOLDER for each"
                )
            name, folder = needed[0], text
        if name not in needed:
            raise ValueError(f"this study has no data set {name!r}; {nearest(name, needed or ['none'])}")
        found[name] = Dataset.open(Path(folder))
    return found


def _one_of(given: str, known: tuple[str, ...], option: str) -> None:
    if given not in known:
        raise typer.BadParameter(f"{given!r} is not one of {', '.join(known)}", param_hint=option)
