"""A state as named tensors and plain facts, and back: what files hold, without any code in them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.encoder import Encoder
from anchorinv.core.heads import Cosine, DotRegression, Head, Mlp
from anchorinv.core.mahalanobis import MahalanobisHead, Scatter, Whitened
from anchorinv.core.network_block import NETWORK, FeatureNetwork
from anchorinv.core.networks import frozen
from anchorinv.core.ranpac import ProjectedRidge
from anchorinv.core.ridge import Linear
from anchorinv.core.riemannian import RiemannianMeans
from anchorinv.core.types import Batch, Curve, State
from anchorinv.core.views import Wide, bare, widened

_BATCHES = ("anchors", "replay", "recordings", "signals")
_SCATTER = ("directions", "shares", "unit")


def packed(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return all that a state holds as tensors by name, and as facts of plain JSON values."""
    trunk, tail = bare(state)
    modules = {"trunk": trunk, "tail": tail, "head": state.head}
    tensors = {
        f"{part}.{name}": tensor
        for part, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
    for name in _BATCHES:
        if batch := getattr(state, name):
            tensors |= {f"{name}.values": batch.values, f"{name}.labels": batch.labels}
    tensors |= {f"curves.{i}": curve.values for i, curve in enumerate(state.curves)}
    facts = {
        "head": _head_facts(state.head),
        "classes": list(state.classes),
        "n_base": state.n_base,
        "shape": list(state.shape),
        "seed": state.seed,
        "session": state.session,
        "views": list(state.trunk.names) if isinstance(state.trunk, Wide) else [],
        "curves": [[curve.name, curve.session] for curve in state.curves],
    }
    if isinstance(state.trunk, Encoder):
        facts["encoder"] = _encoder_facts(state.trunk)
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, facts


def _encoder_facts(encoder: Encoder) -> dict[str, Any]:
    n_components, n_random = encoder.random.shape
    facts = {"blocks": list(encoder.names), "n_components": n_components, "n_random": n_random}
    return facts | ({"network_dim": encoder.network.dim} if encoder.network else {})


def unpacked(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], backbone: Callable[[], nn.Module]
) -> State:
    """Return the state that was packed.

    Parameters
    ----------
    tensors, facts : as :func:`packed` returned them; nothing in them is trusted to be what it says.
    backbone : makes a network of the same architecture; its weights are replaced and never drawn.
    """
    try:
        shape = (facts["shape"][0], facts["shape"][1])
        with torch.device("meta"):
            trunk, tail = _network_like(facts, shape, backbone)
            head = _head_like(tensors, facts["head"])
        for part, module in {"trunk": trunk, "tail": tail, "head": head}.items():
            module.load_state_dict(_under(part, tensors), assign=True)
        # What no covariance can be is found out now, not when signals come.
        if isinstance(head, Discriminant):
            _ = head.solution
        if isinstance(head, ProjectedRidge):
            _ = head.weights
        if views := tuple(facts.get("views", ())):
            trunk, tail = widened(frozen(trunk), frozen(tail), views, shape)
        batches = {
            name: Batch(tensors[f"{name}.values"], tensors[f"{name}.labels"])
            for name in _BATCHES
            if f"{name}.values" in tensors
        }
        curves = [
            Curve(name, session, tensors[f"curves.{i}"]) for i, (name, session) in enumerate(facts["curves"])
        ]
        return State(
            trunk=frozen(trunk),
            tail=frozen(tail),
            head=frozen(head),
            classes=tuple(facts["classes"]),
            n_base=facts["n_base"],
            shape=shape,
            seed=facts["seed"],
            session=facts["session"],
            curves=tuple(curves),
            **batches,
        )
    except (KeyError, TypeError, RuntimeError, IndexError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"these weights are not those of such a network: {reason}") from None


