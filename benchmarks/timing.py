"""Time two ways of doing the same work, turn by turn, so that a busy machine slows both alike."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Parameters
    ----------
    name : as in the table and in the JSON file.
    what : the work in a few words.
    must : the ratio asked for.
    twin_steps, our_steps : steps in one call of each side; times are given per step. Ours takes more of
        them, so that both calls last about as long and what ours does once per run of hundreds or thousands
        of steps does not weigh on a handful of them.
    prepare : (twin_steps, our_steps) -> (twin, ours), called when the case's turn has come.
    """

    name: str
    what: str
    must: float
    twin_steps: int
    our_steps: int
    prepare: Callable[[int, int], tuple[Work, Work]]


@dataclass(frozen=True)
class Figure:
    """What came out; times are medians in milliseconds per step.

    ``ratio`` is the twin's median over ours, ``spread`` the interquartile range of the ratios of the pairs.
    """

    name: str
    what: str
    must: float
    repeats: int
    twin_ms: float
    ours_ms: float
    ratio: float
    spread: float


def measure(case: Case, repeats: int, tick: Callable[[], None]) -> Figure:
    """Run twin, ours, twin, ours ... after one warm-up of both; ``tick`` is called after each pair."""
    twin, ours = case.prepare(case.twin_steps, case.our_steps)
    pairs = []
    for _ in range(repeats + 1):
        pairs.append((_seconds(twin) / case.twin_steps, _seconds(ours) / case.our_steps))
        tick()
    pairs = pairs[1:]  # the first was the warm-up
    twin_median, ours_median = (median(side) for side in zip(*pairs, strict=True))
    low, _, high = quantiles([a / b for a, b in pairs], n=4, method="inclusive")
    return Figure(
        name=case.name,
        what=case.what,
        must=case.must,
        repeats=repeats,
        twin_ms=1000 * twin_median,
        ours_ms=1000 * ours_median,
        ratio=twin_median / ours_median,
        spread=high - low,
    )


def _seconds(work: Work) -> float:
    gc.collect()  # so that neither side pays for what the other left behind
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
