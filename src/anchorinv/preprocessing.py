"""What a recording goes through before it is cut into a model's windows: channels, unit, filter."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

#: How many of each unit make a volt, the unit in which recordings are read.
UNITS = {"V": 1.0, "mV": 1e3, "uV": 1e6, "µV": 1e6, "nV": 1e9}


@dataclass(frozen=True, slots=True)
class Filter:
    """A Butterworth filter along time.

    Parameters
    ----------
    low, high : edges in Hz; one of them alone makes a high-pass or a low-pass.
    order : of the design.
    causal : run forwards only, as a live source allows; otherwise forwards and backwards, without delay.

    Examples
    --------
    >>> Filter(4, 40).sections(250).shape
    (4, 6)
    """

    low: float | None = None
    high: float | None = None
    order: int = 4
    causal: bool = True

    def __post_init__(self) -> None:
        edges = [edge for edge in (self.low, self.high) if edge is not None]
        if not edges or not all(0 < edge < np.inf for edge in edges) or edges != sorted(set(edges)):
            raise ValueError(
                f"a filter needs edges above 0 Hz, the lower one first, got {self.low} and {self.high}"
            )
        if not 1 <= self.order <= 20:
            raise ValueError(f"order (={self.order}) of the filter must be between 1 and 20")

    def sections(self, sfreq: float) -> np.ndarray:
        """Return second-order sections (n_sections, 6) for a rate in Hz."""
        from scipy.signal import butter

        edges = [edge for edge in (self.low, self.high) if edge is not None]
        if max(edges) >= sfreq / 2:
            raise ValueError(
                f"the model's filter reaches to {max(edges):g} Hz, beyond what a rate of {sfreq:g} Hz holds; "
                f"more than {2 * max(edges):g} Hz is needed"
            )
        kind = "bandpass" if len(edges) == 2 else "highpass" if self.low is not None else "lowpass"
        return np.asarray(
            butter(self.order, edges if len(edges) == 2 else edges[0], kind, False, "sos", sfreq)
        )

    def __str__(self) -> str:
        low, high = (f"{edge:g}" if edge is not None else "" for edge in (self.low, self.high))
        way = "causal" if self.causal else "zero phase, not causal"
        return f"{low}-{high} Hz, Butterworth of order {self.order}, {way}"


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How recordings became the signals that a model was trained on.

    Parameters
    ----------
    ch_names : channels in the order of the signals; None where nobody knows.
    unit : of the signals, one of ``UNITS``; None where nobody knows: recordings are then taken in volts.
    filter : applied to recordings before windows are cut; None for none.
    unrepeatable : a filter that was applied and that we cannot repeat, in words.
    """

    ch_names: tuple[str, ...] | None = None
    unit: str | None = None
    filter: Filter | None = None
    unrepeatable: str | None = None

    def __post_init__(self) -> None:
        if self.unit is not None and self.unit not in UNITS:
            raise ValueError(f"unit (={self.unit!r}) must be one of {', '.join(UNITS)}")
        names = self.ch_names
        if names is not None and len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"channel {twice!r} is named twice; channels are matched by name")


def preprocessing_of(ch_names: tuple[str, ...] | None, meta: Mapping[str, Any]) -> Preprocessing:
    """Return what the ``meta`` of a prepared folder says of ``unit`` and ``filter``."""
    told, unit = meta.get("filter"), meta.get("unit")
    known = unit if isinstance(unit, str) and unit in UNITS else None
    if not told or told == "none":
        return Preprocessing(ch_names, known)
    try:
        return Preprocessing(ch_names, known, Filter(**told))
    except (TypeError, ValueError):
        return Preprocessing(ch_names, known, unrepeatable=str(told))
