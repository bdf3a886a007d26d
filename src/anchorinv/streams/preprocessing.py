"""What a recording goes through before it is cut into a model's windows: channels, unit, filter."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anchorinv.data.filters import Filter

#: How many of each unit make a volt, the unit in which recordings are read.
UNITS = {"V": 1.0, "mV": 1e3, "uV": 1e6, "µV": 1e6, "nV": 1e9}


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
