"""``anchorinv demo``, ``run``, ``status`` and ``report``: run studies and show their results."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import JustifyMethod
from rich.table import Table

from anchorinv.cli.options import Device, argument, interruptible, option, with_options
from anchorinv.terminal import Terminal, logging_to, progress_bars, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anchorinv.datasets.dataset import Dataset
    from anchorinv.study.config import Study
    from anchorinv.study.execute import Executor
    from anchorinv.study.folder import RunFolder
    from anchorinv.study.results import Job
    from anchorinv.study.runner import SessionResult
    from anchorinv.study.scores import Comparison

_LEVELS = ("debug", "info", "warning", "error")
_SCALES = ("full", "tiny", "smoke")


@with_options
def demo(
    quick: bool = option(
        False, "Fewer trials, networks trained and inverted for less time: under a minute.", "--quick"
    ),
    synthetic: bool = option(
        False, "On synthetic recordings, which say nothing about people.", "--synthetic"
    ),
    out: Path | None = option(None, "Run folder; default: runs/demo, with -synthetic, -quick."),
) -> None:
    """Run a small study on real EMG that comes with the package: ten motions, six new ones, a report."""
    name = "-".join(["demo", *(["synthetic"] if synthetic else []), *(["quick"] if quick else [])])
    folder = out or Path("runs") / name
    with interruptible(f"finished trials are in {folder}. Run the same command again to continue."):
        _demo(folder, quick=quick, synthetic=synthetic)


@dataclass(frozen=True, slots=True)
class OverrideOptions:
    """Settings that override the config's."""

    trials: int | None = option(None, "Trials instead of the config's.")
    methods: str | None = option(None, "Methods instead of the config's: a,b,c.")
    seed: int | None = option(None, "Base seed instead of the config's.")
    scale: str = option("full", "full, or on synthetic data: tiny (minutes), smoke (seconds).")
    threads: int | None = option(None, "Threads instead of the config's.")

    def study(self, config: str) -> "Study":
        """Return the study of a config with these settings."""
        from anchorinv.study.loading import load, scaled

        protocol: dict[str, Any] = {}
        if self.trials is not None:
            protocol["trials"] = self.trials
        if self.seed is not None:
            protocol["seeds"] = [self.seed]
        overrides: dict[str, Any] = {"protocol": protocol} if protocol else {}
        if self.methods is not None:
            overrides["methods"] = [name.strip() for name in self.methods.split(",") if name.strip()]
        if self.threads is not None:
            overrides["threads"] = self.threads
        study = scaled(load(config, **overrides), self.scale)
        if self.scale == "full" or not self.trials:
            return study
        trials = {"trials": self.trials}  # the option overrides the scale
        variants = {
            name: variant.model_copy(update={"protocol": variant.protocol.model_copy(update=trials)})
            for name, variant in study.variants.items()
        }
        return study.model_copy(update={"variants": variants})


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Where trials are computed."""

    workers: int | None = option(
        None, "Number of parallel workers; default: 1, with --cluster as many as fit.", min=1
    )
    cluster: str | None = option(None, "Address of an existing Ray cluster: HOST:PORT, or auto.")
    gpus_per_worker: float = option(0.0, "GPUs per worker, for its networks; may be a fraction.", min=0)
    device: Device = "auto"

    def executor(self) -> "Executor | None":
        """Return the executor; None is this process."""
        if self.cluster is None and self.workers in (None, 1):
            if self.gpus_per_worker:
                raise ValueError("--gpus-per-worker needs --workers or --cluster")
            return None
        from anchorinv.study.ray_executor import RayExecutor, ray

        ray()  # if Ray is missing, say so before anything starts
        return RayExecutor(self.workers, self.cluster, self.gpus_per_worker)


@with_options
def run(
    config: str = argument("", "A TOML file, or the name of a shipped config.", metavar="CONFIG"),
    data: list[str] | None = option(
        None, "Prepared folder, or NAME=FOLDER once for each data set of the study."
    ),
    out: Path | None = option(None, "Run folder; the same command resumes it; default: runs/CONFIG."),
    *,
    overrides: OverrideOptions,
    bases: Path | None = option(None, "Folder of base models that several runs share; default: OUT/bases."),
    execution: WorkerOptions,
    verify: bool = option(False, "Read all recordings for changes, also above 1 GiB.", "--verify"),
    list_configs: bool = option(False, "Show the shipped configs.", "--list"),
    log_level: str = option("warning", "debug, info, warning or error."),
) -> None:
    """Run a study: every method, trial and session, into a folder. Run it again to resume."""
    for name, value, allowed in (("log-level", log_level, _LEVELS), ("scale", overrides.scale, _SCALES)):
        if value not in allowed:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}", param_hint=f"--{name}")
    if not config and not list_configs:
        raise typer.BadParameter("name a config, or use --list to see those that are shipped")
    from anchorinv.study.execute import Unfinished, run_study
    from anchorinv.study.folder import RunFolder

    console, errors = Terminal(), Terminal(stderr=True)
    if list_configs:
        console.print(configs_table())
        return
    study = overrides.study(config)
    name = study.name if overrides.scale == "full" else f"{study.name}-{overrides.scale}"
    folder, executor = RunFolder(out or Path("runs") / name), execution.executor()
    folders = folders_of([study], data or [])
    console.say(study.title)
    console.say(f"into {folder.path}")
    interruption = interruptible(
        f"what is finished is in {folder.path}. Run the same command again to continue."
    )
    options: dict[str, Any] = {"executor": executor, "verify": verify, "device": execution.device}
    try:
        with interruption, logging_to(folder.log, log_level, errors), progress_bars(errors):
            run_study(study, folder.path, folders, cache=bases, **options)
    except Unfinished:
        show_results(console, study, folder.read().results)
        raise
    show_results(console, study, folder.read().results)
    for path in folder.write_tables():
        console.say(f"Wrote {path}")


@with_options
def status(
    run: Path = argument(..., "A run folder.", metavar="RUN"),
    results: bool = option(False, "Show the results so far, too."),
) -> None:
    """Show the finished and the missing jobs of a run."""
    from anchorinv.study.folder import RunFolder

    folder, console = RunFolder(run), Terminal()
    show_status(console, folder)
    if results:
        show_results(console, folder.study(), folder.read().results)


@with_options
def report(
    runs: list[Path] = argument(
        ..., "Run folders, or records of runs (--export); several make one report.", metavar="RUN"
    ),
    out: Path | None = option(
        None, "Folder for the report; default: RUN/report, or runs/report for several or a record."
    ),
    data: list[str] | None = option(
        None, "Prepared folder, or NAME=FOLDER for each data set: figures of features and signals."
    ),
    bases: Path | None = option(None, "Folder of base models, if the runs shared one; default: RUN/bases."),
    selections: str = option("", "Anchor selections to show in the feature space: random,closest,kmeans …"),
    export: Path | None = option(None, "Instead of a report, write the run as one small file to publish."),
    into: Path | None = option(
        None, "Instead of a report, fill the marked tables and figures of this Markdown page."
    ),
) -> None:
    """Make a report (page, tables, figures) from run folders, finished or not."""
    if export is not None and into is not None:
        raise typer.BadParameter("--export and --into exclude each other; run one after the other")
    if export is not None:
        _export(runs, export)
    elif into is not None:
        _fill(runs, into)
    else:
        _report(runs, out, data or [], bases, selections)


def _demo(out: Path, *, quick: bool, synthetic: bool) -> None:
    import time

    from anchorinv.files import check_writable
    from anchorinv.report.page import make_report
    from anchorinv.study.execute import run_study
    from anchorinv.study.folder import RunFolder
    from anchorinv.study.loading import demo_study
    from anchorinv.study.scores import in_words, with_titles

    console, began = Terminal(), time.perf_counter()
    study, folder = demo_study(quick=quick, synthetic=synthetic), RunFolder(out)
    folder.check_free()  # before anything is computed
    check_writable(folder.results, such_as="results.jsonl")
    _describe_demo(console, study)
    before = len(folder.read().results)
    with progress_bars():
        data = folders_of([study], [])
        run_study(study, out, data)
        results = with_titles(folder.read().results)
        page = make_report([out], out / "report", data)
    wide = console.width >= 31 + 13 * max(result.session for result in results)
    console.print(scores_table(results, spread=wide))
    console.say(in_words(results))
    console.say(f"Results: {folder.results} ({time.perf_counter() - began:.0f} s)")
    if before == len(results):
        console.say(f"All of it was there already; remove {out} to see it run again.")
    console.say(f"Report: {page}")


def _describe_demo(console: Terminal, study: "Study") -> None:
    """Print what the demo will do."""
    from anchorinv.datasets.npz_sets import EMG_DEMO, split_values

    (variant,) = study.variants.values()
    protocol = variant.protocol
    if variant.synthetic is not None:
        console.say("Synthetic EMG-like recordings: no person's data, and no evidence about real people.")
    else:
        console.say(f"{study.title}.")
        console.say(f"From {EMG_DEMO.origin}, {EMG_DEMO.licence}; {split_values(EMG_DEMO, None)[1]}.")
    console.say(
        f"{len(protocol.base_classes)} base classes with all their training windows, then "
        f"{len(protocol.sessions)} new classes, one per session, {protocol.shots} windows each; "
        f"{protocol.trials} trials, the same windows for all methods."
    )
    if variant.synthetic is None:
        console.say(
            f"Networks (AnchorInv, ProtoNet) are trained for {variant.training.epochs} epochs, which is "
            "short; docs/results.md has studies of full length."
        )


def folders_of(studies: "Sequence[Study]", options: list[str]) -> "dict[str, Dataset]":
    """Open the data sets that --data names or the package has; a folder alone is the only data set."""
    from anchorinv.datasets.dataset import Dataset
    from anchorinv.datasets.npz_sets import EMG_DEMO, emg_demo
    from anchorinv.study.config import nearest

    variants = [variant for study in studies for variant in study.variants.values()]
    needed = list(dict.fromkeys(variant.data.name for variant in variants if variant.synthetic is None))
    folders = {}
    for text in options:
        name, is_named, folder = text.partition("=")
        if not is_named:
            if not needed:
                raise ValueError("this study is on synthetic recordings and takes no --data")
            if len(needed) != 1:
                raise ValueError(
                    f"this study has the data sets {', '.join(needed) or 'none'}; pass NAME=FOLDER for each"
                )
            name, folder = needed[0], text
        if name not in needed:
            raise ValueError(f"this study has no data set {name!r}; {nearest(name, needed or ['none'])}")
        folders[name] = Dataset.open(Path(folder))
    if EMG_DEMO.name in needed and EMG_DEMO.name not in folders:
        folders[EMG_DEMO.name] = emg_demo()
    return folders


def _report(runs: list[Path], out: Path | None, data: list[str], bases: Path | None, selections: str) -> None:
    from anchorinv.core.prototypes import SELECTIONS
    from anchorinv.report.gather import source_at
    from anchorinv.report.page import make_report
    from anchorinv.study.config import nearest

    chosen = [name.strip() for name in selections.split(",") if name.strip()]
    for name in chosen:
        if name not in SELECTIONS:
            raise ValueError(f"unknown selection {name!r}; {nearest(name, SELECTIONS)}")
    one_folder = len(runs) == 1 and not runs[0].is_file()
    target = out or (runs[0] / "report" if one_folder else Path("runs") / "report")
    folders = folders_of([source_at(run).study() for run in runs], data)
    with progress_bars():
        page = make_report(runs, target, folders, bases=bases, selections=chosen)
    say(f"Report: {page}")


def _export(runs: list[Path], to: Path) -> None:
    from anchorinv.study.folder import RunFolder, write_record

    if len(runs) != 1:
        raise typer.BadParameter(f"--export takes one run, got {len(runs)}; export each to a file of its own")
    if to.suffix != ".jsonl":
        raise typer.BadParameter(f"--export writes a .jsonl file, got {to}")
    results = write_record(RunFolder(runs[0]), to).read().results
    say(f"{to}: {len(results)} results, {to.stat().st_size / 1e6:.2f} MB")


def _fill(runs: list[Path], page: Path) -> None:
    from anchorinv.report.gather import gather
    from anchorinv.report.page import fill

    read = gather(runs)
    filled = fill(page, read)
    say(
        f"{page}: filled from {', '.join(run.name for run in read)}, with {len(filled.figures)} figures",
        *(f"{run.name} is not finished: {len(run.missing)} jobs are missing" for run in read if run.missing),
        *(
            f"left alone: {mark.what} of {', '.join(mark.runs)}, not among the runs"
            for mark in filled.waiting
        ),
    )


def scores_table(
    results: "Sequence[SessionResult]", *, spread: bool = True, of: str = "over trials"
) -> Table:
    """Return macro-F1 over all, base and new classes, per method and session, of one variant.

    Without the ``spread``, standard deviations, the table fits a narrow terminal.
    """
    from anchorinv.study import scores

    last = max(result.session for result in results)
    table = Table(title=f"Macro-F1 in percent, {'mean ± standard deviation' if spread else 'mean'} {of}")
    table.add_column("classes" if spread else "", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for session in range(last + 1):
        header = f"session {session}" if spread else str(session)
        table.add_column(header if session else "base", justify="right", no_wrap=True)
    methods, scores_by_session = scores.methods_of(results), scores.by_session(results)
    for part, words in scores.PARTS.items():
        for method in methods:
            row = [scores_by_session.get((method, session, part)) for session in range(last + 1)]
            cells = ["" if cell is None else str(cell) if spread else f"{cell.mean:.1f}" for cell in row]
            if part == "f1_new":
                cells[0] = ""
            first, final = method == methods[0], method == methods[-1]
            table.add_row(words if first else "", method, *cells, end_section=final)
    return table


def configs_table() -> Table:
    """Return the shipped configs and what they are."""
    from anchorinv.study.loading import load, shipped

    table = Table(title="Shipped configs", show_edge=False)
    for name in ("name", "paper", "what", "variants"):
        table.add_column(name, justify="right" if name == "variants" else "left", no_wrap=name == "name")
    for name in shipped():
        study = load(name)
        table.add_row(name, study.paper, study.title, str(len(study.variants)))
    return table


def show_results(console: Terminal, study: "Study", results: "Sequence[SessionResult]") -> None:
    """Print the results of a run so far: scores, a sentence, comparisons and what they assume."""
    from anchorinv.study import scores

    if not results:
        console.say("No results yet.")
        return
    comparisons, results = list(scores.comparisons(results, study.reference)), scores.with_titles(results)
    wide = console.width >= 31 + 13 * max(result.session for result in results)
    if study.scale != "full" or any(e.synthetic for e in study.variants.values()):
        console.say(
            "Synthetic recordings: no person's data, and no evidence about real people.", style="bold"
        )
    several = len({result.variant for result in results}) > 1
    people = list(dict.fromkeys(result.person for result in results))
    for person in people if len(people) > 1 and not several else []:
        of_person = [result for result in results if result.person == person]
        console.print(scores_table(of_person, spread=wide, of=f"over trials, person {person}"))
    of = "over people" if len(people) > 1 else "over trials"
    console.print(_variants_table(results) if several else scores_table(results, spread=wide, of=of))
    if not several and len(scores.methods_of(results)) > 1 and scores.complete(results):
        console.say(scores.in_words(results))
    if comparisons and not several:
        console.print(_comparisons_table(comparisons))
    if comparisons:
        console.say(scores.assumptions(results))


def show_status(console: Terminal, folder: "RunFolder") -> None:
    """Print the finished and the missing jobs of a run."""
    from anchorinv.study.results import Job

    study, read = folder.study(), folder.read()
    jobs = folder.jobs()
    done = {Job.of(result) for result in read.results}
    missing = [job for job in jobs if job not in done]
    console.say(f"{study.title} ({study.name}, scale {study.scale})")
    console.print(_finished_table(study, jobs, done, read.results))
    if read.damage:
        console.say(f"results.jsonl has {read.damage}; the next run repairs it.")
    if not missing:
        console.say(f"All {len(jobs)} jobs are finished.")
        return
    now = (
        "A process is running in it."
        if folder.in_use
        else "Nothing is running; the same command continues it."
    )
    console.say(f"{len(done)} of {len(jobs)} jobs are finished{_time_left(read.results, missing)}. {now}")


def _table(title: str, *columns: str, edge: bool = True) -> Table:
    """Return a table of numbers, whose columns of names are at the left."""
    table = Table(title=title, show_edge=edge)
    for name in columns:
        justify: JustifyMethod = "left" if name in ("variant", "method", "over") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    return table


def _finished_table(
    study: "Study", jobs: "Sequence[Job]", done: "set[Job]", results: "Sequence[SessionResult]"
) -> Table:
    from anchorinv.study import scores

    several = ["variant"] if len(study.variants) > 1 else []
    table = _table("Finished", *several, "method", "base models", "trials", "s per trial", edge=False)
    for variant in study.variants:
        for method in dict.fromkeys(part.method for part in jobs if part.variant == variant):
            jobs_here = [p for p in jobs if (p.variant, p.method) == (variant, method)]
            bases, trials = ([p for p in jobs_here if (p.trial is None) == base] for base in (True, False))
            seconds = _per_trial(results, variant, method)
            counts = (f"{sum(p in done for p in some)} of {len(some)}" for some in (bases, trials))
            duration = "" if seconds is None else f"{seconds:.1f}"
            table.add_row(*([variant] if several else []), scores.method_title(method), *counts, duration)
    return table


def _variants_table(results: "Sequence[SessionResult]") -> Table:
    """Return the base session and the last one of each variant, as the paper's ablations do."""
    from anchorinv.study import scores

    one_method = len(scores.methods_of(results)) == 1
    named = f" ({scores.methods_of(results)[0]})" if one_method else ""
    title = f"Macro-F1 in percent{named}: all classes, and the new ones after the last session"
    method_column = [] if one_method else ["method"]
    table = _table(title, "variant", *method_column, "base", "last session", "new classes")
    for variant in dict.fromkeys(result.variant for result in results):
        of_variant = [result for result in results if result.variant == variant]
        last, by_session = max(result.session for result in of_variant), scores.by_session(of_variant)
        for i, method in enumerate(scores.methods_of(of_variant)):
            columns = ((0, "f1_all"), (last, "f1_all"), (last, "f1_new"))
            cells = [str(by_session.get((method, session, part), "")) for session, part in columns]
            names = ["" if i else variant, *([] if one_method else [method])]
            ends = not one_method and method == scores.methods_of(of_variant)[-1]
            table.add_row(*names, *cells, end_section=ends)
    return table