def _network_like(
    facts: Mapping[str, Any], shape: tuple[int, int], backbone: Callable[[], nn.Module]
) -> tuple[nn.Module, nn.Module]:
    """Return trunk and tail of the packed sizes, their values still missing."""
    if encoder := facts.get("encoder"):
        network = None
        if NETWORK in encoder["blocks"]:
            network = FeatureNetwork(*_halves(backbone()), encoder["network_dim"])
        sizes = encoder["n_components"], encoder["n_random"]
        return Encoder(shape, encoder["blocks"], *sizes, network), nn.Identity()
    return _halves(backbone())


def _halves(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    return network.get_submodule("trunk"), network.get_submodule("tail")


def _under(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{part}."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _head_facts(head: Head) -> dict[str, Any]:
    match head:
        case Whitened():
            return {"kind": "whitened", "scale": head.scale}
        case MahalanobisHead():
            return {"kind": "mahalanobis", "scale": head.scale}
        case Linear():
            return {"kind": "linear", "scale": head.scale}
        case Cosine():
            return {"kind": "cosine", "scale": head.scale}
        case Discriminant():
            known = {} if math.isnan(head.centring) else {"centring": head.centring}
            own = {name: getattr(head, name) for name in ("n_base", "shrinkage", "prior", "scale")}
            return {"kind": "discriminant", **own, **known}
        case ProjectedRidge():
            return {"kind": "projected-ridge", "scale": head.scale, "penalty": head.penalty}
        case RiemannianMeans():
            return {"kind": "riemannian-means", "scale": head.scale}
        case Mlp():
            return {"kind": "mlp"}
        case DotRegression():
            return {"kind": "dot-regression", "n_classes": head.n_classes, "weight": head.weight}
    raise TypeError(f"a {type(head).__name__} head has no form on paper yet; those of the catalogue have")


def _head_like(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Head:
    """Return a head of the kind and sizes of the packed one, its values still missing."""
    match facts["kind"]:
        case "cosine":
            free, fixed = tensors["head.free"], tensors["head.fixed"]
            return Cosine(torch.empty(free.shape), torch.empty(fixed.shape), scale=facts["scale"])
        case "linear":
            parts = (torch.empty(tensors[f"head.{part}"].shape) for part in ("fixed", "weights", "bias"))
            return Linear(*parts, scale=facts["scale"])
        case "mahalanobis" | "spread" | "whitened" as kind:
            scatters: list[Scatter] = []
            while (name := f"head.scatters.{len(scatters)}") + ".unit" in tensors:
                like = {part: torch.empty(tensors[f"{name}.{part}"].shape) for part in _SCATTER}
                scatters.append(Scatter(**like))
            prototypes, trust = (torch.empty(tensors[f"head.{part}"].shape) for part in ("fixed", "trust"))
            make = Whitened if kind == "whitened" else MahalanobisHead
            return make(prototypes, scatters, trust, scale=facts["scale"])
        case "discriminant":
            settings = {name: value for name, value in facts.items() if name != "kind"}
            return Discriminant(*_shells(tensors, "counts", "means", "scatters"), **settings)
        case "riemannian-means":
            return RiemannianMeans(*_shells(tensors, "counts", "means"), scale=facts["scale"])
        case "projected-ridge":
            shells = _shells(tensors, "projection", "counts", "sums", "gram")
            return ProjectedRidge(*shells, penalty=facts["penalty"], scale=facts["scale"])
        case "mlp":
            n_classes, dim = len(tensors["head.last.bias"]), tensors["head.hidden.0.weight"].shape[1]
            return Mlp.start(n_classes, dim)
        case "dot-regression":
            vertices = torch.empty(tensors["head.vertices"].shape)
            return DotRegression(vertices, facts["n_classes"], weight=facts["weight"])
    raise KeyError(f"unknown kind of head {facts['kind']!r}")


def _shells(tensors: Mapping[str, Tensor], *parts: str) -> list[Tensor]:
    """Return tensors of the shapes and types of a head's parts."""
    found = [tensors[f"head.{part}"] for part in parts]
    return [torch.empty(part.shape, dtype=part.dtype) for part in found]
