"""A fitted model as one ONNX graph: standardisation, features, head, probabilities, novelty, class.

The model's own modules are traced, except for eigendecompositions, which ONNX lacks (``jacobi.py``), and the
tables of p-values, which are looked up with numpy elsewhere.
"""

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from anchorinv.core.confidence import GATE, SHARES, Confidence, Scores, scaled_by
from anchorinv.core.encoder import Encoder
from anchorinv.core.heads import StatisticalHead
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.serving.jacobi import DOMAIN, eigh_function, eigh_name

if TYPE_CHECKING:
    from onnx import ModelProto

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
        if state.confidence is not None:
            counts = state.head.counts if isinstance(state.head, StatisticalHead) else None
            self.p_values = PValues(state.confidence)
            self.factors: Tensor
            factors = state.confidence.factors_of(len(state.classes), counts, state.n_base)
            self.register_buffer("factors", factors)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return ("probabilities", "label") if self.p_values is None else ("probabilities", "label", "novelty")

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
    """Statistics of windows -> p-values of novelty: :meth:`Confidence.p_values` in operators of torch alone.

    Examples
    --------
    >>> scores = Scores.stack([Scores.of(torch.linspace(0, 1, 100))] * 2)
    >>> confidence = Confidence(torch.ones(4), scores, scores, Scores.stack([scores.rows[0]] * 5))
    >>> PValues(confidence)(torch.tensor([[0.3], [3.0]]), torch.tensor([False, False])).round(decimals=2)
    tensor([0.6500, 0.0000])
    """

    def __init__(self, confidence: Confidence) -> None:
        super().__init__()
        self.n_statistics = confidence.n_statistics
        self.base, self.taught = (
            nn.ModuleList(map(_Table, table.rows)) for table in (confidence.base, confidence.taught)
        )

    def forward(self, statistics: Tensor, taught: Tensor) -> Tensor:
        """Return p-values (n,) of statistics (n, n_statistics); ``taught`` (n,) if the nearest class was."""
        shares = SHARES[self.n_statistics]
        inside = statistics[:, : self.n_statistics].double()
        first = self._log_p(0, inside[:, 0], taught)
        large = (-((-first.clamp(-20, -1e-12).expm1()).log() / shares[0]).expm1()).log()
        smallest = torch.where(first < -20, first - math.log(shares[0]), large)
        for i, share in enumerate(shares[1:], start=1):
            log_p = self._log_p(i, inside[:, i], taught)
            gated = torch.where(log_p < math.log(GATE), log_p - math.log(share), 0.0)
            smallest = torch.minimum(smallest, gated)
        # The smallest value needs no lower bound: beyond its ends the last table is constant.
        log_p = self._log_p(-1, -smallest, taught)
        return log_p.exp().to(statistics.dtype).clamp(min=torch.finfo(statistics.dtype).tiny)

    def _log_p(self, row: int, scores: Tensor, taught: Tensor) -> Tensor:
        return torch.where(taught, self.taught[row](scores), self.base[row](scores))


class _Table(nn.Module):
    """Scores (n,) -> logs of their p-values, interpolated in a table and constant beyond its ends."""

    def __init__(self, scores: Scores) -> None:
        super().__init__()
        places, logs = scores.curve
        self.places: Tensor
        self.logs: Tensor
        self.register_buffer("places", torch.from_numpy(places))
        self.register_buffer("logs", torch.from_numpy(logs))

    def forward(self, scores: Tensor) -> Tensor:
        places, logs = self.places, self.logs
        right = (scores[:, None] > places[:-1]).sum(1).clamp(min=1)
        low, high = places[right - 1], places[right]
        # Clamp the share, not the score, which several tables use: the exporter would mix up the bounds.
        share = ((scores - low) / (high - low)).clamp(0, 1)
        return logs[right - 1] + share * (logs[right] - logs[right - 1])


def onnx_graph(model: AnchorInvClassifier) -> "ModelProto":
    """Return a fitted model as an ONNX graph; raise an error that names the part that cannot be exported."""
    graph = ModelGraph(model).eval()
    example = torch.zeros(3, model.n_chans_, model.n_times_)
    try:
        return onnx_of(graph, (example,), inputs=[INPUT], outputs=list(graph.outputs))
    except ImportError as error:
        raise ValueError(f"export needs the package {error.name}; pip install 'anchorinv[onnx]'") from None
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
    if not any(each.domain == DOMAIN for each in proto.opset_import):
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
