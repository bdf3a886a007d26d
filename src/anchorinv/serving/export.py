"""Export a model as an ONNX graph, with a JSON file that describes its input and outputs."""

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorinv import __version__
from anchorinv.core.registry import METHODS
from anchorinv.core.types import stream
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.files import replacing, write_json
from anchorinv.progress import tick
from anchorinv.serving.graph import INPUT, OPSET, REJECTED, ModelGraph, onnx_graph
from anchorinv.signal.preprocessing import facts_of

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

#: Largest allowed difference of a graph's probabilities and p-values from the model's.
TOLERANCE = 1e-4
#: Number of random windows that a graph is checked on.
N_RANDOM = 32
_SUFFIX = ".onnx"


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences between the outputs of a graph and of the model.

    Parameters
    ----------
    n : int
        Number of windows.
    probabilities, novelty : float
        Largest absolute differences; 0 for novelty if the model has none.
    n_labels : int
        Number of windows with another predicted class.
    """

    n: int
    probabilities: float
    novelty: float
    n_labels: int

    @property
    def largest(self) -> float:
        """The larger of the two."""
        return max(self.probabilities, self.novelty)

    def __str__(self) -> str:
        same = f"{self.n - self.n_labels} of {self.n} predicted classes agree"
        return (
            f"probabilities differ by at most {self.probabilities:.1e}, novelty by {self.novelty:.1e}; {same}"
        )


def export_model(
    model: AnchorInvClassifier, path: Path | str, *, check: bool = False, windows: np.ndarray | None = None
) -> dict[str, Any]:
    """Export a fitted model as ONNX, with a JSON file next to it that describes input and outputs.

    Parameters
    ----------
    model : AnchorInvClassifier
        Fitted.
    path : Path or str
        Ends in ``.onnx``; the JSON has the same name and ends in ``.json``.
    check : bool, default=False
        Run the graph in onnxruntime on random windows first, and write nothing if its outputs differ from
        the model's.
    windows : ndarray, shape (n, n_chans, n_times), or None, default=None
        Check on these, too.

    Returns
    -------
    dict
        The content of the JSON file; after a check also ``"checked"``: a :class:`Difference` for each set of
        windows.
    """
    path = described(Path(path))[0]
    tick("graph", 0, 1)
    graph = onnx_graph(model).SerializeToString()
    tick("graph", 1, 1)
    checked: dict[str, Difference] = {}
    if check or windows is not None:
        session = _session(graph)
        tried = {"random": random_windows(model)} | ({} if windows is None else {"data": windows})
        checked = {name: difference(model, session, each) for name, each in tried.items()}
        for name, each in checked.items():
            if not each.largest <= TOLERANCE:
                raise ValueError(
                    f"the graph differs from the model on {name} windows: {each}; at most {TOLERANCE:g} is "
                    f"allowed, so nothing was written; please report this with the method, {model.method}"
                )
    facts = graph_facts(model) | {"sha256": hashlib.sha256(graph).hexdigest(), "bytes": len(graph)}
    with replacing(path) as beside:
        beside.write_bytes(graph)
    write_json(described(path)[1], facts)
    return facts | ({"checked": checked} if checked else {})


def described(path: Path) -> tuple[Path, Path]:
    """Return the paths of a graph and of its description; the first must end in .onnx."""
    if path.suffix.lower() != _SUFFIX:
        raise ValueError(f"the name of a graph must end in {_SUFFIX}, got {path}; use model{_SUFFIX}, say")
    return path, path.with_suffix(".json")


def graph_facts(model: AnchorInvClassifier) -> dict[str, Any]:
    """Return the description of a graph, as plain values for JSON."""
    how, classes = model.preprocessing_, model.classes_.tolist()
    shape = ["n", model.n_chans_, model.n_times_]
    shapes = {"probabilities": ["n", len(classes)], "label": ["n"], "novelty": ["n"]}
    types = {"label": "int64"}
    outputs = [
        {"name": name, "shape": shapes[name], "type": types.get(name, "float32")}
        for name in ModelGraph(model).outputs
    ]
    rejecting = model.reject is not None
    return {
        "format": "anchorinv-onnx/1",
        "package": f"anchorinv {__version__}",
        "method": METHODS.name_of(model.method),
        "opset": OPSET,
        "input": {"name": INPUT, "shape": shape, "type": "float32"},
        "outputs": outputs,
        "classes": classes,
        "reject": model.reject,
        "reject_label": model.reject_label_ if rejecting else None,
        "rejected": REJECTED if rejecting else None,
        "channels": list(model.ch_names_) if model.ch_names_ else None,
        "unit": how.unit,
        "sfreq": model.sfreq_,
        "window_seconds": model.n_times_ / model.sfreq_ if model.sfreq_ else None,
        "preprocessing": facts_of(how),
        "preprocessing_steps": list(how.steps),
    }


def random_windows(model: AnchorInvClassifier) -> np.ndarray:
    """Return noise (n, n_chans, n_times) with the mean and standard deviation of the base data, float32."""
    import torch

    shape = (N_RANDOM, model.n_chans_, model.n_times_)
    noise = torch.randn(shape, generator=stream(model.seed_, "windows to check a graph")).numpy()
    scaled: np.ndarray = (noise * model.standardisation_.std + model.standardisation_.mean).astype(np.float32)
    return scaled


def difference(model: AnchorInvClassifier, session: "InferenceSession", windows: np.ndarray) -> Difference:
    """Compare the outputs of a graph for windows (n, n_chans, n_times) with the model's."""
    signals = np.ascontiguousarray(windows, dtype=np.float32)
    names = [each.name for each in session.get_outputs()]
    said = dict(zip(names, session.run(names, {INPUT: signals}), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that noise is unlike the base data
        probabilities, labels = model.predict_proba(signals), model.predict(signals)
        novelty = model.novelty(signals) if "novelty" in said else None
    rejected = None if model.reject is None else model.reject_label_
    names_of = np.array([*model.classes_.tolist(), rejected], dtype=object)  # the last is at -1
    return Difference(
        len(signals),
        float(np.abs(said["probabilities"] - probabilities).max()),
        0.0 if novelty is None else float(np.abs(said["novelty"] - novelty).max()),
        int((names_of[said["label"]] != labels.astype(object)).sum()),
    )


def _session(graph: bytes) -> "InferenceSession":
    try:
        from onnxruntime import InferenceSession
    except ImportError:
        raise ValueError(
            "checking a graph needs the package onnxruntime; pip install 'anchorinv[onnx]'"
        ) from None
    return InferenceSession(graph, providers=["CPUExecutionProvider"])
