"""Teach a biosignal classifier new classes from ten examples, without keeping recordings of anyone."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorinv.backbones import Backbone
    from anchorinv.core.conformer import Conformer
    from anchorinv.core.networks import GEOMETRIES, Geometry
    from anchorinv.core.privacy import Privacy
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.audit import audit
    from anchorinv.serving.streaming import Smoothing, StreamingPredictor
    from anchorinv.signal.preprocessing import Filter, Preprocessing
    from anchorinv.validation import Signals

__version__ = "0.1.0"

__all__ = [
    "GEOMETRIES",
    "AnchorInvClassifier",
    "Backbone",
    "Conformer",
    "Filter",
    "Geometry",
    "Preprocessing",
    "Privacy",
    "Signals",
    "Smoothing",
    "StreamingPredictor",
    "__version__",
    "audit",
]

# Names are imported when they are first used: `anchorinv --help` need not wait for torch.
_HOMES = {
    "AnchorInvClassifier": "anchorinv.estimator",
    "Backbone": "anchorinv.backbones",
    "audit": "anchorinv.serving.audit",
    "Conformer": "anchorinv.core.conformer",
    "GEOMETRIES": "anchorinv.core.networks",
    "Filter": "anchorinv.signal.preprocessing",
    "Geometry": "anchorinv.core.networks",
    "Preprocessing": "anchorinv.signal.preprocessing",
    "Privacy": "anchorinv.core.privacy",
    "Signals": "anchorinv.validation",
    "Smoothing": "anchorinv.serving.streaming",
    "StreamingPredictor": "anchorinv.serving.streaming",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'anchorinv' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
