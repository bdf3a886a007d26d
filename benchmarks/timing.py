"""Measure two ways of doing the same work, turn by turn, so that a busy machine slows both alike."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

from benchmarks.arithmetic import Cost
from benchmarks.machine import Machine

#: Does the work once and returns what it took, in the case's unit.
Side = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Parameters
    ----------
    name : as in the table and in the JSON file.
    what : the work in a few words.
    must, aim : the ratio asked for and the one we are after; None where the figure is there to be known.
    prepare : quick -> (twin, ours), called when the case's turn has come.
    cost : what the work needs at least; None where that says nothing.
    unit : of what both sides return.
    repeats, quick_repeats : pairs that count.
    warm_up : run a pair that does not count first.
    """

    name: str
    what: str
    must: float | None
    aim: float | None
    prepare: Callable[[bool], tuple[Side, Side]]
    cost: Cost | None = None
    unit: str = "ms"
    repeats: int = 5
    quick_repeats: int = 2
    warm_up: bool = True

    def n_pairs(self, quick: bool) -> int:
        """Return the pairs that count."""
        return self.quick_repeats if quick else self.repeats


@dataclass(frozen=True)
class Figure:
    """What came out; ``twin`` and ``ours`` are medians.

    ``ratio`` is the twin's median over ours, ``spread`` the interquartile range of the ratios of the pairs.
    ``of_limit`` is the least time that the arithmetic and the bytes take on this machine, over ours;
    ``peak_gflops`` and ``copy_gbytes`` (per second) are what was measured of it.
    """

    name: str
    what: str
    must: float | None
    aim: float | None
    unit: str
    repeats: int
    twin: float
    ours: float
    ratio: float
    spread: float | None
    gflop: float | None
    mbytes: float | None
    of_limit: float | None
    peak_gflops: float
    copy_gbytes: float
    pairs: list[tuple[float, float]]


def measure(
    case: Case, machine: Machine, *, quick: bool = False, tick: Callable[[], None] = lambda: None
) -> Figure:
    """Run twin, ours, twin, ours ...; ``tick`` is called after each pair."""
    twin, ours = case.prepare(quick)
    pairs = []
    for _ in range(case.n_pairs(quick) + case.warm_up):
        pairs.append((twin(), ours()))
        tick()
    pairs = pairs[case.warm_up :]
    twin_median, ours_median = (median(side) for side in zip(*pairs, strict=True))
    limit = case.cost and 1000 * case.cost.seconds(machine.peak, machine.bandwidth)
    return Figure(
        name=case.name,
        what=case.what,
        must=case.must,
        aim=case.aim,
        unit=case.unit,
        repeats=len(pairs),
        twin=twin_median,
        ours=ours_median,
        ratio=twin_median / ours_median,
        spread=_spread([a / b for a, b in pairs]),
        gflop=case.cost and case.cost.flop / 1e9,
        mbytes=case.cost and case.cost.bytes / 1e6,
        of_limit=limit and limit / ours_median,
        peak_gflops=machine.peak / 1e9,
        copy_gbytes=machine.bandwidth / 1e9,
        pairs=pairs,
    )


def timed(
    work: Callable[[], object], units: float = 1, clock: Callable[[], float] = time.perf_counter
) -> Side:
    """Return a side that takes the milliseconds of ``work`` per unit.

    Ours often does more units in one call than the twin, so that both calls last about as long and what
    ours does once per run of hundreds or thousands of steps does not weigh on a handful of them.
    """

    def side() -> float:
        gc.collect()  # so that neither side pays for what the other left behind
        start = clock()
        work()
        return 1000 * (clock() - start) / units

    return side


def _spread(ratios: list[float]) -> float | None:
    if len(ratios) < 2:
        return None
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    return high - low
