"""Teach a biosignal classifier new classes from ten examples, without keeping anybody's recordings."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorinv._version import __version__

if TYPE_CHECKING:
    from anchorinv.core.conformer import Conformer
    from anchorinv.core.geometry import GEOMETRIES, Geometry
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.inputs import Signals
    from anchorinv.model.streaming import StreamingPredictor
    from anchorinv.signal.filters import Filter
    from anchorinv.signal.preprocessing import Preprocessing

__all__ = [
    "GEOMETRIES",
    "AnchorInvClassifier",
    "Conformer",
    "Filter",
    "Geometry",
    "Preprocessing",
    "Signals",
    "StreamingPredictor",
    "__version__",
]

# Names are imported when they are first used: `anchorinv --help` need not wait for torch.
_HOMES = {
    "AnchorInvClassifier": "anchorinv.estimator",
    "Conformer": "anchorinv.core.conformer",
    "GEOMETRIES": "anchorinv.core.geometry",
    "Filter": "anchorinv.signal.filters",
    "Geometry": "anchorinv.core.geometry",
    "Preprocessing": "anchorinv.signal.preprocessing",
    "Signals": "anchorinv.inputs",
    "StreamingPredictor": "anchorinv.model.streaming",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'anchorinv' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
