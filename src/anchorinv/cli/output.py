"""Output of ``demo``, ``run`` and ``status``: tables of scores, comparisons, progress, log messages."""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import JustifyMethod
from rich.table import Table

import anchorinv.study.scores as scores
from anchorinv.errors import shown
from anchorinv.study.config import Study
from anchorinv.study.folder import RunFolder
from anchorinv.study.loading import load, shipped
from anchorinv.study.results import Job
from anchorinv.study.runner import SessionResult
from anchorinv.terminal import Terminal


def titled(results: Sequence[SessionResult]) -> list[SessionResult]:
    """Rename methods in results to their titles, as in reports, unless two share a title."""
    titles = {name: scores.method_title(name) for name in scores.methods_of(results)}
    if len(set(titles.values())) < len(titles):
        return list(results)
    return [replace(result, method=titles[result.method]) for result in results]


def scores_table(results: Sequence[SessionResult], *, spread: bool = True, of: str = "over trials") -> Table:
    """Return macro-F1 over all, base and new classes, per method and session, of one variant.

    Without the ``spread``, standard deviations, the table fits a narrow terminal.
    """
    last = max(result.session for result in results)
    table = Table(title=f"Macro-F1 in percent, {'mean ± standard deviation' if spread else 'mean'} {of}")
    table.add_column("classes" if spread else "", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for session in range(last + 1):
        header = f"session {session}" if spread else str(session)
        table.add_column(header if session else "base", justify="right", no_wrap=True)
    methods, known = scores.methods_of(results), scores.by_session(results)
    for part, words in scores.PARTS.items():
        for method in methods:
            row = [known.get((method, session, part)) for session in range(last + 1)]
            cells = ["" if cell is None else str(cell) if spread else f"{cell.mean:.1f}" for cell in row]
            if part == "f1_new":
                cells[0] = ""
            first, final = method == methods[0], method == methods[-1]
            table.add_row(words if first else "", method, *cells, end_section=final)
    return table


def configs_table() -> Table:
    """Return the shipped configs and what they are."""
    table = Table(title="Shipped configs", show_edge=False)
    for name in ("name", "paper", "what", "variants"):
        table.add_column(name, justify="right" if name == "variants" else "left", no_wrap=name == "name")
    for name in shipped():
        study = load(name)
        table.add_row(name, study.paper, study.title, str(len(study.variants)))
    return table


def show_results(console: Terminal, study: Study, results: Sequence[SessionResult]) -> None:
    """Print the results of a run so far: scores, a sentence, comparisons and what they assume."""
    if not results:
        console.say("No results yet.")
        return
    compared, results = list(scores.comparisons(results, study.reference)), titled(results)
    wide = console.width >= 31 + 13 * max(result.session for result in results)
    if study.scale != "full" or any(e.synthetic for e in study.variants.values()):
        console.say(
            "Synthetic recordings: no person's data, and no evidence about real people.", style="bold"
        )
    several = len({result.variant for result in results}) > 1
    people = list(dict.fromkeys(result.person for result in results))
    for person in people if len(people) > 1 and not several else []:
        own = [result for result in results if result.person == person]
        console.print(scores_table(own, spread=wide, of=f"over trials, person {person}"))
    of = "over people" if len(people) > 1 else "over trials"
    console.print(_variants_table(results) if several else scores_table(results, spread=wide, of=of))
    if not several and len(scores.methods_of(results)) > 1 and _complete(results):
        console.say(scores.in_words(results))
    if compared and not several:
        console.print(_comparisons_table(compared))
    if compared:
        console.say(scores.assumptions(results))


def show_status(console: Terminal, folder: RunFolder) -> None:
    """Print the finished and the missing jobs of a run."""
    study, read = folder.study(), folder.read()
    everything = folder.jobs()
    done = {Job.of(result) for result in read.results}
    left = [part for part in everything if part not in done]
    console.say(f"{study.title} ({study.name}, scale {study.scale})")
    console.print(_finished_table(study, everything, done, read.results))
    if read.damage:
        console.say(f"results.jsonl has {read.damage}; the next run repairs it.")
    if not left:
        console.say(f"All {len(everything)} jobs are finished.")
        return
    now = (
        "A process is running in it."
        if folder.in_use
        else "Nothing is running; the same command continues it."
    )
    console.say(f"{len(done)} of {len(everything)} jobs are finished{_time_left(read.results, left)}. {now}")


def _table(title: str, *columns: str, edge: bool = True) -> Table:
    """Return a table of numbers, whose columns of names are at the left."""
    table = Table(title=title, show_edge=edge)
    for name in columns:
        justify: JustifyMethod = "left" if name in ("variant", "method", "over") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    return table


def _finished_table(
    study: Study, everything: Sequence[Job], done: set[Job], results: Sequence[SessionResult]
) -> Table:
    several = ["variant"] if len(study.variants) > 1 else []
    table = _table("Finished", *several, "method", "base models", "trials", "s per trial", edge=False)
    for variant in study.variants:
        for method in dict.fromkeys(part.method for part in everything if part.variant == variant):
            own = [p for p in everything if (p.variant, p.method) == (variant, method)]
            bases, trials = ([p for p in own if (p.trial is None) == base] for base in (True, False))
            seconds = _per_trial(results, variant, method)
            counts = (f"{sum(p in done for p in some)} of {len(some)}" for some in (bases, trials))
            duration = "" if seconds is None else f"{seconds:.1f}"
            table.add_row(*([variant] if several else []), scores.method_title(method), *counts, duration)
    return table


def _variants_table(results: Sequence[SessionResult]) -> Table:
    """Return the base session and the last one of each variant, as the paper's ablations do."""
    one_method = len(scores.methods_of(results)) == 1
    named = f" ({scores.methods_of(results)[0]})" if one_method else ""
    title = f"Macro-F1 in percent{named}: all classes, and the new ones after the last session"
    method_column = [] if one_method else ["method"]
    table = _table(title, "variant", *method_column, "base", "last session", "new classes")
    for variant in dict.fromkeys(result.variant for result in results):
        own = [result for result in results if result.variant == variant]
        last, known = max(result.session for result in own), scores.by_session(own)
        for i, method in enumerate(scores.methods_of(own)):
            asked = ((0, "f1_all"), (last, "f1_all"), (last, "f1_new"))
            cells = [str(known.get((method, session, part), "")) for session, part in asked]
            names = ["" if i else variant, *([] if one_method else [method])]
            ends = not one_method and method == scores.methods_of(own)[-1]
            table.add_row(*names, *cells, end_section=ends)
    return table


def _comparisons_table(compared: Sequence[scores.Comparison]) -> Table:
    last, reference = max(each.session for each in compared), scores.method_title(compared[0].reference)
    title = f"Against {reference} after session {last}, macro-F1 over all classes"
    table = _table(title, "method", "over", "difference", "95 % interval", "p (Holm)", "effect")
    for c in (each for each in compared if each.session == last):
        interval = "" if math.isinf(c.low) else f"{c.low:+.1f} to {c.high:+.1f}"
        numbers = (f"{c.difference:+.1f}", interval, f"{c.p_holm:.3g}", f"{c.effect:+.2f}")
        table.add_row(scores.method_title(c.method), f"{c.n} {c.over}", *numbers)
    return table


def _complete(results: Sequence[SessionResult]) -> bool:
    """Return whether all methods have the same trials of the last session, and can be compared."""
    last = max(result.session for result in results)
    counts = [sum(r.session == last for r in results if r.method == m) for m in scores.methods_of(results)]
    return last > 0 and len(set(counts)) == 1


def _per_trial(results: Sequence[SessionResult], variant: str, method: str) -> float | None:
    own = [r for r in results if (r.variant, r.method) == (variant, method) and r.trial is not None]
    trials = {Job.of(result) for result in own}
    return sum(result.seconds for result in own) / len(trials) if trials else None


def _time_left(results: Sequence[SessionResult], left: Sequence[Job]) -> str:
    """Estimate the time of the remaining trials, by the finished ones of the same method."""
    keys = dict.fromkeys((part.variant, part.method) for part in left)
    known = {key: _per_trial(results, *key) for key in keys}
    measured = [seconds for seconds in known.values() if seconds is not None]
    if not measured:
        return ""
    usual = sum(measured) / len(measured)
    trials = [part for part in left if part.trial is not None]
    seconds = sum(known[part.variant, part.method] or usual for part in trials)
    return f", about {seconds / 60:.0f} minutes of trials are left" if seconds > 90 else ""


class _ConsoleHandler(logging.Handler):
    """Print each record as one line, above the progress bars.

    Rich's own handler wraps messages and does not escape them.
    """

    def __init__(self, console: Terminal, level: str) -> None:
        super().__init__(level.upper())
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        self._console.say(f"{record.levelname.lower()}: {record.getMessage()}")


class _LineFormatter(logging.Formatter):
    """Format a message as one line, with names escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Return the line, before any traceback."""
        return shown(super().formatMessage(record))


@contextmanager
def logging_to(path: Path, level: str, console: Terminal) -> Iterator[None]:
    """Log what happens inside the block: to a file from ``info`` on, to a console from ``level`` on."""
    logger = logging.getLogger("anchorinv")
    before = logger.level
    # Opened by the first message, so that a command that fails early leaves no folder.
    to_file = logging.FileHandler(path, encoding="utf-8", delay=True)
    to_file.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    handlers = [to_file, _ConsoleHandler(console, level)]
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(min(logging.INFO, logging.getLevelName(level.upper())))
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
