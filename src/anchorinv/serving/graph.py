"""A fitted model as one graph of ONNX: standardisation, features, head, probabilities, novelty, class.

The model's own modules are traced; what ONNX lacks is replaced: eigenvalues (``jacobi.py``), and the tables
of p-values, which elsewhere are looked up in numpy.
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
from anchorinv.core.head import StatisticalHead
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.serving.jacobi import DOMAIN, eigh_function, eigh_name

if TYPE_CHECKING:
    from onnx import ModelProto

#: Of the operators in a graph.
OPSET = 20
INPUT = "signals"
#: The class of a window that is rejected.
REJECTED = -1


class ModelGraph(nn.Module):
    """Signals (n, n_chans, n_times), as the model's user has them -> what the model says of them.

    ``outputs`` names what comes out: probabilities (n, n_classes) whose columns follow ``classes_``; the
    p-values of novelty (n,), where windows were held out to measure it; and labels (n,), columns of the
    classes predicted, ``REJECTED`` where the model rejects.
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
        """Names of what comes out."""
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
    >>> confidence = Confidence(torch.ones(3), scores, scores, Scores.stack([scores.rows[0]] * 5))
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
        # No lower bound of the smallest is needed: beyond its ends the last table is constant.
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
        # The share is bounded, not the score, which several tables take: the exporter would mix bounds up.
        share = ((scores - low) / (high - low)).clamp(0, 1)
        return logs[right - 1] + share * (logs[right] - logs[right - 1])


def onnx_graph(model: AnchorInvClassifier) -> "ModelProto":
    """Return a fitted model as a graph of ONNX with constants and all, or say which part cannot be one."""
    graph = ModelGraph(model).eval()
    example = torch.zeros(3, model.n_chans_, model.n_times_)
    try:
        return onnx_of(graph, (example,), inputs=[INPUT], outputs=list(graph.outputs))
    except ImportError as error:
        raise ValueError(
            f"ONNX is written with the package {error.name}; pip install 'anchorinv[onnx]'"
        ) from None
    except Exception as error:  # whatever a module from elsewhere makes torch raise
        raise ValueError(
            f"{_culprit(graph, example)} cannot be written as ONNX: torch's exporter does not follow it "
            f"({str(error).strip().splitlines()[0]}); use another network, or serve the model from Python"
        ) from error


def onnx_of(
    module: nn.Module,
    examples: tuple[Tensor, ...],
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> "ModelProto":
    """Return a module in evaluation mode as a graph of ONNX, for any number of rows of its inputs."""
    import onnx.inliner
    import onnxscript  # noqa: F401 - torch's exporter asks for it

    sizes: set[int] = set()
    rows = tuple({0: torch.export.Dim("n")} for _ in examples)
    # A function of several inputs by position has one shape for all of them.
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
    """Call functions of a graph where there are no operators for it, and note the sizes of matrices."""

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
    """Return what the first part that no graph can be made of is called."""
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
    """Keep what torch's exporter says of itself, which is nothing about the model, from the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
