"""Peak memory of inverting GRABMyo samples, each side in a process of its own.

Run as ``python -m benchmarks.memory twin|ours N`` it prints the megabytes beyond those held before.
"""

import subprocess
import sys
from pathlib import Path

from benchmarks.timing import Side

STEPS = 2  # the second has Adam's moments beside the gradients: more do not need more


def inversion_memory(n: int) -> tuple[Side, Side]:
    """Return two sides that measure megabytes: the twin inverts ``n`` samples at once, ours in chunks."""

    def side(name: str) -> Side:
        def peak() -> float:
            command = [sys.executable, "-m", "benchmarks.memory", name, str(n)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            return float(done.stdout)

        return peak

    return side("twin"), side("ours")


def main(name: str, n: int) -> None:
    from anchorinv import GEOMETRIES
    from anchorinv.core.inversion import Inversion, invert
    from anchorinv.core.networks import frozen
    from benchmarks.steps import features, networks, signals
    from tests import naive

    g = GEOMETRIES["grabmyo"]
    twin, ours = networks(g)
    start, anchors = signals(g, n, "start"), features(g, n, "anchors")
    before = resident()
    if name == "twin":
        naive.invert(twin, anchors, start, STEPS, 1e-2)
    else:
        invert(frozen(ours), anchors, start, Inversion(steps=STEPS))
    print((peak_resident() - before) / 1e6)


def resident() -> int:
    """Return the bytes of memory that the process holds now."""
    return _status("VmRSS")


def peak_resident() -> int:
    """Return the most bytes it has held."""
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
