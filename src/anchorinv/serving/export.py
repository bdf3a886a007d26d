"""Export a model as one ONNX graph, with a JSON file that describes its input and outputs.

The model's own modules are traced, except for eigendecompositions, which ONNX lacks, and the tables of
p-values, which are looked up with numpy elsewhere.
"""

import hashlib
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from anchorinv import __version__
from anchorinv.core.confidence import GATE, SHARES, Confidence, scaled_by
from anchorinv.core.encoder import Encoder
from anchorinv.core.heads import StatisticalHead
from anchorinv.core.registry import METHODS
from anchorinv.core.types import stream
from anchorinv.errors import import_extra, missing_extra
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.files import replacing, write_json
from anchorinv.progress import tick
from anchorinv.signal.preprocessing import facts_of

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto
    from onnxruntime import InferenceSession

#: ONNX opset of a graph.
OPSET = 20
INPUT = "signals"
#: Label of rejected windows.
REJECTED = -1


class ModelGraph(nn.Module):
    """Signals (n, n_chans, n_times), not standardised -> the outputs of a model.

    ``outputs`` names them: probabilities (n, n_classes), in the order of ``classes_``; labels (n,), the
    column of the predicted class or ``REJECTED``; and the p-values of novelty (n,), if the model has them.
    """

    def __init__(self, model: AnchorInvClassifier) -> None:
        super().__init__()
        state, standardisation = model.state_, model.standardisation_
        state.head.prepare()
        self.trunk, self.tail, self.head = state.trunk, state.tail, state.head
        self.mean: Tensor
        self.std: Tensor
        self.columns: Tensor
        self.register_buffer("mean", torch.from_numpy(np.asarray(standardisation.mean, np.float64)))
        self.register_buffer("std", torch.from_numpy(np.asarray(standardisation.std, np.float64)))
        self.register_buffer("columns", torch.from_numpy(np.asarray(model._columns, np.int64)))
        self.n_base, self.reject, self.p_values = state.n_base, model.reject, None
        self.outputs = ["probabilities", "label"]
        if state.confidence is not None:
            self.outputs.append("novelty")
            counts = state.head.counts if isinstance(state.head, StatisticalHead) else None
            self.p_values = PValues(state.confidence)
            self.factors: Tensor
            factors = state.confidence.factors_of(len(state.classes), counts, state.n_base)
            self.register_buffer("factors", factors)

    def forward(self, signals: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, in the order of ``outputs``."""
        standardised = ((signals.double() - self.mean) / self.std).to(signals.dtype)
        features = self.tail(self.trunk(standardised))
        if self.p_values is None:
            logits = self.head(features)[:, self.columns]
            return F.softmax(logits, dim=1), logits.argmax(1)
        logits, statistics, nearest = self.head.answers(features)
        logits = scaled_by(logits, self.factors)[:, self.columns]
        novelty = self.p_values(statistics, nearest >= self.n_base)
        label = logits.argmax(1)
        if self.reject is not None:
            label = torch.where(novelty <= self.reject, REJECTED, label)
        return F.softmax(logits, dim=1), label, novelty


class PValues(nn.Module):
    """Statistics of windows -> p-values of novelty: :meth:`Confidence.p_values` in torch's operators."""

    def __init__(self, confidence: Confidence) -> None:
        super().__init__()
        self.n_statistics = confidence.n_statistics
        curves = [[row.curve for row in table.rows] for table in (confidence.base, confidence.taught)]
        longest = max(len(places) for table in curves for places, _ in table)
        tables = torch.tensor(np.array([[_padded(*each, longest) for each in table] for table in curves]))
        # For windows whose nearest class is of the base, and for the others; a row is a statistic's table.
        self.places: Tensor
        self.logs: Tensor
        self.register_buffer("places", tables[:, :, 0].clone())  # (2, n_statistics + 1, longest)
        self.register_buffer("logs", tables[:, :, 1].clone())

    def forward(self, statistics: Tensor, taught: Tensor) -> Tensor:
        """Return p-values (n,) of statistics (n, n_statistics); ``taught`` (n,) if the nearest class was."""
        shares, which = SHARES[self.n_statistics], taught.long()
        log_p = self._log_p(slice(0, -1), statistics[:, : self.n_statistics].double(), which)
        first, others = log_p[:, 0], log_p[:, 1:]
        large = (-((-first.clamp(-20, -1e-12).expm1()).log() / shares[0]).expm1()).log()
        smallest = torch.where(first < -20, first - math.log(shares[0]), large)[:, None]
        log_shares = torch.tensor(shares[1:], dtype=torch.float64).log()
        gated = torch.where(others < math.log(GATE), others - log_shares, 0.0)
        smallest = torch.cat([smallest, gated], dim=1).amin(1, keepdim=True)
        # The smallest value needs no lower bound: beyond its ends the last table is constant.
        log_p = self._log_p(slice(-1, None), -smallest, which)[:, 0]
        return log_p.exp().to(statistics.dtype).clamp(min=torch.finfo(statistics.dtype).tiny)

    def _log_p(self, rows: slice, scores: Tensor, which: Tensor) -> Tensor:
        """Return logs of p-values of scores (n, n_rows), interpolated, and constant beyond a table's ends."""
        scores, places, logs = scores[:, :, None], self.places[:, rows][which], self.logs[:, rows][which]
        right = (scores > places[:, :, :-1]).sum(2, keepdim=True).clamp(min=1)
        low, high = places.gather(2, right - 1), places.gather(2, right)
        # Clamp the share, not the score, which several tables use: the exporter would mix up the bounds.
        share = ((scores - low) / (high - low)).clamp(0, 1)
        below, above = logs.gather(2, right - 1), logs.gather(2, right)
        return (below + share * (above - below))[:, :, 0]


def _padded(places: np.ndarray, logs: np.ndarray, length: int) -> np.ndarray:
    """Return a table (2, length) that is constant beyond its last place."""
    more = 1.0 + np.arange(length - len(places))
    return np.stack([np.append(places, places[-1] + more), np.append(logs, np.full(len(more), logs[-1]))])


def onnx_graph(model: AnchorInvClassifier) -> "ModelProto":
    """Return a fitted model as an ONNX graph; raise an error that names the part that cannot be exported."""
    graph = ModelGraph(model).eval()
    example = torch.zeros(3, model.n_chans_, model.n_times_)
    try:
        return onnx_of(graph, (example,), inputs=[INPUT], outputs=graph.outputs)
    except ImportError as error:
        raise missing_extra(error.name, "onnx") from None
    except Exception as error:  # a custom module can make torch raise anything
        raise ValueError(
            f"{_culprit(graph, example)} cannot be exported to ONNX: torch's exporter does not support it "
            f"({str(error).strip().splitlines()[0]}); use another network, or serve the model from Python"
        ) from error


def onnx_of(
    module: nn.Module,
    examples: tuple[Tensor, ...],
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> "ModelProto":
    """Return a module in evaluation mode as an ONNX graph, for any batch size."""
    import onnx.inliner
    import onnxscript  # noqa: F401 - torch's exporter needs it

    sizes: set[int] = set()
    rows = tuple({0: torch.export.Dim("n")} for _ in examples)
    # A function with *args has one entry for all of its inputs.
    shapes = (rows,) if len(rows) > 1 else rows
    with _quiet(), torch.no_grad():
        with _Replaced(sizes):
            traced = torch.export.export(module, examples, dynamic_shapes=shapes, strict=False)
        program = torch.onnx.export(
            traced,
            dynamo=True,
            verbose=False,
            input_names=inputs,
            output_names=outputs,
            opset_version=OPSET,
        )
    assert program is not None
    proto = program.model_proto
    proto.functions.extend(eigh_function(size, opset=OPSET) for size in sorted(sizes))
    if not any(opset.domain == DOMAIN for opset in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    inlined: ModelProto = onnx.inliner.inline_local_functions(proto)
    return inlined


class _Replaced(TorchFunctionMode):
    """Replace eigendecompositions by functions of the graph, and note the sizes of their matrices."""

    def __init__(self, sizes: set[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.linalg.eigh:
            return self._eigh(args[0])
        if func is torch.linalg.eigvalsh:
            return self._eigh(args[0])[0]
        return func(*args, **(kwargs or {}))

    def _eigh(self, matrices: Tensor) -> Sequence[Tensor]:
        size = matrices.shape[-1]
        self.sizes.add(size)
        return torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::{eigh_name(size)}",
            (matrices,),
            dtypes=(matrices.dtype, matrices.dtype),
            shapes=(matrices.shape[:-1], matrices.shape),
            version=1,
        )


def _culprit(graph: ModelGraph, example: Tensor) -> str:
    """Return the name of the first part that cannot be exported."""
    if isinstance(graph.trunk, Encoder):
        for block in graph.trunk.blocks:
            if not _has_graph(block, example):
                return f"the feature block {block.name!r}"
    for name, part in (("trunk", graph.trunk), ("tail", graph.tail), ("head", graph.head)):
        if not _has_graph(part, example):
            return f"the model's {name} ({type(part).__name__})"
        example = part(example)
    return "the model"


def _has_graph(module: nn.Module, example: Tensor) -> bool:
    try:
        onnx_of(module, (example,))
    except Exception:
        return False
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's exporter, whose messages are not about the model."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


#: Domain of our functions, before they are inlined in the graph.
DOMAIN = "anchorinv"
# Eigendecompositions are parallel Jacobi rotations. A round pairs all rows, and a rotation of each pair sets
# its off-diagonal entry to zero; a sweep is as many rounds as it takes to pair every row with every other.
# The off-diagonal norm falls with each sweep, in the end quadratically (Golub & Van Loan, Matrix
# Computations, 2013, section 8.5).
#: Maximum number of sweeps; matrices of 32 rows take about nine.
_SWEEPS = 12


def eigh_name(size: int) -> str:
    """Return the name of the function for matrices of a size."""
    return f"Eigh{size}"


def eigh_function(size: int, *, opset: int) -> "FunctionProto":
    """Return ``torch.linalg.eigh`` as an ONNX function, which ONNX has no operator for.

    Matrices (n, size, size) are float64; eigenvalues (n, size) ascend, eigenvectors are in the columns.
    """
    from onnx.numpy_helper import from_array
    from onnxscript import script
    from onnxscript.values import Opset

    op: Any = Opset("", opset)
    even = size + size % 2
    places, seats = np.arange(even), _next_seats(even)
    # A rotation of all pairs, followed by the permutation for the next round, is cosine and sine times these.
    turns = np.zeros((2, even, even))
    turns[0, places, seats] = 1
    turns[1, places, seats[places ^ 1]] = np.where(places % 2, -1, 1)
    straight, across = (from_array(turn.reshape(even // 2, 2, even)) for turn in turns)
    # An odd size is padded by a row whose eigenvalue is larger than all others; it is cropped at the end.
    pads, corner = from_array(np.repeat([0, size % 2], [4, 2])), from_array(np.diag(places >= size) + 0.0)
    identity = from_array(np.eye(even))
    # Rows 2i and 2i + 1 are a pair: a and b are their diagonal entries, c the off-diagonal one.
    at_a, at_b, at_c = (from_array(places[::2] * (even + 1) + k) for k in (0, even + 1, 1))
    shapes = [0, even**2], [0, even, even], [size], [1, size, 1]
    flat, square, own, by_row = (from_array(np.array(shape)) for shape in shapes)
    n_rounds, sweep = _SWEEPS * even, even - 1

    def eigh(matrices):  # type: ignore[no-untyped-def] # onnxscript reads annotations as types of ONNX
        beyond = op.ReduceSum(op.Abs(matrices), [1, 2], keepdims=1) + 1.0
        matrix = op.Pad(matrices, pads) + beyond * corner
        turned = identity + 0.0 * matrix
        calm = op.Constant(value_int=0)
        for _ in range(n_rounds):
            entries = op.Reshape(matrix, flat)
            a = op.Gather(entries, at_a, axis=1)
            b = op.Gather(entries, at_b, axis=1)
            c = op.Gather(entries, at_c, axis=1)
            half = (b - a) / 2.0
            tangent = op.Where(half < 0.0, -c, c) / (op.Abs(half) + op.Sqrt(half * half + c * c) + 1e-30)
            cosine = 1.0 / op.Sqrt(tangent * tangent + 1.0)
            pairs = op.Unsqueeze(cosine, [2, 3]) * straight + op.Unsqueeze(tangent * cosine, [2, 3]) * across
            turn = op.Reshape(pairs, square)
            matrix = op.MatMul(op.Transpose(turn, perm=[0, 2, 1]), op.MatMul(matrix, turn))
            turned = op.MatMul(turned, turn)
            # Done when every c was negligible next to its a and b for a whole sweep.
            large = op.Cast(c * c > op.Abs(a * b) * 1e-20 + 1e-37, to=7)
            calm = op.Where(op.ReduceSum(large, keepdims=0) == 0, calm + 1, 0)
            done = calm >= sweep
            if done:
                break
        unsorted = op.ReduceSum(matrix * identity, [2], keepdims=0)
        eigenvalues, order = op.TopK(unsorted, own, axis=1, largest=0, sorted=1)
        orders = op.Expand(op.Unsqueeze(order, [1]), by_row)
        return eigenvalues, op.GatherElements(op.Slice(turned, [0], own, [1]), orders, axis=2)

    function: FunctionProto = script(Opset(DOMAIN, 1), default_opset=op)(eigh).to_function_proto()
    function.name = eigh_name(size)
    return function


def _next_seats(n: int) -> np.ndarray:
    """Return the permutation of n rows (n even) that pairs each with every other in n - 1 rounds.

    Places 2i and 2i + 1 are opposite each other. One stays, the others move on by one around the table.
    """
    table = np.arange(n).reshape(-1, 2)
    upper, lower = table[:, 0].tolist(), table[:, 1].tolist()
    if n > 2:
        upper, lower = [upper[0], lower[0], *upper[1:-1]], [*lower[1:], upper[-1]]
    return np.argsort(np.stack([upper, lower], axis=1).ravel())


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
    path = graph_paths(Path(path))[0]
    tick("graph", 0, 1)
    graph = onnx_graph(model).SerializeToString()
    tick("graph", 1, 1)
    checked: dict[str, Difference] = {}
    if check or windows is not None:
        runtime = import_extra("onnxruntime", extra="onnx")
        session = runtime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        inputs = {"random": random_windows(model)} | ({} if windows is None else {"data": windows})
        checked = {name: difference(model, session, signals) for name, signals in inputs.items()}
        for name, result in checked.items():
            if not result.largest <= TOLERANCE:
                raise ValueError(
                    f"the graph differs from the model on {name} windows: {result}; at most {TOLERANCE:g} is "
                    f"allowed, so nothing was written; please report this with the method, {model.method}"
                )
    facts = graph_facts(model) | {"sha256": hashlib.sha256(graph).hexdigest(), "bytes": len(graph)}
    with replacing(path) as beside:
        beside.write_bytes(graph)
    write_json(graph_paths(path)[1], facts)
    return facts | ({"checked": checked} if checked else {})


def graph_paths(path: Path) -> tuple[Path, Path]:
    """Return the paths of a graph and of its description; the first must end in .onnx."""
    if path.suffix.lower() != _SUFFIX:
        raise ValueError(f"the name of a graph must end in {_SUFFIX}, got {path}; use model{_SUFFIX}, say")
    return path, path.with_suffix(".json")


def graph_facts(model: AnchorInvClassifier) -> dict[str, Any]:
    """Return the description of a graph, as plain values for JSON."""
    preprocessing, classes = model.preprocessing_, model.classes_.tolist()
    outputs = [
        {
            "name": name,
            "shape": ["n", len(classes)] if name == "probabilities" else ["n"],
            "type": "int64" if name == "label" else "float32",
        }
        for name in ModelGraph(model).outputs
    ]
    rejecting = model.reject is not None
    return {
        "format": "anchorinv-onnx/1",
        "package": f"anchorinv {__version__}",
        "method": METHODS.name_of(model.method),
        "opset": OPSET,
        "input": {"name": INPUT, "shape": ["n", model.n_chans_, model.n_times_], "type": "float32"},
        "outputs": outputs,
        "classes": classes,
        "reject": model.reject,
        "reject_label": model.reject_label_ if rejecting else None,
        "rejected": REJECTED if rejecting else None,
        "channels": list(model.ch_names_) if model.ch_names_ else None,
        "unit": preprocessing.unit,
        "sfreq": model.sfreq_,
        "window_seconds": model.n_times_ / model.sfreq_ if model.sfreq_ else None,
        "preprocessing": facts_of(preprocessing),
        "preprocessing_steps": list(preprocessing.steps),
    }


def random_windows(model: AnchorInvClassifier) -> np.ndarray:
    """Return noise (n, n_chans, n_times) with the mean and standard deviation of the base data, float32."""
    shape = (N_RANDOM, model.n_chans_, model.n_times_)
    noise = torch.randn(shape, generator=stream(model.seed_, "windows to check a graph")).numpy()
    scaled: np.ndarray = (noise * model.standardisation_.std + model.standardisation_.mean).astype(np.float32)
    return scaled


def difference(model: AnchorInvClassifier, session: "InferenceSession", windows: np.ndarray) -> Difference:
    """Compare the outputs of a graph for windows (n, n_chans, n_times) with the model's."""
    signals = np.ascontiguousarray(windows, dtype=np.float32)
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, {INPUT: signals}), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that noise is unlike the base data
        probabilities, labels = model.predict_proba(signals), model.predict(signals)
        novelty = model.novelty(signals) if "novelty" in outputs else None
    rejected = None if model.reject is None else model.reject_label_
    classes = np.array([*model.classes_.tolist(), rejected], dtype=object)  # the last is at REJECTED, -1
    return Difference(
        len(signals),
        float(np.abs(outputs["probabilities"] - probabilities).max()),
        0.0 if novelty is None else float(np.abs(outputs["novelty"] - novelty).max()),
        int((classes[outputs["label"]] != labels.astype(object)).sum()),
    )
