"""What ``anchorinv run`` and ``anchorinv status`` show: tables of scores, comparisons, what is left."""

import math
from collections.abc import Sequence

from rich.table import Table

from anchorinv.core.runner import SessionResult
from anchorinv.show import table
from anchorinv.study.config import Study
from anchorinv.study.folder import RunFolder
from anchorinv.study.loading import load, shipped
from anchorinv.study.parts import Part
from anchorinv.study.summary import cell, in_words, methods_of
from anchorinv.study.tables import Compared, assumptions, comparisons
from anchorinv.terminal import Terminal


def configs_table() -> Table:
    """Return the shipped configs and what they are."""
    shown = Table(title="Shipped configs", show_edge=False)
    for name in ("name", "paper", "what", "variants"):
        shown.add_column(name, justify="right" if name == "variants" else "left", no_wrap=name == "name")
    for name in shipped():
        study = load(name)
        shown.add_row(name, study.paper, study.title, str(len(study.variants)))
    return shown


def show_results(console: Terminal, study: Study, results: Sequence[SessionResult]) -> None:
    """Print what a run has found so far: scores, a sentence, comparisons and what they assume."""
    if not results:
        console.say("No results yet.")
        return
    wide = console.width >= 31 + 13 * max(result.session for result in results)
    if study.scale != "full" or any(e.synthetic for e in study.variants.values()):
        console.say("Synthetic recordings: nobody's data, and no evidence about real people.", style="bold")
    several = len({result.variant for result in results}) > 1
    people = list(dict.fromkeys(result.person for result in results))
    for person in people if len(people) > 1 and not several else []:
        own = [result for result in results if result.person == person]
        console.print(table(own, spread=wide, of=f"over trials, person {person}"))
    of = "over people" if len(people) > 1 else "over trials"
    console.print(_variants_table(results) if several else table(results, spread=wide, of=of))
    if not several and len(methods_of(results)) > 1 and _complete(results):
        console.say(in_words(results))
    found = list(comparisons(results, study.reference))
    if found and not several:
        console.print(_comparisons_table(found))
    if found:
        console.say(assumptions(results))


def show_status(console: Terminal, folder: RunFolder) -> None:
    """Print what is done and what is left of a run."""
    study, read = folder.study(), folder.read()
    everything = folder.parts()
    done = {Part.of(result) for result in read.results}
    left = [part for part in everything if part not in done]
    console.say(f"{study.title} ({study.name}, scale {study.scale})")
    shown = Table(title="Finished", show_edge=False)
    several = len(study.variants) > 1
    for name in (*(["variant"] if several else []), "method", "base models", "trials", "s per trial"):
        shown.add_column(name, justify="left" if name in ("variant", "method") else "right", no_wrap=True)
    for variant in study.variants:
        for method in dict.fromkeys(part.method for part in everything if part.variant == variant):
            own = [p for p in everything if (p.variant, p.method) == (variant, method)]
            bases, trials = ([p for p in own if (p.trial is None) == base] for base in (True, False))
            seconds = _per_trial(read.results, variant, method)
            shown.add_row(
                *([variant] if several else []),
                method,
                f"{sum(p in done for p in bases)} of {len(bases)}",
                f"{sum(p in done for p in trials)} of {len(trials)}",
                "" if seconds is None else f"{seconds:.1f}",
            )
    console.print(shown)
    if read.damage:
        console.say(f"results.jsonl has {read.damage}; the next run mends it.")
    if not left:
        console.say(f"All {len(everything)} parts are finished.")
        return
    now = "A process is running in it." if folder.in_use else "Nothing is running; the same command goes on."
    console.say(f"{len(done)} of {len(everything)} parts are finished{_time_left(read.results, left)}. {now}")


def _variants_table(results: Sequence[SessionResult]) -> Table:
    """Return the base session and the last one of each variant, as the paper's ablations do."""
    one_method = len(methods_of(results)) == 1
    named = f" ({methods_of(results)[0]})" if one_method else ""
    shown = Table(title=f"Macro-F1 in percent{named}: all classes, and the new ones after the last session")
    for name in ("variant", *([] if one_method else ["method"]), "base", "last session", "new classes"):
        shown.add_column(name, justify="left" if name in ("variant", "method") else "right", no_wrap=True)
    for variant in dict.fromkeys(result.variant for result in results):
        own = [result for result in results if result.variant == variant]
        last = max(result.session for result in own)
        for i, method in enumerate(methods_of(own)):
            there = {result.session for result in own if result.method == method}
            asked = ((0, "f1_all"), (last, "f1_all"), (last, "f1_new"))
            cells = [str(cell(own, method, s, part)) if s in there else "" for s, part in asked]
            names = ["" if i else variant, *([] if one_method else [method])]
            ends = not one_method and method == methods_of(own)[-1]
            shown.add_row(*names, *cells, end_section=ends)
    return shown


def _comparisons_table(found: Sequence[Compared]) -> Table:
    last = max(each.session for each in found)
    shown = Table(title=f"Against {found[0].reference} after session {last}, macro-F1 over all classes")
    for name in ("method", "over", "difference", "95 % interval", "p (Holm)", "effect"):
        shown.add_column(name, justify="left" if name in ("method", "over") else "right", no_wrap=True)
    for each in (each for each in found if each.session == last):
        c = each.comparison
        interval = "" if math.isinf(c.low) else f"{c.low:+.1f} to {c.high:+.1f}"
        shown.add_row(
            c.method,
            f"{c.n} {each.over}",
            f"{c.difference:+.1f}",
            interval,
            f"{c.p_holm:.3g}",
            f"{c.effect:+.2f}",
        )
    return shown


def _complete(results: Sequence[SessionResult]) -> bool:
    """Say whether all methods have the same trials of the last session, so that they can be compared."""
    last = max(result.session for result in results)
    counts = [sum(r.session == last for r in results if r.method == m) for m in methods_of(results)]
    return last > 0 and len(set(counts)) == 1


def _per_trial(results: Sequence[SessionResult], variant: str, method: str) -> float | None:
    own = [r for r in results if (r.variant, r.method) == (variant, method) and r.trial is not None]
    trials = {Part.of(result) for result in own}
    return sum(result.seconds for result in own) / len(trials) if trials else None


def _time_left(results: Sequence[SessionResult], left: Sequence[Part]) -> str:
    """Say how long the trials left will take, by those of the same method that are finished."""
    keys = dict.fromkeys((part.variant, part.method) for part in left)
    known = {key: _per_trial(results, *key) for key in keys}
    measured = [seconds for seconds in known.values() if seconds is not None]
    if not measured:
        return ""
    usual = sum(measured) / len(measured)
    trials = [part for part in left if part.trial is not None]
    seconds = sum(known[part.variant, part.method] or usual for part in trials)
    return f", about {seconds / 60:.0f} minutes of trials are left" if seconds > 90 else ""
