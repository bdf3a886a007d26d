"""What this machine can do at best, measured in the same run: products of matrices, and copies."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Machine:
    """Cores the process may use, threads that torch uses, FLOP/s of float32 products, bytes/s of copies."""

    cores: int
    threads: int
    peak: float
    bandwidth: float


def measured(repeats: int = 10) -> Machine:
    """Return the best of several products of (2048, 2048) and several copies of 128 MB."""
    matrix = torch.ones(2048, 2048)
    product = torch.empty_like(matrix)
    source = torch.ones(2**25)
    target = torch.empty_like(source)
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        peak=2 * 2048**3 / _best(lambda: torch.mm(matrix, matrix, out=product), repeats),
        bandwidth=2 * 4 * 2**25 / _best(lambda: target.copy_(source), repeats),
    )


def _best(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
