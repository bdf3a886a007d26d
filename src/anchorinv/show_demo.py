"""What ``anchorinv demo`` shows: a run from start to report."""

import time
from dataclasses import replace
from pathlib import Path

from anchorinv.bars import progress_bars
from anchorinv.report.write import make_report
from anchorinv.show import table
from anchorinv.study.demo import demo_study
from anchorinv.study.execute import run_study
from anchorinv.study.folder import RunFolder
from anchorinv.study.names import method_name
from anchorinv.study.summary import in_words
from anchorinv.terminal import Terminal


def show_demo(out: Path, *, quick: bool) -> None:
    """Run the demo in a run folder, show it, and make its report."""
    console, began = Terminal(), time.perf_counter()
    study, folder = demo_study(quick=quick), RunFolder(out)
    folder.check_free()  # before anything is computed
    course = next(iter(study.variants.values())).protocol
    console.say("Synthetic EMG-like recordings; nobody's data, and no evidence about real people.")
    console.say(
        f"{len(course.base_classes)} base classes with all their recordings, then "
        f"{len(course.sessions)} new classes, one per session, {course.shots} examples each; "
        f"{course.trials} trials, the same examples for all methods."
    )
    before = len(folder.read().results)
    with progress_bars(console):
        run_study(study, out)
        results = [replace(r, method=method_name(r.method)) for r in folder.read().results]
        page = make_report([out], out / "report")
    console.print(table(results, spread=console.width >= 72))
    console.say(in_words(results))
    console.say(f"Results: {folder.results} ({time.perf_counter() - began:.0f} s)")
    if before == len(results):
        console.say(f"All of it was there already; remove {out} to see it run anew.")
    console.say(f"Report: {page}")
