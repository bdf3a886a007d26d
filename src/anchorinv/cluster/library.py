"""Ray, which comes with the extra ``cluster``."""

import os
from typing import Any

from anchorinv.problems import needed


def ray() -> Any:
    """Return the library, or say how to get it."""
    # Nobody is told that somebody uses it; and a worker without a GPU keeps what it sees of them.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return needed("ray", extra="cluster")