def _comparisons_table(comparisons: "Sequence[Comparison]") -> Table:
    from anchorinv.study import scores

    last = max(c.session for c in comparisons)
    reference = scores.method_title(comparisons[0].reference)
    title = f"Against {reference} after session {last}, macro-F1 over all classes"
    table = _table(title, "method", "over", "difference", "95 % interval", "p (Holm)", "effect")
    for c in (c for c in comparisons if c.session == last):
        interval = "" if math.isinf(c.low) else f"{c.low:+.1f} to {c.high:+.1f}"
        numbers = (f"{c.difference:+.1f}", interval, f"{c.p_holm:.3g}", f"{c.effect:+.2f}")
        table.add_row(scores.method_title(c.method), f"{c.n} {c.over}", *numbers)
    return table


def _per_trial(results: "Sequence[SessionResult]", variant: str, method: str) -> float | None:
    from anchorinv.study.results import Job

    selected = [r for r in results if (r.variant, r.method) == (variant, method) and r.trial is not None]
    trials = {Job.of(result) for result in selected}
    return sum(result.seconds for result in selected) / len(trials) if trials else None


def _time_left(results: "Sequence[SessionResult]", missing: "Sequence[Job]") -> str:
    """Estimate the time of the remaining trials, by the finished ones of the same method."""
    keys = dict.fromkeys((job.variant, job.method) for job in missing)
    per_trial = {key: _per_trial(results, *key) for key in keys}
    measured = [seconds for seconds in per_trial.values() if seconds is not None]
    if not measured:
        return ""
    mean_seconds = sum(measured) / len(measured)
    trials = [job for job in missing if job.trial is not None]
    seconds = sum(per_trial[job.variant, job.method] or mean_seconds for job in trials)
    return f", about {seconds / 60:.0f} minutes of trials are left" if seconds > 90 else ""
