"""What a run ran on, for its records; and how much memory it took."""

import os
import platform
import resource
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from anchorinv._version import __version__

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def environment() -> dict[str, Any]:
    """Return versions and machine, as plain values."""
    libraries = ("torch", "numpy", "scipy", "scikit-learn", "pydantic", "safetensors")
    return {
        "anchorinv": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in libraries},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def reset_peak() -> None:
    """Forget the process's peak of memory, where the system lets one."""
    with suppress(OSError):
        _RESET.write_text("5")


def peak_mb() -> float:
    """Return the most memory (MB) that the process held since the last reset, or since it started."""
    with suppress(OSError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor()
