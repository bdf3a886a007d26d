"""Files held against a model's base data: numbers for each channel, and a verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.estimator import AnchorInvClassifier
from anchorinv.model.drift import Drift
from anchorinv.model.sources import AS_IT_IS, Reading, windows_in
from anchorinv.model.watching import Watch

#: Channels that a table shows; of more, those that differ most.
MOST_SHOWN = 12


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """A file and how far it is from the base data.

    Parameters
    ----------
    path : of the file.
    n_windows, n_gaps : windows that were compared, and windows with missing samples, which were not.
    drift : how far they are.
    """

    path: Path
    n_windows: int
    n_gaps: int
    drift: Drift

    def facts(self) -> dict[str, Any]:
        """Return plain JSON values; what was not compared is None."""
        found = self.drift
        return {
            "file": str(self.path),
            "windows": self.n_windows,
            "windows_with_gaps": self.n_gaps,
            "level": found.level,
            "far": found.far,
            "verdict": found.verdict,
            "factor": found.factor,
            "channels": [
                {"name": name, **{key: _number(values[i]) for key, values in _columns(found).items()}}
                for i, name in enumerate(found.channels)
            ],
        }

    def told(self) -> list[str]:
        """Return lines to read: a table of the channels, and the verdict."""
        found, columns = self.drift, _columns(self.drift)
        gaps = f" ({self.n_gaps} more have missing samples)" if self.n_gaps else ""
        lines = [f"{self.path}: {self.n_windows} windows{gaps}"]
        width = max(8, *(len(name[:24]) for name in found.channels))
        lines.append(f"{'channel':<{width}} " + " ".join(f"{key:>10}" for key in columns))
        shown = _most_unlike(found)[:MOST_SHOWN]
        for i in sorted(shown.tolist()):
            cells = " ".join(f"{_cell(values[i]):>10}" for values in columns.values())
            lines.append(f"{found.channels[i][:24]:<{width}} {cells}")
        if len(found.channels) > MOST_SHOWN:
            lines.append(f"and {len(found.channels) - MOST_SHOWN} channels that differ less")
        return [*lines, f"{found.level}: {found.verdict}"]


def checked(model: AnchorInvClassifier, path: Path, reading: Reading = AS_IT_IS) -> Checked:
    """Compare a file with the base data, in bounded memory.

    Parameters
    ----------
    path, reading : as :func:`~anchorinv.model.serving.predicted` takes them.
    """
    watch, n_gaps = Watch(model), 0
    for window in windows_in(model, path, reading, task="checking"):
        if window.whole:
            watch(window.values[None])
        else:
            n_gaps += 1
    found = watch.drift
    if found is None:
        raise ValueError(f"{path} has gaps (NaN) in every window; there is nothing to compare")
    return Checked(path, watch.n_seen, n_gaps, replace(found, scaled=reading.scale))


def _columns(found: Drift) -> Mapping[str, np.ndarray | list[None]]:
    nothing: list[None] = [None] * len(found.channels)
    return {
        "scale": found.scale,
        "shift": found.shift,
        "spectrum": nothing if found.spectrum is None else found.spectrum.distance,
        "covariance": nothing if found.covariance is None else found.covariance.distance,
    }


def _most_unlike(found: Drift) -> np.ndarray:
    """Return the channels, those that differ most first."""
    # In multiples of what is odd, so that all are of one size; one that went flat is beyond all.
    worst = np.nan_to_num(np.log(found.distance), posinf=1e3)
    for part in (found.spectrum, found.covariance):
        if part is not None:
            worst = np.maximum(worst, part.distance)
    return np.argsort(-worst, kind="stable")


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}"
